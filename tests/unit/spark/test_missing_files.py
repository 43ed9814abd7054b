"""Files of the archive that a task reported and that are missing, at once or later."""

import pytest

from tests.unit.spark.archives import ROOT, archived, check_archive, data_files, run_all, state_of
from tests.unit.spark.folders import Folder
from topics.log.fs import FileSystem
from topics.model.records import Record
from topics.spark.archive.archive_plan import ArchiveRules
from topics.spark.archive.data_files import problem_of
from topics.spark.pipeline.archive_product import ArchiveProduct
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.products import OutputMissingError
from topics.spark.pipeline.rounds import Pipeline, ShortError, WorkerPlaceError
from topics.spark.pipeline.segment_scan import Piece, decode_outcome, nonce_path, reached
from topics.testing import FakeDisk, FaultyFileSystem, SeededEntropy
from topics.testing.faults import Fault, FaultPlan


def filled(count: int = 30) -> Folder:
    folder = Folder()
    folder.append("orders", *[Record.of(n) for n in range(count)])
    folder.append("events", *[Record.of(n) for n in range(count)])
    folder.seal()
    return folder


def product(fs: FileSystem, notes: list[tuple[str, bool]]) -> ArchiveProduct:
    return ArchiveProduct(fs, ROOT, ArchiveRules(), SeededEntropy(3), on_note=lambda *note: notes.append(note))


def rounds(folder: Folder, notes: list[tuple[str, bool]], places: tuple[str, ...] = ()) -> None:
    made = Pipeline(
        folder.disk, folder.layout, [product(folder.disk, notes)], InlineExecutor(folder.disk), folder.clock,
        places=places,
    )  # fmt: skip
    while made.round():
        pass


class _Elsewhere(InlineExecutor):
    """Runs tasks on a machine whose folders of the same names are others."""

    def __init__(self) -> None:
        super().__init__(FakeDisk())


def test_task_that_does_not_see_the_nonce_does_nothing_and_fails_the_round() -> None:
    folder = filled()
    places = ("data/pipeline", ROOT)
    made = Pipeline(
        folder.disk, folder.layout, [product(folder.disk, [])], _Elsewhere(), folder.clock, places=places
    )  # fmt: skip
    with pytest.raises(WorkerPlaceError, match="does not see the same data/pipeline and data/archive as the driver"):
        made.round()
    assert made.status.quarantined == ()
    assert not state_of(folder.disk).files
    rounds(folder, [], places)
    assert set(archived(folder.disk, "orders")) == set(range(1, 31))


def test_nonce_of_another_process_is_no_proof() -> None:
    disk = FakeDisk()
    disk.make_dirs("place")
    file = disk.open(nonce_path("place"), create=True)
    file.write_at(0, b"one")
    assert reached(disk, Piece("data", None, {}, places=["place"], nonce="one")) == (disk, "")
    assert "place" in reached(disk, Piece("data", None, {}, places=["place"], nonce="two"))[1]


@pytest.mark.parametrize("damage", ["removed", "shorter", "other footer"])
def test_file_that_is_not_as_its_task_wrote_it_is_not_named_by_the_ledger(damage: str) -> None:
    folder = filled()

    class Damaging(InlineExecutor):
        def run(self, works, about):  # type: ignore[no-untyped-def]
            for place, outcome in super().run(works, about):
                assert decode_outcome(outcome).made
                path = f"{ROOT}/{min(data_files(folder.disk))}"
                if damage == "removed":
                    folder.disk.remove(path)
                else:
                    file = folder.disk.open(path, write=True)
                    size = file.size()
                    if damage == "shorter":
                        file.truncate(size - 1)
                    else:
                        file.write_at(size - 40, b"?")
                yield place, outcome

    made = Pipeline(folder.disk, folder.layout, [product(folder.disk, [])], Damaging(folder.disk), folder.clock)
    with pytest.raises(OutputMissingError, match=r"missing|bytes instead of|another footer"):
        made.round()
    assert not state_of(folder.disk).files
    rounds(folder, [])
    assert set(archived(folder.disk, "orders")) == set(range(1, 31))
    check_archive(folder.disk)


def test_missing_files_are_reported_and_rebuilt_from_the_log() -> None:
    folder = filled()
    run_all(folder.disk, folder, group_bytes=1)
    folder.delete("orders", before_seq=5)
    folder.checkpoint()
    before = sorted(state_of(folder.disk).files)
    assert len(before) > 1
    folder.disk.remove(f"{ROOT}/{before[0]}")
    notes: list[tuple[str, bool]] = []
    rounds(folder, notes)
    [(reported, is_problem)] = notes
    assert "1 file(s) of the archive are missing" in reported
    assert "1 are rebuilt from the log" in reported
    assert not is_problem
    assert set(archived(folder.disk, "orders")) == set(range(5, 31))
    assert set(archived(folder.disk, "events")) == set(range(1, 31))
    check_archive(folder.disk)
    notes.clear()
    rounds(folder, notes)
    assert notes == []


def test_missing_files_with_records_that_the_log_evicted_stay_in_the_ledger() -> None:
    folder = filled()
    run_all(folder.disk, folder, group_bytes=1)
    folder.put("orders", cap_records=5)
    folder.checkpoint()
    before = state_of(folder.disk)
    path = next(path for path, file in before.files.items() if file.runs[0].topic == "orders")
    folder.disk.remove(f"{ROOT}/{path}")
    notes: list[tuple[str, bool]] = []
    rounds(folder, notes)
    [(reported, is_problem)] = notes
    assert "have records that the log no longer has" in reported
    assert is_problem
    assert path in state_of(folder.disk).files


def test_segment_over_three_files_is_rebuilt_around_the_file_that_is_left() -> None:
    day = 86_400_000
    folder = Folder()
    for _ in range(3):
        folder.append("orders", *range(10))
        folder.clock.advance(day)  # type: ignore[attr-defined]
    folder.seal()
    run_all(folder.disk, folder)
    files = sorted(state_of(folder.disk).files.values(), key=lambda file: file.day)
    assert len(files) == 3
    for file in (files[0], files[2]):
        folder.disk.remove(f"{ROOT}/{file.path}")
    rounds(folder, [])
    assert set(archived(folder.disk, "orders")) == set(range(1, 31))
    check_archive(folder.disk)


def test_files_of_earlier_versions_have_no_checksum_and_are_checked_by_length() -> None:
    disk = FakeDisk()
    disk.make_dirs("place")
    file = disk.open("place/file", create=True)
    file.write_at(0, b"four")
    assert problem_of(disk, "place/file", 4) is None
    assert problem_of(disk, "place/file", 5) == "place/file has 4 bytes instead of 5"
    assert "another footer" in str(problem_of(disk, "place/file", 4, 1))


def test_full_disk_names_the_file_that_found_no_room() -> None:
    folder = filled()

    class Full(InlineExecutor):
        def run(self, works, about):  # type: ignore[no-untyped-def]
            full = FaultyFileSystem(folder.disk, FaultPlan(1, Fault.ENOSPC, lasting=True, only=frozenset(["write"])))
            return InlineExecutor(full).run(works, about)

    made = Pipeline(folder.disk, folder.layout, [product(folder.disk, [])], Full(folder.disk), folder.clock)
    with pytest.raises(ShortError, match=r"ENOSPC.*: 'data/archive/data/day=.*\.parquet'"):
        made.round()
