"""Two servers and one store in a simulation: takeovers under pauses, kills, power cuts and failing calls of the store.

Each server has a separate disk, clock and loop. The world runs them in slices of time; a paused server gets none,
while its clock goes on. Both share one store, a disk that never fails itself, over connections that do. Clients send
to any server and read from any; the truth notes all answers.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

from tests.simulation.machine import SimulatedLoop, SimulatedWorkers
from tests.simulation.oracle import Broken
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.engine.results import AppendResult
from topics.model.errors import DamageError, TopicsError
from topics.model.records import Batch, Record
from topics.model.seq_ranges import LossReason
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.ops.failover.lease import released
from topics.ops.failover.lease_keeper import LeaseKeeper, LeasePlace
from topics.ops.failover.standby import Standby
from topics.ops.failover.takeover import Place
from topics.testing import (
    NO_FAULTS,
    FakeDisk,
    FaultPlan,
    FaultyFileSystem,
    ManualClock,
    PowerCut,
    SeededEntropy,
    Survival,
)

PLACE = "place"
LEASE_MS = 1000
SLICE_MS = 20
REMOTE, DISK, UNLOGGED = "orders", "local", "unlogged"
TOPICS = {REMOTE: Durability.REMOTE, DISK: Durability.DISK, UNLOGGED: Durability.EPHEMERAL}
_TOLD = {LossReason.FAILOVER, LossReason.CRASH, LossReason.MIXED}


class Truth:
    """The answers of all servers, and what they exclude."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, int, int], object] = {}
        """The value that a seq of a topic's epoch was acknowledged or shown to have."""
        self.acked: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in TOPICS}
        """Epoch and seq of each acknowledged value."""
        self.takeovers = 0

    def is_at(self, name: str, epoch: int, seq: int, value: object) -> None:
        known = self.values.setdefault((name, epoch, seq), value)
        if known != value:
            raise Broken(f"{name}: seq {seq} means {known} and {value}")

    def check(self, engine: Engine) -> None:
        """Compares the final state with all answers."""
        for name in TOPICS:
            found, lost, epoch = read_all(engine, name)
            for seq, value in found.items():
                self.is_at(name, epoch, seq, value)
            values = list(found.values())
            if len(values) != len(set(values)):
                twice = {seq: value for seq, value in found.items() if values.count(value) > 1}
                raise Broken(f"{name}: a value is there twice: {twice}")
            if name == REMOTE and (lost or sorted(found) != list(range(1, len(found) + 1))):
                raise Broken(f"{name}: class remote has gaps {lost}")
            shown = {seq: value for (topic, of, seq), value in self.values.items() if (topic, of) == (name, epoch)}
            for seq, value in shown.items():
                if seq in found:
                    continue
                if name == REMOTE:
                    raise Broken(f"{name}: {value} at {seq} was acknowledged or shown, and is lost")
                if not any(first <= seq <= last for first, last in lost):
                    raise Broken(f"{name}: {value} at {seq} is lost, and nobody says so")


def read_all(engine: Engine, name: str) -> tuple[dict[int, object], list[tuple[int, int]], int]:
    found: dict[int, object] = {}
    lost: list[tuple[int, int]] = []
    cursor, epoch = 0, 0
    while True:
        answer = engine.read_now(name, ReadRequest(from_seq=cursor, limit=500))
        epoch = answer.epoch
        if answer.tombstone is not None:
            if answer.tombstone.reason not in _TOLD:
                raise Broken(f"{name}: a gap for {answer.tombstone.reason}")
            lost.append((answer.tombstone.gap_from, answer.tombstone.gap_to))
        found |= {record["$seq"]: record["data"] for record in answer.records()}  # type: ignore[misc]
        if answer.caught_up:
            return found, lost, epoch
        cursor = answer.next_from_seq


