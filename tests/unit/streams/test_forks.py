"""Forks and what becomes of their sources."""

import pytest

from tests.unit.conftest import checkpoint
from tests.unit.streams.conftest import append, create, delete, fork, reopened, slice_of, text
from topics.engine.read import ReadRequest
from topics.model.errors import InvalidRequestError, StreamConflictError, StreamGoneError
from topics.model.router_rules import parse_selector
from topics.model.topic_config import TopicConfigPatch
from topics.streams.offsets import Position, offset_of
from topics.streams.streams import Streams
from topics.testing import FakeDisk, ManualClock


def offset_at(streams: Streams, name: str, counter: int) -> str:
    return offset_of(streams.topic(name), Position(counter))


def test_a_source_whose_time_is_over_stays_for_its_fork(streams: Streams, disk: FakeDisk, clock: ManualClock) -> None:
    create(streams, "a", body=b"x", ttl_s=10)
    fork(streams, "f", "a", ttl_s=10_000)
    clock.advance(11_000)
    streams.engine.housekeeper.tick()
    with pytest.raises(StreamGoneError):
        streams.topic("a")
    assert text(streams, "f") == "x"
    again = reopened(disk, clock)
    assert text(again, "f") == "x"
    with pytest.raises(StreamConflictError):
        create(again, "a")
    delete(again, "f")
    assert create(again, "a").created


def test_a_reader_of_an_earlier_topic_gets_what_a_fork_inherited_too(streams: Streams) -> None:
    create(streams, "a")
    for number in range(3):
        append(streams, "a", b"<%d>" % number)
    fork(streams, "f", "a")
    append(streams, "f", b"own")
    epoch = streams.topic("f").epoch + 1
    for request in (ReadRequest(from_seq=2, epoch=epoch), ReadRequest(from_seq=99)):
        read = streams.engine.read_now("f", request)
        assert read.tombstone is not None
        assert (read.tombstone.gap_from, read.tombstone.gap_to, read.tombstone.earliest_seq) == (1, 4, 1)
        assert [record["$seq"] for record in read.records()] == [1, 2, 3]


def test_a_fork_through_snapshots_and_segments(streams: Streams, disk: FakeDisk, clock: ManualClock) -> None:
    create(streams, "a")
    for number in range(10):
        append(streams, "a", b"<%d>" % number)
    checkpoint(streams.engine)
    fork(streams, "f", "a")
    append(streams, "f", b"own")
    checkpoint(streams.engine)
    again = reopened(disk, clock)
    whole = "".join(f"<{number}>" for number in range(10))
    assert text(again, "f") == whole + "own"
    assert text(again, "a") == whole
    found = slice_of(again, "f", Position(8), as_json=False)
    assert (found.body, found.position, found.at_tail) == (b"<8><9>own", (11, 0), True)


def test_time_works_in_the_source_of_a_fork(streams: Streams, clock: ManualClock) -> None:
    create(streams, "a", body=b"1")
    streams.engine.put_topic("a", TopicConfigPatch(ttl_ms=1000), lambda answer: None)
    fork(streams, "f", "a")
    append(streams, "f", b"own")
    clock.advance(5_000)
    found = slice_of(streams, "f", as_json=False)
    assert found.body == b"own"
    assert found.tombstone is not None and (found.tombstone.gap_from, found.tombstone.gap_to) == (1, 1)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_cut_entry_keeps_its_key(streams: Streams, sealed: bool) -> None:
    create(streams, "a")
    for key in ("first", "second"):
        append(streams, "a", key.encode(), key=key)
    for _ in range(4 if sealed else 0):
        append(streams, "a", b"more")
    first = offset_at(streams, "a", 1)
    fork(streams, "f", "a", first, sub=3)
    assert slice_of(streams, "f", key="second").body == b"sec"
    assert text(streams, "f") == "firstsec"


def test_a_sub_offset_counts_from_the_entry_behind_the_offset_or_from_none(streams: Streams) -> None:
    """A deleted one has no bytes, and those of the next one are not its."""
    create(streams, "a")
    for body, key in ((b"one", None), (b"gone", "gone"), (b"three", None)):
        append(streams, "a", body, key=key)
    streams.engine.delete_records("a", parse_selector(None, "gone"), lambda outcome: None)
    with pytest.raises(InvalidRequestError, match="has 0 bytes"):
        fork(streams, "f", "a", offset_at(streams, "a", 1), sub=2)


def test_a_sub_offset_may_lie_inside_a_character(streams: Streams) -> None:
    create(streams, "a", body="é€".encode())
    fork(streams, "f", "a", "-1", sub=3)
    assert slice_of(streams, "f").body == "é€".encode()[:3]
