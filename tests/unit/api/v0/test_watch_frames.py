"""Events as text: a payload can never end an event or begin another."""

import json

from hypothesis import given
from hypothesis import strategies as st

from topics.api.live.frames import RecordBatch
from topics.api.v0.watch import SHARED, SOLO, encode_map, error_event, event, heartbeat
from topics.model.errors import CorruptSegmentError
from topics.model.seq_ranges import LossReason, Tombstone


def test_events_are_as_the_protocol_states() -> None:
    batch = RecordBatch("jobs", b'{"$seq":1,"$ts":5,"data":null}', 0, 1, 7)
    assert SHARED.records(batch) == (
        b'event: record\ndata: {"topic":"jobs","records":[{"$seq":1,"$ts":5,"data":null}],'
        b'"from_seq":0,"to_seq":1,"head_seq":7}\n\n'
    )
    tombstone = Tombstone(1, 4, LossReason.CAP, 4, 5, 9)
    assert SHARED.tombstone("jobs", tombstone, "cap", 4) == (
        b'event: tombstone\ndata: {"topic":"jobs","reason":"cap","gap_from":1,"gap_to":4,"earliest_seq":5,'
        b'"head_seq":9}\n\n'
    )
    assert SHARED.caught_up("jobs", 9) == b'event: caught-up\ndata: {"topic":"jobs","head_seq":9}\n\n'
    assert SHARED.deleted("jobs", 9, 8) == (
        b'event: topic-deleted\ndata: {"topic":"jobs","head_seq":9,"reason":"deleted"}\n\n'
    )
    assert heartbeat(1748467205000) == b": hb 1748467205000\n\n"
    assert error_event(429, "slow", 1500, ["events"]) == (
        b'event: error\ndata: {"code":429,"error":"slow","retry_after_ms":1500,"topics":["events"]}\n\n'
    )


def test_an_event_of_one_topic_is_a_chunk_with_its_id() -> None:
    chunk = SOLO.caught_up("jobs", 5210)
    size, _, rest = chunk.partition(b"\r\n")
    assert len(rest) == int(size, 16) + 2
    assert rest == b"id: %b\n%b\r\n" % (encode_map({"jobs": 5210}), SHARED.caught_up("jobs", 5210))
    error = SOLO.error("jobs", CorruptSegmentError("jobs", 1, 2))
    assert b"id:" not in error
    assert b'"code":500' in error


@given(st.text(alphabet='ab\r\n" :', max_size=40))
def test_line_ends_in_a_payload_stay_within_the_event(text: str) -> None:
    spaced = b'{"a":\r\n[1,\n\r2],\r"b":' + json.dumps(text).encode() + b"\n}"
    written = event(b"record", spaced)
    assert written.endswith(b"\n\n")
    assert b"\r" not in written
    name, *lines = written[:-2].split(b"\n")
    assert name == b"event: record"
    assert all(line.startswith(b"data: ") for line in lines)
    joined = b"\n".join(line.removeprefix(b"data: ") for line in lines)
    assert json.loads(joined) == json.loads(spaced)
