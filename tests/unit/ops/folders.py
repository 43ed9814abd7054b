"""An engine with a place for backups on the same fake disk, and the way back into another folder of it."""

from tests.unit.conftest import DISK
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.model.topic_config import TopicConfigPatch
from topics.ops.backup.backup_store import BackupPlace, Manifest, lineages
from topics.ops.backup.restore import ALL, RequestedTopics, Restore, Restored, Target, at_moment, newest_of
from topics.testing import FakeDisk, ManualClock, SeededEntropy

PLACE = "place"
OPTIONS = EngineOptions(
    data_dir="data", wal_shards=2, wal_file_bytes=2048, segment_max_events=6, disk_reserve_seqs=4, backup_dir=PLACE
)
"""Everything so small that a handful of operations turns log files and fills segments."""


def start(
    disk: FileSystem, clock: ManualClock, options: EngineOptions = OPTIONS, boot: str = "a", entropy: int = 1
) -> Engine:
    return Engine.recover(disk, options, clock, SeededEntropy(entropy), boot_id=boot, backup_fs=disk)


def back_up(engine: Engine) -> Manifest:
    outcome: list[Manifest | Exception] = []
    engine.backups.take(outcome.append)
    (taken,) = outcome
    if isinstance(taken, Exception):
        raise taken
    return taken


def places(disk: FileSystem) -> list[BackupPlace]:
    return [BackupPlace(disk, PLACE, name) for name in lineages(disk, PLACE)]


def manifests(place: BackupPlace) -> list[Manifest]:
    return [place.load(number) for number in place.numbers()]


def restore(
    disk: FileSystem, target: Target | None = None, folder: str = "back", requested: RequestedTopics = ALL,
    gap: int = 0,
    clock: ManualClock | None = None,
) -> tuple[Engine, Restored]:  # fmt: skip
    """Restores the newest state, or the given moment, and opens it."""
    (place,) = places(disk)
    target = target or newest_of(place, manifests(place))
    options = EngineOptions(data_dir=folder, wal_shards=2, wal_file_bytes=2048, disk_reserve_seqs=4)
    clock = clock or ManualClock()
    job = Restore(place, disk, Layout(folder))
    job.copy(target, requested)
    restored = job.finish(target, requested, gap, options, clock, SeededEntropy(2))
    return Engine.recover(disk, options, clock, SeededEntropy(3), boot_id="b"), restored


def at(disk: FileSystem, moment: int) -> Target:
    (place,) = places(disk)
    return at_moment(place, manifests(place), moment)


def patch(**values: object) -> TopicConfigPatch:
    return TopicConfigPatch(**{"durability": DISK, **values})  # type: ignore[arg-type]


__all__ = ["OPTIONS", "PLACE", "FakeDisk", "at", "back_up", "manifests", "patch", "places", "restore", "start"]
