"""An archive beside a folder, and the conditions that hold for the two at any moment."""

from itertools import count, pairwise

import pyarrow as pa
import pytest

from tests.unit.spark.folders import Folder
from topics.log.fs import FileSystem
from topics.model.seq_ranges import covers, intersection
from topics.spark.archive.archive_plan import ArchiveRules
from topics.spark.archive.archive_reader import read_archive, topics_named
from topics.spark.archive.archive_state import ArchivedTopic, ArchiveState
from topics.spark.archive.archive_writer import RowReader
from topics.spark.archive.data_files import ArchiveFile, Run
from topics.spark.archive.ledger import ArchiveStore
from topics.spark.pipeline.archive_product import ArchiveProduct
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.task_packing import FrameRules
from topics.spark.segment_reader import bucket_of
from topics.system.clock import Clock
from topics.testing import SeededEntropy

ROOT = "data/archive"


_seeds = count(100)


def pipeline(fs: FileSystem, folder: Folder, seed: int | None = None, **rules: int) -> Pipeline:
    """A pipeline as a new process would make it."""
    frame = {"group_bytes": 2000, **{name: rules.pop(name) for name in FrameRules.__struct_fields__ if name in rules}}
    entropy = SeededEntropy(next(_seeds) if seed is None else seed)
    product = ArchiveProduct(fs, ROOT, ArchiveRules(**rules), entropy)
    return Pipeline(fs, folder.layout, [product], InlineExecutor(fs), folder.clock, FrameRules(**frame))


def run_all(fs: FileSystem, folder: Folder, seed: int | None = None, **rules: int) -> Pipeline:
    """Rounds until there is nothing to do."""
    made = pipeline(fs, folder, seed, **rules)
    for _ in range(50):
        if not made.round():
            return made
    raise AssertionError("the pipeline never comes to an end")


def state_of(fs: FileSystem) -> ArchiveState:
    """Returns the state that a reader finds."""
    return ArchiveStore(fs, ROOT).load()


def topic_of(fs: FileSystem, name: str) -> ArchivedTopic:
    [found] = topics_named(state_of(fs), name)
    return found


def rows_of(fs: FileSystem, name: str) -> int:
    """Rows of a topic in files that count, whether they are shown or not."""
    state = state_of(fs)
    return sum(run.rows for topic in topics_named(state, name) for run in state.runs_of(topic.topic_id))


def data_files(fs: FileSystem) -> set[str]:
    """Lists all files in the folders of data, referenced or not."""
    found = set()
    for folder in (f"{ROOT}/data", *(f"{ROOT}/{name}" for name in names_in(fs, ROOT) if name.startswith("topic_id="))):
        for day in names_in(fs, folder):
            for inner in names_in(fs, f"{folder}/{day}"):
                deeper = [f"{inner}/{name}" for name in names_in(fs, f"{folder}/{day}/{inner}")]
                found |= {f"{folder}/{day}/{path}".removeprefix(f"{ROOT}/") for path in deeper or [inner]}
    return {path for path in found if path.endswith(".parquet")}


def names_in(fs: FileSystem, folder: str) -> list[str]:
    try:
        return fs.list_dir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def archived(fs: FileSystem, topic: str, root: str = ROOT) -> dict[int, str]:
    """Returns the archived records of a topic: seq -> data."""
    store = ArchiveStore(fs, root)
    state = store.load()
    found: dict[int, str] = {}
    for one in topics_named(state, topic):
        table = read_archive(fs, store, state, one.topic_id)
        for seq, data in zip(table["seq"].to_pylist(), table["data"].to_pylist(), strict=True):
            assert seq not in found, f"record {seq} is archived twice"
            found[seq] = data
    return found


def check_archive(fs: FileSystem) -> None:
    """Every referenced file exists, is whole and sorted, covers the seqs in its entry, and shares no seq with
    another."""
    store = ArchiveStore(fs, ROOT)
    state = store.load()
    for topic in state.topics.values():
        runs = state.runs_of(topic.topic_id)
        assert all(before.last_seq < after.first_seq for before, after in pairwise(runs)), runs
        assert all(covers(topic.covered, run.first_seq, run.last_seq) for run in runs), (topic, runs)
        deleted = topic.deleted.ranges()
        assert intersection(deleted, state.spans_of(topic.topic_id)) == deleted
    for file in state.files.values():
        assert all(file.path in state.by_topic[run.topic_id] for run in file.runs)
        assert bool(file.hidden_ms) == any(len(state.hidden_in(run)) for run in file.runs), file
        with RowReader(fs, store.path_of(file.path)) as reader:
            for row, run in file.starts():
                check_run(reader.rows(row, run.rows), run, file)
            with pytest.raises(ValueError, match="rows"):
                reader.rows(0, file.rows + 1)


def check_run(table: pa.Table, run: Run, file: ArchiveFile) -> None:
    seqs, times = table["seq"].to_pylist(), table["ts"].cast(pa.int64()).to_pylist()
    assert seqs == sorted(seqs)
    assert (seqs[0], seqs[-1]) == (run.first_seq, run.last_seq)
    assert (times[0] // 1000, times[-1] // 1000) == (run.first_ts, run.last_ts)
    assert {time // 86_400_000_000 for time in times} == {file.day}
    assert set(table["topic"].to_pylist()) == {run.topic}
    assert set(table["epoch"].to_pylist()) == {run.epoch}
    assert bucket_of(run.topic) == file.bucket


def advance(clock: Clock, ms: int) -> None:
    clock.advance(ms)  # type: ignore[attr-defined]
