"""Routers into queues and out of dead-letter topics: a copy is a job like any other, a moved job a record like any."""

from tests.unit.conftest import Answers, append, killed, open_engine, put, seqs, values
from tests.unit.routers.conftest import go_on, route
from topics.engine.engine import Engine
from topics.model.topic_config import TopicType
from topics.queues.leases import ClaimRequest, ClaimResult, HeldRequest
from topics.testing import FakeDisk, ManualClock


def claim(engine: Engine, count: int) -> list[int]:
    answers: Answers = []
    engine.queues.claim("jobs", ClaimRequest(node="w", max=count), answers.append)
    (answer,) = answers
    assert isinstance(answer, ClaimResult)
    return [job.seq for job in answer.jobs]


def acknowledge(engine: Engine, *acked: int) -> None:
    engine.queues.ack("jobs", HeldRequest(node="w", seqs=acked), lambda answer: None)


def queue(engine: Engine, **config: object) -> None:
    put(engine, "jobs", type=TopicType.QUEUE, lease_ms=1000, **config)


def test_copies_are_jobs(disk: FakeDisk) -> None:
    engine = open_engine(disk, wal_shards=3)
    queue(engine)
    route(engine, "a", "jobs")
    append(engine, "a", "x", "y")
    append(engine, "jobs", "direct")
    assert claim(engine, 2) == [1, 2]
    acknowledge(engine, 1)
    found = go_on(open_engine(killed(disk), wal_shards=3))
    assert values(found, "jobs") == ["y", "direct"]
    assert seqs(found, "jobs") == [2, 3]
    append(found, "a", "z")
    assert values(found, "jobs") == ["y", "direct", "z"]


def test_a_worker_that_waits_gets_a_copy(engine: Engine) -> None:
    queue(engine, claim_jitter_ms=0)
    route(engine, "a", "jobs")
    assert claim(engine, 1) == []
    append(engine, "a", "x")
    assert claim(engine, 1) == [1]


def test_moved_jobs_are_forwarded_and_made_again(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock, wal_shards=3)
    queue(engine, max_deliveries=1, dead_letter="dead")
    put(engine, "dead")
    route(engine, "dead", "archive")
    append(engine, "jobs", "x", "y")
    assert claim(engine, 2) == [1, 2]
    clock.advance(5000)
    assert claim(engine, 2) == []
    assert values(engine, "archive") == ["x", "y"]
    found = open_engine(killed(disk), clock, wal_shards=3)
    assert values(found, "archive") == ["x", "y"]
    assert values(found, "dead") == ["x", "y"]
