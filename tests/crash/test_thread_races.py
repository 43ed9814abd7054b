"""The same promises with the log's threads at work, where commits, checkpoints and answers truly overlap.

The fake disk may be copied at any moment, which is a power cut that the server does not notice: everything acknowledged
before the copy was made must be found in it, whatever the threads were doing. Nothing here depends on how long anything
takes; the timeouts turn a lost answer into a failure.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import uvloop

from tests.crash.harness import SMALL, Dump, dump
from tests.unit.conftest import LOCAL
from topics.engine.core import EngineOptions
from topics.engine.disk_threads import ThreadWorkers
from topics.engine.engine import Engine
from topics.engine.results import AppendResult, DeleteResult
from topics.log.fs import FileSystem
from topics.log.group_commit import InlineSyncPolicy
from topics.log.posix import PosixFileSystem
from topics.model.errors import DiskFullError, ReadOnlyError, SystemBusyError, TopicsError
from topics.model.records import Batch, Record
from topics.model.router_rules import DeleteSelector
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.system.clock import SystemClock
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, SeededEntropy, Survival

HANG_S = 60.0
THREADED = msgspec.structs.replace(SMALL, wal_shards=2, wal_file_bytes=1 << 14, segment_max_events=20)


def open_engine(fs: FileSystem, options: EngineOptions, boot: str = "first") -> Engine:
    return Engine.recover(fs, options, SystemClock(), SeededEntropy(1), boot_id=boot)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), HANG_S)

    uvloop.run(bounded())


class Client:
    """Sends requests to a started engine and records the answers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.appended: list[tuple[str, int, list[object], Durability]] = []
        self.deleted: list[tuple[str, int]] = []
        self.deleting: list[tuple[str, int]] = []
        """Also unanswered ones."""

    async def append(self, name: str, values: list[object], key: str | None = None) -> AppendResult | TopicsError:
        future: asyncio.Future[AppendResult | TopicsError] = asyncio.get_running_loop().create_future()

        def done(answer: AppendResult | TopicsError) -> None:
            # Not left to the task that waits, which runs later: from this call on it is promised.
            if isinstance(answer, AppendResult) and not answer.deduped:
                durability = self.engine.core.existing(name).config.durability
                self.appended.append((name, answer.first_seq, values, durability))
            future.set_result(answer)

        self.engine.append(name, Batch(records=[Record.of(value) for value in values], idempotency_key=key), done)
        return await future

    async def delete(self, name: str, before: int) -> DeleteResult | TopicsError:
        future: asyncio.Future[DeleteResult | TopicsError] = asyncio.get_running_loop().create_future()

        def done(answer: DeleteResult | TopicsError) -> None:
            if isinstance(answer, DeleteResult):
                self.deleted.append((name, before))
            future.set_result(answer)

        self.deleting.append((name, before))
        self.engine.delete_records(name, DeleteSelector(before, None), done)
        return await future

    async def put(self, name: str, durability: Durability) -> None:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.engine.put_topic(name, TopicConfigPatch(durability=durability), future.set_result)
        await future

    def promises(self) -> "Promises":
        return Promises(list(self.appended), list(self.deleted), list(self.deleting))


class Promises:
    """The operations answered by a certain moment."""

    def __init__(
        self,
        appended: list[tuple[str, int, list[object], Durability]],
        deleted: list[tuple[str, int]],
        deleting: list[tuple[str, int]],
    ) -> None:
        self._appended = appended
        self._deleted = deleted
        self._deleting = deleting

    def check(self, found: Dump, power: bool) -> None:
        maybe_gone: dict[str, int] = {}
        for name, before in self._deleting:
            maybe_gone[name] = max(maybe_gone.get(name, 0), before)
        for name, first, values, durability in self._appended:
            live = found[name].live
            reported = [range(begin, end + 1) for begin, end, _ in found[name].reported]
            for seq, value in enumerate(values, start=first):
                if seq in live:
                    assert live[seq].value == value, (name, seq)
                elif seq >= maybe_gone.get(name, 0):
                    assert power and durability is Durability.DISK, (name, seq, "is missing")
                    assert any(seq in one for one in reported), (name, seq, "is lost and nobody is told")
                assert seq <= found[name].head
        for name, before in self._deleted:
            if not power or found[name].config.durability is Durability.FSYNC:
                assert not [seq for seq in found[name].live if seq < before], (name, "deleted records are back")


