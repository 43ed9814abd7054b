"""The process that gets killed: writers of transactions on a real folder, each reporting its answers.

Run as `python killed_transaction_child.py FOLDER RUN`. Every line on standard output is one answer to a commit as JSON.
Each writer has its own id; in every run it begins where the last commit left it, as a program that was restarted would.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec
import uvloop

from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.log.posix import PosixFileSystem
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
from topics.system.process import boot_id
from topics.transactions.transaction_state import BeginRequest, StageRequest, TransactionRef, TransactionResult

WRITERS = 8
TOPICS = ("disk-0", "disk-1", "fsync-0", "memory-0")
OPTIONS = {"wal_shards": 3, "segment_max_events": 300, "wal_file_bytes": 1 << 20, "snapshot_inline_bytes": 20_000}
LIFETIME_S = 60.0

T = TypeVar("T")


def tell(answer: dict[str, object]) -> None:
    os.write(1, msgspec.json.encode(answer) + b"\n")


def anywhere(name: str) -> None: ...


async def asked(ask: Callable[[Callable[[object], None]], None], kind: type[T]) -> T:
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    ask(done.set_result)
    answer = await done
    assert isinstance(answer, kind), answer
    return answer


async def write(engine: Engine, run: int, writer: int) -> None:
    """Commits one step after the other; a step has a record or more for each of some topics."""
    transactions, name = engine.transactions, f"writer-{writer}"
    known = transactions.table.known.get(name)
    sequence = known.sequence if known is not None else 0
    while True:
        sequence += 1
        request = BeginRequest(id=name, sequence=sequence)
        await asked(lambda done: transactions.begin(request, anywhere, done), TransactionResult)  # noqa: B023
        ref = TransactionRef(id=name, sequence=sequence)
        for place in range(1 + (writer + sequence) % len(TOPICS)):
            topic = TOPICS[(writer + place) % len(TOPICS)]
            values = [f"{writer}/{sequence}/{run}/{place}/{number}" for number in range(1 + sequence % 3)]
            staged = StageRequest(
                ref=ref, topic=topic, records=[Record.of(value) for value in values], part=f"part-{place}"
            )
            await asked(lambda done: transactions.stage(staged, done), object)  # noqa: B023
        result = await asked(lambda done: transactions.commit(ref, None, anywhere, done), TransactionResult)  # noqa: B023
        tell({"writer": writer, "sequence": sequence, "run": run, "records": result.records})


async def disturb(engine: Engine) -> None:
    """Writes to the same topics all the time."""
    number = 0
    while True:
        number += 1
        batch = Batch(records=[Record.of("direct")])
        topic = TOPICS[number % len(TOPICS)]
        await asked(lambda done: engine.append(topic, batch, done), object)  # noqa: B023


async def checkpoints(engine: Engine) -> None:
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
        patch = TopicConfigPatch(durability=Durability(topic.split("-")[0]))
        put = await asked(lambda done: engine.put_topic(topic, patch, done), object)  # noqa: B023
        assert not isinstance(put, TopicsError), put
    async with asyncio.timeout(LIFETIME_S), asyncio.TaskGroup() as group:
        group.create_task(checkpoints(engine))
        group.create_task(disturb(engine))
        for writer in range(WRITERS):
            group.create_task(write(engine, run, writer))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
