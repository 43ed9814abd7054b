"""Forwards out of the log: records that are made again, and the report when they cannot be."""

import pytest

from tests.unit.conftest import (
    EPHEMERAL,
    FSYNC,
    MEMORY,
    after_power_cut,
    append,
    ask_append,
    checkpoint,
    delete,
    drop,
    flush,
    hold,
    killed,
    logged,
    open_engine,
    put,
    read,
    seqs,
    times,
    topic,
    values,
)
from tests.unit.routers.conftest import EXACTLY_ONCE, go_on, route, router, unroute
from topics.engine.engine import Engine
from topics.log.forward_frames import parts_of
from topics.log.frame import FrameKind, find_frames
from topics.model.router_rules import TagMatch
from topics.model.topic_config import Discard
from topics.routers.registry import part_of
from topics.routers.router_frames import Forward, decode_forward
from topics.testing import FakeDisk, Survival

REJECT = Discard.REJECT
EVERYTHING = Survival.EVERYTHING


def forwards(engine: Engine) -> list[Forward]:
    """Every forward in the log."""
    found = []
    for shard in engine.core.shards:
        folder = engine.core.layout.shard(shard.number)
        for name in engine._fs.list_dir(folder):
            file = engine._fs.open(f"{folder}/{name}")
            parts = [part for frame in find_frames(file.map(), 0) for part in parts_of(frame)]
            found += [decode_forward(part.body) for part in parts if part.kind is FrameKind.FORWARD]
            file.close()
    return found


def in_shards_apart(disk: FakeDisk, source: object, dest: object, count: int = 2) -> Engine:
    """An engine with a router from a to b, whose topics are in different shards."""
    engine = open_engine(disk, wal_shards=count)
    put(engine, "a", durability=source)
    put(engine, "b", durability=dest)
    while topic(engine, "a").shard == topic(engine, "b").shard:
        drop(engine, "b")
        put(engine, "b", durability=dest)
    route(engine, "a", "b")
    return engine


def sync_shard_of(engine: Engine, name: str) -> None:
    engine.core.shards[topic(engine, name).shard].writer.sync()


def again(disk: FakeDisk, **options: object) -> Engine:
    """The engine that a power cut leaves, on a new machine."""
    return open_engine(after_power_cut(disk), boot_id="b", **options)  # type: ignore[arg-type]


def told(engine: Engine, name: str) -> list[tuple[int, int, str]]:
    return [(lost.from_seq, lost.to_seq, lost.reason.value) for lost in topic(engine, name).lost or ()]


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_copies_are_made_again_from_the_source_s_frames(disk: FakeDisk, shards: int) -> None:
    engine = open_engine(disk, wal_shards=shards)
    route(engine, "a", "b", preserve_tag=False)
    route(engine, "b", "c", guarantee=EXACTLY_ONCE)
    route(engine, "c", "d", filter=TagMatch("t"))
    append(engine, "b", "direct", tag="t")
    append(engine, "a", *range(120), tag="t", node="n")
    append(engine, "c", "also direct", tag="t")
    expected = {name: read(engine, name, include_tags=True).records() for name in "abcd"}
    assert all(not forward.by_value for forward in forwards(engine))
    found = open_engine(killed(disk), wal_shards=shards)
    assert {name: read(found, name, include_tags=True).records() for name in "abcd"} == expected


def test_the_number_of_shards_may_change(disk: FakeDisk) -> None:
    engine = open_engine(disk, wal_shards=3)
    route(engine, "a", "b")
    append(engine, "a", 1, 2)
    found = go_on(open_engine(killed(disk), wal_shards=2))
    append(found, "a", 3)
    assert values(found, "b") == [1, 2, 3]


def test_the_source_may_be_trimmed_and_gone(disk: FakeDisk) -> None:
    engine = open_engine(disk, wal_shards=2)
    route(engine, "a", "b")
    append(engine, "a", 1, 2, 3)
    delete(engine, "a", before_seq=3)
    append(engine, "a", 4)
    drop(engine, "a")
    append(engine, "b", 5)
    found = open_engine(killed(disk), wal_shards=2)
    assert values(found, "b") == [1, 2, 3, 4, 5]
    assert not found.list_routers()


