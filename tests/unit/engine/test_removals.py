"""Deletes out of sealed segments are told to the archive until it has confirmed them."""

import pytest

from tests.unit.engine.conftest import append, checkpoint, delete, eq, killed, move, open_engine, put, topic
from topics.core.ranges import union
from topics.engine import Engine
from topics.engine.removals import TOLD_MAX
from topics.storage.catalog import read_catalog
from topics.storage.layout import Layout
from topics.storage.replaced import replace_file
from topics.testing import FakeDisk

LAYOUT = Layout("data")


def told(disk: FakeDisk, name: str = "orders") -> list[tuple[int, list[tuple[int, int]]]]:
    found = read_catalog(disk, LAYOUT)
    assert found is not None
    return [(removal.number, removal.ranges) for removal in found.by_name()[name].removals]


@pytest.fixture
def engine(disk: FakeDisk) -> Engine:
    engine = open_engine(disk, track_removals=True)
    for tag in ("a", "b", "c"):
        append(engine, "orders", 1, 2, tag=tag)
    move(engine, "orders", "sealed")
    append(engine, "orders", 7, 8, tag="a")
    assert checkpoint(engine)
    return engine


def test_only_sealed_records_count(disk: FakeDisk, engine: Engine) -> None:
    delete(engine, "orders", match=eq("a"))
    assert checkpoint(engine)
    assert told(disk) == [(engine.checkpointer.number, [(1, 2)])]


def test_a_delete_by_seq_counts_from_the_first_live_record(disk: FakeDisk, engine: Engine) -> None:
    delete(engine, "orders", before_seq=4)
    delete(engine, "orders", before_seq=6)
    assert checkpoint(engine)
    assert told(disk) == [(engine.checkpointer.number, [(1, 5)])]


def test_deletes_in_any_order_are_one_set(disk: FakeDisk, engine: Engine) -> None:
    delete(engine, "orders", match=eq("c"))
    delete(engine, "orders", match=eq("a"))
    delete(engine, "orders", match=eq("b"))
    assert checkpoint(engine)
    assert told(disk) == [(engine.checkpointer.number, [(1, 6)])]


def test_what_a_cap_takes_is_not_told(disk: FakeDisk, engine: Engine) -> None:
    put(engine, "orders", cap_records=2)
    assert topic(engine, "orders").earliest == 7
    assert checkpoint(engine)
    assert told(disk) == []


def test_they_are_forgotten_once_confirmed_and_not_before(disk: FakeDisk, engine: Engine) -> None:
    delete(engine, "orders", match=eq("a"))
    assert checkpoint(engine)
    first = engine.checkpointer.number
    delete(engine, "orders", match=eq("b"))
    assert checkpoint(engine)
    assert told(disk) == [(first, [(1, 2)]), (first + 1, [(3, 4)])]
    disk.make_dirs(LAYOUT.pipeline)
    replace_file(disk, LAYOUT.pipeline_seen, b"%d" % first)
    for _ in range(2):
        append(engine, "orders", 9)
        assert checkpoint(engine)
    assert told(disk) == [(first + 1, [(3, 4)])]


def test_a_crash_forgets_none(disk: FakeDisk, engine: Engine) -> None:
    delete(engine, "orders", match=eq("a"))
    assert checkpoint(engine)
    delete(engine, "orders", match=eq("b"))
    after = killed(disk)
    open_engine(after, track_removals=True).close_inline()
    ranges = [part for _, parts in told(after) for part in parts]
    assert sorted(ranges) == [(1, 2), (3, 4)]


def test_without_an_archive_nothing_is_kept(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "orders", 1, 2)
    move(engine, "orders", "sealed")
    delete(engine, "orders", before_seq=2)
    assert topic(engine, "orders").parts is None


def test_a_folder_that_ever_had_a_pipeline_keeps_them(disk: FakeDisk) -> None:
    disk.make_dirs(LAYOUT.pipeline)
    assert open_engine(disk).removals.on


def test_lists_of_ranges_are_joined_while_nobody_confirms_them(disk: FakeDisk) -> None:
    engine = open_engine(disk, track_removals=True)
    count = 3 * TOLD_MAX
    for number in range(count):
        append(engine, "orders", 1, tag=f"t{number}")
    append(engine, "orders", 1, tag="kept")
    move(engine, "orders", "sealed")
    for number in range(count):
        delete(engine, "orders", match=eq(f"t{number}"))
        assert checkpoint(engine)
    found = told(disk)
    assert len(found) == TOLD_MAX
    assert [removal for removal, _ in found] == sorted({removal for removal, _ in found})
    assert found[-1][0] == engine.checkpointer.number
    assert found[0][1] == [(1, count - TOLD_MAX + 1)]
    assert union(*(ranges for _, ranges in found)) == [(1, count)]


def test_without_an_archive_they_are_forgotten_and_with_a_former_one_somebody_is_told(
    disk: FakeDisk, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    delete(engine, "orders", match=eq("a"))
    assert checkpoint(engine)
    engine.close_inline()
    former = disk.clone()
    former.make_dirs(LAYOUT.pipeline)
    for folder, ranges in ((disk, []), (former, [(1, 2)])):
        again = open_engine(folder)
        append(again, "orders", 9)
        assert checkpoint(again)
        assert union(*(one for _, one in told(folder))) == ranges
        warned = "deletes are kept for an archive that is turned off" in caplog.text
        assert warned == bool(ranges)
        again.close_inline()
