"""Rounds look at what changed: topics, manifests of index files, and catalog files."""

from collections.abc import Iterator

import pytest

from tests.crash.test_index_build_crash_sweeps import LAYOUT, World
from tests.unit.spark.archives import advance
from topics.log import catalog_files
from topics.log.catalog import CatalogTopic
from topics.model.router_rules import DeleteSelector, TagMatch
from topics.search.file_index.manifest import IndexManifest
from topics.spark.index_builds.index_plan import IndexRules, reconciled
from topics.spark.pipeline import index_product
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.index_product import IndexProduct
from topics.spark.pipeline.rounds import Pipeline
from topics.testing import FakeDisk, ManualClock, SeededEntropy

NAMES = [f"logs-{number}" for number in range(6)]


class Watched:
    """Streams with index files, and the streams whose manifests a round has looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World(FakeDisk(), ManualClock())
        for name in NAMES:
            self.world.create(name)
            self.world.append(name, 0, 2)
            self.world.append(name, 2, 2, key="k")
        self.world.seal()
        rules = IndexRules(fan_out=2, retire_ms=1000, erase_ms=5000)
        self.product = IndexProduct(self.world.disk, LAYOUT, rules, SeededEntropy(3))
        self.pipeline = Pipeline(
            self.world.disk, LAYOUT, [self.product], InlineExecutor(self.world.disk), self.world.clock,
            acks_deletes=False,
        )  # fmt: skip
        self.seen: list[str] = []

        def watched(manifest: IndexManifest, topic: CatalogTopic, now_ms: int) -> IndexManifest:
            self.seen.append(manifest.topic)
            return reconciled(manifest, topic, now_ms)

        monkeypatch.setattr(index_product, "reconciled", watched)

    def looked_at(self) -> set[str]:
        """The streams that the rounds until there is nothing to do looked at."""
        self.seen.clear()
        while self.pipeline.round():
            pass
        return set(self.seen)

    def files(self, name: str) -> list[tuple[int, int]]:
        [manifest] = [one for one in self.product._manifests.values() if one.topic == name]
        return [(file.first, file.last) for file in manifest.files]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    made = Watched(monkeypatch)
    made.looked_at()
    yield made


def test_round_without_changes_looks_at_no_manifest(watched: Watched) -> None:
    assert watched.looked_at() == set()


def test_round_looks_at_the_manifests_of_changed_streams_alone(watched: Watched) -> None:
    watched.world.append("logs-2", 4, 4)
    watched.world.seal()
    assert watched.looked_at() == {"logs-2"}
    # The two files were merged into one, and the old ones are removed when their time is over.
    assert watched.files("logs-2") == [(1, 8)]
    assert watched.files("logs-3") == [(1, 4)]
    due = watched.pipeline.status.due_ms
    assert due is not None
    advance(watched.world.clock, 1001)
    assert watched.looked_at() == {"logs-2"}
    assert watched.pipeline.status.due_ms is None
    assert watched.looked_at() == set()


def test_erasure_is_done_when_it_is_due_without_another_change(watched: Watched) -> None:
    world = watched.world
    names = {file.name for one in watched.product._manifests.values() if one.topic == "logs-4" for file in one.files}
    topic = world.engine.core.directory.load("logs-4")
    world.ask(lambda done: world.engine.delete_records(topic.name, DeleteSelector(None, TagMatch("k")), done))
    world.seal()
    watched.looked_at()
    advance(world.clock, 6000)
    assert "logs-4" in watched.looked_at()
    after = {file.name for one in watched.product._manifests.values() if one.topic == "logs-4" for file in one.files}
    assert names
    assert not names & after


def test_dropped_stream_loses_its_files_and_no_other_is_looked_at(watched: Watched) -> None:
    world = watched.world
    world.ask(lambda done: world.engine.drop_topic("logs-1", False, done))
    world.engine.run_job(world.engine.checkpointer.job())
    assert watched.looked_at() == set()
    assert {one.topic for one in watched.product._manifests.values()} == set(NAMES) - {"logs-1"}


def test_pipeline_follows_the_files_of_changes_of_a_large_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_files, "WHOLE_BYTES_MAX", 0)
    watched = Watched(monkeypatch)
    watched.looked_at()
    reader = watched.pipeline._catalog_diff._reader
    for turn in range(12):
        name = NAMES[turn % len(NAMES)]
        watched.world.append(name, 4 + turn, 4)
        watched.world.seal()
        assert watched.looked_at() == {name}
    assert reader.whole_reads == 1
    assert [watched.files(name)[-1][1] for name in NAMES] == [12] * len(NAMES)
