"""The writer's thread with a real event loop. Waiting is bounded by a timeout that only a hang can reach."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from topics.log.commit_requests import CommitTiming, Rotation
from topics.log.commit_thread import CommitThread
from topics.log.frame import FrameKind, find_frames
from topics.log.group_commit import SINGLE_CALLER_GROUPS, SYNC_AT_ONCE_BYTES, InlineSyncPolicy, Shard
from topics.log.layout import wal_file
from topics.log.wal import ShardLog, Submission, Writer
from topics.model.errors import ReadOnlyError, TopicsError
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, Survival

FOLDER = "wal"
NEVER_S = 3600.0
AT_ONCE_BYTES = 1024 * 1024


class Bench:
    """A shard whose writer runs on a thread, on a fake disk."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sync_s: float = NEVER_S, window_s: float = 0.0) -> None:
        self.disk = FakeDisk()
        self.disk.make_dirs(FOLDER)
        self.faulty = FaultyFileSystem(self.disk)
        self.log = ShardLog(self.faulty, FOLDER, 1, 1_000_000)
        self.writer = Writer(0, self.log, 0, time.monotonic)
        # On a busy machine any write may seem to have waited.
        self.writer.stall_s = NEVER_S
        self.shard = Shard(0, self.writer, 1, 1_000_000)
        self.loop = loop
        self.deferred: list[Callable[[], None]] = []
        self.wake_ups = 0
        self.reported: list[tuple[str, object]] = []
        self.told_on: set[int] = set()
        self.changed = asyncio.Event()
        self.heard = 0
        self.syncs = InlineSyncPolicy(lambda: self.heard)
        self.committer = CommitThread(self.shard, self.defer, self.wake, window_s, sync_s, self.syncs)
        self.shard.committer = self.committer

    def defer(self, function: Callable[[], None]) -> None:
        self.deferred.append(function)
        self.loop.call_soon(function)

    def wake(self, function: Callable[[], None]) -> None:
        self.wake_ups += 1
        self.loop.call_soon_threadsafe(function)

    def submit(self, name: str, needs_sync: bool = False, size: int = 10) -> None:
        pieces = self.shard.frame(FrameKind.APPEND, 1, bytes(size))
        self.shard.submit(Probe(self, name, pieces, needs_sync))

    async def until(self, count: int) -> list[str]:
        """Waits for that many answers; returns the names in the order of the answers."""
        while len(self.reported) < count:
            self.changed.clear()
            await self.changed.wait()
        return [name for name, _ in self.reported]

    async def synced(self) -> None:
        """Waits until the background sync has caught up."""
        while self.log.unsynced:
            await asyncio.sleep(0.001)

    def lsns(self, disk: FakeDisk | None = None, number: int = 1) -> list[int]:
        file = (disk or self.disk).open(wal_file(FOLDER, number))
        return [frame.lsn for frame in find_frames(memoryview(file.read_at(0, file.size())), 0)]


class Probe(Submission):
    __slots__ = ("_bench", "_name")

    def __init__(self, bench: Bench, name: str, pieces: list[bytes], needs_sync: bool) -> None:
        super().__init__(pieces, needs_sync)
        self._bench = bench
        self._name = name

    def committed(self, timing: CommitTiming) -> None:
        self._report(timing)

    def failed(self, error: TopicsError) -> None:
        self._report(error)

    def _report(self, outcome: object) -> None:
        self._bench.reported.append((self._name, outcome))
        self._bench.told_on.add(threading.get_ident())
        self._bench.changed.set()


def run(test: Callable[[Bench], Coroutine[Any, Any, None]], sync_s: float = NEVER_S, window_s: float = 0.0) -> None:
    async def bounded() -> None:
        bench = Bench(asyncio.get_running_loop(), sync_s, window_s)
        try:
            async with asyncio.timeout(5):
                await test(bench)
        finally:
            bench.committer.close()

    asyncio.run(bounded())


def test_a_submission_is_answered_on_the_loop() -> None:
    async def test(bench: Bench) -> None:
        bench.submit("a", needs_sync=True)
        assert bench.reported == []
        assert await bench.until(1) == ["a"]
        assert bench.told_on == {threading.get_ident()}
        assert bench.lsns(bench.disk.clone().crash(Survival.NOTHING)) == [1]

    run(test)


