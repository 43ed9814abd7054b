"""A lack of descriptors or memory is never taken for damage, by readers or by a start."""

import errno

import pytest

from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.model.errors import SystemBusyError, TopicsError
from topics.model.records import Batch, Record
from topics.model.router_rules import DeleteSelector, TagMatch
from topics.model.topic_config import TopicConfigPatch, TopicType
from topics.queues.leases import ClaimRequest
from topics.testing import (
    LACK_OF_DESCRIPTORS,
    NO_FAULTS,
    FakeDisk,
    Fault,
    FaultPlan,
    FaultyFileSystem,
    ManualClock,
    SeededEntropy,
)

OPTIONS = EngineOptions(data_dir="data", wal_shards=1, wal_file_bytes=64 * 1024, segment_max_events=5)
each_shortage = pytest.mark.parametrize("fault", [Fault.EMFILE, Fault.ENOMEM, Fault.EINTR], ids=lambda f: str(f.name))


def opened(fs: FakeDisk | FaultyFileSystem, clock: ManualClock | None = None) -> Engine:
    return Engine.recover(fs, OPTIONS, clock or ManualClock(), SeededEntropy(1), boot_id="boot")


def filled(fs: FakeDisk | FaultyFileSystem, clock: ManualClock | None = None) -> Engine:
    """Two topics in sealed segments, one with deletes in them."""
    engine = opened(fs, clock)
    engine.put_topic("queue", TopicConfigPatch(type=TopicType.QUEUE), lambda outcome: None)
    for name in ("log", "queue"):
        for number in range(12):
            engine.append(name, Batch(records=[Record.of(number, tag=f"t{number}")]), lambda outcome: None)
    engine.delete_records("log", DeleteSelector(None, TagMatch("t3")), lambda outcome: None)
    engine.run_job(engine.checkpointer.job())
    return engine


def lacking(fs: FaultyFileSystem, fault: Fault) -> FaultPlan:
    only = LACK_OF_DESCRIPTORS if fault is Fault.EMFILE else frozenset[str]()
    return FaultPlan(fs.calls + 1, fault, lasting=True, include_reads=True, only=only)


@each_shortage
def test_a_read_that_finds_none_is_refused_for_now(fault: Fault) -> None:
    fs = FaultyFileSystem(FakeDisk())
    engine = filled(fs)
    engine.core.store._close_all()
    fs.plan = lacking(fs, fault)
    with pytest.raises(SystemBusyError):
        engine.read_now("log", ReadRequest(from_seq=0, limit=100))
    # Records in memory are still returned.
    assert engine.read_now("log", ReadRequest(from_seq=10)).count == 2
    fs.plan = NO_FAULTS
    assert engine.read_now("log", ReadRequest(from_seq=0, limit=100)).count == 11


@each_shortage
def test_jobs_that_cannot_be_read_now_are_handed_out_later(fault: Fault) -> None:
    fs, clock = FaultyFileSystem(FakeDisk()), ManualClock()
    engine = filled(fs, clock)
    engine.core.store._close_all()
    fs.plan = lacking(fs, fault)
    outcomes: list[object] = []

    def claim() -> None:
        try:
            engine.queues.claim("queue", ClaimRequest(node="worker", max=3), outcomes.append)
        except TopicsError as error:
            outcomes.append(error)

    claim()
    assert isinstance(outcomes[-1], SystemBusyError), outcomes
    fs.plan = NO_FAULTS
    clock.advance(60_000)
    claim()
    reported = outcomes[-1]
    assert not isinstance(reported, TopicsError)
    assert [job.seq for job in reported.jobs] == [1, 2, 3]


@each_shortage
def test_a_start_states_what_is_missing_and_the_next_one_finds_everything(fault: Fault) -> None:
    """At each of its calls, including calls that only read."""
    disk = FakeDisk()
    engine = filled(disk)
    engine.append("log", Batch(records=[Record.of("unsealed")]), lambda outcome: None)
    engine._lock.release()
    call, failed = 0, True
    while failed:
        call += 1
        fs = FaultyFileSystem(disk.clone(), FaultPlan(call, fault, include_reads=True))
        try:
            found = opened(fs)
        except OSError as error:
            assert error.errno == getattr(errno, fault.name), error
            fs.plan = NO_FAULTS
            found = opened(fs)
        fs.plan = NO_FAULTS
        assert found.read_now("log", ReadRequest(from_seq=0, limit=100)).count == 12, call
        failed = fs.failed > 0
    assert call > 30
