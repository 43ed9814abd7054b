"""The engine under a real event loop, with its threads, on a real disk. No test looks at how long anything takes; the
timeouts are there so that a lost wake-up or a lost answer fails a test instead of hanging it.
"""

import asyncio
import random
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import uvloop

from tests.unit.conftest import LOCAL, batch_of
from topics.engine import sealing as sealing_module
from topics.engine.background_jobs import Job
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, ReadResult
from topics.engine.results import AppendResult, DeleteResult, DropResult, PutResult
from topics.log.fs import FileSystem
from topics.log.object_store.local_cache import LocalCopies
from topics.log.object_store.tiered_fs import tiered
from topics.log.posix import PosixFileSystem
from topics.log.segment_files import OpenSegment, SegmentKey
from topics.model.errors import CorruptSegmentError, ReadOnlyError, ShuttingDownError, TopicNotFoundError, TopicsError
from topics.model.records import Record
from topics.model.router_rules import DeleteSelector, TagMatch
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.system.clock import SystemClock
from topics.testing import FaultPlan, FaultyFileSystem, FolderStore, SeededEntropy

HANG_S = 30
Result = TypeVar("Result")
loops = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
NewLoop = Callable[[], asyncio.AbstractEventLoop]


def run(test: Awaitable[None], new_loop: NewLoop = asyncio.new_event_loop) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_await(test))


async def _await(test: Awaitable[None]) -> None:
    await test


def open_engine(folder: Path, fs: FileSystem | None = None, **options: object) -> Engine:
    settings = {"wal_shards": 2, "wal_file_bytes": 1 << 20, "cold_dir": str(folder / "cold"), **options}
    return Engine.recover(
        fs or PosixFileSystem(),
        EngineOptions(data_dir=str(folder / "data"), **settings),  # type: ignore[arg-type]
        SystemClock(),
        SeededEntropy(1),
        boot_id="a",
    )


def started(folder: Path, fs: FileSystem | None = None, **options: object) -> Engine:
    engine = open_engine(folder, fs, **options)
    engine.start(asyncio.get_running_loop())
    return engine


class Told(asyncio.Future[Result]):
    """An answer to wait for; a second answer raises."""

    def tell(self, outcome: Result | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)


def append(engine: Engine, name: str, *values: object, **batch: object) -> Told[AppendResult]:
    reported: Told[AppendResult] = Told()
    engine.append(name, batch_of(*values, **batch), reported.tell)  # type: ignore[arg-type]
    return reported


def put(engine: Engine, name: str, **config: object) -> Told[PutResult]:
    reported: Told[PutResult] = Told()
    engine.put_topic(name, TopicConfigPatch(**config), reported.tell)  # type: ignore[arg-type]
    return reported


def drop(engine: Engine, name: str) -> Told[DropResult]:
    reported: Told[DropResult] = Told()
    engine.drop_topic(name, False, reported.tell)
    return reported


def delete(engine: Engine, name: str, before_seq: int | None = None, tag: str | None = None) -> Told[DeleteResult]:
    reported: Told[DeleteResult] = Told()
    match = None if tag is None else TagMatch(tag)
    engine.delete_records(name, DeleteSelector(before_seq, match), reported.tell)
    return reported


def read(engine: Engine, name: str, from_seq: int = 0, limit: int = 1000) -> Told[ReadResult]:
    reported: Told[ReadResult] = Told()
    engine.read(name, ReadRequest(from_seq=from_seq, limit=limit), reported.tell)
    return reported


async def checkpoint(engine: Engine) -> bool:
    reported: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    engine.run_job(engine.checkpointer.job(then=reported.set_result))
    return await reported


async def soon(awaited: Awaitable[Result]) -> Result:
    async with asyncio.timeout(HANG_S):
        return await awaited


async def everything(engine: Engine, name: str) -> list[object]:
    found: list[object] = []
    cursor = 0
    while True:
        result = await soon(read(engine, name, cursor))
        found += [record["data"] for record in result.records()]
        if result.caught_up:
            return found
        cursor = result.next_from_seq


