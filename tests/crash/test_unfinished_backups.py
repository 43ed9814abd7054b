"""Backups that were cut short: the next one resumes them, and a prune removes unfinished ones."""

from collections.abc import Iterator, Sequence

import msgspec
import pytest

from tests.crash.harness import dump
from tests.unit.conftest import append
from tests.unit.ops.folders import OPTIONS, PLACE, back_up, manifests, places, restore, start
from topics.engine.engine import Engine
from topics.log.fs import BytesLike
from topics.model.errors import BackupFailedError
from topics.ops.backup.backup_files import Copier
from topics.ops.backup.backup_store import (
    UNFINISHED_MS,
    BackupPlace,
    KeptFile,
    PlaceBusy,
    Writing,
    damages,
    prune,
    prune_unfinished,
)
from topics.testing import FakeDisk, ManualClock, PowerCut, Survival

ENDINGS = [Survival.EVERYTHING, Survival.NOTHING, Survival.TORN, Survival.SCATTERED]
ROOMY = msgspec.structs.replace(OPTIONS, wal_file_bytes=1 << 16)


def filled(records: int = 24) -> tuple[FakeDisk, ManualClock, Engine]:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock, ROOMY)
    for number in range(records):
        append(engine, "orders", number)
    return disk, clock, engine


def lineage_folders(disk: FakeDisk) -> list[str]:
    return disk.list_dir(PLACE) if disk.exists(PLACE) else []


def calls_of_first_backup() -> Iterator[int]:
    disk, _, engine = filled()
    before = disk.call_count
    back_up(engine)
    yield from range(before + 1, disk.call_count + 1)


@pytest.mark.parametrize("ending", range(4))
def test_first_backup_that_is_stopped_at_any_call_is_finished_by_the_next_one(ending: int) -> None:
    for call in list(calls_of_first_backup())[ending::4]:
        disk, clock, engine = filled()
        disk.stop_before = call
        with pytest.raises(PowerCut):
            back_up(engine)
            raise PowerCut
        after = disk.crash(ENDINGS[ending], call)
        engine = start(after, clock, ROOMY, boot="later", entropy=7)
        back_up(engine)
        assert len(lineage_folders(after)) == 1, call
        (place,) = places(after)
        assert not place.is_written
        for manifest in manifests(place):
            assert not damages(place, manifest.files()), call
        restored, _ = restore(after, clock=clock)
        assert dump(restored) == dump(engine), call


def cut_short(disk: FakeDisk, engine: Engine, puts: int, monkeypatch: pytest.MonkeyPatch) -> FakeDisk:
    """The disk after a backup that a kill has ended behind so many files."""
    put, done = BackupPlace.put, 0

    def counted(place: BackupPlace, name: str, pieces: Sequence[BytesLike]) -> KeptFile:
        nonlocal done
        done += 1
        if done == puts:
            disk.stop_before = disk.call_count + 1
        return put(place, name, pieces)

    monkeypatch.setattr(BackupPlace, "put", counted)
    with pytest.raises(PowerCut):
        back_up(engine)
    monkeypatch.undo()
    return disk.crash(Survival.EVERYTHING)


