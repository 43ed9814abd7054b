"""A file-system call that fails costs at most the operations that needed it, and every caller gets an error.

The sweep fails every call of a scenario once and for good, as a broken disk, a full one, and one that fills up in the
middle of a write. While the engine runs on it must show exactly the acknowledged operations; after it ended, all of
them must be found.
"""

from itertools import islice

import msgspec
import pytest

from tests.crash import scenarios
from tests.crash.harness import SMALL, Append, World, dump
from tests.crash.sweeps import Scenario, sweep_faults
from topics.engine.core import EngineOptions
from topics.engine.results import AppendResult, PutResult
from topics.model.errors import DiskFullError, ReadOnlyError, SystemBusyError, TopicsError
from topics.model.records import Batch, Record
from topics.testing import NO_FAULTS, FakeDisk, Fault, FaultPlan, FaultyFileSystem, Survival

SHOWN = 12

PASSING_FAULTS = [Fault.ENOSPC, Fault.SHORT, Fault.EMFILE, Fault.ENOMEM, Fault.EINTR]
each_shortage = pytest.mark.parametrize("fault", PASSING_FAULTS, ids=lambda fault: str(fault.name))
each_fault = pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: str(fault.name))
each_number_of_shards = pytest.mark.parametrize("shards", [1, 2])


def options(shards: int) -> EngineOptions:
    return msgspec.structs.replace(SMALL, wal_shards=shards)


def faulty_world(shards: int = 1) -> tuple[World, FaultyFileSystem, FakeDisk]:
    """A world whose log file lasts, so that a commit is a write and, for waiting callers, a sync."""
    fs = FaultyFileSystem(disk := FakeDisk())
    world = World(fs, msgspec.structs.replace(options(shards), wal_file_bytes=1 << 16))
    world.start()
    return world, fs, disk


def assert_refused(world: World, name: str) -> None:
    """The engine takes no write for this topic, and states why."""
    with pytest.raises(ReadOnlyError, match="is read-only after a failed write or sync"):
        world.engine.append(name, Batch(records=[Record.of(1)]), lambda answer: pytest.fail("it was answered"))


def errors_of_the_disk(plan: FaultPlan, path: str) -> bool:
    return plan.fault in (Fault.EIO, Fault.ENOSPC, Fault.SHORT)


def some_shortages(plan: FaultPlan, path: str) -> bool:
    """Every call in one way or another: all ways of all calls take minutes."""
    assert plan.call is not None
    return not errors_of_the_disk(plan, path) and PASSING_FAULTS[2 + plan.call % 3] is plan.fault


@each_number_of_shards
def test_no_failing_call_breaks_a_promise(shards: int) -> None:
    broken = list(islice(sweep_faults(scenarios.living, options(shards), errors_of_the_disk), SHOWN))
    assert not broken, "\n".join(broken)


def test_no_shortage_breaks_a_promise() -> None:
    broken = list(islice(sweep_faults(scenarios.living, options(1), some_shortages), SHOWN))
    assert not broken, "\n".join(broken)


@pytest.mark.slow
@each_number_of_shards
def test_no_shortage_at_any_call_breaks_a_promise(shards: int) -> None:
    broken = list(islice(sweep_faults(scenarios.living, options(shards)), SHOWN))
    assert not broken, "\n".join(broken)


