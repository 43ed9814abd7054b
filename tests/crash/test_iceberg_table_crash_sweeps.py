"""A pipeline that is stopped at any file-system call leaves a table that every reader can read, and that heals.

The promise: at any moment a reader finds a whole version, in which no record is there twice and none that never was;
and once a run has come to its end the table shows what the log has and nothing that is deleted.
"""

import pytest

from tests.crash.test_archive_crash_sweeps import ENDINGS, Files, in_objects, on_disk
from tests.unit.spark.archives import ROOT, archived
from tests.unit.spark.folders import Folder
from tests.unit.spark.tables import (
    Rows,
    every_file,
    of_topic,
    payloads,
    read_table,
    rows_of,
    run_shown,
    shown_pipeline,
    table_rows,
)
from topics.log.fs import FileSystem
from topics.model.records import Record
from topics.spark.segment_reader import bucket_of
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock, PowerCut, Survival

RETIRED_MS = 600_001
GONE = "gone-11"
"""A topic of the same bucket as orders, so that the two share files."""


def prepare(files: Files) -> tuple[Folder, Rows, Rows]:
    """A table with something of everything to do: files come, rows are deleted, files are rewritten, a topic goes."""
    folder = Folder(clock=ManualClock())
    for value in range(4):
        folder.append("orders", *[Record.of(value * 10 + n, tag=f"t{n}") for n in range(8)])
        folder.append(GONE, value)
        folder.seal()
    assert isinstance(folder.disk, FakeDisk) and bucket_of(GONE) == bucket_of("orders")
    run_shown(files(folder.disk), folder, 7)
    before = table_rows(files(folder.disk))
    assert len(before) == 36
    # A file of which one of eight is deleted is hidden from, and one of which all is deleted goes.
    folder.delete("orders", tag="t1")
    folder.delete("orders", before_seq=9)
    folder.drop(GONE)
    for value in range(4, 6):
        folder.append("orders", *[Record.of(value * 10 + n, tag=f"t{n}") for n in range(8)])
        folder.append("late", value)
        folder.seal()
    requested: Rows = {}
    for name in ("orders", "late"):
        epoch = folder.engine.core.directory.load(name).epoch
        for record in folder.diff(name):
            requested[name, epoch, int(str(record["$seq"]))] = str(record["data"])
    assert len(requested) == 48 - 8 - 3 + 2
    return folder, before, requested


@pytest.mark.parametrize("ending", range(4))
def test_a_stop_at_any_call_leaves_a_table_that_the_next_run_completes(ending: int) -> None:
    sweep(ENDINGS[ending], 1 + 2 * ending, 12)


@pytest.mark.parametrize("ending", range(2))
def test_a_stop_at_any_call_leaves_a_table_in_an_object_store_too(ending: int) -> None:
    sweep(ENDINGS[ending], 1 + 2 * ending, 40, in_objects)


@pytest.mark.slow
@pytest.mark.parametrize("survival", ENDINGS)
def test_a_stop_at_any_call_in_every_ending(survival: Survival) -> None:
    sweep(survival, 1, 1)


def sweep(survival: Survival, first: int, step: int, files: Files = on_disk) -> None:
    folder, before, requested = prepare(files)
    start = folder.disk
    assert isinstance(start, FakeDisk)
    whole = start.clone()
    calls = whole.call_count
    run_shown(files(whole), folder, 11)
    calls = whole.call_count - calls
    assert table_rows(files(whole)) == requested
    for call in range(first, calls + 1, step):
        disk = start.clone()
        disk.stop_before = disk.call_count + call
        with pytest.raises(PowerCut):
            run_shown(files(disk), folder, 11)
        after = files(disk.crash(survival, seed=call))
        for ahead in (False, True):
            shown = table_rows(after, ahead)
            assert shown.items() <= {**before, **requested}.items(), call
            assert shown.keys() >= {key for key in before if key in requested}, call
        run_shown(after, folder, 12 + call)
        check(after, requested)


def check(fs: FileSystem, requested: Rows) -> None:
    """Readers see the content of the archive and the log, through every interface."""
    assert table_rows(fs) == table_rows(fs, ahead=True) == requested
    assert archived(fs, "orders") == of_topic(requested, "orders")


@pytest.mark.parametrize("call", range(3, 120, 10))
def test_nothing_is_left_of_what_is_deleted_when_its_time_is_over(call: int) -> None:
    folder, before, requested = prepare(on_disk)
    disk = folder.disk
    assert isinstance(disk, FakeDisk)
    disk.stop_before = disk.call_count + call
    try:
        run_shown(disk, folder, 11)
    except PowerCut:
        pass
    after = disk.crash(Survival.EVERYTHING, seed=call)
    run_shown(after, folder, 12, deleted_share=0.0)
    assert isinstance(folder.clock, ManualClock)
    folder.clock.advance(RETIRED_MS)
    run_shown(after, folder, 13, deleted_share=0.0)
    check(after, requested)
    files = every_file(after)
    held = [payload for data in files.values() for payload in payloads(data)]
    assert sorted(held) == sorted(requested.values()) and set(before.values()) - set(requested.values())
    table = read_table(after)
    assert table is not None and len(table.metadata.snapshots) == 1
    assert rows_of(table) == requested
    # Nothing of a run that was killed, and nothing of a snapshot that is gone.
    assert len([path for path in files if path.endswith(".metadata.json")]) <= 2
    assert not [path for path in files if "/deletes/" in path]


@pytest.mark.parametrize("first", range(4))
def test_a_call_that_fails_is_made_good_by_the_rounds_that_follow_it(first: int) -> None:
    fail_calls(first, 12)


@pytest.mark.slow
def test_any_call_that_fails_is_made_good() -> None:
    fail_calls(0, 1)


def fail_calls(first: int, step: int) -> None:
    """The process goes on after each of them, with its state in memory."""
    folder, before, requested = prepare(on_disk)
    start = folder.disk
    assert isinstance(start, FakeDisk)
    counted = FaultyFileSystem(start.clone(), FaultPlan(include_reads=True))
    run_shown(counted, folder, 11)
    places = tuple(f"{ROOT}/{name}" for name in ("metadata", "deletes", "ledger"))
    calls = [number for number, (_, path) in enumerate(counted.trace, 1) if path.startswith(places)]
    assert len(calls) > 100
    for call in calls[first::step]:
        disk = start.clone()
        fault = Fault.ENOSPC if call % 2 else Fault.EIO
        fs = FaultyFileSystem(disk, FaultPlan(call=call, fault=fault, include_reads=True))
        made = shown_pipeline(fs, folder, 11)
        while True:
            try:
                if not made.round():
                    break
            except OSError:
                assert table_rows(disk).items() <= {**before, **requested}.items(), call
        assert fs.failed == 1
        assert table_rows(disk) == table_rows(disk, ahead=True) == requested, call
