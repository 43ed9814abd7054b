"""The catalog gives external readers of the files the state of the last checkpoint."""

import pytest

from tests.unit.conftest import (
    append,
    catch_up,
    checkpoint,
    delete,
    drop,
    eq,
    killed,
    move,
    open_engine,
    open_with_cold,
    put,
    topic,
)
from topics.engine.engine import Engine
from topics.log import catalog_files
from topics.log.catalog import Catalog
from topics.log.catalog_files import read_catalog
from topics.log.layout import Layout
from topics.log.segment import DELETED, decode_head
from topics.testing import FakeDisk, ManualClock, PowerCut

LAYOUT = Layout("data", "cold")


@pytest.fixture(autouse=True, params=["whole", "changes"])
def written(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small catalogs are written whole; large ones, and all of them here, as changes."""
    if request.param == "changes":
        monkeypatch.setattr(catalog_files, "WHOLE_BYTES_MAX", 0)


def published(disk: FakeDisk) -> Catalog:
    found = read_catalog(disk, LAYOUT)
    assert found is not None
    return found


def sealed(engine: Engine, name: str, *values: object) -> None:
    append(engine, name, *values)
    move(engine, name, "sealed")


def test_it_names_topics_with_sealed_segments_only(disk: FakeDisk, engine: Engine) -> None:
    sealed(engine, "orders", 1, 2)
    append(engine, "orders", 3)
    append(engine, "notes", 1)
    assert checkpoint(engine)
    [found] = published(disk).topics
    assert (found.name, found.topic_id, found.epoch) == ("orders", 1, engine.info("orders").epoch)
    assert (found.head, found.earliest, found.evict_floor) == (3, 1, 1)
    assert [(s.first_seq, s.count, s.cold) for s in found.segments] == [(1, 2, False)]
    assert published(disk).head.number == engine.checkpointer.number


def test_it_follows_deletes_floors_and_the_cold_folder(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_with_cold(disk, clock)
    put(engine, "orders", cap_records=5)
    for first in (0, 3):
        append(engine, "orders", *range(first, first + 3), tag="t" if first else "s")
        move(engine, "orders", "sealed")
    assert checkpoint(engine)
    delete(engine, "orders", match=eq("s"))
    engine.run_job(engine.housekeeper.relocate(topic(engine, "orders")))
    assert checkpoint(engine)
    [found] = published(disk).topics
    assert found.earliest == 4
    assert found.evict_floor == 2
    assert [(s.first_seq, s.cold) for s in found.segments] == [(4, True)]


def test_the_flags_in_the_files_are_those_of_its_checkpoint(disk: FakeDisk, engine: Engine) -> None:
    append(engine, "orders", 1, 2, tag="a")
    append(engine, "orders", 3, tag="b")
    move(engine, "orders", "sealed")
    assert checkpoint(engine)
    delete(engine, "orders", match=eq("b"))
    assert checkpoint(engine)
    [found] = published(disk).topics
    assert found.segments[0].marked == 1
    data = disk.open(LAYOUT.segment(1, 1) + ".data").map()
    flags = bytes(data[decode_head(data).flags_at :])
    assert [flag == DELETED for flag in flags] == [False, False, True]


def test_a_dropped_topic_is_gone_and_one_without_live_records_stays(disk: FakeDisk, engine: Engine) -> None:
    sealed(engine, "orders", 1, 2)
    sealed(engine, "events", 1, 2)
    assert checkpoint(engine)
    drop(engine, "orders")
    delete(engine, "events", before_seq=3)
    assert checkpoint(engine)
    [found] = published(disk).topics
    assert (found.name, found.earliest, found.segments) == ("events", 3, [])


def test_segments_that_are_not_written_yet_are_written_before_it_names_them(disk: FakeDisk, engine: Engine) -> None:
    append(engine, "orders", 1, 2)
    move(engine, "orders", "pending")
    catch_up(engine)
    assert checkpoint(engine)
    [found] = published(disk).topics
    assert disk.exists(LAYOUT.segment(1, found.segments[0].first_seq) + ".data")


def test_a_clean_start_goes_on_with_it(disk: FakeDisk, engine: Engine) -> None:
    sealed(engine, "orders", 1)
    sealed(engine, "events", 1)
    engine.close_inline()
    before = published(disk)
    again = open_engine(disk)
    sealed(again, "events", 2)
    assert checkpoint(again)
    after = published(disk)
    assert after.head.number > before.head.number
    assert {t.name: len(t.segments) for t in after.topics} == {"orders": 1, "events": 2}


def test_one_that_is_missing_or_damaged_is_made_again_by_the_next_start(disk: FakeDisk, engine: Engine) -> None:
    sealed(engine, "orders", 1)
    engine.close_inline()
    before = published(disk)
    for damaged in (False, True):
        if damaged:
            disk.open(LAYOUT.catalog, write=True).write_at(9, b"?")
        else:
            disk.remove(LAYOUT.catalog)
        open_engine(disk).close_inline()
        assert published(disk).topics == before.topics


def test_a_stop_at_any_call_of_a_checkpoint_leaves_a_catalog_whose_files_are_there() -> None:
    def run(disk: FakeDisk) -> None:
        engine = open_engine(disk)
        for _ in range(3):
            append(engine, "orders", 1, 2, tag="a")
            append(engine, "orders", 3, tag="b")
            move(engine, "orders", "sealed")
            assert checkpoint(engine)
            delete(engine, "orders", match=eq("a"))
            delete(engine, "orders", before_seq=topic(engine, "orders").head)
            assert checkpoint(engine)

    whole = FakeDisk()
    run(whole)
    for call in range(1, whole.call_count + 2):
        disk = FakeDisk(stop_before=call)
        try:
            run(disk)
        except PowerCut:
            pass
        survivor = killed(disk)
        found = read_catalog(survivor, LAYOUT) if survivor.exists("data/meta") else None
        for entry in found.topics if found is not None else ():
            for segment in entry.segments:
                path = LAYOUT.segment(entry.topic_id, segment.first_seq, segment.cold)
                assert survivor.exists(path + ".data"), (call, segment)
                assert survivor.exists(path + ".idx"), (call, segment)
        again = open_engine(survivor, boot_id="b")
        after = read_catalog(survivor, LAYOUT)
        if after is not None:
            assert after.head.number == again.checkpointer.number
            named = {(t.topic_id, s.first_seq) for t in after.topics for s in t.segments}
            assert named == {(t.id, s.first_seq) for t in again.core.topics.values() for s in t.segments}


def test_a_failed_publication_keeps_the_files_that_the_old_one_names(disk: FakeDisk, engine: Engine) -> None:
    sealed(engine, "orders", 1)
    assert checkpoint(engine)
    keeper = engine.checkpointer.catalog

    def fail(head: object) -> None:
        raise OSError("no room")

    keeper.publish = fail  # type: ignore[method-assign]
    delete(engine, "orders", before_seq=2)
    checkpoint(engine)
    assert engine.checkpointer.failures == 1
    assert disk.exists(LAYOUT.segment(1, 1) + ".data")
    del keeper.publish
    assert checkpoint(engine)
    assert not disk.exists(LAYOUT.segment(1, 1) + ".data")
