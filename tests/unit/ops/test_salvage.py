"""Results of a repair: the data it keeps, the data it gives up, and its report of both."""

import msgspec
import pytest

from tests.crash.wreckage import (
    BOOT,
    OPTIONS,
    Builder,
    Shown,
    content,
    cut,
    files,
    flip,
    look,
    mend,
    overwrite,
    settled,
    show,
)
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.log.frame import Frame, FrameKind, find_frames
from topics.log.segment import CHUNK_BYTES, DELETED, decode_head
from topics.model.errors import DamageError
from topics.model.seq_ranges import LossReason
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.ops.verify.verification import Loss, RepairReport
from topics.testing import FakeDisk, ManualClock, PowerCut, SeededEntropy, Survival

ONE_SHARD = msgspec.structs.replace(OPTIONS, wal_shards=1, wal_file_bytes=65536)
LARGE = msgspec.structs.replace(ONE_SHARD, segment_max_events=40)


def stop(builder: Builder, disk: FakeDisk) -> FakeDisk:
    """The folder after a kill, everything durable."""
    del builder
    return settled(disk.crash(Survival.EVERYTHING))


def frames_of(disk: FakeDisk) -> list[tuple[str, Frame]]:
    """Every frame of the log with its file, in order."""
    logs = sorted(path for path in files(disk) if path.endswith(".wal"))
    return [(path, frame) for path in logs for frame in find_frames(memoryview(content(disk, path)), 0)]


def hit(disk: FakeDisk, kind: FrameKind, number: int = 0, *, at: int = -12, topic_id: int | None = None) -> Frame:
    """Damages the n-th frame of a kind; `at` counts from its start, or from its end when it is negative."""
    found = [
        (path, frame) for path, frame in frames_of(disk) if frame.kind is kind and topic_id in (None, frame.topic_id)
    ]
    path, frame = found[number]
    flip(disk, path, frame.start + at if at >= 0 else frame.end + at)
    return frame


def repaired(disk: FakeDisk, options: EngineOptions = ONE_SHARD) -> tuple[RepairReport, dict[str, Shown]]:
    report = mend(disk)
    assert report.after is not None
    assert report.after.sound, report.after.findings
    return report, {shown.name: shown for shown in show(disk, options).values()}


def seqs(shown: Shown) -> list[int]:
    return sorted(shown.records)


# The log


@pytest.fixture
def logged() -> FakeDisk:
    """Two topics in the log alone, three batches of two records each, in turn."""
    disk = FakeDisk()
    builder = Builder(disk, LARGE)
    for name in ("a", "b"):
        builder.put(name)
    builder.write("a", 1)
    for _ in range(3):
        for name in ("a", "b"):
            builder.write(name, 2)
    return stop(builder, disk)


def test_a_damaged_batch_is_lost_exactly(logged: FakeDisk) -> None:
    hit(logged, FrameKind.APPEND, 3)
    report, shown = repaired(logged)
    assert report.losses == [Loss("a", 4, 5, True)]
    assert seqs(shown["a"]) == [1, 2, 3, 6, 7]
    assert [(t.gap_from, t.gap_to, t.reason) for t in shown["a"].tombstones] == [(4, 5, LossReason.CORRUPT)]
    assert seqs(shown["b"]) == [1, 2, 3, 4, 5, 6]
    assert not shown["b"].tombstones


def test_the_last_batch_of_a_topic_is_lost_exactly_when_its_frame_still_reports(logged: FakeDisk) -> None:
    hit(logged, FrameKind.APPEND, 5)
    report, shown = repaired(logged)
    assert report.losses == [Loss("a", 6, 7, True)]
    assert shown["a"].reported(7, LossReason.CORRUPT)


def test_when_nobody_can_report_whose_records_were_lost_every_silent_topic_is_notified(logged: FakeDisk) -> None:
    # The topic's number in the frame: nothing proves any more whose last batch it was.
    frame = hit(logged, FrameKind.APPEND, 5, at=24)
    report, shown = repaired(logged)
    (loss,) = report.losses
    assert (loss.topic, loss.from_seq, loss.sure) == ("a", 6, False)
    assert 7 <= loss.to_seq <= 6 + (frame.end - frame.start) // 39
    # A valid frame behind the damage proves that b has lost nothing.
    assert not shown["b"].tombstones


