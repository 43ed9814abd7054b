"""An archive beside a folder, and what must be true of the two at any moment."""

from collections.abc import Sequence
from itertools import count, pairwise

from tests.unit.spark.folders import Folder
from topics.core.ranges import covers
from topics.spark.archive.manifest import Manifest
from topics.spark.archive.planning import ArchiveRules
from topics.spark.archive.reading import manifests_of, read_archive
from topics.spark.archive.store import ArchiveStore
from topics.spark.pipeline.archiving import ArchiveProduct
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.waiting import FrameRules
from topics.storage.fs import FileSystem
from topics.system.clock import Clock
from topics.testing import SeededDice

ROOT = "data/archive"


_seeds = count(100)


def pipeline(fs: FileSystem, folder: Folder, seed: int | None = None, **rules: int) -> Pipeline:
    """A pipeline as a new process would make it."""
    frame = {"group_bytes": 2000, **{name: rules.pop(name) for name in FrameRules.__struct_fields__ if name in rules}}
    dice = SeededDice(next(_seeds) if seed is None else seed)
    product = ArchiveProduct(fs, ROOT, ArchiveRules(**rules), dice)
    return Pipeline(fs, folder.layout, [product], InlineExecutor(fs), folder.clock, FrameRules(**frame))


def run_all(fs: FileSystem, folder: Folder, seed: int | None = None, **rules: int) -> Pipeline:
    """Rounds until there is nothing to do."""
    made = pipeline(fs, folder, seed, **rules)
    for _ in range(50):
        if not made.round():
            return made
    raise AssertionError("the pipeline never comes to an end")


def manifests(fs: FileSystem) -> dict[str, Manifest]:
    return {manifest.topic: manifest for manifest in manifests_of(ArchiveStore(fs, ROOT))}


def archived(fs: FileSystem, topic: str) -> dict[int, str]:
    """What the archive shows of a topic: seq -> data."""
    store = ArchiveStore(fs, ROOT)
    found: dict[int, str] = {}
    for manifest in manifests_of(store, topic):
        table = read_archive(fs, store, manifest)
        for seq, data in zip(table["seq"].to_pylist(), table["data"].to_pylist(), strict=True):
            assert seq not in found, f"record {seq} is archived twice"
            found[seq] = data
    return found


def check_manifests(fs: FileSystem) -> None:
    """Every file that counts is there and whole, covers what it says, and shares no seq with another."""
    store = ArchiveStore(fs, ROOT)
    for manifest in manifests_of(store):
        spans = sorted((file.first_seq, file.last_seq) for file in manifest.files)
        assert all(before[1] < after[0] for before, after in _pairs(spans)), manifest
        for file in manifest.files:
            assert fs.exists(f"{store.topic_folder(manifest.topic_id)}/{file.path}"), file
            assert covers(manifest.covered, file.first_seq, file.last_seq)
        rows = read_archive(fs, store, manifest).num_rows
        assert rows <= manifest.rows


def _pairs(spans: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return list(pairwise(spans))


def advance(clock: Clock, ms: int) -> None:
    clock.advance(ms)  # type: ignore[attr-defined]