async def woken(engine: Engine, name: str) -> None:
    """Waits for the topic's next change, as a long poll does."""
    change: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def changed() -> None:
        if not change.done():
            change.set_result(None)

    cancel = engine.watch(name, changed)
    try:
        await soon(change)
    finally:
        cancel()


# Appending


@loops
def test_concurrent_appends_of_all_classes(tmp_path: Path, new_loop: NewLoop) -> None:
    async def test() -> None:
        engine = started(tmp_path)
        for durability in LOCAL:
            await soon(put(engine, durability.value, durability=durability))

        async def writer(name: str, number: int) -> list[int]:
            seqs = []
            for count in range(25):
                result = await soon(append(engine, name, f"{number}-{count}"))
                seqs.append(result.first_seq)
                # An acknowledged record can be read.
                assert (await soon(read(engine, name, result.first_seq - 1))).count >= 1
            return seqs

        for durability in LOCAL:
            name = durability.value
            found = await asyncio.gather(*(writer(name, number) for number in range(8)))
            assert all(seqs == sorted(seqs) for seqs in found)
            assert sorted(seq for seqs in found for seq in seqs) == list(range(1, 201))
        expected = {name.value: await everything(engine, name.value) for name in LOCAL}
        assert all(len(values) == 200 for values in expected.values())
        await soon(engine.close())

        again = started(tmp_path)
        for durability in LOCAL:
            values = await everything(again, durability.value)
            assert values == ([] if durability is Durability.EPHEMERAL else expected[durability.value])
            result = await soon(append(again, durability.value, "next"))
            assert result.first_seq >= 201
        await soon(again.close())

    run(test(), new_loop)


def test_a_tick_of_appends_is_answered_in_the_order_of_its_topic(tmp_path: Path) -> None:
    async def test() -> None:
        engine = started(tmp_path)
        names = [f"t{number}" for number in range(6)]
        for number, name in enumerate(names):
            await soon(put(engine, name, durability=LOCAL[number % 4]))
        order: dict[str, list[int]] = {name: [] for name in names}
        answers = []
        for number in range(200):
            name = names[number % 6]
            answer = append(engine, name, number)
            answer.add_done_callback(lambda done, name=name: order[name].append(done.result().first_seq))  # type: ignore[misc]
            answers.append(answer)
        await soon(asyncio.gather(*answers))
        await asyncio.sleep(0)
        assert all(seqs == sorted(seqs) for seqs in order.values())
        await soon(engine.close())

    run(test())


def test_the_same_key_from_many_callers_is_appended_once(tmp_path: Path) -> None:
    async def test() -> None:
        engine = started(tmp_path)
        await soon(append(engine, "t", 0))
        results = await soon(asyncio.gather(*(append(engine, "t", 1, key="k") for _ in range(50))))
        assert {result.first_seq for result in results} == {2}
        assert sum(not result.deduped for result in results) == 1
        assert await everything(engine, "t") == [0, 1]
        await soon(engine.close())

    run(test())


def test_many_topics_created_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        engine = started(tmp_path)
        results = await soon(asyncio.gather(*(append(engine, f"t{number % 40}", number) for number in range(120))))
        assert sum(result.created for result in results) == 40
        assert len(engine.list_topics()) == 40
        await soon(engine.close())
        again = started(tmp_path)
        assert len(again.list_topics()) == 40
        assert await everything(again, "t7") == [7, 47, 87]
        await soon(again.close())

    run(test())


# Waking


