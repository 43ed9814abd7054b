"""The machine is lost at any file-system or storage call, or any such call fails: class `remote` loses nothing.

The promise: the backup storage alone restores a state with every acknowledged write, after any interruption.
"""

import contextlib
from collections.abc import Callable

import msgspec
import pytest

from tests.crash.harness import Dump, dump
from tests.unit.conftest import REMOTE, Answers, ask_append, ask_delete, ask_put, checkpoint
from tests.unit.ops.folders import OPTIONS, PLACE, back_up, restore, start
from topics.engine.engine import Engine
from topics.log.fs import FileSystem
from topics.model.errors import BackupTargetError, TopicsError
from topics.model.records import Record
from topics.model.router_rules import TagMatch
from topics.testing import (
    NO_FAULTS,
    FakeDisk,
    Fault,
    FaultPlan,
    FaultyFileSystem,
    ManualClock,
    PowerCut,
    Survival,
)

ENDINGS = [Survival.EVERYTHING, Survival.NOTHING, Survival.TORN, Survival.SCATTERED]


def _config(engine: Engine) -> Answers:
    return ask_put(engine, "orders", durability=REMOTE, cap_records=9)


def _append(number: int) -> Callable[[Engine], Answers]:
    return lambda engine: ask_append(
        engine, "orders", Record.of(number, tag=f"t{number % 2}"), Record.of(-number), key=f"k{number}"
    )


def _delete(engine: Engine) -> Answers:
    return ask_delete(engine, "orders", match=TagMatch("t1"))


def _checkpoint(engine: Engine) -> Answers:
    checkpoint(engine)
    return [None]


def _back_up(engine: Engine) -> Answers:
    back_up(engine)
    return [None]


STEPS: list[Callable[[Engine], Answers]] = [
    _append(1), _append(2), _checkpoint, _append(3), _back_up, _append(4), _delete, _append(5), _config, _back_up,
    _append(6), _checkpoint, _append(7),
]  # fmt: skip


class Run:
    """An engine that does one step after the other, and the step that was acknowledged last."""

    def __init__(self, disk: FileSystem) -> None:
        self.clock = ManualClock()
        self.engine = start(disk, self.clock, msgspec.structs.replace(OPTIONS, backup_ship_ms=0))
        back_up(self.engine)
        ask_put(self.engine, "orders", durability=REMOTE)
        self.states = [dump(self.engine)]
        self.acked = self.acked_write = 0

    def go(self, seconds: int = 0) -> None:
        """Takes all steps; a step that is refused or not answered in these seconds is left out."""
        for number, step in enumerate(STEPS, 1):
            answers: Answers = []
            with contextlib.suppress(TopicsError):
                answers = step(self.engine)
            for _ in range(seconds):
                if answers:
                    break
                self.clock.advance(1000)
                self.engine.housekeeper.tick()
            self.states.append(dump(self.engine))
            if answers and not isinstance(answers[0], TopicsError):
                self.acked = number
                if step not in (_checkpoint, _back_up):
                    self.acked_write = number


def reference() -> list[Dump]:
    run = Run(FakeDisk())
    run.go()
    assert run.acked == len(STEPS)
    return run.states


def stored(disk: FakeDisk, ending: Survival, call: int) -> Dump:
    """The state that the storage alone gives after the machine is gone."""
    left = disk.crash(ending, call)
    restored, _ = restore(left, clock=ManualClock())
    return dump(restored)


@pytest.mark.parametrize("ending", range(4))
def test_the_machine_is_lost_at_any_call(ending: int) -> None:
    states = reference()
    counted = Run(disk := FakeDisk())
    first = disk.call_count
    counted.go()
    last = disk.call_count
    assert last - first > 200
    for call in range(first + 1 + ending, last + 1, 4):
        disk = FakeDisk()
        run = Run(disk)
        disk.stop_before = call
        with contextlib.suppress(PowerCut):
            run.go()
        found = stored(disk, ENDINGS[ending], call)
        begun = min(len(run.states), len(STEPS))
        assert found in states[run.acked : begun + 1], (call, run.acked)


@pytest.mark.parametrize("fault", [Fault.EIO, Fault.ENOSPC, Fault.SHORT, Fault.EMFILE])
def test_any_call_of_the_storage_fails(fault: Fault) -> None:
    counted = FaultyFileSystem(FakeDisk(), NO_FAULTS)
    run = Run(counted)
    first = counted.calls
    run.go()
    calls = [n for n, (_, path) in enumerate(counted.trace, 1) if n > first and path.startswith(PLACE)]
    assert len(calls) > 60
    for call in calls[::2]:
        disk = FakeDisk()
        faulty = FaultyFileSystem(disk, NO_FAULTS)
        run = Run(faulty)
        faulty.plan = FaultPlan(call=call, fault=fault)
        run.go(seconds=3)
        assert faulty.failed
        # Refused operations are missing in all later states, so only the last one can be asked for.
        assert run.acked == len(STEPS), call
        assert stored(disk, Survival.NOTHING, call) == run.states[-1], call


def test_a_storage_that_is_gone_for_good_acknowledges_nothing_more() -> None:
    counted = FaultyFileSystem(FakeDisk(), NO_FAULTS)
    run = Run(counted)
    first = counted.calls
    run.go()
    for call in range(first + 1, counted.calls, 7):
        disk = FakeDisk()
        faulty = FaultyFileSystem(disk, NO_FAULTS)
        run = Run(faulty)
        faulty.plan = FaultPlan(call=call, lasting=True, within=PLACE)
        run.go(seconds=1)
        with contextlib.suppress(BackupTargetError):
            found = stored(disk, Survival.NOTHING, call)
            assert found in run.states[run.acked_write :], call
