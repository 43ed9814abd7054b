"""Queries on companions in the cold tier: the ranges fetched, the cached files, and the handling of failures."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.crash.test_index_files_follow_segments import (
    RETIRED_MS,
    STORE,
    ColdWorld,
    check_settled,
    each_tier,
    guest,
    manifests,
    run_all,
)
from topics.api.v1.stream_details import index_status, object_store_requests, storage_of
from topics.engine.background_jobs import InlineRunner, Job
from topics.log.layout import Layout
from topics.log.object_store.tiered_fs import tiered
from topics.log.segment_files import SegmentKey
from topics.model.router_rules import DeleteSelector, parse_match
from topics.search.file_index.manifest import IndexFileEntry, IndexStore, check_index_files
from topics.search.service import index_skip_scan
from topics.search.service.backend import InlineSearcher
from topics.search.service.index_file_cache import Fetched, IndexFileCache, IndexFileCoverage, IndexFiles, Remote
from topics.search.service.search_service import StreamSearch
from topics.search.worker.messages import SearchQuery
from topics.spark.index_builds.index_plan import outdated
from topics.streams.read import ReadSpec
from topics.streams.streams import Streams
from topics.testing import FakeDisk, FolderStore, ManualClock, Survival

_ALL = "word:all"


def settled(cold: str, cache_bytes: int = 1 << 20) -> ColdWorld:
    """Two companions of 12 and 3 entries in the cold tier, and nothing of them in the data folder."""
    world = ColdWorld(FakeDisk(), ManualClock(), cold, cache_bytes)
    world.create("logs")
    for first in range(0, 15, 3):
        world.append("logs", first, 3, key=f"k{first}")
        world.seal()
    world.move_all()
    world.clock.advance(2_000)
    return world


def files_of(world: ColdWorld) -> tuple[IndexFileEntry, ...]:
    (manifest,) = manifests(guest(world.disk, world.cold), world.cold).values()
    return manifest.files


def asked(world: ColdWorld) -> tuple[int, int]:
    """The number of segments that companions answered for, and the number scanned, with the right answer."""
    topic = world.streams.topic("logs")
    query = SearchQuery(_ALL, ("offset:asc",), 50)
    outcome = world.ask(lambda done: world.streams.search.query(topic, query, 3.0, done))
    assert outcome.complete
    assert [hit.seq for hit in outcome.result.hits] == list(range(1, 16))
    return outcome.indexed_segments, outcome.scanned_segments


def near_files(world: ColdWorld) -> list[str]:
    root = "data/near/families"
    if not world.disk.exists(root):
        return []
    return [name for folder in world.disk.list_dir(root) for name in world.disk.list_dir(f"{root}/{folder}")]


def outcomes(world: ColdWorld) -> dict[str, int]:
    return {name: count for name, count in world.streams.search.stats().fetches.items() if count}


@each_tier
def test_index_files_in_the_cold_tier_answer(cold: str) -> None:
    world = settled(cold)
    assert asked(world) == (5, 0)
    assert asked(world) == (5, 0)
    if cold == STORE:
        assert outcomes(world) == {"ok": 2}
        assert sorted(near_files(world)) == sorted(file.name for file in files_of(world))
        assert world.streams.search.stats().cache_bytes == sum(file.bytes for file in files_of(world))


@each_tier
def test_where_the_bytes_are_is_reported(cold: str) -> None:
    """Each once, whichever families are in it."""
    world = ColdWorld(FakeDisk(), ManualClock(), cold)
    world.create("logs")
    for first in (0, 3):
        world.append("logs", first, 3)
        world.seal()
    world.run(5)
    assert world.streams.search.index_files is not None
    coverage = IndexFileCoverage(world.streams.search.index_files)
    topic = world.streams.topic("logs")
    for is_cold in (False, True):
        world.clock.advance(2_000)
        size = sum(file.bytes for file in files_of(world))
        assert [file.cold for file in files_of(world)] == [is_cold]
        store = world.engine.segments
        storage, status = storage_of(topic, coverage, store, 0, 0), index_status(topic, coverage)["bundled_companions"]
        remote, local = storage["object_storage"], storage["local_storage"]
        # A segment is two objects, or files: its data, and its index.
        stored = {"data": 0, "idx": 0}
        for segment in topic.segments:
            path = store.path(SegmentKey(topic.id, segment.first_seq, segment.cold))
            for ending in stored:
                stored[ending] += store._fs.open(f"{path}.{ending}").size()
        of_segments = sum(stored.values())
        assert remote["segments_bytes"] == str(stored["data"] if is_cold else 0)
        assert remote["indexes_bytes"] == str(stored["idx"] + size if is_cold else 0)
        assert {name: count for name, count in remote.items() if name.endswith("_count") and count} == (
            {
                "segment_object_count": 2, "routing_index_object_count": 1, "routing_lexicon_object_count": 1,
                "exact_index_object_count": 1, "bundled_companion_object_count": 1,
            }
            if is_cold
            else {}
        )  # fmt: skip
        assert local["segment_cache_bytes"] == str(0 if is_cold else of_segments)
        assert local["companion_cache_bytes"] == str(0 if is_cold else size)
        assert status["bytes_at_rest"] == str(size)
        assert status.get("cold_bytes_at_rest") == (str(size) if is_cold else None)
        assert sum(int(place["total_bytes"]) for place in (remote, local)) == size + of_segments
        requests = object_store_requests({}, coverage.manifest(topic).uploads)
        moved = [("bundled_companion", "1", "0")] if is_cold else []
        assert [(row["artifact"], row["puts"], row["gets"]) for row in requests["by_artifact"]] == moved
        assert requests["puts"] == str(len(moved))
        world.relocate()
        world.run(6)
    # A search fetches index files from an object store, and keeps copies.
    world.answers("logs")
    copies = storage_of(topic, coverage, store, 0, 0)["local_storage"]["companion_cache_bytes"]
    assert copies == str(size if cold == STORE else 0)


def test_a_start_empties_the_cache() -> None:
    world = settled(STORE)
    expected = world.answers("logs")
    assert near_files(world)
    again = ColdWorld(world.disk.crash(Survival.EVERYTHING), world.clock, STORE)
    assert near_files(again) == []
    assert again.answers("logs") == expected
    assert outcomes(again) == {"ok": 2}


def test_a_cache_for_one_of_two_takes_turns() -> None:
    whole = settled(STORE)
    expected = whole.answers("logs")
    largest = max(file.bytes for file in files_of(whole))
    world = ColdWorld(whole.disk.crash(Survival.EVERYTHING), whole.clock, STORE, cache_bytes=largest)
    for _ in range(3):
        assert world.answers("logs") == expected
        assert asked(world) == (5, 0)
        assert len(near_files(world)) == 1
        assert world.streams.search.stats().cache_bytes <= largest
    assert outcomes(world)["ok"] > 3


@pytest.mark.parametrize("cache_bytes", [0, 100])
def test_an_index_file_that_is_larger_than_the_cache_is_not_fetched(cache_bytes: int) -> None:
    whole = settled(STORE)
    expected = whole.answers("logs")
    world = ColdWorld(whole.disk.crash(Survival.EVERYTHING), whole.clock, STORE, cache_bytes)
    assert world.answers("logs") == expected
    assert asked(world) == (0, 5)
    assert outcomes(world) == {}


def test_a_store_without_index_files_leaves_searches_to_the_entries() -> None:
    """The entries are in the local cache, because they were read recently."""
    whole = settled(STORE)
    expected = whole.answers("logs")
    world = ColdWorld(whole.disk.crash(Survival.EVERYTHING), whole.clock, STORE)
    world.store.fails = lambda call: "families/" in world.store.trace[-1][1]
    assert world.answers("logs") == expected
    assert asked(world) == (0, 5)
    failed = outcomes(world)
    assert failed["unavailable"] >= 1 and "ok" not in failed
    # It is left alone for a while, and tried again then.
    assert asked(world) == (0, 5)
    assert outcomes(world) == failed
    world.store.fails = lambda call: False
    world.clock.advance(6_000)
    assert asked(world) == (5, 0)


@each_tier
def test_an_index_file_that_is_gone_or_damaged_is_passed_over_and_reported(cold: str) -> None:
    whole = settled(cold)
    fs, layout = guest(whole.disk, cold), Layout("data", cold)
    store = IndexStore(fs, layout)
    one, other = files_of(whole)
    (topic_id,) = store.topic_ids()
    assert list(check_index_files(fs, layout)) == []
    store.remove_files(topic_id, [one.name], cold=True)
    file = fs.open(store.path(topic_id, other.name, cold=True), write=True)
    byte = file.read_at(70, 1)
    file.write_at(70, bytes((byte[0] ^ 0xFF,)))
    file.sync()
    file.close()
    world = ColdWorld(whole.disk.crash(Survival.EVERYTHING), whole.clock, cold)
    # The damaged part of a folder's file may be irrelevant to the query.
    assert asked(world)[0] <= (0 if cold == STORE else 1)
    found = check_index_files(guest(world.disk, cold), layout)
    assert [finding.where.rpartition("/")[2] for finding in found] == [one.name, other.name]
    if cold == STORE:
        assert outcomes(world) == {"damaged": 2}
        assert asked(world) == (0, 5)
        assert outcomes(world) == {"damaged": 2}


@each_tier
def test_what_was_erased_leaves_the_cold_tier_and_the_cache(cold: str) -> None:
    world = settled(cold)
    assert asked(world) == (5, 0)
    before = {file.name for file in files_of(world)}
    world.ask(lambda done: world.engine.delete_records("logs", DeleteSelector(None, parse_match("k3")), done))
    world.seal()
    fs = guest(world.disk, cold)
    run_all(fs, world.clock, 7, cold, erase_ms=50_000)
    world.clock.advance(50_000)
    run_all(fs, world.clock, 8, cold, erase_ms=50_000)
    world.engine.second_passed.emit()
    assert len(near_files(world)) <= 1
    world.clock.advance(RETIRED_MS)
    run_all(fs, world.clock, 9, cold, erase_ms=50_000)
    run_all(fs, world.clock, 10, cold, erase_ms=50_000)
    world.clock.advance(RETIRED_MS)
    run_all(fs, world.clock, 11, cold, erase_ms=50_000)
    assert world.answers("logs")[0] == [1, 2, 3, *range(7, 16)]
    check_settled(fs, cold)
    assert len({file.name for file in files_of(world)} & before) == 1
    store = IndexStore(fs, Layout("data", cold))
    (topic_id,) = store.topic_ids()
    raw = b" ".join(bytes(store.map(topic_id, name, cold=True)) for name in store.files(topic_id, cold=True))
    assert b"w7" in raw and b"w4" not in raw


@each_tier
def test_a_stream_that_is_deleted_leaves_nothing_there(cold: str) -> None:
    world = settled(cold)
    assert asked(world) == (5, 0)
    world.ask(lambda done: world.streams.delete("logs", done))
    world.seal()
    if cold == STORE:
        away = FolderStore(world.disk, "bucket")
        away.away = True
        run_all(tiered(world.disk, cold, away), world.clock, 8, cold)
        (manifest,) = manifests(world.disk, cold).values()
        assert manifest.files == () and manifest.named(cold=True)
        world.clock.advance(60_000)
    world.run(9)
    store = IndexStore(guest(world.disk, cold), Layout("data", cold))
    assert store.topic_ids() == store.topic_ids(cold=True) == []
    world.engine.second_passed.emit()
    assert near_files(world) == []


def test_a_restored_folder_removes_what_an_earlier_one_left() -> None:
    world = settled(STORE)
    fs = guest(world.disk, STORE)
    store = IndexStore(fs, Layout("data", STORE))
    (topic_id,) = store.topic_ids()
    stranger = fs.open(store.path(topic_id + 7, "of-another-time.companion", cold=True), create=True)
    stranger.write_at(0, b"x")
    stranger.sync()
    before = {file.name for file in files_of(world)}
    history = world.disk.open("data/pipeline/history", create=True)
    history.write_whole([b"restored"])
    history.close()
    world.run(8)
    world.clock.advance(RETIRED_MS)
    world.run(9)
    check_settled(fs, STORE)
    assert not {file.name for file in files_of(world)} & before
    assert asked(world) == (5, 0)


def test_a_manifest_that_cannot_be_read_leaves_nothing_behind() -> None:
    world = settled(STORE)
    fs = guest(world.disk, STORE)
    store = IndexStore(fs, Layout("data", STORE))
    (topic_id,) = store.topic_ids()
    file = world.disk.open(store.path(topic_id, "manifest.json"), write=True)
    file.truncate(3)
    file.close()
    world.run(8)
    world.clock.advance(RETIRED_MS)
    world.run(9)
    check_settled(fs, STORE)


@each_tier
@pytest.mark.parametrize("way", ["retention", "plan", "rebuild"])
def test_what_is_replaced_or_out_of_date_leaves_the_cold_tier(cold: str, way: str) -> None:
    world = settled(cold)
    before = {file.name for file in files_of(world)}
    store = IndexStore(guest(world.disk, cold), Layout("data", cold))
    (topic_id,) = store.topic_ids()
    if way == "retention":
        world.ask(lambda done: world.engine.delete_records("logs", DeleteSelector(13, None), done))
    elif way == "plan":
        world.describe("logs", "more")
    else:
        manifest = store.load(topic_id)
        assert manifest is not None
        store.save(outdated(manifest, world.clock.now_ms()))
    world.seal()
    for seed in range(3):
        world.run(10 + seed)
        world.clock.advance(RETIRED_MS)
    world.run(20)
    check_settled(guest(world.disk, cold), cold)
    left = {file.name for file in files_of(world)}
    assert left and len(left & before) == (1 if way == "retention" else 0)
    world.clock.advance(2_000)
    assert world.answers("logs")[0] == list(range(13 if way == "retention" else 1, 16))


def test_a_store_that_is_away_holds_up_moves_and_nothing_else() -> None:
    world = settled(STORE)
    for first in (15, 18):
        world.append("logs", first, 3)
        world.seal()
    world.relocate()
    world.append("logs", 21, 3)
    world.seal()
    away = FolderStore(world.disk, "bucket")
    # Segments can be read, companions cannot be written or fetched.
    away.fails = lambda call: "families/" in away.trace[-1][1]
    made = run_all(tiered(world.disk, STORE, away), world.clock, 8, STORE)
    assert made.status.quarantined == () and made.status.error is None
    assert made.status.due_ms == world.clock.now_ms() + 60_000
    assert [(file.last, file.cold) for file in files_of(world)][-1] == (24, False)
    assert not any(one.cold for one in files_of(world) if one.last > 15)
    world.relocate()
    world.clock.advance(60_000)
    world.run(9)
    world.clock.advance(RETIRED_MS)
    world.run(10)
    check_settled(guest(world.disk, STORE), STORE)


class SlowRunner:
    """Runs its jobs when the test requests it."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def start(self, job: Job) -> None:
        self.jobs.append(job)

    def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            InlineRunner().start(job)

    def close(self) -> None:
        """There is no thread."""


