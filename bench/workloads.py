"""The workloads of the engine benchmark, each run in its own process so that none warms up for another."""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec
import uvloop

from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.engine.results import AppendResult
from topics.log.posix import PosixFileSystem
from topics.model.records import Batch, Record
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
from topics.system.process import boot_id, cpu_count, resident_bytes, tune_allocator

PAYLOAD_BYTES = 200
_PAYLOAD = msgspec.Raw(b'{"text":"' + b"x" * (PAYLOAD_BYTES - 11) + b'"}')
_TOPIC = "bench"


def options(folder: Path, **changes: object) -> EngineOptions:
    base = {"data_dir": str(folder), "wal_shards": min(cpu_count(), 8)}
    return msgspec.convert({**base, **changes}, EngineOptions)


def open_engine(folder: Path, **changes: object) -> Engine:
    tune_allocator()
    return Engine.recover(
        PosixFileSystem(), options(folder, **changes), SystemClock(), SystemEntropy(), boot_id=boot_id()
    )


def records(count: int) -> list[Record]:
    return [Record(_PAYLOAD) for _ in range(count)]


async def append_many(engine: Engine, total: int, size: int, writers: int, topic: str = _TOPIC) -> float:
    """Appends `total` records in batches of `size`, with `writers` batches in flight; returns the seconds."""
    loop = asyncio.get_running_loop()
    finished = loop.create_future()
    left, flying = total // size, 0
    batch = Batch(records=records(size))

    def done(result: object) -> None:
        nonlocal flying
        if not isinstance(result, AppendResult):
            finished.set_exception(RuntimeError(str(result)))
            return
        flying -= 1
        # Answers of one commit arrive together; the next requests come with the loop's next tick, as from sockets.
        if left:
            loop.call_soon(send)
        elif not flying:
            finished.set_result(None)

    def send() -> None:
        nonlocal left, flying
        if left:
            left -= 1
            flying += 1
            engine.append(topic, batch, done)

    begun = time.perf_counter()
    for _ in range(min(writers, left)):
        send()
    await finished
    return time.perf_counter() - begun


async def make_topic(engine: Engine, durability: str, topic: str = _TOPIC) -> None:
    finished = asyncio.get_running_loop().create_future()
    engine.put_topic(topic, TopicConfigPatch(durability=Durability(durability)), finished.set_result)
    await finished


async def measure_append(folder: Path, durability: str, size: int, writers: int, total: int) -> dict[str, float]:
    engine = open_engine(folder)
    engine.start(asyncio.get_running_loop())
    await make_topic(engine, durability)
    await append_many(engine, min(total // 10, 20_000) // size * size or size, size, writers)
    seconds = await append_many(engine, total, size, writers)
    await engine.close()
    return {"records_per_s": total / seconds, "batches_per_s": total / size / seconds, "seconds": seconds}


async def measure_read(folder: Path, sealed: bool, total: int, limit: int, tags: bool = False) -> dict[str, float]:
    """Catch-up reads of everything, by `limit`, from memory or from sealed segments."""
    events = 10_000 if sealed else total * 2
    engine = open_engine(folder, segment_max_events=events, snapshot_wal_bytes=1 << 40)
    engine.start(asyncio.get_running_loop())
    await make_topic(engine, "disk" if sealed else "ephemeral")
    await append_many(engine, total, 100, 16)
    if sealed:
        await _sealed(engine)
    begun, passes, count = time.perf_counter(), 0, 0
    while time.perf_counter() - begun < 2.0:
        cursor = 0
        while cursor < total:
            result = engine.read_now(_TOPIC, ReadRequest(from_seq=cursor, limit=limit, max_bytes=8 << 20))
            cursor = result.next_from_seq
            count += result.count
        passes += 1
    seconds = time.perf_counter() - begun
    await engine.close()
    return {"records_per_s": count / seconds, "passes": passes}


async def _sealed(engine: Engine) -> None:
    topic = engine.core.directory.load(_TOPIC)
    engine.core.before_change(topic)
    engine.sealer.cut(topic)
    finished = asyncio.get_running_loop().create_future()
    engine.sealer.when_idle(finished.set_result)
    await finished


async def fill(folder: Path, total: int, stop: str) -> dict[str, float]:
    """Appends `total` records to one topic and measures memory; then stops cleanly, or is killed by the caller."""
    engine = open_engine(folder)
    engine.start(asyncio.get_running_loop())
    await make_topic(engine, "disk")
    await append_many(engine, 100_000, 100, 16)
    start = peak = resident_bytes()
    seconds = 0.0
    step = min(250_000, total)
    for _ in range(total // step):
        seconds += await append_many(engine, step, 100, 16)
        peak = max(peak, resident_bytes())
    answer = {
        "records_per_s": total / seconds,
        "resident_start_mb": start / 1e6,
        "resident_peak_mb": peak / 1e6,
        "resident_end_mb": resident_bytes() / 1e6,
        "growth_mb": (peak - start) / 1e6,
    }
    if stop == "clean":
        await engine.close()
    else:
        print(msgspec.json.encode(answer).decode(), flush=True)
        await asyncio.sleep(3600)
    return answer


async def recover(folder: Path) -> dict[str, float]:
    begun = time.perf_counter()
    engine = open_engine(folder)
    seconds = time.perf_counter() - begun
    info = engine.info(_TOPIC)
    engine.start(asyncio.get_running_loop())
    await engine.close()
    return {"seconds": seconds, "count": info.count, "head": info.head_seq, "resident_mb": resident_bytes() / 1e6}


async def idle_topics(folder: Path, topics: int) -> dict[str, float]:
    engine = open_engine(folder, wal_shards=1)
    loop = asyncio.get_running_loop()
    engine.start(loop)
    before = resident_bytes()
    begun = time.perf_counter()
    window = asyncio.Semaphore(1000)

    async def create(number: int) -> None:
        async with window:
            finished = loop.create_future()
            engine.append(f"topic-{number:07d}", Batch(records=records(1)), finished.set_result)
            await finished

    for start in range(0, topics, 10_000):
        await asyncio.gather(*(create(number) for number in range(start, min(start + 10_000, topics))))
    seconds = time.perf_counter() - begun
    after = resident_bytes()
    await engine.close()
    begun = time.perf_counter()
    engine = open_engine(folder, wal_shards=1)
    reopened = time.perf_counter() - begun
    engine.start(loop)
    await engine.close()
    return {
        "mb": (after - before) / 1e6,
        "bytes_per_topic": (after - before) / topics,
        "created_per_s": topics / seconds,
        "reopened_s": reopened,
    }


WORKLOADS: dict[str, Callable[..., Coroutine[object, object, dict[str, float]]]] = {
    "append": measure_append,
    "read": measure_read,
    "fill": fill,
    "recover": recover,
    "idle_topics": idle_topics,
}


def main() -> None:
    """`python -m bench.workloads NAME FOLDER JSON-ARGUMENTS` prints one JSON answer."""
    name, folder, arguments = sys.argv[1], Path(sys.argv[2]), msgspec.json.decode(sys.argv[3])
    answer = uvloop.run(WORKLOADS[name](folder, **arguments))
    print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    main()
