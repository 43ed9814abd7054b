"""Reads that fail, one at a time, of every file that a running engine reads: only requests that need the file are
refused.

`test_unreadable_sectors` has the same by sectors, and `test_failed_call_sweeps` every read of a start.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
import pytest

from tests.crash.test_index_build_crash_sweeps import LAYOUT as INDEXED
from tests.crash.test_index_build_crash_sweeps import World as IndexedWorld
from tests.crash.test_index_build_crash_sweeps import check, check_complete, prepare, run_all
from tests.crash.test_unreadable_sectors import read_around
from tests.crash.wreckage import BOOT, OPTIONS, build, show
from topics.engine.background_jobs import Job
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.model.router_rules import DeleteSelector, TagMatch
from topics.search.service.backend import InlineSearcher, at_once
from topics.search.service.index_file_cache import IndexFiles
from topics.search.service.search_service import StreamSearch
from topics.spark.pipeline.rounds import ShortError
from topics.testing import NO_FAULTS, FakeDisk, FaultPlan, FaultyFileSystem, ManualClock, SeededEntropy, Survival

READS = frozenset(("open", "read", "size", "map", "list_dir", "exists"))
BACKED_UP = msgspec.structs.replace(OPTIONS, backup_dir="place", map_cache_bytes=1)
"""One segment at a time stays open, so that most reads open theirs."""


class Life:
    """An engine on a disk whose n-th read fails, and its requests."""

    def __init__(self, disk: FakeDisk, options: EngineOptions, call: int | None) -> None:
        self.fs = FaultyFileSystem(disk)
        self.engine = Engine.recover(self.fs, options, ManualClock(), SeededEntropy(2), boot_id=BOOT, backup_fs=self.fs)
        self.fs.plan = FaultPlan(call and self.fs.calls + call, include_reads=True, only=READS)
        self.begun = self.fs.calls
        self.answers: list[object] = []
        self.names = ("orders", "events", "small", "plain", "capped", "late")

    def run(self) -> None:
        engine = self.engine
        for name in self.names:
            self._ask(lambda name=name: read_around(engine, name))  # type: ignore[misc]
            self._ask(lambda name=name: engine.read_now(name, ReadRequest(nodes=('a"node',))))  # type: ignore[misc]
        self._ask(lambda: engine.delete_records("events", DeleteSelector(None, TagMatch("tag0")), self.answers.append))
        self._ask(lambda: engine.append("orders", Batch(records=[Record.of("new")]), self.answers.append))
        self._job(engine.checkpointer.job())
        self._job(engine.housekeeper.relocate(engine.core.directory.load("events")))
        self._job(engine.checkpointer.job())
        self._ask(lambda: engine.backups.take(self.answers.append))
        for _ in range(3):
            engine.housekeeper.tick()
        self._ask(lambda: read_around(engine, "events"))

    def _ask(self, ask: Callable[[], object]) -> None:
        try:
            ask()
        except TopicsError as error:
            self.answers.append(error)

    def _job(self, job: Job) -> None:
        self.engine.run_job(job)

    @property
    def trace(self) -> list[tuple[str, str]]:
        return self.fs.trace[self.begun :]


def reads(options: EngineOptions) -> Iterator[tuple[int, str, str]]:
    """Every read of a life: its number among all calls, its kind and its file."""
    disk, _ = build()
    life = Life(disk, options, None)
    life.run()
    for number, (operation, path) in enumerate(life.trace, start=1):
        if operation in READS:
            yield number, operation, path


@pytest.mark.parametrize("paged", [False, True])
def test_failed_read_of_any_file_costs_what_needed_it_and_nothing_else(paged: bool) -> None:
    """Every fifth read."""
    sweep(paged, 5)


@pytest.mark.slow
@pytest.mark.parametrize("paged", [False, True])
def test_failed_read_at_any_call_costs_what_needed_it_and_nothing_else(paged: bool) -> None:
    sweep(paged, 1)


def sweep(paged: bool, step: int) -> None:
    options = msgspec.structs.replace(BACKED_UP, awake_topics=2) if paged else BACKED_UP
    folder, _ = build()
    live = {shown.name: set(shown.records) for shown in show(folder).values()}
    kinds: Counter[str] = Counter()
    for number, operation, path in islice(reads(options), 0, None, step):
        disk = folder.clone()
        life = Life(disk, options, number)
        life.run()
        where = f"call {number}, {operation} {path}"
        assert life.fs.failed, where
        kinds[path.rpartition("/")[2].rpartition(".")[2]] += 1
        assert not life.engine.read_only_shards, where
        life.fs.plan = NO_FAULTS
        assert_intact(life.engine, live, where)
        succeeded: list[bool] = []
        life.engine.run_job(life.engine.checkpointer.job(then=succeeded.append))
        assert succeeded == [True], where
        life.engine.backups.take(life.answers.append)
        assert not isinstance(life.answers[-1], Exception), f"{where}: {life.answers[-1]}"
        again = Engine.recover(disk.crash(Survival.EVERYTHING), OPTIONS, ManualClock(), SeededEntropy(5), boot_id=BOOT)
        assert_intact(again, live, where)
    assert {"data", "idx", "bin"} <= kinds.keys()
    assert sum(kinds.values()) > 100 / step


def assert_intact(engine: Engine, live: dict[str, set[int]], where: str) -> None:
    for name, expected in live.items():
        served, lost = read_around(engine, name)
        assert not lost, f"{where}: {name}"
        if name not in ("events", "orders"):
            assert set(served) == expected, f"{where}: {name}"
        # Additions and deletes of the scenario may have failed.
        assert set(served) - expected <= ({max(served)} if name == "orders" else set()), f"{where}: {name}"
        assert name == "events" or expected <= set(served), f"{where}: {name}"


class Indexed(IndexedWorld):
    """Streams whose index files are read through a file system whose n-th read fails."""

    def __init__(self, disk: FakeDisk, clock: ManualClock) -> None:
        super().__init__(disk, clock)
        self.reader = fs = FaultyFileSystem(disk)
        searcher = InlineSearcher(clock.monotonic, lambda path: fs.open(path).map())
        self.index_files = IndexFiles(fs, INDEXED, clock.monotonic)
        self.streams.search = StreamSearch(
            self.engine, searcher, at_once, clock.monotonic, stream_bytes=0, index_files=self.index_files
        )

    def fail(self, number: int | None) -> None:
        call = None if number is None else self.reader.calls + number
        self.reader.plan = FaultPlan(call, include_reads=True, only=READS)


def test_failed_read_of_an_index_file_or_manifest_leaves_searches_complete_and_right() -> None:
    world = prepare()
    expected = {name: world.answers(name) for name in ("logs", "plan")}
    run_all(world.disk, world.clock, 9)
    check_complete(world.disk)
    paths: Counter[str] = Counter()
    number, failed = 0, True
    while failed:
        number += 1
        searched = Indexed(world.disk.clone().crash(Survival.EVERYTHING), world.clock)
        searched.fail(number)
        assert {name: searched.answers(name) for name in expected} == expected, number
        failed = searched.reader.failed > 0
        if failed:
            paths[searched.reader.trace[number - 1][1].rpartition(".")[2]] += 1
        # An unreadable index file is left alone; unknown answers are searched again.
        searched.fail(None)
        world.clock.advance(2_000)
        assert {name: searched.answers(name) for name in expected} == expected, number
    assert {"companion", "json"} <= paths.keys()


def test_failed_read_of_a_pipeline_publishes_nothing_wrong_and_the_next_run_finishes() -> None:
    world = prepare()
    expected = {name: world.answers(name) for name in ("logs", "plan")}
    fs = FaultyFileSystem(world.disk.clone(), FaultPlan(None, include_reads=True, only=READS))
    run_all(fs, world.clock, 11)
    due = [number for number, (operation, _) in enumerate(fs.trace, start=1) if operation in READS]
    assert len(due) > 100
    for number in due[::5]:
        disk = world.disk.clone()
        faulty = FaultyFileSystem(disk, FaultPlan(number, include_reads=True, only=READS))
        clock = ManualClock(world.clock.now_ms())
        try:
            run_all(faulty, clock, 11)
        except (OSError, ShortError, TopicsError, AssertionError):
            # A topic that failed is tried again later, so that this run does not come to an end.
            assert faulty.failed, number
        check(disk)
        disk = disk.crash(Survival.EVERYTHING)
        opened = IndexedWorld(disk, clock)
        assert {name: opened.answers(name) for name in expected} == expected, number
        clock.advance(3_600_000)
        run_all(disk, clock, 12)
        check_complete(disk)
        clock.advance(2_000)
        assert {name: opened.answers(name) for name in expected} == expected, number
