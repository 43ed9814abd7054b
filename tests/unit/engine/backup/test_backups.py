from tests.crash.harness import dump
from tests.unit.engine.backup.folders import OPTIONS, back_up, manifests, places, restore, start
from tests.unit.engine.conftest import FSYNC, append, delete, drop, put, values
from topics.core.records import Record
from topics.core.selectors import TagMatch
from topics.testing import FakeDisk, ManualClock


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
    restored, told = restore(disk, clock=clock)
    assert dump(restored) == expected
    assert [topic.topic for topic in told.topics] == ["orders", "small"]


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
    engine = start(disk, clock, boot="c", dice=9)
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


def _files(disk: FakeDisk, folder: str) -> list[str]:
    found = []
    for name in disk.list_dir(folder):
        path = f"{folder}/{name}"
        try:
            found += _files(disk, path)
        except (NotADirectoryError, FileNotFoundError):
            found.append(path)
    return found
