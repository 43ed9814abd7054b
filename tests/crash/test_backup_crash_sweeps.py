"""A backup, a restore and a prune that are stopped at any file-system call, or have any of them fail.

The promise: every backup that a manifest names is whole, whatever was cut short beside it; the folder it was taken of
is as sound as ever, and its next backup has everything; a restore that did not come to its end is never served from.
"""

import contextlib
from collections.abc import Callable

import pytest

from tests.crash.harness import Dump, dump
from tests.unit.conftest import FSYNC, append, delete, put
from tests.unit.ops.folders import PLACE, back_up, manifests, places, restore, start
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.log.layout import Layout
from topics.model.errors import DamageError, TopicsError
from topics.model.records import Record
from topics.model.router_rules import TagMatch
from topics.ops.backup.backup_store import BackupPlace, damages, prune
from topics.ops.backup.restore import numbered
from topics.ops.repair.repair import Repair
from topics.testing import (
    NO_FAULTS,
    FakeDisk,
    Fault,
    FaultPlan,
    FaultyFileSystem,
    ManualClock,
    PowerCut,
    SeededEntropy,
    Survival,
)

ENDINGS = [Survival.EVERYTHING, Survival.NOTHING, Survival.TORN, Survival.SCATTERED]


def prepared() -> tuple[FakeDisk, ManualClock, Engine, Dump]:
    """A folder with one backup, and all kinds of things to be copied by the next."""
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock)
    put(engine, "orders", durability=FSYNC)
    put(engine, "gone", durability=FSYNC)
    for number in range(14):
        append(engine, "orders", Record.of(number, tag=f"t{number % 2}"))
        append(engine, "gone", number)
    back_up(engine)
    first = dump(engine)
    for number in range(14, 30):
        clock.advance(1)
        append(engine, "orders", Record.of(number, tag=f"t{number % 2}"))
    delete(engine, "orders", match=TagMatch("t1"))
    delete(engine, "gone", before_seq=9)
    return disk, clock, engine, first


def calls_of(action: Callable[[FakeDisk, ManualClock, Engine], None]) -> tuple[int, int]:
    disk, clock, engine, _ = prepared()
    before = disk.call_count
    action(disk, clock, engine)
    return before, disk.call_count


def check_all(disk: FakeDisk, clock: ManualClock, first: Dump, second: Dump, call: object) -> None:
    (place,) = places(disk)
    found = manifests(place)
    assert found, call
    for manifest in found:
        assert not damages(place, manifest.files()), call
        restored, _ = restore(disk, numbered(found, manifest.number), f"back{manifest.number}", clock=clock)
        assert dump(restored) == (first if manifest is found[0] else second), call
    engine = start(disk, clock, boot="later", entropy=7)
    assert dump(engine) == second, call
    append(engine, "orders", "more")
    back_up(engine)
    restored, _ = restore(disk, folder="again", clock=clock)
    assert dump(restored) == dump(engine), call


def take_another(disk: FakeDisk, clock: ManualClock, engine: Engine) -> None:
    back_up(engine)


@pytest.mark.parametrize("ending", range(4))
def test_a_stop_at_any_call_of_a_backup(ending: int) -> None:
    first_call, last_call = calls_of(take_another)
    for call in range(first_call + ending, last_call + 1, 4):
        disk, clock, engine, first = prepared()
        second = dump(engine)
        disk.stop_before = call
        with pytest.raises(PowerCut):
            back_up(engine)
            raise PowerCut
        check_all(disk.crash(ENDINGS[ending], call), clock, first, second, call)


@pytest.mark.parametrize("part", range(4))
def test_a_failure_of_any_call_of_a_backup(part: int) -> None:
    kinds = (Fault.EIO, Fault.ENOSPC, Fault.SHORT, Fault.EMFILE)
    for number in range(1 + part, 1000, 4):
        disk, clock, engine, first = prepared()
        second = dump(engine)
        engine.close_inline()
        faulty = FaultyFileSystem(disk, NO_FAULTS)
        engine = start(faulty, clock, boot="b", entropy=3)
        faulty.plan = FaultPlan(call=faulty.calls + number, fault=kinds[part])
        with contextlib.suppress(TopicsError):
            back_up(engine)
        if not faulty.failed:
            assert number > 20
            return
        check_all(disk.crash(Survival.EVERYTHING, number), clock, first, second, number)
    pytest.fail("it never comes to an end")


