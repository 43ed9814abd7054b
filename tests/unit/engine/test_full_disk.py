"""A disk without room loses nothing, reports the shortage, and can be emptied through the API."""

import errno

import msgspec
import pytest

from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.engine.results import AppendResult, DeleteResult, DropResult, PutResult
from topics.model.errors import DiskFullError, TopicsError
from topics.model.records import Batch, Record
from topics.model.router_rules import DeleteSelector
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.testing import (
    LACK_OF_ROOM,
    NO_FAULTS,
    FakeDisk,
    Fault,
    FaultPlan,
    FaultyFileSystem,
    ManualClock,
    SeededEntropy,
    Survival,
)

KIB = 1024
OPTIONS = EngineOptions(
    data_dir="data", wal_shards=1, wal_file_bytes=64 * KIB, segment_max_events=50, full_disk_reserve_bytes=256 * KIB
)


def opened(fs: FakeDisk | FaultyFileSystem, boot: str = "boot", options: EngineOptions = OPTIONS) -> Engine:
    return Engine.recover(fs, options, ManualClock(), SeededEntropy(1), boot_id=boot)


def append(engine: Engine, name: str, size: int = 100) -> AppendResult | TopicsError:
    outcomes: list[AppendResult | TopicsError] = []
    try:
        engine.append(name, Batch(records=[Record.of("x" * size)]), outcomes.append)
    except TopicsError as error:
        return error
    return outcomes[0]


def fill(engine: Engine, name: str) -> int:
    """Appends until the disk is full; how many were taken."""
    taken = 0
    while isinstance(outcome := append(engine, name, 4000), AppendResult):
        taken += 1
    assert isinstance(outcome, DiskFullError), outcome
    return taken


def full_engine() -> tuple[FakeDisk, Engine, int]:
    disk = FakeDisk()
    disk.capacity_bytes = 2048 * KIB
    engine = opened(disk)
    engine.put_topic("large", TopicConfigPatch(durability=Durability.FSYNC), lambda outcome: None)
    engine.put_topic("other", TopicConfigPatch(durability=Durability.FSYNC), lambda outcome: None)
    assert isinstance(append(engine, "other"), AppendResult)
    return disk, engine, fill(engine, "large")


