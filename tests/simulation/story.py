"""The scenes of clients and their knowledge of the server: the same over a simulated network and over a real one."""

import asyncio
from itertools import count
from random import Random
from typing import Any

from tests.simulation import changes, clients, followers
from tests.simulation.clients import Caller, Scene
from tests.simulation.oracle import Broken, End, LogTruth, QueueTruth, StreamTruth, TransactionTruth, TypedTruth

CAPPED, COPY, CHURN, STREAM, TYPED, JOBS, DEAD = "capped", "copy", "churn", "chat/42", "typed/1", "jobs", "dead"
CLIENTS = 6


class Story:
    """Outlives every server: topics of each class, one with a cap, some that few ask for and that may sleep, a queue
    with or without dead letters, a stream with its producer, a router, and a topic that is deleted and made again."""

    def __init__(self, luck: Random) -> None:
        self._numbers = count(1)
        self._staying = self.queue_made = False
        self.logs = [LogTruth(f"log-{name}", name) for name in ("fsync", "disk", "memory", "ephemeral")]
        self.logs.append(LogTruth(CAPPED, "disk", cap=30))
        self.quiet = [LogTruth(f"quiet-{n}", name) for n, name in enumerate(("fsync", "disk", "memory", "disk") * 2)]
        self.queue = QueueTruth(LogTruth(JOBS, luck.choice(("disk", "fsync"))))
        letters = {"dead_letter": DEAD, "max_deliveries": 2}
        self.handling: dict[str, Any] = luck.choice(({}, letters)) | {"leases_durable": luck.random() < 0.5}
        self.stream = StreamTruth(STREAM)
        self.typed = TypedTruth(TYPED)
        self.transactions = TransactionTruth()
        self.changes = changes.ChangeTruth()

    def number(self) -> int:
        """A value that was never sent before."""
        return next(self._numbers)

    def restarted(self, end: End, lacked: bool = False) -> None:
        for log in (*self.logs, *self.quiet):
            log.restarted(end, lacked)
        self.queue.restarted(end)

    async def prepare(self, caller: Caller, healthy: bool) -> None:
        """Creates missing resources. A server on a failing disk may refuse."""
        requested: list[tuple[str, Any]] = [
            *((f"/v0/topics/{log.name}", {"durability": log.durability}) for log in self.logs if not log.cap),
            *((f"/v0/topics/{log.name}", {"durability": log.durability}) for log in self.quiet),
            (f"/v0/topics/{CAPPED}", {"cap_records": 30}),
            (f"/v0/topics/{JOBS}", {"type": "queue", "durability": self.queue.produced.durability, **self.handling}),
            (f"/v0/routers/{COPY}", {"source": "log-disk", "dest": COPY, "guarantee": "exactly_once", "from_seq": 0}),
            (f"/v1/stream/{STREAM}", b""),
            (f"/v1/stream/{TYPED}", b""),
        ]
        for target, body in requested:
            answer = await caller.ask("PUT", target, body)
            self.stream.created |= answer.is_success and target.endswith(STREAM)
            self.queue_made |= answer.is_success and target.endswith(JOBS)
            if healthy and not answer.is_success:
                raise Broken(f"PUT {target} is answered with {answer.status} {answer.content[:200]!r}")
        if not self.typed.version:
            await clients.update_schema(caller, self.typed)

    async def check(self, caller: Caller, luck: Random) -> None:
        """Checks everything, while no client changes anything."""
        found: dict[str, set[int]] = {}
        for log in (*self.logs, *self.quiet):
            scan = await clients.scan(caller, log.name, luck)
            log.check_whole(scan)
            found[log.name] = {value for _, value in scan.records}
        self.transactions.check_whole(self._committed_to(), found)
        self.queue.check_left(await clients.jobs_left(caller, (JOBS, DEAD), luck))
        self.stream.check_whole(await clients.read_stream(caller, STREAM))
        if self.typed.version:
            self.typed.check_whole(await clients.read_typed(caller, self.typed))
        for name in changes.FORKED:
            await changes.check_stream(caller, self.changes, name)
        await clients.check_copies(caller, self.logs[1], COPY, luck)

    def begin(self, callers: list[Caller], luck: Random, staying: bool = False) -> list[asyncio.Task[None]]:
        """Sets the clients going, until they are cancelled or their loop has ended. The `staying` clients watch and
        write over sockets as well."""
        self._staying = staying
        return [
            asyncio.get_running_loop().create_task(clients.repeat(self._scenes(caller, luck, place), luck))
            for place, caller in enumerate(callers)
        ]

    def _committed_to(self) -> dict[str, LogTruth]:
        return {log.name: log for log in self.logs[:2]}

    def _scenes(self, caller: Caller, luck: Random, place: int) -> list[Scene]:
        """The scenes of a client. The stream has one producer, so that its order is known."""
        logs, number = [*self.logs, self.logs[0], self.logs[1]], self.number
        scenes: list[Scene] = [
            lambda: clients.write(caller, luck.choice(logs), number, luck),
            lambda: clients.write(caller, luck.choice(logs), number, luck),
            lambda: clients.read(caller, luck.choice(logs), luck),
            lambda: clients.write(caller, luck.choice(self.quiet), number, luck),
            lambda: clients.read(caller, luck.choice(self.quiet), luck),
            lambda: clients.work(caller, self.queue, luck),
            lambda: clients.extend(caller, self.queue, luck),
            lambda: clients.churn(caller, CHURN, number, luck),
            lambda: clients.transact(caller, self._committed_to(), self.transactions, number, luck),
            *[lambda: changes.shift(caller, self.changes, number, luck)] * 2,
            *[lambda: changes.branch(caller, self.changes, number, luck)] * 2,
        ]
        if self.queue_made:
            # Otherwise a log would be made of it.
            scenes.append(lambda: clients.write(caller, self.queue.produced, number, luck))
        if luck.random() < 0.3:
            scenes.append(lambda: clients.delete(caller, luck.choice([*self.logs, *self.quiet]), luck))
        if place == 1 and self.typed.version:
            scenes += [lambda: clients.write_typed(caller, self.typed, number, luck)] * 2
            scenes.append(lambda: clients.update_schema(caller, self.typed))
        if "dead_letter" in self.handling:
            scenes.append(lambda: clients.redrive(caller, JOBS, luck))
        if self._staying:
            scenes.append(lambda: followers.watch(caller, luck.choice(logs), luck))
            scenes.append(lambda: followers.talk(caller, logs, number, luck))
        if place == 0:
            scenes += [lambda: clients.produce(caller, self.stream, number)] * 3
        return scenes


def look_at(tasks: list[asyncio.Task[None]]) -> None:
    """Raises the errors that a client found."""
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error
