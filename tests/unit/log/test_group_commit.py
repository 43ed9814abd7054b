import pytest

from topics.log.commit_requests import CommitTiming, Rotation
from topics.log.frame import Frame, FrameKind, find_frames
from topics.log.group_commit import InlineCommitter, Shard
from topics.log.layout import wal_file
from topics.log.wal import ShardLog, Submission, Writer
from topics.model.errors import DiskFullError, ReadOnlyError, ThrottledError, TopicsError
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, Survival

FOLDER = "wal"

# The calls of a commit into a file that is there, and of the first one, which makes it.
WRITE, SYNC = 1, 2
MAKING = {"create": 1, "allocate": 2, "sync": 3, "sync_dir": 4}
FIRST_WRITE, FIRST_SYNC = 5, 6


class Bench:
    """A shard on a fake disk whose calls can be failed, and the answers to its submissions."""

    def __init__(self, next_lsn: int = 1, queue_bytes_max: int = 1_000_000) -> None:
        self.disk = FakeDisk()
        self.disk.make_dirs(FOLDER)
        self.faulty = FaultyFileSystem(self.disk)
        self.now = 0.0
        log = ShardLog(self.faulty, FOLDER, 1, 10_000)
        self.writer = Writer(3, log, next_lsn - 1, self.seconds)
        self.shard = Shard(3, self.writer, next_lsn, queue_bytes_max)
        committer = self.shard.committer
        assert isinstance(committer, InlineCommitter)
        self.committer = committer
        self.reported: list[tuple[str, object]] = []
        """(name, outcome) in the order of the answers."""
        self.synced_when_told: list[bool] = []

    def seconds(self) -> float:
        return self.now

    def submit(self, name: str, needs_sync: bool = False, size: int = 10) -> "Probe":
        probe = Probe(self, name, self.shard.frame(FrameKind.APPEND, 1, bytes(size)), needs_sync)
        self.shard.submit(probe)
        return probe

    def hold(self) -> None:
        self.committer.hold = True

    def flush(self) -> None:
        self.committer.flush()

    def fail_call(self, number: int, fault: Fault = Fault.EIO) -> None:
        """Fails the n-th call from now on, once."""
        self.faulty.plan = FaultPlan(call=self.faulty.calls + number, fault=fault)

    def operations(self) -> list[str]:
        return [operation for operation, _ in self.disk.trace]

    def frames(self, disk: FakeDisk | None = None, number: int = 1) -> list[Frame]:
        file = (disk or self.disk).open(wal_file(FOLDER, number))
        return list(find_frames(memoryview(file.read_at(0, file.size())), 0))


class Probe(Submission):
    __slots__ = ("_bench", "_name")

    def __init__(self, bench: Bench, name: str, pieces: list[bytes], needs_sync: bool) -> None:
        super().__init__(pieces, needs_sync)
        self._bench = bench
        self._name = name

    def committed(self, timing: CommitTiming) -> None:
        self._bench.reported.append((self._name, timing))
        self._bench.synced_when_told.append(self._bench.operations()[-1] == "sync")

    def failed(self, error: TopicsError) -> None:
        self._bench.reported.append((self._name, error))


def names(bench: Bench) -> list[str]:
    return [name for name, _ in bench.reported]


# Groups


def test_a_lone_submission_is_committed_at_once() -> None:
    bench = Bench()
    bench.submit("a")
    assert names(bench) == ["a"]
    assert [frame.lsn for frame in bench.frames()] == [1]


def test_a_group_is_one_write_and_one_sync() -> None:
    bench = Bench()
    bench.submit("first", needs_sync=True)
    bench.hold()
    for name in "abc":
        bench.submit(name, needs_sync=True)
    bench.disk.trace.clear()
    bench.flush()
    assert bench.operations() == ["write", "sync"]
    assert names(bench) == ["first", "a", "b", "c"]
    assert [frame.lsn for frame in bench.frames()] == [1, 2, 3, 4]