def test_seqs_that_may_have_been_lost_are_never_given_out_again(logged: FakeDisk) -> None:
    hit(logged, FrameKind.APPEND, 5, at=24)
    (loss,) = mend(logged).losses
    engine = Engine.recover(logged, ONE_SHARD, ManualClock(), SeededEntropy(4), boot_id=BOOT)
    assert engine.info("a").next_seq == loss.to_seq + 1


def test_topics_that_look_the_same_are_not_confused() -> None:
    """A damaged number could name a topic that stands where the right one does; then it proves nothing."""
    disk = FakeDisk()
    builder = Builder(disk, ONE_SHARD)
    for name in ("a", "b", "end"):
        builder.put(name)
    for name in ("a", "b", "end"):
        builder.write(name, 1)
    disk = stop(builder, disk)
    frame = next(frame for _, frame in frames_of(disk) if frame.kind is FrameKind.APPEND)
    # 1 becomes 2: the first batch of b, as far as anyone can see.
    flip(disk, frames_of(disk)[0][0], frame.start + 24, 3)
    report, shown = repaired(disk)
    assert {(loss.topic, loss.from_seq, loss.sure) for loss in report.losses} == {("a", 1, False)}
    assert seqs(shown["b"]) == [1]


def test_a_lost_creation_leaves_a_topic_with_another_name(logged: FakeDisk) -> None:
    hit(logged, FrameKind.CREATE, 1)
    report, shown = repaired(logged)
    assert not report.losses
    assert seqs(shown["recovered-2"]) == [1, 2, 3, 4, 5, 6]
    assert any("recovered-2" in action and "config was lost" in action for action in report.actions)


def test_records_that_were_sealed_since_are_not_lost_with_their_frames() -> None:
    disk = FakeDisk()
    builder = Builder(disk, ONE_SHARD)
    builder.put("a")
    for _ in range(4):
        builder.write("a", 2)
    builder.put("end")
    disk = stop(builder, disk)
    before = show(disk, ONE_SHARD)[1]
    for _ in range(3):
        # Always the second record that is left: the first stays.
        hit(disk, FrameKind.APPEND, 1)
    report, shown = repaired(disk)
    assert report.losses == [Loss("a", 7, 8, True)]
    assert shown["a"].records == {seq: text for seq, text in before.records.items() if seq < 7}


def test_a_segment_file_that_is_damaged_itself_does_not_stand_in_for_the_log() -> None:
    disk = FakeDisk()
    builder = Builder(disk, LARGE)
    builder.put("a")
    for _ in range(8):
        builder.write("a", 5, size=6000)
    builder.put("end")
    disk = stop(builder, disk)
    damage_chunk(disk, 2)
    hit(disk, FrameKind.APPEND, 1)
    report, shown = repaired(disk, LARGE)
    assert report.losses == [Loss("a", 6, 10, True)]
    assert seqs(shown["a"]) == [*range(1, 6), *range(11, 41)]


def test_a_tail_in_front_of_a_segment_file_is_sealed() -> None:
    disk = FakeDisk()
    builder = Builder(disk, ONE_SHARD)
    builder.put("a", TopicConfigPatch())
    builder.write("a", 2)
    disk = disk.crash(Survival.EVERYTHING)
    # The machine restarted: the ceiling leaves a hole behind the two, so they and the following ones are two segments.
    builder = Builder(disk, ONE_SHARD, boot_id="another")
    first = builder.engine.info("a").next_seq
    assert first > 3
    builder.write("a", 6)
    builder.put("end")
    disk = stop(builder, disk)
    for ending in (".data", ".idx"):
        disk.remove(SEGMENT + ending)
    hit(disk, FrameKind.APPEND)
    report, shown = repaired(disk)
    assert not report.losses
    assert seqs(shown["a"]) == [1, 2, *range(first, first + 6)]