@loops
@pytest.mark.parametrize("seed", range(4))
def test_no_wake_up_is_lost(tmp_path: Path, new_loop: NewLoop, seed: int) -> None:
    """Readers that wait, writers that write at any moment: everything is delivered, and soon."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    count = 500

    async def reader(engine: Engine, name: str) -> list[int]:
        found: list[int] = []
        cursor = 0
        while len(found) < count:
            result = await soon(read(engine, name, cursor))
            found += [int(str(record["data"])) for record in result.records()]
            cursor = result.next_from_seq
            if result.caught_up and len(found) < count:
                # Between the read and the watch there is no await, or an append could come in between.
                await woken(engine, name)
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
        return found

    async def writer(engine: Engine, name: str) -> None:
        number = 0
        while number < count:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            size = min(rng.choice((1, 1, 1, 2, 5)), count - number)
            answer = append(engine, name, *range(number, number + size))
            number += size
            if rng.random() < 0.5:
                await soon(answer)

    async def test() -> None:
        engine = started(tmp_path, segment_max_events=100)
        names = ("ephemeral", "memory", "disk", "fsync")
        for name in names:
            await soon(put(engine, name, durability=Durability(name)))
        jobs = [reader(engine, name) for name in names for _ in range(2)]
        found = asyncio.gather(*jobs, *(writer(engine, name) for name in names))
        for result in (await found)[: len(jobs)]:
            assert result == list(range(count))
        await soon(engine.close())

    run(test(), new_loop)


def test_a_waiting_reader_is_woken_when_its_topic_goes(tmp_path: Path) -> None:
    async def test() -> None:
        engine = started(tmp_path)
        await soon(append(engine, "t", 1))
        waiting = asyncio.ensure_future(woken(engine, "t"))
        await asyncio.sleep(0)
        await soon(drop(engine, "t"))
        await soon(waiting)
        with pytest.raises(TopicNotFoundError):
            read(engine, "t")
        await soon(engine.close())

    run(test())


def test_watchers_of_one_commit_are_woken_once(tmp_path: Path) -> None:
    async def test() -> None:
        engine = started(tmp_path)
        await soon(append(engine, "t", 0))
        wakes = []

        def again() -> None:
            wakes.append(engine.info("t").head_seq)

        engine.watch("t", again)
        await soon(asyncio.gather(*(append(engine, "t", number) for number in range(20))))
        await asyncio.sleep(0)
        assert len(wakes) == 1
        await soon(engine.close())

    run(test())


# The cold folder


async def with_cold_segments(folder: Path) -> Engine:
    """Ten segments of one tagged record each, all of them in the cold folder."""
    engine = started(folder, segment_max_events=1, hot_retain_segments=0)
    for number in range(10):
        await soon(append(engine, "t", number, tag=f"x{number}"))
    idle: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    engine.sealer.when_idle(idle.set_result)
    assert await soon(idle) is None
    assert await soon(checkpoint(engine))
    moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def move() -> Job:
        yield from engine.housekeeper.relocate(engine.core.directory.load("t"))
        moved.set_result(None)

    engine.run_job(move())
    await soon(moved)
    assert all(segment.cold for segment in engine.core.directory.load("t").segments)
    return engine


class Gate:
    """Keeps the reader threads from opening segments until it is lifted, and records the threads that opened any."""

    def __init__(self, engine: Engine) -> None:
        self.lifted = threading.Event()
        self.threads: set[str] = set()
        self._open = engine.core.store.open
        engine.core.store.open = self.open  # type: ignore[method-assign]

    def open(self, key: SegmentKey) -> OpenSegment:
        self.threads.add(threading.current_thread().name)
        if threading.current_thread() is not threading.main_thread():
            assert self.lifted.wait(HANG_S)
        return self._open(key)


def test_cold_reads_are_answered_off_the_loop(tmp_path: Path) -> None:
    async def test() -> None:
        engine = await with_cold_segments(tmp_path)
        gate = Gate(engine)
        answer = read(engine, "t")
        # The loop goes on while the cold folder takes its time.
        assert (await soon(append(engine, "other", 1))).first_seq == 1
        assert not answer.done()
        gate.lifted.set()
        result = await soon(answer)
        assert [record["data"] for record in result.records()] == list(range(10))
        assert gate.threads
        assert all(name.startswith("reader") for name in gate.threads)
        await soon(engine.close())

    run(test())


def test_hot_reads_are_answered_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        engine = started(tmp_path, segment_max_events=1)
        await soon(append(engine, "t", 1))
        answer = read(engine, "t")
        assert answer.done()
        assert (await answer).count == 1
        await soon(engine.close())

    run(test())


def test_a_cold_read_that_retention_overtook_reads_again(tmp_path: Path) -> None:
    async def test() -> None:
        engine = await with_cold_segments(tmp_path)
        gate = Gate(engine)
        engine.core.store._cache.clear()
        answer = read(engine, "t")
        await soon(delete(engine, "t", before_seq=6))
        assert await soon(checkpoint(engine))
        gate.lifted.set()
        # The files it was going to read are gone: that is not damage, only an old plan.
        result = await soon(answer)
        assert [record["data"] for record in result.records()] == [5, 6, 7, 8, 9]
        await soon(engine.close())

    run(test())


def test_a_cold_read_that_a_drop_overtook_finds_no_topic(tmp_path: Path) -> None:
    async def test() -> None:
        engine = await with_cold_segments(tmp_path)
        gate = Gate(engine)
        engine.core.store._cache.clear()
        answer = read(engine, "t")
        await soon(drop(engine, "t"))
        assert await soon(checkpoint(engine))
        assert not (tmp_path / "cold" / "topics" / f"{1:016x}").exists()
        gate.lifted.set()
        with pytest.raises(TopicNotFoundError):
            await soon(answer)
        await soon(engine.close())

    run(test())


def test_a_cold_read_that_meets_damage_is_reported(tmp_path: Path) -> None:
    async def test() -> None:
        engine = await with_cold_segments(tmp_path)
        engine.core.store._cache.clear()
        damaged = tmp_path / "cold" / "topics" / f"{1:016x}" / f"seg-{1:020d}.idx"
        damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
        with pytest.raises(CorruptSegmentError) as raised:
            await soon(read(engine, "t"))
        assert (raised.value.detail["from_seq"], raised.value.detail["to_seq"]) == (1, 1)
        assert (await soon(read(engine, "t", 1))).count == 9
        await soon(engine.close())

    run(test())


def test_tags_in_sealed_segments_are_looked_up_off_the_loop(tmp_path: Path) -> None:
    async def test() -> None:
        engine = await with_cold_segments(tmp_path)
        gate = Gate(engine)
        answer = delete(engine, "t", tag="x3")
        # A record with the same tag that comes during the look-up is safe from it.
        await soon(append(engine, "t", "late", tag="x3"))
        assert not answer.done()
        gate.lifted.set()
        assert (await soon(answer)).deleted == 1
        assert await everything(engine, "t") == [0, 1, 2, 4, 5, 6, 7, 8, 9, "late"]
        await soon(engine.close())

    run(test())


def test_a_look_up_that_a_drop_overtook_finds_no_topic(tmp_path: Path) -> None:
    async def test() -> None:
        engine = await with_cold_segments(tmp_path)
        gate = Gate(engine)
        answer = delete(engine, "t", tag="x3")
        await soon(drop(engine, "t"))
        gate.lifted.set()
        with pytest.raises(TopicNotFoundError):
            await soon(answer)
        await soon(engine.close())

    run(test())


def test_a_look_up_that_a_stop_overtook_is_answered(tmp_path: Path) -> None:
    async def test() -> None:
        engine = await with_cold_segments(tmp_path)
        gate = Gate(engine)
        answer = delete(engine, "t", tag="x3")
        closing = asyncio.ensure_future(engine.close())
        await asyncio.sleep(0)
        gate.lifted.set()
        await soon(closing)
        with pytest.raises(ShuttingDownError):
            await soon(answer)

    run(test())


# Sealing and checkpoints under load


@pytest.mark.parametrize("backlog", [None, 2_000])
def test_everything_is_read_back_while_segments_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backlog: int | None
) -> None:
    """With a tiny bound on unwritten data, the log's writers are held back and let go again and again."""
    if backlog is not None:
        monkeypatch.setattr(sealing_module, "_BACKLOG_BYTES", backlog)

    async def test() -> None:
        engine = started(tmp_path, segment_max_events=20, snapshot_inline_bytes=500, wal_file_bytes=8192)
        expected: dict[str, list[object]] = {f"t{number}": [] for number in range(4)}
        for count in range(60):
            answers = []
            for name in expected:
                batch = [f"{name}-{count}-{number}" for number in range(5)]
                answers.append(append(engine, name, *batch))
                expected[name] += batch
            await soon(asyncio.gather(*answers))
            if count % 20 == 10:
                assert await soon(checkpoint(engine))
            if count % 7 == 0:
                assert all([await everything(engine, name) == values for name, values in expected.items()])
        assert all([await everything(engine, name) == values for name, values in expected.items()])
        await soon(engine.close())
        again = started(tmp_path)
        assert all([await everything(again, name) == values for name, values in expected.items()])
        await soon(again.close())

    run(test())


