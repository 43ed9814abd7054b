import errno

import pytest

from tests.unit.conftest import (
    DISK,
    EPHEMERAL,
    FSYNC,
    LOCAL,
    MEMORY,
    after_power_cut,
    append,
    ask_append,
    checkpoint,
    delete,
    drop,
    eq,
    hold,
    killed,
    move,
    open_engine,
    open_with_cold,
    put,
    read,
    seqs,
    topic,
    values,
)
from topics.engine.engine import Engine
from topics.log.frame import FrameKind, encode_block_head, encode_create, encode_evict, seal_frame
from topics.log.layout import wal_file
from topics.model.errors import DamageError
from topics.model.records import Record
from topics.model.seq_ranges import LossReason, LostRange
from topics.model.topic_config import DEFAULT_CONFIG, Durability, encode_config
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock, PowerCut, Survival
from topics.wire.record_encoding import encode_fragments

SHARD = "data/wal/shard-00"


def state(engine: Engine) -> list[tuple[object, ...]]:
    """The state by which a caller could distinguish two engines."""
    found: list[tuple[object, ...]] = []
    for info in engine.list_topics():
        name = info.topic
        own = topic(engine, name)
        records = []
        cursor, tombstones = 0, []
        while True:
            result = read(engine, name, cursor, include_tags=True)
            records += result.records()
            tombstones.append(result.tombstone)
            if result.caught_up:
                break
            cursor = result.next_from_seq
        floors = (own.evict_floor, own.cap_floor, own.ttl_floor)
        found.append((name, info.epoch, info.head_seq, info.earliest_seq, info.count, info.bytes, info.config, floors))
        found.append((tuple(map(str, records)), tuple(tombstones), str(dict(own.keys or {})), str(own.lost)))
    return found


def busy(disk: FakeDisk, clock: ManualClock, **options: object) -> Engine:
    """An engine that has done a bit of everything, with a checkpoint in the middle."""
    engine = open_engine(disk, clock, segment_max_events=5, **options)  # type: ignore[arg-type]
    put(engine, "cap", cap_records=4)
    put(engine, "ttl", ttl_ms=1000)
    put(engine, "eph", durability=EPHEMERAL)
    for number in range(12):
        append(engine, "log", Record.of(number, tag="ab"[number % 2], node="n"))
        append(engine, "cap", number)
        append(engine, "ttl", number, key=f"k{number}")
        append(engine, "eph", number)
        clock.advance(150)
        if number == 5:
            delete(engine, "log", match=eq("a"))
            append(engine, "gone", number)
            assert checkpoint(engine)
        if number == 8:
            delete(engine, "log", before_seq=4)
            drop(engine, "gone")
            put(engine, "log", durability=FSYNC)
    engine.info("ttl")
    return engine


# Replay is the live path


def test_a_killed_process_loses_nothing_that_was_logged(disk: FakeDisk, clock: ManualClock) -> None:
    engine = busy(disk, clock)
    before = {name: (values(engine, name), engine.info(name).earliest_seq) for name in ("log", "cap", "ttl")}
    after = open_engine(killed(disk), clock, segment_max_events=5)
    assert {name: (values(after, name), after.info(name).earliest_seq) for name in before} == before
    assert [info.topic for info in after.list_topics()] == ["cap", "eph", "log", "ttl"]


def test_recovering_twice_changes_nothing(disk: FakeDisk, clock: ManualClock) -> None:
    busy(disk, clock)
    first = open_engine(killed(disk), clock, segment_max_events=5)
    found = state(first)
    for _ in range(3):
        # Each time the last one is killed right after its start.
        disk = killed(first._fs)  # type: ignore[arg-type]
        first = open_engine(disk, clock, segment_max_events=5)
        assert state(first) == found


