import gc

import pytest

from tests.property.totals import check_books, check_totals
from tests.unit.conftest import (
    DISK,
    EPHEMERAL,
    FSYNC,
    after_power_cut,
    append,
    ask_append,
    checkpoint,
    delete,
    drop,
    flush,
    hold,
    killed,
    open_engine,
    put,
    topic,
    values,
)
from tests.unit.routers.conftest import route, unroute
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.engine.topic_paging import OFFSET_MASK, SIZE_BITS
from topics.log.layout import Layout
from topics.log.snapshot_files import SnapshotFile
from topics.model.errors import DamageError
from topics.model.topic_config import TopicType
from topics.testing import FakeDisk, ManualClock


def start(disk: FakeDisk, clock: ManualClock | None = None, **options: object) -> Engine:
    return open_engine(disk, clock, **{"awake_topics": 0, **options})  # type: ignore[arg-type]


def paged_out(engine: Engine) -> list[str]:
    return sorted(engine.core.pager.names)


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


def test_an_unused_topic_is_paged_out_after_a_checkpoint(disk: FakeDisk) -> None:
    engine = start(disk)
    append(engine, "a", 1, 2, key="k")
    append(engine, "b", 3)
    assert paged_out(engine) == []
    held = engine.core.retention.tail_bytes
    assert checkpoint(engine)
    assert paged_out(engine) == ["a", "b"]
    assert held > engine.core.retention.tail_bytes == 0
    check_totals(engine)
    assert values(engine, "a") == [1, 2]
    assert paged_out(engine) == ["b"]
    assert append(engine, "a", 1, 2, key="k").deduped
    assert append(engine, "a", 4).last_seq == 3
    check_books(engine)


def test_few_topics_stay_resident(disk: FakeDisk) -> None:
    engine = start(disk, awake_topics=2)
    for name in "ab":
        append(engine, name, 1)
    checkpoint(engine)
    assert paged_out(engine) == []
    for name in "abcd":
        append(engine, name, 1)
    checkpoint(engine)
    assert len(paged_out(engine)) == 2


def test_a_start_leaves_them_paged_out(disk: FakeDisk) -> None:
    engine = start(disk)
    append(engine, "a", 1)
    append(engine, "b", 2)
    delete(engine, "b", before_seq=2)
    engine.close_inline()
    again = start(disk.clone())
    assert paged_out(again) == ["a", "b"]
    check_totals(again)
    assert values(again, "b") == []
    assert topic(again, "b").head == 1
    check_books(again)


def test_a_start_with_few_topics_wakes_them(disk: FakeDisk) -> None:
    engine = start(disk)
    append(engine, "a", 1)
    engine.close_inline()
    again = start(disk.clone(), awake_topics=5)
    assert paged_out(again) == []
    assert values(again, "a") == [1]


def test_the_log_wakes_what_it_is_about(disk: FakeDisk) -> None:
    engine = start(disk)
    for name in "abc":
        append(engine, name, 1)
    checkpoint(engine)
    append(engine, "a", 2)
    drop(engine, "b")
    again = start(killed(disk))
    assert {name: values(again, name) for name in "ac"} == {"a": [1, 2], "c": [1]}
    assert list(again.core.names) == ["a", "c"]
    check_books(again)
    # The checkpoint that ended the recovery added to the snapshots, and lists the lost ranges.
    again.close_inline()
    assert list(start(disk=again._fs.clone()).core.names) == ["a", "c"]  # type: ignore[attr-defined]


def test_a_name_is_not_given_twice(disk: FakeDisk) -> None:
    engine = start(disk)
    put(engine, "a", durability=FSYNC)
    append(engine, "a", 1)
    checkpoint(engine)
    assert paged_out(engine) == ["a"]
    assert not put(engine, "a", durability=FSYNC).created
    assert values(engine, "a") == [1]


def test_one_that_is_made_again_is_another(disk: FakeDisk) -> None:
    engine = start(disk)
    append(engine, "a", 1)
    checkpoint(engine)
    drop(engine, "a")
    append(engine, "a", 2)
    checkpoint(engine)
    assert values(start(killed(disk)), "a") == [2]


def test_lists_leave_them_paged_out(disk: FakeDisk) -> None:
    engine = start(disk, ManualClock())
    append(engine, "a", 1, 2)
    append(engine, "b", 3)
    engine.consumed(topic(engine, "b"))
    before = engine.list_topics()
    checkpoint(engine)
    assert engine.list_topics() == before
    assert paged_out(engine) == ["a", "b"]


