"""Records in a destination: which ones arrive, and their form."""

from itertools import pairwise

import pytest

from tests.unit.conftest import (
    DISK,
    EPHEMERAL,
    FSYNC,
    HOMES,
    MEMORY,
    append,
    ask_append,
    checkpoint,
    delete,
    flush,
    glob,
    hold,
    killed,
    logged,
    move,
    open_engine,
    open_with_cold,
    put,
    read,
    seqs,
    topic,
    values,
)
from tests.unit.routers.conftest import EXACTLY_ONCE, go_on, route, router, unroute
from topics.engine.engine import Engine
from topics.log.frame import FrameKind
from topics.model.limits import Limits
from topics.model.records import Record
from topics.model.router_rules import TagMatch
from topics.model.seq_ranges import LossReason
from topics.model.topic_config import Discard, Durability
from topics.model.topic_epochs import public_source_id
from topics.routers import pump
from topics.routers.registry import part_of
from topics.testing import FakeDisk, ManualClock

REJECT = Discard.REJECT


def test_every_record_of_the_source_is_copied_in_order(engine: Engine) -> None:
    route(engine, "a", "b")
    append(engine, "a", 1, 2)
    append(engine, "a", 3)
    assert values(engine, "b") == [1, 2, 3]
    assert seqs(engine, "b") == [1, 2, 3]


def test_a_copy_keeps_node_tag_meta_and_data(engine: Engine, clock: ManualClock) -> None:
    route(engine, "a", "b")
    append(engine, "b", "direct")
    append(engine, "a", Record.of({"x": [1, "ä"]}, tag='t"1', node="n", meta={"k": "v"}))
    clock.advance(5)
    (copy,) = read(engine, "b", 1, include_tags=True).records()
    (record,) = read(engine, "a", include_tags=True).records()
    assert copy == {**record, "$seq": 2}


def test_seq_and_ts_are_those_of_the_destination(engine: Engine, clock: ManualClock) -> None:
    append(engine, "b", *range(9))
    append(engine, "a", "old")
    clock.advance(1000)
    route(engine, "a", "b", from_seq=0)
    (copy,) = read(engine, "b", 9).records()
    assert (copy["$seq"], copy["$ts"]) == (10, clock.now_ms())


def test_node_and_tag_may_be_left_out(engine: Engine) -> None:
    record = Record.of(1, tag="t", node="n", meta={"k": 1})
    route(engine, "a", "b", preserve_node=False)
    route(engine, "a", "c", preserve_tag=False)
    route(engine, "a", "d", preserve_tag=False, preserve_node=False)
    append(engine, "a", record, 2, tag="u")
    shown = {name: [sorted(r) for r in read(engine, name, include_tags=True).records()] for name in "bcd"}
    plain = ["$seq", "$ts", "data"]
    assert shown["b"] == [sorted([*plain, "$tag", "meta"]), sorted([*plain, "$tag"])]
    assert shown["c"] == [sorted([*plain, "$node", "meta"]), plain]
    assert shown["d"] == [sorted([*plain, "meta"]), plain]
    assert delete(engine, "c", match=TagMatch("t")).deleted == 0
    assert delete(engine, "b", match=TagMatch("t")).deleted == 1


def test_a_filter_lets_through_what_it_matches(engine: Engine) -> None:
    route(engine, "a", "eq", filter=TagMatch("x"))
    route(engine, "a", "glob", filter=glob("x"))
    for tag in ("x", "xy", None, "y", "x"):
        append(engine, "a", tag, tag=tag)
    assert values(engine, "eq") == ["x", "x"]
    assert values(engine, "glob") == ["x", "xy", "x"]
    assert router(engine, "a->eq").cursor == 5


def test_a_batch_is_filtered_record_by_record(engine: Engine) -> None:
    route(engine, "a", "b", filter=TagMatch("x"))
    append(engine, "a", *[Record.of(i, tag="x" if i % 3 else "y") for i in range(12)])
    assert values(engine, "b") == [i for i in range(12) if i % 3]


