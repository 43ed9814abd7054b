"""Findings of `verify`, one kind of damage at a time, and states that it must not report as damage."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.crash.wreckage import (
    BOOT,
    LAYOUT,
    OPTIONS,
    Builder,
    content,
    cut,
    files,
    flip,
    look,
    overwrite,
    settled,
)
from topics.engine.engine import Engine
from topics.log import frame
from topics.log.frame import FrameKind, find_frames, seal_frame
from topics.log.layout import Layout, wal_file
from topics.log.segment import DELETED, SegmentIndex, decode_head, encode_data, encode_index
from topics.log.snapshot_files import (
    KeyState,
    LostState,
    SegmentState,
    SnapshotWriter,
    TopicState,
    encode_topic,
    read_snapshot,
)
from topics.model.errors import DamageError, Finding, FolderBusyError
from topics.model.settings import SettingsError
from topics.model.topic_config import DEFAULT_CONFIG, Durability, TopicConfigPatch, encode_config
from topics.ops.repair.repair import verify
from topics.ops.verify.log_check import _TAKE
from topics.ops.verify.verification import Report, Verification, hold_folder, state_problems
from topics.testing import FakeDisk, ManualClock, SeededEntropy, Survival

SEGMENT = "data/topics/0000000000000001/seg-00000000000000000001"
SNAPSHOT = "data/meta/snapshot-0000000000000001.bin"
LOG = "data/wal/shard-00/0000000000000002.wal"


@pytest.fixture
def disk() -> FakeDisk:
    """One topic: a sealed segment of six with one deleted, two records in the snapshot's tail, two in the log."""
    disk = FakeDisk()
    builder = Builder(disk, msgspec.structs.replace(OPTIONS, wal_shards=1, cold_dir=None, wal_file_bytes=65536))
    builder.put("orders")
    builder.write("orders", 4)
    builder.write("orders", 2)
    builder.delete("orders", tag="tag3")
    builder.write("orders", 2)
    builder.checkpoint()
    builder.write("orders", 1)
    builder.write("orders", 1)
    return settled(disk.crash(Survival.EVERYTHING))


def seen(disk: FakeDisk, boot: str = BOOT) -> Report:
    return verify(disk, Layout("data"), boot)


def only(disk: FakeDisk) -> Finding:
    (finding,) = seen(disk).findings
    return finding


def rewrite(disk: FakeDisk, path: str, data: bytes) -> None:
    cut(disk, path, 0)
    overwrite(disk, path, 0, data)


def restate(disk: FakeDisk, change: Callable[[TopicState], TopicState], name: str = "orders") -> None:
    """Writes the snapshot again, every checksum right, with another state of one topic in it."""
    head, frames = read_snapshot(disk, Layout("data"), 1)
    kept = [(frame.kind, frame.topic_id, bytes(frame.body)) for frame in frames]
    writer = SnapshotWriter(disk, Layout("data"), head)
    for kind, topic_id, body in kept:
        if kind is FrameKind.TOPIC:
            state = msgspec.msgpack.decode(body, type=TopicState)
            writer.add(kind, topic_id, encode_topic(change(state)) if state.name == name else body)
        else:
            writer.add(kind, topic_id, body)
    writer.finish()
    writer.close()


def log_frames(disk: FakeDisk, *frames: tuple[FrameKind, int, bytes]) -> None:
    """Appends frames to the end of the log."""
    found = list(find_frames(memoryview(content(disk, LOG)), 0))
    at, lsn = found[-1].end, found[-1].lsn
    for number, (kind, topic_id, body) in enumerate(frames, 1):
        data = b"".join(seal_frame(kind, topic_id, lsn + number, lsn, body))
        overwrite(disk, LOG, at, data)
        at += len(data)


# A sound folder


def test_a_sound_folder_is_counted_and_left_alone(disk: FakeDisk) -> None:
    disk.trace.clear()
    report = seen(disk)
    assert report.sound
    assert not report.notes
    assert (report.topics, report.segments, report.records) == (1, 1, 10)
    # Head, topic, the tail's block and end of the snapshot; two appends in the log.
    assert report.frames == 6
    assert report.bytes_checked > 0
    assert disk.trace == []


