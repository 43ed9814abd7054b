"""Queues across restarts: their state in snapshots and in the log."""

import pytest

from tests.unit.conftest import (
    DISK,
    FSYNC,
    after_power_cut,
    checkpoint,
    delete,
    drop,
    flush,
    hold,
    killed,
    logged,
    open_engine,
    put,
    topic,
)
from tests.unit.queues.conftest import DEAD, JOBS, ack, claim, counted, extend, job_seqs, make_queue, nack, produce
from topics.engine.engine import Engine
from topics.log.frame import FrameKind
from topics.log.layout import Layout
from topics.log.snapshot_files import TopicState
from topics.model.topic_config import Durability, TopicType
from topics.ops.repair.repair import Repair, verify
from topics.ops.verify.verification import state_problems
from topics.queues.leases import HeldRequest
from topics.queues.queue_frames import Ending, LeaseState, QueuePart, encode_delay, encode_part
from topics.testing import FakeDisk, ManualClock, SeededEntropy

how = pytest.mark.parametrize("end", ["kill", "stop", "checkpoint and kill"])


def restart(engine: Engine, disk: FakeDisk, clock: ManualClock, end: str, **options: object) -> tuple[Engine, FakeDisk]:
    if end == "stop":
        engine.close_inline()
    elif end.startswith("checkpoint"):
        assert checkpoint(engine)
    disk = killed(disk)
    return open_engine(disk, clock, **options), disk  # type: ignore[arg-type]


@how
def test_durable_leases_survive_with_their_tokens_and_counts(disk: FakeDisk, clock: ManualClock, end: str) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, leases_durable=True)
    produce(engine, *range(6))
    jobs = claim(engine, 5)
    ack(engine, 1)
    nack(engine, 2)
    nack(engine, 3, delay_ms=500)
    extend(engine, 4, lease_ms=7000)
    for _ in range(2):
        engine, disk = restart(engine, disk, clock, end)
        assert counted(engine) == (2, 2, 1, 0)
        leases = engine.queues.list_leases(JOBS).leases
        assert [(lease.seq, lease.deadline - clock.now_ms()) for lease in leases] == [(4, 7000), (5, 1000)]
    assert ack(engine, 4, 5, lease_ids=["lease_1", jobs[4].lease_id]).skipped == [4]
    assert [(job.seq, job.deliveries) for job in claim(engine, 9)] == [(2, 2), (6, 1)]
    clock.advance(500)
    assert [(job.seq, job.deliveries) for job in claim(engine, 9)] == [(3, 2)]


@how
def test_leases_that_are_not_durable_end_with_the_process(disk: FakeDisk, clock: ManualClock, end: str) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine)
    produce(engine, 1, 2, 3)
    claim(engine, 3)
    ack(engine, 1)
    nack(engine, 2, delay_ms=500)
    engine, _ = restart(engine, disk, clock, end)
    assert counted(engine) == (2, 0, 0, 0)
    assert [(job.seq, job.deliveries) for job in claim(engine, 9)] == [(2, 1), (3, 1)]


@how
@pytest.mark.parametrize("leases_durable", [True, False])
def test_delayed_jobs_survive(disk: FakeDisk, clock: ManualClock, end: str, leases_durable: bool) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, leases_durable=leases_durable)
    produce(engine, 1, 2, delay_ms=800)
    produce(engine, 3)
    for _ in range(2):
        engine, disk = restart(engine, disk, clock, end)
        assert counted(engine) == (1, 0, 2, 0)
    clock.advance(799)
    assert job_seqs(claim(engine, 9)) == [3]
    clock.advance(1)
    assert job_seqs(claim(engine, 9)) == [1, 2]


