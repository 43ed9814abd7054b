"""The archive's table: what it is told is what a reader of it sees, whatever it was told before."""

import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import StringType, TimestamptzType

from tests.unit.spark.archives import ROOT, advance, run_all, state_of, topic_of
from tests.unit.spark.folders import Folder
from tests.unit.spark.tables import every_file, of_topic, read_table, rows_of, run_shown, table_of, table_rows
from topics.core.records import Record
from topics.spark.archive.files import by_day
from topics.spark.archive.masks import Mask
from topics.spark.placement import BUCKETS, bucket_of
from topics.spark.table.files import Run, TableFile, Wanted
from topics.spark.table.manifests import SMALL_MANIFESTS_MAX
from topics.spark.table.positions import hidden_positions
from topics.storage.replaced import replace_file
from topics.testing import FakeDisk, ManualClock

RETIRE_MS = 600_001


@given(st.text(max_size=40))
def test_a_topic_is_in_the_bucket_that_iceberg_says(topic: str) -> None:
    assert bucket_of(topic) == BucketTransform(BUCKETS).transform(StringType())(topic)


@given(st.integers(0, 2**51))
def test_a_moment_is_on_the_day_that_iceberg_says(ts_us: int) -> None:
    days: Any = DayTransform().transform(TimestamptzType())
    batch = pa.record_batch({"ts": pa.array([ts_us], pa.timestamp("us", tz="UTC"))})
    assert [day for day, _ in by_day(batch)] == [days(ts_us)]


def file_of(*runs: Run) -> TableFile:
    return TableFile("nowhere", 0, 0, sum(run.rows for run in runs), 1, 0, 0, runs)


def test_places_of_deleted_rows_need_no_file_where_no_seq_is_missing() -> None:
    file = file_of(Run("a", 1, 5, 9, 5), Run("a", 2, 1, 3, 3), Run("b", 3, 10, 19, 2))
    hidden = {1: Mask.of([(1, 5), (8, 30)]), 2: Mask.of([(2, 2)]), 9: Mask.of([(1, 1)])}
    assert hidden_positions(FakeDisk(), Wanted(file, hidden)).tolist() == [0, 3, 4, 6]
    with pytest.raises(FileNotFoundError):
        # Which of its ten seqs the two rows of the third run have, only the file knows.
        hidden_positions(FakeDisk(), Wanted(file, {3: Mask.of([(12, 12)])}))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 5)), max_size=6), st.sets(st.integers(1, 60)))
def test_places_computed_and_looked_up_are_the_same(ranges: list[tuple[int, int]], missing: set[int]) -> None:
    from topics.core.ranges import union

    mask = Mask.of(union([(first, first + more) for first, more in ranges]))
    seqs = np.array([seq for seq in range(1, 61) if seq not in missing])
    expected = np.flatnonzero(mask.hides(seqs)).tolist()
    if missing or not len(mask):
        return
    file = file_of(Run("a", 1, 1, 60, 60))
    assert hidden_positions(FakeDisk(), Wanted(file, {1: mask})).tolist() == expected


def filled() -> Folder:
    folder = Folder()
    folder.append("orders", *[Record.of(n, tag=f"t{n % 10}") for n in range(100)])
    folder.append("other", *range(5))
    folder.seal()
    return folder


def test_the_table_shows_what_diff_says_after_deletes_and_rewrites() -> None:
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
    assert {epoch for name, epoch, _ in rows if name == "other"} == {folder.engine.core.by_name["other"].epoch}


def test_retention_takes_files_out_of_the_table() -> None:
    folder = filled()
    run_shown(folder.disk, folder, 1)
    advance(folder.clock, 10_000)
    run_shown(folder.disk, folder, 2, retention_ms=5_000)
    assert table_rows(folder.disk) == {}
    assert read_table(folder.disk) is not None


def test_a_table_is_made_of_an_archive_that_had_none_and_no_file_of_it_is_opened() -> None:
    """What an earlier version left: manifests with deletes in them, and files without the numbers of columns."""
    folder = filled()
    run_all(folder.disk, folder)
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    run_all(folder.disk, folder)
    assert len(topic_of(folder.disk, "orders").deleted) and read_table(folder.disk) is None
    files = {path: data for path, data in every_file(folder.disk).items() if path.endswith(".parquet")}
    for path in files:
        folder.disk.remove(path)
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
def test_a_damaged_table_is_made_again(how: str, caplog: pytest.LogCaptureFixture) -> None:
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


def test_an_archive_that_was_moved_is_a_table_at_its_new_place() -> None:
    folder = filled()
    run_shown(folder.disk, folder, 1)
    table = table_of(folder.disk, 5, 1000)
    # The same files, told by the paths of another place.
    elsewhere = "data/elsewhere"
    for path, data in every_file(folder.disk).items():
        target = elsewhere + path.removeprefix(ROOT)
        folder.disk.make_dirs(target.rpartition("/")[0])
        replace_file(folder.disk, target, data)
    moved = table_of(folder.disk, 6, 1000, elsewhere)
    wanted = {path: None for path in every_file(folder.disk, elsewhere)}
    assert moved.follow(wanted, 1, whole=True), "a table that names files of another place was kept"
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


def summary(table: Table) -> dict[str, str]:
    snapshot = table.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    return {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}


def test_the_summary_counts_what_there_is() -> None:
    folder = filled()
    run_shown(folder.disk, folder, 1)
    table = read_table(folder.disk)
    assert table is not None
    told = summary(table)
    assert told["operation"] == "append" and told["total-records"] == "105" and told["total-data-files"] == "2"
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    run_shown(folder.disk, folder, 2)
    table = read_table(folder.disk)
    assert table is not None
    told = summary(table)
    assert told["operation"] == "delete" and told["total-position-deletes"] == "10" and told["total-records"] == "105"


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
