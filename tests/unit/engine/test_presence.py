"""Presence of a range: in blocks, in segments whose flags are in memory or in a file, and in a source."""

import pytest

from tests.unit.conftest import append, checkpoint, delete, eq, killed, open_engine, put, topic
from tests.unit.streams.conftest import append as append_entry
from tests.unit.streams.conftest import create, fork
from topics.engine.engine import Engine
from topics.engine.read import is_whole, removed_count
from topics.model.topic_config import Durability
from topics.streams.streams import inline_streams
from topics.testing import FakeDisk


def filled(disk: FakeDisk, segment_max_events: int = 1000) -> Engine:
    """Ten records in blocks of one; the fifth has the tag `x`."""
    engine = open_engine(disk, segment_max_events=segment_max_events)
    put(engine, "t", durability=Durability.FSYNC)
    for number in range(1, 11):
        append(engine, "t", number, tag="x" if number == 5 else None)
    return engine


def test_nothing_is_gone_at_first() -> None:
    t = topic(filled(FakeDisk()), "t")
    assert removed_count(t) == 0
    assert is_whole(t, 1, 10)
    assert is_whole(t, 4, 3), "an empty range lacks nothing"
    assert not is_whole(t, 1, 11), "nothing is there beyond the head"


@pytest.mark.parametrize("sealed", [False, True])
def test_a_hole_counts_where_it_is(sealed: bool) -> None:
    engine = filled(FakeDisk(), segment_max_events=4 if sealed else 1000)
    delete(engine, "t", match=eq("x"))
    t = topic(engine, "t")
    assert removed_count(t) == 1
    assert [is_whole(t, *ends) for ends in ((1, 4), (6, 10), (5, 5), (1, 10), (4, 6))] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_what_is_gone_from_the_front_counts_up_to_where_it_goes() -> None:
    engine = filled(FakeDisk(), segment_max_events=4)
    delete(engine, "t", before_seq=3)
    t = topic(engine, "t")
    assert removed_count(t) == 2
    assert not is_whole(t, 2, 10)
    assert is_whole(t, 3, 10)


def test_flags_that_are_only_in_a_file_are_not_read() -> None:
    """It may be whole and is not said to be: a caller that asks is on the loop."""
    disk = FakeDisk()
    engine = filled(disk, segment_max_events=6)
    checkpoint(engine)
    delete(engine, "t", match=eq("x"))
    checkpoint(engine, full=True)
    t = topic(open_engine(killed(disk), segment_max_events=6), "t")
    assert removed_count(t) == 1
    assert not is_whole(t, 5, 5)
    assert is_whole(t, 7, 10)


def test_a_fork_lacks_what_its_source_lacks_and_what_was_deleted_in_itself() -> None:
    engine = open_engine()
    streams = inline_streams(engine)
    create(streams, "s", "application/json", body=b"[1,2,3,4]")
    fork(streams, "f", "s")
    fork(streams, "g", "f")
    append_entry(streams, "g", b"5", "application/json")
    s, f, g = (topic(engine, name) for name in "sfg")
    assert [removed_count(t) for t in (s, f, g)] == [0, 0, 0]
    assert is_whole(f, 1, 4)
    assert is_whole(g, 1, 5)
    delete(engine, "f", before_seq=2)
    assert (removed_count(s), removed_count(f) > 0, removed_count(g) > 0) == (0, True, True)
    assert (is_whole(s, 1, 4), is_whole(f, 1, 4), is_whole(f, 2, 4)) == (True, False, True)
    before = removed_count(g)
    delete(engine, "s", before_seq=4)
    assert removed_count(g) > before
    assert (is_whole(g, 3, 5), is_whole(g, 4, 5)) == (False, True)
