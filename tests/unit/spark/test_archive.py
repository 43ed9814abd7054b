"""The archive: copied, hidden, rewritten and removed records, on a fake disk and without Spark."""

import io
import time

import pyarrow.parquet as pq
import pytest

from tests.unit.spark.archives import (
    ROOT,
    advance,
    archived,
    check_archive,
    data_files,
    pipeline,
    rows_of,
    run_all,
    state_of,
    topic_of,
)
from tests.unit.spark.folders import LAYOUT, Folder
from topics.log.fs import read_whole, replace_file
from topics.model.records import Record
from topics.spark.archive.archive_plan import ArchiveRules, next_due
from topics.spark.archive.archive_reader import hidden_chunks
from topics.spark.archive.archive_state import ArchiveState, Copied, Covered, Masked
from topics.spark.archive.data_files import ArchiveFile, Mask, Run
from topics.spark.archive.ledger import ArchiveDamagedError, ArchiveStore
from topics.spark.pipeline.status import load_status
from topics.spark.segment_reader import bucket_of
from topics.testing import ManualClock

DAY_MS = 86_400_000


@pytest.fixture
def folder() -> Folder:
    return Folder()


def test_sealed_records_are_archived_once_and_a_second_run_changes_nothing(folder: Folder) -> None:
    for _ in range(3):
        folder.append("orders", *range(10))
        folder.append("notes", "n")
        folder.seal()
    run_all(folder.disk, folder)
    assert archived(folder.disk, "orders") == {seq: str((seq - 1) % 10) for seq in range(1, 31)}
    assert len(archived(folder.disk, "notes")) == 3
    check_archive(folder.disk)
    before, files = state_of(folder.disk).number, data_files(folder.disk)
    run_all(folder.disk, folder, seed=8)
    assert state_of(folder.disk).number == before
    assert data_files(folder.disk) == files == state_of(folder.disk).files.keys()
    assert topic_of(folder.disk, "orders").covered == ((1, 30),)


def test_files_are_split_by_day_and_name_what_they_hold(folder: Folder) -> None:
    folder.append("orders", 1, 2)
    advance(folder.clock, DAY_MS)
    folder.append("orders", 3)
    folder.seal()
    run_all(folder.disk, folder)
    files = state_of(folder.disk).files_of(1)
    assert [[(run.first_seq, run.last_seq, run.rows) for run in file.runs] for file in files] == [
        [(1, 2, 2)],
        [(3, 3, 1)],
    ]
    assert files[0].day + 1 == files[1].day
    assert all(file.path.split("/")[:2] == ["data", f"day={day_name(file.day)}"] for file in files)


def day_name(day: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(day * DAY_MS / 1000))


def test_small_topics_share_files(folder: Folder) -> None:
    """Three hundred topics are about as many files as there are buckets, and each is found in its own rows."""
    names = [f"t{number:03d}" for number in range(300)]
    for name in names:
        folder.append(name, f"{name}-1", f"{name}-2")
    folder.seal()
    run_all(folder.disk, folder, group_bytes=10_000_000)
    state = state_of(folder.disk)
    # Neighbouring tasks may both have a part of one bucket.
    assert 16 <= len(state.files) <= 20
    for name in names:
        assert archived(folder.disk, name) == {1: f'"{name}-1"', 2: f'"{name}-2"'}
    check_archive(folder.disk)
    for file in state.files.values():
        assert [run.topic for run in file.runs] == sorted(run.topic for run in file.runs)


def test_a_dropped_topic_is_hidden_at_once_and_written_out_of_files_it_shares(folder: Folder) -> None:
    one, two, three = [name for name in map(str, range(1000)) if bucket_of(name) == 0][:3]
    for name in (one, two, three):
        folder.append(name, *range(10))
    folder.seal()
    run_all(folder.disk, folder, group_bytes=10_000_000)
    [before] = state_of(folder.disk).files
    folder.drop(two)
    folder.checkpoint()
    rules = {"erase_ms": 5000, "retire_ms": 1000, "deleted_share": 1}
    run_all(folder.disk, folder, **rules)
    [file] = state_of(folder.disk).files.values()
    assert (file.path, bool(file.hidden_ms)) == (before, True)
    assert archived(folder.disk, two) == {}
    check_archive(folder.disk)
    advance(folder.clock, 5000)
    run_all(folder.disk, folder, **rules)
    [file] = state_of(folder.disk).files.values()
    assert [run.topic for run in file.runs] == sorted([one, three])
    advance(folder.clock, 1000)
    run_all(folder.disk, folder, **rules)
    assert data_files(folder.disk) == {file.path}
    assert len(archived(folder.disk, one)) == len(archived(folder.disk, three)) == 10
    check_archive(folder.disk)


