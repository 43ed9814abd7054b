from collections.abc import Iterator

import pytest

from tests.unit.conftest import (
    DISK,
    EPHEMERAL,
    FSYNC,
    after_power_cut,
    append,
    ask_append,
    ask_drop,
    checkpoint,
    delete,
    drop,
    eq,
    flush,
    hold,
    killed,
    move,
    one,
    open_engine,
    open_with_cold,
    put,
    read,
    seqs,
    topic,
    values,
)
from topics.engine import checkpoint as module
from topics.engine import topic_paging
from topics.engine.background_jobs import InlineRunner, Job, OffLoop, Until
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.log.frame import FrameKind
from topics.log.layout import Layout
from topics.log.snapshot_files import SnapshotHead, read_snapshot, snapshot_numbers
from topics.model.errors import ReadOnlyError
from topics.model.records import Record
from topics.model.topic_config import Durability
from topics.ops.repair.repair import verify
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem, ManualClock

LAYOUT = Layout("data")


def heads(disk: FakeDisk) -> list[SnapshotHead]:
    return [read_snapshot(disk, LAYOUT, number)[0] for number in snapshot_numbers(disk, LAYOUT)]


def topics_in(disk: FakeDisk, number: int) -> list[int]:
    """The ids of the topics a snapshot has the state of."""
    return sorted(frame.topic_id for frame in read_snapshot(disk, LAYOUT, number)[1] if frame.kind is FrameKind.TOPIC)


def blocks_in(disk: FakeDisk, number: int) -> list[int]:
    return [frame.topic_id for frame in read_snapshot(disk, LAYOUT, number)[1] if frame.kind is FrameKind.APPEND]


def driven(job: Job) -> Iterator[OffLoop | Until]:
    """Runs a job by hand: each step is handed out before it is executed, so a test can do something in between."""
    step = next(job)
    while True:
        yield step
        outcome: list[object] = []
        try:
            outcome.append(step.function()) if isinstance(step, OffLoop) else step.register(outcome.append)
        except OSError as error:
            outcome.append(error)
        try:
            step = job.throw(outcome[0]) if isinstance(outcome[0], BaseException) else job.send(outcome[0])
        except StopIteration:
            return


# Content of snapshots


def test_the_first_one_has_everything(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "a", 1, 2)
    append(engine, "b", 1)
    assert checkpoint(engine)
    (head,) = heads(disk)
    assert (head.number, head.chain, head.shard_count, head.next_topic_id) == (1, [], 1, 3)
    assert topics_in(disk, 1) == [1, 2]
    assert blocks_in(disk, 1) == [1, 2]


