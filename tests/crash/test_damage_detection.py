"""Damage that no crash explains is never ignored: a start refuses, a read reports the missing range, and nothing is
changed.

Damage that a crash explains, the torn end of the log, is cut off and only logged, because nothing in it was promised.
"""

from collections.abc import Iterator

import msgspec
import pytest
from xxhash import xxh3_64_intdigest

from tests.crash.harness import SMALL, World, dump, read_all
from tests.crash.sweeps import contents
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.log.frame import HEADER_BYTES, Frame, FrameKind, encode_block_head, find_frames, seal_frame
from topics.log.layout import Layout
from topics.log.segment import CHUNK_BYTES
from topics.log.segment_files import SegmentKey
from topics.model.errors import CorruptSegmentError, DamageError, Finding, NewerFormatError
from topics.model.records import Record
from topics.model.router_rules import DeleteSelector, TagMatch
from topics.ops.repair.repair import Repair, verify
from topics.testing import FakeDisk, SeededEntropy, Survival
from topics.wire.record_encoding import encode_fragments

ROOMY = msgspec.structs.replace(SMALL, wal_file_bytes=1 << 16, segment_max_events=1000, disk_reserve_seqs=100)
"""One log file, no segments, and no ceiling that has to be raised, which would be a sync."""
LOG = "data/wal/shard-00/0000000000000001.wal"
FIRST_SNAPSHOT = "data/meta/snapshot-0000000000000001.bin"

each_restart = pytest.mark.parametrize("restarted", [False, True], ids=["killed", "restarted"])


def killed(world: World) -> FakeDisk:
    """The disk as a killed process leaves it: with everything that was written."""
    assert isinstance(world.fs, FakeDisk)
    return world.fs.clone().crash(Survival.EVERYTHING)


def read(disk: FakeDisk, path: str) -> bytes:
    file = disk.open(path)
    return file.read_at(0, file.size())


def put(disk: FakeDisk, path: str, offset: int, data: bytes) -> None:
    """Changes bytes behind everybody's back, for good."""
    file = disk.open(path, write=True)
    file.write_at(offset, data)
    file.sync()


def flip(disk: FakeDisk, path: str, offset: int) -> None:
    put(disk, path, offset, bytes((read(disk, path)[offset] ^ 0x40,)))


def frames(disk: FakeDisk, path: str = LOG) -> list[Frame]:
    return list(find_frames(memoryview(read(disk, path)), 0))


def every_few(frame: Frame) -> Iterator[int]:
    """Bytes all over a frame: its magic, length, numbers, body and checksum."""
    yield from range(frame.start, frame.end, 5)
    yield frame.end - 1


def start(world: World, disk: FakeDisk, restarted: bool) -> World:
    after = World(disk, world.options, world.clock)
    after.start(restarted=restarted)
    return after


def assert_refused(world: World, disk: FakeDisk, restarted: bool) -> Finding:
    """A start refuses, changes nothing, and would refuse again; returns its finding."""
    before = contents(disk)
    before.pop("/data/.topics.lock", None)
    found: list[Finding] = []
    for _ in range(2):
        with pytest.raises(DamageError, match="the data folder is damaged") as refusal:
            start(world, disk, restarted)
        found.append(refusal.value.findings[0])
        after = contents(disk)
        after.pop("/data/.topics.lock")
        assert after == before
    assert found[0] == found[1]
    return found[0]


# The log


@pytest.fixture
def logged() -> World:
    """Six frames: the creation of a topic and five batches, each of them synced, nothing checkpointed."""
    world = World(FakeDisk(), ROOMY)
    world.start()
    for _ in range(5):
        world.append("sure", 1, durability="fsync")
    return world


@each_restart
def test_a_damaged_frame_with_valid_frames_behind_it_stops_the_start(logged: World, restarted: bool) -> None:
    """All frames were synced, and later frames record that, so a restart of the machine does not explain the damage."""
    disk = killed(logged)
    whole = frames(disk)
    for place, frame in enumerate(whole[:-2]):
        for offset in every_few(frame):
            damaged = disk.clone()
            flip(damaged, LOG, offset)
            finding = assert_refused(logged, damaged, restarted)
            assert finding.where == LOG
            assert finding.byte_range == (frame.start, whole[place + 1].start)


