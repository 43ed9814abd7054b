import msgspec
import pytest

from tests.crash.harness import dump
from tests.unit.conftest import FSYNC, append, checkpoint, delete, drop, open_engine, put, values
from tests.unit.ops.folders import OPTIONS, at, back_up, manifests, places, restore, start
from topics.log.layout import Layout
from topics.model.errors import BackupFailedError, BackupRunningError, NoBackupPlaceError
from topics.model.records import Record
from topics.model.router_rules import TagMatch
from topics.ops.backup.backup_files import KeptLog
from topics.ops.backup.backup_store import BackupPlace, Manifest
from topics.ops.backup.backups import Listed
from topics.ops.repair.repair import Repair
from topics.testing import FakeDisk, ManualClock, SeededEntropy, Survival


def test_a_backup_brings_everything_back() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock)
    put(engine, "orders", durability=FSYNC)
    for number in range(20):
        append(engine, "orders", Record.of(number, tag=f"t{number % 3}"), key=f"k{number}")
    append(engine, "small", "one")
    delete(engine, "orders", match=TagMatch("t1"))
    back_up(engine)
    expected = dump(engine)
    append(engine, "orders", "later")
    restored, reported = restore(disk, clock=clock)
    assert dump(restored) == expected
    assert [topic.topic for topic in reported.topics] == ["orders", "small"]


def test_a_second_backup_copies_what_is_new() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock)
    for number in range(30):
        append(engine, "orders", number)
    first = back_up(engine)
    copied = engine.backups.copied_bytes
    append(engine, "orders", 30)
    second = back_up(engine)
    assert {s.data for s in first.segments} <= {s.data for s in second.segments}
    assert second.before == first.number
    assert engine.backups.copied_bytes - copied < copied


def test_a_backup_after_a_restart_goes_on_with_the_lineage() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock)
    append(engine, "orders", 1)
    back_up(engine)
    engine.close_inline()
    engine = start(disk, clock)
    append(engine, "orders", 2)
    back_up(engine)
    (place,) = places(disk)
    assert len(manifests(place)) == 2
    assert values(restore(disk)[0], "orders") == [1, 2]


def test_a_folder_that_went_back_begins_a_lineage_of_its_own() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock)
    append(engine, "orders", 1)
    back_up(engine)
    older = disk.clone()
    append(engine, "orders", 2)
    back_up(engine)
    # The data folder is put back, the place has gone on.
    engine.close_inline()
    for path in sorted(path for path in _files(disk, "data")):
        disk.remove(path)
    for path in _files(older, "data"):
        disk.make_dirs(path.rpartition("/")[0])
        file = disk.open(path, create=True)
        source = older.open(path)
        file.write_whole([source.read_at(0, source.size())])
        file.sync()
    engine = start(disk, clock, boot="c", entropy=9)
    append(engine, "orders", 3)
    back_up(engine)
    assert len(places(disk)) == 2


def test_a_dropped_topic_is_in_no_later_backup() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock, OPTIONS)
    append(engine, "orders", *range(20))
    back_up(engine)
    drop(engine, "orders")
    append(engine, "others", 1)
    manifest = back_up(engine)
    assert manifest.segments == []
    assert [name for name in dump(restore(disk)[0])] == ["others"]


def test_a_folder_that_was_repaired_begins_a_lineage_of_its_own() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock)
    append(engine, "orders", *range(20))
    manifest = back_up(engine)
    engine.close_inline()
    segment = disk.open(f"data/topics/{manifest.segments[0].topic_id:016x}/seg-{1:020d}.data", write=True)
    segment.write_at(90, b"damage")
    segment.close()
    report = Repair(disk, Layout("data"), clock, SeededEntropy(5), "a").run()
    assert not report.found.sound
    engine = start(disk, clock, boot="b", entropy=9)
    back_up(engine)
    assert len(places(disk)) == 2


def test_one_that_fails_leaves_the_last_one_and_states_why() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock)
    append(engine, "orders", *range(20))
    back_up(engine)
    append(engine, "orders", *range(20))
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(BackupFailedError):
        back_up(engine)
    assert (engine.backups.completed, engine.backups.failures) == (1, 1)
    assert engine.backups.error is not None
    disk.capacity_bytes = None
    back_up(engine)
    assert engine.backups.error is None


