"""The state of a healthy folder after any crash is not damage: verify finds nothing, and repair changes nothing."""

import pytest

from tests.crash.wreckage import BOOT, OPTIONS, fill, look, mend, show
from topics.engine.engine import Engine
from topics.testing import FakeDisk, ManualClock, PowerCut, SeededEntropy, Survival

STEP = 7
"""One call in so many is the last; a seed chooses which."""


def expect_sound(disk: FakeDisk, boot: str) -> None:
    report = look(disk, boot)
    assert report.sound, report.findings
    assert mend(disk, boot).after is None
    show(disk, boot=boot)


def crash_and_look(survival: Survival, step: int, seed: int) -> None:
    entropy = SeededEntropy(seed)
    call = 1 + entropy.below(step)
    while True:
        print(f"{survival.name} after call {call}")
        disk = FakeDisk(stop_after=call)
        try:
            fill(disk)
        except PowerCut:
            pass
        if not disk.stopped:
            return
        after = disk.crash(survival, seed + call)
        boot = BOOT if survival is Survival.EVERYTHING else "another boot"
        if after.exists("data/meta"):
            expect_sound(after, boot)
            # The start that follows is cut short as well.
            after.stop_after = after.call_count + 1 + entropy.below(40)
            try:
                Engine.recover(after, OPTIONS, ManualClock(), SeededEntropy(2), boot_id=boot)
            except PowerCut:
                pass
            after.stop_after, after.stopped = None, False
            expect_sound(after.crash(survival, seed - call), boot)
        call += step


@pytest.mark.parametrize("survival", list(Survival))
def test_a_crash_is_no_damage(survival: Survival, seed: int) -> None:
    crash_and_look(survival, STEP, seed)


@pytest.mark.slow
@pytest.mark.parametrize("survival", list(Survival))
def test_a_crash_after_any_call_is_no_damage(survival: Survival, seed: int) -> None:
    crash_and_look(survival, 1, seed)
