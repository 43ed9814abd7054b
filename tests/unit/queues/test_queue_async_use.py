"""Queues under a real event loop, with threads, on a real disk, while checkpoints are taken.

No test looks at how long anything takes; the timeouts are there so that a lost wake-up fails a test instead of hanging
it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.log.posix import PosixFileSystem
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.model.topic_config import Durability, TopicConfigPatch, TopicType
from topics.queues.leases import (
    ClaimedJob,
    ClaimRequest,
    ClaimResult,
    HeldRequest,
    NackRequest,
    RedriveRequest,
    RedriveResult,
    WorkerRequest,
)
from topics.queues.queue_state import Worker
from topics.system.clock import SystemClock
from topics.testing import SeededEntropy

HANG_S = 30
JOBS, DEAD = "jobs", "dead"


def open_engine(folder: Path) -> Engine:
    options = EngineOptions(data_dir=str(folder / "data"), wal_shards=2, wal_file_bytes=1 << 20, segment_max_events=100)
    return Engine.recover(PosixFileSystem(), options, SystemClock(), SeededEntropy(1), boot_id="a")


class Plant:
    """Workers that poll and workers that are pushed to. Every seventh value is never done."""

    def __init__(self, engine: Engine, total: int) -> None:
        self.engine = engine
        self.loop = asyncio.get_running_loop()
        self.done: Counter[int] = Counter()
        self.total = total
        self.finished: asyncio.Future[None] = self.loop.create_future()
        self.workers: list[Worker] = []

    def poll(self, node: str) -> None:
        def claimed(outcome: ClaimResult | TopicsError) -> None:
            assert isinstance(outcome, ClaimResult)
            self.work(node, outcome.jobs)
            if not self.finished.done():
                self.loop.call_later(0.001, self.poll, node)

        if not self.finished.done():
            self.engine.queues.claim(JOBS, ClaimRequest(node=node, max=8), claimed)

    def push(self, node: str) -> None:
        request = WorkerRequest(node=node, max=5)
        worker = self.engine.queues.open_worker(JOBS, request, lambda jobs: self.work(node, jobs), lambda error: None)
        self.workers.append(worker)

    def work(self, node: str, jobs: list[ClaimedJob]) -> None:
        good: list[int] = []
        bad: list[int] = []
        for job in jobs:
            value = msgspec.json.decode(job.fragment)["data"]
            (bad if value % 7 == 0 else good).append(job.seq)
            if value % 7:
                self.done[value] += 1
        if good:
            self.engine.queues.ack(JOBS, HeldRequest(node=node, seqs=good), self._settled)
        if bad:
            self.engine.queues.nack(JOBS, NackRequest(node=node, seqs=bad), self._settled)

    def _settled(self, outcome: object) -> None:
        assert not isinstance(outcome, TopicsError) and not outcome.skipped  # type: ignore[attr-defined]

    def look(self) -> None:
        if len(self.done) == self.total and not self.engine.info(JOBS).count:
            self.finished.set_result(None)
        else:
            self.loop.call_later(0.01, self.look)


async def ask(start: Callable[[Callable[[object], None]], object]) -> Any:
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    start(answer.set_result)
    return await asyncio.wait_for(answer, HANG_S)


async def produce(engine: Engine, *values: int) -> None:
    records = [Record.of(value, meta={"v": value}) for value in values]
    await ask(lambda done: engine.append(JOBS, Batch(records=records), done))


async def claim(engine: Engine, node: str, requested: int = 1, lease_ms: int | None = None) -> list[ClaimedJob]:
    request = ClaimRequest(node=node, max=requested, lease_ms=lease_ms)
    answer = await ask(lambda done: engine.queues.claim(JOBS, request, done))
    assert isinstance(answer, ClaimResult)
    return answer.jobs


@pytest.mark.parametrize("leases_durable", [False, True])
@pytest.mark.parametrize("durability", [Durability.DISK, Durability.FSYNC], ids=lambda durability: durability.value)
def test_every_job_is_done_once_or_ends_as_a_dead_letter(
    tmp_path: Path, durability: Durability, leases_durable: bool
) -> None:
    count = 300
    dead = [value for value in range(count) if value % 7 == 0]

    async def life() -> None:
        engine = open_engine(tmp_path)
        engine.start(asyncio.get_running_loop())
        patch = TopicConfigPatch(
            type=TopicType.QUEUE, durability=durability, leases_durable=leases_durable, lease_ms=60_000,
            max_deliveries=2, dead_letter=DEAD,
        )  # fmt: skip
        await ask(lambda done: engine.put_topic(JOBS, patch, done))
        plant = Plant(engine, count - len(dead))
        for number in range(3):
            plant.poll(f"poll{number}")
            plant.push(f"push{number}")
        for first in range(0, count, 5):
            await produce(engine, *range(first, first + 5))
            if first % 60 == 0:
                await ask(lambda done: engine.run_job(engine.checkpointer.job(then=done)))
        plant.look()
        await asyncio.wait_for(plant.finished, HANG_S)
        assert set(plant.done.values()) == {1}
        assert engine.queues.counters(JOBS).dead_lettered == len(dead)
        for worker in plant.workers:
            worker.close()
        outcome = await ask(lambda done: engine.queues.redrive(JOBS, RedriveRequest(max=5), done))
        assert isinstance(outcome, RedriveResult) and outcome.moved == 5
        await engine.close()

    asyncio.run(life())
    engine = open_engine(tmp_path)
    found = {
        name: [record["data"] for record in engine.read_now(name, ReadRequest(limit=1000)).records()]
        for name in (JOBS, DEAD)
    }
    assert len(found[JOBS]) == 5 and sorted(found[JOBS] + found[DEAD]) == dead  # type: ignore[type-var]
    assert engine.queues.counters(JOBS).dead_lettered == len(dead)
    engine.close_inline()


def test_a_window_closes_by_itself(tmp_path: Path) -> None:
    async def life() -> None:
        engine = open_engine(tmp_path)
        engine.start(asyncio.get_running_loop())
        patch = TopicConfigPatch(type=TopicType.QUEUE, claim_jitter_ms=20)
        await ask(lambda done: engine.put_topic(JOBS, patch, done))
        await produce(engine, *range(4))
        hands = await asyncio.gather(claim(engine, "a", 4), claim(engine, "b", 4))
        assert [len(hand) for hand in hands] == [2, 2]
        await engine.close()

    asyncio.run(life())


def test_an_expired_lease_reaches_a_waiting_worker_by_itself(tmp_path: Path) -> None:
    async def life() -> None:
        engine = open_engine(tmp_path)
        engine.start(asyncio.get_running_loop())
        await ask(lambda done: engine.put_topic(JOBS, TopicConfigPatch(type=TopicType.QUEUE), done))
        await produce(engine, 1)
        await claim(engine, "slow", lease_ms=100)
        pushed: asyncio.Future[list[ClaimedJob]] = asyncio.get_running_loop().create_future()
        engine.queues.open_worker(JOBS, WorkerRequest(node="w"), pushed.set_result, lambda error: None)
        (job,) = await asyncio.wait_for(pushed, HANG_S)
        assert job.deliveries == 2
        await engine.close()

    asyncio.run(life())