def test_an_ephemeral_topic_goes_on_above_what_a_killed_process_may_have_given_out(disk: FakeDisk) -> None:
    put(open_engine(disk), "t", durability=EPHEMERAL)
    heads = []
    for wrote in (False, True, False, False):
        disk = killed(disk)
        engine = open_engine(disk)
        heads.append(engine.info("t").head_seq)
        if wrote:
            append(engine, "other", 1)
    assert heads == [256, 256, 512, 512]


def test_a_start_without_anything_new_writes_no_snapshot(disk: FakeDisk, clock: ManualClock) -> None:
    busy(disk, clock).close_inline()
    names = disk.list_dir("data/meta")
    open_engine(disk, clock, segment_max_events=5).close_inline()
    disk.trace.clear()
    engine = open_engine(disk, clock, segment_max_events=5)
    assert not [path for operation, path in disk.trace if operation in ("write", "rename", "remove")]
    assert len(disk.list_dir("data/meta")) >= len(names) - 1
    assert engine.checkpointer.completed == 0


def test_snapshots_and_the_whole_log_agree(clock: ManualClock) -> None:
    """The same history, once with a checkpoint after every step and once without any."""
    steps = [
        lambda engine: put(engine, "t", cap_records=6, durability=FSYNC),
        lambda engine: append(engine, "t", *[Record.of(n, tag="ab"[n % 2]) for n in range(5)], key="k1"),
        lambda engine: delete(engine, "t", match=eq("a")),
        lambda engine: append(engine, "t", 1, 2, 3, key="k2"),
        lambda engine: put(engine, "t", cap_records=4, ttl_ms=5000, durability=FSYNC),
        lambda engine: append(engine, "t", 4),
        lambda engine: delete(engine, "t", before_seq=6),
        lambda engine: append(engine, "t", Record.of(5, tag="a"), Record.of(6)),
        lambda engine: delete(engine, "t", match=eq("a")),
    ]
    found = []
    for with_checkpoints in (True, False):
        disk = FakeDisk()
        engine = open_engine(disk, clock, segment_max_events=3)
        for step in steps:
            step(engine)  # type: ignore[no-untyped-call]
            if with_checkpoints:
                assert checkpoint(engine)
        live = state(engine)
        after = open_engine(killed(disk), clock, segment_max_events=3)
        assert state(after) == live
        found.append(live)
    assert found[0] == found[1]


# The classes


@pytest.mark.parametrize("durability", LOCAL)
def test_what_a_killed_process_leaves_of_each_class(disk: FakeDisk, durability: Durability) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=durability)
    append(engine, "t", 1)
    append(engine, "t", 2)
    after = open_engine(killed(disk))
    assert values(after, "t") == ([] if durability is EPHEMERAL else [1, 2])
    assert append(after, "t", 3).first_seq >= 3
    lost = topic(after, "t").lost
    assert (lost is not None) == (durability is EPHEMERAL)


@pytest.mark.parametrize("durability", LOCAL)
def test_what_a_power_cut_leaves_of_each_class(disk: FakeDisk, durability: Durability) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=durability)
    append(engine, "t", 1)
    append(engine, "t", 2)
    after = open_engine(after_power_cut(disk), boot_id="b")
    expected: dict[Durability, list[object]] = {EPHEMERAL: [], MEMORY: [], DISK: [], FSYNC: [1, 2]}
    assert values(after, "t") == expected[durability]
    first = append(after, "t", 3).first_seq
    assert first == 1 if durability is MEMORY else first >= 3


def test_nothing_in_flight_is_there_after_a_crash(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=FSYNC)
    hold(engine)
    assert ask_append(engine, "t", 1) == []
    assert values(open_engine(killed(disk)), "t") == []


def test_an_ephemeral_topic_remembers_one_lost_range_however_often_it_restarts(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1, 2, 3)
    put(engine, "t", durability=EPHEMERAL)
    append(engine, "t", 4, 5)
    for _ in range(3):
        engine.close_inline()
        engine = open_engine(disk)
        lost = topic(engine, "t").lost
        assert lost is not None
        assert len(lost) == 1
        assert lost[0].from_seq == 4
    assert values(engine, "t") == [1, 2, 3]