def test_a_segment_file_still_knows_the_name() -> None:
    disk = FakeDisk()
    builder = Builder(disk, ONE_SHARD)
    builder.put("a")
    for _ in range(4):
        builder.write("a", 2)
    disk = stop(builder, disk)
    hit(disk, FrameKind.CREATE)
    report, shown = repaired(disk)
    assert not report.losses
    assert seqs(shown["a"]) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_number_of_a_topic_whose_creation_was_lost_is_not_given_out_again(logged: FakeDisk) -> None:
    builder = Builder(logged, LARGE)
    builder.put("forgotten")
    builder.write("a", 1)
    number = builder.engine.core.directory.load("forgotten").id
    disk = stop(builder, logged)
    hit(disk, FrameKind.CREATE, topic_id=number)
    _, shown = repaired(disk)
    assert "forgotten" not in shown
    engine = Engine.recover(disk, LARGE, ManualClock(), SeededEntropy(4), boot_id=BOOT)
    engine.put_topic("new", TopicConfigPatch(), lambda answer: None)
    assert engine.core.directory.load("new").id > number


def test_a_lost_new_config_leaves_the_old_one(logged: FakeDisk) -> None:
    engine = Engine.recover(logged, ONE_SHARD, ManualClock(), SeededEntropy(4), boot_id=BOOT)
    for cap in (5, 6):
        engine.put_topic("a", TopicConfigPatch(durability=Durability.FSYNC, cap_records=cap), lambda answer: None)
    disk = settled(logged.crash(Survival.EVERYTHING))
    hit(disk, FrameKind.CONFIG)
    report, _ = repaired(disk)
    assert not report.losses
    assert any("new configs" in action for action in report.actions)


def test_an_ephemeral_topic_whose_change_to_another_class_was_lost() -> None:
    disk = FakeDisk()
    builder = Builder(disk, LARGE)
    builder.put("a", TopicConfigPatch(durability=Durability.EPHEMERAL, cap_records=50))
    builder.write("a", 3)
    builder.put("a", TopicConfigPatch(durability=Durability.MEMORY, cap_records=60))
    builder.write("a", 2)
    builder.put("end")
    disk = stop(builder, disk)
    hit(disk, FrameKind.CONFIG)
    # The change sealed records that had been in memory only; without these files they are lost, as class ephemeral
    # allows.
    for ending in (".data", ".idx"):
        disk.remove(SEGMENT + ending)
    report, shown = repaired(disk, LARGE)
    assert not report.losses
    assert seqs(shown["a"]) == [4, 5]
    assert shown["a"].reported(3, LossReason.CRASH)
    assert any("class fsync now" in action for action in report.actions)
    engine = Engine.recover(disk, LARGE, ManualClock(), SeededEntropy(4), boot_id=BOOT)
    assert engine.info("a").config.cap_records == 50


def test_a_lost_deletion_and_a_new_topic_of_the_same_name(logged: FakeDisk) -> None:
    engine = Engine.recover(logged, ONE_SHARD, ManualClock(), SeededEntropy(4), boot_id=BOOT)
    engine.drop_topic("a", False, lambda answer: None)
    engine.put_topic("a", TopicConfigPatch(durability=Durability.FSYNC), lambda answer: None)
    disk = settled(logged.crash(Survival.EVERYTHING))
    hit(disk, FrameKind.DROP)
    report, shown = repaired(disk)
    assert seqs(shown["a"]) == []
    assert seqs(shown["recovered-1"]) == [1, 2, 3, 4, 5, 6, 7]
    assert any("a younger one has its name a" in action for action in report.actions)


def test_frames_that_were_wiped_out_together(logged: FakeDisk) -> None:
    (path, first), *_, (_, last) = frames_of(logged)[4:7]
    overwrite(logged, path, first.start, bytes(last.end - first.start))
    report, shown = repaired(logged)
    lost = {name: {*range(1, 7 + (name == "a"))} - {*seqs(shown[name])} for name in ("a", "b")}
    assert lost == {"a": {4, 5}, "b": {1, 2, 3, 4}}
    assert report.losses == [Loss("a", 4, 5, True), Loss("b", 1, 4, True)]