def test_a_peek_by_id_leaves_them_paged_out(disk: FakeDisk) -> None:
    engine = start(disk)
    append(engine, "a", 1, 2)
    number = topic(engine, "a").id
    checkpoint(engine)
    append(engine, "b", 3)
    core = engine.core
    assert [one and (one.name, one.head) for one in map(core.peek_at, (number, number + 1, number + 2))] == [
        ("a", 2), ("b", 1), None,
    ]  # fmt: skip
    assert paged_out(engine) == ["a"]


def test_a_look_that_counts_as_reading_is_remembered(disk: FakeDisk) -> None:
    engine = start(disk, clock := ManualClock())
    append(engine, "a", 1)
    checkpoint(engine)
    clock.advance(5000)
    engine.list_topics(touch=True)
    assert paged_out(engine) == ["a"]
    assert topic(engine, "a").last_read_ts == engine.core.wall()


def test_a_held_topic_stays_the_same_object(disk: FakeDisk) -> None:
    engine = start(disk)
    append(engine, "a", 1)
    held = topic(engine, "a")
    checkpoint(engine)
    assert paged_out(engine) == ["a"] and held.paged_out_by is engine.core.pager
    assert topic(engine, "a") is held and engine.core.topics[held.id] is held
    assert paged_out(engine) == [] and held.paged_out_by is None
    assert engine.core.pager.page_out(held.id)
    assert engine.core.topic_at(held.id) is held


def test_a_topic_that_nothing_holds_is_loaded_from_the_snapshot(disk: FakeDisk) -> None:
    engine = start(disk)
    append(engine, "a", 1)
    held = topic(engine, "a")
    held.tags = mark = object()
    checkpoint(engine)
    number = held.id
    del held
    gc.collect()
    again = engine.core.topic_at(number)
    assert again is not None and again.tags is not mark
    assert values(engine, "a") == [1]


def test_a_held_topic_exists_until_it_is_deleted(disk: FakeDisk) -> None:
    engine = start(disk)
    append(engine, "a", 1)
    held = topic(engine, "a")
    checkpoint(engine)
    assert paged_out(engine) == ["a"]
    assert engine.core.exists(held) and paged_out(engine) == []
    assert engine.core.pager.page_out(held.id)
    drop(engine, "a")
    assert held.closing and not engine.core.exists(held)
    append(engine, "a", 2)
    assert topic(engine, "a") is not held and values(engine, "a") == [2]


def test_a_change_through_a_held_topic_is_kept(disk: FakeDisk) -> None:
    engine = start(disk)
    append(engine, "a", 1)
    held = topic(engine, "a")
    checkpoint(engine)
    counted = engine.core.retention.tail_bytes
    engine.core.before_change(held)
    assert engine.core.topics[held.id] is held and held in engine.core.dirty[held.shard]
    assert engine.core.retention.tail_bytes == counted + held.tail_bytes
    assert not engine.core.pager.page_out(held.id)
    append(engine, "a", 2)
    assert values(engine, "a") == [1, 2] and held.head == 2


def test_an_append_on_its_way_meets_a_topic_that_was_paged_out(disk: FakeDisk) -> None:
    engine = start(disk)
    append(engine, "a", 1)
    append(engine, "b", 1)
    checkpoint(engine)
    hold(engine)
    answers = ask_append(engine, "a", 2)
    assert not engine.core.pager.page_out(topic(engine, "a").id)
    flush(engine)
    assert isinstance(answers[0], AppendResult) and values(engine, "a") == [1, 2]
    engine = start(killed(disk))
    assert values(engine, "a") == [1, 2] and values(engine, "b") == [1]


def test_a_waiter_of_a_held_topic_is_notified(disk: FakeDisk) -> None:
    engine = start(disk)
    append(engine, "a", 1)
    held = topic(engine, "a")
    checkpoint(engine)
    assert paged_out(engine) == ["a"]
    woken: list[int] = []
    engine.watch_topic(held, lambda: woken.append(1))
    del held
    gc.collect()
    assert paged_out(engine) == []
    append(engine, "a", 2)
    assert woken == [1]


def test_the_destination_of_a_router_stays_resident_until_the_router_is_removed(disk: FakeDisk) -> None:
    engine = start(disk)
    append(engine, "b", 1)
    route(engine, "a", "b")
    checkpoint(engine)
    assert "b" not in paged_out(engine)
    unroute(engine, "a->b")
    checkpoint(engine)
    assert engine.core.pager.page_out(topic(engine, "b").id) and values(engine, "b") == [1]
    check_books(engine)