def test_ephemeral_seqs_go_on(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=EPHEMERAL)
    append(engine, "t", 1)
    append(engine, "t", 2)
    after = open_engine(killed(disk))
    assert append(after, "t", 3).first_seq > 2
    assert topic(after, "t").lost == [LostRange(1, after.info("t").head_seq - 1, LossReason.CRASH, 0)]


def test_an_ephemeral_topic_knows_the_keys_of_what_survived_only(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t")
    append(engine, "t", 1, 2, key="kept")
    put(engine, "t", durability=EPHEMERAL)
    append(engine, "t", 3, 4, key="gone")
    engine.close_inline()
    engine = open_engine(disk)
    assert values(engine, "t") == [1, 2]
    assert append(engine, "t", 9, key="kept").deduped
    assert not append(engine, "t", 3, 4, key="gone").deduped
    assert append(engine, "t", 3, 4, key="gone").deduped
    assert engine.info("t").count == 4


# Torn tails and damage


def cut_log(disk: FakeDisk, number: int, by: int) -> None:
    """Turns the last bytes that were written into a log file into zeros."""
    file = disk.open(wal_file(SHARD, number), write=True)
    data = file.read_at(0, file.size()).rstrip(b"\0")
    file.write_at(len(data) - by, bytes(by))


def test_a_torn_tail_is_cut_and_stated(disk: FakeDisk, caplog: pytest.LogCaptureFixture) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=MEMORY)
    append(engine, "t", 1)
    append(engine, "t", 2)
    cut_log(disk, 1, 20)
    after = open_engine(killed(disk))
    assert values(after, "t") == [1]
    assert "torn log tail skipped" in caplog.text
    assert append(after, "t", "again").first_seq == 2
    assert values(open_engine(killed(after._fs)), "t") == [1, "again"]  # type: ignore[arg-type]


def test_damage_before_valid_frames_refuses_the_start_and_changes_nothing(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", durability=FSYNC)
    for number in range(3):
        append(engine, "t", number)
    crashed = killed(disk)
    file = crashed.open(wal_file(SHARD, 1), write=True)
    file.write_at(300, b"damage")
    file.sync()
    crashed.trace.clear()
    with pytest.raises(DamageError) as raised:
        open_engine(crashed)
    (finding,) = raised.value.findings
    assert finding.where == wal_file(SHARD, 1)
    assert finding.byte_range is not None
    assert finding.byte_range[0] <= 300 < finding.byte_range[1]
    changed = [(operation, path) for operation, path in crashed.trace if operation in ("write", "remove", "truncate")]
    assert changed == []


def write_log(disk: FakeDisk, *frames: list[bytes]) -> None:
    disk.make_dirs(SHARD)
    file = disk.open(wal_file(SHARD, 1), create=True)
    file.allocate(65_536)
    file.write_at(0, b"".join(piece for frame in frames for piece in frame))


def create_frame(lsn: int, topic_id: int, name: str) -> list[bytes]:
    return seal_frame(
        FrameKind.CREATE, topic_id, lsn, 0, encode_create(topic_id, 1, name, encode_config(DEFAULT_CONFIG))
    )


def append_frame(lsn: int, topic_id: int, first_seq: int) -> list[bytes]:
    text, rows, payload, traits = encode_fragments([Record.of(1)], first_seq, 1, None, 0)
    head = encode_block_head(first_seq, 1, payload, 0, traits, b"", rows, len(text))
    return seal_frame(FrameKind.APPEND, topic_id, lsn, 0, head, text)


def test_of_two_topics_with_the_same_name_the_younger_counts(disk: FakeDisk) -> None:
    # The first creation failed for its caller after its frame was in the log; then the name was asked for again.
    write_log(disk, create_frame(1, 7, "t"), create_frame(2, 8, "t"), append_frame(3, 8, 1))
    engine = open_engine(disk)
    assert (engine.info("t").epoch, seqs(engine, "t")) == (8, [1])
    assert list(engine.core.topics) == [8]


def test_a_log_written_by_hand_is_read(disk: FakeDisk) -> None:
    write_log(disk, create_frame(1, 7, "t"), append_frame(2, 7, 1), append_frame(3, 7, 2))
    engine = open_engine(disk)
    assert seqs(engine, "t") == [1, 2]
    append(engine, "new", 1)
    assert engine.core.directory.load("new").id == 8
    assert engine.info("new").epoch > 8


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        ([append_frame(1, 7, 1)], "frame 1 refers to topic 7, which was never created"),
        ([create_frame(1, 7, "t"), append_frame(2, 7, 3)], "records 1 to 2 are missing"),
        (
            [
                create_frame(1, 7, "t"),
                seal_frame(FrameKind.DROP, 7, 2, 0, b""),
                seal_frame(FrameKind.EVICT, 7, 3, 0, encode_evict(2, True)),
            ],
            "frame 3 refers to topic 7, which was never created",
        ),
    ],
)
def test_a_log_that_contradicts_itself_refuses_the_start(disk: FakeDisk, frames: list[list[bytes]], what: str) -> None:
    write_log(disk, *frames)
    with pytest.raises(DamageError) as raised:
        open_engine(disk)
    assert raised.value.findings[0].what == what