def test_submissions_of_one_tick_are_handed_over_together() -> None:
    async def test(bench: Bench) -> None:
        for name in "abc":
            bench.submit(name, needs_sync=True)
        assert len(bench.deferred) == 1
        assert await bench.until(3) == ["a", "b", "c"]
        assert (bench.writer.commits, bench.writer.syncs) == (1, 1)

    run(test)


def test_after_a_group_of_several_the_next_one_stays_open_for_two_more_ticks() -> None:
    async def test(bench: Bench) -> None:
        bench.writer.seconds = lambda: 100.0
        for name in "abcd":
            bench.submit(name)
        assert await bench.until(4) == list("abcd")
        assert bench.writer.commits == 1
        for name in "efg":
            bench.submit(name)
            await asyncio.sleep(0)
        assert bench.writer.commits == 2
        assert await bench.until(7) == list("abcdefg")
        # The group of three is complete: the next write is not delayed.
        bench.submit("h")
        await asyncio.sleep(0)
        assert bench.writer.commits == 3

    run(test)


def test_a_group_does_not_stay_open_where_ticks_are_long() -> None:
    async def test(bench: Bench) -> None:
        now = 100.0
        bench.writer.seconds = lambda: now
        for name in "abcd":
            bench.submit(name)
        assert await bench.until(4) == list("abcd")
        bench.submit("e")
        now += 0.001
        await asyncio.sleep(0)
        assert bench.writer.commits == 2

    run(test)


def test_a_rotation_does_not_wait_for_company() -> None:
    async def test(bench: Bench) -> None:
        bench.writer.seconds = lambda: 100.0
        for name in "abcd":
            bench.submit(name)
        assert await bench.until(4) == list("abcd")
        bench.submit("e")
        bench.committer.rotate(Rotation(lambda position: bench.submit("f"), lambda error: None))
        assert await bench.until(6) == list("abcdef")
        assert bench.lsns() == [1, 2, 3, 4, 5]
        assert bench.lsns(number=2) == [6]

    run(test)


def test_a_commit_wakes_the_loop_once() -> None:
    async def test(bench: Bench) -> None:
        for name in "abc":
            bench.submit(name, needs_sync=True)
        await bench.until(3)
        assert bench.wake_ups == 1

    run(test)


def test_a_small_group_that_needs_no_sync_is_written_by_the_loop_itself() -> None:
    async def test(bench: Bench) -> None:
        bench.submit("first", needs_sync=True)  # Makes the file, which is the thread's work.
        await bench.until(1)
        wake_ups = bench.wake_ups
        bench.submit("a")
        bench.submit("b")
        await asyncio.sleep(0)
        assert await bench.until(3) == ["first", "a", "b"]
        assert bench.wake_ups == wake_ups
        assert bench.lsns() == [1, 2, 3]

    run(test)


def test_a_large_group_goes_to_the_thread() -> None:
    async def test(bench: Bench) -> None:
        bench.submit("first", needs_sync=True)
        await bench.until(1)
        wake_ups = bench.wake_ups
        bench.submit("large", size=AT_ONCE_BYTES)
        await bench.until(2)
        assert bench.wake_ups == wake_ups + 1

    run(test)


def test_after_a_write_that_had_to_wait_the_next_ones_go_to_the_thread() -> None:
    async def test(bench: Bench) -> None:
        bench.submit("first", needs_sync=True)
        await bench.until(1)
        # The clock moves by more than a stall between the beginning of a write and its end, once.
        moments = iter([0.0, 0.021])
        bench.writer.seconds = lambda: next(moments, 0.021)
        bench.writer.stall_s = 0.02
        wake_ups = bench.wake_ups
        bench.submit("stalled")
        await bench.until(2)
        assert (bench.writer.stalls, bench.wake_ups) == (1, wake_ups)
        for number in range(64):
            bench.submit(str(number))
            await bench.until(3 + number)
        assert bench.wake_ups == wake_ups + 64
        bench.submit("last")
        await bench.until(67)
        assert bench.wake_ups == wake_ups + 64

    run(test)


def test_a_write_that_needs_a_new_file_goes_to_the_thread() -> None:
    async def test(bench: Bench) -> None:
        bench.submit("first")
        await bench.until(1)
        assert bench.wake_ups == 1

    run(test)