def test_progress_adds_up_to_the_total(disk: FakeDisk) -> None:
    totals: list[int] = []
    steps: list[int] = []
    verify(disk, Layout("data"), BOOT, totals.append, steps.append)
    assert 0 < sum(steps) <= totals[0]


def test_a_fresh_folder_is_sound() -> None:
    disk = FakeDisk()
    Engine.recover(disk, OPTIONS, ManualClock(), SeededEntropy(1)).close_inline()
    assert look(disk).sound


def test_a_running_server_keeps_the_folder(disk: FakeDisk) -> None:
    engine = Engine.recover(disk, msgspec.structs.replace(OPTIONS, cold_dir=None), ManualClock(), SeededEntropy(1))
    with pytest.raises(FolderBusyError), hold_folder(disk, LAYOUT, "verify", read_only=True):
        pass
    engine.close_inline()
    with hold_folder(disk, LAYOUT, "verify", read_only=True):
        assert seen(disk).sound


def test_a_folder_that_cannot_be_written_to_can_be_looked_at(disk: FakeDisk) -> None:
    class ReadOnly(FakeDisk):
        def lock(self, path: str, note: str) -> Any:
            raise PermissionError(13, "read-only")

    there = ReadOnly()
    there._root = disk._root
    with hold_folder(there, Layout("data"), "verify", read_only=True):
        assert seen(there).sound
    with pytest.raises(PermissionError), hold_folder(there, Layout("data"), "repair", read_only=False):
        pass


def test_looking_leaves_no_lock_file_behind(disk: FakeDisk) -> None:
    disk.remove(LAYOUT.lock)
    with hold_folder(disk, LAYOUT, "verify", read_only=True):
        assert seen(disk).sound
    assert not disk.exists(LAYOUT.lock)
    with hold_folder(disk, LAYOUT, "repair", read_only=False):
        assert disk.exists(LAYOUT.lock)


def test_folder_without_data_is_refused() -> None:
    disk = FakeDisk()
    disk.make_dirs("data")
    with pytest.raises(SettingsError, match="not a data folder"), hold_folder(disk, LAYOUT, "v", read_only=True):
        pass


# Snapshots


def test_a_damaged_snapshot_is_reported_with_its_bytes(disk: FakeDisk) -> None:
    flip(disk, SNAPSHOT, 100)
    report = seen(disk)
    assert report.findings[0].where == "meta/snapshot-0000000000000001.bin"
    begin, end = report.findings[0].byte_range or (0, 0)
    assert begin <= 100 < end


@pytest.mark.parametrize("path", [SNAPSHOT, "data/meta/newest"])
def test_a_vanished_snapshot_and_a_vanished_note(disk: FakeDisk, path: str) -> None:
    disk.remove(path)
    findings = seen(disk).findings
    if path == SNAPSHOT:
        assert any("missing" in finding.what and path.endswith(finding.where) for finding in findings)
        with pytest.raises(DamageError, match="newest snapshot is missing"):
            Engine.recover(disk, msgspec.structs.replace(OPTIONS, cold_dir=None), ManualClock(), SeededEntropy(1))
    else:
        # It only repeats the content of the snapshot.
        assert not findings


def test_a_damaged_note_about_the_newest_snapshot(disk: FakeDisk) -> None:
    flip(disk, "data/meta/newest", 20)
    assert only(disk).where == "meta/newest"


def test_an_unfinished_repair(disk: FakeDisk) -> None:
    disk.make_dirs("data/repair")
    disk.open("data/repair/plan", create=True).close()
    assert "repair was begun" in only(disk).what
    with pytest.raises(DamageError, match="run it again"):
        Engine.recover(disk, msgspec.structs.replace(OPTIONS, cold_dir=None), ManualClock(), SeededEntropy(1))


# The rules of a state