def test_nothing_is_logged_for_what_a_filter_holds_back(engine: Engine) -> None:
    route(engine, "a", "b", filter=TagMatch("x"))
    append(engine, "a", 1, tag="y")
    assert FrameKind.FORWARD not in logged(engine)


def test_one_small_frame_a_destination_whatever_the_payload(engine: Engine) -> None:
    for name in "bcd":
        route(engine, "a", name)
    before = engine.stats().shards[0].bytes_written_total
    append(engine, "a", "x" * 30_000)
    written = engine.stats().shards[0].bytes_written_total - before
    assert logged(engine).count(FrameKind.FORWARD) == 3
    assert written < 33_000
    assert all(values(engine, name) == ["x" * 30_000] for name in "bcd")


def test_one_frame_for_many_destinations(engine: Engine) -> None:
    for name in "bcdef":
        route(engine, "a", name)
    before = engine.stats().shards[0].bytes_written_total
    append(engine, "a", "x" * 30_000)
    written = engine.stats().shards[0].bytes_written_total - before
    assert logged(engine).count(FrameKind.FORWARDS) == 1
    assert FrameKind.FORWARD not in logged(engine)
    assert written < 31_000
    assert all(values(engine, name) == ["x" * 30_000] for name in "bcdef")


def test_destinations_that_stand_alike_share_the_text(engine: Engine) -> None:
    for name in "bcd":
        route(engine, "a", name)
    append(engine, "a", 1, 2)
    texts = {id(topic(engine, name).tail[0].text) for name in "bcd"}
    assert len(texts) == 1


def test_a_new_router_starts_at_the_head(engine: Engine) -> None:
    append(engine, "a", 1, 2)
    route(engine, "a", "b")
    append(engine, "a", 3)
    assert values(engine, "b") == [3]


@pytest.mark.parametrize(("from_seq", "expected"), [(0, [1, 2, 3, 4]), (2, [3, 4]), (3, [4])])
def test_from_seq_is_the_last_record_it_leaves_out(engine: Engine, from_seq: int, expected: list[int]) -> None:
    append(engine, "a", 1, 2, 3)
    route(engine, "a", "b", from_seq=from_seq)
    append(engine, "a", 4)
    assert values(engine, "b") == expected


def test_a_backfill_begins_with_what_is_retained_and_reports_no_loss(engine: Engine) -> None:
    put(engine, "a", cap_records=2)
    append(engine, "a", 1, 2, 3)
    append(engine, "a", 4)
    route(engine, "a", "b", from_seq=0)
    assert values(engine, "b") == [3, 4]
    assert seqs(engine, "b") == [1, 2]
    assert read(engine, "b").tombstone is None


@pytest.mark.parametrize("home", HOMES)
def test_records_are_found_wherever_they_are(home: str) -> None:
    engine = open_with_cold()
    append(engine, "a", *range(5), tag="t")
    delete(engine, "a", before_seq=2)
    delete(engine, "a", match=TagMatch("none"))
    move(engine, "a", home)
    append(engine, "a", "new", tag="u")
    route(engine, "a", "b", from_seq=0)
    assert values(engine, "b") == [1, 2, 3, 4, "new"]


@pytest.mark.parametrize("home", HOMES)
def test_deleted_records_of_the_source_are_not_copied(home: str) -> None:
    engine = open_with_cold()
    append(engine, "a", *[Record.of(i, tag="odd" if i % 2 else "even") for i in range(6)])
    move(engine, "a", home)
    delete(engine, "a", match=TagMatch("odd"))
    route(engine, "a", "b", from_seq=0)
    assert values(engine, "b") == [0, 2, 4]
    assert read(engine, "b").tombstone is None


def test_a_delete_in_the_source_leaves_the_copies(engine: Engine) -> None:
    route(engine, "a", "b")
    append(engine, "a", 1, 2)
    delete(engine, "a", before_seq=3)
    assert values(engine, "b") == [1, 2]


