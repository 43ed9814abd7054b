from struct import error as StructError
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.features import block_in
from topics.log.frame import Frame, FrameKind, decode_block, encode_block_head, read_frame, seal_frame
from topics.queues import queue_frames
from topics.queues.queue_frames import (
    Claim,
    Departure,
    Ending,
    JobFailure,
    JobHistory,
    JobsFailed,
    JobsPrioritized,
    LeaseEvent,
    LeaseFrame,
    LeaseState,
    MoveReason,
    QueuePart,
)

SEQS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20)
U64 = st.integers(0, 2**64 - 1)
ENDINGS = st.builds(Ending, U64, U64)


@given(deadline=ENDINGS, node=st.text(max_size=20), claims=st.lists(st.tuples(U64, U64, st.integers(0, 2**32 - 1))))
def test_claims(deadline: Ending, node: str, claims: list[tuple[int, int, int]]) -> None:
    body = queue_frames.encode_claims(deadline, node, claims)
    expected = LeaseFrame(LeaseEvent.CLAIMED, deadline, node, [Claim(*claim) for claim in claims], ())
    assert queue_frames.decode_lease(memoryview(body)) == expected


@given(event=st.sampled_from((LeaseEvent.EXTENDED, LeaseEvent.RELEASED)), ending=ENDINGS, seqs=SEQS)
def test_extensions_and_releases(event: LeaseEvent, ending: Ending, seqs: list[int]) -> None:
    found = queue_frames.decode_lease(memoryview(queue_frames.encode_lease_change(event, ending, seqs)))
    assert (found.event, found.ending, list(found.seqs)) == (event, ending, seqs)


def test_lease_events_of_older_logs_do_not_state_how_long_they_last() -> None:
    claimed = queue_frames.decode_lease(memoryview(pack("<BQH", 1, 50, 1) + b"a" + pack("<QQI", 3, 9, 2)))
    assert claimed == LeaseFrame(LeaseEvent.CLAIMED, Ending(50, None), "a", [Claim(3, 9, 2)], ())
    for old, event in ((2, LeaseEvent.EXTENDED), (3, LeaseEvent.RELEASED)):
        found = queue_frames.decode_lease(memoryview(pack("<BQHQ", old, 50, 0, 3)))
        assert (found.event, found.ending, list(found.seqs)) == (event, Ending(50, None), [3])


def test_a_delay() -> None:
    assert queue_frames.decode_delay(memoryview(queue_frames.encode_delay(Ending(5, 4), 1, 3))) == (Ending(5, 4), 1, 3)
    with pytest.raises(ValueError, match="no jobs"):
        queue_frames.decode_delay(memoryview(queue_frames.encode_delay(Ending(5, 4), 3, 1)))


def test_a_delay_of_an_older_log_does_not_state_how_long_it_lasts() -> None:
    assert queue_frames.decode_delay(memoryview(pack("<QQQ", 5, 1, 3))) == (Ending(5, None), 1, 3)


def test_an_arrival_holds_its_block() -> None:
    block = encode_block_head(4, 9, 1, 0, 0, b"", bytes(12), 2) + b"{}"
    body = memoryview(queue_frames.encode_arrival_head(MoveReason.REDRIVE, 7, [3, 8]) + block)
    arrival, inner = queue_frames.decode_arrival(body)
    assert (arrival.reason, arrival.source_id, list(arrival.seqs)) == (MoveReason.REDRIVE, 7, [3, 8])
    assert decode_block(inner).first_seq == 4
    frame = read_frame(memoryview(b"".join(seal_frame(FrameKind.ARRIVAL, 1, 1, 0, bytes(body)))), 0)
    assert isinstance(frame, Frame) and bytes(block_in(frame.kind, frame.body) or b"") == block


def test_a_departure() -> None:
    body = queue_frames.encode_departure(MoveReason.DEAD_LETTER, 9, [(1, 2), (5, 5)])
    assert queue_frames.decode_departure(memoryview(body)) == Departure(MoveReason.DEAD_LETTER, 9, [(1, 2), (5, 5)])


def test_a_part() -> None:
    history = JobHistory(40, (JobFailure(1, 40, "a", "why"), JobFailure(2, 50, "b", "", fatal=True)))
    part = QueuePart(3, [(1, 50)], [LeaseState(2, "a", 77, 90, 1)], [(1, 2)], 60, [(1, history)])
    assert queue_frames.decode_part(queue_frames.encode_part(part)) == part


def test_a_part_of_a_later_version_may_have_more_and_an_earlier_one_less() -> None:
    assert queue_frames.decode_part(b"\x91\x05") == QueuePart(5)
    assert queue_frames.decode_part(b"\x95\x05\x90\x90\x90\x07") == QueuePart(5, told_ms=7)
    assert queue_frames.decode_part(b"\x9c\x05\x90\x90\x90\x00\x90\xc2\x90\x90\x90\x01\x01") == QueuePart(5)


def test_an_event() -> None:
    for event in (JobsFailed(50, "a", "why", True, [(1, 2), (5, 1)]), JobsPrioritized(3, 9, -7)):
        assert queue_frames.decode_event(memoryview(queue_frames.encode_event(event))) == event


@given(raw=st.binary(max_size=60))
def test_no_bytes_are_too_strange(raw: bytes) -> None:
    for decode in (
        queue_frames.decode_lease,
        queue_frames.decode_delay,
        queue_frames.decode_arrival,
        queue_frames.decode_departure,
        queue_frames.decode_event,
    ):
        try:
            decode(memoryview(raw))
        except (ValueError, StructError):
            pass
    try:
        queue_frames.decode_part(raw)
    except ValueError:
        pass


def test_an_arrival_of_nothing_is_malformed() -> None:
    with pytest.raises(ValueError, match="lengths"):
        queue_frames.decode_arrival(memoryview(queue_frames.encode_arrival_head(MoveReason.REDRIVE, 7, [])))