def test_no_answer_overtakes_another_of_the_thread() -> None:
    async def test(bench: Bench) -> None:
        expected = []
        for number in range(200):
            # Every third one needs a sync; the others would be written at once if nothing were on its way.
            bench.submit(f"{number}", needs_sync=number % 3 == 0)
            expected.append(f"{number}")
            if number % 7 == 0:
                await asyncio.sleep(0)
        reported = await bench.until(200)
        assert sorted(reported, key=int) == expected
        synced = [name for name in reported if int(name) % 3 == 0]
        plain = [name for name in reported if int(name) % 3]
        assert synced == sorted(synced, key=int)
        assert plain == sorted(plain, key=int)
        assert bench.lsns() == list(range(1, 201))

    run(test, window_s=0.0005)


def test_class_disk_is_synced_in_the_background() -> None:
    async def test(bench: Bench) -> None:
        bench.submit("a")
        await bench.until(1)
        await bench.synced()
        assert bench.writer.synced_lsn == 1
        assert bench.lsns(bench.disk.clone().crash(Survival.NOTHING)) == [1]

    run(test, sync_s=0.001)


def test_inline_write_is_synced_in_the_background() -> None:
    async def test(bench: Bench) -> None:
        bench.submit("first", needs_sync=True)
        await bench.until(1)
        for number in range(2, 20):
            bench.submit("plain")
            await bench.until(number)
            await bench.synced()
            assert bench.writer.synced_lsn == number

    run(test, sync_s=0.001)


def test_a_write_is_synced_also_after_a_commit_has_synced_the_one_before_it() -> None:
    # The thread was roused for a background sync which a commit then made unnecessary; the next write by the loop must
    # rouse it again, or its records would wait for a sync for ever.
    async def test(bench: Bench) -> None:
        count = 0
        for _ in range(20):
            for needs_sync in (True, False, True, False):
                bench.submit("x", needs_sync)
                count += 1
                await bench.until(count)
            await bench.synced()
            assert bench.writer.synced_lsn == count

    run(test, sync_s=0.01)


def test_a_rotation_comes_behind_everything_submitted_before_it() -> None:
    async def test(bench: Bench) -> None:
        turned = asyncio.get_running_loop().create_future()

        def done(number: int) -> None:
            turned.set_result((number, [name for name, _ in bench.reported]))

        bench.submit("before")
        bench.submit("before too", needs_sync=True)
        bench.committer.rotate(Rotation(done, turned.set_exception))
        bench.submit("behind")
        assert await turned == (2, ["before", "before too"])
        await bench.until(3)
        assert bench.lsns(number=1) == [1, 2]
        assert bench.lsns(number=2) == [3]

    run(test)


def test_a_failed_rotation_is_reported() -> None:
    async def test(bench: Bench) -> None:
        bench.submit("a")
        await bench.until(1)
        bench.faulty.plan = FaultPlan(call=bench.faulty.calls + 1)
        failed = asyncio.get_running_loop().create_future()
        bench.committer.rotate(Rotation(lambda number: failed.set_result(None), failed.set_result))
        assert isinstance(await failed, ReadOnlyError)

    run(test)


@pytest.mark.parametrize("needs_sync", [True, False])
def test_a_poisoned_shard_answers_everyone_with_the_error(needs_sync: bool) -> None:
    async def test(bench: Bench) -> None:
        bench.submit("first", needs_sync=True)
        await bench.until(1)
        bench.faulty.plan = FaultPlan(call=bench.faulty.calls + 1)
        bench.submit("a", needs_sync)
        bench.submit("b", needs_sync)
        await bench.until(3)
        bench.submit("c", needs_sync)
        await bench.until(4)
        assert [isinstance(outcome, ReadOnlyError) for _, outcome in bench.reported] == [False, True, True, True]

    run(test)


def test_holding_back_keeps_commits_waiting_until_it_is_over() -> None:
    async def test(bench: Bench) -> None:
        bench.submit("first", needs_sync=True)
        await bench.until(1)
        bench.committer.resume.clear()
        commits = bench.writer.commits
        bench.submit("plain")
        await asyncio.sleep(0)
        bench.submit("sync", needs_sync=True)
        await asyncio.sleep(0.01)
        assert bench.writer.commits == commits
        bench.committer.resume.set()
        assert await bench.until(3) == ["first", "plain", "sync"]

    run(test)