def test_a_copy_of_the_folder_between_two_answers_is_complete(tmp_path: Path) -> None:
    """A killed process leaves the written data: the same as a copy taken while nothing is on its way."""

    async def test() -> None:
        engine = started(tmp_path / "live", segment_max_events=10)
        await soon(put(engine, "t", durability=Durability.DISK))
        for round_number in range(4):
            running = asyncio.ensure_future(checkpoint(engine))
            await soon(asyncio.gather(*(append(engine, "t", (round_number, number)) for number in range(30))))
            assert await soon(running)
            idle: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            engine.sealer.when_idle(idle.set_result)
            await soon(idle)
            expected = await everything(engine, "t")
            assert len(expected) == 30 * (round_number + 1)
            copy = tmp_path / f"copy{round_number}"
            shutil.copytree(tmp_path / "live", copy)
            twin = open_engine(copy, segment_max_events=10)
            result = twin.read_now("t", ReadRequest(limit=1000))
            assert [record["data"] for record in result.records()] == expected
            twin.close_inline()
        await soon(engine.close())

    run(test())


# Stopping


def test_a_stop_answers_everything_that_was_accepted(tmp_path: Path) -> None:
    async def test() -> None:
        engine = started(tmp_path)
        for durability in LOCAL:
            await soon(put(engine, durability.value, durability=durability))
        answers = [append(engine, durability.value, number) for number in range(50) for durability in LOCAL]
        await soon(engine.close())
        assert all(answer.done() for answer in answers)
        assert all(answer.result().count == 1 for answer in answers)
        with pytest.raises(ShuttingDownError):
            append(engine, "memory", 1)
        again = started(tmp_path)
        for name in ("memory", "disk", "fsync"):
            assert await everything(again, name) == list(range(50))
        await soon(again.close())

    run(test())