def test_a_list_shows_what_a_router_forwards_after_a_checkpoint(disk: FakeDisk) -> None:
    engine = start(disk)
    put(engine, "b")
    route(engine, "a", "b")
    checkpoint(engine)
    # The router runs later in the tick, so the list makes it forward.
    engine.core.defer.use(lambda later: None)
    append(engine, "a", 1, 2)
    assert [info.head_seq for info in engine.list_topics("b")] == [2]


def test_a_waiter_keeps_it_resident(disk: FakeDisk) -> None:
    engine = start(disk)
    append(engine, "a", 1)
    woken: list[int] = []
    cancel = engine.watch_topic(topic(engine, "a"), lambda: woken.append(1))
    checkpoint(engine)
    assert paged_out(engine) == []
    append(engine, "a", 2)
    assert woken
    cancel()


@pytest.mark.parametrize(
    "config",
    [{"durability": EPHEMERAL}, {"type": TopicType.QUEUE}, {"ttl_ms": 60_000}],
    ids=["ephemeral", "queue", "expires"],
)
def test_some_are_never_paged_out(disk: FakeDisk, config: dict[str, object]) -> None:
    engine = start(disk)
    put(engine, "a", **config)
    append(engine, "a", 1)
    append(engine, "plain", 1)
    checkpoint(engine)
    assert paged_out(engine) == ["plain"]


def test_one_with_segments_is_not_paged_out(disk: FakeDisk) -> None:
    engine = start(disk, segment_max_events=2)
    append(engine, "a", 1, 2, 3)
    checkpoint(engine)
    assert paged_out(engine) == []


def test_a_changed_one_does_not_go_back_to_what_it_was(disk: FakeDisk) -> None:
    engine = start(disk)
    append(engine, "a", 1)
    checkpoint(engine)
    append(engine, "a", 2)
    number = topic(engine, "a").id
    assert not engine.core.pager.page_out(number)
    checkpoint(engine)
    assert paged_out(engine) == ["a"]
    assert values(engine, "a") == [1, 2]


def test_one_that_was_only_read_goes_back_by_itself(disk: FakeDisk) -> None:
    engine = start(disk, clock := ManualClock())
    append(engine, "a", 1)
    checkpoint(engine)
    assert values(engine, "a") == [1]
    engine.housekeeper.tick()
    assert paged_out(engine) == []
    clock.advance(60_001)
    engine.housekeeper.tick()
    assert paged_out(engine) == ["a"]
    assert values(engine, "a") == [1]


def test_a_full_snapshot_takes_them_along(disk: FakeDisk) -> None:
    engine = start(disk)
    for name in "abc":
        append(engine, name, name * 20)
    checkpoint(engine)
    engine.checkpointer.weight.live_bytes = 0
    append(engine, "b", "more")
    checkpoint(engine)
    assert engine.checkpointer.chain == [engine.checkpointer.number]
    assert paged_out(engine) == ["a", "b", "c"]
    expected = {"a": ["a" * 20], "b": ["b" * 20, "more"], "c": ["c" * 20]}
    assert {name: values(engine, name) for name in "abc"} == expected
    again = start(killed(disk))
    assert {name: values(again, name) for name in "abc"} == expected
    check_books(again)


def test_what_is_deleted_while_it_is_copied_is_gone(disk: FakeDisk) -> None:
    """The snapshot must have it all the same: the log behind the turn is about it."""
    engine = start(disk)
    append(engine, "a", 1)
    append(engine, "b", 1)
    checkpoint(engine)
    engine.checkpointer.weight.live_bytes = 0
    turned = engine.core.shard_rotated.listeners

    def meddle(shard: int) -> None:
        turned.clear()
        append(engine, "a", 2)
        drop(engine, "a")
        append(engine, "b", 2)

    turned.append(meddle)
    checkpoint(engine)
    assert list(engine.core.names) == ["b"]
    again = start(killed(disk))
    assert list(again.core.names) == ["b"]
    assert values(again, "b") == [1, 2]
    check_books(again)


def test_long_chains_are_joined(disk: FakeDisk) -> None:
    engine = start(disk)
    append(engine, "large", "x" * 5000)
    append(engine, "gone", "y")
    append(engine, "still", 0)
    checkpoint(engine)
    drop(engine, "gone")
    for number in range(40):
        append(engine, "busy", number)
        checkpoint(engine)
        assert len(engine.checkpointer.chain) <= 34
    again = start(killed(disk))
    assert list(again.core.names) == ["busy", "large", "still"]
    assert values(again, "busy") == list(range(40))
    assert values(again, "large") == ["x" * 5000]


