"""The lives of a simulated server, one after the other, and the checks between them."""

import asyncio
from random import Random

from tests.simulation.backups import PLACE, check_backups
from tests.simulation.clients import Caller
from tests.simulation.machine import SimulatedLoop, SimulatedWorkers
from tests.simulation.network import Link
from tests.simulation.oracle import Broken, End
from tests.simulation.states import State, check_same, state_of
from tests.simulation.story import CLIENTS, Story, look_at
from topics.api.auth import KeyRing
from topics.engine.engine import Engine
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.model.settings import Settings
from topics.ops.repair.repair import verify
from topics.server import Front, build_front, engine_options
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock, PowerCut, SeededEntropy, Survival
from topics.testing.faults import LACK_OF_DESCRIPTORS, LACK_OF_ROOM

DAY_MS = 86_400_000
_LOST_BY_POWER = (Survival.NOTHING, Survival.TORN, Survival.SCATTERED)


def _fault(luck: Random) -> FaultPlan:
    """A disk that fails, or a system that lacks something: once, for a while, or from then on."""
    call = luck.randrange(1, 600)
    kind = luck.choice((Fault.EIO, Fault.ENOSPC, Fault.SHORT, Fault.EMFILE, Fault.ENOMEM, Fault.EINTR))
    only = {Fault.ENOSPC: LACK_OF_ROOM, Fault.SHORT: LACK_OF_ROOM, Fault.EMFILE: LACK_OF_DESCRIPTORS}
    until = call + luck.randrange(1, 200) if kind is not Fault.EIO and luck.random() < 0.7 else None
    return FaultPlan(
        call=call, fault=kind, lasting=luck.random() < 0.5, until=until, only=only.get(kind, frozenset()),
    )  # fmt: skip