def test_a_missing_segment_refuses_the_start_and_names_its_records(disk: FakeDisk) -> None:
    engine = open_engine(disk, segment_max_events=2)
    append(engine, "t", 1, 2)
    append(engine, "t", 3, 4)
    engine.close_inline()
    disk.remove(f"data/topics/{1:016x}/seg-{3:020d}.idx")
    with pytest.raises(DamageError) as raised:
        open_engine(disk, segment_max_events=2)
    (finding,) = raised.value.findings
    assert (finding.topic, finding.seq_range) == ("t", (3, 4))


def test_a_start_on_a_full_disk_takes_nothing_for_damage(disk: FakeDisk) -> None:
    """Recovery seals the records of the log, and those it cannot write are still in the log."""
    engine = open_engine(disk, segment_max_events=100)
    append(engine, "t", *range(4))
    crashed = killed(disk)
    full = FaultyFileSystem(crashed, FaultPlan(call=1, fault=Fault.ENOSPC, lasting=True, within="data/topics/0"))
    with pytest.raises(OSError) as raised:
        open_engine(full, segment_max_events=2)
    assert raised.value.errno == errno.ENOSPC
    assert seqs(open_engine(killed(crashed), segment_max_events=2), "t") == [1, 2, 3, 4]


def test_a_cold_segment_needs_the_cold_folder(disk: FakeDisk) -> None:
    engine = open_with_cold(disk)
    append(engine, "t", 1, 2)
    move(engine, "t", "cold")
    engine.close_inline()
    with pytest.raises(DamageError) as raised:
        open_engine(disk)
    assert raised.value.findings[0].what == "it was moved to a cold folder, and none is set now"
    assert values(open_with_cold(disk), "t") == [1, 2]


def test_a_damaged_segment_that_the_log_looks_into_refuses_the_start(disk: FakeDisk) -> None:
    engine = open_engine(disk, segment_max_events=2)
    append(engine, "t", Record.of(1, tag="x"), Record.of(2))
    checkpoint(engine)
    delete(engine, "t", match=eq("x"))
    crashed = killed(disk)
    crashed.open(f"data/topics/{1:016x}/seg-{1:020d}.idx", write=True).write_at(0, b"x")
    with pytest.raises(DamageError) as raised:
        open_engine(crashed, segment_max_events=2)
    assert raised.value.findings[0].topic == "t"


