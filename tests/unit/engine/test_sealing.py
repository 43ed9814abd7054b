import errno

import pytest

from tests.unit.conftest import (
    EPHEMERAL,
    after_power_cut,
    append,
    ask_append,
    catch_up,
    checkpoint,
    delete,
    drop,
    eq,
    glob,
    killed,
    move,
    open_engine,
    put,
    read,
    seqs,
    topic,
    values,
)
from topics.engine import sealing as module
from topics.engine.engine import Engine
from topics.log.segment import DELETED
from topics.log.segment_files import SegmentKey
from topics.model.errors import ThrottledError
from topics.model.records import Record
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock
from topics.testing.fake_disk import FakeFile

FOLDER = f"data/topics/{1:016x}"


def extents(engine: Engine, name: str = "t") -> list[tuple[int, int]]:
    return [(segment.first_seq, segment.last_seq) for segment in topic(engine, name).segments]


def tail(engine: Engine, name: str = "t") -> list[int]:
    return [block.first_seq for block in topic(engine, name).tail]


# When


def test_a_tail_is_sealed_when_it_has_enough_records() -> None:
    engine = open_engine(segment_max_events=4)
    for number in range(3):
        append(engine, "t", number)
    assert extents(engine) == []
    append(engine, "t", 3)
    assert (extents(engine), tail(engine)) == ([(1, 4)], [])
    append(engine, "t", 4)
    assert (extents(engine), tail(engine)) == ([(1, 4)], [5])
    assert values(engine, "t") == [0, 1, 2, 3, 4]


def test_a_batch_is_never_divided() -> None:
    engine = open_engine(segment_max_events=4)
    append(engine, "t", 0, 1, 2)
    append(engine, "t", 3, 4, 5, 6, 7, 8)
    assert extents(engine) == [(1, 9)]


def test_a_tail_is_sealed_when_it_has_enough_bytes() -> None:
    engine = open_engine(segment_max_bytes=500)
    append(engine, "t", "x" * 100)
    assert extents(engine) == []
    append(engine, "t", "x" * 400)
    assert extents(engine) == [(1, 2)]


def test_a_tail_is_sealed_when_it_is_old(clock: ManualClock) -> None:
    engine = open_engine(clock=clock, segment_max_age_ms=1000)
    append(engine, "t", 1)
    clock.advance(500)
    append(engine, "t", 2)
    clock.advance(500)
    engine.housekeeper.tick()
    assert extents(engine) == []
    clock.advance(1)
    engine.housekeeper.tick()
    assert extents(engine) == [(1, 2)]


def test_no_age_is_too_old_when_that_is_off(clock: ManualClock) -> None:
    engine = open_engine(clock=clock, segment_max_age_ms=0)
    append(engine, "t", 1)
    clock.advance(10**9)
    engine.housekeeper.tick()
    assert extents(engine) == []


def test_a_large_tail_is_sealed_at_a_checkpoint_and_a_small_one_copied() -> None:
    engine = open_engine(snapshot_inline_bytes=300)
    append(engine, "small", "x" * 50)
    append(engine, "large", "x" * 500)
    assert checkpoint(engine)
    assert (extents(engine, "small"), extents(engine, "large")) == ([], [(1, 1)])


def test_ephemeral_records_are_never_sealed(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock, segment_max_events=2, segment_max_age_ms=10, snapshot_inline_bytes=1)
    put(engine, "t", durability=EPHEMERAL)
    append(engine, "t", *range(10))
    clock.advance(100)
    engine.housekeeper.tick()
    assert checkpoint(engine)
    assert extents(engine) == []
    assert disk.list_dir("data/topics") == []


# Content of sealed segments


def test_a_sealed_segment_is_in_its_files_and_not_in_memory(disk: FakeDisk) -> None:
    engine = open_engine(disk, segment_max_events=2)
    append(engine, "t", 1, 2)
    (segment,) = topic(engine, "t").segments
    assert segment.blocks is None
    assert disk.list_dir(FOLDER) == [f"seg-{1:020d}.data", f"seg-{1:020d}.idx"]
    assert (topic(engine, "t").tail_bytes, topic(engine, "t").tail_count) == (0, 0)
    assert engine.sealer.backlog_bytes == 0