def test_a_damaged_frame_that_was_only_written_stops_the_start_unless_the_machine_restarted() -> None:
    """The page cache does not lose a write. A power cut does: then it is a hole, the frames behind it are cut, and the
    loss is reported."""
    world = World(FakeDisk(), ROOMY)
    world.start()
    world.append("sure", 2, durability="fsync")
    world.append("quick", 1)
    world.background_sync()
    for _ in range(3):
        world.append("quick", 1)
    disk = killed(world)
    *_, hole, behind = frames(disk)
    for offset in every_few(hole):
        damaged = disk.clone()
        flip(damaged, LOG, offset)
        finding = assert_refused(world, damaged.clone(), restarted=False)
        assert (finding.where, finding.byte_range) == (LOG, (hole.start, behind.start))

        after = start(world, damaged, restarted=True)
        found = dump(after.engine)
        assert sorted(found["sure"].live) == [1, 2]
        assert sorted(found["quick"].live) == [1, 2]
        ((first, last, reason),) = found["quick"].reported
        assert first == 3 and last >= 4 and reason == "crash"


@each_restart
def test_zeros_in_the_middle_of_the_log_stop_the_start(logged: World, restarted: bool) -> None:
    disk = killed(logged)
    for frame in frames(disk)[:-2]:
        damaged = disk.clone()
        put(damaged, LOG, frame.start, bytes(frame.end - frame.start))
        finding = assert_refused(logged, damaged, restarted)
        assert finding.byte_range == (frame.start, frame.end)


@each_restart
def test_a_torn_last_frame_is_cut(logged: World, restarted: bool) -> None:
    """Whichever byte of it did not make it, everything before it is there and the log goes on behind it."""
    disk = killed(logged)
    last = frames(disk)[-1]
    for offset in every_few(last):
        torn = disk.clone()
        flip(torn, LOG, offset)
        after = start(logged, torn, restarted)
        assert sorted(dump(after.engine)["sure"].live) == [1, 2, 3, 4]
        after.rebase(dump(after.engine))
        after.append("sure", 1)
        again = start(after, torn.crash(Survival.NOTHING), restarted=True)
        assert sorted(dump(again.engine)["sure"].live) == [1, 2, 3, 4, 5]


@each_restart
def test_a_last_frame_cut_short_anywhere_is_cut(logged: World, restarted: bool) -> None:
    disk = killed(logged)
    last = frames(disk)[-1]
    for offset in range(last.start, last.end):
        torn = disk.clone()
        put(torn, LOG, offset, bytes(last.end - offset))
        after = start(logged, torn, restarted)
        assert len(dump(after.engine)["sure"].live) == (5 if offset == last.end else 4)


@each_restart
@pytest.mark.parametrize("missing", [1, 2])
def test_a_missing_log_file_stops_the_start(missing: int, restarted: bool) -> None:
    world = World(FakeDisk(), SMALL)
    world.start()
    for _ in range(4):
        world.append("sure", 1, size=1500, durability="fsync")
    disk = killed(world)
    assert len(disk.list_dir("data/wal/shard-00")) == 4
    disk.remove(f"data/wal/shard-00/{missing:016d}.wal")
    finding = assert_refused(world, disk, restarted)
    if missing == 1:
        assert finding == Finding("data/wal/shard-00", "log file 1 is missing")
    else:
        # The reported place is the end of the contiguous frames. The first file grows where a frame needs it.
        end = frames(disk)[-1].end
        assert (finding.where, finding.byte_range) == (LOG, (end, max(end, SMALL.wal_file_bytes)))


@each_restart
def test_damage_at_the_end_of_a_finished_log_file_stops_the_start(restarted: bool) -> None:
    """A file is synced before the next one takes over, so not even its last frame can be torn."""
    world = World(FakeDisk(), SMALL)
    world.start()
    for _ in range(3):
        world.append("quick", 1, size=1500)
    disk = killed(world)
    last = frames(disk)[-1]
    for offset in every_few(last):
        damaged = disk.clone()
        flip(damaged, LOG, offset)
        finding = assert_refused(world, damaged, restarted)
        assert finding.where == LOG and finding.byte_range is not None
        assert finding.byte_range[0] == last.start


def append_frame(disk: FakeDisk, kind: FrameKind, topic_id: int, head: bytes, tail: bytes = b"") -> None:
    """Writes a frame with right checksums behind the last one, as no engine would."""
    last = frames(disk)[-1]
    put(disk, LOG, last.end, b"".join(seal_frame(kind, topic_id, last.lsn + 1, last.lsn, head, tail)))


