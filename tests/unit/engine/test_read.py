"""One test for each row of the table in `topics.engine.read`, wherever the records are."""

import pytest

from tests.unit.conftest import (
    EPHEMERAL,
    FSYNC,
    HOMES,
    after_power_cut,
    append,
    checkpoint,
    delete,
    drop,
    eq,
    killed,
    move,
    open_engine,
    open_with_cold,
    put,
    read,
    seqs,
    topic,
    values,
)
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, execute_read, find_tombstone, plan_read
from topics.model.errors import CorruptSegmentError, TopicNotFoundError
from topics.model.records import Record
from topics.model.seq_ranges import LossReason, Tombstone
from topics.testing import FakeDisk, ManualClock

homes = pytest.mark.parametrize("home", HOMES)

MIXED = [
    Record.of("plain"),
    Record.of("tagged", tag='t"1'),
    Record.of("noted", meta={"m": 1}),
    Record.of("both", tag="t2", meta={"m": [2]}),
    Record.of("noded", node="n"),
    Record.of("all", tag="t3", node="n", meta={}),
]


def filled(home: str, *batches: list[object]) -> Engine:
    """An engine whose topic "t" has those batches in one home."""
    engine = open_with_cold()
    for batch in batches:
        append(engine, "t", *batch)
    move(engine, "t", home)
    return engine


# Cursors


@homes
def test_everything_from_the_beginning(home: str) -> None:
    engine = filled(home, ["a", "b"], ["c"])
    result = read(engine, "t")
    assert [record["data"] for record in result.records()] == ["a", "b", "c"]
    assert (result.next_from_seq, result.head_seq, result.earliest_seq) == (3, 3, 1)
    assert (result.count, result.scanned, result.caught_up, result.lag) == (3, 3, True, 0)
    assert result.tombstone is None


@homes
@pytest.mark.parametrize("cursor", range(5))
def test_only_what_is_behind_the_cursor(home: str, cursor: int) -> None:
    engine = filled(home, ["a", "b"], ["c"], ["d"])
    assert seqs(engine, "t", cursor) == list(range(cursor + 1, 5))
    assert read(engine, "t", cursor).caught_up


@homes
def test_pages_follow_each_other(home: str) -> None:
    engine = filled(home, [0, 1, 2], [3], [4, 5])
    cursor, found = 0, []
    while True:
        result = read(engine, "t", cursor, limit=2)
        found.append([record["data"] for record in result.records()])
        cursor = result.next_from_seq
        if result.caught_up:
            break
    assert found == [[0, 1], [2, 3], [4, 5]]


@homes
def test_a_page_that_ends_inside_a_batch(home: str) -> None:
    engine = filled(home, [0, 1, 2, 3])
    result = read(engine, "t", 1, limit=2)
    assert [record["$seq"] for record in result.records()] == [2, 3]
    assert (result.next_from_seq, result.lag, result.caught_up) == (3, 1, False)


def test_an_empty_topic(engine: Engine) -> None:
    put(engine, "t")
    result = read(engine, "t")
    assert (result.body, result.count, result.next_from_seq) == (b"", 0, 0)
    assert (result.head_seq, result.earliest_seq, result.caught_up) == (0, 1, True)


def test_a_topic_that_is_not_there(engine: Engine) -> None:
    with pytest.raises(TopicNotFoundError):
        read(engine, "t")


def test_a_read_across_all_homes() -> None:
    engine = open_with_cold()
    append(engine, "t", 0, 1)
    move(engine, "t", "cold")
    append(engine, "t", 2, 3)
    move(engine, "t", "sealed")
    append(engine, "t", 4, 5)
    move(engine, "t", "pending")
    append(engine, "t", 6, 7)
    assert values(engine, "t") == list(range(8))
    for cursor in range(8):
        for limit in range(1, 9):
            assert seqs(engine, "t", cursor, limit=limit) == list(range(cursor + 1, min(cursor + limit, 8) + 1))


# Projection


