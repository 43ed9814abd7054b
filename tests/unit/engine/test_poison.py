"""A failed sync is as bad as a power cut: the kernel may have dropped the unwritten pages."""

from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.model.errors import ReadOnlyError
from topics.model.records import Batch, Record
from topics.model.seq_ranges import LossReason
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.testing import FakeDisk, ManualClock, SeededEntropy, Survival

OPTIONS = EngineOptions(data_dir="data", wal_shards=1, wal_file_bytes=65536)


def test_the_next_start_reports_what_may_be_missing_although_the_machine_kept_running() -> None:
    disk = FakeDisk()
    engine = Engine.recover(disk, OPTIONS, ManualClock(), SeededEntropy(1), boot_id="same")
    engine.put_topic("cache", TopicConfigPatch(durability=Durability.DISK), lambda outcome: None)
    outcomes: list[object] = []
    engine.append("cache", Batch(records=[Record.of(1)]), outcomes.append)
    # A write of class disk is acknowledged, then the background sync of it fails.
    engine.append("cache", Batch(records=[Record.of(2)]), outcomes.append)
    writer = engine.core.shards[0].writer

    class Failing:
        def __call__(self) -> None:
            raise OSError("the disk is gone")

    writer._log.sync = Failing()  # type: ignore[method-assign]
    writer.sync()
    assert isinstance(writer.poison, ReadOnlyError)
    assert disk.open("data/machine").read_at(0, 100).startswith(b"-")

    # The page cache lost the second record with the sync that failed, and the machine never restarted.
    found = disk.crash(Survival.NOTHING)
    again = Engine.recover(found, OPTIONS, ManualClock(), SeededEntropy(2), boot_id="same")
    read = again.read_now("cache", ReadRequest(from_seq=1))
    assert read.tombstone is not None
    assert (read.tombstone.reason, read.tombstone.gap_from) == (LossReason.CRASH, 2)