def test_the_archive_outlives_the_log_but_not_a_delete(folder: Folder) -> None:
    folder.put("orders", cap_records=5)
    for value in range(10):
        folder.append("orders", Record.of(value, tag=f"t{value}"))
        folder.seal()
        run_all(folder.disk, folder)
    assert len(archived(folder.disk, "orders")) == 10
    folder.delete("orders", tag="t7")
    folder.delete("orders", before_seq=7)
    folder.checkpoint()
    run_all(folder.disk, folder)
    assert archived(folder.disk, "orders").keys() == {1, 2, 3, 4, 5, 7, 9, 10}
    check_archive(folder.disk)


def test_a_delete_of_a_whole_segment_reaches_the_archive_though_its_files_are_gone(folder: Folder) -> None:
    folder.append("orders", Record.of(1, tag="a"), Record.of(2, tag="a"))
    folder.seal()
    folder.append("orders", 3)
    folder.seal()
    run_all(folder.disk, folder)
    folder.delete("orders", tag="a")
    folder.checkpoint()
    folder.checkpoint()
    assert not folder.disk.exists(LAYOUT.segment(1, 1) + ".data")
    run_all(folder.disk, folder)
    assert archived(folder.disk, "orders") == {3: "3"}


def test_records_deleted_before_archiving_are_never_archived(folder: Folder) -> None:
    folder.append("orders", Record.of(1, tag="a"), 2, 3)
    folder.seal()
    folder.delete("orders", tag="a")
    folder.checkpoint()
    run_all(folder.disk, folder)
    assert rows_of(folder.disk, "orders") == 2
    assert archived(folder.disk, "orders").keys() == {2, 3}


def test_a_dropped_topic_leaves_the_archive_and_one_made_again_begins_anew(folder: Folder) -> None:
    folder.append("orders", "old")
    folder.seal()
    run_all(folder.disk, folder)
    folder.drop("orders")
    folder.append("orders", "new")
    folder.seal()
    run_all(folder.disk, folder)
    assert archived(folder.disk, "orders") == {1: '"new"'}
    assert state_of(folder.disk).topics.keys() == {2}
    advance(folder.clock, 600_001)
    run_all(folder.disk, folder)
    assert [[run.topic_id for run in file.runs] for file in state_of(folder.disk).files.values()] == [[2]]
    assert data_files(folder.disk) == state_of(folder.disk).files.keys()


def test_deleted_records_are_erased_from_files(folder: Folder) -> None:
    for value in range(6):
        folder.append("orders", Record.of("secret" if value == 3 else value, tag=f"t{value}"))
    folder.seal()
    run_all(folder.disk, folder)
    folder.delete("orders", tag="t3")
    folder.delete("orders", tag="t4")
    folder.checkpoint()
    run_all(folder.disk, folder, seed=8)
    assert rows_of(folder.disk, "orders") == 4
    assert len(topic_of(folder.disk, "orders").deleted) == 0
    assert len(state_of(folder.disk).retired) == 1
    advance(folder.clock, 600_001)
    run_all(folder.disk, folder, seed=9)
    assert state_of(folder.disk).retired == {}
    assert len(data_files(folder.disk)) == 1
    assert archived(folder.disk, "orders").keys() == {1, 2, 3, 6}