@pytest.mark.slow
@each_number_of_shards
@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.deleting,
        scenarios.capping,
        scenarios.dropping,
        scenarios.configuring,
        scenarios.stopping,
        scenarios.consuming,
        scenarios.fencing,
    ],
)
def test_no_failing_call_of_other_scenarios_breaks_a_promise(scenario: Scenario, shards: int) -> None:
    broken = list(islice(sweep_faults(scenario, options(shards)), SHOWN))
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(("operation", "ahead"), [("write", 1), ("sync", 2)])
def test_a_failed_commit_fails_its_whole_group_and_publishes_nothing(operation: str, ahead: int) -> None:
    world, fs, disk = faulty_world()
    world.append("one", 2, durability="fsync")
    world.append("two", 1, durability="fsync")
    before = dump(world.engine)
    world.engine.watch("two", lambda: pytest.fail("a reader was woken for nothing"))

    world.hold()
    world.append("one", 2, key="once")
    world.append("two", 1)
    world.delete("one", before=2)
    world.put("two", durability="fsync", cap_records=5)
    world.append("three", 1, durability="fsync")
    world.drop("one")
    commit_begins = fs.calls
    fs.plan = FaultPlan(commit_begins + ahead)
    world.flush()

    assert fs.failed == 1 and [call for call, _ in fs.trace[commit_begins:]][ahead - 1] == operation
    failed = [op for timeline in world.timelines.values() for op in timeline.operations if not op.acked]
    assert len(failed) == 7, "the append that creates a topic counts twice"
    assert all(isinstance(op.answer, ReadOnlyError) for op in failed)
    assert dump(world.engine) == before
    for name in ("one", "two", "three"):
        assert_refused(world, name)

    # All of it was rolled back from the log: operations reported as failed do not appear after a restart.
    after = World(disk.crash(Survival.EVERYTHING), world.options, world.clock)
    after.start()
    assert dump(after.engine) == before
    answer = after.append("one", key="once")
    assert isinstance(answer, AppendResult) and not answer.deduped and answer.first_seq == 3


def test_a_failed_sync_does_not_take_back_what_was_acknowledged_before_it() -> None:
    """Class disk is answered after the write; that its group also held a sync that failed is not its matter."""
    world, fs, disk = faulty_world()
    world.append("sure", 1, durability="fsync")
    world.append("quick", 1)
    world.hold()
    world.append("quick", 1)
    world.append("sure", 1)
    fs.plan = FaultPlan(fs.calls + 2)
    world.flush()

    assert isinstance(world.timelines["sure"].operations[-1].answer, ReadOnlyError)
    assert isinstance(world.timelines["quick"].operations[-1].answer, AppendResult)
    assert dump(world.engine)["sure"].head == 1
    assert dump(world.engine)["quick"].head == 2
    after = World(disk.crash(Survival.EVERYTHING), world.options, world.clock)
    after.start()
    assert sorted(dump(after.engine)["quick"].live) == [1, 2]


@each_shortage
def test_a_write_that_met_a_shortage_is_as_if_it_had_never_been_and_writing_goes_on(fault: Fault) -> None:
    world, fs, disk = faulty_world()
    world.append("one", 2, durability="fsync")
    world.append("two", 1)
    before = dump(world.engine)

    world.hold()
    world.append("one", 2, key="once")
    world.append("two", 1)
    fs.plan = FaultPlan(fs.calls + 1, fault)
    world.flush()
    assert fs.failed == 1 and fs.trace[fs.plan.call - 1][0] == "write"  # type: ignore[operator]
    assert dump(world.engine) == before
    refused = DiskFullError if fault in (Fault.ENOSPC, Fault.SHORT) else SystemBusyError
    with pytest.raises(refused):
        world.engine.append("one", Batch(records=[Record.of(1)]), lambda answer: pytest.fail("it was answered"))
    killed = World(disk.clone().crash(Survival.EVERYTHING), world.options, world.clock)
    killed.start()
    assert dump(killed.engine) == before

    world.heal()
    answer = world.append("one", 2, key="once")
    assert isinstance(answer, AppendResult) and not answer.deduped and answer.first_seq == 3
    assert isinstance(world.append("two", 1, durability="fsync"), AppendResult)
    after = World(disk.crash(Survival.NOTHING), world.options, world.clock)
    after.start(restarted=True)
    assert sorted(dump(after.engine)["one"].live) == [1, 2, 3, 4]
    assert dump(after.engine)["one"].reported == [], "nothing was lost, and nobody is told otherwise"


@pytest.mark.parametrize("fault", [Fault.ENOSPC, Fault.ENOMEM, Fault.EINTR], ids=lambda fault: str(fault.name))
def test_a_sync_that_met_a_shortage_is_done_again_with_all_it_should_have_written(fault: Fault) -> None:
    world, fs, _ = faulty_world()
    world.append("sure", 1, durability="fsync")
    fs.plan = FaultPlan(fs.calls + 2, fault)
    assert isinstance(world.append("sure", 1), AppendResult)
    failed = fs.plan.call
    assert failed is not None and fs.trace[failed - 1][0] == "sync"
    # Not the sync alone: pages that it could not write may count as clean by now.
    assert [operation for operation, _ in fs.trace[failed:]] == ["write", "sync"]
    assert not world.poisoned