def test_only_durable_leases_are_logged(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    for name, durable in ((JOBS, False), ("sure", True)):
        make_queue(engine, name, leases_durable=durable)
    produce(engine, 1, 2)
    before = len(logged(engine))
    claim(engine, 2)
    nack(engine, 1)
    extend(engine, 2)
    assert logged(engine)[before:] == []
    put(engine, JOBS, leases_durable=True)
    before = len(logged(engine))
    claim(engine)
    extend(engine, 1, 2)
    nack(engine, 1, 2)
    assert logged(engine)[before:] == [FrameKind.LEASE] * 3


def test_durable_leases_of_class_fsync_survive_a_power_cut(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, durability=FSYNC, leases_durable=True)
    produce(engine, 1, 2)
    claim(engine)
    again = open_engine(after_power_cut(disk), clock, boot_id="b")
    assert counted(again) == (1, 1, 0, 0)


def test_a_checkpoint_between_a_decision_and_its_frame_counts_nothing_twice(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, leases_durable=True)
    produce(engine, 1, 2)
    claim(engine)
    nack(engine, 1)
    hold(engine)
    answers: list[object] = []
    engine.queues.ack(JOBS, HeldRequest(node="a", seqs=[1]), answers.append)
    flush(engine)
    claim(engine, 2)
    assert checkpoint(engine)
    nack(engine, 1)
    again = open_engine(killed(disk), clock)
    assert [(job.seq, job.deliveries) for job in claim(again, 9, node="b")] == [(1, 3)]


def test_a_snapshot_taken_while_an_ack_is_on_its_way_has_the_lease(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, leases_durable=True)
    produce(engine, 1)
    claim(engine)
    hold(engine)
    engine.queues.ack(JOBS, HeldRequest(node="a", seqs=[1]), lambda answer: None)
    part = engine.core.features.save(topic(engine, JOBS))
    flush(engine)
    loaded = open_engine(FakeDisk(), clock)
    make_queue(loaded)
    loaded.core.features.load(topic(loaded, JOBS), part)
    assert [lease.seq for lease in loaded.queues.list_leases(JOBS).leases] == [1]


def test_deleted_jobs_leave_no_state(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, leases_durable=True)
    produce(engine, *range(4))
    claim(engine, 4)
    nack(engine, 4)
    delete(engine, JOBS, before_seq=5)
    assert engine.core.features.save(topic(engine, JOBS)) == {}
    again = open_engine(killed(disk), clock)
    assert counted(again) == (0, 0, 0, 0)


def test_a_delay_whose_jobs_were_lost_is_forgotten(disk: FakeDisk, clock: ManualClock) -> None:
    """The log ends between the frame of the delay and the frame of its jobs."""
    engine = open_engine(disk, clock)
    make_queue(engine, durability=Durability.MEMORY)
    engine.core.path.note(topic(engine, JOBS), FrameKind.DELAY, encode_delay(Ending(clock.now_ms() + 5000, 5000), 1, 3))
    again = open_engine(killed(disk), clock)
    assert counted(again) == (0, 0, 0, 0)
    produce(again, 1)
    assert job_seqs(claim(again)) == [1]


def test_the_queue_of_a_deleted_topic_is_gone_from_the_log(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    make_queue(engine, leases_durable=True)
    produce(engine, 1)
    claim(engine)
    drop(engine, JOBS)
    make_queue(engine)
    again = open_engine(killed(disk), clock)
    assert counted(again) == (0, 0, 0, 0)


# The tools


def busy_queue(disk: FakeDisk, clock: ManualClock) -> Engine:
    engine = open_engine(disk, clock, wal_shards=2)
    make_queue(engine, leases_durable=True, max_deliveries=1, dead_letter=DEAD, durability=DISK)
    produce(engine, *range(5))
    claim(engine, 3)
    nack(engine, 1, 2)
    claim(engine)
    produce(engine, 9, delay_ms=5000)
    return engine


@pytest.mark.parametrize("end", ["kill", "checkpoint and kill"])
def test_verify_finds_nothing_wrong_with_a_queue(disk: FakeDisk, clock: ManualClock, end: str) -> None:
    engine = busy_queue(disk, clock)
    if end != "kill":
        checkpoint(engine)
    report = verify(killed(disk), Layout("data", None), "a")
    assert report.sound, report.findings


def test_repair_keeps_what_is_not_damaged(disk: FakeDisk, clock: ManualClock) -> None:
    """A frame of another topic is damaged; the queue, its leases and its dead letters are as they were."""
    engine = busy_queue(disk, clock)
    before = counted(engine), [lease.seq for lease in engine.queues.list_leases(JOBS).leases]
    checkpoint(engine)
    put(engine, "other", type=TopicType.LOG)
    produce(engine, "z" * 100, name="other")
    produce(engine, "y" * 100, name="other")
    engine._lock.release()
    disk = killed(disk)
    shard = topic(engine, "other").shard
    folder = Layout("data", None).shard(shard)
    name = sorted(disk.list_dir(folder))[-1]
    file = disk.open(f"{folder}/{name}", write=True)
    whole = bytes(file.read_at(0, file.size()))
    file.write_at(whole.index(b"zzzz"), b"A")
    file.sync()
    assert not verify(disk, Layout("data", None), "a").sound
    report = Repair(disk, Layout("data", None), clock, SeededEntropy(1), "a").run()
    assert report.after is not None and report.after.sound
    again = open_engine(disk, clock, wal_shards=2)
    assert (counted(again), [lease.seq for lease in again.queues.list_leases(JOBS).leases]) == before


def test_verify_reports_a_part_that_contradicts_itself(disk: FakeDisk, clock: ManualClock) -> None:
    def problems(part: bytes) -> list[str]:
        state = TopicState(1, "t", 1, b"{}", 5, 0, 1, 1, 1, 1, 0, 0, 0, 0, [], [], [], [], {"queue": part})
        return list(state_problems(state, []))

    lease = LeaseState(3, "a", 1, 9, 1)
    assert problems(encode_part(QueuePart(0, [(1, 5)], [lease], [(2, 1)]))) == []
    assert problems(encode_part(QueuePart(0, [], [lease, lease], []))) != []
    assert problems(encode_part(QueuePart(0, [(3, 5)], [lease], []))) != []
    assert problems(encode_part(QueuePart(0, [], [], [(9, 1)]))) != []
    assert problems(b"\xff") != []
