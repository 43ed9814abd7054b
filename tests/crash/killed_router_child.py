"""The process that gets killed while its routers work: it reports the records that its readers have seen, and only
those.

Run as `python killed_router_child.py FOLDER RUN`. Every line on standard output is JSON: records of a destination that
a reader got, or a delete that was answered. The routers fan out, chain, filter and stamp; one source is deleted and
made again all the time.
"""

import asyncio
import sys
from collections.abc import Callable

import msgspec
import uvloop

from tests.crash.killed_child import checkpoints, tell
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.engine.results import AppendResult
from topics.log.posix import PosixFileSystem
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.model.router_rules import DeleteSelector, Guarantee, RouterRules, RouterWish, TagMatch
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
from topics.system.process import boot_id

OPTIONS = {"wal_shards": 3, "segment_max_events": 300, "wal_file_bytes": 1 << 20, "snapshot_inline_bytes": 20_000}
CLASSES = {
    "a": Durability.DISK, "b": Durability.FSYNC, "c": Durability.DISK, "d": Durability.FSYNC, "e": Durability.DISK,
    "v": Durability.MEMORY, "w": Durability.FSYNC,
}  # fmt: skip
EVEN = TagMatch("even")
ROUTES: dict[tuple[str, str], RouterRules] = {
    ("a", "b"): RouterRules(),
    ("a", "c"): RouterRules(filter=EVEN, preserve_tag=False),
    ("b", "d"): RouterRules(guarantee=Guarantee.EXACTLY_ONCE),
    ("d", "e"): RouterRules(),
    ("v", "w"): RouterRules(),
}
DESTINATIONS = ("b", "c", "d", "e", "w")
LIFETIME_S = 60.0


async def asked(ask: Callable[[Callable[[object], None]], None]) -> object:
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    ask(done.set_result)
    return await done


async def write(engine: Engine, run: int, name: str) -> None:
    number = 0
    while True:
        number += 1
        values = [f"{name}/{run}/{number}/{place}" for place in range(1 + number % 4)]
        records = [Record.of(value, tag="even" if number % 2 == 0 else "odd") for value in values]
        result = await asked(lambda done, records=records: engine.append(name, Batch(records=records), done))  # type: ignore[misc]
        assert isinstance(result, AppendResult), result
        tell({"topic": name, "written": values, "even": number % 2 == 0})
        if name == "b" and number % 6 == 0:
            # A direct write that is read back and deleted again: its seq must stay empty.
            selector = DeleteSelector(result.first_seq, None)
            await asked(lambda done, selector=selector: engine.delete_records("b", selector, done))  # type: ignore[misc]
            tell({"topic": "b", "deleted_below": result.first_seq})


async def drop_and_make_again(engine: Engine) -> None:
    while True:
        await asyncio.sleep(0.05)
        await asked(lambda done: engine.drop_topic("v", False, done))
        await route(engine, "v", "w")


async def read(engine: Engine, name: str) -> None:
    """Reports every record of a destination as soon as it is published."""
    cursor = 0
    while True:
        result = engine.read_now(name, ReadRequest(from_seq=cursor, limit=200))
        assert result.tombstone is None, result.tombstone
        if result.count:
            tell({"topic": name, "seen": [[record["$seq"], record["data"]] for record in result.records()]})
        cursor = result.next_from_seq
        if result.caught_up:
            await changed(engine, name)
        else:
            await asyncio.sleep(0)


async def changed(engine: Engine, name: str) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    engine.watch(name, lambda: done.set_result(None))
    await done


async def route(engine: Engine, source: str, dest: str) -> None:
    wish = RouterWish(source=source, dest=dest, rules=ROUTES[source, dest])
    answer = await asked(lambda done: engine.put_router(f"{source}->{dest}", wish, done))
    assert not isinstance(answer, TopicsError), answer


async def main(folder: str, run: int) -> None:
    options = msgspec.convert({"data_dir": folder, **OPTIONS}, EngineOptions)
    engine = Engine.recover(PosixFileSystem(), options, SystemClock(), SystemEntropy(), boot_id=boot_id())
    engine.start(asyncio.get_running_loop())
    for name, durability in CLASSES.items():
        patch = TopicConfigPatch(durability=durability)
        await asked(lambda done, name=name, patch=patch: engine.put_topic(name, patch, done))  # type: ignore[misc]
    for source, dest in ROUTES:
        await route(engine, source, dest)
    tell({"ready": run})
    async with asyncio.timeout(LIFETIME_S), asyncio.TaskGroup() as group:
        group.create_task(checkpoints(engine))
        group.create_task(drop_and_make_again(engine))
        for name in ("a", "a", "b", "v"):
            group.create_task(write(engine, run * 10 + len(group._tasks), name))
        for name in DESTINATIONS:
            group.create_task(read(engine, name))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