STATE = TopicState(
    1, "t", 1, encode_config(DEFAULT_CONFIG), head=20, ceiling=24, earliest=3, evict_floor=2, cap_floor=2, ttl_floor=1,
    created_ts=1, last_ts=9, last_write_ts=9, next_base=0,
    segments=[SegmentState(1, 6, 10, 10, 0, 1, 2, 4, 8, 0, False), SegmentState(8, 4, 10, 10, 0, 2, 5, 4, 8, 0, False)],
    lost=[LostState(12, 13, "crash")], keys=[KeyState("k", 3, 2, 5)], tail_flags=[b"", bytes((DELETED, 0, 0))],
)  # fmt: skip
TAIL = [(14, 15), (17, 19)]


def test_a_state_that_obeys_the_rules() -> None:
    assert list(state_problems(STATE, TAIL)) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"evict_floor": 4}, "watermarks"),
        ({"earliest": 22}, "watermarks"),
        ({"evict_floor": 0, "cap_floor": 0, "ttl_floor": 0}, "watermarks"),
        ({"cap_floor": 3}, "evicted more"),
        ({"ttl_floor": 3}, "evicted more"),
        ({"head": 18}, "its head is 18"),
        ({"ceiling": 19}, "above the ceiling"),
        ({"last_ts": 4}, "times run back"),
        ({"segments": [STATE.segments[1], STATE.segments[0]]}, "out of order"),
        ({"segments": [STATE.segments[0], STATE.segments[0]]}, "overlap"),
        ({"lost": [LostState(12, 11, "crash")]}, "lost ranges"),
        ({"lost": [LostState(12, 13, "crash"), LostState(13, 13, "crash")]}, "lost ranges"),
        ({"lost": [LostState(20, 21, "crash")]}, "lost ranges"),
        ({"keys": [KeyState("k", 20, 2, 5)]}, "idempotency key"),
        ({"tail_flags": [b""]}, "2 blocks instead of 1"),
        ({"tail_flags": [b"", b"\0"]}, "wrong length"),
        ({"segments": [msgspec.structs.replace(STATE.segments[0], flags=b"\0"), STATE.segments[1]]}, "wrong length"),
        ({"name": "no name!"}, "not the name of a topic"),
        ({"config": b"{"}, "config is malformed"),
    ],
)
def test_each_rule(change: dict[str, Any], problem: str) -> None:
    found = list(state_problems(msgspec.structs.replace(STATE, **change), TAIL))
    assert any(problem in what for what in found), found


def test_a_state_that_breaks_a_rule_is_damage(disk: FakeDisk) -> None:
    restate(disk, lambda state: msgspec.structs.replace(state, evict_floor=5))
    assert (only(disk).topic, only(disk).where) == ("orders", "meta/snapshot-0000000000000001.bin")


def test_two_topics_of_one_name(disk: FakeDisk) -> None:
    body = frame.encode_create(2, 5, "orders", encode_config(DEFAULT_CONFIG))
    log_frames(disk, (FrameKind.CREATE, 2, body))
    assert "same name" in only(disk).what


def test_a_number_that_was_never_given_out(disk: FakeDisk) -> None:
    restate(disk, lambda state: msgspec.structs.replace(state, topic_id=7))
    assert any("never given out" in finding.what for finding in seen(disk).findings)


# The log


def test_a_damaged_frame_is_reported_with_its_topic_and_records(disk: FakeDisk) -> None:
    first, second = find_frames(memoryview(content(disk, LOG)), 0)
    flip(disk, LOG, first.end - 20)
    finding = only(disk)
    assert finding.where == "wal/shard-00/0000000000000002.wal"
    assert finding.byte_range == (first.start, second.start)
    assert (finding.topic, finding.seq_range) == ("orders", (9, 9))


def test_a_torn_tail_is_a_note(disk: FakeDisk) -> None:
    _, last = find_frames(memoryview(content(disk, LOG)), 0)
    cut(disk, LOG, last.end - 3)
    report = seen(disk)
    assert report.sound
    (note,) = report.notes
    assert "unfinished write" in note.what
    assert note.byte_range == (last.start, last.start)


