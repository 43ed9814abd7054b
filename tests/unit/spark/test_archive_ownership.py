"""An archive is that of one log: a folder that went back takes it over, another one does not."""

import msgspec
import pytest

from tests.unit.ops.folders import OPTIONS, back_up, restore, start
from tests.unit.spark.archives import ROOT, archived, check_archive, run_all, state_of
from tests.unit.spark.folders import Folder
from topics.log.fs import read_checked, replace_file
from topics.log.layout import Layout
from topics.model.records import Record
from topics.ops.backup.restore import RequestedTopics
from topics.spark.archive.ledger import ArchiveStore, OtherHistoryError
from topics.testing import ManualClock


def values(folder: Folder, name: str) -> dict[int, str]:
    return {int(str(one["$seq"])): str(one["data"]) for one in folder.diff(name)}


def backed_up() -> tuple[Folder, ManualClock]:
    """A folder whose archive lies elsewhere, with a backup of before the last records and deletes."""
    clock = ManualClock()
    folder = Folder(clock=clock)
    folder.engine.close_inline()
    folder.engine = start(folder.disk, clock, msgspec.structs.replace(OPTIONS, track_removals=True))
    for number in range(12):
        folder.append("orders", Record.of(number, tag=f"t{number % 2}"))
    folder.seal()
    run_all(folder.disk, folder)
    back_up(folder.engine)
    folder.append("orders", *range(100, 112))
    folder.delete("orders", tag="t1")
    folder.append("later", 1)
    folder.seal()
    run_all(folder.disk, folder)
    return folder, clock


@pytest.mark.parametrize("gap", [0, 1000])
def test_a_restored_folder_takes_the_archive_over_without_doubled_rows(gap: int) -> None:
    old, clock = backed_up()
    assert archived(old.disk, "orders") == values(old, "orders")
    old.engine.close_inline()
    engine, _ = restore(old.disk, gap=gap, clock=clock)
    engine.close_inline()
    back = Folder(old.disk, old.clock, Layout("back"))
    back.append("orders", *range(200, 212))
    back.append("fresh", 7)
    back.seal()
    for _ in range(2):
        run_all(back.disk, back)
        assert archived(back.disk, "orders") == values(back, "orders")
        assert archived(back.disk, "fresh") == values(back, "fresh")
        assert not archived(back.disk, "later")
        check_archive(back.disk)
    before = set(state_of(back.disk).files)
    back.append("orders", 300)
    back.seal()
    run_all(back.disk, back)
    assert before <= set(state_of(back.disk).files), "it goes on with what it made"
    assert archived(back.disk, "orders") == values(back, "orders")


def test_a_part_of_a_folder_takes_nothing_over() -> None:
    old, clock = backed_up()
    engine, _ = restore(old.disk, requested=RequestedTopics(names=("orders",)), clock=clock)
    engine.close_inline()
    before = archived(old.disk, "orders")
    back = Folder(old.disk, old.clock, Layout("back"))
    with pytest.raises(OtherHistoryError, match="a separate archive"):
        run_all(back.disk, back)
    assert archived(old.disk, "orders") == before
    old.append("orders", 1)
    old.seal()
    run_all(old.disk, old)
    assert archived(old.disk, "orders") == values(old, "orders")


def test_a_folder_that_was_put_back_from_a_copy_makes_it_anew() -> None:
    folder = Folder()
    folder.append("orders", *range(5))
    folder.seal()
    run_all(folder.disk, folder)
    replace_file(folder.disk, folder.layout.pipeline_seen, b"999")
    run_all(folder.disk, folder)
    assert archived(folder.disk, "orders") == values(folder, "orders")
    check_archive(folder.disk)
    assert int(read_checked(folder.disk, folder.layout.pipeline_seen)) < 999
    files = set(state_of(folder.disk).files)
    run_all(folder.disk, folder)
    assert set(state_of(folder.disk).files) == files


def test_records_that_only_the_archive_has_are_not_given_up() -> None:
    folder = Folder()
    folder.put("orders", cap_records=3)
    folder.append("orders", *range(3))
    folder.seal()
    run_all(folder.disk, folder)
    folder.append("orders", *range(3, 6))
    folder.seal()
    run_all(folder.disk, folder)
    before = archived(folder.disk, "orders")
    assert len(before) == 6
    replace_file(folder.disk, folder.layout.pipeline_seen, b"999")
    with pytest.raises(OtherHistoryError, match="of orders that the log"):
        run_all(folder.disk, folder)
    assert archived(folder.disk, "orders") == before


def test_an_archive_of_before_is_that_of_its_folder() -> None:
    folder = Folder()
    folder.append("orders", *range(5))
    folder.seal()
    run_all(folder.disk, folder)
    store = ArchiveStore(folder.disk, ROOT)
    state = store.load()
    assert state.history
    state.history = ""
    store.save(state)
    folder.disk.remove(folder.layout.pipeline_history)
    run_all(folder.disk, folder)
    assert state_of(folder.disk).history
    assert set(state_of(folder.disk).files) == set(state.files)