@homes
@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("meta", [True, False])
def test_tags_and_meta_are_there_only_when_asked_for(home: str, tags: bool, meta: bool) -> None:
    engine = filled(home, [*MIXED])
    found = read(engine, "t", include_tags=tags, include_meta=meta).records()
    assert [record["data"] for record in found] == ["plain", "tagged", "noted", "both", "noded", "all"]
    assert [record.get("$tag") for record in found] == ([None, 't"1', None, "t2", None, "t3"] if tags else [None] * 6)
    expected = [None, None, {"m": 1}, {"m": [2]}, None, {}]
    assert [record.get("meta") for record in found] == (expected if meta else [None] * 6)
    assert [record.get("$node") for record in found] == [None] * 4 + ["n", "n"]


@homes
def test_batches_with_and_without_tags_side_by_side(home: str) -> None:
    engine = filled(home, [1], [Record.of(2, tag="t")], [Record.of(3, meta={"m": 1})], [4])
    assert [sorted(record) for record in read(engine, "t", include_tags=False, include_meta=False).records()] == [
        ["$seq", "$ts", "data"]
    ] * 4
    assert [record.get("$tag") for record in read(engine, "t", include_tags=True).records()] == [None, "t", None, None]


def test_the_default_is_meta_and_no_tags(engine: Engine) -> None:
    append(engine, "t", Record.of(1, tag="t", meta={"m": 1}))
    (record,) = engine.read_now("t", ReadRequest()).records()
    assert sorted(record) == ["$seq", "$ts", "data", "meta"]


# The byte budget


def fragment_bytes(engine: Engine) -> int:
    """The length of one of the equal fragments the tests below use."""
    return len(read(engine, "t", limit=1).body)


@homes
@pytest.mark.parametrize("batches", [[["aa", "bb", "cc"]], [["aa"], ["bb"], ["cc"]]])
def test_a_read_stops_before_the_record_that_would_exceed_the_budget(home: str, batches: list[list[object]]) -> None:
    engine = filled(home, *batches)
    size = fragment_bytes(engine)
    two = read(engine, "t", max_bytes=2 * size + 2)
    assert (two.count, two.next_from_seq) == (2, 2)
    one = read(engine, "t", max_bytes=2 * size)
    assert (one.count, one.next_from_seq) == (1, 1)


@homes
def test_at_least_one_record_is_always_given(home: str) -> None:
    engine = filled(home, ["x" * 500, "b"], ["c"])
    result = read(engine, "t", max_bytes=10)
    assert (result.count, result.next_from_seq, result.caught_up) == (1, 1, False)
    assert values(engine, "t", 1, max_bytes=10) == ["b"]
    assert values(engine, "t", 2, max_bytes=10) == ["c"]


@homes
def test_what_was_passed_over_before_the_budget_ended_stays_passed_over(home: str) -> None:
    engine = filled(
        home, [Record.of("aa"), Record.of("mine", node="n"), Record.of("gone", tag="d"), Record.of("x" * 500)]
    )
    delete(engine, "t", match=eq("d"))
    result = read(engine, "t", nodes=("n",), max_bytes=200)
    assert [record["data"] for record in result.records()] == ["aa"]
    assert result.next_from_seq == 3


def test_the_first_record_may_exceed_the_budget_only_when_nothing_else_was_given(engine: Engine) -> None:
    append(engine, "t", Record.of("mine", node="n"))
    append(engine, "t", "x" * 500)
    assert values(engine, "t", nodes=("n",), max_bytes=10) == ["x" * 500]


# Nodes


@homes
def test_a_reader_is_not_shown_its_own_records(home: str) -> None:
    engine = filled(home, [Record.of(0, node="me"), Record.of(1, node="you"), Record.of(2)], [Record.of(3, node="me")])
    result = read(engine, "t", nodes=("me",))
    assert [record["data"] for record in result.records()] == [1, 2]
    assert (result.next_from_seq, result.caught_up, result.scanned) == (4, True, 4)


@homes
def test_several_identities(home: str) -> None:
    engine = filled(home, [Record.of(number, node=node) for number, node in enumerate("abcabc")])
    assert values(engine, "t", nodes=("a", "c")) == [1, 4]


@pytest.mark.parametrize("node", ['a"b', "100%", "back\\slash", "é", ""])
def test_a_node_with_strange_characters_is_recognised(engine: Engine, node: str) -> None:
    append(engine, "t", 1, batch_node=node)
    append(engine, "t", 2, 3, batch_node=node)
    append(engine, "t", 4, batch_node=node + "x")
    assert values(engine, "t", nodes=(node,)) == [4]