def test_a_power_cut_may_leave_frames_behind_a_hole(disk: FakeDisk) -> None:
    first, _ = find_frames(memoryview(content(disk, LOG)), 0)
    overwrite(disk, LOG, first.start, bytes(first.end - first.start))
    hole, missing = seen(disk).findings
    assert "zeros where frame" in hole.what
    assert (missing.topic, missing.seq_range) == ("orders", (9, 9))
    # The last frame was created before the sync of the one before it was known: after a restart the sync is unknown.
    frames = [
        seal_frame(f.kind, f.topic_id, f.lsn, 0, bytes(f.body)) for f in find_frames(memoryview(content(disk, LOG)), 0)
    ]
    overwrite(disk, LOG, first.end, b"".join(frames[0]))
    report = seen(disk, "another boot")
    assert report.sound
    assert "1 frames behind it were never synced" in report.notes[0].what


def test_a_missing_log_file(disk: FakeDisk) -> None:
    disk.rename(LOG, wal_file("data/wal/shard-00", 3))
    assert only(disk).what == "log file 2 is missing"


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        ((FrameKind.CEILING, 9, frame.encode_ceiling(5)), "refers to topic 9, which was never created"),
        ((FrameKind.CEILING, 1, b"short"), "malformed"),
        ((FrameKind.APPEND, 1, b"short"), "malformed"),
        ((FrameKind.SNAPSHOT_END, 1, b""), "malformed"),
        ((FrameKind.CONFIG, 1, frame.encode_config_change(12, b"{}")), "records 11 to 12 are missing"),
        ((FrameKind.CONFIG, 1, frame.encode_config_change(9, b"{}")), "a second time"),
        ((FrameKind.CREATE, 1, frame.encode_create(1, 1, "x", b"{}")), "created a second time"),
    ],
)
def test_valid_frames_that_are_malformed(disk: FakeDisk, frame: tuple[FrameKind, int, bytes], what: str) -> None:
    log_frames(disk, frame)
    assert what in only(disk).what


def test_frames_that_make_sense(disk: FakeDisk) -> None:
    log_frames(
        disk,
        (FrameKind.EVICT, 1, frame.encode_evict(3, True)),
        (FrameKind.DELETE, 1, frame.encode_delete(2, [(4, 5)])),
        (FrameKind.CEILING, 1, frame.encode_ceiling(40)),
        (FrameKind.CONFIG, 1, frame.encode_config_change(10, encode_config(DEFAULT_CONFIG))),
        (FrameKind.DROP, 1, b""),
    )
    report = seen(disk)
    assert report.sound
    assert report.topics == 0


def test_every_kind_of_logged_frame_is_checked() -> None:
    in_snapshots = {FrameKind.SNAPSHOT_HEAD, FrameKind.TOPIC, FrameKind.SNAPSHOT_END, FrameKind.DIRECTORY}
    logged = set(FrameKind) - in_snapshots
    # Forwards of many are read as one of each.
    assert set(_TAKE) | {FrameKind.CREATE, FrameKind.FORWARDS} == logged


# Segments


def parts(disk: FakeDisk) -> tuple[Any, SegmentIndex]:
    return decode_head(memoryview(content(disk, SEGMENT + ".data"))), SegmentIndex(
        memoryview(content(disk, SEGMENT + ".idx"))
    )


def reindex(disk: FakeDisk, **change: Any) -> None:
    """Writes the index again with a right checksum over something else."""
    head, index = parts(disk)
    tags = {index.tag_at(place): index.postings_at(place) for place in range(index.tag_count)}
    made = {"rows": index.rows.tobytes(), "blocks": index.blocks(), "tags": tags, **change}
    rewrite(disk, SEGMENT + ".idx", b"".join(encode_index(head.topic_id, head.first_seq, **made)))


