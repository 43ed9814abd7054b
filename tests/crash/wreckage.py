"""A data folder with every kind of content, ways to damage it, and the reads after the damage.

The folder is left behind by a killed process: snapshots that add to each other, sealed segments in both tiers with
deleted records, tails in the snapshots, and a log with several files behind them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.property.totals import all_topics
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.log.layout import Layout
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.model.router_rules import DeleteSelector, TagMatch
from topics.model.seq_ranges import LossReason, Tombstone
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.ops.repair.repair import Repair, verify
from topics.ops.verify.verification import RepairReport, Report
from topics.testing import FakeDisk, ManualClock, SeededEntropy, Survival

OPTIONS = EngineOptions(
    data_dir="data",
    cold_dir="cold",
    wal_shards=2,
    wal_file_bytes=1600,
    segment_max_events=6,
    hot_retain_segments=1,
    disk_reserve_seqs=4,
)
LAYOUT = Layout("data", "cold")
BOOT = "this boot"
FSYNC = TopicConfigPatch(durability=Durability.FSYNC)


class Builder:
    """Drives an engine and remembers every record that was ever written."""

    def __init__(self, disk: FakeDisk, options: EngineOptions = OPTIONS, boot_id: str = BOOT) -> None:
        self.clock = ManualClock()
        self.engine = Engine.recover(disk, options, self.clock, SeededEntropy(1), boot_id=boot_id)
        self.written: dict[int, dict[int, str]] = {}
        """Topic number -> seq -> value."""

    def put(self, name: str, patch: TopicConfigPatch = FSYNC) -> None:
        self.engine.put_topic(name, patch, _expect)

    def write(self, name: str, count: int, size: int = 10, key: str | None = None) -> None:
        """A batch in which every third record has a tag, every fourth a node and every fifth meta."""
        topic = self.engine.core.directory.load(name)
        first = topic.staged_head + 1
        records = [
            Record.of(
                {"of": f"{name}/{seq}", "pad": "x" * size},
                tag=f"tag{seq % 5}" if seq % 3 == 0 else None,
                node='a"node' if seq % 4 == 0 else None,
                meta={"m": seq} if seq % 5 == 0 else None,
            )
            for seq in range(first, first + count)
        ]
        self.engine.append(name, Batch(records=records, idempotency_key=key), _expect)
        mine = self.written.setdefault(topic.id, {})
        mine.update({seq: f"{name}/{seq}" for seq in range(first, first + count)})
        self.clock.advance(7)

    def delete(self, name: str, before: int | None = None, tag: str | None = None) -> None:
        match = TagMatch(tag) if tag is not None else None
        self.engine.delete_records(name, DeleteSelector(before, match), _expect)

    def checkpoint(self, full: bool = False) -> None:
        self.engine.run_job(self.engine.checkpointer.job(full=full))

    def to_cold(self, name: str) -> None:
        self.engine.run_job(self.engine.housekeeper.relocate(self.engine.core.directory.load(name)))


def build() -> tuple[FakeDisk, dict[int, dict[int, str]]]:
    """The folder, and all records ever written to each topic."""
    disk = FakeDisk()
    written = fill(disk)
    return settled(disk.crash(Survival.EVERYTHING)), written


def fill(disk: FakeDisk) -> dict[int, dict[int, str]]:
    """Runs the operations in the folder, up to the kill; returns all records ever written to each topic."""
    builder = Builder(disk)
    for name in ("orders", "events", "small", "gone", "capped"):
        builder.put(name)
    builder.put("plain", TopicConfigPatch())
    builder.put("capped", TopicConfigPatch(durability=Durability.FSYNC, cap_records=7))
    builder.put("empty")
    builder.put("fleeting", TopicConfigPatch(durability=Durability.EPHEMERAL))
    for turn in range(5):
        for name in ("orders", "events", "plain", "capped"):
            builder.write(name, 3, key=f"{name}-{turn}")
    builder.write("small", 2)
    builder.write("gone", 2)
    builder.write("fleeting", 3)
    builder.delete("orders", tag="tag1")
    builder.delete("events", before=3)
    builder.checkpoint(full=True)
    builder.to_cold("orders")
    builder.engine.drop_topic("gone", False, _expect)
    builder.write("events", 4)
    builder.write("orders", 2)
    builder.delete("orders", tag="tag4")
    builder.delete("small", tag="tag3")
    builder.checkpoint()
    builder.write("small", 3)
    builder.checkpoint()
    builder.delete("events", tag="tag1")
    builder.write("plain", 2)
    builder.put("late")
    builder.put("fleeting")
    builder.write("fleeting", 2)
    for _ in range(3):
        for name in ("orders", "events", "small", "late", "capped"):
            builder.write(name, 2)
    builder.delete("late", before=2)
    builder.write("plain", 1)
    return builder.written


def settled(disk: FakeDisk) -> FakeDisk:
    """The same files on a disk where everything is durable: the test is about damage, not about power cuts."""
    copy = FakeDisk()
    for path in files(disk):
        folder = path.rsplit("/", 1)[0]
        copy.make_dirs(folder)
        file = copy.open(path, create=True)
        file.write_at(0, content(disk, path))
        file.sync()
        file.close()
        copy.sync_dir(folder)
    return copy


def _expect(answer: object) -> None:
    assert not isinstance(answer, TopicsError), answer


@dataclass
class Shown:
    """The answers of reads over a whole topic, in small pages."""

    name: str
    records: dict[int, bytes] = field(default_factory=dict)
    tombstones: list[Tombstone] = field(default_factory=list)

    def reported(self, seq: int, reason: LossReason) -> bool:
        # Losses that touch are one gap, whose reason is `mixed` where theirs differ.
        reasons = (reason, LossReason.MIXED)
        return any(t.gap_from <= seq <= t.gap_to and t.reason in reasons for t in self.tombstones)


def show(disk: FakeDisk, options: EngineOptions = OPTIONS, boot: str = BOOT) -> dict[int, Shown]:
    """Starts an engine on a copy of the folder and reads every topic; by topic number."""
    engine = Engine.recover(disk.clone(), options, ManualClock(), SeededEntropy(2), boot_id=boot)
    return {topic.id: read_all(engine, topic.name) for topic in all_topics(engine)}


def read_all(engine: Engine, name: str) -> Shown:
    shown, cursor = Shown(name), 0
    while True:
        result = engine.read_now(name, ReadRequest(from_seq=cursor, limit=4, include_tags=True))
        if result.tombstone is not None:
            shown.tombstones.append(result.tombstone)
        for record, text in zip(result.records(), _split(result.body), strict=True):
            seq = record["$seq"]
            assert isinstance(seq, int)
            assert seq not in shown.records
            shown.records[seq] = text
        if result.next_from_seq == cursor:
            assert result.caught_up
            return shown
        cursor = result.next_from_seq


def _split(body: bytes) -> list[bytes]:
    return [b'{"$seq":' + part.rstrip(b",") for part in body.split(b'{"$seq":')[1:]]


def files(disk: FakeDisk, folder: str = "/") -> Iterator[str]:
    """Every file below a folder."""
    for name in disk.list_dir(folder):
        path = f"{folder.rstrip('/')}/{name}"
        try:
            disk.list_dir(path)
        except NotADirectoryError:
            yield path
        else:
            yield from files(disk, path)


def content(disk: FakeDisk, path: str) -> bytes:
    file = disk.open(path)
    data = file.read_at(0, file.size())
    file.close()
    return data


def flip(disk: FakeDisk, path: str, offset: int, mask: int = 0xFF) -> None:
    file = disk.open(path, write=True)
    (byte,) = file.read_at(offset, 1)
    file.write_at(offset, bytes((byte ^ mask,)))
    file.sync()
    file.close()


def overwrite(disk: FakeDisk, path: str, offset: int, data: bytes) -> None:
    file = disk.open(path, write=True)
    file.write_at(offset, data)
    file.sync()
    file.close()


def cut(disk: FakeDisk, path: str, length: int) -> None:
    file = disk.open(path, write=True)
    file.truncate(length)
    file.sync()
    file.close()


def look(disk: FakeDisk, boot: str = BOOT) -> Report:
    return verify(disk, LAYOUT, boot)


def mend(disk: FakeDisk, boot: str = BOOT, dry_run: bool = False) -> RepairReport:
    return Repair(disk, LAYOUT, ManualClock(), SeededEntropy(3), boot).run(dry_run)