def test_nothing_is_synced_when_nobody_asks() -> None:
    bench = Bench()
    bench.submit("warm")
    bench.disk.trace.clear()
    bench.hold()
    bench.submit("a")
    bench.submit("b")
    bench.flush()
    assert bench.operations() == ["write"]
    assert bench.writer.syncs == 0


def test_those_that_only_need_the_write_are_answered_before_the_sync() -> None:
    bench = Bench()
    bench.hold()
    bench.submit("sync-1", needs_sync=True)
    bench.submit("plain-1")
    bench.submit("sync-2", needs_sync=True)
    bench.submit("plain-2")
    bench.flush()
    assert names(bench) == ["plain-1", "plain-2", "sync-1", "sync-2"]
    assert bench.synced_when_told == [False, False, True, True]


def test_a_synced_group_survives_a_power_cut_when_it_is_answered() -> None:
    bench = Bench()
    bench.submit("a", needs_sync=True)
    assert [frame.lsn for frame in bench.frames(bench.disk.crash(Survival.NOTHING))] == [1]


def test_a_sync_covers_everything_written_before_it() -> None:
    bench = Bench()
    bench.submit("a")
    bench.submit("b", needs_sync=True)
    assert [frame.lsn for frame in bench.frames(bench.disk.crash(Survival.NOTHING))] == [1, 2]


def test_a_submission_without_frames_waits_its_turn_and_writes_nothing() -> None:
    bench = Bench()
    bench.hold()
    bench.submit("framed", needs_sync=True)
    bench.shard.submit(Probe(bench, "empty", [], needs_sync=True))
    bench.flush()
    assert names(bench) == ["framed", "empty"]
    assert bench.writer.synced_lsn == 1


def test_a_group_without_any_frame_is_answered_all_the_same() -> None:
    bench = Bench()
    bench.shard.submit(Probe(bench, "empty", [], needs_sync=True))
    assert names(bench) == ["empty"]
    assert bench.operations().count("write") == 0


def test_what_an_answer_submits_is_committed_too() -> None:
    bench = Bench()

    class Chain(Probe):
        def committed(self, timing: CommitTiming) -> None:
            super().committed(timing)
            self._bench.submit("next")

    bench.shard.submit(Chain(bench, "first", bench.shard.frame(FrameKind.APPEND, 1, b""), False))
    assert names(bench) == ["first", "next"]


def test_the_times_of_the_write_and_the_sync_are_distinguished() -> None:
    bench = Bench()
    ticks = iter(range(100))
    bench.seconds = lambda: next(ticks) / 1000  # type: ignore[method-assign]
    bench.writer.seconds = bench.seconds
    bench.submit("plain")
    bench.submit("sync", needs_sync=True)
    plain, synced = (timing for _, timing in bench.reported)
    assert isinstance(plain, CommitTiming)
    assert isinstance(synced, CommitTiming)
    assert plain.write_ms > 0
    assert plain.sync_ms == 0
    assert synced.sync_ms > 0


# Numbers


def test_frames_are_numbered_without_holes_from_where_the_log_ended() -> None:
    bench = Bench(next_lsn=41)
    bench.submit("a")
    bench.submit("b")
    assert [frame.lsn for frame in bench.frames()] == [41, 42]


def test_a_frame_states_what_was_on_disk_when_it_was_made() -> None:
    bench = Bench()
    bench.submit("a")
    bench.submit("b", needs_sync=True)
    bench.submit("c")
    bench.submit("d")
    assert [frame.synced for frame in bench.frames()] == [0, 0, 2, 2]


