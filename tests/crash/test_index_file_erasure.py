"""Deleted entries are out of the companions after `search_erase_ms`, wherever the pipeline is stopped meanwhile."""

import pytest

from tests.crash.test_index_build_crash_sweeps import LAYOUT, World
from topics.log.fs import FileSystem
from topics.model.router_rules import DeleteSelector, parse_match
from topics.search.file_index.manifest import IndexManifest, IndexStore
from topics.spark.index_builds.index_plan import IndexRules
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.index_product import IndexProduct
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.task_packing import FrameRules
from topics.testing import FakeDisk, ManualClock, PowerCut, SeededEntropy, Survival

ERASE_MS = 50_000
_RETIRED_MS = 600_001
LEFT = {"w22", "w26", "w27"}


def run_all(fs: FileSystem, clock: ManualClock, seed: int) -> Pipeline:
    rules = IndexRules(fan_out=2, erase_ms=ERASE_MS)
    product = IndexProduct(fs, LAYOUT, rules, SeededEntropy(seed))
    made = Pipeline(fs, LAYOUT, [product], InlineExecutor(fs), clock, FrameRules(group_bytes=1), acks_deletes=False)
    for _ in range(50):
        if not made.round():
            return made
    raise AssertionError("the pipeline never comes to an end")


def prepare() -> World:
    """Four segments in one merged companion and one beside it; w23, w24, w25, w90, w20 and w21 are deleted."""
    world = World(FakeDisk(), ManualClock())
    world.create("logs")
    for first in range(20, 35, 3):
        world.append("logs", first, 3, key=f"k{first}")
        if first == 26:
            world.append("logs", 90, 1, key="k23")
        world.seal()
    run_all(world.disk, world.clock, 1)
    world.clock.advance(_RETIRED_MS)
    run_all(world.disk, world.clock, 2)
    world.ask(lambda done: world.engine.delete_records("logs", DeleteSelector(None, parse_match("k23")), done))
    world.ask(lambda done: world.engine.delete_records("logs", DeleteSelector(3, None), done))
    world.seal()
    return world


def manifest_of(fs: FileSystem) -> IndexManifest:
    store = IndexStore(fs, LAYOUT)
    (topic_id,) = store.topic_ids()
    manifest = store.load(topic_id)
    assert manifest is not None
    return manifest


def words(fs: FileSystem) -> set[str]:
    """The words that any file beside the manifest still has."""
    store, manifest = IndexStore(fs, LAYOUT), manifest_of(fs)
    raw = b" ".join(bytes(store.map(manifest.topic_id, name)) for name in store.files(manifest.topic_id))
    return {f"w{n}" for n in (*range(20, 28), 90) if b"w%d" % n in raw}


def test_deleted_entries_leave_in_time() -> None:
    world = prepare()
    expected = world.answers("logs")
    assert expected[0] == [3, *range(7, 10), *range(11, 17)]
    before = manifest_of(world.disk)
    assert [file.level for file in before.files] == [2, 0]
    made = run_all(world.disk, world.clock, 3)
    noticed = manifest_of(world.disk)
    assert [file.name for file in noticed.files] == [file.name for file in before.files]
    assert [file.spoiled_ms is None for file in noticed.files] == [False, True]
    assert made.status.due_ms == world.clock.now_ms() + ERASE_MS
    world.clock.advance(ERASE_MS)
    assert {"w20", "w23", "w90"} <= words(world.disk)
    run_all(world.disk, world.clock, 4)
    world.clock.advance(2_000)
    assert world.answers("logs") == expected
    assert not {file.name for file in manifest_of(world.disk).files} & {before.files[0].name}
    world.clock.advance(_RETIRED_MS)
    made = run_all(world.disk, world.clock, 5)
    assert words(world.disk) == LEFT
    assert all(file.spoiled_ms is None for file in manifest_of(world.disk).files)
    assert made.status.due_ms is None
    assert world.answers("logs") == expected


def test_a_stop_at_any_call_of_an_erasure() -> None:
    """Every fifth call."""
    world = prepare()
    expected, clock = world.answers("logs"), world.clock
    run_all(world.disk, clock, 3)
    clock.advance(ERASE_MS)
    whole = world.disk.clone()
    begun = whole.call_count
    run_all(whole, clock, 7)
    calls = whole.call_count - begun
    assert calls > 20
    for call in range(1, calls + 1, 5):
        disk = world.disk.clone()
        disk.stop_before = disk.call_count + call
        with pytest.raises(PowerCut):
            run_all(disk, clock, 7)
        after = disk.crash(Survival.SCATTERED, seed=call)
        opened = World(after, clock)
        assert opened.answers("logs") == expected, call
        run_all(after, clock, 100 + call)
        clock.advance(_RETIRED_MS)
        run_all(after, clock, 200 + call)
        assert words(after) == LEFT, call
        assert opened.answers("logs") == expected, call