@pytest.mark.parametrize("earlier", ["fsync", "disk"])
def test_append_whose_sync_finds_the_disk_full_is_refused_and_taken_back(earlier: str) -> None:
    """A file system may find out only at the sync that it has no room. The append does not wait for space."""
    world, fs, disk = faulty_world()
    world.append("sure", 2, durability="fsync")
    world.append("quick", 1)
    if earlier == "disk":
        world.append("quick", 1)  # Written and not synced yet: it stays.
    before = dump(world.engine)
    fs.plan = FaultPlan(fs.calls + 1, Fault.ENOSPC, lasting=True, only=frozenset({"sync"}))
    assert isinstance(world.append("sure", 1, key="once"), DiskFullError)
    assert dump(world.engine) == before
    with pytest.raises(DiskFullError):
        world.engine.append("sure", Batch(records=[Record.of(1)]), lambda answer: pytest.fail("it was answered"))
    killed = World(disk.clone().crash(Survival.EVERYTHING), world.options, world.clock)
    killed.start()
    assert dump(killed.engine) == before

    fs.plan = NO_FAULTS
    world.heal()
    answer = world.append("sure", 2, key="once")
    assert isinstance(answer, AppendResult) and not answer.deduped and answer.first_seq == 3
    after = World(disk.crash(Survival.NOTHING), world.options, world.clock)
    after.start(restarted=True)
    assert sorted(dump(after.engine)["sure"].live) == [1, 2, 3, 4]
    assert dump(after.engine)["sure"].reported == []


def test_a_failed_background_sync_stops_all_writes() -> None:
    world, fs, _ = faulty_world()
    world.append("quick", 1)
    world.delete("quick", before=2)
    fs.plan = FaultPlan(fs.calls + 1)
    world.background_sync()
    # Behind it only the mark that the page cache can be trusted is taken away.
    assert [call for call, _ in fs.trace[-3:]] == ["sync", "write", "sync"] and fs.failed == 1
    before = dump(world.engine)
    assert_refused(world, "quick")
    assert dump(world.engine) == before
    assert not world.checkpoint()


def test_a_failed_sync_is_not_tried_again() -> None:
    """Linux may have dropped the unwritten pages, and answer the next sync with success."""
    world, fs, _ = faulty_world()
    world.append("sure", 1, durability="fsync")
    fs.plan = FaultPlan(fs.calls + 2)
    world.append("sure", 1)
    (failed,) = [place for place, call in enumerate(fs.trace, start=1) if place == fs.plan.call]
    fs.plan = NO_FAULTS
    # The one sync behind it follows the truncation that takes the failed batch back; then the page cache is distrusted.
    assert [operation for operation, _ in fs.trace[failed - 1 :]] == ["sync", "truncate", "sync", "write", "sync"]
    world.background_sync()
    world.checkpoint()
    world.close()
    assert not [call for call in fs.trace[failed + 2 :] if "/wal/" in call[1]]


def test_only_the_shard_that_failed_stops() -> None:
    world, fs, _ = faulty_world(shards=2)
    names = [f"topic-{number}" for number in range(6)]
    for name in names:
        world.append(name, 1, durability="fsync")
    fs.plan = FaultPlan(fs.calls + 2)
    assert isinstance(world.append(names[0], 1), ReadOnlyError)
    broken = world.engine.core.existing(names[0]).shard
    for name in names:
        if world.engine.core.existing(name).shard == broken:
            assert_refused(world, name)
        else:
            assert isinstance(world.append(name, 1), AppendResult)


