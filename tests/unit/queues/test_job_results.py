"""Results of jobs: kept with the acknowledgement, for a time, over restarts, and within the memory budget."""

from typing import Any

import pytest

from tests.unit.conftest import append, ask_delete, ask_drop, checkpoint, killed, open_engine, put, topic
from topics.model.errors import InvalidRequestError, JobNotFoundError, ThrottledError
from topics.model.limits import Limits
from topics.model.topic_config import Durability, TopicType
from topics.queues.job_results import MAX_RESULT_BYTES
from topics.queues.leases import AckRequest, ClaimRequest, HeldRequest
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem, ManualClock

HOUR = 3_600_000


class World:
    def __init__(self, limits: Limits | None = None, **config: Any) -> None:
        self.disk, self.clock, self.limits = FakeDisk(), ManualClock(), limits or Limits()
        self.faulty = FaultyFileSystem(self.disk)
        self.engine = open_engine(self.faulty, self.clock, limits=self.limits)
        put(self.engine, "jobs", **{"type": TopicType.QUEUE, "result_retention_ms": HOUR, **config})

    def kill(self) -> None:
        self.disk = killed(self.disk)
        self.engine = open_engine(self.disk, self.clock, limits=self.limits)

    def claim(self) -> int:
        found: list[Any] = []
        self.engine.queues.claim("jobs", ClaimRequest(node="w", max=1), found.append)
        return int(found[0].jobs[0].seq)

    def ack(self, seq: int, result: bytes | None) -> Any:
        found: list[Any] = []
        self.engine.queues.ack("jobs", AckRequest(node="w", seqs=[seq], result=result), found.append)
        return found[0]

    def work(self, result: bytes | None = b'{"sum":3.50}') -> int:
        append(self.engine, "jobs", "x")
        seq = self.claim()
        assert self.ack(seq, result).acked == 1
        return seq

    def result(self, seq: int) -> tuple[str, bytes | None]:
        found = self.engine.queues.result("jobs", seq)
        return found.state, None if found.finished is None else found.finished.result


@pytest.fixture
def world() -> World:
    return World()


def test_a_result_is_kept_for_its_time(world: World) -> None:
    append(world.engine, "jobs", "x")
    assert world.result(1) == ("ready", None)
    seq = world.claim()
    assert world.result(seq) == ("leased", None)
    world.ack(seq, b'{"sum":3.50}')
    finished = world.engine.queues.result("jobs", seq).finished
    assert finished is not None and (finished.result, finished.node) == (b'{"sum":3.50}', "w")
    assert finished.at_ms == world.clock.now_ms()
    world.clock.advance(HOUR - 1)
    assert world.result(seq)[0] == "done"
    world.clock.advance(1)
    with pytest.raises(JobNotFoundError):
        world.result(seq)


def test_a_job_without_a_result_is_not_found_when_it_is_done(world: World) -> None:
    seq = world.work(None)
    for unknown in (seq, 0, 99):
        with pytest.raises(JobNotFoundError):
            world.result(unknown)


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.DISK])
@pytest.mark.parametrize("leases_durable", [False, True])
def test_results_survive_restarts_and_checkpoints(durability: Durability, leases_durable: bool) -> None:
    world = World(durability=durability, leases_durable=leases_durable)
    first = world.work(b"1")
    world.kill()
    assert world.result(first) == ("done", b"1")
    checkpoint(world.engine)
    second = world.work(b"2")
    world.kill()
    checkpoint(world.engine)
    world.kill()
    assert (world.result(first), world.result(second)) == (("done", b"1"), ("done", b"2"))
    world.clock.advance(HOUR)
    world.engine.housekeeper.tick()
    assert topic(world.engine, "jobs").kept_bytes == 0


def test_memory_of_results_is_counted_and_bounded() -> None:
    world = World(Limits(max_memory_bytes=40_000))
    seq = world.work(b'"' + b"x" * 37_000 + b'"')
    assert topic(world.engine, "jobs").kept_bytes > 20_000
    append(world.engine, "jobs", "y")
    claimed = world.claim()
    with pytest.raises(ThrottledError):
        world.ack(claimed, b'"' + b"x" * 30_000 + b'"')
    assert world.ack(claimed, None).acked == 1
    assert world.result(seq)[0] == "done"


def test_a_failed_acknowledgement_keeps_no_result(world: World) -> None:
    append(world.engine, "jobs", "x")
    seq = world.claim()
    world.faulty.plan = FaultPlan(call=world.faulty.calls + 1)
    world.ack(seq, b"1")
    world.kill()
    state, result = world.result(seq)
    assert (state, result) in {("ready", None), ("done", b"1")}


def test_waiters_are_called_when_the_job_is_gone(world: World) -> None:
    append(world.engine, "jobs", 1, 2, 3, 4)
    called: list[str] = []
    queues = world.engine.queues
    for seq, name in ((1, "acked"), (2, "deleted"), (3, "cancelled wait"), (4, "topic")):
        cancel = queues.wait_for_result("jobs", seq, lambda name=name: called.append(name))  # type: ignore[misc]
        if seq == 3:
            cancel()
    world.ack(world.claim(), b"1")
    assert called == ["acked"]
    ask_delete(world.engine, "jobs", before_seq=4)
    assert called == ["acked", "deleted"]
    ask_drop(world.engine, "jobs")
    assert called == ["acked", "deleted", "topic"]


def test_an_acknowledgement_in_a_group_keeps_its_result(world: World) -> None:
    append(world.engine, "jobs", 1, 2)
    seqs = [world.claim(), world.claim()]
    world.engine.queues.ack("jobs", HeldRequest(node="w", seqs=seqs[:1]), lambda answer: None)
    world.ack(seqs[1], b"2")
    assert world.result(seqs[1]) == ("done", b"2")


@pytest.mark.parametrize("result", [b"1", b'"' + b"x" * MAX_RESULT_BYTES + b'"'])
def test_an_invalid_result_is_refused(result: bytes) -> None:
    world = World(result_retention_ms=0 if result == b"1" else HOUR)
    append(world.engine, "jobs", "x")
    seq = world.claim()
    with pytest.raises(InvalidRequestError) as caught:
        world.ack(seq, result)
    assert caught.value.detail["field"] == "result"
    with pytest.raises(InvalidRequestError):
        world.engine.queues.ack("jobs", AckRequest(node="w", seqs=[1, 2], result=b"1"), lambda answer: None)
    assert world.ack(seq, None).acked == 1