def test_a_stop_ends_every_thread(tmp_path: Path) -> None:
    async def test() -> None:
        before = set(threading.enumerate())
        engine = started(tmp_path)
        await soon(append(engine, "t", 1))
        assert len(set(threading.enumerate()) - before) >= 4
        await soon(engine.close())
        assert set(threading.enumerate()) - before == set()

    run(test())


def test_a_stop_leaves_no_log_to_go_through(tmp_path: Path) -> None:
    async def test() -> None:
        engine = started(tmp_path)
        await soon(asyncio.gather(*(append(engine, f"t{number}", number) for number in range(20))))
        await soon(engine.close())
        assert list((tmp_path / "data" / "wal").rglob("*.wal")) == []
        again = open_engine(tmp_path)
        assert again.checkpointer.completed == 0
        assert append_inline(again, "t3") == 2
        again.close_inline()

    run(test())


def append_inline(engine: Engine, name: str) -> int:
    answers: list[AppendResult | TopicsError] = []
    engine.append(name, batch_of("more"), answers.append)
    (answer,) = answers
    assert isinstance(answer, AppendResult)
    return answer.first_seq


def test_reopening_again_and_again(tmp_path: Path) -> None:
    async def test() -> None:
        for number in range(6):
            engine = started(tmp_path, wal_shards=1 + number % 3)
            assert await everything(engine, "t") == list(range(number)) if number else engine.list_topics() == []
            await soon(append(engine, "t", number))
            await soon(engine.close())

    run(test())