async def write(client: Client, chance: random.Random, name: str, writer: int, batches: int) -> None:
    for number in range(batches):
        values: list[object] = [f"{writer}-{number}-{place}" for place in range(chance.randrange(1, 4))]
        answer = await client.append(name, values, key=f"{writer}-{number}" if chance.random() < 0.3 else None)
        assert isinstance(answer, AppendResult), answer
        if chance.random() < 0.05:
            assert isinstance(await client.delete(name, max(answer.first_seq - 10, 1)), DeleteResult)
        if chance.random() < 0.2:
            await asyncio.sleep(0)


async def take_checkpoints(engine: Engine) -> None:
    while True:
        finished: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        engine.run_job(engine.checkpointer.job(then=finished.set_result))
        assert await finished
        await asyncio.sleep(0.001)


class SyncsAtRandom(InlineSyncPolicy):
    """The loop syncs every other group, and the thread the groups between, for any duration of a sync."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(lambda: 0)
        self._chance = chance

    def allows(self, callers: int, now: float, wide: bool = False) -> bool:
        return self._chance.random() < 0.5


def copies_under_load(seed: int, writers: int, batches: int, copies: int) -> list[tuple[FakeDisk, Promises]]:
    """Copies of the disk under concurrent writes and checkpoints, each with the promises made by then."""
    chance = random.Random(seed)
    disk = FakeDisk()
    taken: list[tuple[FakeDisk, Promises]] = []

    async def copy(client: Client) -> None:
        for _ in range(copies):
            for _ in range(chance.randrange(30)):
                await asyncio.sleep(0)
            promises = client.promises()
            taken.append((disk.clone(), promises))

    async def test() -> None:
        engine = open_engine(disk, THREADED)
        workers = ThreadWorkers(asyncio.get_running_loop())
        workers._loop_syncs = SyncsAtRandom(chance)
        engine.start(asyncio.get_running_loop(), workers)
        client = Client(engine)
        for name, durability in (("sure", Durability.FSYNC), ("surer", Durability.FSYNC), ("quick", Durability.DISK)):
            await client.put(name, durability)
        checkpoints = asyncio.create_task(take_checkpoints(engine))
        names = ("sure", "surer", "quick")
        work = [write(client, chance, names[writer % 3], writer, batches) for writer in range(writers)]
        await asyncio.gather(copy(client), *work)
        checkpoints.cancel()
        await asyncio.gather(checkpoints, return_exceptions=True)
        await engine.close()
        taken.append((disk.clone(), client.promises()))

    run(test)
    return taken


def check_copies(seed: int, writers: int, batches: int, copies: int) -> None:
    print(f"seed {seed}")
    for number, (disk, promises) in enumerate(copies_under_load(seed, writers, batches, copies)):
        for survival in Survival:
            restarted = survival is not Survival.EVERYTHING
            crashed = disk.clone().crash(survival, seed + number)
            engine = open_engine(crashed, THREADED, "second" if restarted else "first")
            promises.check(dump(engine), restarted)


def test_a_power_cut_at_any_moment_keeps_what_threads_acknowledged(seed: int) -> None:
    check_copies(seed, writers=12, batches=25, copies=10)


@pytest.mark.slow
def test_many_power_cuts_at_any_moment_keep_what_threads_acknowledged(seed: int) -> None:
    for number in range(seed, seed + 40):
        check_copies(number, writers=30, batches=40, copies=25)


def wal_syncs(trace: list[tuple[str, str]]) -> int:
    return sum(operation == "sync" and path.endswith(".wal") for operation, path in trace)


def test_concurrent_writers_share_syncs_and_a_lone_one_gets_its_own() -> None:
    disk = FakeDisk()
    options = msgspec.structs.replace(THREADED, wal_shards=1, wal_file_bytes=1 << 20, segment_max_events=10_000)

    async def test() -> None:
        engine = open_engine(disk, options)
        engine.start(asyncio.get_running_loop())
        client = Client(engine)
        await client.put("sure", Durability.FSYNC)
        before = wal_syncs(disk.trace)
        for number in range(20):
            await client.append("sure", [number])
        assert wal_syncs(disk.trace) - before == 20

        async def writer(number: int) -> None:
            for turn in range(20):
                await client.append("sure", [f"{number}-{turn}"])

        before = wal_syncs(disk.trace)
        await asyncio.gather(*(writer(number) for number in range(50)))
        assert 20 <= wal_syncs(disk.trace) - before < 50 * 20 // 4
        await engine.close()

    run(test)


@pytest.mark.parametrize("ahead", [1, 2], ids=["write", "sync"])
def test_a_failed_commit_fails_exactly_its_batch_and_stops_the_shard(ahead: int) -> None:
    fs = FaultyFileSystem(disk := FakeDisk())
    options = msgspec.structs.replace(THREADED, wal_shards=1, wal_file_bytes=1 << 20, segment_max_events=10_000)

    async def test() -> None:
        engine = open_engine(fs, options)
        engine.start(asyncio.get_running_loop())
        client = Client(engine)
        await client.put("sure", Durability.FSYNC)
        for number in range(5):
            assert isinstance(await client.append("sure", [number]), AppendResult)
        before = dump(engine)
        fs.plan = FaultPlan(fs.calls + ahead)
        # All of these are handed over in one tick of the loop, so they are one commit.
        answers = await asyncio.gather(*(client.append("sure", [f"failed-{number}"]) for number in range(10)))
        assert [type(answer) for answer in answers] == [ReadOnlyError] * 10
        assert fs.failed == 1
        with pytest.raises(ReadOnlyError):
            await client.append("sure", ["refused"])
        assert dump(engine) == before
        await engine.close()

    run(test)
    engine = open_engine(disk.crash(Survival.NOTHING), options, "second")
    assert [kept.value for kept in dump(engine)["sure"].live.values()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("fault", [Fault.ENOSPC, Fault.EMFILE, Fault.ENOMEM], ids=lambda fault: str(fault.name))
def test_a_shard_that_met_a_shortage_writes_again(fault: Fault) -> None:
    """Frames queued behind the failed commit fail with it, and the numbers of the frames have no hole."""
    fs = FaultyFileSystem(disk := FakeDisk())
    options = msgspec.structs.replace(THREADED, wal_shards=1, wal_file_bytes=1 << 20, segment_max_events=10_000)

    async def test() -> None:
        engine = open_engine(fs, options)
        engine.start(asyncio.get_running_loop())
        client = Client(engine)
        await client.put("sure", Durability.FSYNC)
        assert isinstance(await client.append("sure", ["first"]), AppendResult)
        fs.plan = FaultPlan(fs.calls + 1, fault, lasting=True, until=fs.calls + 4, only=frozenset(("write", "create")))
        answers = await asyncio.gather(*(client.append("sure", [f"failed-{number}"]) for number in range(10)))
        assert {type(answer) for answer in answers} <= {DiskFullError, SystemBusyError}
        engine.housekeeper.tick()
        while engine.core.shards[0].writer.poison is not None or engine.core.room.short is not None:
            await asyncio.sleep(0)
            engine.housekeeper.tick()
        assert isinstance(await client.append("sure", ["second"]), AppendResult)
        await engine.close()

    run(test)
    engine = open_engine(disk.crash(Survival.NOTHING), options, "second")
    assert [kept.value for kept in dump(engine)["sure"].live.values()] == ["first", "second"]


def test_every_append_is_answered_once_on_a_real_disk(tmp_path: Path, seed: int) -> None:
    """Thousands of appends of all sizes, classes and rhythms: a lost wake-up would leave one of them waiting."""
    chance = random.Random(seed)
    options = msgspec.structs.replace(
        THREADED, data_dir=str(tmp_path / "data"), cold_dir=None, wal_file_bytes=1 << 18, segment_max_events=300
    )
    answers: list[object] = []

    async def writer(engine: Engine, number: int) -> None:
        client = Client(engine)
        name = ("sure", "quick", "loose", "fleeting")[number % 4]
        for turn in range(100):
            size = chance.choice((0, 0, 10, 1000, 20_000))
            answers.append(await client.append(name, [f"{number}-{turn}-" + "x" * size]))
            if chance.random() < 0.1:
                await asyncio.sleep(chance.random() * 0.002)

    async def test() -> None:
        engine = open_engine(PosixFileSystem(), options)
        engine.start(asyncio.get_running_loop())
        client = Client(engine)
        for name, durability in zip(("sure", "quick", "loose", "fleeting"), reversed(LOCAL), strict=True):
            await client.put(name, durability)
        await asyncio.gather(*(writer(engine, number) for number in range(32)))
        await engine.close()

    run(test)
    assert len(answers) == 3200
    assert all(isinstance(answer, AppendResult) for answer in answers)
    engine = open_engine(PosixFileSystem(), options)
    found = dump(engine)
    assert [len(found[name].live) for name in ("sure", "quick", "loose", "fleeting")] == [800, 800, 800, 0]
    engine.close_inline()
