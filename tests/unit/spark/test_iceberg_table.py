"""The archive's table: a reader sees exactly the files it was given, for any earlier content."""

import io
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.update import SetSnapshotRefUpdate, TableRequirement, TableUpdate

from tests.unit.spark.archives import ROOT, advance, run_all, state_of, topic_of
from tests.unit.spark.folders import Folder
from tests.unit.spark.tables import (
    every_file,
    of_topic,
    payloads,
    read_table,
    rows_of,
    run_shown,
    shown_pipeline,
    table_of,
    table_rows,
)
from topics.log.fs import read_whole, replace_file
from topics.log.layout import Layout
from topics.log.object_store.tiered_fs import tiered
from topics.log.posix import PosixFileSystem
from topics.model.records import Record
from topics.model.seq_ranges import intersection, union
from topics.spark.archive.archive_plan import ArchiveRules
from topics.spark.archive.data_files import ArchiveFile, Mask, Run, TableFile
from topics.spark.iceberg.catalogs import FolderPointer, Version
from topics.spark.iceberg.manifests import SMALL_MANIFESTS_MAX, hidden_positions
from topics.spark.iceberg.table import ArchiveTable, TableFollower
from topics.spark.pipeline.archive_product import ArchiveProduct
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.task_packing import FrameRules
from topics.spark.segment_reader import bucket_of
from topics.testing import FakeDisk, ManualClock, SeededEntropy
from topics.testing.folder_store import FolderStore

RETIRE_MS = 600_001


def requested(path: str, *runs: tuple[int, int, int], hidden: list[list[tuple[int, int]]]) -> TableFile:
    """A file whose runs are given by first seq, last seq and rows."""
    reported = tuple(Run(1 + n, 1, "a", first, last, rows, 0, 0) for n, (first, last, rows) in enumerate(runs))
    return TableFile(path, ArchiveFile(path, 0, 0, 1, reported, 1), tuple(Mask.of(ranges) for ranges in hidden))


def test_places_of_deleted_rows_need_no_file_where_no_seq_is_missing() -> None:
    runs = ((5, 9, 5), (1, 3, 3), (10, 19, 2), (7, 90, 4))
    known = requested("nowhere", *runs, hidden=[[(5, 5), (8, 9)], [(2, 2)], [], [(7, 90)]])
    assert hidden_positions(FakeDisk(), known).tolist() == [0, 3, 4, 6, 10, 11, 12, 13]
    with pytest.raises(FileNotFoundError):
        # Which of its ten seqs the two rows of the third run have, only the file knows.
        hidden_positions(FakeDisk(), requested("nowhere", *runs, hidden=[[], [], [(12, 12)], []]))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sets(st.integers(1, 40), min_size=1), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6)), max_size=4),
)
def test_places_are_those_of_the_rows_whose_seqs_are_deleted(
    seqs: list[set[int]], ranges: list[tuple[int, int]]
) -> None:
    deleted = union([(first, first + more) for first, more in ranges])
    rows = [sorted(one) for one in seqs]
    disk = FakeDisk()
    table = pa.table({"seq": pa.array([seq for one in rows for seq in one], pa.int64())})
    target = io.BytesIO()
    pq.write_table(table, target)
    replace_file(disk, "file", target.getvalue())
    spans = [(one[0], one[-1], len(one)) for one in rows]
    hidden = [intersection(deleted, [(first, last)]) for first, last, _ in spans]
    expected = [
        place
        for place, seq in enumerate(seq for one in rows for seq in one)
        if any(first <= seq <= last for first, last in deleted)
    ]
    assert hidden_positions(disk, requested("file", *spans, hidden=hidden)).tolist() == expected


def filled() -> Folder:
    folder = Folder()
    folder.append("orders", *[Record.of(n, tag=f"t{n % 10}") for n in range(100)])
    folder.append("other", *range(5))
    folder.seal()
    return folder