def test_the_files_know_whose_they_are(disk: FakeDisk, clock: ManualClock) -> None:
    engine = open_engine(disk, clock, segment_max_events=3)
    append(engine, "t", Record.of(11, tag="x"), Record.of(22, node="n"))
    clock.advance(5)
    append(engine, "t", Record.of(33, tag="x", meta={}))
    opened = engine.core.store.open(SegmentKey(1, 1))
    head, index = opened.head, opened.index
    assert (head.topic_id, head.epoch, head.name, head.first_seq, head.count) == (1, engine.info("t").epoch, "t", 1, 3)
    assert (head.payload_bytes, head.traits) == (8, 7)
    assert (head.first_ts, head.last_ts) == (clock.now_ms() - 5, clock.now_ms())
    assert index.blocks() == [(0, clock.now_ms() - 5), (2, clock.now_ms())]
    assert (index.tag_at(0), index.postings_at(0)) == (b'"x"', [0, 2])


def test_a_tail_with_deleted_records_is_sealed_with_its_flags(disk: FakeDisk) -> None:
    engine = open_engine(disk, segment_max_events=4)
    append(engine, "t", Record.of(1), Record.of(2, tag="x"), Record.of(3))
    delete(engine, "t", match=eq("x"))
    append(engine, "t", 4)
    assert engine.core.store.open(SegmentKey(1, 1)).flags() == bytes((0, DELETED, 0, 0))
    assert seqs(engine, "t") == [1, 3, 4]


def test_the_text_coordinate_goes_on_across_segments() -> None:
    engine = open_engine(segment_max_events=2)
    append(engine, "t", 1, 2)
    append(engine, "t", 3, 4)
    first, second = (engine.core.store.open(SegmentKey(1, seq)).head for seq in (1, 3))
    assert (first.bias, second.bias) == (0, first.text_bytes + 1)


def test_a_tail_without_anything_live_leaves_no_segment(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1)
    append(engine, "t", 2, tag="x")
    append(engine, "t", 3)
    delete(engine, "t", match=eq("x"))
    delete(engine, "t", before_seq=4)
    move(engine, "t", "sealed")
    assert extents(engine) == []
    assert append(engine, "t", 4).first_seq == 4


def test_a_break_in_the_seqs_ends_a_segment(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1, 2)
    checkpoint(engine)
    after_kill = killed(disk)
    engine = open_engine(after_kill)
    append(engine, "t", 3)
    engine = open_engine(killed(after_kill), boot_id="b")
    append(engine, "t", 4)
    expected = seqs(engine, "t") + seqs(engine, "t", 3)
    assert expected[-1] > 4  # The reserve leaves a hole in the seqs when the machine went down.
    move(engine, "t", "sealed")
    assert len(extents(engine)) == 2
    assert seqs(engine, "t") + seqs(engine, "t", 3) == expected


def test_a_dead_range_behind_a_break_leaves_no_segment(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1, 2)
    engine = open_engine(killed(disk), boot_id="b")
    append(engine, "t", 3, tag="x")
    delete(engine, "t", match=eq("x"))
    assert len(topic(engine, "t").tail) == 2
    move(engine, "t", "sealed")
    assert extents(engine) == [(1, 2)]
    assert seqs(engine, "t") == [1, 2]


# Failures


@pytest.fixture
def faulty(disk: FakeDisk) -> FaultyFileSystem:
    return FaultyFileSystem(disk)


def fail_sealing(faulty: FaultyFileSystem, call: int = 2, fault: Fault = Fault.ENOSPC) -> None:
    """The append goes through, and the n-th call behind it fails once: writing the segment's files."""
    faulty.plan = FaultPlan(call=faulty.calls + call, fault=fault)


@pytest.mark.parametrize("call", range(1, 7))
@pytest.mark.parametrize("fault", [Fault.EIO, Fault.SHORT])
def test_a_segment_that_cannot_be_written_stays_in_memory_and_is_tried_again(
    disk: FakeDisk, faulty: FaultyFileSystem, call: int, fault: Fault
) -> None:
    engine = open_engine(faulty, segment_max_events=4)
    append(engine, "t", 0)
    append(engine, "t", 1, 2)
    fail_sealing(faulty, 1 + call, fault)
    append(engine, "t", 3)
    assert faulty.failed == 1
    assert engine.sealer.failures == 1
    (segment,) = topic(engine, "t").segments
    assert segment.blocks is not None
    assert values(engine, "t") == [0, 1, 2, 3]
    assert delete(engine, "t", before_seq=2).deleted == 1
    engine.housekeeper.tick()
    assert topic(engine, "t").segments[0].blocks is None
    assert (engine.sealer.failures, engine.sealer.backlog_bytes) == (0, 0)
    assert values(engine, "t") == [1, 2, 3]
    assert checkpoint(engine)
    assert values(open_engine(killed(disk)), "t") == [1, 2, 3]