@each_restart
def test_frame_of_an_unknown_topic_prevents_the_start(logged: World, restarted: bool) -> None:
    disk = killed(logged)
    append_frame(disk, FrameKind.DROP, 99, b"")
    assert "topic 99, which was never created" in assert_refused(logged, disk, restarted).what


@each_restart
@pytest.mark.parametrize("what", ["kind", "magic", "layout"])
def test_log_of_a_newer_release_is_refused_by_start_verify_and_repair(
    logged: World, restarted: bool, what: str
) -> None:
    disk = killed(logged)
    last = frames(disk)[-1]
    frame = bytearray(read(disk, LOG)[last.start : last.end])
    at, value = {"kind": (32, 99), "magic": (3, ord("2")), "layout": (HEADER_BYTES + 36, 5)}[what]
    frame[at] = value
    frame[8:16] = (last.lsn + 1).to_bytes(8, "little")
    frame[-8:] = xxh3_64_intdigest(frame[:-8]).to_bytes(8, "little")
    put(disk, LOG, last.end, bytes(frame))
    before = contents(disk)
    before.pop("/data/.topics.lock", None)
    layout = Layout("data")
    for refuse in (
        lambda: start(logged, disk, restarted),
        lambda: verify(disk, layout, ""),
        lambda: Repair(disk, layout, logged.clock, SeededEntropy(1), "").run(),
    ):
        with pytest.raises(NewerFormatError, match="A newer release wrote it") as refusal:
            refuse()
        assert refusal.value.where == LOG
        after = contents(disk)
        after.pop("/data/.topics.lock", None)
        assert after == before


@each_restart
def test_records_that_are_missing_from_the_log_stop_the_start(logged: World, restarted: bool) -> None:
    disk = killed(logged)
    text, rows, payload_bytes, traits = encode_fragments([Record.of(1)], 9, 1, None, 0)
    append_frame(
        disk, FrameKind.APPEND, 1, encode_block_head(9, 1, payload_bytes, 0, traits, b"", rows, len(text)), text
    )
    finding = assert_refused(logged, disk, restarted)
    assert (finding.topic, finding.seq_range) == ("sure", (6, 8))


# Snapshots


@pytest.fixture
def snapshotted() -> World:
    """A full snapshot and an incremental one, with a tail, segments, keys and a log behind them."""
    world = World(FakeDisk(), SMALL)
    world.start()
    world.append("sure", 8, key="once", durability="fsync")
    world.append("quick", 3)
    assert world.checkpoint()
    world.append("quick", 1)
    assert world.checkpoint()
    world.append("sure", 1)
    assert dump(world.engine)
    return world


@each_restart
def test_a_damaged_snapshot_stops_the_start(snapshotted: World, restarted: bool) -> None:
    disk = killed(snapshotted)
    names = [name for name in disk.list_dir("data/meta") if name.startswith("snapshot-")]
    assert len(names) == 2
    for name in names:
        path = f"data/meta/{name}"
        for offset in range(0, len(read(disk, path)), 11):
            damaged = disk.clone()
            flip(damaged, path, offset)
            finding = assert_refused(snapshotted, damaged, restarted)
            assert finding.where == path
            if finding.byte_range is not None:
                assert finding.byte_range[0] <= offset < finding.byte_range[1]


@each_restart
def test_a_snapshot_cut_short_stops_the_start(snapshotted: World, restarted: bool) -> None:
    disk = killed(snapshotted)
    for length in range(0, len(read(disk, FIRST_SNAPSHOT)), 17):
        damaged = disk.clone()
        damaged.open(FIRST_SNAPSHOT, write=True).truncate(length)
        assert assert_refused(snapshotted, damaged, restarted).where == FIRST_SNAPSHOT


@each_restart
def test_a_missing_snapshot_stops_the_start(snapshotted: World, restarted: bool) -> None:
    disk = killed(snapshotted)
    for name in disk.list_dir("data/meta"):
        if name.startswith("snapshot-"):
            damaged = disk.clone()
            damaged.remove(f"data/meta/{name}")
            assert assert_refused(snapshotted, damaged, restarted).where == f"data/meta/{name}"


@each_restart
def test_a_missing_segment_stops_the_start(snapshotted: World, restarted: bool) -> None:
    disk = killed(snapshotted)
    for ending in (".data", ".idx"):
        damaged = disk.clone()
        damaged.remove(f"data/topics/0000000000000001/seg-00000000000000000001{ending}")
        finding = assert_refused(snapshotted, damaged, restarted)
        assert (finding.topic, finding.seq_range) == ("sure", (1, 8))