def test_the_table_shows_what_diff_states_after_deletes_and_rewrites() -> None:
    folder = filled()
    run_shown(folder.disk, folder, 1)
    assert of_topic(table_rows(folder.disk), "orders") == {n + 1: str(n) for n in range(100)}
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    run_shown(folder.disk, folder, 2)
    kept = {n + 1: str(n) for n in range(100) if n % 10 != 3}
    assert of_topic(table_rows(folder.disk), "orders") == kept
    # A tenth of a file is hidden in place; more than a fifth is written out of it.
    assert [path for path in every_file(folder.disk) if "/deletes/" in path]
    folder.delete("orders", tag="t4")
    folder.delete("orders", tag="t5")
    folder.checkpoint()
    run_shown(folder.disk, folder, 3)
    kept = {seq: data for seq, data in kept.items() if int(data) % 10 not in (4, 5)}
    assert of_topic(table_rows(folder.disk), "orders") == kept
    advance(folder.clock, RETIRE_MS)
    run_shown(folder.disk, folder, 4)
    assert of_topic(table_rows(folder.disk), "orders") == kept
    assert not [path for path in every_file(folder.disk) if "/deletes/" in path]


def test_caps_take_nothing_from_the_table_and_topics_that_are_made_again_begin_anew() -> None:
    folder = filled()
    run_shown(folder.disk, folder, 1)
    folder.put("orders", cap_records=10)
    folder.append("orders", 100)
    folder.drop("other")
    folder.append("other", "new")
    folder.seal()
    run_shown(folder.disk, folder, 2)
    rows = table_rows(folder.disk)
    assert of_topic(rows, "orders") == {n + 1: str(n) for n in range(101)}
    assert of_topic(rows, "other") == {1: '"new"'}
    assert {epoch for name, epoch, _ in rows if name == "other"} == {folder.engine.core.directory.load("other").epoch}


def test_retention_takes_files_out_of_the_table() -> None:
    folder = filled()
    run_shown(folder.disk, folder, 1)
    advance(folder.clock, 10_000)
    run_shown(folder.disk, folder, 2, retention_ms=5_000)
    assert table_rows(folder.disk) == {}
    assert read_table(folder.disk) is not None


def test_a_table_is_made_of_an_archive_that_had_none_and_no_file_of_it_is_opened() -> None:
    folder = filled()
    run_all(folder.disk, folder)
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    run_all(folder.disk, folder)
    assert len(topic_of(folder.disk, "orders").deleted) and read_table(folder.disk) is None
    files = {path: data for path, data in every_file(folder.disk).items() if path.endswith(".parquet")}
    for path in files:
        # A caller that opens one fails.
        replace_file(folder.disk, path, b"")
    run_shown(folder.disk, folder, 1)
    for path, data in files.items():
        replace_file(folder.disk, path, data)
    table = read_table(folder.disk)
    assert table is not None and len(table.metadata.snapshots) == 1
    assert of_topic(rows_of(table), "orders") == {n + 1: str(n) for n in range(100) if n % 10 != 3}
    version = read_version(folder)
    run_shown(folder.disk, folder, 2)
    assert read_version(folder) == version


def read_version(folder: Folder) -> str:
    table = read_table(folder.disk)
    assert table is not None
    return table.metadata_location


@pytest.mark.parametrize("how", ["version", "list", "manifest", "hint", "versions"])
def test_damaged_table_is_rebuilt(how: str, caplog: pytest.LogCaptureFixture) -> None:
    folder = filled()
    run_shown(folder.disk, folder, 1)
    rows = table_rows(folder.disk)
    table = read_table(folder.disk)
    assert table is not None
    snapshot = table.current_snapshot()
    assert snapshot is not None
    match how:
        case "version":
            replace_file(folder.disk, table.metadata_location, b'{"format-version": 2')
        case "list":
            folder.disk.remove(snapshot.manifest_list)
        case "manifest":
            replace_file(folder.disk, snapshot.manifests(table.io)[0].manifest_path, b"Obj\x01rubbish")
        case "hint":
            replace_file(folder.disk, f"{ROOT}/metadata/version-hint.text", b"what?")
        case "versions":
            for name in folder.disk.list_dir(f"{ROOT}/metadata"):
                folder.disk.remove(f"{ROOT}/metadata/{name}")
    with caplog.at_level(logging.WARNING):
        run_shown(folder.disk, folder, 2)
    assert ("is made again" in caplog.text) == (how in ("version", "list", "manifest"))
    assert table_rows(folder.disk) == rows