def test_a_dead_disk_answers_everyone_and_lets_the_engine_stop(tmp_path: Path) -> None:
    async def test() -> None:
        faulty = FaultyFileSystem(PosixFileSystem())
        engine = started(tmp_path, faulty, wal_shards=1)
        await soon(put(engine, "t", durability=Durability.FSYNC))
        await soon(append(engine, "t", 1))
        faulty.plan = FaultPlan(call=faulty.calls + 1, lasting=True)
        results = await soon(asyncio.gather(*(append(engine, "t", n) for n in range(10)), return_exceptions=True))
        assert all(isinstance(result, ReadOnlyError) for result in results)
        assert await everything(engine, "t") == [1]
        with pytest.raises(ReadOnlyError):
            append(engine, "t", 2)
        await soon(engine.close())
        faulty.plan = FaultPlan()
        again = started(tmp_path)
        assert await everything(again, "t") == [1]
        await soon(append(again, "t", Record.of(2)))
        await soon(again.close())

    run(test())


# An object store


class SlowStore(FolderStore):
    """Notes which threads call it, and can be made to keep them all waiting."""

    def __init__(self, folder: Path) -> None:
        super().__init__(PosixFileSystem(), str(folder / "store"))
        self.answers = threading.Event()
        self.answers.set()
        self.threads: set[str] = set()

    def _call(self, operation: str, name: str, call: Callable[[], Result]) -> Result:
        self.threads.add(threading.current_thread().name)
        assert threading.current_thread() is not threading.main_thread(), "the loop waits for the store"
        assert self.answers.wait(HANG_S)
        return super()._call(operation, name, call)


def test_the_loop_never_waits_for_an_object_store(tmp_path: Path) -> None:
    url, store = "s3://bucket/cold", SlowStore(tmp_path)
    copies = LocalCopies(PosixFileSystem(), str(tmp_path / "data" / "near"), 1_000_000)
    fs = tiered(PosixFileSystem(), url, store, copies)

    async def test() -> None:
        options = {"segment_max_events": 4, "hot_retain_segments": 0, "cold_dir": url}
        # A start is not on the loop: the server recovers on its own thread.
        engine = await asyncio.to_thread(open_engine, tmp_path, fs, **options)
        engine.start(asyncio.get_running_loop())
        for number in range(1, 11):
            await soon(append(engine, "t", number, tag="even" if number % 2 == 0 else "odd"))
        idle: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        engine.sealer.when_idle(idle.set_result)
        await soon(idle)
        assert await soon(checkpoint(engine))
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def move() -> Job:
            yield from engine.housekeeper.relocate(engine.core.directory.load("t"))
            moved.set_result(None)

        engine.run_job(move())
        await soon(moved)
        assert all(segment.cold for segment in engine.core.directory.load("t").segments)

        store.answers.clear()
        answer = read(engine, "t")
        assert (await soon(delete(engine, "t", tag="even"))).deleted == 5
        assert (await soon(delete(engine, "t", before_seq=4))).deleted == 2
        assert (await soon(put(engine, "t", cap_records=2))) is not None
        assert (await soon(put(engine, "t", cap_records=2, ttl_ms=3_600_000))) is not None
        engine.housekeeper.tick()
        assert (await soon(append(engine, "t", 11))).first_seq == 11
        assert not answer.done()
        store.answers.set()
        assert (await soon(answer)).count > 0  # The planned work before the changes, less the changes it saw.
        assert await soon(checkpoint(engine))
        assert await everything(engine, "t") == [9, 11]
        await soon(engine.close())

    run(test())
    assert {name.split("_")[0] for name in store.threads} >= {"reader", "upkeep"}