def test_closing_commits_syncs_and_answers_everything() -> None:
    async def test(bench: Bench) -> None:
        bench.submit("a")
        bench.submit("b", needs_sync=True)
        bench.submit("c")
        bench.committer.resume.clear()
        bench.committer.close()
        assert sorted(name for name, _ in bench.reported) == ["a", "b", "c"]
        assert bench.lsns(bench.disk.clone().crash(Survival.NOTHING)) == [1, 2, 3]

    async def bounded() -> None:
        bench = Bench(asyncio.get_running_loop())
        await test(bench)

    asyncio.run(bounded())


def test_closing_syncs_what_only_the_loop_wrote() -> None:
    async def bounded() -> None:
        bench = Bench(asyncio.get_running_loop())
        bench.submit("a")
        await bench.until(1)
        bench.submit("b")
        await bench.until(2)
        bench.committer.close()
        assert bench.lsns(bench.disk.crash(Survival.NOTHING)) == [1, 2]

    asyncio.run(bounded())


def test_a_broken_answer_does_not_end_the_answers(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        def broken() -> None:
            bench.shard.committed.listeners.clear()
            raise RuntimeError("broken")

        bench.shard.committed.subscribe(broken)
        bench.submit("a", needs_sync=True)
        await bench.until(1)
        bench.submit("b", needs_sync=True)
        assert await bench.until(2) == ["a", "b"]

    run(test)
    assert "commit answers failed" in caplog.text


def test_a_cohort_of_waiting_writers_shares_syncs() -> None:
    async def test(bench: Bench) -> None:
        async def writer(name: str) -> None:
            for _ in range(20):
                mine = len([reported for reported, _ in bench.reported if reported == name])
                bench.submit(name, needs_sync=True)
                while len([reported for reported, _ in bench.reported if reported == name]) == mine:
                    await asyncio.sleep(0)

        await asyncio.gather(*(writer(f"w{number}") for number in range(8)))
        assert len(bench.reported) == 160
        # How many share one sync is the scheduler's business; that some do is the point of group commit.
        assert bench.writer.syncs < 160

    run(test, window_s=0.0005)


def test_a_widened_window_gathers_writers_that_had_no_company_before() -> None:
    async def test(bench: Bench) -> None:
        bench.committer.widen(20.0)  # Ended by two seconds of silence, which only a stopped machine would make sooner.
        bench.submit("a", needs_sync=True)
        await asyncio.sleep(0.001)
        bench.submit("b", needs_sync=True)
        bench.committer.widen(0.0)
        assert await bench.until(2) == ["a", "b"]
        assert bench.writer.syncs == 1

    run(test)


def test_a_widened_window_keeps_nobody_waiting_who_needs_no_sync() -> None:
    async def test(bench: Bench) -> None:
        bench.submit("first", needs_sync=True)
        await bench.until(1)
        bench.committer.widen(3600.0)
        bench.submit("large", size=AT_ONCE_BYTES)
        bench.submit("small")
        assert await bench.until(3) == ["first", "large", "small"]
        bench.committer.widen(0.0)

    run(test)


def test_a_mistake_of_the_thread_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: Bench) -> None:
        def more(batch: list[Submission]) -> None:
            raise RuntimeError("a mistake")

        monkeypatch.setattr(bench.committer, "_more", more)
        bench.submit("first", needs_sync=True)
        await bench.until(1)
        monkeypatch.undo()
        bench.submit("second", needs_sync=True)
        await bench.until(2)
        assert [type(outcome) for _, outcome in bench.reported] == [ReadOnlyError, ReadOnlyError]

    run(test)
    assert "log shard thread failed" in caplog.text


class Repeating(Probe):
    """One whose answer submits another at once, and asks for something more."""

    def __init__(self, bench: Bench, name: str, then: Callable[[], None]) -> None:
        super().__init__(bench, name, bench.shard.frame(FrameKind.APPEND, 1, b"x"), False)
        self._then = then

    def committed(self, timing: CommitTiming) -> None:
        super().committed(timing)
        self._bench.submit(f"{self._name}'s")
        self._then()