def test_a_missing_log_file() -> None:
    disk = FakeDisk()
    builder = Builder(disk, msgspec.structs.replace(OPTIONS, wal_shards=1, segment_max_events=1000))
    builder.put("a")
    for _ in range(30):
        builder.write("a", 1)
    builder.put("silent")
    disk = stop(builder, disk)
    logs = sorted(path for path in files(disk) if path.endswith(".wal"))
    assert len(logs) > 3
    missing = [frame for path, frame in frames_of(disk) if path == logs[1]]
    disk.remove(logs[1])
    report, shown = repaired(disk)
    (loss,) = report.losses
    assert (loss.topic, loss.sure) == ("a", True)
    assert {*range(1, 31)} - {*seqs(shown["a"])} == {*range(loss.from_seq, loss.to_seq + 1)}
    assert loss.to_seq - loss.from_seq + 1 == len(missing)


def test_the_ceiling_of_class_disk_is_kept_over_a_lost_end() -> None:
    disk = FakeDisk()
    builder = Builder(disk, ONE_SHARD)
    builder.put("plain", TopicConfigPatch())
    builder.write("plain", 2)
    builder.write("plain", 1)
    builder.put("end")
    builder.put("proof")  # Its frame records that all frames before the end are synced.
    ceiling = builder.engine.core.directory.load("plain").ceiling
    disk = stop(builder, disk)
    hit(disk, FrameKind.APPEND, 1, at=0)
    report, _ = repaired(disk)
    assert report.losses == [Loss("plain", 3, max(ceiling, report.losses[0].to_seq), False)]


def test_rot_in_the_unused_rest_of_a_finished_file_costs_nothing() -> None:
    disk = FakeDisk()
    builder = Builder(disk, msgspec.structs.replace(OPTIONS, wal_shards=1))
    builder.put("a")
    for _ in range(12):
        builder.write("a", 1)
    disk = stop(builder, disk)
    path, last = [(path, frame) for path, frame in frames_of(disk) if path == frames_of(disk)[0][0]][-1]
    flip(disk, path, last.end + 3)
    assert not look(disk).sound
    report, shown = repaired(disk)
    assert not report.losses
    assert seqs(shown["a"]) == list(range(1, 13))


# Segments


@pytest.fixture
def chunked() -> FakeDisk:
    """A segment of forty records over several chunks, three of them deleted, named by a snapshot."""
    disk = FakeDisk()
    builder = Builder(disk, LARGE)
    builder.put("big")
    for _ in range(8):
        builder.write("big", 5, size=6000)
    builder.delete("big", tag="tag1")
    builder.checkpoint()
    builder.write("big", 1)
    return stop(builder, disk)


SEGMENT = "/data/topics/0000000000000001/seg-00000000000000000001"


def damage_chunk(disk: FakeDisk, chunk: int) -> None:
    head = decode_head(memoryview(content(disk, SEGMENT + ".data")))
    flip(disk, SEGMENT + ".data", head.text_at + chunk * CHUNK_BYTES + 100)


def test_a_bad_chunk_costs_only_the_records_in_it(chunked: FakeDisk) -> None:
    before = show(chunked, LARGE)[1]
    damage_chunk(chunked, 1)
    (finding,) = look(chunked).findings
    report, shown = repaired(chunked, LARGE)
    (loss,) = report.losses
    assert (loss.from_seq, loss.to_seq) == finding.seq_range
    # A chunk of 64 KiB meets at most twelve records of six kilobytes, wherever they begin.
    assert 10 <= loss.to_seq - loss.from_seq + 1 <= 12
    now = shown["big"]
    assert now.records == {s: text for s, text in before.records.items() if not loss.from_seq <= s <= loss.to_seq}
    assert sorted(chunked.list_dir("/data/topics/0000000000000001")) == sorted(
        f"seg-{first:020d}{ending}" for first in (1, loss.to_seq + 1) for ending in (".data", ".idx")
    )