def test_the_folder_is_free_after_a_refused_start(disk: FakeDisk) -> None:
    write_log(disk, append_frame(1, 7, 1))
    for _ in range(2):
        with pytest.raises(DamageError):
            open_engine(disk)


# Orphans


def test_segments_nobody_names_are_removed(disk: FakeDisk) -> None:
    engine = open_engine(disk, segment_max_events=2)
    append(engine, "t", 1, 2)
    checkpoint(engine)
    append(engine, "gone", 1, 2)
    drop(engine, "gone")
    crashed = killed(disk)
    crashed.open(f"data/topics/{1:016x}/seg-{9:020d}.data", create=True)
    after = open_engine(crashed, segment_max_events=2)
    assert crashed.list_dir("data/topics") == [f"{1:016x}"]
    assert crashed.list_dir(f"data/topics/{1:016x}") == [f"seg-{1:020d}.data", f"seg-{1:020d}.idx"]
    assert values(after, "t") == [1, 2]


def test_what_is_not_ours_is_left_alone(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1)
    for _ in range(2):
        append(engine, "gone", 1)
        drop(engine, "gone")
    engine.close_inline()
    ours, dead = f"data/topics/{1:016x}", f"data/topics/{2:016x}"
    foreign = ["data/topics/lost+found/x", f"{ours}/notes.txt", f"{ours}/.snapshot/x", f"{dead}/mine"]
    for path in foreign:
        disk.make_dirs(path.rpartition("/")[0])
        disk.open(path, create=True).close()
    disk.open(f"data/topics/{3:016x}", create=True).close()
    disk.open(f"{dead}/seg-00000000000000000001.data", create=True).close()
    again = open_engine(disk)
    assert seqs(again, "t") == [1]
    assert all(disk.exists(path) for path in foreign)
    assert disk.list_dir(dead) == ["mine"]


def test_they_are_removed_only_when_the_snapshot_does_not_name_them_any_more(disk: FakeDisk) -> None:
    """A start that stops anywhere can be repeated: nothing is removed that the next one still needs."""
    engine = open_engine(disk, segment_max_events=4)
    for number in range(6):
        append(engine, "t", number, tag="ab"[number % 2])
    checkpoint(engine)
    delete(engine, "t", match=eq("a"))
    delete(engine, "t", match=eq("b"))
    append(engine, "t", "last")
    crashed = killed(disk)
    probe = crashed.clone()
    open_engine(probe, segment_max_events=4)
    for calls in range(1, probe.call_count + 1):
        stopped = crashed.clone()
        stopped.stop_after = calls
        try:
            open_engine(stopped, segment_max_events=4)
        except PowerCut:
            pass
        after = open_engine(stopped.crash(Survival.EVERYTHING), segment_max_events=4)
        assert values(after, "t") == ["last"], calls


def test_a_replay_keeps_no_more_in_memory_than_the_live_engine(disk: FakeDisk) -> None:
    engine = open_engine(disk, segment_max_events=1_000_000)
    for number in range(20):
        append(engine, "t", number)
    after = open_engine(killed(disk), segment_max_events=5)
    assert len(topic(after, "t").segments) == 4
    assert topic(after, "t").tail == []
    assert values(after, "t") == list(range(20))


def test_a_state_that_cannot_be_made_durable_is_no_start_and_can_be_tried_again(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1, 2)
    crashed = killed(disk)
    probe = FaultyFileSystem(crashed.clone())
    open_engine(probe)
    renamed = 1 + next(n for n, (operation, path) in enumerate(probe.trace) if "snapshot-" in path)
    faulty = FaultyFileSystem(crashed, FaultPlan(call=renamed))
    with pytest.raises(OSError, match="injected EIO"):
        open_engine(faulty)
    assert values(open_engine(crashed), "t") == [1, 2]


# Shards


