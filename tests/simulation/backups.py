"""Backups of a simulated server: each can be restored, is sound, and has the content of its time."""

from itertools import pairwise

from tests.simulation.oracle import Broken, Fate
from tests.simulation.story import Story
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.log.layout import Layout
from topics.model.errors import TopicsError
from topics.ops.backup.backup_store import BackupPlace, lineages
from topics.ops.backup.restore import ALL, Restore, Target, at_moment, newest_of
from topics.ops.repair.repair import verify
from topics.testing import FakeDisk, ManualClock, SeededEntropy

PLACE = "place"


def check_backups(disk: FakeDisk, clock: ManualClock, story: Story) -> None:
    """Restores the newest state of each history, and a state in its middle."""
    names = lineages(disk, PLACE) if disk.exists(PLACE) else []
    for name in names:
        place = BackupPlace(disk, PLACE, name)
        manifests = [place.load(number) for number in place.numbers()]
        if not manifests:
            continue
        _check(disk, clock, story, place, newest_of(place, manifests), f"back-{name}")
        for before, after in list(pairwise(manifests))[-2:]:
            target = at_moment(place, manifests, (before.moment + after.moment) // 2)
            _check(disk, clock, story, place, target, f"then-{name}-{before.number}")


def _check(disk: FakeDisk, clock: ManualClock, story: Story, place: BackupPlace, target: Target, folder: str) -> None:
    options = EngineOptions(data_dir=folder, wal_shards=2)
    job = Restore(place, disk, Layout(folder))
    try:
        job.copy(target, ALL)
        job.finish(target, ALL, 0, options, clock, SeededEntropy(1))
    except TopicsError as error:
        raise Broken(f"backup {target.base.number} of {place.lineage} is not restored: {error}") from error
    if findings := verify(disk, Layout(folder), "boot").findings:
        raise Broken(f"backup {target.base.number} is damaged where it is restored: {findings[:3]}")
    engine = Engine.recover(disk, options, clock, SeededEntropy(2), boot_id="boot")
    for log in story.logs[:1]:
        if log.name in engine.core.directory:
            found: dict[object, object] = {}
            answer = engine.read_now(log.name, ReadRequest(from_seq=0, limit=1000))
            while True:
                found |= {record["$seq"]: record["data"] for record in answer.records()}
                if answer.caught_up:
                    break
                answer = engine.read_now(log.name, ReadRequest(from_seq=answer.next_from_seq, limit=1000))
            requested = {s.seq: v for v, s in log.sent.items() if s.fate is Fate.ACKED and s.seq <= answer.head_seq}
            wrong = [seq for seq, value in requested.items() if found.get(seq, value) != value]
            missing = [seq for seq in requested if seq not in found and seq >= log.maybe_deleted_below]
            if wrong or missing:
                raise Broken(f"backup {target.base.number}: {log.name} has {wrong[:3]} otherwise, {missing[:3]} not")