def test_erasure_deadline_holds_without_other_changes(folder: Folder) -> None:
    """A tenth of a file is too little to rewrite it, and there are no more writes."""
    folder.append("orders", *[Record.of(value, tag=f"t{value}") for value in range(10)])
    folder.seal()
    run_all(folder.disk, folder)
    assert load_status(folder.disk, folder.layout).due_ms is None
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    rules = {"erase_ms": 5000, "retire_ms": 1000}
    hidden_ms = folder.clock.now_ms()
    run_all(folder.disk, folder, **rules)
    [before] = sorted(data_files(folder.disk))
    assert [file.hidden_ms for file in state_of(folder.disk).with_hidden_rows()] == [hidden_ms]
    # The status has the time of the next necessary look, and each look does the due work.
    assert load_status(folder.disk, folder.layout).due_ms == hidden_ms + 5000
    advance(folder.clock, 4999)
    run_all(folder.disk, folder, **rules)
    assert sorted(data_files(folder.disk)) == [before]
    advance(folder.clock, 1)
    run_all(folder.disk, folder, **rules)
    assert (rows_of(folder.disk, "orders"), len(topic_of(folder.disk, "orders").deleted)) == (9, 0)
    assert list(state_of(folder.disk).with_hidden_rows()) == []
    assert load_status(folder.disk, folder.layout).due_ms == hidden_ms + 6000
    advance(folder.clock, 1000)
    run_all(folder.disk, folder, **rules)
    [after] = sorted(data_files(folder.disk))
    assert after != before
    assert load_status(folder.disk, folder.layout).due_ms is None
    assert archived(folder.disk, "orders").keys() == set(range(1, 11)) - {4}


def test_an_erasure_does_not_wait_for_a_clock_that_was_wrong(folder: Folder) -> None:
    """A delete that was heard of while the clock was a year ahead is due within the time that it has all the same."""
    clock = folder.clock
    assert isinstance(clock, ManualClock)
    folder.append("orders", *range(30))
    folder.seal()
    run_all(folder.disk, folder)
    year = 365 * 86_400_000
    clock.jump(year)
    folder.delete("orders", before_seq=3)
    folder.checkpoint()
    run_all(folder.disk, folder)
    assert rows_of(folder.disk, "orders") == 30
    clock.jump(-year)
    # The supervisor detects that the times in the status are unusable.
    assert load_status(folder.disk, folder.layout).is_ahead(clock.now_ms())
    run_all(folder.disk, folder)
    assert not load_status(folder.disk, folder.layout).is_ahead(clock.now_ms())
    assert rows_of(folder.disk, "orders") == 28
    clock.advance(600_000)
    run_all(folder.disk, folder)
    assert len(data_files(folder.disk)) == 1
    check_archive(folder.disk)


def test_quarantined_folder_has_no_due_time(folder: Folder) -> None:
    folder.append("orders", *[Record.of(value, tag=f"t{value}") for value in range(10)])
    folder.seal()
    run_all(folder.disk, folder)
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    run_all(folder.disk, folder)
    state = state_of(folder.disk)
    [file] = state.files
    assert next_due(state, ArchiveRules(), ()) is not None
    assert next_due(state, ArchiveRules(), (file.rpartition("/")[0],)) is None


def test_hidden_chunks_have_unique_keys(folder: Folder) -> None:
    """Neighbouring runs have deletes in the same chunk: two rows for it would show every record in it twice."""
    for first in (0, 5):
        folder.append("orders", *[Record.of(value, tag=f"t{value}") for value in range(first, first + 5)])
        folder.append("gone", 1)
        folder.seal()
        run_all(folder.disk, folder, group_bytes=1)
    folder.delete("orders", tag="t3")
    folder.delete("orders", tag="t6")
    folder.drop("gone")
    folder.checkpoint()
    run_all(folder.disk, folder, deleted_share=1)
    state = state_of(folder.disk)
    assert len(list(state.with_hidden_rows())) == 2
    reported = hidden_chunks(state, state.with_hidden_rows()).to_pylist()
    assert [(row["e"], row["c"]) for row in reported] == [(topic_of(folder.disk, "orders").epoch, 0)]
    assert reported[0]["b"][0] == 1 << 4 | 1 << 7
    assert not any(reported[0]["b"][1:])


