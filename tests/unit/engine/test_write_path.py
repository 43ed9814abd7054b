"""The write path: decisions take effect in the order of the log, for readers as for a replay, or not at all."""

import random

import pytest

from tests.unit.conftest import (
    DISK,
    EPHEMERAL,
    MEMORY,
    append,
    ask_append,
    ask_delete,
    ask_put,
    batch_of,
    checkpoint,
    flush,
    hold,
    killed,
    logged,
    one,
    open_engine,
    put,
    read,
    seqs,
    topic,
)
from topics.engine.engine import Engine
from topics.engine.results import AppendResult, DeleteResult
from topics.log.frame import FrameKind
from topics.model.router_rules import DeleteSelector
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.testing import FakeDisk


def reported(engine: Engine, name: str) -> tuple[int, int] | None:
    tombstone = read(engine, name).tombstone
    return None if tombstone is None else (tombstone.gap_from, tombstone.gap_to)


def back_in_the_log(disk: FakeDisk) -> Engine:
    """An engine whose topic `t` has records 1 to 13 on the disk and 14 to 20 that were never logged."""
    engine = open_engine(disk)
    append(engine, "t", *range(13))
    put(engine, "t", durability=EPHEMERAL)
    append(engine, "t", *range(7))
    return engine


def test_a_cap_that_comes_with_a_delete_takes_what_the_delete_left(disk: FakeDisk) -> None:
    """Both in one write, and the process is killed before anything else is written."""
    engine = back_in_the_log(disk)
    hold(engine)
    ask_put(engine, "t", durability=DISK, cap_records=7)
    found: list[tuple[DeleteResult, FakeDisk]] = []

    def killed_now(outcome: object) -> None:
        assert isinstance(outcome, DeleteResult)
        found.append((outcome, killed(disk.clone())))

    engine.delete_records("t", DeleteSelector(14, None), killed_now)
    flush(engine)
    result, at_that_moment = found[0]
    after = open_engine(at_that_moment)
    # The delete reported every record to its client, so no reader needs a notice.
    assert result.deleted == 13
    assert reported(engine, "t") is None
    assert topic(after, "t").evict_floor == topic(engine, "t").evict_floor == 1
    assert [(lost.from_seq, lost.to_seq) for lost in topic(after, "t").lost or ()] == [(14, 20)]


def test_what_a_cap_takes_of_unlogged_records_stands_in_the_log_in_its_turn(disk: FakeDisk) -> None:
    engine = back_in_the_log(disk)
    put(engine, "t", durability=DISK, cap_records=5)
    assert seqs(engine, "t") == [16, 17, 18, 19, 20]
    append(engine, "t", "new")
    assert seqs(engine, "t") == [17, 18, 19, 20, 21]
    assert logged(engine)[-2:] == [FrameKind.APPEND, FrameKind.EVICT]
    after = open_engine(killed(disk.clone()))
    assert reported(after, "t") is not None
    assert seqs(after, "t", 20) == [21]


def test_a_delete_decided_before_a_cap_takes_anything_is_silent_in_a_replay_too(disk: FakeDisk) -> None:
    engine = back_in_the_log(disk)
    put(engine, "t", durability=DISK, cap_records=20)
    hold(engine)
    ask_append(engine, "t", *range(13))
    deleted = ask_delete(engine, "t", before_seq=14)
    flush(engine)
    assert one(deleted, DeleteResult).deleted == 13
    after = open_engine(killed(disk.clone()))
    assert reported(engine, "t") is None
    assert topic(after, "t").evict_floor == topic(engine, "t").evict_floor == 1


def test_from_a_snapshot_on_a_replay_finds_what_the_caps_take(disk: FakeDisk) -> None:
    engine = back_in_the_log(disk)
    put(engine, "t", durability=DISK, cap_records=10)
    assert topic(engine, "t").unlogged
    checkpoint(engine)
    assert not topic(engine, "t").unlogged
    append(engine, "t", *range(3))
    assert FrameKind.EVICT not in logged(engine)[1:]
    after = open_engine(killed(disk.clone()))
    assert seqs(after, "t") == seqs(engine, "t") == list(range(14, 24))
    assert reported(after, "t") == reported(engine, "t") == (1, 13)


def test_a_killed_process_knows_that_records_were_never_logged(disk: FakeDisk) -> None:
    """The snapshot was taken while they were not in it: until the log contains the change, each eviction is a frame."""
    engine = back_in_the_log(disk)
    checkpoint(engine)
    put(engine, "t", durability=DISK, cap_records=18)
    append(engine, "t", "new")
    after = open_engine(killed(disk.clone()))
    assert reported(engine, "t") == (1, 3)
    tombstone = read(after, "t").tombstone
    assert tombstone is not None
    assert tombstone.gap_from == 1
    assert seqs(after, "t", 20) == [21]


# No append waits for a sync that its class does not promise


def started(disk: FakeDisk) -> Engine:
    """An engine as a server has it: it has noted that it is about to give out seqs."""
    engine = open_engine(disk, disk_reserve_seqs=65_536, wal_file_bytes=1 << 24)
    engine.core.begin()
    return engine


def answered(engine: Engine, disk: FakeDisk, size: int) -> tuple[AppendResult, str]:
    """How an append was answered, and the last thing that the disk was asked before it was."""
    answers: list[object] = []
    calls: list[str] = []

    def done(outcome: object) -> None:
        answers.append(outcome)
        calls.extend(operation for operation, _ in disk.trace)

    disk.trace.clear()
    engine.append("t", batch_of(*([0] * size)), done)
    return one(answers, AppendResult), calls[-1] if calls else ""


@pytest.mark.parametrize("durability", [EPHEMERAL, MEMORY, DISK])
@pytest.mark.parametrize("seed", range(4))
def test_no_append_is_gated_on_a_sync(durability: Durability, seed: int) -> None:
    """Batches of 1 to 10,000 records, with checkpoints and kills between them, on the reserve that servers have."""
    rng, disk = random.Random(seed), FakeDisk()
    engine = started(disk)
    put(engine, "t", durability=durability)
    seen: set[int] = set()
    for _ in range(30):
        size = int(10 ** rng.uniform(0, 4))
        result, last_call = answered(engine, disk, size)
        # A new log file may come before the write of a batch; after the write nothing is waited for.
        assert (result.fsync_ms, last_call) == (0.0, "write" if durability.logged else ""), f"seed {seed}"
        new = range(result.first_seq, result.last_seq + 1)
        assert seen.isdisjoint(new), f"seed {seed}"
        seen.update(new)
        event = rng.random()
        if event < 0.1:
            checkpoint(engine)
        elif event < 0.2 and durability is not MEMORY:
            disk = killed(disk.clone())
            engine = started(disk)


@pytest.mark.parametrize("durability", [EPHEMERAL, MEMORY, DISK])
def test_the_sync_of_a_creation_is_not_the_records_own(engine: Engine, durability: Durability) -> None:
    result = append(engine, "new", 1, config=TopicConfigPatch(durability=durability))
    assert (result.created, result.fsync_ms) == (True, 0.0)
