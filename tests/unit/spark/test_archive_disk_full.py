"""The archive on a full disk: unfinished files are removed at once, because their room is needed."""

import pytest

from tests.unit.spark.archives import ROOT, advance, archived, check_archive, data_files, pipeline, run_all, state_of
from tests.unit.spark.folders import Folder
from topics.model.records import Record
from topics.spark.pipeline.rounds import ShortError
from topics.testing import NO_FAULTS, Fault, FaultPlan, FaultyFileSystem

DAYS = 3
DATA = f"{ROOT}/data/"


def make_folder() -> Folder:
    """A segment with ten records of each of three days, so that one task writes three files."""
    made = Folder()
    append(made)
    return made


def append(folder: Folder) -> None:
    for _ in range(DAYS):
        folder.append("orders", *[Record.of(n) for n in range(10)])
        advance(folder.clock, 86_400_000)
    folder.seal()


def short_of_room(folder: Folder, call: int, within: str, lasting: bool = True) -> FaultyFileSystem:
    """A write that finds no room leaves as much as fits."""
    plan = FaultPlan(call=call, fault=Fault.SHORT, lasting=lasting, within=within, only=frozenset(("write",)))
    return FaultyFileSystem(folder.disk, plan)


def check_complete(folder: Folder, count: int) -> None:
    assert list(archived(folder.disk, "orders")) == list(range(1, count + 1))
    check_archive(folder.disk)
    assert data_files(folder.disk) == state_of(folder.disk).named()


@pytest.mark.parametrize("lasting", [False, True])
def test_a_task_without_room_leaves_nothing(lasting: bool) -> None:
    """For the first, the second and the third of its files."""
    folder = make_folder()
    fs = FaultyFileSystem(folder.disk)
    pipeline(fs, folder, seed=1).round()
    calls = [call for call, (word, path) in enumerate(fs.trace, 1) if word == "write" and path.startswith(DATA)]
    assert len(calls) == DAYS
    for call in calls:
        folder = make_folder()
        fs = short_of_room(folder, call, DATA, lasting)
        made = pipeline(fs, folder, seed=1)
        with pytest.raises(ShortError):
            made.round()
        assert fs.failed and data_files(folder.disk) == set()
        fs.plan = NO_FAULTS
        while made.round():
            pass
        check_complete(folder, 30)


def test_a_rewrite_without_room_leaves_the_files_that_were_there() -> None:
    folder = make_folder()
    run_all(folder.disk, folder)
    before = data_files(folder.disk)
    folder.delete("orders", before_seq=6)
    folder.checkpoint()
    made = pipeline(short_of_room(folder, 1, DATA), folder)
    with pytest.raises(ShortError):
        made.round()
    assert data_files(folder.disk) == before


def test_files_of_a_commit_that_failed_go_with_the_next_round() -> None:
    folder = make_folder()
    fs = FaultyFileSystem(folder.disk)
    made = pipeline(fs, folder)
    while made.round():
        pass
    before = data_files(folder.disk)
    append(folder)
    fs.plan = FaultPlan(call=1, fault=Fault.SHORT, lasting=True, within=f"{ROOT}/ledger/")
    with pytest.raises(OSError):
        made.round()
    left = data_files(folder.disk) - before
    assert left and state_of(folder.disk).named() == before
    fs.plan = NO_FAULTS
    while made.round():
        pass
    assert not left & data_files(folder.disk)
    check_complete(folder, 60)