def test_while_the_disk_is_full_deletes_are_taken_and_make_room() -> None:
    disk, engine, taken = full_engine()
    assert isinstance(append(engine, "other"), DiskFullError), "one full disk, whatever the topic"
    refused: list[object] = []
    with pytest.raises(DiskFullError):
        engine.put_topic("new", TopicConfigPatch(), refused.append)
    outcomes: list[object] = []
    engine.delete_records("large", DeleteSelector(taken // 2, None), outcomes.append)
    engine.drop_topic("other", False, outcomes.append)
    assert [type(outcome) for outcome in outcomes] == [DeleteResult, DropResult]

    before = disk.used_bytes
    engine.housekeeper.tick()
    assert disk.used_bytes < before, "the checkpoint that removes files is taken at once"
    engine.housekeeper.tick()
    assert engine.core.room.short is None
    assert isinstance(append(engine, "large"), AppendResult)

    found = opened(disk.crash(Survival.NOTHING), "another boot")
    assert found.info("large").head_seq == taken + 1
    assert [topic.topic for topic in found.list_topics()] == ["large"]


def test_writing_comes_back_when_somebody_else_makes_room() -> None:
    disk, engine, taken = full_engine()
    engine.housekeeper.tick()
    assert isinstance(append(engine, "large"), DiskFullError)
    disk.capacity_bytes = 8192 * KIB
    engine.housekeeper.tick()
    engine.housekeeper.tick()
    assert isinstance(append(engine, "large"), AppendResult)
    assert engine.info("large").head_seq == taken + 1


def test_only_the_preallocation_of_the_next_file_fails() -> None:
    """The batch that needs the next file is written all the same, into a file that reserves less."""
    fs = FaultyFileSystem(disk := FakeDisk())
    engine = opened(fs)
    assert isinstance(append(engine, "topic"), AppendResult)
    fs.plan = FaultPlan(fs.calls + 1, Fault.ENOSPC, lasting=True, until=fs.calls + 100, only=frozenset(("allocate",)))
    taken = 1
    while engine.core.room.short is None:
        outcome = append(engine, "topic", 4000)
        taken += isinstance(outcome, AppendResult)
    fs.plan = NO_FAULTS
    engine.housekeeper.tick()
    engine.housekeeper.tick()
    assert isinstance(append(engine, "topic"), AppendResult)
    assert opened(disk.crash(Survival.EVERYTHING)).info("topic").head_seq == taken + 1


def test_a_stop_on_a_full_disk_is_no_crash() -> None:
    """Everything is in the log and synced: after a restart of the machine no loss is reported."""
    fs = FaultyFileSystem(disk := FakeDisk())
    options = msgspec.structs.replace(OPTIONS, full_disk_reserve_bytes=0)
    engine = opened(fs, options=options)
    engine.put_topic("cache", TopicConfigPatch(durability=Durability.DISK), lambda outcome: None)
    for _ in range(3):
        assert isinstance(append(engine, "cache"), AppendResult)
    fs.plan = FaultPlan(fs.calls + 1, Fault.ENOSPC, lasting=True, only=frozenset(("create", "allocate", "make_dirs")))
    engine.close_inline()
    assert engine.checkpointer.failures, "the last checkpoint had no room"

    found = opened(disk.crash(Survival.NOTHING), "another boot", options)
    result = found.read_now("cache", ReadRequest(from_seq=0))
    assert (result.count, result.tombstone, result.head_seq) == (3, None, 3)
    outcome = append(found, "cache")
    assert isinstance(outcome, AppendResult) and outcome.first_seq == 4


def test_a_power_cut_behind_such_a_start_is_one() -> None:
    """The mark of the clean stop is gone before the first seq is given out again."""
    fs = FaultyFileSystem(disk := FakeDisk())
    options = msgspec.structs.replace(OPTIONS, full_disk_reserve_bytes=0)
    engine = opened(fs, options=options)
    engine.put_topic("cache", TopicConfigPatch(durability=Durability.DISK), lambda outcome: None)
    assert isinstance(append(engine, "cache"), AppendResult)
    fs.plan = FaultPlan(fs.calls + 1, Fault.ENOSPC, lasting=True, only=frozenset(("create", "allocate", "make_dirs")))
    engine.close_inline()
    again = opened(disk := disk.crash(Survival.EVERYTHING), "boot", options)
    assert isinstance(append(again, "cache"), AppendResult)
    found = opened(disk.crash(Survival.NOTHING), "another boot", options)
    tombstone = found.read_now("cache", ReadRequest(from_seq=1)).tombstone
    assert tombstone is not None and tombstone.gap_from == 2


def test_a_start_on_a_full_disk_uses_the_reserve() -> None:
    disk = FakeDisk()
    engine = opened(disk)
    for _ in range(40):
        assert isinstance(append(engine, "topic", 1000), AppendResult)
    engine._lock.release()
    # Something else has taken the rest of the disk.
    disk.capacity_bytes = disk.used_bytes
    found = opened(disk)
    assert found.info("topic").head_seq == 40
    assert isinstance(append(found, "topic"), DiskFullError)


def test_a_start_without_any_room_states_that_the_disk_is_full() -> None:
    disk = FakeDisk()
    engine = opened(disk)
    for _ in range(200):
        assert isinstance(append(engine, "topic", 1000), AppendResult)
    engine._lock.release()
    before = opened(disk.clone()).info("topic").head_seq
    for call in (1, 5, 10, 15, 20):
        fs = FaultyFileSystem(disk.clone(), FaultPlan(call, Fault.ENOSPC, lasting=True, only=LACK_OF_ROOM))
        with pytest.raises(OSError, match="ENOSPC") as caught:
            opened(fs)
        assert caught.value.errno == errno.ENOSPC
        fs.plan = NO_FAULTS
        assert opened(fs).info("topic").head_seq == before


def test_a_topic_put_as_it_is_needs_no_room() -> None:
    _, engine, _ = full_engine()
    outcomes: list[object] = []
    engine.put_topic("large", TopicConfigPatch(durability=Durability.FSYNC), outcomes.append)
    assert isinstance(outcomes[0], PutResult)
