"""Fakes for tests, shipped with the engine and held to the same checks as the real things.

`FakeDisk` crashes, `FaultyFileSystem` fails, `FolderStore` goes away, `ManualClock` waits to be moved and `SeededDice`
repeats. `Model` says what an engine must answer.
"""

from topics.testing.clock import ManualClock
from topics.testing.dice import SeededDice
from topics.testing.disk import FakeDisk, PowerCut
from topics.testing.disk_model import SECTOR_BYTES, Survival
from topics.testing.faults import LACK_OF_DESCRIPTORS, LACK_OF_ROOM, NO_FAULTS, Fault, FaultPlan, FaultyFileSystem
from topics.testing.model import Fate, Gap, Home, Model, ModelKey, ModelRecord, ModelTopic
from topics.testing.objects import FolderStore

__all__ = [
    "LACK_OF_DESCRIPTORS",
    "LACK_OF_ROOM",
    "NO_FAULTS",
    "SECTOR_BYTES",
    "FakeDisk",
    "Fate",
    "Fault",
    "FaultPlan",
    "FaultyFileSystem",
    "FolderStore",
    "Gap",
    "Home",
    "ManualClock",
    "Model",
    "ModelKey",
    "ModelRecord",
    "ModelTopic",
    "PowerCut",
    "SeededDice",
    "Survival",
]
