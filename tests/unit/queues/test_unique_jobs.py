"""Unique jobs: one job with a key at a time, over restarts, checkpoints and failed writes."""

from typing import Any

import pytest

from tests.unit.conftest import append, ask_delete, checkpoint, killed, open_engine, put, topic
from topics.engine.results import AppendResult
from topics.model.errors import InvalidRequestError, NotAQueueError, TopicsError
from topics.model.limits import MAX_UNIQUE_KEY_BYTES
from topics.model.records import Batch, Record
from topics.model.topic_config import Durability, TopicConfigPatch, TopicType
from topics.queues.leases import ClaimRequest, HeldRequest, NackRequest
from topics.queues.queue_state import find_queue
from topics.testing import FakeDisk, FaultPlan, FaultyFileSystem, ManualClock


class World:
    def __init__(self, **config: Any) -> None:
        self.disk, self.clock = FakeDisk(), ManualClock()
        self.faulty = FaultyFileSystem(self.disk)
        self.engine = open_engine(self.faulty, self.clock)
        put(self.engine, "jobs", type=TopicType.QUEUE, **config)

    def kill(self) -> None:
        self.disk = killed(self.disk)
        self.engine = open_engine(self.disk, self.clock)

    def ask(self, key: str | None = "k", queue: str = "jobs", **more: Any) -> list[AppendResult | TopicsError]:
        answers: list[AppendResult | TopicsError] = []
        batch = Batch(records=more.pop("records", [Record.of("x")]), unique_key=key, **more)
        self.engine.append(queue, batch, answers.append)
        return answers

    def produce(self, key: str | None = "k", **more: Any) -> tuple[int, bool]:
        (answer,) = self.ask(key, **more)
        assert isinstance(answer, AppendResult), answer
        assert answer.first_seq == answer.last_seq
        return answer.first_seq, answer.deduped

    def claim(self) -> int:
        found: list[Any] = []
        self.engine.queues.claim("jobs", ClaimRequest(node="w", max=1), found.append)
        (result,) = found
        return int(result.jobs[0].seq)

    def ack(self, seq: int) -> None:
        answers: list[Any] = []
        self.engine.queues.ack("jobs", HeldRequest(node="w", seqs=[seq]), answers.append)
        assert answers[0].acked == 1, answers

    def keys(self) -> dict[str, int]:
        queue = find_queue(topic(self.engine, "jobs"))
        return {} if queue is None else queue.keys.by_key


@pytest.fixture
def world() -> World:
    return World()


def test_a_key_gives_one_job_until_it_is_done(world: World) -> None:
    assert world.produce() == (1, False)
    assert world.produce() == (1, True)
    assert world.produce("other") == (2, False)
    seq = world.claim()
    assert world.produce() == (1, True), "while it is leased"
    world.ack(seq)
    assert world.produce() == (3, False)


def test_a_delayed_job_keeps_its_key(world: World) -> None:
    assert world.produce(delay_ms=60_000, priority=3) == (1, False)
    assert world.produce() == (1, True)
    world.clock.advance(60_000)
    seq = world.claim()
    world.engine.queues.nack("jobs", NackRequest(node="w", seqs=[seq], delay_ms=5_000), lambda answer: None)
    assert world.produce() == (1, True)


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.DISK])
@pytest.mark.parametrize("leases_durable", [False, True])
def test_keys_survive_restarts_and_checkpoints(durability: Durability, leases_durable: bool) -> None:
    world = World(durability=durability, leases_durable=leases_durable)
    world.produce("a")
    world.produce("b")
    world.kill()
    assert world.produce("a") == (1, True)
    checkpoint(world.engine)
    world.produce("c")
    seq = world.claim()
    world.ack(seq)
    world.kill()
    assert world.keys() == {"b": 2, "c": 3}
    checkpoint(world.engine)
    world.kill()
    assert world.produce("b") == (2, True) and world.produce("a") == (4, False)


def test_a_lost_job_of_an_ephemeral_queue_frees_its_key() -> None:
    world = World(durability=Durability.EPHEMERAL)
    seq, _ = world.produce()
    assert world.produce() == (seq, True)
    world.kill()
    assert not world.produce()[1]


def test_a_deleted_evicted_or_moved_job_frees_its_key() -> None:
    world = World(cap_records=2, max_deliveries=1, dead_letter="dead")
    put(world.engine, "dead")
    world.produce("a")
    append(world.engine, "jobs", 1, 2)
    assert world.produce("a") == (4, False), "evicted by the cap"
    ask_delete(world.engine, "jobs", before_seq=5)
    assert world.keys() == {}
    world.produce("m")
    seq = world.claim()
    world.engine.queues.nack("jobs", NackRequest(node="w", seqs=[seq]), lambda answer: None)
    world.clock.advance(1_000)
    world.engine.queues.claim("jobs", ClaimRequest(node="w", max=1), lambda answer: None)
    assert topic(world.engine, "dead").live_count == 1
    assert not world.produce("m")[1]


def test_many_evicted_keys_are_purged() -> None:
    world = World(cap_records=5)
    for number in range(2_100):
        world.produce(f"k{number}")
    assert len(world.keys()) <= 1_011


def test_memory_of_keys_is_counted(world: World) -> None:
    world.produce("x" * 200)
    assert topic(world.engine, "jobs").kept_bytes > 400
    ask_delete(world.engine, "jobs", before_seq=2)
    assert topic(world.engine, "jobs").kept_bytes == 0


def test_a_failed_append_frees_its_key(world: World) -> None:
    world.faulty.plan = FaultPlan(call=world.faulty.calls + 1)
    (answer,) = world.ask()
    assert isinstance(answer, TopicsError)
    world.kill()
    world.produce()
    assert world.produce()[1] and len(world.keys()) == 1


def test_a_queue_is_created_with_its_first_unique_job(world: World) -> None:
    patch = TopicConfigPatch(type=TopicType.QUEUE)
    (answer,) = world.ask(queue="new", config=patch)
    assert isinstance(answer, AppendResult) and answer.created
    (again,) = world.ask(queue="new", config=patch)
    assert isinstance(again, AppendResult) and (again.deduped, again.first_seq) == (True, 1)


def test_a_repetition_waits_for_the_append_in_flight(world: World) -> None:
    first: list[Any] = []
    second: list[Any] = []
    held: list[Any] = []
    append_now = world.engine._append
    world.engine._append = lambda name, batch, done: held.append((name, batch, done))  # type: ignore[method-assign]
    batch = Batch(records=[Record.of("x")], unique_key="k")
    world.engine.append("jobs", batch, first.append)
    world.engine.append("jobs", batch, second.append)
    assert len(held) == 1 and not second
    append_now(*held[0])
    assert (first[0].deduped, second[0].deduped, second[0].first_seq) == (False, True, first[0].first_seq)


@pytest.mark.parametrize("key", ["", "x" * (MAX_UNIQUE_KEY_BYTES + 1), "\ud800"])
def test_an_invalid_key_is_refused(world: World, key: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        world.ask(key)
    assert caught.value.detail["field"] == "unique_key"


def test_a_key_needs_one_record_and_a_queue(world: World) -> None:
    with pytest.raises(InvalidRequestError):
        world.ask(records=[Record.of(1), Record.of(2)])
    put(world.engine, "log")
    with pytest.raises(NotAQueueError):
        world.ask(queue="log")
    with pytest.raises(NotAQueueError):
        world.ask(queue="log")