class Server:
    """One machine, and the processes that run on it one after the other."""

    def __init__(self, world: "PairWorld", name: str) -> None:
        self._world = world
        self.name = name
        self.disk = FakeDisk()
        self.clock = ManualClock()
        # Never in a run: a clock that jumps ahead ends the windows of idempotency keys by design.
        self.clock.jump(world.luck.choice((0, 0, -600_000, 300_000)))
        self.link = FaultyFileSystem(world.store, NO_FAULTS)
        self.paused_ms = 0
        self._boot = 0
        self._behind_ms = 0
        self.engine: Engine | None = None
        self.keeper: LeaseKeeper | None = None
        self.begin()

    def begin(self) -> None:
        """Starts a process, which wants to be the primary."""
        luck = self._world.luck
        self.engine = self.keeper = None
        self._loop = SimulatedLoop(self.clock)
        self._boot_id = f"boot-{self.name}-{self._boot}"
        self._entropy = SeededEntropy(luck.randrange(1 << 32))
        self._options = EngineOptions(
            data_dir="data", wal_shards=luck.choice((1, 2)), wal_file_bytes=luck.choice((65_536, 300_000)),
            segment_max_events=luck.choice((8, 10_000)), snapshot_interval_ms=luck.choice((100, 60_000)),
            disk_reserve_seqs=256, backup_dir=PLACE, backup_ship_ms=200, remote_flush_ms=20, remote_timeout_ms=2000,
            backup_interval_ms=luck.choice((0, 1500)),
        )  # fmt: skip
        self._standby = Standby(
            Place(self.link, PLACE), self.disk, self._options, f"http://{self.name}", LEASE_MS, self.clock,
            self._entropy, lambda address: None,
        )  # fmt: skip
        self._loop.call_soon(self._seek)

    def end(self, power: bool) -> None:
        """Kills the process, or cuts the power of its machine. It begins again."""
        self.paused_ms = 0
        survival = Survival.EVERYTHING
        if power:
            self._boot += 1
            survival = self._world.luck.choice((Survival.NOTHING, Survival.TORN, Survival.SCATTERED))
        self.disk = self.disk.crash(survival, seed=self._world.luck.randrange(1 << 32))
        self._loop.close()
        self.begin()

    def run(self, ms: int) -> None:
        """Goes on for so long; a paused server makes up for the time when it wakes."""
        if self.paused_ms > 0:
            self.paused_ms -= ms
            self._behind_ms += ms
            return
        behind, self._behind_ms = self._behind_ms, 0
        if behind:
            self.clock.advance(behind)
        self._loop.call_later(ms / 1000, self._loop.stop)
        try:
            self._loop.run_forever()
        except PowerCut:
            self._loop.power_is_cut = True
        if self._loop.power_is_cut:
            self.end(power=True)
        elif self._loop.failures:
            raise Broken(f"{self.name}: something failed that nobody expected: {self._loop.failures[:3]}")
        elif self.keeper is not None and self.keeper.primary is not None:
            # Its process ends when it hears of another primary, and a supervisor starts it again.
            self.end(power=False)

    @property
    def serves(self) -> bool:
        """Whether its requests are answered."""
        engine, keeper = self.engine, self.keeper
        return engine is not None and keeper is not None and (keeper.shows_all or engine.backups.last is not None)

    def call(self, function: Callable[[Engine], None]) -> None:
        """A request arrives."""
        if self.engine is not None:
            self._loop.call_soon(self._serve, function)

    def _serve(self, function: Callable[[Engine], None]) -> None:
        if self.engine is not None and self.serves:
            function(self.engine)

    def _seek(self) -> None:
        found = self._standby._try(waits=True)
        if found is None:
            self._loop.call_later(LEASE_MS / 4000, self._seek)
            return
        keeper, newest = found
        try:
            self._standby._prepare(keeper, newest)
            engine = Engine.recover(
                self.disk, self._options, self.clock, self._entropy, boot_id=self._boot_id, backup_fs=self.link
            )
        except DamageError as error:
            raise Broken(f"{self.name}: {error}") from error
        except (OSError, TopicsError) as error:
            # The process ends; the lease is not released where the store does not answer.
            self._world.note(f"{self.name} cannot start: {error}")
            with suppress(OSError):
                keeper.release()
            self._loop.call_later(0, self._again)
            return
        self._world.truth.takeovers += newest is not None and newest.holder != keeper.record.holder
        self._world.note(f"{self.name} is the primary of term {keeper.term}")
        engine.hold_lease(keeper, keeper.restored_from)
        workers = SimulatedWorkers(self._loop, Random(self._world.luck.randrange(1 << 32)))
        engine.start(self._loop, workers)
        self.engine, self.keeper = engine, keeper
        self._renew()

    def _again(self) -> None:
        self.keeper = self.engine = None
        self._standby = Standby(
            Place(self.link, PLACE), self.disk, self._options, f"http://{self.name}", LEASE_MS, self.clock,
            self._entropy, lambda address: None,
        )  # fmt: skip
        self.disk = self.disk.crash(Survival.EVERYTHING)
        self._standby._fs = self.disk
        self._seek()

    def _renew(self) -> None:
        assert self.keeper is not None
        self.keeper.renew()
        if self.keeper.primary is None:
            self._loop.call_later(LEASE_MS / 4000, self._renew)


