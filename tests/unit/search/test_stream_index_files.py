"""Queries on companions that are missing, damaged, or of another time."""

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.crash.test_index_build_crash_sweeps import LAYOUT, World, check_complete, prepare, run_all
from topics.api.v1.search_answers import keys_body
from topics.api.v1.stream_details import index_status, storage_of
from topics.log.fs import read_whole
from topics.model.router_rules import DeleteSelector, parse_match
from topics.search.file_index.manifest import IndexStore, check_index_files
from topics.search.service.backend import InlineSearcher, ResultDone, at_once
from topics.search.service.index_file_cache import IndexedRange, IndexFileCoverage, IndexFiles, IndexType
from topics.search.service.search_service import StreamSearch, description_of
from topics.search.worker.messages import AskMessage, Close, KeysQuery, More, Question, SearchQuery
from topics.spark.index_builds.index_plan import outdated
from topics.streams.stream_state import contract_of
from topics.testing import FakeDisk, ManualClock, Survival

Body = Sequence[bytes | memoryview]


def indexed(world: World) -> dict[str, list[list[int]]]:
    """Everything that is sealed has companions; the answers of before."""
    expected = {name: world.answers(name) for name in ("logs", "plan")}
    run_all(world.disk, world.clock, 9)
    world.clock.advance(2_000)
    check_complete(world.disk)
    return expected


def files_of(disk: FakeDisk) -> list[str]:
    store = IndexStore(disk, LAYOUT)
    return [store.path(topic_id, name) for topic_id in store.topic_ids() for name in store.files(topic_id)]


def damage(disk: FakeDisk, path: str, place: int) -> None:
    file = disk.open(path, write=True)
    byte = file.read_at(place, 1)
    file.write_at(place, bytes((byte[0] ^ 0xFF,)))
    file.close()


@pytest.mark.parametrize("place", [0, 70, 400, -1])
def test_a_damaged_index_file_is_passed_over(place: int, caplog: pytest.LogCaptureFixture) -> None:
    world = prepare()
    expected = indexed(world)
    for path in files_of(world.disk):
        size = world.disk.open(path).size()
        damage(world.disk, path, place % size)
    # Open files were checked before.
    again = World(world.disk.crash(Survival.EVERYTHING), world.clock)
    assert {name: again.answers(name) for name in expected} == expected
    if place in (0, -1):
        assert "index file cannot be read" in caplog.text


def test_an_index_file_that_is_gone_is_passed_over() -> None:
    world = prepare()
    expected = indexed(world)
    for path in files_of(world.disk):
        world.disk.remove(path)
    assert {name: world.answers(name) for name in expected} == expected
    index_files = world.streams.search.index_files
    assert index_files is not None and index_files.unreadable > 0


@pytest.mark.parametrize("content", [b"", b"{", b'{"format":2}', b"\xff\xfe"])
def test_a_manifest_that_cannot_be_read_is_none_and_everything_is_made_again(content: bytes) -> None:
    world = prepare()
    expected = indexed(world)
    store = IndexStore(world.disk, LAYOUT)
    for topic_id in store.topic_ids():
        file = world.disk.open(store.path(topic_id, "manifest.json"), write=True)
        file.truncate(0)
        file.write_at(0, content)
        file.close()
    world.clock.advance(2_000)
    assert {name: world.answers(name) for name in expected} == expected
    run_all(world.disk, world.clock, 10)
    check_complete(world.disk)


def test_families_are_built_while_entries_keep_coming() -> None:
    """A tail that is never quiet does not keep sealed entries from being indexed."""
    world = prepare()
    for first in range(18, 60, 3):
        world.append("logs", first, 3)
        if first % 2:
            world.seal()
        run_all(world.disk, world.clock, first)
    world.append("logs", 60, 1)
    world.clock.advance(2_000)
    topic = world.streams.topic("logs")
    index_files = world.streams.search.index_files
    assert index_files is not None
    coverage = IndexFileCoverage(index_files)
    for family in ("exact", "col", "fts", "companions"):
        covered = coverage.of(topic, family)
        assert covered.segments == covered.contiguous == len(topic.segments) > 5
    assert topic.head > topic.segments[-1].last_seq
    assert world.answers("logs")[0] == list(range(1, 51))