def test_the_filter_is_off_where_the_topic_reports_it(engine: Engine) -> None:
    put(engine, "t", dedupe_node=False)
    append(engine, "t", 1, node="me")
    assert values(engine, "t", nodes=("me",)) == [1]


def test_a_page_of_only_own_records_moves_the_cursor(engine: Engine) -> None:
    append(engine, "t", 1, 2, 3, node="me")
    append(engine, "t", 4)
    result = read(engine, "t", nodes=("me",), limit=2)
    assert (result.count, result.next_from_seq, result.caught_up) == (0, 2, False)
    assert values(engine, "t", 2, nodes=("me",), limit=2) == [4]


# Deleted records


@homes
def test_deleted_records_are_passed_over_in_silence(home: str) -> None:
    engine = filled(home, [Record.of(number, tag="ab"[number % 2]) for number in range(6)])
    delete(engine, "t", match=eq("a"))
    result = read(engine, "t")
    assert [record["$seq"] for record in result.records()] == [2, 4, 6]
    assert (result.tombstone, result.earliest_seq, result.next_from_seq) == (None, 2, 6)


@homes
def test_a_limit_counts_live_records(home: str) -> None:
    engine = filled(home, [Record.of(number, tag="ab"[number % 2]) for number in range(6)])
    delete(engine, "t", match=eq("a"))
    result = read(engine, "t", limit=2)
    assert [record["$seq"] for record in result.records()] == [2, 4]
    assert (result.next_from_seq, result.scanned) == (4, 3)


@homes
def test_a_cursor_below_what_was_deleted_gets_no_tombstone(home: str) -> None:
    engine = filled(home, [0, 1, 2])
    delete(engine, "t", before_seq=3)
    result = read(engine, "t")
    assert ([record["$seq"] for record in result.records()], result.tombstone) == ([3], None)


@homes
def test_a_topic_whose_records_are_all_deleted(home: str) -> None:
    engine = filled(home, [0, 1, 2])
    delete(engine, "t", before_seq=4)
    result = read(engine, "t")
    assert (result.count, result.next_from_seq, result.earliest_seq, result.caught_up) == (0, 3, 4, True)
    append(engine, "t", "next")
    assert seqs(engine, "t") == [4]


# Records lost to a cap or to time


@homes
def test_eviction_by_cap_gives_a_tombstone_with_its_range(home: str) -> None:
    engine = filled(home, [0, 1, 2], [3])
    put(engine, "t", cap_records=2)
    result = read(engine, "t")
    assert result.tombstone == Tombstone(1, 2, LossReason.CAP, 2, 3, 4)
    assert [record["$seq"] for record in result.records()] == [3, 4]
    assert read(engine, "t", 1).tombstone == Tombstone(2, 2, LossReason.CAP, 1, 3, 4)
    assert read(engine, "t", 2).tombstone is None


@homes
def test_expiry_by_ttl_gives_a_tombstone_with_its_range(home: str) -> None:
    clock = ManualClock()
    engine = open_with_cold(clock=clock)
    put(engine, "t", ttl_ms=1000)
    append(engine, "t", 1, 2)
    clock.advance(500)
    append(engine, "t", 3)
    move(engine, "t", home)
    clock.advance(501)
    result = read(engine, "t")
    assert result.tombstone == Tombstone(1, 2, LossReason.TTL, 2, 3, 3)
    assert [record["$seq"] for record in result.records()] == [3]


def test_both_is_mixed_and_each_reader_gets_a_tombstone(engine: Engine, clock: ManualClock) -> None:
    put(engine, "t", ttl_ms=1000)
    append(engine, "t", 1, 2)
    clock.advance(1001)
    engine.info("t")
    put(engine, "t", cap_records=1)
    append(engine, "t", 3, 4)
    assert (first := read(engine, "t").tombstone) is not None
    assert (first.reason, first.gap_from, first.gap_to) == (LossReason.MIXED, 1, 3)
    assert (second := read(engine, "t", 2).tombstone) is not None
    assert second.reason is LossReason.CAP


