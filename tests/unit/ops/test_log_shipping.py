"""The log behind a backup goes to its place while it is being written."""

import msgspec
import pytest

from tests.crash.harness import dump
from tests.unit.conftest import FSYNC, append, checkpoint, put
from tests.unit.ops.folders import OPTIONS, back_up, manifests, places, restore, start
from topics.engine.engine import Engine
from topics.ops.backup.backup_store import BackupPlace, PlaceBusy, Writing, prune
from topics.testing import FakeDisk, ManualClock, Survival


def shipped_names(place: BackupPlace) -> list[str]:
    shipped = place.shipped(manifests(place)[-1])
    assert shipped is not None and not shipped.damaged
    return sorted({part.name for part in shipped.parts})


def begun(**options: object) -> tuple[FakeDisk, ManualClock, Engine]:
    """An engine with a backup, and nothing behind it."""
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock, msgspec.structs.replace(OPTIONS, **options))
    put(engine, "orders", durability=FSYNC)
    append(engine, "orders", 0)
    back_up(engine)
    return disk, clock, engine


def ship(clock: ManualClock, engine: Engine) -> None:
    clock.advance(1)
    engine.backups.shipping.ship()


def test_shipped_log_survives_the_machine() -> None:
    disk, clock, engine = begun()
    append(engine, "orders", 1, 2)
    ship(clock, engine)
    shipped = dump(engine)
    append(engine, "orders", 3)
    restored, reported = restore(disk.crash(Survival.NOTHING), clock=clock)
    assert dump(restored) == shipped
    assert reported.moment == clock.now_ms() - 1, "when it was logged"


def test_a_clock_that_is_set_back_costs_nothing_and_hides_nothing() -> None:
    disk, clock, engine = begun()
    append(engine, "orders", 1)
    clock.jump(-600_000)
    append(engine, "orders", 2)
    engine.backups.shipping.ship()
    shipped = dump(engine)
    append(engine, "orders", 3)
    restored, _ = restore(disk.clone(), clock=clock)
    assert dump(restored) == shipped
    clock.advance(9_000)
    assert engine.backups.lag_ms == 9_000
    engine.backups.shipping.ship()
    restored, _ = restore(disk.clone(), folder="again", clock=clock)
    assert dump(restored) == dump(engine)


def test_the_lag_is_that_of_the_log() -> None:
    _, clock, engine = begun()
    clock.advance(5_000)
    assert engine.backups.lag_ms == 5_000
    engine.backups.shipping.ship()
    assert engine.backups.lag_ms == 0
    clock.advance(7)
    assert engine.backups.lag_ms == 7
    assert engine.backups.shipping.shipped_bytes == 0
    append(engine, "orders", 1)
    ship(clock, engine)
    assert engine.backups.shipping.shipped_bytes > 0


def test_objects_are_numbered_and_go_with_the_backup_after_the_next() -> None:
    disk, clock, engine = begun(wal_file_bytes=64 * 1024)
    for number in range(5):
        append(engine, "orders", number)
        ship(clock, engine)
    (place,) = places(disk)
    assert [name[-7:] for name in shipped_names(place)] == [f"00{n}.log" for n in range(1, 6)]
    back_up(engine)
    assert len([name for name in place.files() if name.startswith("ship/")]) == 5, "a restore may be reading them"
    append(engine, "orders", 6)
    ship(clock, engine)
    back_up(engine)
    assert [name[-7:] for name in place.files() if name.startswith("ship/")] == ["006.log"]
    restored, _ = restore(disk, clock=clock)
    assert dump(restored) == dump(engine)


def test_the_next_backup_takes_its_place() -> None:
    disk, clock, engine = begun()
    append(engine, "orders", 1)
    ship(clock, engine)
    back_up(engine)
    (place,) = places(disk)
    restored, _ = restore(disk, clock=clock)
    assert dump(restored) == dump(engine)
    append(engine, "orders", 2)
    ship(clock, engine)
    assert shipped_names(place)
    restored, _ = restore(disk, folder="again", clock=clock)
    assert dump(restored) == dump(engine)


def test_where_log_is_gone_another_backup_is_taken() -> None:
    disk, clock, engine = begun(backup_log_bytes=1)
    for number in range(3):
        append(engine, "orders", number)
        checkpoint(engine)
    ship(clock, engine)
    assert engine.backups.shipping.broken
    clock.advance(60_000)
    engine.housekeeper.tick()
    assert not engine.backups.shipping.broken
    restored, _ = restore(disk, clock=clock)
    assert dump(restored) == dump(engine)


def test_pruning_keeps_what_is_shipped_and_what_is_being_written() -> None:
    disk, clock, engine = begun()
    back_up(engine)
    append(engine, "orders", 1)
    ship(clock, engine)
    (place,) = places(disk)
    place.note_writing(Writing(at_ms=clock.now_ms()))
    with pytest.raises(PlaceBusy):
        prune(place, 1)
    assert len(place.numbers()) == 2
    place.end_writing()
    prune(place, 1)
    restored, _ = restore(disk, clock=clock)
    assert dump(restored) == dump(engine)


def test_it_is_switched_off() -> None:
    disk, clock, engine = begun(backup_ship_ms=0)
    append(engine, "orders", 1)
    clock.advance(60_000)
    engine.housekeeper.tick()
    assert places(disk)[0].shipped(manifests(places(disk)[0])[-1]) is None