def test_a_changed_description_is_answered_by_the_old_index_files_as_far_as_they_fit() -> None:
    world = prepare()
    expected = indexed(world)
    index_files = world.streams.search.index_files
    assert index_files is not None
    world.describe("plan", "more", "other")
    topic = world.streams.topic("plan")
    assert index_files.covered_through(topic, description_of(topic)) == 0
    assert IndexFileCoverage(index_files).of(topic, "col").stale == len(topic.segments)
    assert world.answers("plan") == expected["plan"]
    asked = {}
    for q in ("n:3", "other:3"):
        outcome = world.ask(lambda done, q=q: world.streams.search.query(topic, SearchQuery(q, (), 9), 3.0, done))
        asked[q] = (outcome.indexed_segments, outcome.scanned_segments)
    assert asked == {"n:3": (4, 0), "other:3": (0, 4)}


def test_the_bytes_of_an_index_file_are_split_by_family() -> None:
    world = prepare()
    indexed(world)
    index_files = world.streams.search.index_files
    assert index_files is not None
    coverage = IndexFileCoverage(index_files)
    types: tuple[IndexType, ...] = ("routing", "lexicon", "col", "fts", "agg", "mblk")
    for name in ("logs", "plan"):
        topic = world.streams.topic(name)
        config = contract_of(topic).registry.search_config
        assert config is not None
        exact = {field: coverage.of(topic, "exact", field).bytes for field, one in config.fields.items() if one.exact}
        found = {family: coverage.of(topic, family).bytes for family in types}
        manifest = index_files.manifest(topic)
        assert manifest is not None
        sections = sum(sum(file.sizes.values()) for file in manifest.files)
        assert sum(exact.values()) + sum(found.values()) == sections
        assert sections < coverage.of(topic, "companions").bytes
        # Entries of an earlier release have no sizes: the file is asked.
        assert [index_files._read_sizes(topic, file) for file in manifest.files] == [
            file.sizes for file in manifest.files
        ]
        details = storage_of(topic, coverage, world.engine.segments, 0, 0)["companion_families"]
        assert details == {
            "exact_bytes": str(sum(exact.values())),
            **{f"{family}_bytes": str(found[family]) for family in types[2:]},
        }
        assert len({*found.values(), *exact.values()}) > 2, "not the same number for all"
        size = coverage.manifest(topic).bytes
        assert size == len(
            read_whole(world.disk, IndexStore(world.disk, LAYOUT).path(topic.id, "manifest.json")) or b""
        )


def test_only_a_changed_field_has_a_stale_configuration() -> None:
    world = prepare()
    indexed(world)
    index_files = world.streams.search.index_files
    assert index_files is not None
    coverage = IndexFileCoverage(index_files)
    topic = world.streams.topic("plan")
    before = {one["name"]: one["stale_configuration"] for one in index_status(topic, coverage)["exact_indexes"]}
    assert set(before.values()) == {False}
    world.describe("plan", "more", "other")
    after = {one["name"]: one["stale_configuration"] for one in index_status(topic, coverage)["exact_indexes"]}
    assert set(after.values()) == {True, False}
    assert {name for name, is_stale in after.items() if not is_stale} >= {"n"} & set(before)


def test_routing_keys_report_where_they_were_looked_up() -> None:
    world = prepare()
    topic = world.streams.topic("logs")

    def coverage() -> dict[str, Any]:
        outcome = world.ask(lambda done: world.streams.search.query(topic, KeysQuery(None, 100), 3.0, done))
        body = keys_body(topic, outcome, 0.0)
        return {**body["coverage"], **body["timing"]}

    segments = len(topic.segments)
    scanned = coverage()
    assert (scanned["scanned_local_segments"], scanned["scanned_uploaded_segments"]) == (2, 0)
    assert (scanned["indexed_segments"], scanned["lexicon_runs_loaded"]) == (segments - 2, 1)
    topic.segments[0].cold = True
    try:
        outcome = world.ask(lambda done: world.streams.search.query(topic, KeysQuery(None, 100), 0.0, done))
        missed = keys_body(topic, outcome, 0.0)["coverage"]
        assert missed["possible_missing_uploaded_segments"] == 1
        assert missed["possible_missing_local_segments"] == segments - 1
    finally:
        topic.segments[0].cold = False
    indexed(world)
    found = coverage()
    assert (found["scanned_local_segments"], found["indexed_segments"]) == (0, segments)
    assert found["lexicon_runs_loaded"] >= 1
    tail = topic.head - topic.segments[-1].last_seq
    assert found["scanned_wal_rows"] == scanned["scanned_wal_rows"] <= tail