def tag(folder: Folder, name: str) -> int:
    """Tags the current snapshot as another program does, and returns it."""
    pointer = FolderPointer(folder.disk, ROOT)
    version = pointer.load()
    assert version is not None and version.metadata.current_snapshot_id is not None
    ref = {"ref-name": name, "type": "tag", "snapshot-id": version.metadata.current_snapshot_id}
    pointer.commit(version, (), (SetSnapshotRefUpdate.model_validate(ref),), 0)
    return version.metadata.current_snapshot_id


@pytest.mark.parametrize("how", ["version", "list", "hint"])
def test_rebuilt_table_keeps_its_tags(how: str) -> None:
    folder = filled()
    run_shown(folder.disk, folder, 1)
    tagged = tag(folder, "audit")
    # All of the deleted rows are written out of the files, which the tag alone needs from then on.
    for tag_of in ("t3", "t4", "t5"):
        folder.delete("orders", tag=tag_of)
    folder.checkpoint()
    run_shown(folder.disk, folder, 2)
    advance(folder.clock, RETIRE_MS)
    run_shown(folder.disk, folder, 3)
    table = read_table(folder.disk)
    snapshot = table.current_snapshot() if table is not None else None
    assert table is not None and snapshot is not None and snapshot.snapshot_id != tagged
    rows = rows_of(table)
    match how:
        case "version":
            replace_file(folder.disk, table.metadata_location, b"{")
        case "list":
            folder.disk.remove(snapshot.manifest_list)
        case "hint":
            folder.disk.remove(table.metadata_location)
    for seed in (4, 5):
        run_shown(folder.disk, folder, seed)
        advance(folder.clock, RETIRE_MS)
        rebuilt = read_table(folder.disk)
        assert rebuilt is not None and rows_of(rebuilt) == rows
        assert rebuilt.metadata.refs["audit"].snapshot_id == tagged
        assert of_topic(rows_of(rebuilt, tagged), "orders") == {n + 1: str(n) for n in range(100)}


def test_tag_whose_files_are_lost_is_left_out_of_a_rebuilt_table(caplog: pytest.LogCaptureFixture) -> None:
    folder = filled()
    run_shown(folder.disk, folder, 1)
    tag(folder, "audit")
    table = read_table(folder.disk)
    snapshot = table.current_snapshot() if table is not None else None
    assert snapshot is not None
    folder.disk.remove(snapshot.manifest_list)
    with caplog.at_level(logging.WARNING):
        run_shown(folder.disk, folder, 2)
    rebuilt = read_table(folder.disk)
    assert rebuilt is not None and "audit" not in rebuilt.metadata.refs
    assert "a tag of the archive's table is lost" in caplog.text
    assert of_topic(rows_of(rebuilt), "orders") == {n + 1: str(n) for n in range(100)}


def test_an_archive_that_was_moved_is_a_table_at_its_new_place() -> None:
    folder = filled()
    run_shown(folder.disk, folder, 1)
    table = table_of(folder.disk, 5, 1000)
    # The same files, given by the paths of another place.
    elsewhere = "data/elsewhere"
    for path, data in every_file(folder.disk).items():
        target = elsewhere + path.removeprefix(ROOT)
        folder.disk.make_dirs(target.rpartition("/")[0])
        replace_file(folder.disk, target, data)
    moved = table_of(folder.disk, 6, 1000, elsewhere)
    requested = {path: None for path in every_file(folder.disk, elsewhere)}
    assert moved.follow(requested, 1, whole=True), "a table that names files of another place was kept"
    assert table_rows(folder.disk, root=elsewhere) == {}
    del table


