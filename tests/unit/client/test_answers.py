"""The return values of calls, decoded from answers of the server."""

from typing import Any

import msgspec
import pytest

from topics.model.seq_ranges import LossReason, Tombstone
from topics_client import (
    Appended,
    Diff,
    Gap,
    Job,
    QueueCounters,
    Record,
    TopicConfig,
    TopicPage,
    TopicState,
    TopicSummary,
    answers,
)
from topics_protocol import v0

RECORD = b'{"$seq":5,"$ts":1700,"$node":"n","$tag":"t","data":{"a": 1.50},"meta":{"k":[1]}}'


def record(text: bytes = RECORD) -> Record:
    return msgspec.json.decode(text, type=Record)


def test_a_record_has_everything_the_server_stated() -> None:
    found = record()
    assert (found.seq, found.ts, found.node, found.tag, found.meta) == (5, 1700, "n", "t", {"k": [1]})
    assert found.data == {"a": 1.5}
    assert found.data is found.data
    assert found.raw == b'{"a": 1.50}'
    assert found.decode(dict[str, float]) == {"a": 1.5}
    with pytest.raises(msgspec.ValidationError):
        found.decode(list[int])


def test_a_bare_record_has_none_where_nothing_was_stated() -> None:
    found = record(b'{"$seq":5,"$ts":1700,"data":null}')
    assert (found.node, found.tag, found.meta, found.data, found.raw) == (None, None, None, None, b"null")


def test_records_are_equal_when_they_state_the_same() -> None:
    assert record() == record()
    assert record() != record(RECORD.replace(b"1.50", b"1.5"))


def test_the_repr_of_a_record_shows_its_data() -> None:
    assert repr(record()) == "Record(seq=5, data={\"a\": 1.50}, ts=1700, node='n', tag='t', meta={'k': [1]})"
    long = record(b'{"$seq":5,"$ts":1,"data":"' + b"x" * 5000 + b'"}')
    assert len(repr(long)) < 300 and "…" in repr(long)
    job = msgspec.json.decode(RECORD[:-1] + b',"lease_id":"l","deadline":2,"deliveries":1}', type=Job)
    assert repr(job).startswith('Job(seq=5, data={"a": 1.50}') and "deliveries=1" in repr(job)


def test_a_gap_reads_every_tombstone_of_the_server() -> None:
    for reason in LossReason:
        sent = msgspec.json.encode(Tombstone(3, 9, reason, 7, 10, 20))
        gap = msgspec.json.decode(sent, type=Gap)
        assert gap == Gap(gap_from=3, gap_to=9, reason=reason.value, missed_estimate=7, earliest_seq=10, head_seq=20)


def test_a_reason_of_a_newer_server_is_no_surprise() -> None:
    gap = {"gap_from": 1, "gap_to": 2, "reason": "moths", "missed_estimate": 2, "earliest_seq": 3, "head_seq": 3}
    assert msgspec.convert(gap, Gap).reason == "moths"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (answers.TopicPut, v0.PutAnswer),
        (answers.TopicState, v0.TopicAnswer),
        (answers.TopicPage, v0.ListAnswer),
        (answers.TopicDropped, v0.DropAnswer),
        (answers.Appended, v0.AppendAnswer),
        (answers.Diff, v0.DiffAnswer),
        (answers.Deleted, v0.DeleteAnswer),
    ],
)
def test_no_field_of_the_protocol_is_forgotten(ours: type[msgspec.Struct], theirs: type[msgspec.Struct]) -> None:
    assert set(ours.__struct_encode_fields__) == {*theirs.__struct_encode_fields__, "performance"}


def test_a_record_has_every_field_of_the_protocol() -> None:
    assert Record.__struct_encode_fields__ == v0.RecordOut.__struct_encode_fields__
    assert Gap.__struct_fields__ == Tombstone.__struct_fields__


SUMMARY = {"topic": "a", "head_seq": 1, "earliest_seq": 1, "count": 1, "bytes": 2, "durable": False}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (
            v0.AppendAnswer(topic="a", first_seq=1, last_seq=2, head_seq=2, count=2, created=True, deduped=False),
            Appended(topic="a", first_seq=1, last_seq=2, head_seq=2, count=2, created=True, deduped=False, seqs=None),
        ),
        (
            v0.ListAnswer(topics=[v0.TopicSummary(**SUMMARY, effective_priority=0)]),  # type: ignore[arg-type]
            TopicPage(topics=[TopicSummary(**SUMMARY, effective_priority=0)], next_cursor=None),  # type: ignore[arg-type]
        ),
        (v0.ListAnswer(topics=[], next_cursor="x"), TopicPage(topics=[], next_cursor="x")),
        (
            v0.TopicAnswer(
                topic="a", type="queue", head_seq=1, earliest_seq=1, next_seq=2, count=1, bytes=3, config=TopicConfig(),
                queue=v0.QueueCounters(ready=1, in_flight=2, dead_lettered=3), effective_priority=4, last_write_ts=5,
                last_read_ts=None, epoch=6,
            ),
            TopicState(
                topic="a", type="queue", head_seq=1, earliest_seq=1, next_seq=2, count=1, bytes=3, config=TopicConfig(),
                queue=QueueCounters(ready=1, in_flight=2, dead_lettered=3), effective_priority=4, last_write_ts=5,
                epoch=6,
            ),
        ),
        (
            v0.DiffAnswer(
                topic="a", records=[], next_from_seq=1, head_seq=2, earliest_seq=1, caught_up=False, lag=1,
                tombstone=None, epoch=6,
            ),
            Diff(topic="a", records=[], next_from_seq=1, head_seq=2, earliest_seq=1, caught_up=False, lag=1, epoch=6),
        ),
    ],
)  # fmt: skip
def test_missing_fields_are_none(sent: msgspec.Struct, expected: msgspec.Struct) -> None:
    assert msgspec.json.decode(msgspec.json.encode(sent), type=type(expected)) == expected


def test_unknown_fields_are_ignored_and_performance_may_be_anything() -> None:
    body: dict[str, Any] = {
        "topic": "a", "first_seq": 1, "last_seq": 1, "head_seq": 1, "count": 1, "created": False, "deduped": False,
        "performance": {"fsync_ms": 0.25, "shard": "b"}, "colour": "red",
    }  # fmt: skip
    assert msgspec.convert(body, Appended).performance == {"fsync_ms": 0.25, "shard": "b"}