def test_what_was_written_during_a_sync_waits_since_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy log, into which the loop writes all the time, is synced once an interval and not without a pause."""
    bench = Bench()
    bench.submit("first")
    log = bench.writer._log
    assert log._file is not None
    whole = log._file.sync

    def sync() -> None:
        bench.now += 0.25
        bench.submit("meanwhile")
        bench.now += 0.25
        whole()

    monkeypatch.setattr(log._file, "sync", sync)
    bench.now = 1.0
    bench.writer.sync()
    assert bench.writer.unsynced_for() == 0.5


def test_a_background_sync_moves_what_is_known_to_be_on_disk() -> None:
    bench = Bench()
    bench.submit("a")
    assert bench.writer.synced_lsn == 0
    bench.writer.sync()
    assert bench.writer.synced_lsn == 1
    assert [frame.lsn for frame in bench.frames(bench.disk.crash(Survival.NOTHING))] == [1]


def test_how_long_something_has_waited_for_a_sync() -> None:
    bench = Bench()
    assert bench.writer.unsynced_for() is None
    bench.now = 5.0
    bench.submit("a")
    bench.now = 6.0
    bench.submit("b")
    bench.now = 7.5
    assert bench.writer.unsynced_for() == 2.5
    bench.writer.sync()
    assert bench.writer.unsynced_for() is None
    bench.submit("c")
    assert bench.writer.unsynced_for() == 0.0


def test_queued_and_logged_bytes_are_counted() -> None:
    bench = Bench()
    bench.hold()
    size = bench.submit("a").size + bench.submit("b").size
    assert (bench.shard.queue_bytes, bench.shard.logged_bytes) == (size, size)
    bench.flush()
    assert (bench.shard.queue_bytes, bench.shard.logged_bytes) == (0, size)
    assert bench.writer.written_bytes == size


def test_a_full_queue_refuses_before_a_number_is_spent() -> None:
    bench = Bench(queue_bytes_max=200)
    bench.hold()
    bench.shard.check_open(10_000)  # An empty queue takes anything, or a large batch could never be written.
    bench.submit("a", size=100)
    bench.shard.check_open(52)
    with pytest.raises(ThrottledError) as refused:
        bench.shard.check_open(53)
    assert refused.value.detail["retry_after_ms"] == 100
    assert bench.shard.next_lsn == 2
    bench.flush()
    bench.shard.check_open(53)


def test_wake_ups_are_batched_by_group() -> None:
    bench = Bench()
    settled: list[int] = []
    bench.shard.committed.subscribe(lambda: settled.append(len(bench.reported)))
    bench.hold()
    bench.submit("plain-1")
    bench.submit("plain-2")
    bench.submit("sync", needs_sync=True)
    bench.flush()
    assert settled == [2, 3]


def test_one_broken_callback_does_not_keep_the_answers_of_others(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()

    class Broken(Probe):
        def committed(self, timing: CommitTiming) -> None:
            raise RuntimeError("broken")

    bench.hold()
    bench.shard.submit(Broken(bench, "broken", bench.shard.frame(FrameKind.APPEND, 1, b""), False))
    bench.submit("after")
    bench.flush()
    assert names(bench) == ["after"]
    assert "commit callback failed" in caplog.text
    assert bench.shard.queue_bytes == 0


# Poison


def test_a_failed_write_fails_the_whole_group_and_is_taken_back() -> None:
    bench = Bench()
    bench.submit("before", needs_sync=True)
    bench.hold()
    bench.submit("plain")
    bench.submit("sync", needs_sync=True)
    bench.fail_call(WRITE, Fault.SHORT)
    bench.flush()
    assert names(bench) == ["before", "plain", "sync"]
    assert all(isinstance(outcome, DiskFullError) for _, outcome in bench.reported[1:])
    assert [frame.lsn for frame in bench.frames()] == [1]


def test_a_failed_sync_takes_a_group_back_that_nobody_was_notified_of() -> None:
    bench = Bench()
    bench.submit("before", needs_sync=True)
    bench.fail_call(SYNC)
    bench.submit("sync", needs_sync=True)
    assert isinstance(bench.reported[-1][1], ReadOnlyError)
    assert [frame.lsn for frame in bench.frames()] == [1]


def test_a_failed_sync_leaves_what_was_answered_before_it() -> None:
    bench = Bench()
    bench.submit("before", needs_sync=True)
    bench.hold()
    bench.submit("plain")
    bench.submit("sync", needs_sync=True)
    bench.fail_call(SYNC)
    bench.flush()
    assert names(bench) == ["before", "plain", "sync"]
    assert isinstance(bench.reported[1][1], CommitTiming)
    assert isinstance(bench.reported[2][1], ReadOnlyError)
    assert [frame.lsn for frame in bench.frames()] == [1, 2, 3]


def test_a_poisoned_shard_takes_nothing_more_and_tries_nothing_again() -> None:
    bench = Bench()
    bench.fail_call(FIRST_SYNC)
    bench.submit("sync", needs_sync=True)
    bench.disk.trace.clear()
    with pytest.raises(ReadOnlyError) as refused:
        bench.shard.check_open()
    assert refused.value.detail["shard"] == 3
    bench.submit("late")
    bench.writer.sync()
    assert isinstance(bench.reported[-1][1], ReadOnlyError)
    assert bench.disk.trace == []
    assert bench.writer.unsynced_for() is None


def test_submissions_after_a_failure_fail_with_it() -> None:
    bench = Bench()
    bench.fail_call(FIRST_WRITE)
    bench.submit("a")
    bench.submit("b", needs_sync=True)
    assert [isinstance(outcome, ReadOnlyError) for _, outcome in bench.reported] == [True, True]


@pytest.mark.parametrize("operation", MAKING)
def test_a_file_that_cannot_be_made_poisons_the_shard(operation: str) -> None:
    bench = Bench()
    bench.fail_call(MAKING[operation])
    bench.submit("a")
    assert isinstance(bench.reported[0][1], ReadOnlyError)
    assert bench.writer.poison is not None


def test_a_failed_background_sync_poisons_the_shard_and_reports_it(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.submit("a")
    bench.fail_call(1)
    bench.writer.sync()
    assert bench.writer.poison is not None
    assert "log shard is read-only" in caplog.text
    assert bench.writer.synced_lsn == 0


# Rotation


def rotate(bench: Bench) -> list[object]:
    outcome: list[object] = []
    bench.committer.rotate(Rotation(outcome.append, outcome.append))
    return outcome


def test_a_rotation_commits_what_is_held_and_reports_the_next_file() -> None:
    bench = Bench()
    bench.hold()
    bench.submit("a")
    assert rotate(bench) == [2]
    assert names(bench) == ["a"]
    assert bench.writer.synced_lsn == 1
    assert [frame.lsn for frame in bench.frames(bench.disk.clone().crash(Survival.NOTHING))] == [1]
    bench.submit("b")
    bench.flush()
    assert [frame.lsn for frame in bench.frames(number=2)] == [2]


def test_a_rotation_of_an_empty_log_reports_the_file_that_will_come() -> None:
    bench = Bench()
    assert rotate(bench) == [1]
    assert rotate(bench) == [1]


def test_a_rotation_that_cannot_sync_fails_and_poisons() -> None:
    bench = Bench()
    bench.submit("a")
    bench.fail_call(1)
    (error,) = rotate(bench)
    assert isinstance(error, ReadOnlyError)
    assert bench.writer.poison is error


def test_a_poisoned_shard_does_not_rotate() -> None:
    bench = Bench()
    bench.fail_call(FIRST_WRITE)
    bench.submit("a")
    assert isinstance(rotate(bench)[0], ReadOnlyError)


def test_closing_commits_syncs_and_lets_go() -> None:
    bench = Bench()
    bench.hold()
    bench.submit("a")
    bench.committer.close()
    assert names(bench) == ["a"]
    assert [frame.lsn for frame in bench.frames(bench.disk.crash(Survival.NOTHING))] == [1]


def test_a_submission_states_itself_what_happens() -> None:
    submission = Submission([b"ab", b"c"], False)
    assert submission.size == 3
    with pytest.raises(NotImplementedError):
        submission.committed(CommitTiming())
    with pytest.raises(NotImplementedError):
        submission.failed(TopicsError("x"))