def test_behind_a_checkpoint_records_travel_by_value(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "a", 1, 2)
    checkpoint(engine)
    append(engine, "a", 3)
    route(engine, "a", "b", from_seq=0)
    append(engine, "a", 4)
    assert [(forward.by_value, forward.ranges) for forward in forwards(engine)] == [
        (True, [(1, 3)]),
        (False, [(4, 4)]),
    ]
    assert values(open_engine(killed(disk)), "b") == [1, 2, 3, 4]


def test_a_forward_never_reaches_over_a_checkpoint(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "b", cap_records=1, discard=REJECT)
    route(engine, "a", "b")
    append(engine, "a", 1, 2)
    checkpoint(engine)
    append(engine, "a", 3)
    put(engine, "b")
    assert [(forward.by_value, forward.ranges) for forward in forwards(engine)] == [
        (True, [(2, 2)]),
        (False, [(3, 3)]),
    ]
    assert values(open_engine(killed(disk)), "b") == [1, 2, 3]


def test_an_ephemeral_source_is_forwarded_by_value(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "a", durability=EPHEMERAL)
    route(engine, "a", "b")
    append(engine, "a", 1)
    put(engine, "a")
    append(engine, "a", 2)
    checkpoint(engine)
    append(engine, "a", 3)
    found = open_engine(killed(disk))
    assert values(found, "b") == [1, 2, 3]


def test_a_source_that_forgets_begins_again_where_it_stands(disk: FakeDisk) -> None:
    engine = in_shards_apart(disk, MEMORY, MEMORY)
    append(engine, "a", 1)
    for name in "ab":
        sync_shard_of(engine, name)
    append(engine, "a", "lost")
    found = go_on(again(disk, wal_shards=2))
    assert topic(found, "a").head == 1
    append(found, "a", "new")
    assert values(found, "b") == [1, "new"]


def test_copies_of_lost_records_are_reported_and_nothing_shifts(disk: FakeDisk) -> None:
    engine = in_shards_apart(disk, MEMORY, FSYNC)
    put(engine, "b", durability=MEMORY)
    append(engine, "a", 1)
    sync_shard_of(engine, "a")
    append(engine, "a", 2, 3)
    append(engine, "b", "direct")
    sync_shard_of(engine, "b")
    found = again(disk, wal_shards=2)
    assert read(found, "b").records()[0]["data"] == 1
    assert (seqs(found, "b", 3), values(found, "b", 3)) == ([4], ["direct"])
    assert told(found, "b") == [(2, 3, "crash")]


def test_of_one_forward_only_what_is_lost_is_lost(disk: FakeDisk) -> None:
    engine = in_shards_apart(disk, MEMORY, MEMORY)
    put(engine, "b", cap_records=1, discard=REJECT)
    append(engine, "b", "full")
    append(engine, "a", 1)
    append(engine, "a", 2)
    sync_shard_of(engine, "a")
    append(engine, "a", 3, 4)
    put(engine, "b", durability=MEMORY)
    append(engine, "b", "direct")
    assert [forward.ranges for forward in forwards(engine)] == [[(1, 4)]]
    sync_shard_of(engine, "b")
    found = again(disk, wal_shards=2)
    assert seqs(found, "b") == [1, 2, 3]
    assert values(found, "b", 5) == ["direct"]
    assert told(found, "b") == [(4, 5, "crash")]


def test_what_lost_copies_had_pushed_out_does_not_come_back(disk: FakeDisk) -> None:
    engine = in_shards_apart(disk, MEMORY, MEMORY)
    put(engine, "b", durability=MEMORY, cap_records=3)
    append(engine, "b", 1, 2, 3)
    append(engine, "a", "x", "y")
    assert seqs(engine, "b") == [3, 4, 5]
    sync_shard_of(engine, "b")
    found = again(disk, wal_shards=2)
    assert topic(found, "b").evict_floor == 3
    assert topic(found, "b").live_count == 1