@pytest.mark.parametrize("first_by_the_thread", [False, True])
def test_what_an_answer_submits_is_answered_behind_those_who_were_there_first(first_by_the_thread: bool) -> None:
    async def test(bench: Bench) -> None:
        if not first_by_the_thread:
            bench.submit("first", needs_sync=True)
            await bench.until(1)
        turned: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        rotation = Rotation(turned.set_result, turned.set_exception)
        bench.shard.submit(Repeating(bench, "a", lambda: bench.committer.rotate(rotation)))
        bench.submit("b")
        bench.shard.submit(Repeating(bench, "c", bench.committer.write_now))
        bench.submit("d")
        await turned
        count = 7 - first_by_the_thread
        assert (await bench.until(count))[1 - first_by_the_thread :] == ["a", "b", "c", "d", "a's", "c's"]

    run(test)


def test_what_needs_no_more_than_the_write_can_be_written_before_the_tick_is_over() -> None:
    async def test(bench: Bench) -> None:
        bench.submit("first", needs_sync=True)
        await bench.until(1)
        bench.committer.write_now()
        bench.submit("a")
        bench.committer.write_now()
        assert [name for name, _ in bench.reported] == ["first", "a"]
        bench.submit("b")
        assert await bench.until(3) == ["first", "a", "b"]
        assert len(bench.deferred) == 2, "the tick's own hand-over takes what comes behind"

    run(test)


def test_what_waits_for_a_sync_or_behind_one_is_not_written_early() -> None:
    async def test(bench: Bench) -> None:
        bench.submit("first", needs_sync=True)
        await bench.until(1)
        bench.submit("a")
        bench.submit("b", needs_sync=True)
        bench.committer.write_now()
        assert len(bench.reported) == 1
        await asyncio.sleep(0)
        bench.submit("c")
        assert bench.committer.outstanding == 2
        bench.committer.write_now()
        assert len(bench.reported) == 1
        assert sorted(await bench.until(4)) == ["a", "b", "c", "first"]

    run(test)


def know_the_disk(bench: Bench) -> None:
    """Syncs are short, and there is no time for any beside others. The duration of a write on a fake disk is
    irrelevant."""
    syncs = bench.syncs
    syncs._mean_s, syncs._saved_s, syncs._wary = 0.0001, -NEVER_S, 0


async def write_alone(bench: Bench, count: int) -> None:
    """A lone client waits for each of its syncs."""
    know_the_disk(bench)
    for _ in range(count):
        bench.heard += 1
        bench.submit(f"alone {bench.heard}", needs_sync=True)
        await bench.until(len(bench.reported) + 1)
        know_the_disk(bench)


def test_the_loop_syncs_for_a_lone_client_by_itself() -> None:
    async def test(bench: Bench) -> None:
        await write_alone(bench, SINGLE_CALLER_GROUPS)
        assert bench.wake_ups == SINGLE_CALLER_GROUPS
        await write_alone(bench, 20)
        assert (bench.wake_ups, bench.committer.outstanding) == (SINGLE_CALLER_GROUPS, 0)
        assert bench.told_on == {threading.get_ident()}
        count = SINGLE_CALLER_GROUPS + 20
        assert bench.lsns(bench.disk.clone().crash(Survival.NOTHING)) == list(range(1, count + 1))
        assert bench.writer.synced_lsn == count

    run(test)


def test_as_soon_as_others_are_heard_the_thread_syncs() -> None:
    async def test(bench: Bench) -> None:
        await write_alone(bench, SINGLE_CALLER_GROUPS + 5)
        bench.heard += 1
        await write_alone(bench, 1)
        assert bench.wake_ups == SINGLE_CALLER_GROUPS + 1

    run(test)


@pytest.mark.parametrize("size", [SYNC_AT_ONCE_BYTES + 1, 300_000])
def test_a_long_write_of_a_lone_client_is_left_to_the_thread(size: int) -> None:
    async def test(bench: Bench) -> None:
        await write_alone(bench, SINGLE_CALLER_GROUPS + 5)
        bench.heard += 1
        bench.submit("long", needs_sync=True, size=size)
        await bench.until(len(bench.reported) + 1)
        assert bench.wake_ups == SINGLE_CALLER_GROUPS + 1

    run(test)


