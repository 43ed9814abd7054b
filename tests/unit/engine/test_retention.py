"""Eviction at the front of a topic, and the two watermarks."""

import pytest

from tests.unit.conftest import (
    EPHEMERAL,
    FSYNC,
    HOMES,
    append,
    catch_up,
    checkpoint,
    delete,
    eq,
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
from tests.unit.stepcount import lines_run
from topics.engine.engine import Engine
from topics.log.frame import FrameKind
from topics.log.segment_files import SegmentKey
from topics.model.records import Record
from topics.model.seq_ranges import LossReason
from topics.testing import FakeDisk, ManualClock

homes = pytest.mark.parametrize("home", HOMES)


def marks(engine: Engine) -> tuple[int, int, int, int]:
    """earliest, evict floor, cap floor, ttl floor"""
    state = topic(engine, "t")
    return state.earliest, state.evict_floor, state.cap_floor, state.ttl_floor


def check_sums(engine: Engine) -> None:
    """Checks that the counters of a topic equal the sums of its runs."""
    state = topic(engine, "t")
    runs = list(state.runs_from(1))
    assert state.live_count == sum(run.live for run in runs) == len(seqs(engine, "t"))
    assert state.live_bytes == sum(run.live_bytes for run in runs) == engine.core.total_bytes
    assert state.tail_count == sum(block.count for block in state.tail)
    assert state.tail_bytes == sum(block.memory_bytes for block in state.tail)


# Caps


@homes
@pytest.mark.parametrize("cap", [1, 2, 3, 4, 5, 6, 7])
def test_a_cap_on_records_keeps_the_newest(home: str, cap: int) -> None:
    engine = open_with_cold()
    append(engine, "t", 1, 2)
    append(engine, "t", 3, 4, 5)
    move(engine, "t", home)
    append(engine, "t", 6)
    put(engine, "t", cap_records=cap)
    kept = list(range(max(7 - cap, 1), 7))
    assert seqs(engine, "t") == kept
    floor = kept[0]
    assert marks(engine) == (floor, floor, floor, 1)
    check_sums(engine)


@homes
@pytest.mark.parametrize(
    ("cap", "first"), [(15, 1), (14, 2), (13, 3), (12, 3), (11, 4), (9, 4), (8, 5), (5, 5), (4, 6)]
)
def test_a_cap_on_bytes_keeps_the_newest_that_fit(home: str, cap: int, first: int) -> None:
    engine = open_with_cold()
    append(engine, "t", 1, 22, 333)
    append(engine, "t", 4444, 55555)
    move(engine, "t", home)
    put(engine, "t", cap_bytes=cap)
    assert seqs(engine, "t") == list(range(first, 6))
    check_sums(engine)


def test_both_caps_hold_together(engine: Engine) -> None:
    put(engine, "t", cap_records=3, cap_bytes=6)
    append(engine, "t", 11, 22, 33, 44)
    assert seqs(engine, "t") == [2, 3, 4]
    append(engine, "t", 5555)
    assert seqs(engine, "t") == [4, 5]


def test_a_batch_larger_than_the_cap_keeps_its_own_end(engine: Engine) -> None:
    put(engine, "t", cap_records=2)
    append(engine, "t", 1, 2, 3, 4, 5)
    assert seqs(engine, "t") == [4, 5]
    check_sums(engine)


def test_one_record_over_the_cap_on_bytes_leaves_nothing(engine: Engine) -> None:
    put(engine, "t", cap_bytes=3)
    append(engine, "t", 1, 55555)
    assert seqs(engine, "t") == []
    assert marks(engine) == (3, 3, 3, 1)
    assert append(engine, "t", 2).first_seq == 3
    assert seqs(engine, "t") == [3]


@homes
def test_caps_count_live_records_only(home: str) -> None:
    engine = open_with_cold()
    append(engine, "t", *[Record.of(number, tag="x" if number % 2 else None) for number in range(6)])
    move(engine, "t", home)
    delete(engine, "t", match=eq("x"))
    put(engine, "t", cap_records=3)
    assert seqs(engine, "t") == [1, 3, 5]
    assert marks(engine) == (1, 1, 1, 1)
    put(engine, "t", cap_records=2)
    assert seqs(engine, "t") == [3, 5]
    check_sums(engine)


@homes
def test_the_floor_stands_behind_the_last_record_that_was_lost(home: str) -> None:
    # 2 is deleted on purpose: a reader at cursor 1 misses nothing unexpectedly.
    engine = open_with_cold()
    append(engine, "t", Record.of(1), Record.of(2, tag="x"), Record.of(3), Record.of(4))
    move(engine, "t", home)
    delete(engine, "t", match=eq("x"))
    put(engine, "t", cap_records=2)
    assert marks(engine) == (3, 2, 2, 1)
    assert read(engine, "t", 1).tombstone is None
    assert read(engine, "t", 0).tombstone is not None


def test_a_cap_evicts_with_every_append(engine: Engine) -> None:
    put(engine, "t", cap_records=3)
    for number in range(1, 20):
        append(engine, "t", number)
        assert seqs(engine, "t") == list(range(max(1, number - 2), number + 1))
    check_sums(engine)


def test_evicted_segments_lose_their_files_at_the_next_checkpoint(disk: FakeDisk) -> None:
    engine = open_engine(disk, segment_max_events=2)
    put(engine, "t", cap_records=2)
    for number in range(8):
        append(engine, "t", number)
    assert len(disk.list_dir(f"data/topics/{1:016x}")) == 8
    assert checkpoint(engine)
    assert disk.list_dir(f"data/topics/{1:016x}") == [f"seg-{7:020d}.data", f"seg-{7:020d}.idx"]


def test_eviction_by_a_cap_is_not_logged_because_replay_finds_it_again(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", cap_records=2)
    append(engine, "t", 1, 2, 3, 4)
    assert FrameKind.EVICT not in logged(engine)
    assert seqs(open_engine(killed(disk)), "t") == [3, 4]


# Time


@homes
def test_records_leave_when_their_time_is_over(home: str) -> None:
    clock = ManualClock()
    engine = open_with_cold(clock=clock)
    put(engine, "t", ttl_ms=1000)
    append(engine, "t", 1, 2)
    clock.advance(400)
    append(engine, "t", 3)
    clock.advance(400)
    append(engine, "t", 4)
    move(engine, "t", home)
    clock.advance(200)
    assert seqs(engine, "t") == [1, 2, 3, 4]
    clock.advance(1)
    assert seqs(engine, "t") == [3, 4]
    assert marks(engine) == (3, 3, 1, 3)
    clock.advance(400)
    assert seqs(engine, "t") == [4]
    clock.advance(10_000)
    assert seqs(engine, "t") == []
    assert marks(engine) == (5, 5, 1, 5)
    check_sums(engine)


@homes
def test_deleted_records_expire_in_silence(home: str) -> None:
    clock = ManualClock()
    engine = open_with_cold(clock=clock)
    put(engine, "t", ttl_ms=1000)
    append(engine, "t", Record.of(1, tag="x"), Record.of(2, tag="x"))
    clock.advance(500)
    append(engine, "t", 3)
    move(engine, "t", home)
    delete(engine, "t", match=eq("x"))
    clock.advance(501)
    assert seqs(engine, "t") == [3]
    assert marks(engine) == (3, 1, 1, 1)


def test_no_time_to_live_is_for_ever(engine: Engine, clock: ManualClock) -> None:
    append(engine, "t", 1)
    clock.advance(10**12)
    assert seqs(engine, "t") == [1]


def test_expiry_is_logged_so_that_a_clock_set_back_brings_nothing_back(disk: FakeDisk) -> None:
    clock = ManualClock()
    engine = open_engine(disk, clock)
    put(engine, "t", ttl_ms=1000, durability=FSYNC)
    append(engine, "t", 1)
    clock.advance(600)
    append(engine, "t", 2)
    clock.advance(600)
    assert seqs(engine, "t") == [2]
    assert logged(engine)[-1] is FrameKind.EVICT
    earlier = ManualClock(clock.now_ms() - 10_000)
    after = open_engine(killed(disk), earlier)
    assert seqs(after, "t") == [2]
    tombstone = read(after, "t").tombstone
    assert tombstone is not None
    assert (tombstone.gap_to, tombstone.reason) == (1, LossReason.TTL)


def test_a_read_that_finds_something_expired_waits_for_nothing(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    put(engine, "t", ttl_ms=1000, durability=FSYNC)
    append(engine, "t", 1)
    clock.advance(1001)
    disk.trace.clear()
    read(engine, "t")
    assert [operation for operation, _ in disk.trace] == ["write"]


def test_expiry_is_noticed_before_a_cap_is_enforced(engine: Engine, clock: ManualClock) -> None:
    put(engine, "t", ttl_ms=1000, cap_records=2)
    append(engine, "t", 1, 2)
    clock.advance(1001)
    append(engine, "t", 3, 4)
    tombstone = read(engine, "t").tombstone
    assert tombstone is not None
    assert tombstone.reason is LossReason.TTL


# The front


@homes
def test_the_front_moves_past_runs_without_live_records(home: str) -> None:
    engine = open_with_cold()
    append(engine, "t", 1, 2, tag="x")
    move(engine, "t", home)
    append(engine, "t", 3, tag="y")
    append(engine, "t", 4, tag="x")
    append(engine, "t", 5, tag="y")
    delete(engine, "t", match=eq("x"))
    assert topic(engine, "t").earliest == 3
    delete(engine, "t", match=eq("y"))
    state = topic(engine, "t")
    assert (state.earliest, state.segments, state.tail) == (6, [], [])
    check_sums(engine)


def test_a_dead_block_inside_the_tail_stays_until_it_is_in_front(engine: Engine) -> None:
    append(engine, "t", 1)
    append(engine, "t", 2, tag="x")
    append(engine, "t", 3)
    delete(engine, "t", match=eq("x"))
    assert [block.first_seq for block in topic(engine, "t").tail] == [1, 2, 3]
    delete(engine, "t", before_seq=2)
    assert [block.first_seq for block in topic(engine, "t").tail] == [3]


@homes
def test_watermarks_are_the_same_after_a_restart(home: str) -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = open_with_cold(disk, clock)
    put(engine, "t", ttl_ms=1000, cap_records=5, durability=FSYNC)
    append(engine, "t", *[Record.of(number, tag="x" if number == 3 else None) for number in range(4)])
    clock.advance(600)
    append(engine, "t", 4, 5, 6)
    move(engine, "t", home)
    delete(engine, "t", match=eq("x"))
    clock.advance(600)
    append(engine, "t", 7)
    catch_up(engine)
    before = marks(engine), seqs(engine, "t")
    assert before == ((5, 4, 3, 4), [5, 6, 7, 8])
    for _ in range(2):
        disk = killed(disk)
        engine = open_with_cold(disk, clock)
        assert (marks(engine), seqs(engine, "t")) == before
        check_sums(engine)


@homes
def test_a_cap_counts_over_what_was_deleted_in_between(home: str) -> None:
    engine = open_with_cold()
    append(engine, "t", *[Record.of(number, tag="x" if number in (1, 3) else None) for number in range(7)])
    move(engine, "t", home)
    delete(engine, "t", match=eq("x"))
    put(engine, "t", cap_records=2)
    assert seqs(engine, "t") == [6, 7]
    check_sums(engine)


def test_what_a_cap_took_from_older_records_of_an_ephemeral_topic_stays_taken(disk: FakeDisk) -> None:
    # The records that pushed them out are gone after a restart, so replay could not find out by itself.
    engine = open_engine(disk)
    put(engine, "t", cap_records=3, durability=FSYNC)
    append(engine, "t", 1, 2, 3)
    put(engine, "t", cap_records=3, durability=EPHEMERAL)
    append(engine, "t", 4, 5)
    assert seqs(engine, "t") == [3, 4, 5]
    assert FrameKind.EVICT in logged(engine)
    after = open_engine(killed(disk))
    assert after.info("t").earliest_seq == 3
    assert values(after, "t") == [3]


def damaged(disk: FakeDisk, clock: ManualClock, ending: str = ".idx") -> Engine:
    """Seqs 1 to 3 are in a segment that cannot be opened, and one of them is deleted; 4 to 6 are in the tail."""
    engine = open_engine(disk, clock, segment_max_events=3)
    append(engine, "t", Record.of(11, tag="x"), Record.of(22), Record.of(33))
    delete(engine, "t", match=eq("x"))
    assert checkpoint(engine)
    engine.core.store.forget(SegmentKey(1, 1))
    disk.open(f"data/topics/{1:016x}/seg-{1:020d}{ending}", write=True).write_at(0, b"x")
    clock.advance(1000)
    append(engine, "t", 44)
    append(engine, "t", 55)
    return engine


@pytest.mark.parametrize("ending", [".idx", ".data"])
@pytest.mark.parametrize(
    ("config", "left"), [({"cap_records": 2}, [4, 5]), ({"cap_bytes": 5}, [4, 5]), ({"cap_records": 1}, [5])]
)
def test_a_damaged_segment_leaves_as_a_whole(
    disk: FakeDisk, clock: ManualClock, ending: str, config: dict[str, object], left: list[int]
) -> None:
    engine = damaged(disk, clock, ending)
    put(engine, "t", **config)
    assert seqs(engine, "t") == left
    assert topic(engine, "t").segments == []
    assert engine.core.total_bytes == 2 * len(left)


def test_a_damaged_segment_expires_with_its_newest_record(disk: FakeDisk, clock: ManualClock) -> None:
    engine = damaged(disk, clock)
    put(engine, "t", ttl_ms=1001)
    assert engine.info("t").count == 4
    clock.advance(2)
    assert seqs(engine, "t") == [4, 5]


@pytest.mark.parametrize("cap", [3, 4])
def test_appends_go_on_while_the_front_is_damaged(disk: FakeDisk, clock: ManualClock, cap: int) -> None:
    engine = damaged(disk, clock)
    put(engine, "t", cap_records=cap)
    for number in range(10):
        append(engine, "t", number)
    assert seqs(engine, "t") == list(range(16 - cap, 16))


def test_damage_does_not_stop_retention(disk: FakeDisk) -> None:
    engine = open_engine(disk, segment_max_events=3)
    put(engine, "t", cap_records=4)
    append(engine, "t", 1, 2, 3)
    disk.open(f"data/topics/{1:016x}/seg-{1:020d}.idx", write=True).write_at(0, b"x")
    for number in range(4, 9):
        append(engine, "t", number)
    assert seqs(engine, "t") == [5, 6, 7, 8]
    assert [segment.first_seq for segment in topic(engine, "t").segments] == [4]


# Many delete ranges


_MANY = 8_000


@pytest.mark.parametrize("home", ["tail", "sealed"])
@pytest.mark.parametrize("cause", ["cap_records", "cap_bytes", "ttl_ms", "before_seq"])
def test_eviction_does_not_list_the_records_between_deleted_ones(cause: str, home: str) -> None:
    clock = ManualClock()
    engine = open_with_cold(clock=clock, segment_max_events=_MANY)
    for first in range(0, _MANY, 1_000):
        append(engine, "t", *[Record.of(n, tag="odd" if n % 2 else "even") for n in range(first, first + 1_000)])
        clock.advance(1_000)
    delete(engine, "t", match=eq("odd"))
    move(engine, "t", home)
    size = topic(engine, "t").live_bytes

    def evict() -> None:
        if cause == "before_seq":
            delete(engine, "t", before_seq=7_501)
        elif cause == "ttl_ms":
            put(engine, "t", ttl_ms=500)
            seqs(engine, "t", from_seq=_MANY)
        elif cause == "cap_bytes":
            put(engine, "t", cap_bytes=size - size // 100)
        else:
            put(engine, "t", cap_records=250)

    assert lines_run(evict) < 2_500
    if cause == "cap_bytes":
        assert topic(engine, "t").live_bytes <= size - size // 100
        return
    check_sums(engine)
    assert seqs(engine, "t") == ([] if cause == "ttl_ms" else list(range(7_501, _MANY, 2)))


def test_a_cap_finds_its_record_among_deleted_ones() -> None:
    engine = open_with_cold()
    append(engine, "t", *[Record.of(n, tag="x" if n % 3 else "y") for n in range(300)])
    delete(engine, "t", match=eq("x"))
    kept = seqs(engine, "t")
    for cap in (99, 50, 2, 1):
        put(engine, "t", cap_records=cap)
        assert seqs(engine, "t") == kept[-cap:]
        check_sums(engine)