def test_a_copy_into_fsync_outlives_a_power_cut_whatever_its_source(disk: FakeDisk) -> None:
    engine = in_shards_apart(disk, MEMORY, FSYNC, 4)
    append(engine, "a", 1, 2)
    append(engine, "a", 3)
    assert values(engine, "b") == [1, 2, 3]
    assert values(again(disk, wal_shards=4), "b") == [1, 2, 3]


def test_hops_are_remembered(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "b", cap_records=1, discard=REJECT)
    route(engine, "a", "b")
    route(engine, "b", "a", allow_cycle=True)
    append(engine, "a", 1)
    for restart in range(2):
        engine = go_on(open_engine(killed(disk) if restart else disk.clone().crash(EVERYTHING)))
        part = part_of(topic(engine, "a"))
        assert part is not None and part.hops == [(2, 2, 2)]
        if not restart:
            checkpoint(engine)
    put(engine, "b")
    assert values(engine, "a").count(1) == 5


def test_a_filter_that_changes_is_not_asked_about_the_past(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    route(engine, "a", "b", filter=TagMatch("x"))
    append(engine, "a", 1, tag="y")
    route(engine, "a", "b", filter=TagMatch("y"))
    found = go_on(open_engine(killed(disk)))
    append(found, "a", 2, tag="y")
    assert values(found, "b") == [2]


def test_a_router_made_anew_is_another_one(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    route(engine, "a", "b")
    append(engine, "a", 1, 2)
    unroute(engine, "a->b")
    route(engine, "a", "b", from_seq=1)
    expected = router(engine, "a->b")
    assert (expected.cursor, expected.forwarded) == (2, 1)
    found = router(open_engine(killed(disk)), "a->b")
    assert (found.cursor, found.forwarded) == (2, 1)


def test_a_search_for_evidence_goes_on_after_a_restart(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "b", cap_records=3, discard=REJECT)
    route(engine, "a", "b", guarantee=EXACTLY_ONCE)
    append(engine, "a", *range(6))
    unroute(engine, "a->b")
    route(engine, "a", "b", guarantee=EXACTLY_ONCE, from_seq=0)
    found = go_on(open_engine(killed(disk)))
    put(found, "b")
    assert values(found, "b") == [0, 1, 2, 3, 4, 5]


def test_in_groups_nothing_is_seen_too_early(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "b", durability=FSYNC)
    route(engine, "a", "b")
    hold(engine)
    ask_append(engine, "a", 1)
    assert values(engine, "b") == []
    flush(engine)
    assert values(engine, "b") == [1]
    assert logged(engine).count(FrameKind.FORWARD) == 1


def fan_out(disk: FakeDisk, shards: int) -> Engine:
    """One source to many destinations that do not all stand alike, and one behind them."""
    engine = open_engine(disk, wal_shards=shards)
    for number in range(20):
        route(engine, "a", f"b{number}")
    route(engine, "b3", "c")
    append(engine, "b1", *range(12))
    for number in range(4):
        append(engine, "a", *[f"{number}-{place}" for place in range(number + 1)])
        append(engine, f"b{number}", "between")
    return engine


@pytest.mark.parametrize("shards", [1, 3])
def test_forwards_of_one_frame_are_made_again_for_each_destination(disk: FakeDisk, shards: int) -> None:
    engine = fan_out(disk, shards)
    kinds = [kind for shard in range(shards) for kind in logged(engine, shard)]
    assert kinds.count(FrameKind.FORWARDS) >= 4
    names = [*[f"b{number}" for number in range(20)], "c"]
    before = {name: (seqs(engine, name), values(engine, name), times(engine, name)) for name in names}
    again = go_on(open_engine(killed(disk), wal_shards=shards))
    assert {name: (seqs(again, name), values(again, name), times(again, name)) for name in names} == before
    append(again, "a", "more")
    assert all(values(again, name)[-1] == "more" for name in names)