@pytest.mark.parametrize("counts", [(1, 2), (2, 1), (1, 3, 2), (4, 1, 4), (2, 2)])
@pytest.mark.parametrize("clean", [True, False])
def test_the_number_of_shards_may_change_with_every_start(counts: tuple[int, ...], clean: bool) -> None:
    disk = FakeDisk()
    names = [f"t{number}" for number in range(8)]
    expected: list[int] = []
    for count in counts:
        engine = open_engine(disk, wal_shards=count)
        for name in names:
            put(engine, name, durability=FSYNC)
            assert values(engine, name) == expected
            append(engine, name, len(expected))
        expected.append(len(expected))
        if clean:
            engine.close_inline()
        else:
            disk = killed(disk)
    engine = open_engine(disk, wal_shards=counts[-1])
    assert all(values(engine, name) == expected for name in names)


def test_a_start_with_fewer_shards_can_stop_anywhere(disk: FakeDisk) -> None:
    engine = open_engine(disk, wal_shards=2)
    for name in "abcd":
        append(engine, name, 1)
    checkpoint(engine)
    for name in "abcd":
        append(engine, name, 2)
    crashed = killed(disk)
    probe = crashed.clone()
    open_engine(probe, wal_shards=1)
    for calls in range(1, probe.call_count + 1):
        stopped = crashed.clone()
        stopped.stop_after = calls
        try:
            open_engine(stopped, wal_shards=1)
        except PowerCut:
            pass
        once = stopped.crash(Survival.EVERYTHING)
        after = open_engine(once, wal_shards=1)
        assert all(values(after, name) == [1, 2] for name in "abcd"), calls
        for name in "abcd":
            append(after, name, 3)
        again = open_engine(killed(once), wal_shards=1)
        assert all(values(again, name) == [1, 2, 3] for name in "abcd"), calls


def test_logs_of_shards_no_longer_used_are_removed(disk: FakeDisk) -> None:
    engine = open_engine(disk, wal_shards=2)
    for name in "abcd":
        append(engine, name, 1)
    crashed = killed(disk)
    open_engine(crashed, wal_shards=1)
    assert crashed.list_dir("data/wal/shard-01") == []


# Progress


@pytest.mark.parametrize("wal_shards", [1, 4])
def test_progress_is_reported_and_ends_with_one(disk: FakeDisk, wal_shards: int) -> None:
    engine = open_engine(disk, wal_file_bytes=4096, wal_shards=wal_shards)
    for number in range(50):
        append(engine, f"t{number % 7}", "x" * 100, number)
    reported: list[float] = []
    open_engine(killed(disk), progress=reported.append)
    assert len(reported) > 10
    assert reported == sorted(reported)
    assert all(0.0 <= part <= 1.0 for part in reported)
    assert reported[-1] == 1.0
    assert reported[len(reported) // 2] < 1.0


def test_an_empty_folder_is_done_at_once(disk: FakeDisk) -> None:
    reported: list[float] = []
    open_engine(disk, progress=reported.append)
    assert reported == [1.0]


# Other state that survives


def test_infos_survive_a_restart(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock)
    append(engine, "t", 1)
    clock.advance(1000)
    append(engine, "t", 2)
    written = engine.info("t").last_write_ts
    clock.advance(1000)
    after = open_engine(killed(disk), clock)
    assert after.info("t", touch=False).last_write_ts == written
    checkpoint(after)
    again = open_engine(killed(after._fs), clock)  # type: ignore[arg-type]
    assert again.info("t", touch=False).last_write_ts == written
    # The last read is not worth a write.
    assert again.info("t", touch=False).last_read_ts is None


def test_the_shape_of_a_text_coordinate_survives(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1, 2)
    checkpoint(engine)
    after = open_engine(killed(disk))
    append(after, "t", 3)
    move(after, "t", "sealed")
    # Blocks from before and behind the restart fit into one segment, because the coordinate went on.
    assert values(after, "t") == [1, 2, 3]