def test_a_file_that_cannot_be_read_hides_itself_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    folder = Folder()
    folder.append("orders", *[Record.of(n, tag=f"t{n % 10}") for n in range(50)])
    folder.seal()
    folder.delete("orders", tag="t7")
    folder.checkpoint()
    run_shown(folder.disk, folder, 1)
    folder.append("orders", *range(50, 60))
    folder.append("orders", *[Record.of(n, tag="x") for n in range(60, 64)])
    folder.seal()
    run_shown(folder.disk, folder, 2, group_bytes=1)
    (first, *_) = state_of(folder.disk).files_of(topic_of(folder.disk, "orders").topic_id)
    replace_file(folder.disk, f"{ROOT}/{first.path}", b"PAR1 no longer")
    folder.delete("orders", tag="t8")
    folder.delete("orders", tag="x")
    folder.checkpoint()
    # Its holes make that only the file knows where a row is; the pipeline goes on all the same.
    run_shown(folder.disk, folder, 3, deleted_share=1.0)
    assert "cannot be read" in caplog.text
    assert of_topic(table_rows(folder.disk), "orders") == {n + 1: str(n) for n in range(50, 60)}


def test_many_small_commits_leave_few_manifests_and_no_rubbish() -> None:
    folder = Folder()
    for value in range(3 * SMALL_MANIFESTS_MAX):
        folder.append("orders", value)
        folder.seal()
        run_shown(folder.disk, folder, 10 + value)
        advance(folder.clock, RETIRE_MS)
    table = read_table(folder.disk)
    assert table is not None
    assert of_topic(rows_of(table), "orders") == {n + 1: str(n) for n in range(3 * SMALL_MANIFESTS_MAX)}
    snapshot = table.current_snapshot()
    assert snapshot is not None and len(snapshot.manifests(table.io)) <= SMALL_MANIFESTS_MAX + 3
    assert len(table.metadata.snapshots) <= 2
    named = {one.manifest_path for snapshot in table.metadata.snapshots for one in snapshot.manifests(table.io)}
    lists = {snapshot.manifest_list for snapshot in table.metadata.snapshots}
    found = {path for path in every_file(folder.disk) if path.endswith(".avro")}
    assert found == named | lists


def test_times_never_run_back_in_the_table_even_if_the_clock_does() -> None:
    folder = filled()
    run_shown(folder.disk, folder, 1)
    assert isinstance(folder.clock, ManualClock)
    folder.clock.jump(-3_600_000)
    folder.append("orders", "late")
    folder.seal()
    run_shown(folder.disk, folder, 2)
    table = read_table(folder.disk)
    assert table is not None
    times = [snapshot.timestamp_ms for snapshot in table.metadata.snapshots]
    assert len(times) > 1 and times == sorted(times) and table.metadata.last_updated_ms >= times[-1]
    assert len(of_topic(rows_of(table), "orders")) == 101


