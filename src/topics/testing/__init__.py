"""Fakes for tests, shipped with the engine and held to the same checks as the real things.

`FakeDisk` crashes, `FaultyFileSystem` fails, `ManualClock` waits to be moved and `SeededDice` repeats.
"""

from topics.testing.clock import ManualClock
from topics.testing.dice import SeededDice
from topics.testing.disk import SECTOR_BYTES, FakeDisk, PowerCut, Survival
from topics.testing.faults import NO_FAULTS, Fault, FaultPlan, FaultyFileSystem

__all__ = [
    "NO_FAULTS",
    "SECTOR_BYTES",
    "FakeDisk",
    "Fault",
    "FaultPlan",
    "FaultyFileSystem",
    "ManualClock",
    "PowerCut",
    "SeededDice",
    "Survival",
]