def test_the_index_that_belongs_to_the_records(disk: FakeDisk) -> None:
    reindex(disk)
    assert seen(disk).sound


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda i: {"tags": {b'"tag3"': [0]}}, "tags are not those"),
        (lambda i: {"tags": {}}, "tags are not those"),
        (lambda i: {"blocks": [(0, i.blocks()[0][1])]}, "other times"),
        (lambda i: {"blocks": [(1, i.blocks()[0][1]), i.blocks()[1]]}, "do not cover"),
        (lambda i: {"blocks": [i.blocks()[0], (0, i.blocks()[1][1])]}, "out of order"),
        (lambda i: {"blocks": [i.blocks()[0], (3, i.blocks()[1][1])]}, "record 4 does not fit"),
        (lambda i: {"rows": i.rows.tobytes()[12:]}, "another segment"),
        (lambda i: {"rows": i.rows.tobytes()[:12] * 6}, "out of order"),
        (lambda i: {"rows": bytes([i.rows[0] + 1, 0, 0, 0]) + i.rows.tobytes()[4:]}, "out of order"),
        (lambda i: {"rows": i.rows.tobytes()[:8] + b"\0\0\x99\0" + i.rows.tobytes()[12:]}, "record 1 does not fit"),
        (lambda i: {"rows": i.rows.tobytes()[:4] + b"\x08\0\0\0" + i.rows.tobytes()[8:]}, "record 1 does not fit"),
    ],
)
def test_an_index_that_is_whole_and_wrong(
    disk: FakeDisk, change: Callable[[SegmentIndex], dict[str, Any]], what: str
) -> None:
    reindex(disk, **change(parts(disk)[1]))
    finding = only(disk)
    assert what in finding.what
    assert finding.where.endswith(".idx")
    assert (finding.topic, finding.seq_range) == ("orders", (1, 6))


@pytest.mark.parametrize("ending", [".data", ".idx"])
def test_a_missing_file_of_a_segment(disk: FakeDisk, ending: str) -> None:
    disk.remove(SEGMENT + ending)
    assert (only(disk).what, only(disk).where) == ("the file is missing", SEGMENT.removeprefix("data/") + ending)


def test_a_segment_of_another_topic_in_its_place(disk: FakeDisk) -> None:
    data = memoryview(content(disk, SEGMENT + ".data"))
    head = decode_head(data)
    other = msgspec.structs.replace(head, topic_id=2)
    rewrite(
        disk, SEGMENT + ".data", b"".join(encode_data(other, [bytes(data[head.text_at : head.checksums_at])], bytes(6)))
    )
    assert "not the segment" in only(disk).what


def test_text_that_fails_its_checksum_is_reported_with_the_records_in_it(disk: FakeDisk) -> None:
    head, _ = parts(disk)
    flip(disk, SEGMENT + ".data", head.text_at + 5)
    finding = only(disk)
    assert finding.byte_range == (head.text_at, head.checksums_at)
    assert finding.seq_range == (1, 6)


# Delete flags


def flags_at(disk: FakeDisk) -> int:
    return int(parts(disk)[0].flags_at)


def test_the_state_knows_the_flags_before_the_file(disk: FakeDisk) -> None:
    """A crash may come while a flag is written: the byte can be anything where the state has it as set."""
    for value in (0, 1, DELETED):
        overwrite(disk, SEGMENT + ".data", flags_at(disk) + 2, bytes((value,)))
        assert seen(disk).sound
    flip(disk, SEGMENT + ".data", flags_at(disk) + 3)
    assert "should be clear" in only(disk).what
    overwrite(disk, SEGMENT + ".data", flags_at(disk) + 3, bytes((DELETED,)))
    assert only(disk).seq_range == (4, 4)


def forget_flags(state: TopicState) -> TopicState:
    return msgspec.structs.replace(state, segments=[msgspec.structs.replace(state.segments[0], flags=b"")])