@pytest.mark.parametrize("step", ["end_writing", "numbers"])
def test_one_that_counts_is_taken_whatever_fails_behind_it(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock, msgspec.structs.replace(OPTIONS, backup_keep=1))
    append(engine, "orders", 1)
    back_up(engine)
    publish = BackupPlace.publish

    def then_the_place_is_away(place: BackupPlace, manifest: Manifest) -> None:
        publish(place, manifest)
        monkeypatch.setattr(BackupPlace, step, _away)

    monkeypatch.setattr(BackupPlace, "publish", then_the_place_is_away)
    taken = back_up(engine)
    assert (engine.backups.completed, engine.backups.failures, engine.backups.last) == (2, 0, taken)
    monkeypatch.undo()
    back_up(engine)
    (place,) = places(disk)
    assert len(place.numbers()) == 1
    assert not place.is_written


@pytest.mark.parametrize("killed", [False, True])
def test_the_log_behind_one_that_left_things_over_goes_to_the_end_of_its_run(
    killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock)
    put(engine, "orders", durability=FSYNC)
    append(engine, "orders", 1)
    back_up(engine)
    engine.close_inline()
    clock.advance(10)
    engine = start(disk, clock)
    append(engine, "orders", 2)
    # It counts, and the notes of the run before are still there.
    monkeypatch.setattr(KeptLog, "drop", _away)
    back_up(engine)
    monkeypatch.undo()
    clock.advance(10)
    append(engine, "orders", 3)
    moment = clock.now_ms()
    clock.advance(10)
    append(engine, "orders", 4)
    if killed:
        disk = disk.crash(Survival.EVERYTHING)
        engine = start(disk, clock)
        append(engine, "orders", 5)
    back_up(engine)
    assert values(restore(disk, at(disk, moment), clock=clock)[0], "orders") == [1, 2, 3]
    assert values(restore(disk, at(disk, clock.now_ms() - 1), "end", clock=clock)[0], "orders") == [1, 2, 3]
    if killed:
        # The log does not contain the decisions of a recovery, so the log of another run does not continue from here.
        assert values(restore(disk, at(disk, clock.now_ms() + 1), "last", clock=clock)[0], "orders") == [1, 2, 3, 4, 5]


def test_backups_are_taken_by_themselves() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock, msgspec.structs.replace(OPTIONS, backup_interval_ms=60_000, backup_keep=2))
    taken = []
    for _ in range(5):
        append(engine, "orders", 1)
        engine.housekeeper.tick()
        taken.append(engine.backups.completed)
        clock.advance(30_000)
    # The first right after the start, and then one a minute.
    assert taken == [1, 1, 2, 2, 3]
    (place,) = places(disk)
    assert len(place.numbers()) == 2
    assert engine.backups.lag_ms == 30_000


def test_there_is_one_at_a_time_and_none_without_a_place() -> None:
    engine = start(FakeDisk(), ManualClock())
    engine.backups.running = True
    with pytest.raises(BackupRunningError):
        back_up(engine)
    with pytest.raises(NoBackupPlaceError):
        back_up(open_engine())


def test_the_log_is_given_up_when_there_is_too_much_of_it() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock, msgspec.structs.replace(OPTIONS, backup_log_bytes=5000))
    append(engine, "orders", 1)
    first = back_up(engine)
    for number in range(40):
        append(engine, "orders", "x" * 200, number)
    checkpoint(engine)
    second = back_up(engine)
    assert (second.before, second.log) == (None, [])
    third = back_up(engine)
    assert third.before == second.number != first.number


def test_a_place_is_listed_without_what_cannot_be_read() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock)
    append(engine, "orders", 1)
    first = back_up(engine)
    back_up(engine)
    (place,) = places(disk)
    file = disk.open(place.path(f"backups/{first.number:016d}.json"), write=True)
    file.write_at(0, b"?")
    file.close()
    listed: list[object] = []
    start(disk.crash(Survival.EVERYTHING), clock).backups.list(listed.append)
    [found] = listed
    assert isinstance(found, Listed)
    assert [manifest.before for manifest in found.backups] == [first.number]


def _away(*_: object) -> None:
    raise OSError("the place is away")


def _files(disk: FakeDisk, folder: str) -> list[str]:
    found = []
    for name in disk.list_dir(folder):
        path = f"{folder}/{name}"
        try:
            found += _files(disk, path)
        except (NotADirectoryError, FileNotFoundError):
            found.append(path)
    return found