def test_the_room_ahead_is_filled_by_the_thread_alone() -> None:
    """It takes longer than a sync: later requests should not wait for it."""

    async def test(bench: Bench) -> None:
        filled: set[int] = set()
        fill_ahead = bench.log.fill_ahead

        def watched() -> None:
            before = bench.log._filled
            fill_ahead()
            if bench.log._filled != before:
                filled.add(threading.get_ident())

        bench.log.fill_ahead = watched  # type: ignore[method-assign]
        for _ in range(30):
            bench.heard += 1
            bench.submit("some", needs_sync=True, size=20_000)
            await bench.until(len(bench.reported) + 1)
            know_the_disk(bench)
        assert filled
        assert threading.get_ident() not in filled
        assert bench.wake_ups < 30

    run(test)


def test_a_sync_of_the_loop_that_fails_poisons_the_log() -> None:
    async def test(bench: Bench) -> None:
        await write_alone(bench, SINGLE_CALLER_GROUPS + 1)
        bench.faulty.plan = FaultPlan(call=bench.faulty.calls + 2)
        bench.heard += 1
        bench.submit("lost", needs_sync=True)
        await bench.until(len(bench.reported) + 1)
        assert isinstance(bench.reported[-1][1], ReadOnlyError)
        assert (bench.wake_ups, bench.committer.outstanding) == (SINGLE_CALLER_GROUPS, 0)

    run(test)


def test_a_sync_of_the_loop_that_is_put_off_is_answered_on_the_loop_once_it_could_be_done() -> None:
    async def test(bench: Bench) -> None:
        await write_alone(bench, SINGLE_CALLER_GROUPS + 1)
        reported = len(bench.reported)
        bench.faulty.plan = FaultPlan(call=bench.faulty.calls + 2, fault=Fault.ENOMEM, lasting=True)
        bench.heard += 1
        bench.submit("late", needs_sync=True)
        while not bench.writer.halted:
            await asyncio.sleep(0)
        assert (len(bench.reported), bench.committer.outstanding) == (reported, 1)
        bench.faulty.plan = FaultPlan()
        while bench.writer.halted:
            bench.shard.heal()
            await asyncio.sleep(0.001)
        await bench.until(reported + 1)
        assert isinstance(bench.reported[-1][1], CommitTiming)
        assert bench.told_on == {threading.get_ident()}
        assert bench.committer.outstanding == 0
        await write_alone(bench, 3)
        assert len(bench.lsns(bench.disk.clone().crash(Survival.NOTHING))) == SINGLE_CALLER_GROUPS + 5

    run(test)


def test_under_pressure_a_lone_client_does_not_wait_for_company_and_others_do() -> None:
    async def test(bench: Bench) -> None:
        await write_alone(bench, SINGLE_CALLER_GROUPS + 1)
        bench.committer.widen(0.001)
        await write_alone(bench, 1)
        assert bench.wake_ups == SINGLE_CALLER_GROUPS
        for window_s, by_thread in ((0.001, 1), (0.0, 0)):
            before, reported = bench.wake_ups, len(bench.reported)
            bench.committer.widen(window_s)
            # Others were heard as well, and the loop has time for a sync.
            bench.syncs._saved_s = 1.0
            bench.heard += 2
            bench.submit("beside others", needs_sync=True)
            await bench.until(reported + 1)
            assert bench.wake_ups - before == by_thread

    run(test)


def test_a_write_without_a_sync_is_not_made_to_wait_for_one_of_the_loop() -> None:
    async def test(bench: Bench) -> None:
        await write_alone(bench, SINGLE_CALLER_GROUPS + 1)
        bench.syncs._saved_s = 1.0
        bench.heard += 1
        reported = len(bench.reported)
        bench.submit("plain")
        bench.submit("synced", needs_sync=True)
        await bench.until(reported + 2)
        assert bench.wake_ups > SINGLE_CALLER_GROUPS

    run(test)


def test_a_write_that_is_left_to_the_thread_is_synced_in_the_background() -> None:
    """Also where the loop would sync for a lone client: the thread must receive writes that no caller waits for."""

    async def test(bench: Bench) -> None:
        await write_alone(bench, SINGLE_CALLER_GROUPS + 1)
        bench.committer._tick_window._wary = 10
        bench.heard += 1
        bench.submit("plain")
        await bench.until(len(bench.reported) + 1)
        await bench.synced()

    run(test, sync_s=0.02)
