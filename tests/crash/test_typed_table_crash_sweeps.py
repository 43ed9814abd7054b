"""A pipeline that is stopped at any file-system call leaves tables of streams that can be read, and that heal.

The promise: at any moment a reader finds a whole version of the table, by one version of the schema, in which no entry
is there twice and each is as that version shows it; and once a run has come to its end the table shows what the
protocol of streams shows.
"""

import pytest

from tests.crash.test_archive_crash_sweeps import ENDINGS, Files, in_objects, on_disk
from tests.unit.spark.archives import ROOT
from tests.unit.spark.folders import Folder
from tests.unit.spark.tables import every_file
from tests.unit.spark.test_typed_tables import seqs_in
from tests.unit.spark.typed import Described, run_typed, typed_entries
from tests.unit.streams.describing import rename
from topics.testing import FakeDisk, ManualClock, PowerCut, Survival

RETIRED_MS = 600_001
BEFORE = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
AFTER = {"type": "object", "required": ["b"], "properties": {"b": {"type": "integer"}, "lines": {}}}

Entries = dict[int, object]


def prepare(files: Files) -> tuple[Described, Entries, Entries]:
    """Tables with something of everything to do: another version, new entries, deletes, files rewritten, a drop."""
    described = Described(Folder(clock=ManualClock()))
    folder = described.folder
    for name in ("orders", "gone"):
        described.create(name, BEFORE)
    for first in range(0, 24, 8):
        described.append("orders", *[{"a": n} for n in range(first, first + 8)], key=f"k{first}")
        described.append("gone", {"a": first})
        folder.seal()
    assert isinstance(folder.disk, FakeDisk)
    run_typed(files(folder.disk), folder, 7)
    before = typed_entries(files(folder.disk), "orders")
    assert len(before) == 24
    described.evolve("orders", AFTER, rename("/a", "/b"))
    described.append("orders", {"b": 100, "lines": ["new"]}, {"b": 101})
    folder.seal()
    folder.delete("orders", before_seq=5)
    folder.delete("orders", tag="k8")
    folder.drop("gone")
    folder.checkpoint()
    requested = described.promoted("orders")
    assert len(requested) == 26 - 4 - 8
    return described, before, requested


@pytest.mark.parametrize("ending", range(4))
def test_a_stop_at_any_call_leaves_tables_that_the_next_run_completes(ending: int) -> None:
    sweep(ENDINGS[ending], 1 + 7 * ending, 61)


def test_a_stop_at_any_call_leaves_tables_in_an_object_store_too() -> None:
    sweep(ENDINGS[0], 5, 199, in_objects)


@pytest.mark.slow
@pytest.mark.parametrize("survival", ENDINGS)
def test_a_stop_at_any_call_in_every_ending(survival: Survival) -> None:
    sweep(survival, 1, 1)


def sweep(survival: Survival, first: int, step: int, files: Files = on_disk) -> None:
    described, before, requested = prepare(files)
    folder, start = described.folder, described.folder.disk
    assert isinstance(start, FakeDisk)
    whole = start.clone()
    calls = whole.call_count
    run_typed(files(whole), folder, 11, deleted_share=0.0)
    calls = whole.call_count - calls
    assert typed_entries(files(whole), "orders") == requested and typed_entries(files(whole), "gone") == {}
    for call in range(first, calls + 1, step):
        disk = start.clone()
        disk.stop_before = disk.call_count + call
        with pytest.raises(PowerCut):
            run_typed(files(disk), folder, 11, deleted_share=0.0)
        after = files(disk.crash(survival, seed=call))
        for ahead in (False, True):
            shown = typed_entries(after, "orders", ahead)
            of_before = shown.items() <= before.items() and shown.keys() >= before.keys() & requested.keys()
            assert of_before or shown == requested, call
        run_typed(after, folder, 12 + call, deleted_share=0.0)
        for ahead in (False, True):
            assert typed_entries(after, "orders", ahead) == requested, call


@pytest.mark.parametrize("call", range(9, 250, 80))
def test_nothing_is_left_of_what_is_deleted_when_its_time_is_over(call: int) -> None:
    described, _, requested = prepare(on_disk)
    folder = described.folder
    disk = folder.disk
    assert isinstance(disk, FakeDisk) and isinstance(folder.clock, ManualClock)
    disk.stop_before = disk.call_count + call
    with pytest.raises(PowerCut):
        run_typed(disk, folder, 11, deleted_share=0.0)
    after = disk.crash(Survival.EVERYTHING, seed=call)
    run_typed(after, folder, 12, deleted_share=0.0)
    folder.clock.advance(RETIRED_MS)
    # A process each, because a supervised pipeline is started for due work.
    for seed in (13, 14):
        run_typed(after, folder, seed, deleted_share=0.0)
    assert typed_entries(after, "orders") == requested
    files = every_file(after, f"{ROOT}/typed")
    assert sorted(seq for data in files.values() for seq in seqs_in(data)) == sorted(requested)
    assert not [path for path in files if "/gone/" in path or "/deletes/" in path or path.endswith(".tmp")]