def test_several_bad_chunks(chunked: FakeDisk) -> None:
    for chunk in (0, 2):
        damage_chunk(chunked, chunk)
    report, shown = repaired(chunked, LARGE)
    assert len(report.losses) == 2
    assert report.losses[0].from_seq == 1
    for loss in report.losses:
        assert shown["big"].reported(loss.from_seq, LossReason.CORRUPT)


def test_a_bad_chunk_and_no_index(chunked: FakeDisk) -> None:
    """The records before the damage are found from the front, the records behind it because they reach the end."""
    before = show(chunked, LARGE)[1]
    damage_chunk(chunked, 1)
    chunked.remove(SEGMENT + ".idx")
    report, shown = repaired(chunked, LARGE)
    (loss,) = report.losses
    assert 10 <= loss.to_seq - loss.from_seq + 1 <= 13
    kept = {s: text for s, text in before.records.items() if not loss.from_seq <= s <= loss.to_seq}
    assert shown["big"].records == kept


@pytest.mark.parametrize("damage", ["removed", "flipped", "cut", "empty"])
def test_an_index_is_made_again_from_the_text(chunked: FakeDisk, damage: str) -> None:
    before, old = show(chunked, LARGE)[1], content(chunked, SEGMENT + ".idx")
    if damage == "removed":
        chunked.remove(SEGMENT + ".idx")
    elif damage == "flipped":
        flip(chunked, SEGMENT + ".idx", 77)
    else:
        cut(chunked, SEGMENT + ".idx", 0 if damage == "empty" else 100)
    report, shown = repaired(chunked, LARGE)
    assert not report.losses
    assert shown["big"].records == before.records
    assert content(chunked, SEGMENT + ".idx") == old


@pytest.mark.parametrize("part", ["magic", "topic", "count", "bias", "name", "checksum", "seal"])
def test_a_header_is_made_again_from_the_state(chunked: FakeDisk, part: str) -> None:
    before, data = show(chunked, LARGE)[1], content(chunked, SEGMENT + ".data")
    head = decode_head(memoryview(data))
    places = {"magic": 0, "topic": 8, "count": 56, "bias": 60, "name": 72}
    at = places.get(part, head.checksums_at if part == "checksum" else head.flags_at - 3)
    flip(chunked, SEGMENT + ".data", at)
    report, shown = repaired(chunked, LARGE)
    assert not report.losses
    assert shown["big"].records == before.records
    assert content(chunked, SEGMENT + ".data") == data


def test_a_cut_file_is_lost_and_kept_aside(chunked: FakeDisk) -> None:
    cut(chunked, SEGMENT + ".data", 100_000)
    data = content(chunked, SEGMENT + ".data")
    report, shown = repaired(chunked, LARGE)
    # Without its checksums nothing in it can be trusted.
    assert report.losses == [Loss("big", 1, 40, True)]
    assert seqs(shown["big"]) == [41]
    assert content(chunked, "/data/damaged-1/topics/0000000000000001/seg-00000000000000000001.data") == data


def test_flags_that_were_cut_off_come_from_the_state(chunked: FakeDisk) -> None:
    before, data = show(chunked, LARGE)[1], content(chunked, SEGMENT + ".data")
    cut(chunked, SEGMENT + ".data", len(data) - 30)
    report, shown = repaired(chunked, LARGE)
    assert not report.losses
    assert shown["big"].records == before.records


def test_damaged_deleted_records_are_not_a_loss() -> None:
    disk = FakeDisk()
    builder = Builder(disk, ONE_SHARD)
    builder.put("a")
    for _ in range(2):
        builder.write("a", 6)
    builder.write("a", 1)
    builder.delete("a", before=6)
    builder.checkpoint()
    disk = stop(builder, disk)
    flip(disk, SEGMENT + ".data", 100)
    report, _ = repaired(disk)
    # Of six records five are below the first live one.
    assert report.losses == [Loss("a", 6, 6, True)]