def test_a_failure_is_logged(faulty: FaultyFileSystem, caplog: pytest.LogCaptureFixture) -> None:
    engine = open_engine(faulty, segment_max_events=2)
    append(engine, "t", 0)
    fail_sealing(faulty)
    append(engine, "t", 1)
    assert "segment write failed" in caplog.text


def test_the_next_segment_tries_the_failed_one_first(faulty: FaultyFileSystem) -> None:
    engine = open_engine(faulty, segment_max_events=2)
    append(engine, "t", 0)
    fail_sealing(faulty)
    append(engine, "t", 1)
    append(engine, "t", 2, 3)
    assert [segment.blocks for segment in topic(engine, "t").segments] == [None, None]
    assert engine.sealer.failures == 0


class CrampedDisk(FakeDisk):
    """A disk that has room for everything but segments, while it is full."""

    full = False

    def open(self, path: str, *, write: bool = False, create: bool = False) -> FakeFile:
        if create and self.full and "/seg-" in path:
            raise OSError(errno.ENOSPC, "no room", path)
        return super().open(path, write=write, create=create)


def test_a_checkpoint_that_needs_a_pending_segment_fails_with_it_and_succeeds_later() -> None:
    disk = CrampedDisk()
    engine = open_engine(disk, segment_max_events=2)
    append(engine, "t", 0)
    disk.full = True
    append(engine, "t", 1)
    assert not checkpoint(engine)
    assert engine.checkpointer.failures == 1
    append(engine, "t", 2)
    assert values(open_engine(disk.clone()), "t") == [0, 1, 2]
    disk.full = False
    assert checkpoint(engine)
    assert engine.sealer.failures == 0
    assert values(open_engine(killed(disk)), "t") == [0, 1, 2]


