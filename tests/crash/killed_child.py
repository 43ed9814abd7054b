"""The process that gets killed: many writers on a real folder, each reporting acknowledged operations, and only after
their answers.

Run as `python killed_child.py FOLDER RUN`. Every line on standard output is one acknowledgement as JSON, written after
`done` was called. It never stops by itself before its time is up, which is long after its parent has killed it.
"""

import asyncio
import os
import sys

import msgspec
import uvloop

from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.results import AppendResult, DeleteResult
from topics.log.posix import PosixFileSystem
from topics.model.records import Batch, Record
from topics.model.router_rules import DeleteSelector, TagMatch
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
from topics.system.process import boot_id

WRITERS = 24
TOPICS = ("disk-0", "disk-1", "fsync-0", "fsync-1")
OPTIONS = {"wal_shards": 2, "segment_max_events": 300, "wal_file_bytes": 1 << 20, "snapshot_inline_bytes": 20_000}
LIFETIME_S = 60.0


def tell(acknowledged: dict[str, object]) -> None:
    os.write(1, msgspec.json.encode(acknowledged) + b"\n")


async def write(engine: Engine, run: int, writer: int) -> None:
    """Appends small batches, some with a key, and deletes some records of this process by their tags."""
    loop = asyncio.get_running_loop()
    topic = TOPICS[writer % len(TOPICS)]
    number = 0
    while True:
        number += 1
        values = [f"{run}/{writer}/{number}/{place}" for place in range(1 + number % 4)]
        key = f"key-{run}-{writer}-{number}" if number % 3 == 0 else None
        done: asyncio.Future[object] = loop.create_future()
        records = [Record.of(value, tag=value) for value in values]
        engine.append(topic, Batch(records=records, idempotency_key=key), done.set_result)
        result = await done
        assert isinstance(result, AppendResult), result
        tell({"topic": topic, "first": result.first_seq, "values": values, "key": key})
        if number % 5 == 0:
            deleted: asyncio.Future[object] = loop.create_future()
            engine.delete_records(topic, DeleteSelector(None, TagMatch(values[0])), deleted.set_result)
            outcome = await deleted
            assert isinstance(outcome, DeleteResult), outcome
            tell({"topic": topic, "deleted": values[0]})


async def checkpoints(engine: Engine) -> None:
    """Takes checkpoints all the time, so that kills hit them too."""
    while True:
        finished: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        engine.run_job(engine.checkpointer.job(then=finished.set_result))
        await finished
        await asyncio.sleep(0.02)


async def main(folder: str, run: int) -> None:
    options = msgspec.convert({"data_dir": folder, **OPTIONS}, EngineOptions)
    engine = Engine.recover(PosixFileSystem(), options, SystemClock(), SystemEntropy(), boot_id=boot_id())
    engine.start(asyncio.get_running_loop())
    for topic in TOPICS:
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        engine.put_topic(topic, TopicConfigPatch(durability=Durability(topic.split("-")[0])), done.set_result)
        await done
    tell({"ready": run})
    async with asyncio.timeout(LIFETIME_S), asyncio.TaskGroup() as group:
        group.create_task(checkpoints(engine))
        for writer in range(WRITERS):
            group.create_task(write(engine, run, writer))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