def test_a_long_backlog_is_forwarded_in_passes(engine: Engine) -> None:
    append(engine, "a", *range(3000))
    route(engine, "a", "b", from_seq=0)
    assert read(engine, "b", 2999).records()[0]["data"] == 2999
    assert logged(engine).count(FrameKind.FORWARD) == 3
    assert router(engine, "a->b").forwarded == 3000


def test_large_records_are_forwarded_a_megabyte_at_a_time(engine: Engine) -> None:
    append(engine, "a", *["x" * 300_000 for _ in range(8)])
    append(engine, "a", *["x" * 1_000_000 for _ in range(2)])
    route(engine, "a", "b", from_seq=0)
    assert topic(engine, "b").head == 10
    assert [block.count for block in topic(engine, "b").tail] == [3, 3, 2, 1, 1]


def test_direct_writes_and_copies_share_the_seqs(engine: Engine) -> None:
    route(engine, "a", "b")
    append(engine, "b", "direct 1")
    append(engine, "a", "copy 1")
    append(engine, "b", "direct 2")
    assert values(engine, "b") == ["direct 1", "copy 1", "direct 2"]


def test_a_chain_of_routers(engine: Engine) -> None:
    names = [f"t{i}" for i in range(20)]
    for source, dest in pairwise(names):
        route(engine, source, dest)
    append(engine, "t0", 1, 2)
    assert values(engine, "t19") == [1, 2]


def test_a_batch_that_is_committed_with_a_direct_write_keeps_the_order(engine: Engine) -> None:
    put(engine, "b", durability=FSYNC)
    route(engine, "a", "b")
    hold(engine)
    answers = [*ask_append(engine, "a", "copied"), *ask_append(engine, "b", "direct")]
    assert not answers
    flush(engine)
    assert values(engine, "b") == ["direct", "copied"]
    assert seqs(engine, "b") == [1, 2]


# Cycles


def test_a_cycle_stops_after_eight_hops(engine: Engine) -> None:
    route(engine, "a", "b")
    route(engine, "b", "a", allow_cycle=True)
    append(engine, "a", "x")
    assert len(values(engine, "a")) == 5
    assert len(values(engine, "b")) == 4


def test_a_long_chain_without_a_cycle_counts_no_hops(engine: Engine) -> None:
    for i in range(12):
        route(engine, f"t{i}", f"t{i + 1}", allow_cycle=True)
    append(engine, "t0", "x")
    assert values(engine, "t12") == ["x"]


def test_hops_are_counted_for_each_record(engine: Engine) -> None:
    route(engine, "a", "b")
    route(engine, "b", "a", allow_cycle=True)
    append(engine, "b", "from b", node="b")
    append(engine, "a", "from a", node="a")
    for name, own in (("a", 4), ("b", 5)):
        assert values(engine, name).count("from b") == own
    assert values(engine, "a").count("from a") == 5
    part = part_of(topic(engine, "a"))
    assert part is not None and not part.hops


def test_nodes_are_kept_round_a_cycle_and_filtered_by_readers(engine: Engine) -> None:
    route(engine, "a", "b")
    route(engine, "b", "a", allow_cycle=True)
    append(engine, "a", 1, node="A")
    append(engine, "b", 2, node="B")
    assert set(values(engine, "a", nodes=("A",))) == {2}
    assert set(values(engine, "b", nodes=("B",))) == {1}


# Exactly once


def test_a_stamp_states_where_a_copy_is_from(engine: Engine) -> None:
    route(engine, "a", "b", guarantee=EXACTLY_ONCE)
    append(engine, "a", Record.of(1, meta={"k": "v"}), 2)
    source = topic(engine, "a")
    stamps = [record["meta"] for record in read(engine, "b").records()]
    number = public_source_id(source.id, "a", source.epoch)
    expected = {
        "router": "a->b", "source_topic": "a", "source_topic_id": number, "source_epoch": source.epoch,
    }  # fmt: skip
    first = {"idempotency_key": f"a->b:{number}:{source.epoch}:1", **expected, "source_seq": 1}
    second = {"idempotency_key": f"a->b:{number}:{source.epoch}:2", **expected, "source_seq": 2}
    assert stamps == [{"k": "v", "_topics_router": first}, {"_topics_router": second}]


