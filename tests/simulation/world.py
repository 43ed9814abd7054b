"""The lives of a simulated server, one after the other, and what is checked between them."""

import asyncio
from itertools import count
from random import Random
from typing import Any

from tests.simulation import clients
from tests.simulation.clients import Caller
from tests.simulation.machine import SimulatedLoop, SimulatedWorkers
from tests.simulation.network import Link
from tests.simulation.oracle import Broken, End, LogTruth, QueueTruth, StreamTruth
from topics.api.auth import KeyRing
from topics.config.settings import Settings
from topics.engine import Engine
from topics.server import Front, build_front, engine_options
from topics.storage.fs import FileSystem
from topics.testing import (
    FakeDisk,
    Fault,
    FaultPlan,
    FaultyFileSystem,
    ManualClock,
    PowerCut,
    SeededDice,
    Survival,
)

DAY_MS = 86_400_000
_LOGS = {"fsync": 0, "disk": 0, "memory": 0, "ephemeral": 0}
_CAPPED, _COPY, _CHURN, _STREAM, _JOBS = "capped", "copy", "churn", "chat/42", "jobs"
_LOST_BY_POWER = (Survival.NOTHING, Survival.TORN, Survival.SCATTERED)


class World:
    """Everything that outlives a server: the disk, the clock, the oracle."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.luck = Random(seed)
        self.disk = FakeDisk()
        self.clock = ManualClock()
        self.trace: list[str] = []
        self.lives = 0
        self._boot = 0
        self._numbers = count(1)
        self.logs = [LogTruth(f"log-{name}", name) for name in _LOGS]
        self.logs.append(LogTruth(_CAPPED, "disk", cap=30))
        self.jobs = LogTruth(_JOBS, self.luck.choice(("disk", "fsync")))
        self.queue = QueueTruth(self.jobs)
        self.stream = StreamTruth(_STREAM)

    def number(self) -> int:
        return next(self._numbers)

    def note(self, line: str) -> None:
        self.trace.append(f"{self.clock.now_ms()} {line}")

    def run(self, lives: int) -> None:
        """So many lives, and one more in which everything is looked at."""
        for _ in range(lives):
            self.live(self.luck.choice(list(End)), faulty=self.luck.random() < 0.3)
        self.live(End.STOP, faulty=False)

    def live(self, end: End, faulty: bool) -> None:
        """One life of the server, from its start to its end."""
        self.lives += 1
        luck = Random(self.luck.randrange(1 << 32))
        settings = Settings(
            data_dir="data",
            awake_us=0,
            wal_shards=luck.choice((1, 1, 2, 3)),
            wal_file_bytes=65_536,
            segment_max_events=luck.choice((8, 50, 10_000)),
            snapshot_interval_ms=luck.choice((50, 500, 60_000)),
            snapshot_inline_bytes=luck.choice((0, 1000, 1_000_000)),
            disk_reserve_seqs=256,
        )
        fs: FileSystem = self.disk
        if faulty:
            call, kind = self.disk_calls(luck), luck.choice((Fault.EIO, Fault.ENOSPC))
            fs = FaultyFileSystem(self.disk, FaultPlan(call=call, fault=kind, lasting=luck.random() < 0.5))
        self.note(f"life {self.lives} {end.name} faulty={faulty} shards={settings.wal_shards}")
        loop = SimulatedLoop(self.clock)
        if end is not End.STOP and luck.random() < 0.5:
            self.disk.stop_after = self.disk.call_count + luck.randrange(1, 400)
        try:
            self._run_life(loop, fs, settings, luck, end, checked=not faulty)
        except (PowerCut, OSError) as error:
            # In the start, which a fault or a cut may end as well.
            self.note(f"the start ended with {type(error).__name__}")
        finally:
            loop.close()
        if loop.failures:
            raise Broken(f"something failed that nobody expected: {loop.failures[:3]}")
        failed = isinstance(fs, FaultyFileSystem) and fs.failed > 0
        self._crash(end, luck, failed)

    def disk_calls(self, luck: Random) -> int:
        return luck.randrange(1, 600)

    def _crash(self, end: End, luck: Random, failed: bool) -> None:
        """What the next server finds. A disk that failed may have dropped what it was given, and nobody can know."""
        survival = luck.choice(_LOST_BY_POWER) if end is End.POWER_CUT else Survival.EVERYTHING
        self.disk = self.disk.crash(survival, seed=luck.randrange(1 << 32))
        if end is End.POWER_CUT:
            self._boot += 1
        if luck.random() < 0.2:
            self.clock.jump(luck.choice((-600_000, -1, 5_000, DAY_MS)))
        end = End.POWER_CUT if failed else end
        for log in self.logs:
            log.restarted(end)
        self.queue.restarted(end)

    def _run_life(
        self, loop: SimulatedLoop, fs: FileSystem, settings: Settings, luck: Random, end: End, checked: bool
    ) -> None:
        dice = SeededDice(luck.randrange(1 << 32))
        engine = Engine.recover(fs, engine_options(settings), self.clock, dice, boot_id=f"boot-{self._boot}")
        asyncio.set_event_loop(None)
        life = loop.create_task(self._scene(loop, engine, settings, dice, luck, end, checked))
        life.add_done_callback(lambda _: loop.stop())
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            # Nobody will ever go on with it: that is what a kill is.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        if life.done() and (error := life.exception()) is not None:
            raise error

    async def _scene(
        self, loop: SimulatedLoop, engine: Engine, settings: Settings, dice: SeededDice, luck: Random, end: End,
        checked: bool,
    ) -> None:  # fmt: skip
        front = build_front(settings, KeyRing.parse(""), self.clock, dice)
        engine.start(loop, SimulatedWorkers(loop, Random(luck.randrange(1 << 32))))
        front.open(engine)
        net = Random(luck.randrange(1 << 32))
        await self._prepare(self._caller("setup", front, loop, net), checked)
        if checked:
            await self._check(self._caller("look", front, loop, net), luck)
        crowd = [
            loop.create_task(clients.repeat(self._scenes(self._caller(f"c{n}", front, loop, net), luck, n), luck))
            for n in range(6)
        ]
        await asyncio.sleep(luck.choice((0.05, 0.3, 1.0, 3.0)))
        if luck.random() < 0.2:
            self.clock.jump(luck.choice((-600_000, -1, 700, 3_600_000)))
            await asyncio.sleep(0.2)
        for task in crowd:
            if task.done() and (error := task.exception()) is not None:
                raise error
        if end is End.STOP:
            for task in crowd:
                task.cancel()
            await asyncio.gather(*crowd, return_exceptions=True)
            front.api.drain()
            await engine.close()

    def _caller(self, name: str, front: Front, loop: SimulatedLoop, luck: Random) -> Caller:
        patient = not name.startswith("c")
        return Caller(name, lambda: Link(front.http, loop, luck, patient), self.note)

    async def _prepare(self, caller: Caller, checked: bool) -> None:
        """Makes what is not there yet."""
        wanted: list[tuple[str, Any]] = [
            *((f"/v0/topics/{log.name}", {"durability": log.durability}) for log in self.logs if not log.cap),
            (f"/v0/topics/{_CAPPED}", {"cap_records": 30}),
            (f"/v0/topics/{_JOBS}", {"type": "queue", "durability": self.jobs.durability}),
            (f"/v0/routers/{_COPY}", {"source": "log-disk", "dest": _COPY, "guarantee": "exactly_once", "from_seq": 0}),
            (f"/v1/stream/{_STREAM}", None),
        ]
        for target, body in wanted:
            answer = await caller.ask("PUT", target, body if body is not None else b"", "")
            self.stream.created |= answer.is_success and target.startswith("/v1")
            if checked and not answer.is_success:
                raise Broken(f"PUT {target} is answered with {answer.status} {answer.content[:200]!r}")

    async def _check(self, caller: Caller, luck: Random) -> None:
        """Looks at everything, while nobody changes anything."""
        for log in self.logs:
            log.check_whole(await clients.scan(caller, log.name, luck))
        left = {value for _, value in (await clients.scan(caller, _JOBS, luck)).records}
        self.queue.check_left(left)
        self.stream.check_whole(await clients.read_stream(caller, _STREAM))
        await clients.check_copies(caller, self.logs[1], _COPY, luck)

    def _scenes(self, caller: Caller, luck: Random, place: int) -> list[clients.Scene]:
        """What a client does. The stream has one producer, so that its order is known."""
        logs, number = [*self.logs, self.logs[0], self.logs[1]], self.number
        scenes: list[clients.Scene] = [
            lambda: clients.write(caller, luck.choice(logs), number, luck),
            lambda: clients.write(caller, luck.choice(logs), number, luck),
            lambda: clients.write(caller, self.jobs, number, luck),
            lambda: clients.read(caller, luck.choice(logs), luck),
            lambda: clients.work(caller, self.queue, luck),
            lambda: clients.churn(caller, _CHURN, number, luck),
        ]
        if luck.random() < 0.3:
            scenes.append(lambda: clients.delete(caller, luck.choice(self.logs), luck))
        if place == 0:
            scenes += [lambda: clients.produce(caller, self.stream, number, 0)] * 3
        return scenes