def test_hidden_records_of_topics_with_the_same_epoch_have_separate_rows(folder: Folder) -> None:
    for name in ("orders", "notes"):
        folder.append(name, *[Record.of(value, tag=f"t{value}") for value in range(5)])
    assert len({folder.engine.info(name).epoch for name in ("orders", "notes")}) == 1
    folder.seal()
    run_all(folder.disk, folder)
    folder.delete("orders", tag="t3")
    folder.delete("notes", tag="t1")
    folder.checkpoint()
    run_all(folder.disk, folder, deleted_share=1)
    state = state_of(folder.disk)
    reported = hidden_chunks(state, state.with_hidden_rows()).to_pylist()
    assert sorted((row["t"], row["c"], row["b"][0]) for row in reported) == [
        ("notes", 0, 1 << 2),
        ("orders", 0, 1 << 4),
    ]


def test_a_compaction_takes_out_all_that_is_deleted(folder: Folder) -> None:
    folder.append("orders", *[Record.of(value, tag=f"t{value}") for value in range(10)])
    folder.seal()
    run_all(folder.disk, folder)
    folder.delete("orders", tag="t3")
    folder.checkpoint()
    run_all(folder.disk, folder)
    assert (rows_of(folder.disk, "orders"), topic_of(folder.disk, "orders").deleted.ranges()) == (10, [(4, 4)])
    run_all(folder.disk, folder, deleted_share=0)
    assert (rows_of(folder.disk, "orders"), topic_of(folder.disk, "orders").deleted.ranges()) == (9, [])
    assert archived(folder.disk, "orders").keys() == set(range(1, 11)) - {4}