class World:
    """Everything that outlives a server: the disk, the clock, the oracle."""

    def __init__(self, seed: int, thorough: bool = False) -> None:
        self.seed = seed
        self.thorough = thorough
        """Whether the folder of each life is checked for damage, and backups are taken and restored: both take as long
        as the lives."""
        self.luck = Random(seed)
        self.disk = FakeDisk()
        self.clock = ManualClock()
        self.trace: list[str] = []
        self.lives = 0
        self._prepared = False
        """Whether everything is there that clients use: a full disk would take none of it."""
        self._full = False
        self._left: State | None = None
        """How the last server was when it stopped, if it stopped by itself."""
        self._boot = 0
        self.story = Story(self.luck)
        self._cold_dir = self.luck.choice(("cold", None))

    def note(self, line: str) -> None:
        self.trace.append(f"{self.clock.now_ms()} {line}")

    def run(self, lives: int) -> None:
        """So many lives, and one more in which everything is looked at."""
        for _ in range(lives):
            self.live(self.luck.choice(list(End)), faulty=self.luck.random() < 0.3, full=self.luck.random() < 0.3)
        self.live(End.STOP, faulty=False)

    def live(self, end: End, faulty: bool, full: bool = False) -> None:
        """One life of the server, from its start to its end; on a disk that is full, or is about to be."""
        self.lives += 1
        luck = Random(self.luck.randrange(1 << 32))
        settings = Settings(
            data_dir="data",
            awake_us=0,
            full_disk_reserve_bytes=luck.choice((0, 70_000)),
            wal_shards=luck.choice((1, 1, 2, 3)),
            wal_file_bytes=luck.choice((65_536, 100_003, 300_000)),
            awake_topics=luck.choice((0, 3, 10_000)),
            cold_dir=self._cold_dir,
            hot_retain_segments=luck.choice((0, 1, 4)),
            segment_max_events=luck.choice((8, 50, 10_000)),
            snapshot_interval_ms=luck.choice((50, 500, 60_000)),
            snapshot_inline_bytes=luck.choice((0, 1000, 1_000_000)),
            disk_reserve_seqs=luck.choice((1, 256, 256, 5000)),
            backup_dir=PLACE if self.thorough else None,
            backup_interval_ms=700,
            backup_ship_ms=200,
        )
        fs: FileSystem = self.disk
        self._full = full and self._prepared and not faulty
        if self._full:
            self.disk.capacity_bytes = self.disk.used_bytes + luck.choice((0, 10_000, 200_000, 600_000, 2_000_000))
        if faulty:
            fs = FaultyFileSystem(self.disk, _fault(luck))
        self.note(f"life {self.lives} {end.name} faulty={faulty} shards={settings.wal_shards}")
        loop = SimulatedLoop(self.clock)
        if end is not End.STOP and luck.random() < 0.5:
            self.disk.stop_after = self.disk.call_count + luck.randrange(1, 400)
        try:
            self._run_life(loop, fs, settings, luck, end, checked=not faulty and not self._full)
        except (PowerCut, OSError) as error:
            # In the start, which a fault or a cut may end as well.
            self.note(f"the start ended with {type(error).__name__}")
        finally:
            loop.close()
        if loop.failures:
            raise Broken(f"something failed that nobody expected: {loop.failures[:3]}")
        faults = fs if isinstance(fs, FaultyFileSystem) and fs.failed else None
        self._crash(end, luck, faults, settings.disk_reserve_seqs)

    def _crash(self, end: End, luck: Random, faults: FaultyFileSystem | None, reserve: int) -> None:
        """Returns the disk that the next server finds. A disk that failed may have dropped its unsynced data, and the
        server cannot know. A temporary shortage loses nothing."""
        survival = luck.choice(_LOST_BY_POWER) if end is End.POWER_CUT else Survival.EVERYTHING
        self.disk = self.disk.crash(survival, seed=luck.randrange(1 << 32))
        if end is End.POWER_CUT:
            self._boot += 1
        if luck.random() < 0.2:
            self.clock.jump(luck.choice((-600_000, -1, 5_000, DAY_MS)))
        failed = faults is not None and faults.plan.fault in (Fault.EIO, Fault.SHORT)
        if self.thorough:
            self._look()
        # A burst that is longer than the reserve may outrun the ceilings of class ephemeral (decision 0009).
        outran = end is not End.STOP and reserve < 1000
        self.story.restarted(End.POWER_CUT if failed else end, faults is not None or self._full or outran)

    def _look(self) -> None:
        """The remains of the last life are not damage: a crash explains them."""
        if not self.disk.exists("data/meta"):
            return
        report = verify(self.disk, Layout("data", self._cold_dir), f"boot-{self._boot}")
        if not report.sound:
            raise Broken(f"called damaged: {report.findings[:3]}")
        if self.lives % 3 == 0:
            check_backups(self.disk.clone(), self.clock, self.story)

    def _run_life(
        self, loop: SimulatedLoop, fs: FileSystem, settings: Settings, luck: Random, end: End, checked: bool
    ) -> None:
        entropy = SeededEntropy(luck.randrange(1 << 32))
        left, self._left = self._left, None
        place = fs if self.thorough else None
        engine = Engine.recover(
            fs, engine_options(settings), self.clock, entropy, boot_id=f"boot-{self._boot}", backup_fs=place
        )
        if left is not None:
            check_same(left, state_of(engine))
        asyncio.set_event_loop(None)
        life = loop.create_task(self._scene(loop, engine, settings, entropy, luck, end, checked))
        life.add_done_callback(lambda _: loop.stop())
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            # It will never continue: that is the meaning of a kill.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        if life.done() and (error := life.exception()) is not None:
            raise error

    async def _scene(
        self, loop: SimulatedLoop, engine: Engine, settings: Settings, entropy: SeededEntropy, luck: Random, end: End,
        checked: bool,
    ) -> None:  # fmt: skip
        front = build_front(settings, KeyRing.parse(""), self.clock, entropy)
        engine.start(loop, SimulatedWorkers(loop, Random(luck.randrange(1 << 32))))
        front.open(engine)
        net = Random(luck.randrange(1 << 32))
        quiet = Caller("quiet", lambda: Link(front.http, loop, net, patient=True), self.note)
        await self.story.prepare(quiet, checked)
        self._prepared |= checked
        if checked:
            await self.story.check(quiet, luck)
        crowd = self.story.begin([self._caller(n, front, loop, net) for n in range(CLIENTS)], luck, True)
        await asyncio.sleep(luck.choice((0.05, 0.3, 1.0, 3.0)))
        if luck.random() < 0.2:
            self.clock.jump(luck.choice((-600_000, -1, 700, 3_600_000)))
            await asyncio.sleep(0.2)
        if self._full and luck.random() < 0.6:
            # An operator makes room, and the server must notice.
            self.disk.capacity_bytes = luck.choice((None, self.disk.used_bytes + 300_000))
            await asyncio.sleep(2.5)
        look_at(crowd)
        if end is End.STOP:
            for task in crowd:
                task.cancel()
            await asyncio.gather(*crowd, return_exceptions=True)
            front.api.drain()
            await engine.close()
            self._left = state_of(engine) if checked else None

    def _caller(self, number: int, front: Front, loop: SimulatedLoop, net: Random) -> Caller:
        return Caller(f"c{number}", lambda: Link(front.http, loop, net, patient=False), self.note)
