"""Routers with the log's threads at work, where forwards, checkpoints and answers truly overlap."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from tests.unit.conftest import LOCAL
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.log.posix import PosixFileSystem
from topics.model.records import Batch, Record
from topics.model.router_rules import Guarantee, RouterRules, RouterWish
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy

HANG_S = 60.0


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), HANG_S)

    uvloop.run(bounded())


async def asked(ask: Callable[[Callable[[object], None]], object]) -> object:
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    ask(done.set_result)
    answer = await done
    assert not isinstance(answer, Exception), answer
    return answer


async def append(engine: Engine, name: str, *values: object) -> None:
    batch = Batch(records=[Record.of(value) for value in values])
    await asked(lambda done: engine.append(name, batch, done))


async def arrived(engine: Engine, name: str, count: int) -> list[object]:
    """The records of a topic, once there are as many."""
    while engine.core.directory.load(name).head < count:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        engine.watch(name, lambda done=done: done.set_result(None))  # type: ignore[misc]
        await done
    result = engine.read_now(name, ReadRequest(limit=1000))
    return [record["data"] for record in result.records()]


def opened(folder: Path, **options: object) -> Engine:
    settings = EngineOptions(data_dir=str(folder / "data"), **{"wal_shards": 3, **options})  # type: ignore[arg-type]
    return Engine.recover(PosixFileSystem(), settings, SystemClock(), SystemEntropy(), boot_id="b")


async def route(engine: Engine, source: str, dest: str, from_seq: int | None = None, **rules: object) -> None:
    wish = RouterWish(source=source, dest=dest, from_seq=from_seq, rules=RouterRules(**rules))  # type: ignore[arg-type]
    await asked(lambda done: engine.put_router(f"{source}->{dest}", wish, done))


@pytest.mark.parametrize("durability", LOCAL)
def test_a_fan_out_of_many_keeps_the_order(tmp_path: Path, durability: Durability) -> None:
    async def test() -> None:
        engine = opened(tmp_path)
        engine.start(asyncio.get_running_loop())
        names = [f"d{number}" for number in range(100)]
        for name in names:
            patch = TopicConfigPatch(durability=durability)
            await asked(lambda done, name=name, patch=patch: engine.put_topic(name, patch, done))  # type: ignore[misc]
            await route(engine, "a", name)
        await asyncio.gather(*[append(engine, "a", number) for number in range(50)])
        expected = await arrived(engine, "a", 50)
        assert [await arrived(engine, name, 50) for name in names] == [expected] * len(names)
        await engine.close()

    run(test)


def test_checkpoints_and_forwards_do_not_disturb_each_other(tmp_path: Path) -> None:
    async def test() -> None:
        engine = opened(tmp_path)
        engine.start(asyncio.get_running_loop())
        await route(engine, "a", "b")
        await route(engine, "b", "c")

        async def checkpoints() -> None:
            for _ in range(20):
                finished: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
                engine.run_job(engine.checkpointer.job(then=finished.set_result))
                assert await finished

        async def writes() -> None:
            for number in range(300):
                await append(engine, "a", number)

        await asyncio.gather(checkpoints(), writes())
        assert await arrived(engine, "c", 300) == list(range(300))
        await engine.close()
        again = opened(tmp_path)
        found = again.read_now("c", ReadRequest(limit=1000)).records()
        assert [record["data"] for record in found] == list(range(300))
        assert again.router("b->c").cursor == 300
        again.close_inline()

    run(test)


def test_a_backfill_out_of_the_cold_folder(tmp_path: Path) -> None:
    async def test() -> None:
        engine = opened(tmp_path, cold_dir=str(tmp_path / "cold"), hot_retain_segments=0, segment_max_events=100)
        engine.start(asyncio.get_running_loop())
        for first in range(0, 500, 50):
            await append(engine, "a", *range(first, first + 50))
        source = engine.core.directory.load("a")
        while not all(segment.cold for segment in source.segments) or not source.segments:
            finished: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            engine.run_job(engine.checkpointer.job(then=finished.set_result))
            await finished
            engine.run_job(engine.housekeeper.relocate(source))
            await asyncio.sleep(0.01)
        await route(engine, "a", "b", from_seq=0, guarantee=Guarantee.EXACTLY_ONCE)
        assert await arrived(engine, "b", 500) == list(range(500))
        # And the copies, cold as well by then, are evidence for the next router of the name.
        await asked(lambda done: engine.remove_router("a->b", done))
        await route(engine, "a", "b", from_seq=0, guarantee=Guarantee.EXACTLY_ONCE)
        await append(engine, "a", 500)
        assert await arrived(engine, "b", 501) == list(range(501))
        await engine.close()

    run(test)


def test_a_stop_leaves_the_rest_for_the_next_start(tmp_path: Path) -> None:
    async def test() -> None:
        engine = opened(tmp_path)
        engine.start(asyncio.get_running_loop())
        await route(engine, "a", "b")
        await append(engine, "a", *range(700))
        await append(engine, "a", *range(700, 900))
        await engine.close()
        again = opened(tmp_path)
        again.start(asyncio.get_running_loop())
        assert await arrived(again, "b", 900) == list(range(900))
        await again.close()

    run(test)