def test_a_failed_creation_leaves_the_name_free_for_another_shard() -> None:
    """The frame of the failed creation may be in the log of one shard, and that of the next attempt in another's."""
    world, fs, disk = faulty_world(shards=2)
    core = world.engine.core
    world.append("quick", 1)
    number = core.existing("quick").shard
    for filler in range(20):
        if [core.shard_number(core.next_topic_id + ahead) for ahead in (0, 1)] == [number, 1 - number]:
            break
        world.put(f"filler-{filler}")
    world.hold()
    world.append("quick", 1)
    world.append("late", 1, durability="fsync")
    fs.plan = FaultPlan(fs.calls + 2)
    world.flush()
    # Not taken back, because the write to the other topic in its group had been acknowledged.
    assert isinstance(world.timelines["late"].operations[-1].answer, TopicsError)

    assert isinstance(world.put("late", durability="fsync", cap_records=3), PutResult)
    assert isinstance(world.append("late", 1), AppendResult)
    before = dump(world.engine)
    for survival in (Survival.EVERYTHING, Survival.NOTHING):
        after = World(disk.clone().crash(survival), world.options, world.clock)
        after.start()
        assert dump(after.engine)["late"] == before["late"]
        after.close()
        after.start()
        assert dump(after.engine)["late"] == before["late"]


@each_fault
def test_a_checkpoint_that_failed_loses_nothing_and_the_next_one_succeeds(fault: Fault) -> None:
    """Every call of a checkpoint fails in turn, outside of the log, where it would poison the shard."""
    ahead, succeeded = 0, False
    while not succeeded:
        ahead += 1
        world, fs, disk = faulty_world()
        for tag in ("a", "b"):
            world.append("sure", 4, tag=tag, durability="fsync")
            world.append("quick", 4, tag=tag)
        world.delete("sure", tag="b")
        fs.plan = FaultPlan(fs.calls + ahead, fault)
        world.checkpoint()
        succeeded = not fs.failed
        fs.plan = NO_FAULTS
        if world.poisoned:
            continue
        before = dump(world.engine)
        assert world.checkpoint()
        assert dump(world.engine) == before
        after = World(disk.crash(Survival.NOTHING), world.options, world.clock)
        after.start(restarted=True)
        found = dump(after.engine)
        # Of class disk, records without an answer are reported as possibly lost.
        assert (found["sure"], found["quick"].live) == (before["sure"], before["quick"].live)
    assert ahead > 20


@each_fault
def test_a_segment_that_cannot_be_written_stays_readable_and_is_written_later(fault: Fault) -> None:
    world, fs, disk = faulty_world()
    world.append("sure", 5, durability="fsync")
    fs.plan = FaultPlan(fs.calls + 3, fault, lasting=True)
    assert isinstance(world.append("sure", 1), AppendResult), "the log has it; the segment is not its matter"
    assert fs.failed and world.engine.sealer.failures
    before = dump(world.engine)
    assert sorted(before["sure"].live) == [1, 2, 3, 4, 5, 6]
    fs.plan = NO_FAULTS
    assert isinstance(world.append("sure", 1), AppendResult)
    world.engine.housekeeper.tick()
    assert not world.engine.sealer.failures and not world.engine.sealer.backlog_bytes
    before = dump(world.engine)
    assert world.checkpoint()
    after = World(disk.crash(Survival.NOTHING), world.options, world.clock)
    after.start(restarted=True)
    assert dump(after.engine) == before


def test_a_start_that_fails_anywhere_leaves_the_folder_for_the_next_one() -> None:
    """Every call of a start fails in every way, reading calls too; a start without faults then finds the same."""
    world = World(disk := FakeDisk(), SMALL)
    scenarios.living(world)
    disk = disk.crash(Survival.EVERYTHING)
    calm = world.fork()
    calm.start(disk.clone())
    expected = dump(calm.engine)
    call, hits = 0, True
    while hits:
        call += 1
        for fault in Fault:
            for lasting in (False, True):
                inner = disk.clone()
                fs = FaultyFileSystem(inner, FaultPlan(call, fault, lasting, include_reads=True))
                started = world.fork()
                try:
                    started.start(fs)
                except (OSError, TopicsError):
                    pass
                else:
                    fs.plan = NO_FAULTS
                    assert dump(started.engine) == expected, f"it started in spite of call {call}, {fault}, {lasting}"
                hits = fs.failed > 0
                after = world.fork()
                after.start(inner.crash(Survival.EVERYTHING))
                assert dump(after.engine) == expected, f"after call {call}, {fault}, {lasting}"
    assert call > 50
    assert isinstance(world.timelines["sure"].operations[-1], Append)