def test_snapshots_go_in_time_after_a_clock_that_was_ahead() -> None:
    """Their times stay the times of the wrong clock, because times must not run back."""
    folder, year_ms = filled(), 365 * 86_400_000
    run_shown(folder.disk, folder, 1)
    assert isinstance(folder.clock, ManualClock)
    folder.clock.jump(year_ms)
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    run_shown(folder.disk, folder, 2)
    folder.clock.jump(-year_ms)
    counts = []
    for value in range(6):
        folder.append("orders", value)
        folder.seal()
        run_shown(folder.disk, folder, 3 + value)
        table = read_table(folder.disk)
        assert table is not None
        counts.append(len(table.metadata.snapshots))
        advance(folder.clock, RETIRE_MS // 2)
    assert max(counts) <= 4 and counts[1] > 1, "none is kept for ever, and each is kept for those who read it"


def summary(table: Table) -> dict[str, str]:
    snapshot = table.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    return {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}


def test_the_summary_counts_what_there_is() -> None:
    folder = filled()
    run_shown(folder.disk, folder, 1)
    table = read_table(folder.disk)
    assert table is not None
    reported = summary(table)
    assert (
        reported["operation"] == "append" and reported["total-records"] == "105" and reported["total-data-files"] == "2"
    )
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    run_shown(folder.disk, folder, 2)
    table = read_table(folder.disk)
    assert table is not None
    reported = summary(table)
    assert (
        reported["operation"] == "delete"
        and reported["total-position-deletes"] == "10"
        and reported["total-records"] == "105"
    )


def test_files_that_cannot_have_a_row_are_left_out() -> None:
    folder = Folder()
    for name in ("a", "b", "c", "d"):
        folder.append(name, 1, 2, 3)
    folder.seal()
    run_shown(folder.disk, folder, 1)
    table = read_table(folder.disk)
    assert table is not None
    assert len(list(table.scan("topic = 'c'").plan_files())) == 1
    assert len(list(table.scan("seq > 3").plan_files())) == 0
    assert len(list(table.scan("ts < '2001-01-01T00:00:00+00:00'").plan_files())) == 0


def test_long_names_are_found_by_name() -> None:
    folder = Folder()
    names = ["x" * 100, "x" * 100 + "y", "z-1"]
    for name in names:
        folder.append(name, 1)
    folder.seal()
    run_shown(folder.disk, folder, 1)
    table = read_table(folder.disk)
    assert table is not None
    for name in names:
        found = table.scan(f"topic = '{name}'").to_arrow()
        assert found["topic"].to_pylist() == [name]


def test_rows_of_a_dropped_topic_are_hidden_in_files_that_others_share() -> None:
    folder = Folder()
    # Both are in one bucket, and so in one file.
    first, second = [name for name in (f"t{n}" for n in range(200)) if bucket_of(name) == bucket_of("t0")][:2]
    folder.append(first, *range(5))
    folder.append(second, *range(20))
    folder.seal()
    run_shown(folder.disk, folder, 1, group_bytes=1_000_000)
    assert len(state_of(folder.disk).files) == 1
    folder.drop(first)
    folder.checkpoint()
    run_shown(folder.disk, folder, 2, deleted_share=1.0)
    assert len(state_of(folder.disk).files) == 1
    rows = table_rows(folder.disk)
    assert of_topic(rows, first) == {} and len(of_topic(rows, second)) == 20


class Flaky(FolderPointer):
    """A catalog that is away for a while."""

    away = False

    def commit(
        self, base: Version, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...], now_ms: int
    ) -> Version:
        if self.away:
            raise ConnectionError("the catalog is away")
        return super().commit(base, requirements, updates, now_ms)


def test_delete_is_acked_only_when_the_table_hides_it() -> None:
    folder = filled()
    pointer = Flaky(folder.disk, ROOT)
    table = ArchiveTable(folder.disk, ROOT, pointer, SeededEntropy(5), 600_000)
    product = ArchiveProduct(folder.disk, ROOT, ArchiveRules(), SeededEntropy(6), TableFollower(table, ROOT))
    made = Pipeline(folder.disk, folder.layout, [product], InlineExecutor(folder.disk), folder.clock, FrameRules())
    while made.round():
        pass
    before = read_whole(folder.disk, folder.layout.pipeline_seen)
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    pointer.away = True
    for _ in range(2):
        # The second time the archive itself has nothing left to do.
        with pytest.raises(Exception, match="the catalog is away"):
            made.round()
        assert read_whole(folder.disk, folder.layout.pipeline_seen) == before
    assert len(of_topic(table_rows(folder.disk), "orders")) == 100
    pointer.away = False
    made.round()
    assert read_whole(folder.disk, folder.layout.pipeline_seen) != before
    assert len(of_topic(table_rows(folder.disk), "orders")) == 90


def test_deleted_records_leave_the_table_by_the_deadline() -> None:
    folder = filled()
    run_shown(folder.disk, folder, 1)
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    run_shown(folder.disk, folder, 2, erase_ms=50_000)
    assert any("33" in payloads(data) for data in every_file(folder.disk).values())
    advance(folder.clock, 50_000)
    run_shown(folder.disk, folder, 3, erase_ms=50_000)
    advance(folder.clock, RETIRE_MS)
    run_shown(folder.disk, folder, 4, erase_ms=50_000)
    held = [payload for data in every_file(folder.disk).values() for payload in payloads(data)]
    assert sorted(held) == sorted(table_rows(folder.disk).values()) and len(held) == 95
    table = read_table(folder.disk)
    assert table is not None and len(table.metadata.snapshots) == 1


