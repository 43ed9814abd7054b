"""Damage in the frames of transactions: refused by a start, named by verify, mended by repair, and told as a loss."""

import msgspec
import pytest

from tests.crash.wreckage import BOOT, OPTIONS, content, files, flip, look, mend, settled
from tests.unit.conftest import append, put, values
from tests.unit.transactions.conftest import abort, begin, commit, ref, stage
from topics.engine.engine import Engine
from topics.log.frame import Frame, FrameKind, find_frames
from topics.model.errors import DamageError
from topics.testing import FakeDisk, ManualClock, SeededEntropy, Survival

SHARDS = msgspec.structs.replace(OPTIONS, wal_shards=3, wal_file_bytes=65536, segment_max_events=100)
KINDS = [
    FrameKind.TXN_BEGIN, FrameKind.TXN_STAGE, FrameKind.TXN_END, FrameKind.TXN_APPEND, FrameKind.TXN_COMMIT,
]  # fmt: skip


def open_engine(disk: FakeDisk) -> Engine:
    return Engine.recover(disk, SHARDS, ManualClock(), SeededEntropy(1), boot_id=BOOT)


def build() -> FakeDisk:
    """A folder whose log has every kind of frame that transactions write, and something behind each of them."""
    disk = FakeDisk()
    engine = open_engine(disk)
    for name in ("a", "b", "elsewhere"):
        put(engine, name)
        append(engine, name, "before")
    begin(engine)
    stage(engine, "a", 1, 2)
    stage(engine, "b", 3)
    commit(engine)
    begin(engine, "u")
    abort(engine, ref("u"))
    # A commit is synced, and the frame logged behind it records that.
    begin(engine, "v")
    commit(engine, ref("v"))
    begin(engine, "x")
    for name in ("a", "b", "elsewhere"):
        append(engine, name, "behind")
        append(engine, name, "last")
    return settled(disk.crash(Survival.EVERYTHING))


def frames(disk: FakeDisk) -> list[tuple[str, Frame]]:
    logs = sorted(path for path in files(disk) if path.endswith(".wal"))
    return [(path, frame) for path in logs for frame in find_frames(memoryview(content(disk, path)), 0)]


def test_the_log_has_the_frames_that_are_damaged_below() -> None:
    assert set(KINDS) <= {frame.kind for _, frame in frames(build())}
    assert look(build()).findings == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_damaged_frame_stops_the_start_and_is_mended(kind: FrameKind) -> None:
    disk = build()
    path, frame = next((path, frame) for path, frame in frames(disk) if frame.kind is kind)
    flip(disk, path, frame.end - 10)
    with pytest.raises(DamageError):
        open_engine(disk.clone())
    report = mend(disk)
    assert report.after is not None and report.after.sound, report.after
    engine = open_engine(disk)
    reported = {(loss.topic, loss.from_seq, loss.to_seq) for loss in report.losses}
    if kind is FrameKind.TXN_COMMIT:
        # Without it the outcome is unknown: its records are reported as lost, in every topic.
        assert {("a", 2, 3), ("b", 2, 2)} <= reported
    elif kind is FrameKind.TXN_APPEND:
        assert ("a", 2, 3) in reported or ("b", 2, 2) in reported
    for name, own in (("a", [1, 2]), ("b", [3])):
        found = values(engine, name) + values(engine, name, 1 + len(own))
        assert values(engine, name, 1 + len(own)) == ["behind", "last"]
        assert all(value in found for value in own) or any(topic == name for topic, *_ in reported), name
    begin(engine, "w")
    stage(engine, "a", "new", ref=ref("w"))
    assert commit(engine, ref("w")).records == 1