def test_entries_of_a_segment_that_is_gone_as_a_whole_are_no_hits() -> None:
    """A segment whose last live entry is deleted is removed, and nothing but its absence reports it."""
    world = World(FakeDisk(), ManualClock())
    world.create("logs")
    for first in range(0, 12, 3):
        world.append("logs", first, 3, key=f"k{first}")
        world.seal()
    run_all(world.disk, world.clock, 3)
    world.clock.advance(2_000)
    assert world.answers("logs")[0] == list(range(1, 13))
    world.ask(lambda done: world.engine.delete_records("logs", DeleteSelector(None, parse_match("k3")), done))
    left = [1, 2, 3, 7, 8, 9, 10, 11, 12]
    assert world.answers("logs")[0] == left
    world.seal()
    assert len(world.streams.topic("logs").segments) == 3
    assert world.answers("logs")[0] == left
    assert World(world.disk.crash(Survival.EVERYTHING), world.clock).answers("logs")[0] == left


def test_verify_reports_of_index_files_that_are_not_what_their_manifest_states() -> None:
    world = prepare()
    indexed(world)
    assert list(check_index_files(world.disk, LAYOUT)) == []
    store = IndexStore(world.disk, LAYOUT)
    first, second = sorted(store.topic_ids())
    manifest = store.load(first)
    assert manifest is not None
    damage(world.disk, store.path(first, manifest.files[0].name), 80)
    world.disk.remove(store.path(first, manifest.files[1].name))
    world.disk.remove(store.path(second, "manifest.json"))
    found = list(check_index_files(world.disk, LAYOUT))
    assert ["wrong checksum" in found[0].what, "missing" in found[1].what, "missing" in found[2].what] == [True] * 3
    assert [one.seq_range for one in found] == [(1, 12), (13, 18), None]


def test_a_rebuild_makes_everything_again_while_the_old_ones_answer() -> None:
    world = prepare()
    expected = indexed(world)
    store = IndexStore(world.disk, LAYOUT)
    topic = world.streams.topic("logs")
    manifest = store.load(topic.id)
    assert manifest is not None
    store.save(outdated(manifest, 1))
    world.clock.advance(2_000)
    index_files = world.streams.search.index_files
    assert index_files is not None
    assert index_files.choose(topic, description_of(topic), SearchQuery("n:3", (), 9), 1, 18)
    assert world.answers("logs") == expected["logs"]
    run_all(world.disk, world.clock, 21)
    check_complete(world.disk)
    after = store.load(topic.id)
    assert after is not None
    assert not {file.name for file in after.files} & {file.name for file in manifest.files}
    world.clock.advance(2_000)
    assert world.answers("logs") == expected["logs"]


def test_an_index_file_that_was_merged_is_no_longer_mapped() -> None:
    """It would keep its room on the disk."""
    world = World(FakeDisk(), ManualClock())
    world.create("logs")
    mapped: dict[str, weakref.ref[Mapping]] = {}

    def map_file(path: str) -> memoryview:
        made = Mapping(world.disk.open(path).map())
        mapped[path] = weakref.ref(made)
        return memoryview(made)

    searcher, gone = InlineSearcher(world.clock.monotonic, map_file), []

    def let_go(path: str) -> None:
        gone.append(path)
        searcher.send(Close(path))

    index_files = IndexFiles(world.disk, LAYOUT, world.clock.monotonic, None, let_go)
    now = world.clock.monotonic
    search = StreamSearch(world.engine, searcher, at_once, now, stream_bytes=0, index_files=index_files)
    for first in (0, 3):
        world.append("logs", first, 3)
        world.seal()
        run_all(world.disk, world.clock, 1 + first)
        world.clock.advance(31_000)
        topic = world.streams.topic("logs")
        outcome = world.ask(lambda done: search.query(topic, SearchQuery("word:all", (), 9), 3.0, done))  # noqa: B023
        assert outcome.complete and outcome.indexed_segments == 1 + first // 3
        index_files.tidy()
    store = IndexStore(world.disk, LAYOUT)
    manifest = store.load(topic.id)
    assert manifest is not None and len(manifest.files) == 1
    (merged,) = [store.path(topic.id, file.name) for file in manifest.files]
    gc.collect()
    assert [path for path, made in mapped.items() if made() is not None] == [merged]
    assert gone and set(gone) == set(mapped) - {merged}