def test_a_router_made_anew_passes_over_what_is_there_and_copies_what_is_not(engine: Engine) -> None:
    route(engine, "a", "b", guarantee=EXACTLY_ONCE)
    append(engine, "a", *[Record.of(i, tag=f"t{i}") for i in range(6)])
    delete(engine, "b", match=TagMatch("t2"))
    unroute(engine, "a->b")
    append(engine, "a", 6)
    route(engine, "a", "b", guarantee=EXACTLY_ONCE, from_seq=0)
    append(engine, "a", 7)
    assert values(engine, "b") == [0, 1, 3, 4, 5, 2, 6, 7]


@pytest.mark.parametrize("home", HOMES)
def test_the_evidence_is_found_wherever_it_is(home: str) -> None:
    engine = open_with_cold()
    route(engine, "a", "b", guarantee=EXACTLY_ONCE)
    append(engine, "a", *range(5), Record.of(5, meta={"_topics_router": {"idempotency_key": "no"}}))
    move(engine, "b", home)
    unroute(engine, "a->b")
    route(engine, "a", "b", guarantee=EXACTLY_ONCE, from_seq=0)
    append(engine, "a", 6)
    assert values(engine, "b") == [0, 1, 2, 3, 4, 5, 6]


def test_data_that_looks_like_a_stamp_is_no_evidence(engine: Engine) -> None:
    route(engine, "a", "b", guarantee=EXACTLY_ONCE)
    append(engine, "a", 1)
    (copy,) = read(engine, "b").records()
    meta = copy["meta"]
    assert isinstance(meta, dict)
    delete(engine, "b", before_seq=2)
    append(engine, "b", meta, Record.of(0, meta={"nested": meta}))
    unroute(engine, "a->b")
    route(engine, "a", "b", guarantee=EXACTLY_ONCE, from_seq=0)
    assert values(engine, "b")[-1] == 1


def test_another_routers_stamp_is_no_evidence(engine: Engine) -> None:
    route(engine, "a", "b", "one", guarantee=EXACTLY_ONCE)
    append(engine, "a", 1)
    route(engine, "a", "b", "two", guarantee=EXACTLY_ONCE, from_seq=0)
    assert values(engine, "b") == [1, 1]


# Room


def test_a_destination_that_drops_goes_on(engine: Engine) -> None:
    put(engine, "b", cap_records=2)
    route(engine, "a", "b")
    append(engine, "a", 1, 2, 3)
    append(engine, "a", 4)
    assert values(engine, "b") == [3, 4]
    tombstone = read(engine, "b").tombstone
    assert tombstone is not None and tombstone.reason.value == "cap"


def test_a_destination_that_rejects_holds_the_router_up_until_there_is_room(engine: Engine) -> None:
    put(engine, "b", cap_records=3, discard=REJECT)
    route(engine, "a", "b")
    append(engine, "a", 1, 2)
    append(engine, "a", 3, 4, 5)
    assert values(engine, "b") == [1, 2, 3]
    assert engine.router("a->b").blocked and engine.router("a->b").cursor == 3
    delete(engine, "b", before_seq=3)
    assert values(engine, "b") == [3, 4, 5]
    assert not engine.router("a->b").blocked
    assert read(engine, "b", 2).tombstone is None


def test_a_router_that_waits_long_listens_once(engine: Engine) -> None:
    put(engine, "b", cap_records=1, discard=REJECT)
    route(engine, "a", "b")
    append(engine, "a", 1, 2)
    for _ in range(5):
        engine.housekeeper.tick()
    assert len(topic(engine, "b").waiters or ()) == 1