def test_a_restore_that_was_cut_short_is_never_served_from() -> None:
    disk, clock, engine, _ = prepared()
    back_up(engine)
    before = disk.call_count
    restore(disk, clock=clock, folder="counted")
    refused = 0
    for call in range(before, disk.call_count, 3):
        cut = disk.clone()
        cut.stop_before = call - before
        with pytest.raises(PowerCut):
            restore(cut, clock=clock)
            raise PowerCut
        left = cut.crash(Survival.EVERYTHING)
        names = left.list_dir("back") if left.exists("back") else []
        if "restoring" in names:
            with pytest.raises(DamageError, match="restore"):
                start(left, clock, EngineOptions(data_dir="back"))
            if refused % 10 == 0:
                # Verification and repair do not report the folder as whole, or make it look so.
                report = Repair(left, Layout("back"), clock, SeededEntropy(5), "b").run()
                assert not report.sound and "restoring" in left.list_dir("back")
                assert "a restore was begun" in report.found.findings[0].what
            refused += 1
        elif any(name in names for name in ("meta", "wal")) and left.list_dir("back/meta"):
            # The last step was done: it is whole.
            served = start(left, clock, EngineOptions(data_dir="back", wal_shards=2), boot="x")
            assert dump(served) == dump(engine)
    assert refused > 10


def test_a_prune_that_was_cut_short_leaves_whole_backups() -> None:
    disk, _, engine, _ = prepared()
    for number in range(3):
        append(engine, "orders", number)
        delete(engine, "orders", before_seq=10 + number)
        back_up(engine)
    (place,) = places(disk)
    keep = place.numbers()[-1:]
    counted = disk.clone()
    prune(BackupPlace(counted, PLACE, place.lineage), 1)
    for call in range(1, counted.call_count + 1):
        cut = disk.clone()
        cut.stop_before = call
        with pytest.raises(PowerCut):
            prune(BackupPlace(cut, PLACE, place.lineage), 1)
            raise PowerCut
        for ending in ENDINGS:
            left = BackupPlace(cut.clone().crash(ending, call), PLACE, place.lineage)
            assert set(keep) <= set(left.numbers())
            for manifest in manifests(left):
                assert not damages(left, manifest.files()), (call, ending)


# The log behind a backup


def write_and_ship(clock: ManualClock, engine: Engine, value: int) -> Dump:
    """Ships a state that is old enough to be whole, and reports it."""
    append(engine, "orders", value)
    delete(engine, "orders", before_seq=value - 20)
    state = dump(engine)
    clock.advance(1)
    engine.backups.shipping.ship()
    return state


def check_shipped(disk: FakeDisk, clock: ManualClock, states: list[Dump], call: object) -> None:
    restored, _ = restore(disk.clone(), clock=clock)
    assert dump(restored) in states, call


@pytest.mark.parametrize("ending", range(4))
def test_a_stop_at_any_call_of_shipping_leaves_the_log_from_before_or_the_longer_one(ending: int) -> None:
    for call in range(1 + ending, 1000, 4):
        disk, clock, engine, _ = prepared()
        before = write_and_ship(clock, engine, 40)
        disk.stop_before = disk.call_count + call
        after, whole = None, False
        with contextlib.suppress(PowerCut):
            append(engine, "orders", 41)
            after = dump(engine)
            clock.advance(1)
            engine.backups.shipping.ship()
            whole = True
        disk = disk.crash(ENDINGS[ending], call)
        check_shipped(disk, clock, [before] if after is None else [after] if whole else [before, after], call)
        engine = start(disk, clock, boot="later", entropy=7)
        back_up(engine)
        check_shipped(disk, clock, [dump(engine)], call)
        if whole:
            assert call > 5
            return
    pytest.fail("it never comes to an end")


@pytest.mark.parametrize("fault", [Fault.EIO, Fault.ENOSPC, Fault.SHORT, Fault.EMFILE])
def test_a_failure_of_any_call_of_shipping_is_made_good_by_the_next_one(fault: Fault) -> None:
    for number in range(1, 1000):
        disk, clock, engine, _ = prepared()
        engine.close_inline()
        faulty = FaultyFileSystem(disk, NO_FAULTS)
        engine = start(faulty, clock, boot="b", entropy=3)
        back_up(engine)
        before = write_and_ship(clock, engine, 40)
        append(engine, "orders", 41)
        after = dump(engine)
        clock.advance(1)
        faulty.plan = FaultPlan(call=faulty.calls + number, fault=fault)
        engine.backups.shipping.ship()
        failed, faulty.plan = faulty.failed, NO_FAULTS
        check_shipped(disk, clock, [before, after], number)
        clock.advance(1)
        engine.backups.shipping.ship()
        assert engine.backups.shipping.error is None or engine.backups.shipping.broken, number
        if not engine.backups.shipping.broken:
            check_shipped(disk, clock, [after], number)
        if not failed:
            assert number > 5
            return
    pytest.fail("it never comes to an end")