def test_after_a_power_cut_class_disk_goes_on_above_what_was_given_out(disk: FakeDisk) -> None:
    engine = start(disk)
    put(engine, "safe", durability=FSYNC)
    append(engine, "safe", 1)
    put(engine, "disk", durability=DISK)
    append(engine, "disk", 1)
    checkpoint(engine)
    engine.core.note_run()
    again = start(after_power_cut(disk), boot_id="b")
    assert append(again, "disk", 2).last_seq > 2
    assert append(again, "safe", 2).last_seq == 2
    check_books(again)


def test_old_tails_are_sealed_all_the_same(disk: FakeDisk) -> None:
    engine = start(disk, clock := ManualClock(), segment_max_age_ms=3_600_000)
    append(engine, "a", 1)
    clock.advance(1_000_000)
    append(engine, "b", 1)
    checkpoint(engine)
    clock.advance(3_000_000)
    engine.housekeeper.tick()
    assert (len(topic(engine, "a").segments), paged_out(engine)) == (1, ["b"])
    clock.advance(1_000_000)
    engine.housekeeper.tick()
    assert len(topic(engine, "b").segments) == 1


def test_when_tails_hold_too_much_a_checkpoint_lets_them_go(disk: FakeDisk) -> None:
    engine = start(disk, tail_memory_bytes=1000)
    for number in range(20):
        append(engine, f"t{number}", "x" * 100)
    engine.housekeeper.bound_memory()
    assert len(paged_out(engine)) == 20
    assert engine.core.retention.tail_bytes == 0


def test_when_that_does_not_help_tails_are_sealed(disk: FakeDisk) -> None:
    engine = start(disk, tail_memory_bytes=1000)
    put(engine, "jobs", type=TopicType.QUEUE)
    for _ in range(20):
        append(engine, "jobs", "x" * 100)
    engine.housekeeper.bound_memory()
    assert topic(engine, "jobs").segments == []
    engine.housekeeper.bound_memory()
    assert topic(engine, "jobs").segments


def test_one_that_cannot_be_read_any_more_is_reported(disk: FakeDisk) -> None:
    again = damaged(disk, b"x" * 100, b"y")
    with pytest.raises(DamageError):
        values(again, "a")


@pytest.mark.parametrize("hit", [b"named", b"TPF1"])
def test_a_list_reports_it_as_well(disk: FakeDisk, hit: bytes) -> None:
    again = damaged(disk, hit, b"?")
    with pytest.raises(DamageError, match="a topic cannot be read"):
        again.core.pager.peek_many(["a", "named"])


def test_a_list_reports_one_that_is_not_where_it_should_be(disk: FakeDisk) -> None:
    engine = start(disk)
    for name in "ab":
        append(engine, name, 1)
    checkpoint(engine)
    places, names = engine.core.pager.places, engine.core.pager.names
    found = engine.core.pager.peek_many("bca")
    assert [peek and peek.name for peek in found] == ["b", None, "a"]
    places.by_id[names["a"]] = places.by_id[names["b"]]
    with pytest.raises(DamageError, match="topic 2 is where topic 1 should be"):
        engine.core.pager.peek_many("a")


def test_one_that_a_start_wakes_gives_out_no_more_than_that_run_states(disk: FakeDisk) -> None:
    """The destination of a router, which sleeps in the snapshot, behind a run that reserved more seqs."""
    engine = start(disk, disk_reserve_seqs=5000)
    put(engine, "source", durability=FSYNC)
    put(engine, "dest", durability=DISK)
    route(engine, "source", "dest")
    append(engine, "dest", 1)
    engine.close_inline()
    engine = start(disk, disk_reserve_seqs=1)
    assert "dest" not in paged_out(engine)
    shown = append(engine, "dest", *range(100)).last_seq
    again = start(after_power_cut(disk), boot_id="b", disk_reserve_seqs=1)
    assert append(again, "dest", "new").first_seq > shown


def damaged(disk: FakeDisk, found: bytes, written: bytes) -> Engine:
    """An engine whose snapshot was changed under it."""
    engine = start(disk)
    append(engine, "a", "x" * 100)
    append(engine, "named", 1)
    engine.close_inline()
    again = start(disk := disk.clone())
    number = again.checkpointer.number
    places = again.core.pager.places
    file = disk.open(Layout("data").snapshot(number), write=True)
    whole = bytes(file.map())
    place = places.by_id[again.core.pager.names["a"]]
    file.write_at(whole.index(found, place >> SIZE_BITS & OFFSET_MASK), written)
    file.close()
    places.files.clear()
    places.files[number] = SnapshotFile(disk, Layout("data"), number)
    return again
