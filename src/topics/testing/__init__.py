"""Fakes for tests, shipped with the engine and verified by the same checks as the real implementations.

`FakeDisk` simulates crashes, `FaultyFileSystem` failures and `FolderStore` outages. `ManualClock` is moved by tests,
`SeededEntropy` is deterministic, and `Model` has the answers that an engine must give.
"""

from topics.testing.fake_clock import ManualClock, SeededEntropy
from topics.testing.fake_disk import SECTOR_BYTES, FakeDisk, PowerCut, Survival
from topics.testing.faults import LACK_OF_DESCRIPTORS, LACK_OF_ROOM, NO_FAULTS, Fault, FaultPlan, FaultyFileSystem
from topics.testing.folder_store import FolderStore
from topics.testing.reference_model import Fate, Gap, Home, Model, ModelKey, ModelRecord, ModelTopic

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
    "SeededEntropy",
    "Survival",
]