def test_a_copy_in_the_other_folder_takes_the_place_of_a_damaged_segment() -> None:
    disk = FakeDisk()
    builder = Builder(disk, ONE_SHARD)
    builder.put("a")
    for _ in range(3):
        builder.write("a", 6)
    builder.checkpoint()
    disk = stop(builder, disk)
    engine = Engine.recover(disk, ONE_SHARD, ManualClock(), SeededEntropy(4), boot_id=BOOT)
    # Copied, and killed before a snapshot could name the copies.
    engine.run_job(engine.housekeeper.relocate(engine.core.directory.load("a")))
    disk = settled(disk.crash(Survival.EVERYTHING))
    flip(disk, SEGMENT + ".data", 100)
    report, shown = repaired(disk)
    assert not report.losses
    assert seqs(shown["a"]) == list(range(1, 19))
    assert any("copy in the other folder" in action for action in report.actions)


@pytest.mark.parametrize(
    ("set_in_file", "marked", "lost"),
    [
        # The one unreadable flag is the missing one, or it is none of them.
        ({2: 7}, 1, []),
        ({4: 7}, 1, []),
        # One of two unreadable flags is set and it is unknown which: both records stay deleted, and readers receive the
        # lost range.
        ({2: 7, 4: 7}, 1, [(3, 3), (5, 5)]),
        # More are set than were ever deleted: any of them may have been live.
        ({4: DELETED}, 1, [(3, 3), (5, 5)]),
    ],
)
def test_flags_that_only_the_file_has(set_in_file: dict[int, int], marked: int, lost: list[tuple[int, int]]) -> None:
    from tests.unit.ops.test_verification import forget_flags, restate

    disk = FakeDisk()
    builder = Builder(disk, msgspec.structs.replace(ONE_SHARD, cold_dir=None))
    builder.put("orders")
    builder.write("orders", 6)
    builder.delete("orders", tag="tag3")
    builder.write("orders", 1)
    builder.checkpoint()
    disk = stop(builder, disk)
    restate(disk, forget_flags)
    at = decode_head(memoryview(content(disk, SEGMENT + ".data"))).flags_at
    assert content(disk, SEGMENT + ".data")[at:].count(DELETED) == marked
    for index, value in set_in_file.items():
        overwrite(disk, SEGMENT + ".data", at + index, bytes((value,)))
    report, shown = repaired(disk)
    assert [(loss.from_seq, loss.to_seq) for loss in report.losses] == lost
    gone = {3} | {seq for first, last in lost for seq in range(first, last + 1)}
    assert seqs(shown["orders"]) == sorted({*range(1, 8)} - gone)


# Snapshots


@pytest.fixture
def snapped() -> FakeDisk:
    """Three topics in a snapshot: one sealed, one with a tail, one empty. Nothing is in the log."""
    disk = FakeDisk()
    builder = Builder(disk, ONE_SHARD)
    for name in ("sealed", "tailed", "empty"):
        builder.put(name, TopicConfigPatch(durability=Durability.FSYNC, cap_records=100))
    builder.write("sealed", 6)
    builder.write("tailed", 2)
    builder.write("tailed", 2)
    builder.checkpoint()
    return stop(builder, disk)


SNAPSHOT = "/data/meta/snapshot-0000000000000001.bin"


def hit_snapshot(disk: FakeDisk, kind: FrameKind, topic_id: int, number: int = 0) -> None:
    frames = [
        f for f in find_frames(memoryview(content(disk, SNAPSHOT)), 0) if (f.kind, f.topic_id) == (kind, topic_id)
    ]
    flip(disk, SNAPSHOT, frames[number].start + 50)


def test_a_lost_state_is_made_again_from_segments(snapped: FakeDisk) -> None:
    hit_snapshot(snapped, FrameKind.TOPIC, 1)
    report, shown = repaired(snapped)
    assert seqs(shown["sealed"]) == [1, 2, 3, 4, 5, 6]
    assert any("topic sealed (number 1): its config was lost" in action for action in report.actions)
    # Its tail, if it had one, was in the damaged place: the records that fit into it are reported as possibly lost.
    (loss,) = report.losses
    assert (loss.topic, loss.from_seq, loss.sure) == ("sealed", 7, False)
    engine = Engine.recover(snapped, ONE_SHARD, ManualClock(), SeededEntropy(4))
    assert engine.info("sealed").config.cap_records == 0
    assert engine.info("tailed").config.cap_records == 100


