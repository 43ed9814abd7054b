import asyncio

import pytest

from tests.unit.conftest import (
    EPHEMERAL,
    append,
    ask_append,
    checkpoint,
    delete,
    drop,
    killed,
    open_engine,
    open_with_cold,
    put,
    seqs,
    topic,
    values,
)
from topics.engine import housekeeping as module
from topics.engine.background_jobs import OffLoop
from topics.engine.engine import Engine
from topics.log.catalog_files import read_catalog
from topics.log.layout import Layout
from topics.log.snapshot_files import snapshot_numbers
from topics.model.errors import ReadOnlyError
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem, ManualClock

LAYOUT = Layout("data")


def sealed(engine: Engine, name: str = "t") -> list[int]:
    return [segment.first_seq for segment in topic(engine, name).segments]


# Checkpoints


def test_a_checkpoint_is_taken_when_the_log_has_grown(disk: FakeDisk) -> None:
    engine = open_engine(disk, snapshot_wal_bytes=2000)
    append(engine, "t", 1)
    engine.housekeeper.tick()
    assert snapshot_numbers(disk, LAYOUT) == []
    append(engine, "t", "x" * 2000)
    engine.housekeeper.tick()
    assert snapshot_numbers(disk, LAYOUT) == [1]
    engine.housekeeper.tick()
    assert snapshot_numbers(disk, LAYOUT) == [1]


