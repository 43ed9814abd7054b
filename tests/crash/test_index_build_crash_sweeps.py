"""A pipeline that is stopped at any file-system call leaves companions that are valid, and the next run finishes them.

The promise: every file in a manifest exists, is whole, and covers the entries that the manifest lists; answers are the
same before, in between and afterwards; and after a complete run everything sealed has a companion and nothing is left
over.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from topics.engine.background_jobs import InlineRunner
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.log.catalog_files import read_catalog
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.model.errors import TopicsError
from topics.model.seq_ranges import covers
from topics.search.file_index.manifest import IndexStore
from topics.search.file_index.reader import IndexFile
from topics.search.service.backend import InlineSearcher, at_once
from topics.search.service.index_file_cache import IndexFileCache, IndexFiles
from topics.search.service.search_service import StreamSearch
from topics.search.worker.messages import Close, SearchQuery
from topics.spark.index_builds.index_plan import IndexRules, subject_of
from topics.spark.pipeline.executors import PRODUCT_TASKS, InlineExecutor
from topics.spark.pipeline.index_product import IndexProduct
from topics.spark.pipeline.rounds import Pipeline, ShortError
from topics.spark.pipeline.segment_scan import run_piece
from topics.spark.pipeline.task_packing import FrameRules
from topics.streams.append import AppendRequest
from topics.streams.lifecycle import CreateRequest
from topics.streams.streams import Streams
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock, PowerCut, SeededEntropy, Survival
from topics.testing.faults import LACK_OF_ROOM

LAYOUT = Layout("data")
OPTIONS = EngineOptions(data_dir="data", wal_shards=1, wal_file_bytes=65536)
JSON = "application/json"
ENDINGS = [Survival.EVERYTHING, Survival.NOTHING, Survival.TORN, Survival.SCATTERED]
_RETIRED_MS = 600_001


def description(*more: str) -> bytes:
    fields: dict[str, Any] = {
        "time": {"kind": "date", "column": True, "sortable": True},
        "word": {"kind": "text", "analyzer": "unicode_word_v1", "positions": True},
        **{name: {"kind": "integer", "exact": True, "column": True} for name in ("n", *more)},
    }
    for name, field in fields.items():
        field["bindings"] = [{"version": 1, "jsonPointer": f"/{name}"}]
    return json.dumps({"schema": {}, "search": {"primaryTimestampField": "time", "fields": fields}}).encode()


class World:
    """An engine on a disk, and the clock of both it and the pipeline."""

    def __init__(
        self,
        disk: FakeDisk,
        clock: ManualClock,
        layout: Layout = LAYOUT,
        options: EngineOptions = OPTIONS,
        fs: FileSystem | None = None,
        cache_bytes: int = 0,
    ) -> None:
        """With another `fs` the cold tier is an object store."""
        self.disk, self.clock = disk, clock
        self.engine = Engine.recover(fs or disk, options, clock, SeededEntropy(1), boot_id="a")
        searcher = InlineSearcher(clock.monotonic, lambda path: disk.open(path).map())

        def let_go(path: str) -> None:
            searcher.send(Close(path))

        far = self.engine.core.store.far
        self.cache = None if far is None else IndexFileCache(far, layout, cache_bytes, InlineRunner(), let_go)
        index_files = IndexFiles(disk, layout, clock.monotonic, self.cache, let_go)
        search = StreamSearch(self.engine, searcher, at_once, clock.monotonic, stream_bytes=0, index_files=index_files)
        self.streams = Streams(self.engine, search=search)

    @staticmethod
    def ask(start: Any) -> Any:
        answers: list[Any] = []
        start(answers.append)
        assert not isinstance(answers[0], TopicsError), answers
        return answers[0]

    def create(self, name: str) -> None:
        self.ask(lambda done: self.streams.create(name, CreateRequest(content_type=JSON), done))
        self.describe(name)

    def describe(self, name: str, *more: str) -> None:
        """Replaces the description; a first one brings a schema along."""
        body = json.loads(description(*more))
        if more:
            del body["schema"]
        self.ask(lambda done: self.streams.update_schema(name, json.dumps(body).encode(), done))

    def append(self, name: str, first: int, count: int, key: str | None = None) -> None:
        entries = [{"n": n, "time": n, "word": f"w{n} all"} for n in range(first, first + count)]
        request = AppendRequest(body=json.dumps(entries).encode(), content_type=JSON, key=key)
        self.ask(lambda done: self.streams.append(name, request, done))

    def seal(self) -> None:
        for topic in self.engine.core.directory.resident.values():
            self.engine.core.before_change(topic)
            self.engine.sealer.cut(topic)
        self.engine.run_job(self.engine.checkpointer.job())

    def answers(self, name: str) -> list[list[int]]:
        topic = self.streams.topic(name)
        found = []
        for q, sort in (("word:all", ("offset:asc",)), ("n:>=7", ("time:desc",)), ('word:"w3 all"', ())):
            outcome = self.ask(
                lambda done, q=q, sort=sort: self.streams.search.query(topic, SearchQuery(q, sort, 50), 3.0, done)
            )
            assert outcome.complete
            found.append([hit.seq for hit in outcome.result.hits])
        return found


def pipeline(fs: FileSystem, clock: ManualClock, seed: int, executor: InlineExecutor | None = None) -> Pipeline:
    product = IndexProduct(fs, LAYOUT, IndexRules(fan_out=2), SeededEntropy(seed))
    rules = FrameRules(group_bytes=1)
    return Pipeline(fs, LAYOUT, [product], executor or InlineExecutor(fs), clock, rules, acks_deletes=False)


def run_all(fs: FileSystem, clock: ManualClock, seed: int, executor: InlineExecutor | None = None) -> Pipeline:
    made = pipeline(fs, clock, seed, executor)
    for _ in range(50):
        if not made.round():
            return made
    raise AssertionError("the pipeline never comes to an end")


def prepare() -> World:
    """A folder with something of everything to do: new segments, merges, another plan, retired files, a drop."""
    world = World(FakeDisk(), ManualClock())
    for name in ("logs", "plan", "gone"):
        world.create(name)
    for first in range(0, 12, 3):
        for name in ("logs", "plan", "gone"):
            world.append(name, first, 3)
        world.seal()
    run_all(world.disk, world.clock, 5)
    world.clock.advance(_RETIRED_MS)
    world.describe("plan", "more")
    world.ask(lambda done: world.streams.delete("gone", done))
    for first in range(12, 18, 3):
        world.append("logs", first, 3)
        world.seal()
    return world


def check(fs: FileSystem) -> None:
    """Checks the invariants of the manifests."""
    store = IndexStore(fs, LAYOUT)
    for topic_id in store.topic_ids():
        manifest = store.load(topic_id)
        for file in () if manifest is None else manifest.files:
            index_file = IndexFile(store.map(topic_id, file.name))
            index_file.check()
            head = index_file.head
            assert (head.first, head.last, head.rows, head.generation) == (
                file.first, file.last, file.rows, file.generation,
            )  # fmt: skip
            assert head.rows == file.last - file.first + 1


def check_complete(fs: FileSystem) -> None:
    """Everything sealed has a companion by the plan that holds, and nothing else is there."""
    store, catalog = IndexStore(fs, LAYOUT), read_catalog(fs, LAYOUT)
    assert catalog is not None
    by_name = catalog.by_name()
    assert sorted(by_name) == ["logs", "plan"]
    assert sorted(store.topic_ids()) == sorted(topic.topic_id for topic in by_name.values())
    for topic in by_name.values():
        manifest, subject = store.load(topic.topic_id), subject_of(topic.contract)
        assert manifest is not None and subject is not None
        assert covers(manifest.covered(subject.generation), 1, topic.segments[-1].last_seq)
        assert {file.generation for file in manifest.files} == {subject.generation}
        assert set(store.files(topic.topic_id)) == manifest.named()


@pytest.mark.parametrize("ending", range(4))
def test_a_stop_at_any_call_leaves_valid_index_files_that_the_next_run_completes(ending: int) -> None:
    """Every third call, each with one of the endings in turn."""
    sweep(ENDINGS[ending], 1 + 3 * ending, 12)


@pytest.mark.slow
@pytest.mark.parametrize("survival", ENDINGS)
def test_a_stop_at_any_call_in_every_ending(survival: Survival) -> None:
    sweep(survival, 1, 1)


def sweep(survival: Survival, first: int, step: int) -> None:
    world = prepare()
    expected = {name: world.answers(name) for name in ("logs", "plan")}
    assert expected["logs"][0] == list(range(1, 19))
    start, clock = world.disk, world.clock
    whole = start.clone()
    before = whole.call_count
    run_all(whole, clock, 11)
    calls = whole.call_count - before
    assert calls > 100
    check_complete(whole)
    for call in range(first, calls + 1, step):
        disk = start.clone()
        disk.stop_before = disk.call_count + call
        with pytest.raises(PowerCut):
            run_all(disk, clock, 11)
        after = disk.crash(survival, seed=call)
        check(after)
        opened = World(after, clock)
        assert {name: opened.answers(name) for name in expected} == expected, call
        run_all(after, clock, 12 + call)
        check(after)
        check_complete(after)
        clock.advance(2_000)
        assert {name: opened.answers(name) for name in expected} == expected, call


def retired_bytes(fs: FileSystem) -> int:
    """Returns the bytes that a run removes before it writes anything."""
    store = IndexStore(fs, LAYOUT)
    found = [(topic_id, store.load(topic_id)) for topic_id in store.topic_ids()]
    names = [(topic_id, one.name) for topic_id, manifest in found if manifest is not None for one in manifest.retired]
    return sum(len(store.map(topic_id, name)) for topic_id, name in names)


@pytest.mark.parametrize("room", [-3_000, -1_000, 0, 300])
def test_a_full_disk_is_nobodys_fault_and_searches_go_on(room: int) -> None:
    world = prepare()
    expected = {name: world.answers(name) for name in ("logs", "plan")}
    world.disk.capacity_bytes = world.disk.used_bytes - retired_bytes(world.disk) + room
    with pytest.raises((ShortError, OSError)):
        run_all(world.disk, world.clock, 7)
    world.clock.advance(2_000)
    check(world.disk)
    assert {name: world.answers(name) for name in expected} == expected
    world.disk.capacity_bytes = None
    made = run_all(world.disk, world.clock, 8)
    assert made.status.quarantined == ()
    check_complete(world.disk)
    world.clock.advance(2_000)
    assert {name: world.answers(name) for name in expected} == expected
    world.append("logs", 18, 1)


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_a_call_without_room_publishes_nothing_half_and_its_room_comes_back_at_once(lasting: bool) -> None:
    """Every fourth call that needs room, some of them without any and some with room for half of a write."""
    sweep_room(1 + lasting, 4, lasting)


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_any_call_without_room_publishes_nothing_half(lasting: bool) -> None:
    sweep_room(1, 1, lasting)


def sweep_room(first: int, step: int, lasting: bool) -> None:
    world = prepare()
    expected = {name: world.answers(name) for name in ("logs", "plan")}
    start, clock = world.disk, world.clock
    counting = FaultyFileSystem(start.clone())
    run_all(counting, clock, 11)
    calls = [call for call, (operation, _) in enumerate(counting.trace, 1) if operation in LACK_OF_ROOM]
    failed = 0
    for place, call in enumerate(calls[first - 1 :: step]):
        fault = Fault.SHORT if counting.trace[call - 1][0] == "write" and place % 2 else Fault.ENOSPC
        only = frozenset(("write",)) if fault is Fault.SHORT else LACK_OF_ROOM
        faulty = FaultyFileSystem(disk := start.clone(), FaultPlan(call, fault, lasting, only=only))
        try:
            run_all(faulty, clock, 11)
        except (ShortError, OSError):
            failed += 1
        # Appends that need the room cannot wait for the next run.
        check_nothing_is_left_over(disk, call)
        check(disk)
        opened = World(disk, clock)
        assert {name: opened.answers(name) for name in expected} == expected, call
        made = run_all(disk, clock, 12 + call)
        assert made.status.quarantined == (), call
        check(disk)
        check_complete(disk)
        clock.advance(2_000)
        assert {name: opened.answers(name) for name in expected} == expected, call
    assert failed > 10


class Haunted(InlineExecutor):
    """Behind every task comes another attempt at it without a waiting caller, and it does not get far."""

    def __init__(self, fs: FileSystem) -> None:
        super().__init__(fs)
        self.ghosts = 0

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        outcomes = list(super().run(works, about))
        for work in works:
            ghost = FaultyFileSystem(self._fs, FaultPlan(5, Fault.SHORT, lasting=True))
            run_piece(ghost, PRODUCT_TASKS, work)
            self.ghosts += ghost.failed > 0
        return iter(outcomes)


def test_an_attempt_that_nobody_waits_for_harms_no_file() -> None:
    world = prepare()
    expected = {name: world.answers(name) for name in ("logs", "plan")}
    executor = Haunted(world.disk)
    run_all(world.disk, world.clock, 11, executor)
    assert executor.ghosts > 3
    check(world.disk)
    world.clock.advance(2_000)
    assert {name: world.answers(name) for name in expected} == expected
    # It could not remove its files; the next run does.
    run_all(world.disk, world.clock, 12)
    check_complete(world.disk)


def test_what_a_failed_job_left_is_removed_with_the_next_commit_of_the_stream() -> None:
    """A process that always has work to do is never restarted."""
    world = prepare()
    made = pipeline(world.disk, world.clock, 11, Haunted(world.disk))
    while made.round():
        pass
    store = IndexStore(world.disk, LAYOUT)
    topic_id = world.streams.topic("logs").id
    manifest = store.load(topic_id)
    assert manifest is not None and set(store.files(topic_id)) > manifest.named()
    made._executor = InlineExecutor(world.disk)
    world.append("logs", 18, 3)
    world.seal()
    assert made.round()
    manifest = store.load(topic_id)
    assert manifest is not None and set(store.files(topic_id)) == manifest.named()


def check_nothing_is_left_over(fs: FileSystem, call: int) -> None:
    store = IndexStore(fs, LAYOUT)
    for topic_id in store.topic_ids():
        manifest = store.load(topic_id)
        named = set() if manifest is None else manifest.named()
        assert set(store.files(topic_id)) <= named, call
