"""Jobs in transactions: their priorities, delays and start times count from the commit on."""

from collections.abc import Iterator

import pytest

from tests.unit.conftest import FSYNC, drop, killed, open_engine, put, values
from tests.unit.queues.conftest import JOBS, claim, counted, job_seqs, make_queue
from tests.unit.transactions.conftest import ask_commit, begin, commit, ref, stage
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.model.errors import InvalidRequestError, NotAQueueError
from topics.model.topic_config import TopicConfigPatch, TopicType
from topics.queues.queue_frames import JobTerms
from topics.queues.queue_state import find_queue
from topics.testing import FakeDisk, ManualClock, PowerCut, SeededEntropy, Survival


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(disk: FakeDisk, clock: ManualClock) -> Engine:
    engine = open_engine(disk, clock)
    make_queue(engine)
    return engine


def test_staged_jobs_have_their_priority_and_their_delay_from_the_commit_on(
    engine: Engine, disk: FakeDisk, clock: ManualClock
) -> None:
    begin(engine)
    stage(engine, JOBS, "usual")
    stage(engine, JOBS, "urgent", "urgent", terms=JobTerms(priority=5))
    stage(engine, JOBS, "later", terms=JobTerms(delay_ms=1000, priority=9))
    stage(engine, JOBS, "soon", terms=JobTerms(run_at=clock.now_ms() + 600))
    stage(engine, JOBS, "usual")
    clock.advance(500)
    disk = killed(disk)
    engine = open_engine(disk, clock)
    commit(engine)
    assert values(engine, JOBS) == ["usual", "urgent", "urgent", "later", "soon", "usual"]
    assert counted(engine) == (4, 0, 2, 0)
    clock.advance(100)
    disk = killed(disk)
    engine = open_engine(disk, clock)
    assert counted(engine) == (5, 0, 1, 0)
    clock.advance(900)
    assert job_seqs(claim(engine, 9)) == [4, 2, 3, 1, 5, 6]


def test_a_topic_that_is_no_queue_is_refused(engine: Engine) -> None:
    put(engine, "log")
    begin(engine)
    for name, config in (("log", None), ("new", None), ("new", TopicConfigPatch())):
        with pytest.raises(NotAQueueError):
            stage(engine, name, 1, terms=JobTerms(priority=1), config=config)
    with pytest.raises(InvalidRequestError):
        stage(engine, JOBS, 1, terms=JobTerms(priority=1001))
    stage(engine, "new", 1, terms=JobTerms(priority=1), config=TopicConfigPatch(type=TopicType.QUEUE))
    commit(engine)
    assert engine.queues.counters("new").ready == 1


def test_a_topic_that_became_a_log_refuses_the_commit(engine: Engine) -> None:
    begin(engine)
    stage(engine, JOBS, 1, terms=JobTerms(priority=1))
    drop(engine, JOBS)
    put(engine, JOBS)
    [refused] = ask_commit(engine)
    assert isinstance(refused, NotAQueueError)
    assert values(engine, JOBS) == []


def test_a_stop_at_any_call_leaves_all_jobs_with_their_priority_or_none() -> None:
    last = len(list(_lives(None)))
    for call in range(1, last + 2):
        for engine, committed in _lives(call):
            table = find_queue(engine.core.existing(JOBS))
            priorities = dict(table.lease_table.priorities.by_seq) if table is not None else {}
            live = values(engine, JOBS)
            assert live in (["a"], ["a", "b", "c", "d"]) and (not committed or len(live) == 4), call
            seqs = [seq for seq in range(1, 30) if seq in priorities]
            assert len(seqs) == (2 if len(live) == 4 else 0), (call, priorities)
            assert len(job_seqs(claim(engine, 9))) == len(live), call


def _lives(stop: int | None) -> Iterator[tuple[Engine, bool]]:
    """Recovered engines after a stop before a call; without one, a value for each call."""
    disk, clock = FakeDisk(stop_before=stop), ManualClock()
    options = EngineOptions(data_dir="data", wal_shards=2, wal_file_bytes=16384)
    ready = committed = False
    try:
        engine = Engine.recover(disk, options, clock, SeededEntropy(1), boot_id="one")
        make_queue(engine, durability=FSYNC)
        put(engine, "other", durability=FSYNC)
        begin(engine)
        stage(engine, JOBS, "a")
        commit(engine)
        ready = True
        begin(engine, sequence=2)
        stage(engine, JOBS, "b", "c", ref=ref(sequence=2), terms=JobTerms(priority=3))
        stage(engine, JOBS, "d", ref=ref(sequence=2))
        stage(engine, "other", "e", ref=ref(sequence=2))
        commit(engine, ref(sequence=2))
        committed = True
        engine.run_job(engine.checkpointer.job())
    except PowerCut:
        pass
    if stop is None:
        for _ in range(disk.call_count):
            yield engine, committed
        return
    if ready:
        for survival in (Survival.EVERYTHING, Survival.NOTHING):
            crashed = disk.clone().crash(survival)
            yield Engine.recover(crashed, options, clock, SeededEntropy(2), boot_id="one"), committed