# Segments: they are looked at when they are read, so a start does not depend on how much is stored.

SEGMENT = "data/topics/0000000000000001/seg-00000000000000000001"


@pytest.fixture
def stored() -> World:
    """Twelve records in two segments of four chunks, with hardly two records to a chunk."""
    world = World(FakeDisk(), msgspec.structs.replace(SMALL, wal_file_bytes=1 << 20))
    world.start()
    for number in range(12):
        world.append("sure", 1, tag="even" if number % 2 else "odd", size=CHUNK_BYTES // 2, durability="fsync")
    assert world.checkpoint()
    return world


def damaged(world: World, path: str, offset: int) -> Engine:
    """A new engine on the disk of a killed one, with a byte of a file changed; the start does not mind."""
    disk = killed(world)
    flip(disk, path, offset)
    return start(world, disk, restarted=False).engine


def seqs_from(engine: Engine, cursor: int) -> list[object]:
    result = engine.read_now("sure", ReadRequest(from_seq=cursor, limit=100, max_bytes=1 << 20))
    return [record["$seq"] for record in result.records()]


def test_a_damaged_chunk_is_reported_with_its_records_and_the_others_are_served(stored: World) -> None:
    opened = stored.engine.core.store.open(SegmentKey(1, 1))
    assert opened.head.chunks == 4
    for chunk in range(opened.head.chunks):
        first, last = (1 + index for index in opened.records_in(chunk))
        engine = damaged(stored, SEGMENT + ".data", opened.head.text_at + chunk * CHUNK_BYTES + 7)
        if first > 1:
            assert seqs_from(engine, 0) == list(range(1, first))
        with pytest.raises(CorruptSegmentError) as damage:
            seqs_from(engine, first - 1)
        assert damage.value.detail == {"topic": "sure", "from_seq": first, "to_seq": last}
        assert seqs_from(engine, last) == list(range(last + 1, 13))


def test_a_damaged_index_or_header_is_reported_with_all_its_records_and_the_others_are_served(stored: World) -> None:
    head = stored.engine.core.store.open(SegmentKey(1, 1)).head
    index_bytes = len(read(killed(stored), SEGMENT + ".idx"))
    places = [(".idx", offset) for offset in range(0, index_bytes, 7)]
    places += [(".data", offset) for offset in range(0, head.text_at, 3)]
    places += [(".data", offset) for offset in range(head.checksums_at, head.flags_at, 3)]
    for ending, offset in places:
        engine = damaged(stored, SEGMENT + ending, offset)
        with pytest.raises(CorruptSegmentError) as damage:
            seqs_from(engine, 0)
        assert damage.value.detail == {"topic": "sure", "from_seq": 1, "to_seq": 6}, (ending, offset)
        assert seqs_from(engine, 6) == list(range(7, 13))


def test_a_delete_that_cannot_look_into_a_segment_fails_and_deletes_nothing(stored: World) -> None:
    engine = damaged(stored, SEGMENT + ".idx", 50)
    answers: list[object] = []
    engine.delete_records("sure", DeleteSelector(None, TagMatch("even")), answers.append)
    (answer,) = answers
    assert isinstance(answer, CorruptSegmentError)
    assert answer.detail == {"topic": "sure", "from_seq": 1, "to_seq": 6}
    assert seqs_from(engine, 6) == list(range(7, 13))
    assert engine.info("sure").count == 12


def test_every_byte_of_a_segment_is_guarded(stored: World) -> None:
    """Behind the checksums stand the flags alone, where only the one exact value means deleted."""
    head = stored.engine.core.store.open(SegmentKey(1, 1)).head
    assert head.flags_at + head.count == len(read(killed(stored), SEGMENT + ".data"))
    for offset in range(head.flags_at, head.flags_at + head.count):
        assert seqs_from(damaged(stored, SEGMENT + ".data", offset), 0) == list(range(1, 13))


def test_damage_in_one_topic_does_not_concern_the_others(stored: World) -> None:
    stored.append("other", 3, durability="fsync")
    engine = damaged(stored, SEGMENT + ".idx", 50)
    live, reported = read_all(engine, "other")
    assert sorted(live) == [1, 2, 3] and not reported