class Watched(InlineSearcher):
    """Records its requests."""

    def __init__(self, world: World) -> None:
        super().__init__(world.clock.monotonic, lambda path: world.disk.open(path).map())
        self.asked: list[type] = []

    def ask(self, make: Callable[[int], Question], done: ResultDone, body: Body = ()) -> None:
        self.asked.append(type(make(0)))
        super().ask(make, done, body)


def watched_search(world: World, stream_bytes: int = 0) -> tuple[StreamSearch, Watched]:
    searcher, now = Watched(world), world.clock.monotonic
    index_files = IndexFiles(world.disk, LAYOUT, now, None)
    search = StreamSearch(world.engine, searcher, at_once, now, stream_bytes=stream_bytes, index_files=index_files)
    return search, searcher


def three_index_files() -> World:
    world = World(FakeDisk(), ManualClock())
    world.create("logs")
    for first in (0, 3, 6):
        world.append("logs", first, 3, key=f"k{first}")
        world.seal()
    run_all(world.disk, world.clock, 9)
    world.clock.advance(31_000)
    return world


@pytest.mark.parametrize("order", ["offset:desc", "offset:asc", "time:asc"])
def test_what_is_fresh_and_all_index_files_are_asked_in_one_question(order: str) -> None:
    world = three_index_files()
    search, searcher = watched_search(world, 1 << 20)
    world.append("logs", 9, 2)
    topic, query = world.streams.topic("logs"), SearchQuery("word:all", (order,), 20)
    outcome = world.ask(lambda done: search.query(topic, query, 3.0, done))
    assert outcome.complete and outcome.indexed_segments == 3 and outcome.looked_at_in_memory == 2
    found = [hit.seq for hit in outcome.result.hits]
    assert found == (list(range(1, 12)) if order.endswith("asc") else list(range(11, 0, -1)))
    # Unsealed entries come after the companions where the oldest are first.
    assert searcher.asked == ([AskMessage, More] if order == "offset:asc" else [AskMessage])


def test_index_files_are_not_asked_where_what_is_fresh_is_enough() -> None:
    world = three_index_files()
    search, searcher = watched_search(world, 1 << 20)
    world.append("logs", 9, 2)
    topic, query = world.streams.topic("logs"), SearchQuery("word:all", ("offset:desc",), 2)
    outcome = world.ask(lambda done: search.query(topic, query, 3.0, done))
    assert outcome.complete and outcome.indexed_segments == 0 and outcome.result.indexed == 0
    assert [hit.seq for hit in outcome.result.hits] == [11, 10] and searcher.asked == [AskMessage]


def test_what_was_removed_of_index_files_is_not_reported_before_what_is_fresh_was_not_enough() -> None:
    world = three_index_files()
    search, searcher = watched_search(world, 1 << 20)
    world.append("logs", 9, 2)
    world.ask(lambda done: world.engine.delete_records("logs", DeleteSelector(None, parse_match("k3")), done))
    topic, left = world.streams.topic("logs"), [11, 10, 9, 8, 7, 3, 2, 1]
    outcome = world.ask(lambda done: search.query(topic, SearchQuery("word:all", ("offset:desc",), 20), 3.0, done))
    assert [hit.seq for hit in outcome.result.hits] == left and searcher.asked == [AskMessage, More]


def test_what_was_chosen_is_remembered_until_something_is_known_anew() -> None:
    world = three_index_files()
    index_files = world.streams.search.index_files
    assert index_files is not None
    topic = world.streams.topic("logs")

    def chosen(q: str, first: int = 1, last: int = 9) -> Sequence[IndexedRange]:
        assert index_files is not None
        return index_files.choose(topic, description_of(topic), SearchQuery(q, (), 9), first, last)

    known = chosen("n:3")
    assert [(part.first, part.last) for part in known] == [(1, 6), (7, 9)] and chosen("n:3") is known
    assert [(part.first, part.last) for part in chosen("n:3", 2, 8)] == [(2, 6), (7, 8)]
    # Another description that has another field, which no companion knows.
    world.describe("logs", "other")
    assert chosen("other:3") == ()
    assert chosen("n:3") == known
    world.append("logs", 9, 3)
    world.seal()
    run_all(world.disk, world.clock, 50)
    world.clock.advance(2_000)
    assert chosen("n:3", 1, 12)[-1].last == 12
    gone = chosen("n:3")[0]
    index_files.distrust(topic, gone.path, "it is damaged")
    assert gone.path not in [part.path for part in chosen("n:3")]


class Mapping(bytearray):
    """Bytes that record whether they are still referenced."""