def test_a_lost_state_is_made_again_from_its_tail(snapped: FakeDisk) -> None:
    hit_snapshot(snapped, FrameKind.TOPIC, 2)
    _, shown = repaired(snapped)
    assert seqs(shown["recovered-2"]) == [1, 2, 3, 4]


@pytest.mark.parametrize(("number", "lost"), [(0, (1, 2)), (1, (3, 4))])
def test_a_lost_block_of_a_tail(snapped: FakeDisk, number: int, lost: tuple[int, int]) -> None:
    hit_snapshot(snapped, FrameKind.APPEND, 2, number)
    report, shown = repaired(snapped)
    assert report.losses == [Loss("tailed", *lost, True)]
    assert {*range(1, 5)} - {*seqs(shown["tailed"])} == {*range(lost[0], lost[1] + 1)}


@pytest.mark.parametrize("kind", [FrameKind.SNAPSHOT_HEAD, FrameKind.SNAPSHOT_END])
def test_a_damaged_head_or_end_costs_nothing(snapped: FakeDisk, kind: FrameKind) -> None:
    before = show(snapped, ONE_SHARD)
    hit_snapshot(snapped, kind, 0)
    report, _ = repaired(snapped)
    after = show(snapped, ONE_SHARD)
    assert {i: s.records for i, s in after.items()} == {i: s.records for i, s in before.items()}
    assert not report.losses


@pytest.fixture
def chained() -> tuple[FakeDisk, str]:
    """A full snapshot with two topics and a newer one with four more records of one of them, which is named."""
    disk = FakeDisk()
    builder = Builder(disk, ONE_SHARD)
    for name in ("busy", "quiet"):
        builder.put(name)
        builder.write(name, 2)
    builder.checkpoint(full=True)
    builder.write("busy", 4)
    builder.checkpoint()
    disk = stop(builder, disk)
    return disk, max(path for path in files(disk) if "/snapshot-" in path)


def test_a_snapshot_that_lost_only_its_last_frame_is_complete(chained: tuple[FakeDisk, str]) -> None:
    disk, newest = chained
    flip(disk, newest, len(content(disk, newest)) - 20)
    report, shown = repaired(disk)
    assert not report.losses
    assert (seqs(shown["busy"]), seqs(shown["quiet"])) == ([1, 2, 3, 4, 5, 6], [1, 2])


@pytest.mark.parametrize("length", [0, 30, 100, 150, 200])
def test_a_snapshot_that_was_cut_short(chained: tuple[FakeDisk, str], length: int) -> None:
    """The amount missing is unknown, so it may be as much as a snapshot ever takes in of one topic."""
    disk, newest = chained
    cut(disk, newest, length)
    report, shown = repaired(disk)
    assert seqs(shown["quiet"]) == [1, 2]
    for seq in {*range(1, 7)} - {*seqs(shown["busy"])}:
        assert shown["busy"].reported(seq, LossReason.CORRUPT)
    assert {(loss.topic, loss.from_seq, loss.sure) for loss in report.losses if not loss.sure} >= {("quiet", 3, False)}


def test_a_topic_of_which_only_the_snapshot_knew_is_gone_and_its_number_is_not_given_out_again(
    snapped: FakeDisk,
) -> None:
    hit_snapshot(snapped, FrameKind.TOPIC, 3)
    report, shown = repaired(snapped)
    assert "empty" not in shown
    assert any("is gone" in action for action in report.actions)
    engine = Engine.recover(snapped, ONE_SHARD, ManualClock(), SeededEntropy(4))
    engine.put_topic("new", TopicConfigPatch(), lambda answer: None)
    assert engine.core.directory.load("new").id > 3


def test_nothing_is_left_but_segments(snapped: FakeDisk) -> None:
    for path in [path for path in files(snapped) if "/topics/" not in path]:
        snapped.remove(path)
    report, shown = repaired(snapped)
    assert seqs(shown["sealed"]) == [1, 2, 3, 4, 5, 6]
    assert ("sealed", 7, False) in {(loss.topic, loss.from_seq, loss.sure) for loss in report.losses}