class PairWorld:
    def __init__(self, seed: int) -> None:
        self.luck = Random(seed)
        self.store = FakeDisk()
        self.truth = Truth()
        self.trace: list[str] = []
        self._now_ms = 0
        self._number = 0
        self._pending: dict[str, int] = {}
        """Appends of class remote that are repeated until they are acknowledged, with the time of the last attempt."""
        self.servers = [Server(self, name) for name in ("a", "b")]

    def note(self, line: str) -> None:
        self.trace.append(f"{self._now_ms} {line}")

    def run(self, faults: int) -> None:
        """So many faults, one after the other, and then everything is looked at."""
        try:
            self._set_up()
            for _ in range(faults):
                self._fault()
                self._go_on(self.luck.choice((100, 500, 1500, 4000)))
            self._heal()
            self._go_on(3000)
            self._until(lambda: not self._pending, "everything is acknowledged")
            self.truth.check(self._primary())
        finally:
            for server in self.servers:
                server._loop.close()

    # Time

    def _go_on(self, ms: int, busy: bool = True) -> None:
        for _ in range(ms // SLICE_MS):
            self._clients(busy)
            # Either may be the first.
            for server in self.luck.sample(self.servers, 2):
                server.run(SLICE_MS)
            self._now_ms += SLICE_MS

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        for _ in range(2000):
            if condition():
                return
            self._go_on(SLICE_MS, busy=False)
        raise Broken(f"it does not come to pass that {what}: {self.trace[-10:]}")

    def _heal(self) -> None:
        for server in self.servers:
            server.link.plan = NO_FAULTS
            server.paused_ms = 0

    def _primary(self) -> Engine:
        self._until(lambda: any(self._is_primary(server) for server in self.servers), "there is a primary")
        engine = next(server.engine for server in self.servers if self._is_primary(server))
        assert engine is not None
        return engine

    def _is_primary(self, server: Server) -> bool:
        return server.serves and server.keeper is not None and server.keeper.is_valid and server.keeper.primary is None

    def _set_up(self) -> None:
        self._until(lambda: any(server.serves for server in self.servers), "a server starts")
        made: list[object] = []
        for name, durability in (*TOPICS.items(), ("last", Durability.REMOTE)):
            patch = TopicConfigPatch(durability=durability)
            self._first().call(partial(Engine.put_topic, name=name, patch=patch, done=made.append))
        self._go_on(3000, busy=False)
        if len(made) != 4 or any(isinstance(one, Exception) for one in made):
            raise Broken(f"the topics are not made: {made}")

    def _first(self) -> Server:
        return next(server for server in self.servers if server.serves)

    # Faults

    def _fault(self) -> None:
        luck = self.luck
        server = luck.choice([one for one in self.servers if one.engine is not None] or self.servers)
        kind = luck.choice(
            ("kill", "power", "power at a call", "pause", "store", "store", "answers", "promote", "heal")
        )
        self.note(f"{kind} {server.name}")
        if kind in ("kill", "power"):
            server.end(power=kind == "power")
        elif kind == "power at a call":
            server.disk.stop_after = server.disk.call_count + luck.randrange(1, 300)
        elif kind == "pause":
            server.paused_ms = luck.choice((300, 1200, 5000))
        elif kind == "store":
            call = server.link.calls + luck.randrange(1, 60)
            until = call + luck.choice((1, 5, 100, 100_000))
            server.link.plan = FaultPlan(call=call, lasting=True, until=until, include_reads=luck.random() < 0.7)
        elif kind == "answers":
            # The new name is there, and the call that makes sure of it fails.
            call = server.link.calls + luck.randrange(1, 30)
            only = frozenset({"sync_dir"})
            server.link.plan = FaultPlan(call=call, lasting=True, until=call + luck.choice((3, 60)), only=only)
        elif kind == "promote":
            place = LeasePlace(self.store, PLACE)
            newest = place.newest()
            if newest is not None and newest.lineage and not newest.released:
                place.make(released(newest, "operator"))
        else:
            self._heal()

    # Clients

    def _clients(self, busy: bool) -> None:
        """New requests where clients are busy, and repetitions of those that are not answered."""
        luck = self.luck
        for _ in range(luck.choice((0, 1, 1, 2)) if busy else 0):
            name = luck.choice((REMOTE, REMOTE, DISK, UNLOGGED))
            self._number += 1
            if name == REMOTE:
                self._pending[f"v{self._number}"] = -10_000
            else:
                self._append(luck.choice(self.servers), name, f"v{self._number}")
        for value, sent in list(self._pending.items()):
            if self._now_ms - sent > 500:
                self._pending[value] = self._now_ms
                self._append(luck.choice(self.servers), REMOTE, value)
        if luck.random() < 0.5:
            self._read(luck.choice(self.servers), luck.choice(list(TOPICS)))

    def _append(self, server: Server, name: str, value: str) -> None:
        batch = Batch(records=[Record.of(value)], idempotency_key=value if name == REMOTE else None, create=False)

        def send(engine: Engine) -> None:
            topic = engine.core.directory.find(name)
            if topic is not None:
                self.note(f"{server.name} gets {value}")
                with suppress(TopicsError):
                    engine.append(name, batch, lambda outcome: self._acked(name, topic.epoch, value, outcome))

        server.call(send)

    def _acked(self, name: str, epoch: int, value: str, outcome: AppendResult | TopicsError) -> None:
        if isinstance(outcome, AppendResult):
            self.truth.is_at(name, epoch, outcome.first_seq, value)
            self.note(f"{value} is acknowledged as {outcome.first_seq}")
            known = self.truth.acked[name].setdefault(hash(value), (epoch, outcome.first_seq))
            if known != (epoch, outcome.first_seq):
                raise Broken(f"{name}: {value} was acknowledged as {known} and as {outcome.first_seq}")
            self._pending.pop(value, None)

    def _read(self, server: Server, name: str) -> None:
        def read(engine: Engine) -> None:
            with suppress(TopicsError):
                found, _, epoch = read_all(engine, name)
                for seq, value in found.items():
                    self.truth.is_at(name, epoch, seq, value)

        server.call(read)


def summary(world: PairWorld) -> dict[str, int]:
    counts = {name: len(acked) for name, acked in world.truth.acked.items()}
    return {"takeovers": world.truth.takeovers, **counts}