def test_the_gap_ends_before_the_first_live_record(engine: Engine) -> None:
    put(engine, "t", cap_records=3)
    append(engine, "t", Record.of(1), Record.of(2), Record.of(3, tag="d"), Record.of(4), Record.of(5))
    delete(engine, "t", match=eq("d"))
    # Two were evicted and the third deleted on purpose: the gap is the range a reader cannot get, the estimate its
    # length.
    assert read(engine, "t").tombstone == Tombstone(1, 3, LossReason.CAP, 3, 4, 5)
    assert read(engine, "t", 2).tombstone is None


def test_everything_lost(engine: Engine, clock: ManualClock) -> None:
    put(engine, "t", ttl_ms=10)
    append(engine, "t", 1, 2)
    clock.advance(11)
    result = read(engine, "t")
    assert result.tombstone == Tombstone(1, 2, LossReason.TTL, 2, 3, 2)
    assert (result.count, result.next_from_seq, result.caught_up) == (0, 2, True)


def test_a_reader_that_was_notified_is_not_notified_again(engine: Engine) -> None:
    put(engine, "t", cap_records=2)
    append(engine, "t", *range(10))
    result = read(engine, "t", limit=1)
    assert result.tombstone is not None
    assert read(engine, "t", result.next_from_seq).tombstone is None


@pytest.mark.parametrize("through_snapshot", [True, False])
@pytest.mark.parametrize("reason", [LossReason.CAP, LossReason.TTL])
def test_floors_survive_a_restart(
    disk: FakeDisk, clock: ManualClock, reason: LossReason, through_snapshot: bool
) -> None:
    engine = open_engine(disk, clock)
    put(engine, "t", durability=FSYNC, **({"cap_records": 2} if reason is LossReason.CAP else {"ttl_ms": 10}))
    append(engine, "t", 1, 2, 3)
    clock.advance(11)
    append(engine, "t", 4, 5)
    before = read(engine, "t").tombstone
    assert before == Tombstone(1, 3, reason, 3, 4, 5)
    if through_snapshot:
        checkpoint(engine)
    assert read(open_engine(killed(disk), clock), "t").tombstone == before


# Ranges lost in a crash


def crashed() -> tuple[Engine, FakeDisk]:
    """Seqs 1 and 2 are there, 3 to 256 may have been given out, new ones begin at 257."""
    disk = FakeDisk()
    engine = open_engine(disk)
    append(engine, "t", 1)
    disk.open("data/wal/shard-00/0000000000000001.wal", write=True).sync()
    append(engine, "t", 2)
    disk.open("data/wal/shard-00/0000000000000001.wal", write=True).sync()
    append(engine, "t", "lost")
    disk = after_power_cut(disk)
    engine = open_engine(disk, boot_id="b")
    append(engine, "t", "new", "newer")
    return engine, disk


CRASH_GAP = (3, 256)


def test_a_lost_range_that_is_next_is_reported_and_what_follows_it_is_given() -> None:
    engine, _ = crashed()
    result = read(engine, "t", 2)
    assert result.tombstone is not None
    assert (result.tombstone.gap_from, result.tombstone.gap_to) == CRASH_GAP
    assert result.tombstone.reason is LossReason.CRASH
    assert [record["$seq"] for record in result.records()] == [257, 258]


def test_a_lost_range_further_on_waits_for_the_next_read() -> None:
    engine, _ = crashed()
    first = read(engine, "t")
    assert ([record["$seq"] for record in first.records()], first.tombstone) == ([1, 2], None)
    assert (first.next_from_seq, first.caught_up) == (2, False)
    second = read(engine, "t", first.next_from_seq)
    assert second.tombstone is not None
    assert [record["$seq"] for record in second.records()] == [257, 258]
    assert second.caught_up


def test_a_cursor_inside_the_lost_range_gets_a_tombstone_for_the_rest_of_it() -> None:
    engine, _ = crashed()
    tombstone = read(engine, "t", 100).tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.gap_to, tombstone.missed_estimate) == (101, 256, 0)


def test_a_cursor_behind_the_lost_range_gets_no_tombstone() -> None:
    engine, _ = crashed()
    assert read(engine, "t", 256).tombstone is None
    assert read(engine, "t", 257).tombstone is None