class SlowWorld:
    """A world in which the test decides when companions are built and when the time of a query is over."""

    def __init__(self, world: ColdWorld, cache_bytes: int = 1 << 20) -> None:
        self.runner = SlowRunner()
        self.late: list[Callable[[], None]] = []
        self.gone: list[str] = []
        far, layout = world.engine.core.store.far, Layout("data", STORE)
        assert far is not None
        self.cache = IndexFileCache(far, layout, cache_bytes, self.runner, self.gone.append)
        self.runner.run()
        clock = world.clock
        searcher = InlineSearcher(clock.monotonic, lambda path: world.disk.open(path).map())
        index_files = IndexFiles(world.disk, layout, clock.monotonic, self.cache)
        self.search = StreamSearch(
            world.engine, searcher, self._later, clock.monotonic, stream_bytes=0, index_files=index_files
        )
        self.streams = Streams(world.engine, search=self.search)
        self.topic = world.streams.topic("logs")

    def _later(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        if not seconds:
            function()
        elif seconds == 3.0:
            self.late.append(function)
        return lambda: None

    def ask(self) -> list[Any]:
        answers: list[Any] = []
        self.search.query(self.topic, SearchQuery(_ALL, ("offset:asc",), 50), 3.0, answers.append)
        return answers


def test_a_query_waits_for_an_index_file_until_its_time_is_over() -> None:
    slow = SlowWorld(settled(STORE))
    answers = slow.ask()
    assert answers == [] and len(slow.runner.jobs) == 1
    slow.late[0]()
    (outcome,) = answers
    assert outcome.spent == "time" and outcome.missed == 15 and not outcome.result.hits
    # It comes all the same, and a caller that asks next finds it.
    slow.runner.run()
    assert len(answers) == 1
    again = slow.ask()
    slow.runner.run()
    assert again[0].complete and again[0].indexed_segments == 5


def test_two_queries_wait_for_one_index_file() -> None:
    slow = SlowWorld(settled(STORE))
    one, other = slow.ask(), slow.ask()
    while slow.runner.jobs:
        assert len(slow.runner.jobs) == 1
        slow.runner.run()
    assert one[0].complete and other[0].complete
    assert slow.cache.outcomes[Fetched.OK] == 2


def test_reads_of_a_key_go_on_while_an_index_file_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_skip_scan, "NEAR", 2)
    slow = SlowWorld(settled(STORE))
    for asked_for in (1, 1, 0):
        answers: list[Any] = []
        slow.streams.read(slow.topic, ReadSpec(key="k9"), answers.append)
        assert [entry["n"] for entry in json.loads(answers[0].body)] == [9, 10, 11]
        assert len(slow.runner.jobs) == asked_for
        slow.runner.run()