@pytest.mark.parametrize(
    ("offset", "value", "what"),
    [
        (2, 0, "0 records are marked"),
        (2, 7, "neither set nor clear"),
        (4, DELETED, "2 records are marked"),
        (4, 7, "neither set nor clear"),
    ],
)
def test_flags_that_only_the_file_has_must_add_up(disk: FakeDisk, offset: int, value: int, what: str) -> None:
    restate(disk, forget_flags)
    assert seen(disk).sound
    overwrite(disk, SEGMENT + ".data", flags_at(disk) + offset, bytes((value,)))
    assert what in only(disk).what


@pytest.mark.parametrize("change", [{"live": 4}, {"live_bytes": 5}])
def test_live_records_are_counted_again(disk: FakeDisk, change: dict[str, int]) -> None:
    restate(disk, lambda state: msgspec.structs.replace(
        state, segments=[msgspec.structs.replace(state.segments[0], **change)]
    ))  # fmt: skip
    assert "are live" in only(disk).what


# The cold folder


@pytest.fixture
def cold_disk() -> FakeDisk:
    disk = FakeDisk()
    builder = Builder(disk)
    builder.put("orders", TopicConfigPatch(durability=Durability.FSYNC))
    for _ in range(3):
        builder.write("orders", 6)
    builder.checkpoint()
    builder.to_cold("orders")
    builder.checkpoint()
    return settled(disk.crash(Survival.EVERYTHING))


def test_segments_in_the_cold_folder_are_checked(cold_disk: FakeDisk) -> None:
    assert look(cold_disk).sound
    path = next(path for path in files(cold_disk, "cold") if path.endswith(".idx"))
    flip(cold_disk, path, 50)
    (finding,) = look(cold_disk).findings
    assert finding.where == path.removeprefix("/")


def test_a_cold_folder_that_is_not_there_is_not_taken_for_lost(cold_disk: FakeDisk) -> None:
    with pytest.raises(SettingsError, match="--cold-dir"):
        seen(cold_disk)
    with pytest.raises(SettingsError, match="does not look like it"):
        verify(cold_disk, Layout("data", "elsewhere"), BOOT)


# States that are not damage


def test_unused_files_are_listed(disk: FakeDisk) -> None:
    strays = [
        "data/notes.txt",
        "data/meta/snapshot-0000000000000009.bin.tmp",
        "data/meta/readme",
        "data/wal/lost+found",
        "data/wal/shard-00/0000000000000001.wal",
        "data/wal/shard-00/x",
        "data/topics/0000000000000001/seg-00000000000000000099.data",
        "data/topics/0000000000000001/x",
        "data/topics/old",
    ]
    for path in strays:
        disk.open(path, create=True).close()
    disk.make_dirs("data/damaged-1")
    report = seen(disk)
    assert report.sound
    assert sorted(f"data/{note.where}" for note in report.notes) == sorted(strays)


def test_segments_of_an_unknown_topic_are_reported(disk: FakeDisk) -> None:
    disk.make_dirs("data/topics/0000000000000009")
    assert only(disk).where == "topics/0000000000000009"


def test_an_old_snapshot_that_a_crash_left(disk: FakeDisk) -> None:
    engine = Engine.recover(
        disk,
        msgspec.structs.replace(OPTIONS, cold_dir=None, wal_shards=1),
        ManualClock(),
        SeededEntropy(1),
        boot_id=BOOT,
    )
    old = content(disk, SNAPSHOT) if disk.exists(SNAPSHOT) else b""
    engine.close_inline()
    disk.open(SNAPSHOT, create=True).close()
    rewrite(disk, SNAPSHOT, old)
    report = seen(disk)
    assert report.sound
    assert [note.what for note in report.notes] == ["a newer snapshot has replaced it"]


def test_what_verify_learns_for_a_repair(disk: FakeDisk) -> None:
    flip(disk, SEGMENT + ".idx", 50)
    there = Verification(disk, Layout("data"), True)
    there.load()
    there.run()
    assert {(key.topic_id, key.first_seq) for key in there.damaged} == {(1, 1)}
    assert there.shard_of(1) == 0
