"""A companion on its way into the cold tier always has a complete copy, and no garbage stays there permanently.

The promise: wherever the pipeline is stopped, and whichever of its calls fails, every file in a manifest is whole in
its tier; answers stay the same; and after a complete run, all companions of relocated segments are in the cold tier,
and no file in it or in the data folder is missing from the manifests.
"""

from collections.abc import Callable

import msgspec
import pytest

from tests.crash.test_index_build_crash_sweeps import OPTIONS, World
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.log.object_store.local_cache import LocalCopies
from topics.log.object_store.tiered_fs import tiered
from topics.search.file_index.manifest import IndexManifest, IndexStore, check_index_files, digest_of
from topics.search.file_index.reader import IndexFile
from topics.spark.index_builds.index_plan import IndexRules
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.index_product import IndexProduct
from topics.spark.pipeline.jobs import JobFailedError
from topics.spark.pipeline.rounds import Pipeline, ShortError
from topics.spark.pipeline.task_packing import FrameRules
from topics.testing import (
    FakeDisk,
    Fault,
    FaultPlan,
    FaultyFileSystem,
    FolderStore,
    ManualClock,
    PowerCut,
    SeededEntropy,
    Survival,
)

FOLDER, STORE = "cold", "s3://bucket/cold"
TIERS = [FOLDER, STORE]
RETIRED_MS = 600_001
_QUARANTINED_MS = 3_600_000
each_tier = pytest.mark.parametrize("cold", TIERS, ids=["folder", "store"])


def guest(fs: FileSystem, cold: str) -> FileSystem:
    """The files as the pipeline has them."""
    return tiered(fs, cold, FolderStore(fs, "bucket")) if cold == STORE else fs


class ColdWorld(World):
    """A world whose segments are in the cold tier as soon as they are sealed."""

    def __init__(self, disk: FakeDisk, clock: ManualClock, cold: str, cache_bytes: int = 1 << 20) -> None:
        self.cold = cold
        self.store = FolderStore(disk, "bucket")
        copies = LocalCopies(disk, "data/near", 1 << 20)
        fs = tiered(disk, cold, self.store, copies) if cold == STORE else disk
        options = msgspec.structs.replace(OPTIONS, cold_dir=cold, hot_retain_segments=0)
        super().__init__(disk, clock, Layout("data", cold), options, fs, cache_bytes)

    def relocate(self) -> None:
        for topic in self.engine.core.directory.resident.values():
            self.engine.run_job(self.engine.housekeeper.relocate(topic))
        self.seal()
        assert all(segment.cold for topic in self.engine.core.directory.resident.values() for segment in topic.segments)

    def run(self, seed: int) -> Pipeline:
        return run_all(guest(self.disk, self.cold), self.clock, seed, self.cold)

    def move_all(self) -> None:
        """Segments and companions are in the cold tier behind this, and nothing is left of them anywhere else."""
        self.relocate()
        self.run(5)
        self.clock.advance(RETIRED_MS)
        self.run(6)
        check_settled(guest(self.disk, self.cold), self.cold)


def run_all(fs: FileSystem, clock: ManualClock, seed: int, cold: str, erase_ms: int = 86_400_000) -> Pipeline:
    layout = Layout("data", cold)
    product = IndexProduct(fs, layout, IndexRules(fan_out=2, erase_ms=erase_ms), SeededEntropy(seed))
    rules = FrameRules(group_bytes=1)
    made = Pipeline(fs, layout, [product], InlineExecutor(fs), clock, rules, acks_deletes=False)
    for _ in range(50):
        if not made.round():
            return made
    raise AssertionError("the pipeline never comes to an end")


def manifests(fs: FileSystem, cold: str) -> dict[int, IndexManifest]:
    store = IndexStore(fs, Layout("data", cold))
    found = {topic_id: store.load(topic_id) for topic_id in store.topic_ids()}
    return {topic_id: manifest for topic_id, manifest in found.items() if manifest is not None}


def check(fs: FileSystem, cold: str) -> None:
    """Checks the invariants of the manifests."""
    store = IndexStore(fs, Layout("data", cold))
    for topic_id, manifest in manifests(fs, cold).items():
        for file in manifest.files:
            index_file = IndexFile(store.map(topic_id, file.name, file.cold))
            index_file.check()
            assert (index_file.head.first, index_file.head.last) == (file.first, file.last)
            if file.cold:
                assert digest_of(fs, store.path(topic_id, file.name, cold=True)) == file.digest