def test_under_pressure_forwarding_waits_and_comes_within_twenty_seconds(engine: Engine, clock: ManualClock) -> None:
    route(engine, "a", "b")
    engine.core.scheduler.set_policy(0.0, deferring=True)
    append(engine, "a", 1)
    waited = 0
    while not values(engine, "b"):
        assert waited < 20
        waited += 1
        clock.advance(1000)
        engine.core.scheduler.run()
        engine.housekeeper.tick()
    assert waited > 1


@pytest.mark.parametrize(("queue_bytes", "at_once"), [(1, 1), (1 << 20, 5)])
def test_a_crowded_log_makes_routers_wait_for_each_other(engine: Engine, queue_bytes: int, at_once: int) -> None:
    for name in "bcdef":
        # Each goes by itself, because the fitting size is unknown beforehand.
        put(engine, name, durability=MEMORY, discard=Discard.REJECT, cap_records=9)
        route(engine, "a", name)
    hold(engine)
    ask_append(engine, "a", 1)
    shard = engine.core.shards[0]
    shard._queue_bytes_max, shard.queue_depth_peak = queue_bytes, 0
    flush(engine)
    assert [values(engine, name) for name in "bcdef"] == [[1]] * 5
    assert shard.queue_depth_peak == at_once


def test_what_a_tick_forwards_into_topics_that_take_everything_is_one_submission(engine: Engine) -> None:
    for name in "bcdef":
        put(engine, name, durability=MEMORY)
        route(engine, "a", name)
    hold(engine)
    ask_append(engine, "a", 1)
    shard = engine.core.shards[0]
    shard.queue_depth_peak = 0
    flush(engine)
    assert [values(engine, name) for name in "bcdef"] == [[1]] * 5
    assert shard.queue_depth_peak == 1


def test_bytes_count_as_room_too(engine: Engine) -> None:
    put(engine, "b", cap_bytes=25, discard=REJECT)
    route(engine, "a", "b")
    append(engine, "a", "x" * 8, "y" * 8, "z" * 8)
    assert values(engine, "b") == ["x" * 8, "y" * 8]
    put(engine, "b", cap_bytes=100, discard=REJECT)
    assert len(values(engine, "b")) == 3


def test_room_that_time_makes_is_found_within_a_second(engine: Engine, clock: ManualClock) -> None:
    put(engine, "b", cap_records=1, discard=REJECT, ttl_ms=100)
    route(engine, "a", "b")
    append(engine, "a", 1, 2)
    assert values(engine, "b") == [1]
    clock.advance(1000)
    engine.housekeeper.tick()
    assert values(engine, "b") == [2]


def test_the_quota_of_the_server_holds_copies_up() -> None:
    engine = open_engine(limits=Limits(max_total_bytes=20))
    route(engine, "a", "b")
    append(engine, "a", "x" * 10)
    assert values(engine, "b") == []
    assert engine.router("a->b").blocked_by == "throttled"
    delete(engine, "a", before_seq=2)
    append(engine, "a", "y")
    engine.housekeeper.tick()
    assert values(engine, "b") == ["y"]


def test_a_small_cap_of_the_source_takes_nothing_from_its_destinations(engine: Engine) -> None:
    put(engine, "a", cap_records=2)
    route(engine, "a", "b")
    route(engine, "a", "c", filter=TagMatch("x"))
    append(engine, "a", *range(5), tag="x")
    append(engine, "a", *range(5, 8))
    assert values(engine, "a") == [6, 7]
    assert values(engine, "b") == list(range(8))
    assert values(engine, "c") == list(range(5))
    assert read(engine, "b").tombstone is None
    part = part_of(topic(engine, "a"))
    assert part is not None and not part.held


def test_what_is_kept_for_routers_is_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "_HELD_BYTES_MAX", 1000)
    put(engine, "a", cap_records=1)
    route(engine, "a", "b")
    append(engine, "a", "x" * 600, "y" * 600)
    assert values(engine, "b") == ["y" * 600]
    tombstone = read(engine, "b").tombstone
    assert tombstone is not None and tombstone.reason.value == "source_trim"


