"""Verify and repair with routers: damage is found, and only the records in it are lost."""

import msgspec
import pytest

from tests.crash.wreckage import BOOT, OPTIONS, look, mend, settled, show
from tests.unit.conftest import append, checkpoint, put
from tests.unit.ops.test_salvage import frames_of, hit
from tests.unit.routers.conftest import route
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.log.frame import FrameKind
from topics.model.errors import DamageError
from topics.model.topic_config import Durability
from topics.ops.verify.verification import Loss
from topics.routers.router_frames import decode_forward
from topics.testing import FakeDisk, ManualClock, SeededEntropy, Survival

SHARDS = msgspec.structs.replace(OPTIONS, wal_shards=2, wal_file_bytes=65536, segment_max_events=40)


def opened(disk: FakeDisk) -> Engine:
    return Engine.recover(disk, SHARDS, ManualClock(), SeededEntropy(1), boot_id=BOOT)


@pytest.fixture
def folder() -> FakeDisk:
    """Two routers one behind the other, and direct writes among the copies, in the log alone."""
    disk = FakeDisk()
    engine = opened(disk)
    for name in ("a", "b", "c"):
        put(engine, name, durability=Durability.FSYNC)
    route(engine, "a", "b")
    route(engine, "b", "c")
    checkpoint(engine)
    for number in range(3):
        append(engine, "a", *[f"a{number}{place}" for place in range(2)])
        append(engine, "b", f"b{number}")
    return settled(disk.crash(Survival.EVERYTHING))


def test_a_folder_with_routers_is_sound(folder: FakeDisk) -> None:
    report = look(folder)
    assert report.sound, report.findings
    assert {frame.kind for _, frame in frames_of(folder)} >= {FrameKind.FORWARD, FrameKind.APPEND}


@pytest.mark.parametrize("number", range(6))
def test_a_damaged_forward_is_found_and_its_copies_are_lost_exactly(folder: FakeDisk, number: int) -> None:
    frame = hit(folder.clone(), FrameKind.FORWARD, number)
    forward = decode_forward(frame.body)
    hit(folder, FrameKind.FORWARD, number)
    assert not look(folder).sound
    with pytest.raises(DamageError):
        opened(folder.clone())
    report = mend(folder)
    assert report.after is not None and report.after.sound, report
    # Records forwarded from a lost copy are lost with it, and nothing else. All of b is in c, under the same seqs.
    names = ["b", "c"] if frame.topic_id == 2 else ["c"]
    assert report.losses == [Loss(name, forward.first_seq, forward.last_seq, True) for name in names]


def test_a_damaged_record_takes_its_copies_along(folder: FakeDisk) -> None:
    hit(folder, FrameKind.APPEND, 0, topic_id=1)
    report = mend(folder)
    assert report.losses == [Loss("a", 1, 2, True), Loss("b", 1, 2, True), Loss("c", 1, 2, True)]
    found = {shown.name: shown for shown in show(folder, SHARDS).values()}
    assert sorted(found["c"].records) == [3, 4, 5, 6, 7, 8, 9]


def test_routers_outlive_a_repair(folder: FakeDisk) -> None:
    hit(folder, FrameKind.APPEND, 0, topic_id=1)
    mend(folder)
    engine = opened(folder)
    assert [info.router for info in engine.list_routers()] == ["a->b", "b->c"]
    engine.routing.kick()
    append(engine, "a", "new")
    assert engine.read_now("c", ReadRequest()).tombstone is not None
    assert engine.core.directory.load("c").head == 10


def test_a_damaged_frame_of_many_forwards_is_found_and_mended() -> None:
    disk = FakeDisk()
    engine = opened(disk)
    names = [f"b{number}" for number in range(12)]
    for name in ("a", *names):
        put(engine, name, durability=Durability.FSYNC)
    for name in names:
        route(engine, "a", name)
    for number in range(3):
        append(engine, "a", number)
    folder = settled(disk.crash(Survival.EVERYTHING))
    assert look(folder).sound
    hit(folder, FrameKind.FORWARDS, 0)
    assert not look(folder).sound
    with pytest.raises(DamageError):
        opened(folder.clone())
    report = mend(folder)
    assert report.after is not None and report.after.sound, report
    # The next frames reveal the topics of the lost forwards: they begin behind the missing ones.
    assert {loss.topic for loss in report.losses} <= set(names)
    assert all((loss.from_seq, loss.to_seq) == (1, 1) for loss in report.losses) and len(report.losses) >= 4
    found = {shown.name: shown for shown in show(folder, SHARDS).values()}
    for name in names:
        lost = any(loss.topic == name for loss in report.losses)
        assert sorted(found[name].records) == ([2, 3] if lost else [1, 2, 3])
