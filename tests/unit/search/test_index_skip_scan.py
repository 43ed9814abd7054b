"""Reads of a key and reads with a filter skip ranges with the help of companions, and find the same as without."""

import json
import random
from typing import Any

import pytest

from tests.crash.test_index_build_crash_sweeps import JSON, LAYOUT, World, run_all
from tests.unit.streams.conftest import fork
from topics.model.router_rules import DeleteSelector
from topics.search.file_index.manifest import IndexStore
from topics.search.service import index_skip_scan
from topics.search.worker.messages import SearchQuery, Seek
from topics.streams.append import AppendRequest
from topics.streams.read import ReadSpec
from topics.streams.stream_state import Position
from topics.testing import FakeDisk, ManualClock

SEED = 17
SPECS: list[dict[str, Any]] = [
    {"key": "rare"},
    {"key": "k1"},
    {"key": "k1", "max_records": 3},
    {"key": "k2", "max_bytes": 40},
    {"key": "nobody"},
    {"key": "k0", "up_to": 31},
    {"filter": "n:>=5 n:<9"},
    {"filter": "-n:3", "max_records": 4},
    {"filter": "n:77"},
    {"filter": "n:>=4", "key": "k1"},
    {"filter": "has:n", "up_to": 20, "key": "rare"},
]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(index_skip_scan, "NEAR", 2)
    monkeypatch.setattr(index_skip_scan, "_GAP", 3)
    monkeypatch.setattr(index_skip_scan, "_SEQS_MAX", 5)
    made = World(FakeDisk(), ManualClock())
    made.create("logs")
    rng = random.Random(SEED)
    for first in range(0, 96, 4):
        for n in range(first, first + 4):
            key = "rare" if n in (17, 61) else f"k{rng.randrange(3)}"
            append(made, "logs", n % 11, key)
        if first % 8 == 4:
            made.seal()
    return made


def append(world: World, name: str, n: int, key: str) -> None:
    request = AppendRequest(
        body=json.dumps([{"n": n, "time": n, "word": f"w{n}"}]).encode(), content_type=JSON, key=key
    )
    world.ask(lambda done: world.streams.append(name, request, done))


def read_all(world: World, name: str, **requested: Any) -> list[Any]:
    """Everything that a reader gets who goes on until the end, and the cursor of each of its answers."""
    topic, position, found = world.streams.topic(name), Position(0), []
    end = min(requested.get("up_to", topic.head), topic.head)
    for _ in range(200):
        spec = ReadSpec(position=position, **requested)
        outcome = world.ask(lambda done, spec=spec: world.streams.read(topic, spec, done))
        found += json.loads(outcome.body)
        assert outcome.position > position or outcome.position.counter >= end
        position = outcome.position
        if position.counter >= end:
            return found
    raise AssertionError("a reader never comes to the end")


def everything(world: World, name: str = "logs") -> list[Any]:
    return [read_all(world, name, **requested) for requested in SPECS]


def seeks(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Seek]:
    """Returns a list that records the requests to the search process from now on."""
    asked: list[Seek] = []

    def made(*given: Any) -> Seek:
        asked.append(Seek(*given))
        return asked[-1]

    monkeypatch.setattr(index_skip_scan, "Seek", made)
    return asked


def index(world: World, seed: int = 3) -> None:
    world.seal()
    run_all(world.disk, world.clock, seed)
    world.clock.advance(2_000)


def test_leaps_find_what_reads_find(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(world)
    assert len(before[0]) == 2 and not before[4] and not before[8]
    index(world)
    asked = seeks(world, monkeypatch)
    assert everything(world) == before
    assert {bool(one.key) for one in asked} == {True, False}
    append(world, "logs", 5, "rare")
    assert read_all(world, "logs", key="rare") == [*before[0], {"n": 5, "time": 5, "word": "w5"}]


def test_one_key_is_one_answer(world: World) -> None:
    index(world)
    topic = world.streams.topic("logs")
    spec = ReadSpec(key="rare")
    found = world.ask(lambda done: world.streams.read(topic, spec, done))
    assert (found.count, found.position, found.tombstone) == (2, Position(96), None)


def test_deleted_entries_are_skipped_and_losses_reported(world: World) -> None:
    index(world)
    world.ask(lambda done: world.engine.delete_records("logs", DeleteSelector(20, None), done))
    deleted = everything(world)
    assert len(deleted[0]) == 1
    topic = world.streams.topic("logs")
    found = world.ask(lambda done: world.streams.read(topic, ReadSpec(key="rare"), done))
    world.disk.remove(IndexStore(world.disk, LAYOUT).path(topic.id, "manifest.json"))
    world.clock.advance(2_000)
    assert everything(world) == deleted
    plain = world.ask(lambda done: world.streams.read(topic, ReadSpec(key="rare"), done))
    assert found.tombstone == plain.tombstone and plain.body == found.body


def test_index_files_that_are_gone_are_passed_over(world: World) -> None:
    before = everything(world)
    index(world)
    store = IndexStore(world.disk, LAYOUT)
    (topic_id,) = store.topic_ids()
    for name in store.files(topic_id):
        world.disk.remove(store.path(topic_id, name))
    assert everything(world) == before


def test_a_fork_leaps_in_what_it_inherits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fork(world.streams, "branch", "logs")
    for n in range(4):
        append(world, "branch", n, "rare")
    before, sought = everything(world, "branch"), answer(world, "branch")
    assert len(before[0]) == 6
    index(world)
    asked = seeks(world, monkeypatch)
    assert everything(world, "branch") == before
    assert asked
    again = answer(world, "branch")
    assert [hit.seq for hit in again.result.hits] == [hit.seq for hit in sought.result.hits]
    assert again.result.indexed and sought.scanned and not again.scanned


def answer(world: World, name: str) -> Any:
    topic = world.streams.topic(name)
    return world.ask(
        lambda done: world.streams.search.query(topic, SearchQuery("n:>=5", ("offset:asc",), 50), 3.0, done)
    )