def test_records_lost_before_forwarding_give_a_gap_in_the_destination(engine: Engine) -> None:
    put(engine, "a", cap_records=2)
    put(engine, "b", cap_records=3, discard=REJECT)
    route(engine, "a", "b")
    append(engine, "a", 1, 2)
    append(engine, "a", 3, 4)
    append(engine, "a", 5, 6)
    assert values(engine, "b") == [1, 2, 3]
    delete(engine, "b", before_seq=4)
    assert values(engine, "b") == [5, 6]
    assert seqs(engine, "b") == [5, 6]
    result = read(engine, "b", 3)
    assert result.tombstone is not None
    assert (result.tombstone.gap_from, result.tombstone.gap_to) == (4, 4)
    assert result.tombstone.reason.value == "source_trim"


def test_time_trims_a_source_too(engine: Engine, clock: ManualClock) -> None:
    put(engine, "a", ttl_ms=100)
    put(engine, "b", cap_records=1, discard=REJECT)
    route(engine, "a", "b")
    append(engine, "a", 1, 2, 3)
    clock.advance(200)
    append(engine, "a", 4)
    delete(engine, "b", before_seq=2)
    assert seqs(engine, "b") == [4]
    tombstone = read(engine, "b", 1).tombstone
    assert tombstone is not None and (tombstone.gap_from, tombstone.gap_to) == (2, 3)


# Classes


@pytest.mark.parametrize("source_class", [EPHEMERAL, MEMORY, DISK, FSYNC])
@pytest.mark.parametrize("dest_class", [EPHEMERAL, MEMORY, DISK, FSYNC])
@pytest.mark.parametrize("shards", [1, 3])
def test_every_class_into_every_class(source_class: object, dest_class: object, shards: int) -> None:
    engine = open_engine(wal_shards=shards)
    put(engine, "a", durability=source_class)
    put(engine, "b", durability=dest_class)
    route(engine, "a", "b")
    for i in range(5):
        append(engine, "a", i)
    checkpoint(engine)
    append(engine, "a", 5)
    assert values(engine, "b") == [0, 1, 2, 3, 4, 5]


def test_an_ephemeral_destination_logs_no_forward(engine: Engine) -> None:
    put(engine, "b", durability=EPHEMERAL)
    route(engine, "a", "b")
    append(engine, "a", 1)
    assert values(engine, "b") == [1]
    assert FrameKind.FORWARD not in logged(engine)


def test_a_copy_into_fsync_is_shown_only_when_what_it_depends_on_is_synced(disk: FakeDisk) -> None:
    engine = open_engine(disk, wal_shards=4)
    for name in ("a", "b", "c"):
        put(engine, name, durability=MEMORY if name != "c" else FSYNC)
    route(engine, "a", "b")
    route(engine, "b", "c")
    shards = {topic(engine, name).shard for name in "abc"}
    assert len(shards) > 1
    append(engine, "a", 1)
    assert values(engine, "c") == [1]
    for name in "ab":
        writer = engine.core.shards[topic(engine, name).shard].writer
        assert writer.unsynced_for() is None


def test_what_an_ephemeral_source_loses_in_a_crash_is_no_loss_of_its_destination(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "source", durability=Durability.EPHEMERAL)
    put(engine, "dest", durability=Durability.FSYNC)
    route(engine, "source", "dest")
    append(engine, "source", 1, 2, 3, 4, 5)
    go_on(engine)
    assert values(engine, "dest") == [1, 2, 3, 4, 5]
    again = open_engine(killed(disk))
    append(again, "source", 6)
    go_on(again)
    found = read(again, "dest")
    assert (found.tombstone, found.caught_up, seqs(again, "dest")) == (None, True, [1, 2, 3, 4, 5, 6])
    assert read(again, "dest", from_seq=5).tombstone is None
    # Its readers receive the range, and the known number of its records.
    told = read(again, "source").tombstone
    assert told is not None and told.reason is LossReason.CRASH
    assert told.missed_estimate <= 5 < told.gap_to - told.gap_from