def test_nothing_is_lost_with_the_machine_while_a_segment_is_pending(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    put(engine, "t", durable=True)
    append(engine, "t", 1, 2)
    move(engine, "t", "pending")
    append(engine, "t", 3)
    assert values(open_engine(after_power_cut(disk), boot_id="b"), "t") == [1, 2, 3]


# Changes while a segment is on its way


def test_a_delete_while_it_is_pending_is_not_in_the_file_until_a_checkpoint(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", Record.of(1), Record.of(2, tag="x"))
    move(engine, "t", "pending")
    delete(engine, "t", match=eq("x"))
    catch_up(engine)
    assert engine.core.store.open(SegmentKey(1, 1)).flags() == bytes(2)
    assert seqs(engine, "t") == [1]
    assert checkpoint(engine)
    assert engine.core.store.open(SegmentKey(1, 1)).flags() == bytes((0, DELETED))
    assert seqs(engine, "t") == [1]
    assert seqs(open_engine(killed(disk)), "t") == [1]


def test_a_segment_that_dies_while_it_is_pending_is_not_written(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1, 2)
    move(engine, "t", "pending")
    append(engine, "t", 3)
    delete(engine, "t", before_seq=3)
    catch_up(engine)
    assert not disk.exists(FOLDER)
    assert engine.sealer.backlog_bytes == 0
    assert seqs(engine, "t") == [3]


def test_a_topic_dropped_while_a_segment_is_pending_leaves_no_files(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1, 2)
    move(engine, "t", "pending")
    drop(engine, "t")
    catch_up(engine)
    assert disk.list_dir("data/topics") == []
    assert engine.sealer.backlog_bytes == 0
    assert checkpoint(engine)


def test_a_segment_that_dies_while_it_is_being_written_leaves_no_files(disk: FakeDisk) -> None:
    engine = open_engine(disk)
    append(engine, "t", 1, 2)
    move(engine, "t", "pending")
    append(engine, "t", 3)
    job = engine.sealer._seal_all()
    step = next(job)
    assert step is not None
    delete(engine, "t", before_seq=3)
    step.function()  # type: ignore[union-attr]
    with pytest.raises(StopIteration):
        job.send(None)
    assert disk.list_dir(FOLDER) != []
    assert checkpoint(engine)
    assert disk.list_dir(FOLDER) == []
    assert seqs(open_engine(killed(disk)), "t") == [3]


# Bounds


def test_writers_are_held_back_while_too_much_is_unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKLOG_BYTES", 600)
    engine = open_engine()
    held: list[bool] = []
    engine.sealer.backlog_changed.subscribe(held.append)
    for _ in range(2):
        append(engine, "t", "x" * 500)
        move(engine, "t", "pending")
    assert held == []
    append(engine, "t", "x" * 500)
    move(engine, "t", "pending")
    assert held == [True]
    catch_up(engine)
    assert held[-1] is False
    assert engine.sealer.backlog_bytes == 0


def test_nobody_is_held_back_for_the_segment_that_is_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large it is: otherwise the writers of all topics would wait for every cut of a topic of large records."""
    monkeypatch.setattr(module, "_BACKLOG_BYTES", 600)
    engine = open_engine()
    held: list[bool] = []
    engine.sealer.backlog_changed.subscribe(held.append)
    append(engine, "t", "x" * 5000)
    move(engine, "t", "pending")
    assert held == []


def test_many_bytes_come_later_while_a_segment_is_written_and_they_would_cut_another() -> None:
    engine = open_engine(segment_max_bytes=1000)
    sealer, reported = engine.sealer, list[str]()
    append(engine, "t", "x" * 500)
    append(engine, "other", 1)
    assert not sealer.is_behind(topic(engine, "t"), 5000)
    move(engine, "t", "pending")
    assert sealer.is_behind(topic(engine, "t"), 5000)
    assert not sealer.is_behind(topic(engine, "other"), 500)
    assert not sealer.is_behind(None, 5000)
    sealer.when_written(lambda: reported.append("written"))
    assert reported == []
    catch_up(engine)
    assert reported == ["written"]
    assert not sealer.is_behind(topic(engine, "t"), 5000)


def test_whoever_waits_for_a_segment_hears_that_it_cannot_be_written(faulty: FaultyFileSystem) -> None:
    engine = open_engine(faulty, segment_max_events=2, segment_max_bytes=1000)
    reported: list[bool] = []
    append(engine, "t", 0)
    engine.sealer.when_written(lambda: reported.append(engine.sealer.is_behind(topic(engine, "t"), 5000)))
    fail_sealing(faulty)
    append(engine, "t", 1)
    assert reported == [False]


def test_a_failure_lets_the_writers_go_on(monkeypatch: pytest.MonkeyPatch, faulty: FaultyFileSystem) -> None:
    monkeypatch.setattr(module, "_BACKLOG_BYTES", 10)
    engine = open_engine(faulty)
    held: list[bool] = []
    engine.sealer.backlog_changed.subscribe(held.append)
    for value in range(2):
        append(engine, "t", value)
        move(engine, "t", "pending")
    assert held == [True]
    faulty.plan = FaultPlan(call=faulty.calls + 1, fault=Fault.ENOSPC)
    catch_up(engine)
    assert held == [True, False]
    assert engine.sealer.failures == 1


def test_when_nothing_can_be_written_for_long_writes_are_refused(
    monkeypatch: pytest.MonkeyPatch, faulty: FaultyFileSystem
) -> None:
    monkeypatch.setattr(module, "_BACKLOG_BYTES", 10)
    engine = open_engine(faulty, segment_max_events=2)
    append(engine, "t", 0)
    fail_sealing(faulty)
    append(engine, "t", 1)
    with pytest.raises(ThrottledError) as refused:
        ask_append(engine, "t", 2)
    assert refused.value.detail["retry_after_ms"] == 1000
    assert read(engine, "t").count == 2
    engine.housekeeper.tick()
    append(engine, "t", 2)


def test_idle_is_reported_at_once_or_when_the_last_one_is_written() -> None:
    engine = open_engine()
    reported: list[object] = []
    engine.sealer.when_idle(reported.append)
    assert reported == [None]
    append(engine, "t", 1)
    move(engine, "t", "pending")
    engine.sealer.when_idle(reported.append)
    assert reported == [None]
    catch_up(engine)
    assert reported == [None, None]


def test_deleting_by_tag_works_while_a_segment_is_pending() -> None:
    engine = open_engine()
    append(engine, "t", Record.of(1, tag="x1"), Record.of(2, tag="x2"), Record.of(3, tag="y"))
    move(engine, "t", "pending")
    assert delete(engine, "t", match=glob("x")).deleted == 2
    catch_up(engine)
    assert seqs(engine, "t") == [3]
