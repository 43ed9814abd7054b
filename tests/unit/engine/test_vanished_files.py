"""A start over a data folder with a missing log or snapshot must not treat the rest as garbage."""

import pytest

from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.model.errors import DamageError
from topics.model.records import Batch, Record
from topics.testing import FakeDisk, ManualClock, SeededEntropy

OPTIONS = EngineOptions(data_dir="data", wal_file_bytes=65536, segment_max_events=10)


def recover(disk: FakeDisk, options: EngineOptions = OPTIONS) -> Engine:
    return Engine.recover(disk, options, ManualClock(), SeededEntropy(1), boot_id="a")


@pytest.fixture
def disk() -> FakeDisk:
    """A folder after a clean stop: two segments, a snapshot, no log."""
    disk = FakeDisk()
    engine = recover(disk)
    for _ in range(2):
        answers: list[object] = []
        engine.append("t", Batch(records=[Record.of(number) for number in range(10)]), answers.append)
        assert isinstance(answers[0], AppendResult)
    engine.close_inline()
    return disk


def segments(disk: FakeDisk, root: str = "data") -> list[str]:
    return disk.list_dir(f"{root}/topics/0000000000000001")


def test_a_folder_without_its_snapshots_is_damaged_and_stays_as_it_is(disk: FakeDisk) -> None:
    before = segments(disk)
    for name in disk.list_dir("data/meta"):
        disk.remove(f"data/meta/{name}")
    with pytest.raises(DamageError) as raised:
        recover(disk)
    assert [finding.where for finding in raised.value.findings] == ["data/topics/0000000000000001"]
    assert segments(disk) == before


def test_the_cold_folder_of_another_server_is_not_emptied(disk: FakeDisk) -> None:
    disk.make_dirs("cold")
    disk.rename("data/topics", "cold/topics")
    before = segments(disk, "cold")
    with pytest.raises(DamageError):
        recover(disk, EngineOptions(data_dir="other", cold_dir="cold", wal_file_bytes=65536))
    assert segments(disk, "cold") == before


def test_orphans_of_a_topic_that_was_created_are_removed(disk: FakeDisk) -> None:
    path = "data/topics/0000000000000001/seg-00000000000000000021"
    for ending in (".data", ".idx"):
        disk.open(path + ending, create=True).close()
    engine = recover(disk)
    assert engine.info("t").count == 20
    assert len(segments(disk)) == 4
    engine.close_inline()