def test_files_are_compressed_and_state_what_is_in_them(folder: Folder) -> None:
    folder.append("orders", *[Record.of(value, tag=f"t{value}") for value in range(10)])
    folder.seal()
    run_all(folder.disk, folder)
    [file] = state_of(folder.disk).files
    whole = bytes(folder.disk.open(f"{ROOT}/{file}").map())
    parquet = pq.ParquetFile(io.BytesIO(whole))
    assert [field.metadata[b"PARQUET:field_id"] for field in parquet.schema_arrow] == [b"%d" % n for n in range(1, 10)]
    group = parquet.metadata.row_group(0)
    columns = {group.column(place).path_in_schema: group.column(place) for place in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    order = [list(columns).index(name) for name in ("topic", "epoch", "seq")]
    assert [one.column_index for one in group.sorting_columns] == order
    assert columns["topic"].has_column_index
    assert (columns["seq"].statistics.min, columns["seq"].statistics.max) == (1, 10)
    assert columns["ts"].statistics.has_min_max
    assert (columns["tag"].statistics.min, columns["tag"].statistics.max) == ("t0", "t9")
    assert columns["tag"].bloom_filter_offset is not None
    assert columns["data"].bloom_filter_offset is None


def test_compaction_merges_small_files(folder: Folder) -> None:
    for value in range(12):
        folder.append("orders", value)
        folder.seal()
        run_all(folder.disk, folder, group_bytes=1)
    assert len(state_of(folder.disk).files) < 9
    assert archived(folder.disk, "orders") == {value + 1: str(value) for value in range(12)}
    check_archive(folder.disk)


def test_retention_is_its_own_and_what_it_took_does_not_come_back(folder: Folder) -> None:
    for value in range(3):
        folder.append("orders", value)
        folder.seal()
        advance(folder.clock, DAY_MS)
    run_all(folder.disk, folder, retention_ms=int(2.5 * DAY_MS))
    run_all(folder.disk, folder, retention_ms=int(2.5 * DAY_MS))
    assert archived(folder.disk, "orders").keys() == {2, 3}
    assert topic_of(folder.disk, "orders").covered == ((1, 3),)


def test_a_long_backlog_is_committed_piece_by_piece(folder: Folder) -> None:
    for _ in range(6):
        folder.append("orders", "x" * 500)
        folder.seal()
    made = pipeline(folder.disk, folder, round_bytes=1000, group_bytes=1)
    assert made.round()
    assert 0 < len(archived(folder.disk, "orders")) < 6
    assert made.status.lag_segments == 5
    run_all(folder.disk, folder, round_bytes=1000, group_bytes=1)
    assert len(archived(folder.disk, "orders")) == 6


def test_damaged_ledger_stops_the_pipeline(folder: Folder) -> None:
    folder.append("orders", 1)
    folder.seal()
    run_all(folder.disk, folder)
    *_, name = folder.disk.list_dir(f"{ROOT}/ledger")
    path = f"{ROOT}/ledger/{name}"
    whole = read_whole(folder.disk, path)
    assert whole is not None
    for broken in (whole[:-5], b"", b"TPARC009" + whole[8:], whole[:20] + b"?" + whole[21:]):
        replace_file(folder.disk, path, broken)
        with pytest.raises(ArchiveDamagedError, match=name):
            ArchiveStore(folder.disk, ROOT).load()
        with pytest.raises(ArchiveDamagedError):
            run_all(folder.disk, folder)


def test_nothing_is_archived_twice_even_when_asked_to(folder: Folder) -> None:
    folder.append("orders", 1)
    folder.seal()
    run_all(folder.disk, folder)
    store = ArchiveStore(folder.disk, ROOT)
    state = store.load()
    again = Copied([], [Covered(1, 1, "orders", [(1, 1)])])
    with pytest.raises(ValueError, match="archived already"):
        store.commit(state, [again], 0)
    with pytest.raises(ValueError, match="written twice"):
        store.commit(store.load(), [Copied(list(state.files.values()), [])], 0)
    assert store.load().number == state.number


def test_ledger_checkpoint_keeps_the_state(folder: Folder) -> None:
    store, state = ArchiveStore(folder.disk, ROOT), ArchiveState()
    run = Run(1, 1, "orders", 1, 1000, 1000, 0, 0)
    file = ArchiveFile("data/day=1970-01-01/topic_bucket=4/a.parquet", 0, 4, 10, (run,))
    store.commit(state, [Copied([file], [Covered(1, 1, "orders", [(1, 1000)])])], 5)
    for number in range(1, 200):
        store.commit(state, [Masked(1, Mask.of([(number * 2, number * 2)]).packed(), number)], 10 + number)
        if number % 20 == 0:
            found = ArchiveStore(folder.disk, ROOT).load()
            assert (found.number, found.topics, found.files) == (state.number, state.topics, state.files)
    names = folder.disk.list_dir(f"{ROOT}/ledger")
    assert len(names) < 70
    assert sum(name.startswith("state-") for name in names) == 1
    assert topic_of(folder.disk, "orders").deleted.count() == 199


def test_the_engine_forgets_deletes_once_they_are_applied(folder: Folder) -> None:
    folder.append("orders", Record.of(1, tag="a"), Record.of(2, tag="b"))
    folder.seal()
    run_all(folder.disk, folder)
    folder.delete("orders", tag="a")
    folder.checkpoint()
    run_all(folder.disk, folder)
    for _ in range(2):
        folder.append("orders", 3)
        folder.checkpoint()
    part = (folder.engine.core.directory.load("orders").parts or {})["removals"]
    assert part.exported == []  # type: ignore[attr-defined]


# A poisoned topic


def damage(folder: Folder, topic_id: int) -> None:
    path = LAYOUT.segment(topic_id, 1) + ".idx"
    folder.disk.open(path, write=True).write_at(50, b"????")


def test_damaged_topic_is_quarantined_and_others_are_archived(folder: Folder) -> None:
    folder.append("bad", 1)
    folder.append("good", 1)
    folder.seal()
    damage(folder, 1)
    made = run_all(folder.disk, folder)
    assert archived(folder.disk, "good") == {1: "1"}
    [one] = made.status.quarantined
    assert (one.topic, one.product, one.attempts) == ("bad", "archive", 1)
    assert "wrong checksum" in one.reason
    assert made.status.lag_segments == 1
    advance(folder.clock, 60_001)
    made = run_all(folder.disk, folder)
    [again] = made.status.quarantined
    assert again.attempts == 2
    assert again.retry_at_ms - folder.clock.now_ms() == 120_000
    assert again.since_ms == one.since_ms


def test_quarantine_ends_when_a_topic_succeeds(folder: Folder) -> None:
    folder.append("bad", 1)
    folder.seal()
    path = LAYOUT.segment(1, 1) + ".idx"
    whole = read_whole(folder.disk, path)
    assert whole is not None
    damage(folder, 1)
    run_all(folder.disk, folder)
    replace_file(folder.disk, path, whole)
    advance(folder.clock, 60_001)
    made = run_all(folder.disk, folder)
    assert made.status.quarantined == ()
    assert archived(folder.disk, "bad") == {1: "1"}
    assert made.status.lag_segments == 0