def test_what_is_in_use_stays_and_nothing_goes_over_the_bound() -> None:
    world = settled(STORE)
    one, other = files_of(world)
    slow = SlowWorld(world, cache_bytes=one.bytes + other.bytes - 1)
    store = IndexStore(guest(world.disk, STORE), Layout("data", STORE))
    reported: list[Fetched] = []

    def fetch(file: IndexFileEntry) -> str:
        path = slow.cache.path(slow.topic.id, file.name)
        slow.cache.fetch(
            path, Remote(store.path(slow.topic.id, file.name, cold=True), file.bytes, file.digest), reported.append
        )
        slow.runner.run()
        return path

    first = fetch(one)
    slow.cache.use(first)
    second = fetch(other)
    assert reported == [Fetched.OK, Fetched.NO_ROOM]
    assert first in slow.cache and second not in slow.cache and not slow.cache.drop(first)
    slow.cache.unused(first)
    fetch(other)
    assert reported[-1] is Fetched.OK
    assert first not in slow.cache and second in slow.cache and slow.gone == [first]
    assert near_files(world) == [other.name]
    assert slow.cache.bytes == other.bytes
    assert slow.cache.drop(second) and slow.cache.bytes == 0
    slow.runner.run()
    assert near_files(world) == []


def test_a_fetch_that_nobody_wants_any_more_ends() -> None:
    world = settled(STORE)
    slow = SlowWorld(world)
    answers = slow.ask()
    slow.cache.close()
    slow.runner.run()
    assert near_files(world) == [] and slow.cache.bytes == 0
    assert slow.cache.outcomes[Fetched.UNAVAILABLE] == 1
    assert answers[0].complete and answers[0].scanned_segments > 0


def test_a_full_disk_leaves_searches_to_the_entries() -> None:
    world = settled(STORE)
    slow = SlowWorld(world)
    world.disk.capacity_bytes = world.disk.used_bytes
    answers = slow.ask()
    while slow.runner.jobs:
        slow.runner.run()
    assert answers[0].complete
    assert slow.cache.bytes <= slow.cache.bytes_max and near_files(world) == []
