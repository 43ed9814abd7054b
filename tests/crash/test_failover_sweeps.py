"""Failover with a stop, or a failed call, at every call of the store and of the disk: nothing that class remote
acknowledged is lost, and no seq gets another record."""

import contextlib
from collections.abc import Callable

import pytest

from tests.unit.conftest import FSYNC, append, ask_append, put, values
from tests.unit.ops.folders import back_up
from tests.unit.ops.test_failover import FIRST, LEASE_MS, SECOND, Machine, primary, wait_out
from topics.engine.engine import Engine
from topics.model.errors import TopicsError
from topics.testing import NO_FAULTS, FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock, PowerCut, Survival

ENDINGS = (Survival.EVERYTHING, Survival.NOTHING, Survival.TORN, Survival.SCATTERED)
Begun = tuple[FakeDisk, ManualClock, Machine]


def taking_over(disk: FakeDisk, clock: ManualClock) -> Machine:
    other = Machine(disk, clock, SECOND, 2)
    wait_out(clock, other)
    return other


def taking_over_again(disk: FakeDisk, clock: ManualClock) -> Machine:
    """The former primary, whose folder has log that was not shipped."""
    engine = taking_over(disk, clock).start()
    back_up(engine)
    append(engine, "orders", 4)
    back = Machine(disk, clock, FIRST, 3)
    wait_out(clock, back)
    return back


def starting_again(disk: FakeDisk, clock: ManualClock) -> Machine:
    again = Machine(disk, clock, FIRST, 2)
    wait_out(clock, again)
    return again


WAYS: dict[str, Callable[[FakeDisk, ManualClock], Machine]] = {
    "takeover": taking_over,
    "takeover by a former primary": taking_over_again,
    "start with the own folder": starting_again,
}


def begun(way: str) -> Begun:
    """A primary has stopped, and another process looks at its lease, which has ended."""
    disk, clock = FakeDisk(), ManualClock()
    _, engine = primary(disk, clock)
    put(engine, "local", durability=FSYNC)
    append(engine, "orders", 1, 2)
    append(engine, "orders", 3)
    engine.backups.shipping.close()
    append(engine, "local", "not shipped")
    disk = disk.crash(Survival.EVERYTHING)
    return disk, clock, WAYS[way](disk, clock)


def become_primary(machine: Machine) -> Engine:
    """To the first acknowledged record behind the first backup."""
    engine = machine.start()
    back_up(engine)
    append(engine, "orders", "more")
    return engine


def acknowledged(way: str) -> list[object]:
    return [1, 2, 3, 4] if way == "takeover by a former primary" else [1, 2, 3]


def check(disk: FakeDisk, clock: ManualClock, way: str, was_acknowledged: bool, call: int) -> None:
    """Another server takes over, from the store alone."""
    third = Machine(disk, clock, "third", 9)
    engine = third.try_to_start()
    for _ in range(2):
        if engine is None:
            clock.advance(LEASE_MS)
            engine = third.try_to_start()
    assert engine is not None, call
    expected = acknowledged(way)
    found = values(engine, "orders")
    allowed = [[*expected, "more"]] if was_acknowledged else [expected, [*expected, "more"]]
    assert found in allowed, call
    back_up(engine)
    assert append(engine, "orders", "last").first_seq == len(found) + 1, call


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ending", range(len(ENDINGS)))
def test_a_stop_at_any_call_of_a_failover_loses_nothing(way: str, ending: int) -> None:
    disk, _, machine = begun(way)
    first = disk.call_count
    become_primary(machine)
    last = disk.call_count
    for call in range(first + 1 + 3 * ending, last + 1, 12):
        disk, clock, machine = begun(way)
        disk.stop_before = disk.call_count + call - first
        with contextlib.suppress(PowerCut):
            become_primary(machine)
        check(disk.crash(ENDINGS[ending], call), clock, way, False, call)


@pytest.mark.parametrize("way", WAYS)
def test_a_failure_of_any_call_of_the_store_during_a_failover_loses_nothing(way: str) -> None:
    for number in range(1, 2000, 7):
        disk, clock, machine = begun(way)
        store = FaultyFileSystem(disk, NO_FAULTS)
        machine.use_store(store)
        store.plan = FaultPlan(call=number, fault=Fault.EIO, include_reads=True)
        answers: list[object] = []
        with contextlib.suppress(TopicsError, OSError):
            engine = machine.try_to_start()
            if engine is None:
                raise OSError("the lease is not taken")
            back_up(engine)
            answers = ask_append(engine, "orders", "more")
        if not store.failed:
            assert number > 20
            return
        was_acknowledged = bool(answers) and not isinstance(answers[0], TopicsError)
        clock.advance(LEASE_MS)
        check(disk.crash(Survival.EVERYTHING, number), clock, way, was_acknowledged, number)
    pytest.fail("it never comes to an end")