@pytest.mark.parametrize("finished", [0, 1])
def test_backup_that_was_cut_short_copies_only_what_is_left(finished: int, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, clock, engine = filled()
    for _ in range(finished):
        back_up(engine)
    for number in range(1200):
        append(engine, "orders", number)
    whole = start(disk.clone().crash(Survival.EVERYTHING), clock, ROOMY, boot="b", entropy=2)
    back_up(whole)
    after = cut_short(disk, engine, 300, monkeypatch)
    engine = start(after, clock, ROOMY, boot="c", entropy=3)
    back_up(engine)
    assert 0 < engine.backups.copied_bytes < whole.backups.copied_bytes * 0.8
    restored, _ = restore(after, clock=clock)
    assert dump(restored) == dump(engine)


def test_file_of_a_resumed_backup_that_is_another_one_is_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, clock, engine = filled(300)
    after = cut_short(disk, engine, 80, monkeypatch)
    (name,) = lineage_folders(after)
    place = BackupPlace(after, PLACE, name)
    writing = place.writing()
    assert writing is not None and len(writing.files) >= 64
    # As in a copy of the folder that has gone another way: same names, other bytes.
    lying = [msgspec.structs.replace(file, checksum="0" * 16) for file in writing.files]
    place.note_writing(msgspec.structs.replace(writing, files=lying))
    engine = start(after, clock, ROOMY, boot="c", entropy=3)
    manifest = back_up(engine)
    assert not damages(place, manifest.files())


def unfinished() -> tuple[FakeDisk, ManualClock, str]:
    """A first backup that a kill has cut short."""
    disk, clock, engine = filled(100)
    disk.stop_before = disk.call_count + 40
    with pytest.raises(PowerCut):
        back_up(engine)
    after = disk.crash(Survival.EVERYTHING)
    (name,) = lineage_folders(after)
    return after, clock, name


def test_unfinished_first_backup_is_pruned_after_a_day() -> None:
    disk, clock, name = unfinished()
    assert prune_unfinished(disk, PLACE, clock.now_ms() + UNFINISHED_MS - 1) == []
    assert lineage_folders(disk) == [name]
    assert prune_unfinished(disk, PLACE, clock.now_ms() + UNFINISHED_MS) == [name]
    assert lineage_folders(disk) == []


@pytest.mark.parametrize("note", [b"", None])
def test_unfinished_backup_of_an_earlier_release_is_pruned_a_day_after_it_was_seen(note: bytes | None) -> None:
    disk, clock, name = unfinished()
    disk.remove(f"{PLACE}/{name}/writing")
    if note is not None:
        disk.open(f"{PLACE}/{name}/writing", create=True).close()
    assert prune_unfinished(disk, PLACE, clock.now_ms()) == []
    assert prune_unfinished(disk, PLACE, clock.now_ms() + UNFINISHED_MS - 1) == []
    assert prune_unfinished(disk, PLACE, clock.now_ms() + UNFINISHED_MS) == [name]
    assert lineage_folders(disk) == []


def test_prune_of_unfinished_backups_that_is_stopped_anywhere_is_finished_by_the_next_one() -> None:
    disk, clock, _ = unfinished()
    counted = disk.clone()
    later, before = clock.now_ms() + UNFINISHED_MS, counted.call_count
    prune_unfinished(counted, PLACE, later)
    for call in range(before + 1, counted.call_count + 1):
        cut = disk.clone()
        cut.stop_before = call
        with pytest.raises(PowerCut):
            prune_unfinished(cut, PLACE, later)
        after = cut.crash(Survival.EVERYTHING)
        prune_unfinished(after, PLACE, later)
        prune_unfinished(after, PLACE, later + UNFINISHED_MS)
        assert lineage_folders(after) == [], call


def test_finished_backups_beside_an_abandoned_one_stay_and_can_be_pruned_after_a_day() -> None:
    disk, clock, engine = filled()
    for number in range(2):
        append(engine, "orders", number)
        back_up(engine)
    expected = dump(engine)
    (place,) = places(disk)
    place.note_writing(Writing(at_ms=clock.now_ms()))
    orphan = place.put("segments/0000000000000009/00000000000000000001-1.data", [b"orphan"])
    with pytest.raises(PlaceBusy):
        prune(place, 1, now_ms=clock.now_ms() + UNFINISHED_MS - 1)
    later = clock.now_ms() + UNFINISHED_MS
    assert prune_unfinished(disk, PLACE, later) == []
    assert prune(place, 1, now_ms=later) > 0
    assert len(place.numbers()) == 1 and not place.has(orphan) and not place.is_written
    restored, _ = restore(disk, clock=clock)
    assert dump(restored) == expected


def test_place_that_became_full_can_be_pruned_at_once() -> None:
    disk, clock, engine = filled()
    for number in range(2):
        append(engine, "orders", number)
        back_up(engine)
    for number in range(60):
        append(engine, "orders", number)
    disk.capacity_bytes = disk.used_bytes + 300
    with pytest.raises(BackupFailedError):
        back_up(engine)
    (place,) = places(disk)
    prune(place, 1, now_ms=clock.now_ms())
    disk.capacity_bytes = None
    back_up(engine)
    restored, _ = restore(disk, clock=clock)
    assert dump(restored) == dump(engine)


@pytest.mark.parametrize("other", ["writer", "prune"])
def test_backup_whose_place_was_taken_by_another_fails_and_the_next_one_succeeds(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, clock, engine = filled()
    copy = Copier.copy

    def meanwhile(copier: Copier, number: int) -> object:
        manifest = copy(copier, number)
        if other == "writer":
            copier.place.note_writing(Writing(writer="another", at_ms=clock.now_ms()))
        else:
            assert prune_unfinished(disk, PLACE, clock.now_ms() + UNFINISHED_MS)
        return manifest

    monkeypatch.setattr(Copier, "copy", meanwhile)
    with pytest.raises(BackupFailedError, match="another server writes there"):
        back_up(engine)
    monkeypatch.undo()
    manifest = back_up(engine)
    (place,) = places(disk)
    assert not damages(place, manifest.files())