def test_a_checkpoint_is_taken_when_there_are_many_new_topics(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of which a start after a kill would make out of the log."""
    monkeypatch.setattr(module, "_NEW_TOPICS_MAX", 3)
    engine = open_engine(disk)
    for number, expected in enumerate([[], [], [1], [1], [1], [1, 2]]):
        append(engine, f"t{number}", 1)
        engine.housekeeper.tick()
        assert snapshot_numbers(disk, LAYOUT) == expected
    append(engine, "t0", 2)
    engine.housekeeper.tick()
    assert snapshot_numbers(disk, LAYOUT) == [1, 2]
    again = open_engine(left := killed(disk))
    taken = snapshot_numbers(left, LAYOUT)
    again.housekeeper.tick()
    assert snapshot_numbers(left, LAYOUT) == taken


def listed(disk: FakeDisk, name: str = "t") -> list[int]:
    """The segments that guests on the files know of."""
    catalog = read_catalog(disk, LAYOUT)
    known = catalog.by_name().get(name) if catalog is not None else None
    return [segment.first_seq for segment in known.segments] if known is not None else []


def test_what_a_quiet_server_seals_is_in_the_catalog_within_the_interval(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock, snapshot_interval_ms=1000, segment_max_age_ms=5000)
    append(engine, "t", 1, 2)
    clock.advance(1000)
    engine.housekeeper.tick()
    assert listed(disk) == []
    clock.advance(4001)
    # Nothing was logged since the checkpoint. The tail is old by now, and sealed.
    engine.housekeeper.tick()
    assert sealed(engine) == [1]
    waiting = engine.sealer.unlisted()
    if not listed(disk):
        assert (waiting.segments, waiting.oldest_ts) == (1, topic(engine, "t").segments[0].first_ts)
        assert waiting.bytes > 0
        clock.advance(1000)
        engine.housekeeper.tick()
    assert listed(disk) == [1]
    assert engine.sealer.unlisted() == (0, 0, None, 0)
    taken = snapshot_numbers(disk, LAYOUT)
    clock.advance(10_000)
    engine.housekeeper.tick()
    assert snapshot_numbers(disk, LAYOUT) == taken


def test_what_is_sealed_counts_as_behind_until_the_catalog_names_it(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock, segment_max_events=2)
    append(engine, "t", 1, 2)
    append(engine, "gone", 3, 4)
    assert engine.sealer.unlisted().segments == 2
    drop(engine, "gone")
    checkpoint(engine)
    assert (engine.sealer.unlisted().segments, listed(disk)) == (0, [1])
    append(engine, "t", 5, 6)
    assert engine.sealer.unlisted().segments == 1


def test_a_catalog_that_could_not_be_written_is_written_by_the_next_checkpoint(
    disk: FakeDisk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(disk, clock, segment_max_events=2)
    append(engine, "t", 1, 2)

    def fails(head: object) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(engine.checkpointer.catalog, "publish", fails)
        checkpoint(engine)
    assert listed(disk) == []
    assert engine.sealer.unlisted().segments == 1
    clock.advance(engine.core.options.snapshot_interval_ms)
    engine.housekeeper.tick()
    assert listed(disk) == [1]


def test_a_checkpoint_is_taken_when_the_log_is_old(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock, snapshot_interval_ms=1000)
    append(engine, "t", 1)
    clock.advance(999)
    engine.housekeeper.tick()
    assert snapshot_numbers(disk, LAYOUT) == []
    clock.advance(1)
    engine.housekeeper.tick()
    assert snapshot_numbers(disk, LAYOUT) == [1]


def test_no_checkpoint_is_taken_of_nothing(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock, snapshot_interval_ms=1000)
    for _ in range(3):
        clock.advance(5000)
        engine.housekeeper.tick()
    assert snapshot_numbers(disk, LAYOUT) == []


def test_a_failed_checkpoint_is_repeated_after_the_interval(disk: FakeDisk, clock: ManualClock) -> None:
    faulty = FaultyFileSystem(disk)
    engine = open_engine(faulty, clock, snapshot_interval_ms=1000)
    append(engine, "t", 1)
    clock.advance(1000)
    faulty.plan = FaultPlan(call=faulty.calls + 2)
    engine.housekeeper.tick()
    assert engine.checkpointer.failures == 1
    clock.advance(1000)
    # Nothing was written meanwhile; the records that the failed checkpoint should have absorbed are reason enough.
    engine.housekeeper.tick()
    assert snapshot_numbers(disk, LAYOUT) == [1]


def test_no_checkpoint_is_tried_on_a_poisoned_log(disk: FakeDisk, clock: ManualClock) -> None:
    faulty = FaultyFileSystem(disk)
    engine = open_engine(faulty, clock, snapshot_interval_ms=1000)
    append(engine, "t", 1)
    faulty.plan = FaultPlan(call=faulty.calls + 1)
    assert isinstance(ask_append(engine, "t", 2)[0], ReadOnlyError)
    clock.advance(5000)
    engine.housekeeper.tick()
    assert (engine.checkpointer.failures, engine.checkpointer.completed) == (0, 0)


# Memory


def test_the_largest_tails_are_sealed_when_all_hold_too_much() -> None:
    engine = open_engine(tail_memory_bytes=1000)
    append(engine, "small", "x" * 100)
    append(engine, "large", "x" * 600)
    append(engine, "middle", "x" * 400)
    engine.housekeeper.bound_memory()
    assert (sealed(engine, "small"), sealed(engine, "middle"), sealed(engine, "large")) == ([], [], [1])
    append(engine, "small", "x" * 800)
    engine.housekeeper.tick()
    assert (sealed(engine, "small"), sealed(engine, "middle")) == ([1], [])


def test_nothing_is_sealed_within_the_bound() -> None:
    engine = open_engine(tail_memory_bytes=1000)
    append(engine, "t", "x" * 500)
    engine.housekeeper.bound_memory()
    assert sealed(engine) == []


def test_ephemeral_tails_are_not_counted() -> None:
    engine = open_engine(tail_memory_bytes=1000)
    put(engine, "e", durability=EPHEMERAL)
    append(engine, "e", "x" * 5000)
    append(engine, "t", "x" * 500)
    engine.housekeeper.bound_memory()
    assert (sealed(engine), sealed(engine, "e")) == ([], [])


# Time


def test_expired_records_of_quiet_topics_are_let_go(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    put(engine, "t", ttl_ms=1000)
    append(engine, "t", 1, 2)
    clock.advance(1001)
    assert engine.core.total_bytes == 2
    engine.housekeeper.tick()
    assert engine.core.total_bytes == 0
    assert topic(engine, "t").tail == []


def test_keys_of_quiet_topics_are_let_go(clock: ManualClock) -> None:
    engine = open_engine(clock=clock)
    append(engine, "quiet", 1, key="a")
    clock.advance(120_000)
    engine.housekeeper.tick()
    assert topic(engine, "quiet").keys is not None
    assert append(engine, "quiet", 1, key="a").deduped
    clock.advance(1)
    engine.housekeeper.tick()
    assert topic(engine, "quiet").keys is None


def test_many_topics_are_looked_at_in_turns(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    monkeypatch.setattr(module, "_TOPICS_A_TICK", 4)
    engine = open_engine(clock=clock)
    for number in range(10):
        put(engine, f"t{number}", ttl_ms=1000)
        append(engine, f"t{number}", 1)
    clock.advance(1001)
    left = []
    for _ in range(4):
        left.append(engine.core.total_bytes)
        engine.housekeeper.tick()
    assert left == [10, 6, 2, 0]
    append(engine, "t0", 1)
    clock.advance(1001)
    for _ in range(4):
        engine.housekeeper.tick()
    assert engine.core.total_bytes == 0


# The cold folder


def filled(disk: FakeDisk, **options: object) -> Engine:
    """Six synced segments of one record each."""
    engine = open_engine(disk, cold_dir="cold", segment_max_events=1, **options)  # type: ignore[arg-type]
    for number in range(6):
        append(engine, "t", number)
    assert checkpoint(engine)
    return engine


def tiers(engine: Engine) -> str:
    return "".join("c" if segment.cold else "h" for segment in topic(engine, "t").segments)


def test_the_newest_segments_stay_hot(disk: FakeDisk) -> None:
    engine = filled(disk, hot_retain_segments=2)
    assert [segment.first_seq for segment in engine.housekeeper.movable(topic(engine, "t"))] == [1, 2, 3, 4]
    engine.housekeeper.tick()
    assert tiers(engine) == "cccchh"
    assert values(engine, "t") == [0, 1, 2, 3, 4, 5]


def test_the_bound_on_bytes_counts_too(disk: FakeDisk) -> None:
    engine = filled(disk, hot_retain_segments=4, hot_retain_bytes=100)
    size = topic(engine, "t").segments[0].text_bytes
    assert 2 * size < 100 < 3 * size
    engine.housekeeper.tick()
    assert tiers(engine) == "cccchh"


def test_segments_that_may_not_survive_a_crash_are_not_moved(disk: FakeDisk) -> None:
    engine = open_with_cold(disk, segment_max_events=1)
    append(engine, "t", 1)
    assert engine.housekeeper.movable(topic(engine, "t")) == []
    checkpoint(engine)
    assert len(engine.housekeeper.movable(topic(engine, "t"))) == 1


def test_without_a_cold_folder_nothing_moves(disk: FakeDisk) -> None:
    engine = open_engine(disk, segment_max_events=1, hot_retain_segments=0)
    append(engine, "t", 1)
    checkpoint(engine)
    engine.housekeeper.tick()
    assert tiers(engine) == "h"


def test_a_few_are_moved_at_a_time(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOVES_A_JOB", 2)
    engine = filled(disk, hot_retain_segments=1)
    engine.housekeeper.tick()
    assert tiers(engine) == "cchhhh"
    engine.housekeeper.tick()
    engine.housekeeper.tick()
    assert tiers(engine) == "ccccch"


def test_a_move_is_part_of_the_next_snapshot(disk: FakeDisk) -> None:
    engine = filled(disk, hot_retain_segments=0)
    engine.housekeeper.tick()
    checkpoint(engine)
    assert disk.list_dir(f"data/topics/{1:016x}") == []
    after = open_engine(killed(disk), cold_dir="cold", segment_max_events=1)
    assert tiers(after) == "cccccc"
    assert values(after, "t") == [0, 1, 2, 3, 4, 5]


def test_a_kill_between_the_move_and_the_snapshot_leaves_it_hot(disk: FakeDisk) -> None:
    engine = filled(disk, hot_retain_segments=0)
    engine.housekeeper.tick()
    assert tiers(engine) == "cccccc"
    crashed = killed(disk)
    after = open_engine(crashed, cold_dir="cold", segment_max_events=1)
    assert tiers(after) == "hhhhhh"
    assert values(after, "t") == [0, 1, 2, 3, 4, 5]
    assert crashed.list_dir(f"cold/topics/{1:016x}") == []


def test_a_failed_move_leaves_the_segment_hot(disk: FakeDisk, caplog: pytest.LogCaptureFixture) -> None:
    faulty = FaultyFileSystem(disk)
    engine = open_with_cold(faulty, segment_max_events=1)
    append(engine, "t", 1)
    checkpoint(engine)
    faulty.plan = FaultPlan(call=faulty.calls + 2)
    engine.housekeeper.tick()
    assert tiers(engine) == "h"
    assert "move to the cold tier failed" in caplog.text
    engine.housekeeper.tick()
    assert tiers(engine) == "c"
    assert values(engine, "t") == [1]


@pytest.mark.parametrize("how", ["delete", "drop"])
def test_a_segment_that_goes_while_it_is_copied_leaves_no_copy(disk: FakeDisk, how: str) -> None:
    engine = open_with_cold(disk, segment_max_events=1)
    append(engine, "t", 1)
    append(engine, "u", 1)
    checkpoint(engine)
    append(engine, "t", 2)
    job = engine.housekeeper.relocate(topic(engine, "t"))
    step = next(job)
    assert isinstance(step, OffLoop)
    step.function()
    if how == "delete":
        delete(engine, "t", before_seq=2)
    else:
        drop(engine, "t")
    with pytest.raises(StopIteration):
        job.send(None)
    assert checkpoint(engine)
    folder = f"cold/topics/{1:016x}"
    assert not disk.exists(folder) or disk.list_dir(folder) == []
    after = open_with_cold(killed(disk), segment_max_events=1)
    assert [info.topic for info in after.list_topics()] == (["t", "u"] if how == "delete" else ["u"])


def test_a_delete_in_a_moved_segment(disk: FakeDisk) -> None:
    engine = filled(disk, hot_retain_segments=0)
    engine.housekeeper.tick()
    delete(engine, "t", before_seq=4)
    checkpoint(engine)
    assert seqs(engine, "t") == [4, 5, 6]
    assert len(disk.list_dir(f"cold/topics/{1:016x}")) == 6
    after = open_engine(killed(disk), cold_dir="cold", segment_max_events=1)
    assert seqs(after, "t") == [4, 5, 6]


# The timer


def test_the_timer_ticks_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "_TICK_S", 0.001)
    engine = open_engine()
    ticks = 0

    async def run() -> None:
        nonlocal ticks
        enough = asyncio.Event()

        def tick() -> None:
            nonlocal ticks
            ticks += 1
            if ticks == 3:
                enough.set()
            raise RuntimeError("a tick that fails does not end the ticking")

        monkeypatch.setattr(engine.housekeeper, "tick", tick)
        engine.housekeeper.start(asyncio.get_running_loop())
        async with asyncio.timeout(5):
            await enough.wait()
        engine.housekeeper.stop()
        stopped = ticks
        await asyncio.sleep(0.01)
        assert ticks == stopped

    asyncio.run(run())
    assert "housekeeping failed" in caplog.text


def test_stopping_what_was_never_started() -> None:
    open_engine().housekeeper.stop()