def test_a_later_one_has_only_what_changed(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    for name in "abc":
        append(engine, name, "x" * 200)
    checkpoint(engine)
    append(engine, "b", 1)
    assert checkpoint(engine)
    assert [head.chain for head in heads(disk)] == [[], [1]]
    assert topics_in(disk, 2) == [2]
    after = open_engine(killed(disk))
    assert values(after, "b") == ["x" * 200, 1]
    assert values(after, "c") == ["x" * 200]


@pytest.mark.parametrize("change", ["append", "put", "delete", "expire", "seal"])
def test_every_change_makes_a_topic_part_of_the_next_one(disk: FakeDisk, clock: ManualClock, change: str) -> None:
    engine = open_engine(disk, clock, segment_max_age_ms=10_000)
    put(engine, "t", ttl_ms=20_000)
    append(engine, "t", "x" * 200)
    clock.advance(9_000)
    append(engine, "t", 2)
    append(engine, "other", 1)
    checkpoint(engine, full=True)
    if change == "append":
        append(engine, "t", 3)
    elif change == "put":
        put(engine, "t", ttl_ms=30_000)
    elif change == "delete":
        delete(engine, "t", before_seq=2)
    elif change == "expire":
        clock.advance(11_001)
        engine.info("t")
    else:
        clock.advance(1_001)
        engine.housekeeper.tick()
    state = engine.info("t")
    assert checkpoint(engine)
    assert topics_in(disk, 2) == [1]
    after = open_engine(killed(disk), clock, segment_max_age_ms=10_000)
    assert (after.info("t").count, after.info("t").earliest_seq) == (state.count, state.earliest_seq)


def test_one_without_any_change_is_empty(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", "x" * 200)
    checkpoint(engine)
    assert checkpoint(engine)
    assert topics_in(disk, 2) == []
    assert values(open_engine(killed(disk)), "t") == ["x" * 200]


def test_reading_does_not_change_a_topic(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", "x" * 200)
    checkpoint(engine)
    read(engine, "t")
    engine.info("t")
    checkpoint(engine)
    assert topics_in(disk, 2) == []


def test_everything_is_rewritten_when_what_was_added_outweighs_it(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", "x" * 300)
    checkpoint(engine)
    chains = []
    for number in range(12):
        append(engine, "t", number)
        assert checkpoint(engine)
        chains.append(len(engine.checkpointer.chain))
        assert snapshot_numbers(disk, LAYOUT) == engine.checkpointer.chain
    assert 1 in chains
    assert max(chains) > 1
    assert values(open_engine(killed(disk)), "t") == ["x" * 300, *range(12)]


def test_a_full_one_removes_the_chain_before_it(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", "x" * 500)
    checkpoint(engine)
    append(engine, "t", 2)
    checkpoint(engine)
    assert snapshot_numbers(disk, LAYOUT) == [1, 2]
    checkpoint(engine, full=True)
    assert snapshot_numbers(disk, LAYOUT) == [3]


def test_a_dropped_topic_is_taken_out_of_the_chain(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "a", "x" * 200)
    append(engine, "b", "x" * 200)
    checkpoint(engine)
    drop(engine, "a")
    checkpoint(engine)
    assert heads(disk)[1].dropped == [1]
    after = open_engine(killed(disk))
    assert [info.topic for info in after.list_topics()] == ["b"]


def test_a_topic_recreated_between_two_is_the_new_one(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", "old" * 100)
    checkpoint(engine)
    drop(engine, "t")
    append(engine, "t", "new")
    checkpoint(engine)
    assert values(open_engine(killed(disk)), "t") == ["new"]


def test_numbers_of_topics_are_not_given_out_again(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1)
    before = engine.info("t").epoch
    drop(engine, "t")
    engine.close_inline()
    after = open_engine(disk)
    append(after, "t", 1)
    # The clock stands still: the epoch is only higher because the snapshot has the epochs of deleted topics.
    assert (after.core.directory.load("t").id, after.info("t").epoch) == (2, before + 1)


def test_an_ephemeral_topic_keeps_its_head_and_not_its_records(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=EPHEMERAL)
    append(engine, "t", 1, 2, 3)
    checkpoint(engine)
    assert blocks_in(disk, 1) == []
    after = open_engine(killed(disk))
    assert (after.info("t").count, after.info("t").head_seq >= 3) == (0, True)


def test_deleted_records_of_a_tail_stay_deleted(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", Record.of(1), Record.of(2, tag="x"), Record.of(3))
    append(engine, "t", Record.of(4, tag="x"))
    append(engine, "t", 5)
    delete(engine, "t", match=eq("x"))
    checkpoint(engine)
    after = open_engine(killed(disk))
    assert seqs(after, "t") == [1, 3, 5]
    assert (after.info("t").count, after.info("t").bytes) == (3, 3)
    assert delete(after, "t", match=eq("x")).deleted == 0


def test_the_log_before_it_is_not_gone_through_again(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1)
    checkpoint(engine)
    assert disk.list_dir("data/wal/shard-00") == []
    append(engine, "t", 2)
    assert disk.list_dir("data/wal/shard-00") == ["0000000000000002.wal"]
    assert values(open_engine(killed(disk)), "t") == [1, 2]


def test_segments_it_names_survive_a_power_cut(disk: FakeDisk) -> None:
    engine = open_engine(disk, segment_max_events=2)
    append(engine, "t", 1, 2)
    append(engine, "t", 3, 4)
    checkpoint(engine)
    assert values(open_engine(after_power_cut(disk), boot_id="b"), "t") == [1, 2, 3, 4]


# Ceilings


def test_what_a_busy_topic_reserved_is_given_back_but_for_what_a_snapshot_grants(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    for _ in range(5):
        append(engine, "t", *range(100))
    assert topic(engine, "t").ceiling > 500 + 256
    checkpoint(engine)
    assert topic(engine, "t").ceiling == topic(engine, "t").ceiling_staged == 500 + 256
    after = open_engine(after_power_cut(disk), boot_id="b")
    assert append(after, "t", 2).first_seq == 500 + 256 + 1


def test_a_snapshot_grants_a_reserve(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", *range(100))
    assert topic(engine, "t").ceiling == 256
    checkpoint(engine)
    assert topic(engine, "t").ceiling == 356


def test_what_came_behind_a_snapshot_is_never_given_out_again(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1)
    checkpoint(engine)
    append(engine, "t", 2)
    append(engine, "t", 3)
    after = open_engine(after_power_cut(disk), boot_id="b")
    assert values(after, "t") == [1]
    assert append(after, "t", 4).first_seq > 3


def test_a_reserve_with_something_in_flight_stays(disk: FakeDisk) -> None:
    engine = open_engine(disk, wal_shards=2)
    for name in "abcdefgh":
        append(engine, name, 1)
    name = next(name for name in "abcdefgh" if topic(engine, name).shard == 0)
    answers: list[object] = []
    for number, _ in enumerate(driven(engine.checkpointer.job())):
        if number == 1:
            hold(engine)
            answers = ask_append(engine, name, 2)
    assert topic(engine, name).ceiling == 257
    flush(engine)
    assert one(answers, AppendResult).first_seq == 2
    after = open_engine(after_power_cut(disk), boot_id="b", wal_shards=2)
    assert append(after, name, 3).first_seq > 2


# A topic that changes while the checkpoint runs


def two_shards(disk: FakeDisk, clock: ManualClock | None = None) -> tuple[Engine, str]:
    """An engine with two shards, and a topic of the first, which turns first: it is captured a step later."""
    engine = open_engine(disk, clock, wal_shards=2)
    for name in "abcdefgh":
        put(engine, name, durability=FSYNC)
        append(engine, name, Record.of(1, tag="x"), Record.of(2))
    return engine, next(name for name in "abcdefgh" if topic(engine, name).shard == 0)


def at_the_turn(disk: FakeDisk, clock: ManualClock | None = None) -> Engine:
    """The snapshot alone, without the log behind it: exactly the captured state."""
    alone = disk.clone()
    for shard in (0, 1):
        for name in alone.list_dir(f"data/wal/shard-{shard:02d}"):
            alone.remove(f"data/wal/shard-{shard:02d}/{name}")
    return open_engine(alone, clock, wal_shards=2)


@pytest.mark.parametrize("change", ["append", "put", "delete", "drop", "expire"])
def test_a_topic_is_captured_as_it_stood_when_its_log_turned(disk: FakeDisk, change: str) -> None:
    clock = ManualClock()
    engine, name = two_shards(disk, clock)
    if change == "expire":
        put(engine, name, ttl_ms=1000, durability=FSYNC)
        clock.advance(1000)
    config = engine.info(name).config
    for number, _ in enumerate(driven(engine.checkpointer.job())):
        if number == 1:
            assert topic(engine, name).capture_due
            if change == "append":
                append(engine, name, 3)
            elif change == "put":
                put(engine, name, cap_records=1, durability=FSYNC)
            elif change == "delete":
                delete(engine, name, match=eq("x"))
            elif change == "drop":
                drop(engine, name)
            else:
                clock.advance(1)
                assert engine.info(name).count == 0
    captured = at_the_turn(disk, clock)
    assert (topic(captured, name).live_count, topic(captured, name).earliest) == (2, 1)
    assert captured.info(name).config == config
    after = open_engine(killed(disk), clock, wal_shards=2)
    expected = {"append": [1, 2, 3], "put": [2], "delete": [2], "expire": []}
    if change == "drop":
        assert name not in [info.topic for info in after.list_topics()]
    else:
        assert seqs(after, name) == expected[change]


def test_what_changed_since_is_part_of_the_next_one(disk: FakeDisk) -> None:
    engine, name = two_shards(disk)
    for number, _ in enumerate(driven(engine.checkpointer.job())):
        if number == 1:
            append(engine, name, 3)
    assert checkpoint(engine)
    assert seqs(at_the_turn(disk), name) == [1, 2, 3]


def test_a_topic_created_meanwhile_is_in_the_log_behind_it(disk: FakeDisk) -> None:
    engine, _ = two_shards(disk)
    for number, _ in enumerate(driven(engine.checkpointer.job())):
        if number == 1:
            for name in ("new-1", "new-2", "new-3", "new-4"):
                append(engine, name, 1)
    after = open_engine(killed(disk), wal_shards=2)
    assert all(seqs(after, name) == [1] for name in ("new-1", "new-2", "new-3", "new-4"))


def test_an_append_in_flight_at_the_turn_is_in_the_log_behind_it(disk: FakeDisk) -> None:
    engine, name = two_shards(disk)
    answers: list[object] = []
    for number, _ in enumerate(driven(engine.checkpointer.job())):
        if number == 1:
            hold(engine)
            answers = ask_append(engine, name, 3)
    assert answers == []
    flush(engine)
    assert seqs(at_the_turn(disk), name) == [1, 2]
    assert seqs(open_engine(killed(disk), wal_shards=2), name) == [1, 2, 3]


def test_many_topics_are_captured_a_slice_at_a_time(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLICE", 3)
    engine = open_engine(disk)
    for number in range(10):
        append(engine, f"t{number}", number)
    ticks = 0
    engine.core.defer.use(lambda function: function())
    steps = driven(engine.checkpointer.job())
    for step in steps:
        ticks += isinstance(step, Until)
        due = [info.topic for info in engine.list_topics() if topic(engine, info.topic).capture_due]
        if ticks == 3:
            # Some are captured already, and a change now must not get into the snapshot for either kind.
            assert 0 < len(due) < 10
            append(engine, due[0], "late")
            append(engine, next(f"t{n}" for n in range(10) if f"t{n}" not in due), "late")
            ticks += 100
    assert topics_in(disk, 1) == list(range(1, 11))
    alone = disk.clone()
    for name in alone.list_dir("data/wal/shard-00"):
        alone.remove(f"data/wal/shard-00/{name}")
    captured = open_engine(alone)
    assert all(values(captured, f"t{number}") == [number] for number in range(10))
    after = open_engine(killed(disk))
    assert sum(values(after, f"t{number}") == [number, "late"] for number in range(10)) == 2


def test_while_it_runs_it_reports_it(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1)
    outcome: list[bool] = []
    for _ in driven(engine.checkpointer.job(then=outcome.append)):
        assert engine.checkpointer.running
        assert outcome == []
    assert not engine.checkpointer.running
    assert outcome == [True]
    assert engine.checkpointer.completed == 1


# The order of the file work


def test_nothing_is_removed_before_the_snapshot_is_durable(disk: FakeDisk) -> None:
    engine = open_engine(disk, segment_max_events=2)
    put(engine, "t", cap_records=2)
    append(engine, "dropped", 1, 2)
    checkpoint(engine, full=True)
    for number in range(6):
        append(engine, "t", number)
    drop(engine, "dropped")
    disk.trace.clear()
    assert checkpoint(engine, full=True)
    trace = disk.trace
    renamed = next(n for n, (operation, path) in enumerate(trace) if operation == "rename" and "snapshot-" in path)
    assert trace[renamed + 1] == ("sync_dir", "data/meta")
    removed = [n for n, (operation, _) in enumerate(trace) if operation in ("remove", "remove_dir")]
    assert removed
    assert min(removed) > renamed + 1
    gone = [path for operation, path in trace if operation in ("remove", "remove_dir")]
    assert any(path.endswith(".wal") for path in gone)
    assert any("snapshot-" in path for path in gone)
    assert any("seg-" in path for path in gone)
    synced = [n for n, (operation, path) in enumerate(trace) if operation == "sync" and "seg-" in path]
    assert synced
    assert max(synced) < renamed


def test_flags_are_flipped_only_when_the_snapshot_has_them(disk: FakeDisk) -> None:
    engine = open_engine(disk, segment_max_events=3)
    append(engine, "t", Record.of(1), Record.of(2, tag="x"), Record.of(3))
    checkpoint(engine)
    delete(engine, "t", match=eq("x"))
    disk.trace.clear()
    assert checkpoint(engine)
    operations = [(operation, path.rsplit("/", 1)[-1]) for operation, path in disk.trace]
    flipped = operations.index(("write", f"seg-{1:020d}.data"))
    renamed = next(n for n, (operation, path) in enumerate(operations) if operation == "rename" and "snapshot-" in path)
    assert flipped > renamed
    assert topic(engine, "t").segments[0].flags is None
    assert seqs(engine, "t") == [1, 3]
    assert seqs(open_engine(killed(disk), segment_max_events=3), "t") == [1, 3]


def test_a_delete_that_comes_while_flags_are_flipped_waits_for_the_next_one(disk: FakeDisk) -> None:
    engine = open_engine(disk, segment_max_events=4)
    append(engine, "t", *[Record.of(number, tag=f"x{number}") for number in range(4)])
    checkpoint(engine)
    delete(engine, "t", match=eq("x1"))
    for step in driven(engine.checkpointer.job()):
        if isinstance(step, OffLoop) and topic(engine, "t").segments[0].flag_changes == 1:
            delete(engine, "t", match=eq("x2"))
    assert topic(engine, "t").segments[0].flags is not None
    assert seqs(engine, "t") == [1, 4]
    clone = disk.clone()
    assert seqs(open_engine(clone, segment_max_events=4), "t") == [1, 4]
    assert checkpoint(engine)
    assert topic(engine, "t").segments[0].flags is None
    assert seqs(open_engine(killed(disk), segment_max_events=4), "t") == [1, 4]


# Failures


def test_a_failed_one_keeps_everything_and_the_next_one_succeeds() -> None:
    """Each call of a checkpoint fails once; only a failed sync of the log itself is final, as it must be."""
    call, poisoned = 0, 0
    while True:
        call += 1
        disk = FakeDisk()
        faulty = FaultyFileSystem(disk)
        engine = open_engine(faulty, segment_max_events=3)
        put(engine, "t", durability=FSYNC)
        append(engine, "dropped", 1, 2, 3)
        append(engine, "t", Record.of(1), Record.of(2, tag="x"), Record.of(3))
        checkpoint(engine)
        append(engine, "unsynced", 1)
        append(engine, "t", 4, 5, 6)
        delete(engine, "t", match=eq("x"))
        append(engine, "t", 7)
        drop(engine, "dropped")
        append(engine, "unsynced", 2)
        faulty.plan = FaultPlan(call=faulty.calls + call)
        succeeded = checkpoint(engine)
        if not faulty.failed:
            break
        assert seqs(engine, "t") == [1, 3, 4, 5, 6, 7]
        twin = open_engine(disk.clone(), segment_max_events=3)
        assert seqs(twin, "t") == [1, 3, 4, 5, 6, 7], call
        assert engine.checkpointer.failures == 1
        if engine.core.shards[0].writer.poison is not None:
            poisoned += 1
            assert not succeeded
            continue
        append(engine, "t", 8)
        assert engine.core.shards[0].logged_bytes > 0
        assert checkpoint(engine), call
        assert engine.checkpointer.failures == 0
        after = open_engine(killed(disk), segment_max_events=3)
        assert seqs(after, "t") == [1, 3, 4, 5, 6, 7, 8]
        assert [info.topic for info in after.list_topics()] == ["t", "unsynced"]
    assert call > 8
    assert poisoned == 1


def test_a_failure_is_reported_and_logged(disk: FakeDisk, caplog: pytest.LogCaptureFixture) -> None:
    faulty = FaultyFileSystem(disk)
    engine = open_engine(faulty)
    append(engine, "t", 1)
    faulty.plan = FaultPlan(call=faulty.calls + 2)
    assert not checkpoint(engine)
    assert "checkpoint failed" in caplog.text
    assert engine.checkpointer.number == 0


def test_the_log_of_a_failed_one_still_counts_towards_the_next(disk: FakeDisk) -> None:
    faulty = FaultyFileSystem(disk)
    engine = open_engine(faulty)
    append(engine, "t", 1)
    before = engine.core.shards[0].logged_bytes
    faulty.plan = FaultPlan(call=faulty.calls + 2)
    assert not checkpoint(engine)
    assert engine.core.shards[0].logged_bytes == before
    assert checkpoint(engine)
    assert engine.core.shards[0].logged_bytes == 0


def test_a_poisoned_log_makes_no_snapshot(disk: FakeDisk) -> None:
    faulty = FaultyFileSystem(disk)
    engine = open_engine(faulty)
    append(engine, "t", 1)
    faulty.plan = FaultPlan(call=faulty.calls + 1)
    assert isinstance(ask_append(engine, "t", 2)[0], ReadOnlyError)
    assert not checkpoint(engine)
    assert snapshot_numbers(disk, LAYOUT) == []
    assert not topic(engine, "t").capture_due


def test_topics_of_a_failed_one_are_not_waiting_to_be_captured(disk: FakeDisk) -> None:
    faulty = FaultyFileSystem(disk)
    engine = open_engine(faulty, wal_shards=2)
    for _ in range(2):
        for name in "abcdefgh":
            append(engine, name, 1)
    for number, _ in enumerate(driven(engine.checkpointer.job())):
        if number == 1:
            assert any(topic(engine, name).capture_due for name in "abcdefgh")
            faulty.plan = FaultPlan(call=faulty.calls + 1)  # The second shard cannot turn.
    assert engine.checkpointer.failures == 1
    assert not any(topic(engine, name).capture_due for name in "abcdefgh")


# Topics that are dropped meanwhile


def test_a_topic_dropped_before_its_segment_is_written_does_not_stop_it(disk: FakeDisk) -> None:
    engine = open_engine(disk, snapshot_inline_bytes=0)
    append(engine, "t", 1)
    append(engine, "u", 1)
    for step in driven(engine.checkpointer.job()):
        if isinstance(step, OffLoop) and "t" in engine.core.directory:
            drop(engine, "t")
    assert engine.checkpointer.completed == 1
    assert [info.topic for info in open_engine(killed(disk), snapshot_inline_bytes=0).list_topics()] == ["u"]


def test_what_is_done_to_a_topic_before_it_is_dropped_can_be_replayed_after_a_power_cut(disk: FakeDisk) -> None:
    engine = open_engine(disk, snapshot_inline_bytes=0)
    append(engine, "t", Record.of(1), Record.of(2, tag="x"), Record.of(3))
    append(engine, "u", 1)
    for step in driven(engine.checkpointer.job()):
        if isinstance(step, OffLoop) and "t" in engine.core.directory:
            # Marked in a segment that the snapshot names: a replay of the log needs its files for it.
            delete(engine, "t", match=eq("x"))
            drop(engine, "t")
    assert engine.checkpointer.completed == 1
    lost = after_power_cut(disk)
    assert [info.topic for info in open_engine(lost.clone(), boot_id="another boot").list_topics()] == ["u"]
    assert verify(lost, LAYOUT, "another boot").findings == []


def test_a_drop_in_flight_at_the_turn(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1)
    hold(engine)
    answers = ask_drop(engine, "t")
    assert checkpoint(engine)
    assert len(answers) == 1
    assert open_engine(killed(disk)).list_topics() == []


# Cold segments


def test_the_hot_files_of_a_moved_segment_go_only_when_a_snapshot_names_the_cold_ones(disk: FakeDisk) -> None:
    engine = open_with_cold(disk)
    put(engine, "t", durability=DISK)
    append(engine, "t", 1, 2)
    move(engine, "t", "cold")
    assert disk.list_dir(f"data/topics/{1:016x}") != []
    assert values(open_with_cold(disk.clone()), "t") == [1, 2]
    assert checkpoint(engine)
    assert disk.list_dir(f"data/topics/{1:016x}") == []
    assert values(engine, "t") == [1, 2]
    assert values(open_with_cold(killed(disk)), "t") == [1, 2]


def test_a_segment_that_dies_on_its_way_is_written_for_the_snapshot_that_names_it(disk: FakeDisk) -> None:
    engine = open_engine(disk, snapshot_inline_bytes=0)
    put(engine, "t", durability=FSYNC)
    append(engine, "t", 1, 2, 3)

    class Patient:
        """A runner that keeps its jobs until a test runs them."""

        def __init__(self) -> None:
            self.jobs: list[Job] = []

        def start(self, job: Job) -> None:
            self.jobs.append(job)

        def close(self) -> None:
            """Nothing runs by itself."""

    patient = Patient()
    engine.sealer.use(patient)
    done: list[bool] = []
    for _ in driven(engine.checkpointer.job(then=done.append)):
        if patient.jobs:
            # The tail is captured as a segment whose files are not written yet; now nothing in it is live any more.
            delete(engine, "t", before_seq=4)
            InlineRunner().start(patient.jobs.pop())
    assert done == [True]
    again = open_engine(killed(disk))
    assert (seqs(again, "t"), again.info("t").earliest_seq) == ([], 4)


# Closed, or looked at, in the middle of one


def begin_to_close(engine: Engine) -> None:
    """The part of a close before its checkpoint."""
    engine.core.closed = engine.core.quiet = True


@pytest.mark.parametrize("earlier", range(5))
def test_the_last_snapshot_copies_nothing_older_than_the_one_before_it(earlier: int) -> None:
    """Of topics that may sleep, whose places a checkpoint does not note any more when the engine is being closed."""
    engine = open_engine(disk := FakeDisk(), awake_topics=0)
    append(engine, "other", 1)
    put(engine, "sure", durability=FSYNC)
    append(engine, "sure", 0)
    for number in range(earlier):
        assert checkpoint(engine)
        append(engine, "sure", number + 1)
    assert checkpoint(engine)
    append(engine, "sure", "last")
    for step in driven(engine.checkpointer.job()):
        if isinstance(step, OffLoop):
            begin_to_close(engine)
    engine.close_inline()
    again = open_engine(after_power_cut(disk), awake_topics=0)
    assert values(again, "sure") == [*range(earlier + 1), "last"]


@pytest.mark.parametrize("durability", [EPHEMERAL, DISK])
def test_what_was_given_out_behind_the_turn_is_reported_as_lost_though_the_engine_was_being_closed(
    durability: Durability,
) -> None:
    engine = open_engine(disk := FakeDisk())
    put(engine, "weak", durability=durability)
    append(engine, "weak", 1)
    for place, _ in enumerate(driven(engine.checkpointer.job())):
        if place == 1:
            # The log has turned.
            shown = append(engine, "weak", 2).last_seq
            begin_to_close(engine)
    # The power is cut before the checkpoint of the stop is taken.
    again = open_engine(after_power_cut(disk), boot_id="b")
    tombstone = read(again, "weak", from_seq=1).tombstone
    assert tombstone is not None and tombstone.gap_from <= shown <= tombstone.gap_to
    assert append(again, "weak", 3).first_seq > shown


def test_nobody_goes_to_sleep_where_they_were_before_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_paging, "_PLACES_A_STEP", 1)
    engine = open_engine(FakeDisk(), clock := ManualClock(), awake_topics=0)
    for name in "abc":
        append(engine, name, 1)
    assert checkpoint(engine)
    for name in "abc":
        append(engine, name, 2)
    clock.advance(120_000)
    slept: set[str] = set()
    for _ in driven(engine.checkpointer.job()):
        engine.housekeeper._look_at_some_topics()
        slept.update(engine.core.pager.names)
        for name in sorted(engine.core.pager.names):
            assert values(engine, name) == [1, 2]
    assert slept == {"a", "b", "c"}