def test_a_lost_range_at_the_end_is_reported_at_once(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1)
    after = open_engine(after_power_cut(disk), boot_id="b")
    result = read(after, "t", 1)
    assert result.tombstone is not None
    assert (result.tombstone.gap_from, result.tombstone.gap_to) == (2, 256)
    assert (result.count, result.next_from_seq, result.caught_up) == (0, 256, True)


def test_a_lost_range_is_reported_when_everything_before_it_was_deleted() -> None:
    engine, _ = crashed()
    delete(engine, "t", before_seq=3)
    tombstone = read(engine, "t").tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.gap_to, tombstone.reason) == (1, 256, LossReason.CRASH)


def test_a_lost_range_below_the_floor_is_reported_by_the_floor() -> None:
    engine, _ = crashed()
    put(engine, "t", cap_records=1)
    assert topic(engine, "t").lost is None
    assert read(engine, "t").tombstone == Tombstone(1, 257, LossReason.CAP, 257, 258, 258)


def test_a_lost_range_survives_restarts() -> None:
    engine, disk = crashed()
    engine.close_inline()
    for _ in range(2):
        engine = open_engine(disk, boot_id="b")
        tombstone = read(engine, "t", 2).tombstone
        assert tombstone is not None
        assert (tombstone.gap_from, tombstone.gap_to) == CRASH_GAP
        engine.close_inline()


def test_a_killed_process_loses_nothing_so_nothing_is_reported(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1)
    append(engine, "t", 2)
    after = open_engine(killed(disk))
    result = read(after, "t")
    assert ([record["$seq"] for record in result.records()], result.tombstone) == ([1, 2], None)
    assert read(after, "t", 2).tombstone is None
    assert append(after, "t", 3).first_seq == 3
    assert seqs(after, "t", 2) == [3]


def test_an_ephemeral_topic_reports_what_a_restart_took(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=EPHEMERAL)
    append(engine, "t", 1, 2)
    engine.close_inline()
    after = open_engine(disk)
    tombstone = read(after, "t").tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.reason) == (1, LossReason.CRASH)
    assert tombstone.gap_to >= 2
    assert append(after, "t", 3).first_seq > 2


# A cursor beyond the head


def test_a_cursor_beyond_the_head_belongs_to_another_topic(engine: Engine) -> None:
    append(engine, "t", *range(5))
    drop(engine, "t")
    append(engine, "t", "new", "newer")
    result = read(engine, "t", 5)
    assert result.tombstone == Tombstone(1, 2, LossReason.RECREATED, 2, 1, 2)
    assert [record["$seq"] for record in result.records()] == [1, 2]
    assert result.next_from_seq == 2


def test_a_cursor_at_the_head_is_caught_up(engine: Engine) -> None:
    append(engine, "t", 1, 2)
    assert read(engine, "t", 2).tombstone is None


def test_a_cursor_of_another_epoch_knows_nothing_of_the_topic(engine: Engine) -> None:
    append(engine, "t", *range(5))
    old = topic(engine, "t").epoch
    assert engine.read_now("t", ReadRequest(from_seq=3, epoch=old)).tombstone is None
    drop(engine, "t")
    append(engine, "t", *range(5))
    for cursor in (0, 3, 5, 9):
        result = engine.read_now("t", ReadRequest(from_seq=cursor, epoch=old, limit=2))
        assert result.tombstone == Tombstone(1, 5, LossReason.RECREATED, 5, 1, 5)
        assert ([record["$seq"] for record in result.records()], result.next_from_seq) == ([1, 2], 2)
        assert result.epoch == topic(engine, "t").epoch != old


def test_a_recreated_topic_that_is_still_empty(engine: Engine) -> None:
    put(engine, "t")
    result = read(engine, "t", 5)
    assert result.tombstone == Tombstone(1, 0, LossReason.RECREATED, 0, 1, 0)
    assert (result.count, result.next_from_seq, result.caught_up) == (0, 0, True)


# Plans


def test_a_plan_looks_at_no_more_runs_than_it_needs(engine: Engine) -> None:
    for number in range(10):
        append(engine, "t", number)
    plan = plan_read(topic(engine, "t"), ReadRequest(limit=3))
    assert [run.first_seq for run in plan.runs] == [1, 2, 3]