# The folder as a whole


def test_a_sound_folder_is_not_touched(chunked: FakeDisk) -> None:
    before = {path: content(chunked, path) for path in files(chunked)}
    chunked.trace.clear()
    report = mend(chunked)
    assert report.sound
    assert report.after is None
    assert chunked.trace == []
    assert {path: content(chunked, path) for path in files(chunked)} == before


def test_a_dry_run_states_the_same_and_touches_nothing(chunked: FakeDisk) -> None:
    damage_chunk(chunked, 1)
    hit(chunked, FrameKind.APPEND)
    before = {path: content(chunked, path) for path in files(chunked)}
    chunked.trace.clear()
    planned = mend(chunked, dry_run=True)
    assert chunked.trace == []
    assert {path: content(chunked, path) for path in files(chunked)} == before
    done = mend(chunked)
    assert (planned.losses, planned.actions, planned.moved) == (done.losses, done.actions, done.moved)
    assert not planned.sound
    assert done.sound


def test_damaged_files_are_kept_with_a_report(chunked: FakeDisk) -> None:
    damage_chunk(chunked, 1)
    data = content(chunked, SEGMENT + ".data")
    report = mend(chunked)
    assert report.moved_to == ["data/damaged-1"]
    assert report.moved == [f"{SEGMENT.removeprefix('/data/')}{ending}" for ending in (".data", ".idx")]
    assert content(chunked, f"/data/damaged-1/{report.moved[0]}") == data
    kept = msgspec.json.decode(content(chunked, "/data/damaged-1/report.json"), type=RepairReport)
    assert kept.losses == report.losses


def test_damaged_files_of_the_cold_folder_stay_there() -> None:
    disk = FakeDisk()
    builder = Builder(disk, ONE_SHARD)
    builder.put("a")
    for _ in range(3):
        builder.write("a", 6)
    builder.checkpoint()
    builder.to_cold("a")
    builder.checkpoint()
    disk = stop(builder, disk)
    path = next(path for path in files(disk, "/cold") if path.endswith(".data"))
    flip(disk, path, 100)
    report = mend(disk)
    # It may be another disk: moving them would mean copying them.
    assert report.moved_to == ["cold/damaged-1"]
    assert disk.exists(path.replace("/cold/", "/cold/damaged-1/"))


def test_a_repair_in_between_keeps_servers_out(chunked: FakeDisk) -> None:
    damage_chunk(chunked, 1)
    whole, disk = chunked.clone(), chunked.clone()
    mend(whole)
    # Stopped just before the plan, the last thing of a repair, is removed.
    disk.stop_before = next(n for n, call in enumerate(whole.trace, 1) if call == ("remove", "data/repair/plan"))
    with pytest.raises(PowerCut):
        mend(disk)
    disk = disk.crash(Survival.EVERYTHING)
    with pytest.raises(DamageError, match="not finished"):
        Engine.recover(disk.clone(), LARGE, ManualClock(), SeededEntropy(1))
    assert "finished" in mend(disk, dry_run=True).actions[0]
    report = mend(disk)
    assert "finished" in report.actions[-1]
    assert report.losses
    assert show(disk, LARGE)[1].records == show(whole, LARGE)[1].records


def test_another_number_of_shards(chunked: FakeDisk) -> None:
    damage_chunk(chunked, 0)
    mend(chunked)
    engine = Engine.recover(chunked, msgspec.structs.replace(LARGE, wal_shards=3), ManualClock(), SeededEntropy(1))
    assert engine.info("big").head_seq == 41


def test_an_engine_goes_on_where_the_topic_stopped(chunked: FakeDisk) -> None:
    damage_chunk(chunked, 0)
    mend(chunked)
    builder = Builder(chunked, LARGE)
    builder.write("big", 50)
    builder.checkpoint()
    assert builder.engine.info("big").head_seq == 91
    assert look(settled(chunked.crash(Survival.EVERYTHING))).sound
