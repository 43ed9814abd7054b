"""A pipeline that is stopped at any file-system call leaves an archive that is valid, and the next run finishes it.

The promise: the archive always shows a part of the sealed and undeleted records; nothing is there twice; and after a
complete run everything is there, whatever was cut short before it.
"""

from collections.abc import Callable

import pytest

from tests.unit.spark.archives import ROOT, archived, check_archive, data_files, run_all, state_of
from tests.unit.spark.folders import Folder
from topics.log.fs import FileSystem
from topics.log.object_store.tiered_fs import tiered
from topics.model.records import Record
from topics.testing import FakeDisk, ManualClock, PowerCut, Survival
from topics.testing.folder_store import FolderStore

_RETIRED_MS = 600_001

Files = Callable[[FakeDisk], FileSystem]


def prepare(files: Files) -> tuple[Folder, dict[int, str], dict[int, str]]:
    """A folder whose archive has something of everything to do: copies, masks, rewrites, retired files, a drop."""
    folder = Folder(clock=ManualClock())
    for value in range(4):
        folder.append("orders", *[Record.of(value * 10 + n, tag=f"t{n}") for n in range(3)])
        folder.append("gone", value)
        folder.seal()
    assert isinstance(folder.disk, FakeDisk)
    run_all(files(folder.disk), folder, group_bytes=1)
    folder.delete("orders", tag="t1")
    folder.drop("gone")
    for value in range(4, 7):
        folder.append("orders", *[Record.of(value * 10 + n, tag=f"t{n}") for n in range(3)])
        folder.append("late", value)
        folder.seal()
    live = {3 * value + n + 1: str(value * 10 + n) for value in range(7) for n in range(3)}
    kept = {seq: data for seq, data in live.items() if not (seq % 3 == 2 and seq <= 12)}
    return folder, live, kept


ORDERS_BEFORE = range(1, 13)


ENDINGS = [Survival.EVERYTHING, Survival.NOTHING, Survival.TORN, Survival.SCATTERED]


@pytest.mark.parametrize("ending", range(4))
def test_a_stop_at_any_call_leaves_a_valid_archive_that_the_next_run_completes(ending: int) -> None:
    """Every call once, each with one of the endings in turn."""
    sweep(ENDINGS[ending], 1 + ending, 4)


@pytest.mark.parametrize("ending", range(4))
def test_a_stop_at_any_call_leaves_a_valid_archive_in_an_object_store_too(ending: int) -> None:
    sweep(ENDINGS[ending], 1 + ending, 16, in_objects)


def on_disk(disk: FakeDisk) -> FileSystem:
    return disk


def in_objects(disk: FakeDisk) -> FileSystem:
    """The archive's folder is an object store, of which every step of every call can be the last as well."""
    return tiered(disk, ROOT, FolderStore(disk, "objects"))


@pytest.mark.slow
@pytest.mark.parametrize("survival", ENDINGS)
def test_a_stop_at_any_call_in_every_ending(survival: Survival) -> None:
    sweep(survival, 1, 1)


def sweep(survival: Survival, first: int, step: int, files: Files = on_disk) -> None:
    # Every other sweep publishes after each task, as a long round does after each job.
    rules = {"group_bytes": 1, "commit_bytes": 1 if first % 2 else 1_000_000}
    folder, live, kept = prepare(files)
    start = folder.disk
    assert isinstance(start, FakeDisk)
    whole = start.clone()
    before = whole.call_count
    run_all(files(whole), folder, seed=11, **rules)
    calls = whole.call_count - before
    assert archived(files(whole), "orders") == kept
    assert calls > 100
    for call in range(first, calls + 1, step):
        disk = start.clone()
        disk.stop_before = disk.call_count + call
        with pytest.raises(PowerCut):
            run_all(files(disk), folder, seed=11, **rules)
        after = files(disk.crash(survival, seed=call))
        check_archive(after)
        shown = archived(after, "orders")
        assert shown.items() <= live.items(), call
        assert shown.keys() >= {seq for seq in ORDERS_BEFORE if seq in kept}, call
        run_all(after, folder, seed=12 + call, **rules)
        check_archive(after)
        assert archived(after, "orders") == kept, call
        assert archived(after, "late") == {1: "4", 2: "5", 3: "6"}, call
        assert archived(after, "gone") == {}, call
        assert {one.name for one in state_of(after).topics.values()} == {"orders", "late"}, call


def test_nothing_is_left_behind_by_killed_runs() -> None:
    folder, _, _ = prepare(on_disk)
    start = folder.disk
    assert isinstance(start, FakeDisk)
    for call in range(5, 120, 7):
        disk = start.clone()
        disk.stop_before = disk.call_count + call
        try:
            run_all(disk, folder, seed=11, group_bytes=1)
        except PowerCut:
            pass
        after = disk.crash(Survival.EVERYTHING, seed=call)
        run_all(after, folder, seed=20, group_bytes=1)
        assert data_files(after) == state_of(after).named(), call