def check_settled(fs: FileSystem, cold: str) -> None:
    """All companions are in the cold tier, and nothing else is anywhere."""
    store = IndexStore(fs, Layout("data", cold))
    found = manifests(fs, cold)
    assert found
    assert sorted(store.topic_ids()) == sorted(found)
    assert sorted(store.topic_ids(cold=True)) == sorted(found)
    for topic_id, manifest in found.items():
        assert manifest.files and all(file.cold for file in manifest.files), manifest
        assert manifest.retired == ()
        assert store.files(topic_id) == []
        assert set(fs.list_dir(store.folder(topic_id, cold=True))) == manifest.named(cold=True)


def prepare(cold: str) -> ColdWorld:
    """Segments that were relocated, with companions in the cold tier that are to be merged, one of a stream that is
    gone, and segments that have none yet."""
    world = ColdWorld(FakeDisk(), ManualClock(), cold)
    for name in ("logs", "gone"):
        world.create(name)
    for first in range(0, 9, 3):
        for name in ("logs", "gone"):
            world.append(name, first, 3)
        world.seal()
    world.move_all()
    world.ask(lambda done: world.streams.delete("gone", done))
    for first in range(9, 15, 3):
        world.append("logs", first, 3)
        world.seal()
    world.relocate()
    return world


def settle(disk: FakeDisk, clock: ManualClock, cold: str, seed: int) -> None:
    """Runs until everything that waits for its time is done, too."""
    clock.advance(_QUARANTINED_MS)
    run_all(guest(disk, cold), clock, seed, cold)
    clock.advance(RETIRED_MS)
    run_all(guest(disk, cold), clock, seed + 1, cold)


def interrupted(
    cold: str, wreck: Callable[[ColdWorld, int], FakeDisk | None], first: int, step: int, deletes: bool = False
) -> int:
    """Interrupts a run at one call after the other, and checks the remaining files and their later use, or that nothing
    is left when the stream is deleted then."""
    call, runs = first, 0
    while True:
        world = prepare(cold)
        expected = world.answers("logs")
        assert expected[0] == list(range(1, 16))
        after = wreck(world, call)
        if after is None:
            return runs
        fs = guest(after, cold)
        check(fs, cold)
        opened = ColdWorld(after, world.clock, cold)
        assert opened.answers("logs") == expected, call
        if deletes:
            opened.ask(lambda done, opened=opened: opened.streams.delete("logs", done))
            opened.seal()
        settle(after, world.clock, cold, 100 + call)
        check(fs, cold)
        if deletes:
            store = IndexStore(fs, Layout("data", cold))
            assert store.topic_ids() == store.topic_ids(cold=True) == [], call
        else:
            check_settled(fs, cold)
            assert opened.answers("logs") == expected, call
        assert list(check_index_files(fs, Layout("data", cold))) == []
        call, runs = call + step, runs + 1


def stopping(survival: Survival) -> Callable[[ColdWorld, int], FakeDisk | None]:
    def wreck(world: ColdWorld, call: int) -> FakeDisk | None:
        disk = world.disk
        disk.stop_before = disk.call_count + call
        try:
            run_all(guest(disk, world.cold), world.clock, 11, world.cold)
        except PowerCut:
            return disk.crash(survival, seed=call)
        return None

    return wreck


def failing(world: ColdWorld, call: int) -> FakeDisk | None:
    fs = FaultyFileSystem(world.disk, FaultPlan(call=call, fault=Fault.EIO))
    try:
        run_all(guest(fs, world.cold), world.clock, 11, world.cold)
    except (OSError, ShortError, JobFailedError):
        assert fs.failed
    return world.disk.crash(Survival.EVERYTHING) if fs.failed else None


@each_tier
@pytest.mark.parametrize("survival", [Survival.NOTHING, Survival.SCATTERED])
def test_a_stop_at_any_call_leaves_a_complete_copy(cold: str, survival: Survival) -> None:
    """Every eleventh call."""
    assert interrupted(cold, stopping(survival), 1 if survival is Survival.NOTHING else 6, 11) > 10


@each_tier
def test_a_stream_that_is_deleted_after_a_stop_leaves_nothing_there(cold: str) -> None:
    """Every thirteenth call."""
    assert interrupted(cold, stopping(Survival.EVERYTHING), 3, 13, deletes=True) > 10


@pytest.mark.slow
@each_tier
@pytest.mark.parametrize("survival", list(Survival))
def test_a_stop_at_any_call_in_every_ending(cold: str, survival: Survival) -> None:
    assert interrupted(cold, stopping(survival), 1, 1) > 100


@each_tier
def test_a_call_that_fails_leaves_a_complete_copy(cold: str) -> None:
    """Every fifth call."""
    assert interrupted(cold, failing, 1, 5) > 10


@pytest.mark.slow
@each_tier
def test_any_call_that_fails_leaves_a_complete_copy(cold: str) -> None:
    assert interrupted(cold, failing, 1, 1) > 50