def test_a_plan_is_cold_only_when_it_touches_the_cold_folder() -> None:
    engine = open_with_cold()
    append(engine, "t", 1)
    move(engine, "t", "cold")
    append(engine, "t", 2)
    assert plan_read(topic(engine, "t"), ReadRequest()).cold
    assert not plan_read(topic(engine, "t"), ReadRequest(from_seq=1)).cold


def test_what_is_appended_after_the_plan_is_for_the_next_read(engine: Engine) -> None:
    append(engine, "t", 1)
    plan = plan_read(topic(engine, "t"), ReadRequest())
    append(engine, "t", 2)
    result = execute_read(plan, engine.core.reader)
    assert (result.count, result.next_from_seq, result.head_seq) == (1, 1, 1)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_a_delete_between_plan_and_execution_passes_nothing_else_over(limit: int) -> None:
    # A read of the cold folder is executed later, on another thread: records that the delete took must not be replaced
    # by moving the cursor over records that the plan never had.
    engine = open_engine(segment_max_events=2)
    for number in range(8):
        append(engine, "t", number, tag="ab"[number % 2])
    plan = plan_read(topic(engine, "t"), ReadRequest(limit=limit))
    delete(engine, "t", match=eq("a"))
    result = execute_read(plan, engine.core.reader)
    found = [record["$seq"] for record in result.records()]
    assert found == [seq for seq in range(1, result.next_from_seq + 1) if seq % 2 == 0]
    assert [*found, *seqs(engine, "t", result.next_from_seq)] == [2, 4, 6, 8]


def test_a_segment_written_between_plan_and_execution_is_read_from_its_files(engine: Engine) -> None:
    append(engine, "t", 1, 2)
    plan = plan_read(topic(engine, "t"), ReadRequest())
    move(engine, "t", "sealed")
    assert execute_read(plan, engine.core.reader).count == 2


# Damage


def damage(disk: FakeDisk, ending: str, offset: int) -> None:
    file = disk.open(f"data/topics/{1:016x}/seg-{1:020d}{ending}", write=True)
    file.write_at(offset, bytes((file.read_at(offset, 1)[0] ^ 1,)))


def test_a_damaged_segment_is_reported_with_its_range_and_never_as_null(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1, 2, 3)
    move(engine, "t", "sealed")
    append(engine, "t", 4)
    damage(disk, ".idx", 0)
    with pytest.raises(CorruptSegmentError) as raised:
        read(engine, "t")
    assert raised.value.detail == {"topic": "t", "from_seq": 1, "to_seq": 3}
    assert seqs(engine, "t", 3) == [4]


def test_what_stands_before_the_damage_is_still_given(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", *["x" * 20_000 for _ in range(10)])
    move(engine, "t", "sealed")
    damage(disk, ".data", 150_000)
    found = read(engine, "t", max_bytes=10**9)
    assert 0 < found.count < 10
    assert found.next_from_seq == found.count
    with pytest.raises(CorruptSegmentError) as raised:
        read(engine, "t", found.next_from_seq)
    assert raised.value.detail["from_seq"] == found.next_from_seq + 1
    last = raised.value.detail["to_seq"]
    assert isinstance(last, int)
    assert seqs(engine, "t", last, max_bytes=10**9) == list(range(last + 1, 11))


def test_good_runs_before_a_damaged_one_are_given_first(disk: FakeDisk) -> None:
    engine = open_engine(disk, segment_max_events=2)
    append(engine, "t", 1, 2)
    append(engine, "t", 3, 4)
    file = disk.open(f"data/topics/{1:016x}/seg-{3:020d}.data", write=True)
    file.write_at(0, b"x")
    assert seqs(engine, "t") == [1, 2]
    with pytest.raises(CorruptSegmentError):
        read(engine, "t", 2)


def test_a_tombstone_is_found_without_reading(engine: Engine) -> None:
    put(engine, "t", cap_records=1)
    append(engine, "t", 1, 2)
    assert find_tombstone(topic(engine, "t"), 0) == Tombstone(1, 1, LossReason.CAP, 1, 2, 2)
    assert find_tombstone(topic(engine, "t"), 1) is None