def test_a_stream_over_the_table_can_report_new_records_from_old_ones_that_moved() -> None:
    """New records come in snapshots that only append; rewritten files replace without changing a row."""
    folder = filled()
    folder.append("orders", *[Record.of(n, tag="t3") for n in range(100, 130)])
    folder.seal()
    run_shown(folder.disk, folder, 1)
    folder.delete("orders", tag="t3")
    folder.append("orders", "new")
    folder.seal()
    made = shown_pipeline(folder.disk, folder, 2, deleted_share=0.05)
    while made.round():
        pass
    table = read_table(folder.disk)
    assert table is not None
    found = []
    for snapshot in table.metadata.snapshots:
        assert snapshot.summary is not None
        rows = rows_of(table, snapshot.snapshot_id)
        found.append((snapshot.summary.operation.value, len(rows)))
    operations = [operation for operation, _ in found]
    assert operations.count("replace") >= 1 and "overwrite" not in operations
    for (_, before), (operation, after) in pairwise(found):
        assert {"append": after > before, "delete": after < before, "replace": after == before}[operation]
    assert found[-1][1] == 130 + 5 - 40 + 1
    # With a data file the file of its deletes goes.
    assert summary(table)["total-delete-files"] == "0"


class Counted(FolderStore):
    """An object store that records the bytes requested."""

    def __init__(self, disk: FakeDisk, folder: str) -> None:
        super().__init__(disk, folder)
        self.fetched: dict[str, int] = {}

    def get(self, name: str) -> memoryview:
        data = super().get(name)
        self.fetched[name] = self.fetched.get(name, 0) + len(data)
        return data

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        data = super().get_range(name, offset, length)
        self.fetched[name] = self.fetched.get(name, 0) + len(data)
        return data


def test_only_the_seqs_of_an_object_are_fetched_to_find_deleted_rows() -> None:
    folder = Folder()
    # Incompressible data, so that the payloads are nearly all of the file.
    noise = SeededEntropy(3)
    folder.append("orders", *[Record.of(noise.token(3000).hex(), tag=f"t{n % 10}") for n in range(300)])
    folder.delete("orders", tag="t1")
    folder.seal()
    assert isinstance(folder.disk, FakeDisk)
    store = Counted(folder.disk, "objects")
    fs = tiered(folder.disk, ROOT, store)
    run_shown(fs, folder, 1)
    [path] = state_of(fs).files
    store.fetched.clear()
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    run_shown(fs, folder, 3, deleted_share=1.0)
    fetched = store.fetched[path]
    assert 0 < fetched < fs.open(f"{ROOT}/{path}").size() / 4
    assert len(table_rows(fs)) == 240


def test_readers_may_come_at_any_moment(tmp_path: Path) -> None:
    """A reader beside a pipeline that commits all the time never fails, and never sees rows that were not there."""
    root = str(tmp_path / "data" / "archive")
    folder = Folder(PosixFileSystem(), layout=Layout(str(tmp_path / "data")))
    seen: list[set[int]] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            rows = StaticTable.from_metadata(root).scan(selected_fields=("seq",)).to_arrow()["seq"].to_pylist()
            assert len(rows) == len(set(rows))
            seen.append(set(rows))

    def write(number: int) -> None:
        folder.append("orders", *[Record.of(n, tag=f"t{number}-{n % 5}") for n in range(10)])
        if number:
            folder.delete("orders", tag=f"t{number - 1}-1")
        folder.seal()
        run_shown(folder.disk, folder, number, root)

    write(0)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for number in range(1, 11):
            write(number)
        over.set()
        reading.result(timeout=60)
    assert len(seen) > 1 and len(table_rows(folder.disk, root=root)) == 11 * 10 - 10 * 2
    # A snapshot is one that the rounds have made: it has all records up to some round.
    for rows in seen:
        last = max(rows)
        assert last % 10 == 0 and all(seq in rows for seq in range(1, last + 1) if (seq - 1) % 5 != 1)
