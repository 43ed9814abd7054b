"""Helpers for the tests of queues: synchronous, and the clock is moved by hand."""

import pytest

from tests.unit.conftest import DISK, one, open_engine, put
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.model.topic_config import TopicType
from topics.queues.leases import (
    AckResult,
    ClaimedJob,
    ClaimRequest,
    ClaimResult,
    ExtendRequest,
    ExtendResult,
    HeldRequest,
    NackRequest,
    NackResult,
    RedriveRequest,
    RedriveResult,
    WorkerRequest,
)
from topics.queues.queue_state import Worker
from topics.testing import FakeDisk, ManualClock

JOBS, DEAD = "jobs", "dead"


def make_queue(engine: Engine, queue: str = JOBS, /, **config: object) -> None:
    put(engine, queue, **{"type": TopicType.QUEUE, "durability": DISK, "lease_ms": 1000, **config})


def produce(engine: Engine, *values: object, name: str = JOBS, delay_ms: int = 0) -> AppendResult:
    answers: list[object] = []
    records = [value if isinstance(value, Record) else Record.of(value) for value in values]
    engine.append(name, Batch(records=records, delay_ms=delay_ms), answers.append)
    return one(answers, AppendResult)


def claim(engine: Engine, requested: int = 1, node: str = "a", lease_ms: int | None = None) -> list[ClaimedJob]:
    return one(ask_claim(engine, requested, node, lease_ms), ClaimResult).jobs


def ask_claim(engine: Engine, requested: int = 1, node: str = "a", lease_ms: int | None = None) -> list[object]:
    answers: list[object] = []
    engine.queues.claim(JOBS, ClaimRequest(node=node, max=requested, lease_ms=lease_ms), answers.append)
    return answers


def ack(engine: Engine, *seqs: int, node: str = "a", lease_ids: list[str] | None = None) -> AckResult:
    answers: list[object] = []
    engine.queues.ack(JOBS, HeldRequest(node=node, seqs=seqs, lease_ids=lease_ids), answers.append)
    return one(answers, AckResult)


def nack(
    engine: Engine, *seqs: int, node: str = "a", delay_ms: int = 0, reason: str = "", fatal: bool = False
) -> NackResult:
    answers: list[object] = []
    request = NackRequest(node=node, seqs=seqs, delay_ms=delay_ms, reason=reason, fatal=fatal)
    engine.queues.nack(JOBS, request, answers.append)
    return one(answers, NackResult)


def extend(engine: Engine, *seqs: int, node: str = "a", lease_ms: int = 5000) -> ExtendResult:
    answers: list[object] = []
    engine.queues.extend(JOBS, ExtendRequest(node=node, seqs=seqs, lease_ms=lease_ms), answers.append)
    return one(answers, ExtendResult)


def redrive(engine: Engine, most: int = 100, source: str | None = None) -> RedriveResult:
    answers: list[object] = []
    engine.queues.redrive(JOBS, RedriveRequest(max=most, source=source), answers.append)
    return one(answers, RedriveResult)


def counted(engine: Engine, name: str = JOBS) -> tuple[int, int, int, int]:
    """Ready, in flight, delayed, dead lettered."""
    found = engine.queues.counters(name)
    return found.ready, found.in_flight, found.delayed, found.dead_lettered


def job_seqs(jobs: list[ClaimedJob]) -> list[int]:
    return [job.seq for job in jobs]


class Hands:
    """A worker that records its jobs."""

    def __init__(self, engine: Engine, most: int = 1, node: str = "w", lease_ms: int | None = None) -> None:
        self.node = node
        self.pushes: list[list[int]] = []
        self.errors: list[TopicsError] = []
        request = WorkerRequest(node=node, max=most, lease_ms=lease_ms)
        self.worker: Worker = engine.queues.open_worker(JOBS, request, self._push, self.errors.append)

    def _push(self, jobs: list[ClaimedJob]) -> None:
        assert jobs
        self.pushes.append(job_seqs(jobs))

    @property
    def got(self) -> list[int]:
        return [seq for push in self.pushes for seq in push]


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
