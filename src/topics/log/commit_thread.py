"""Commit thread: runs a shard's writer, and passes work between it and the event loop.

To the writer: submissions are collected for the rest of the loop's tick and queued together. If the last group had
several callers, the callers answered last usually send again at once, so the group stays open for up to two more short
ticks while some of them are missing: one commit for all costs little more than one for some. Back to the loop: each
commit's answers are one wake-up, and none at all while an earlier wake-up is still being served.

A group that needs no sync is written by the loop itself while the thread has only background syncs to do: a copy into
the page cache takes less time than waking a thread, which then waits for the interpreter lock. This happens only when
nothing is in flight through the thread, so no answer overtakes another. After a write that stalled on the disk, the
next ones are left to the thread, because the loop must not block. The loop does not write while it delivers answers
either: submissions from callbacks would be answered before earlier ones.

The loop also syncs a small group with few callers if syncs are short: always while there are no other requests,
otherwise for a small part of its time (`log.group_commit.InlineSyncPolicy`).
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from topics.log.commit_requests import CommitTiming, Locating, Reopening, Request, Rotation
from topics.log.group_commit import AT_ONCE_BYTES, SYNC_AT_ONCE_BYTES, CommitWindow, InlineSyncPolicy, Shard, TickWindow
from topics.log.wal import Submission
from topics.model.errors import TopicsError

_log = logging.getLogger(__name__)

_FEW = 8
"""The maximum size of groups whose callers are counted while they wait; counting more would cost what it saves."""


class _Stop:
    """Ends the thread."""


_Work = list[Submission] | Request | _Stop
Run = Callable[[], None]


class CommitThread:
    """Commits on its own thread.

    `defer` runs a function later in the loop's tick, `wake` runs one on the loop from any thread. `loop_syncs` decides
    when the loop syncs by itself; without it, the loop never does.
    """

    def __init__(
        self,
        shard: Shard,
        defer: Callable[[Run], object],
        wake: Callable[[Run], object],
        window_s: float,
        sync_s: float,
        loop_syncs: InlineSyncPolicy | None = None,
    ) -> None:
        self._shard = shard
        self._writer = shard.writer
        self._defer = defer
        self._wake = wake
        self._tick_window = TickWindow()
        self._loop_syncs = loop_syncs
        self._syncing = False
        """Whether the loop is in the middle of a commit with a sync."""
        self._window = CommitWindow(window_s)
        self._sync_s = sync_s
        self.coalesces = True
        self._tick: list[Submission] = []
        self._expecting = False
        """Whether the hand-over at the end of the tick is scheduled."""
        self._queue: SimpleQueue[_Work] = SimpleQueue()
        self._answers: deque[Run] = deque()
        self.outstanding = 0
        """The number of submissions and rotations passed to the thread and not answered yet."""
        self._answering = False
        """Whether the loop is delivering answers."""
        self._roused = False
        """Whether the thread was notified of unsynced writes."""
        self.resume = threading.Event()
        """Cleared while sealing lags too far behind: delayed commits throttle the writers."""
        self.resume.set()
        self._thread = threading.Thread(target=self._run, name=f"wal-{shard.number}", daemon=True)
        self._thread.start()

    @property
    def company(self) -> int:
        return self._tick_window.company

    def submit(self, submission: Submission) -> None:
        self._tick.append(submission)
        if not self._expecting:
            self.expect()

    def expect(self) -> None:
        if not self._expecting:
            self._expecting = True
            self._tick_window.open(self._writer.seconds)
            self._defer(self._tick_over)

    def write_now(self) -> None:
        batch = self._tick
        if batch and self._may_write_at_once(batch):
            self._tick = []
            self._write_at_once(batch)

    def rotate(self, rotation: Rotation) -> None:
        self._ask(rotation)

    def reopen(self, reopening: Reopening) -> None:
        self._ask(reopening)

    def locate(self, locating: Locating) -> None:
        self._ask(locating)

    def _ask(self, request: Request) -> None:
        self._hand_over()
        self.outstanding += 1
        self._queue.put(request)

    def close(self) -> None:
        """Commits all submissions, syncs, ends the thread and delivers the last answers."""
        self._hand_over()
        self.resume.set()
        self._queue.put(_Stop())
        self._thread.join()
        self._drain_answers()

    def widen(self, window_s: float) -> None:
        """Lets commits with a sync wait this long for more callers; 0 ends it."""
        self._window.widen(window_s)

    def _tick_over(self) -> None:
        window = self._tick_window
        if window.ticks_left and window.stays_open(self._writer.seconds(), self._callers()):
            self._defer(self._tick_over)
        else:
            self._hand_over()

    def _callers(self) -> int:
        """Returns the number of callers in the group so far; None if counting would take long."""
        coalesced = self._shard.coalesced
        if len(coalesced) > _FEW:
            return 0
        return sum([group.waiting for group in coalesced]) + sum([submission.callers for submission in self._tick])

    def _hand_over(self) -> None:
        try:
            self._shard.stage_coalesced()
        finally:
            # Reset only here, so that staged work is part of this hand-over and does not schedule another.
            self._expecting = False
        if not self._tick:
            return
        batch, self._tick = self._tick, []
        callers = batch[0].callers if len(batch) == 1 else sum([submission.callers for submission in batch])
        self._tick_window.close(callers)
        if self._may_write_at_once(batch):
            self._write_at_once(batch)
        elif self._may_sync_at_once(batch, callers):
            self._sync_at_once(batch)
        else:
            self.outstanding += len(batch)
            self._queue.put(batch)

    def _may_write_at_once(self, batch: list[Submission]) -> bool:
        if self.outstanding or self._answering or self._tick_window.is_wary(self._writer.stalls):
            return False
        size = 0
        for submission in batch:
            if submission.needs_sync:
                return False
            size += submission.size
        return size <= AT_ONCE_BYTES and self._writer.can_write_at_once(size) and self.resume.is_set()

    def _write_at_once(self, batch: list[Submission]) -> None:
        self._answering = True
        try:
            self._writer.commit(batch, self._shard.finalize)
        finally:
            self._answering = False
        if not self._roused:
            self._roused = True
            self._queue.put([])

    def _may_sync_at_once(self, batch: list[Submission], callers: int) -> bool:
        # Callers that need no sync do not wait for one, and their next submissions are not written first.
        if self._loop_syncs is None or not all([submission.needs_sync for submission in batch]):
            return False
        if (
            not self._loop_syncs.allows(callers, self._writer.seconds(), self._window.is_wide)
            or self.outstanding
            or self._answering
            or not self.resume.is_set()
        ):
            return False
        size = sum([submission.size for submission in batch])
        return size <= SYNC_AT_ONCE_BYTES and self._writer.can_sync_at_once(size)

    def _sync_at_once(self, batch: list[Submission]) -> None:
        self.outstanding += len(batch)
        self._syncing = True
        try:
            self._writer.commit(batch, self._answer_at_once)
        finally:
            self._syncing = False

    def _answer_at_once(self, group: list[Submission], timing: CommitTiming, error: TopicsError | None) -> None:
        if not self._syncing:
            # The sync was deferred after a transient failure, and the thread has done it since.
            self._answer(group, timing, error)
            return
        self.outstanding -= len(group)
        if self._loop_syncs is not None and error is None:
            self._loop_syncs.synced(timing.sync_ms / 1000, by_loop=True)
        self._answering = True
        try:
            self._shard.finalize(group, timing, error)
        finally:
            self._answering = False

    def _run(self) -> None:
        going_on = True
        while going_on:
            batch: list[Submission] = []
            try:
                going_on = self._turn(batch)
            except Exception as error:
                # If the thread ended here, all callers would wait forever.
                _log.exception("log shard thread failed")
                self._answer(batch, CommitTiming(), self._writer.give_up(error))

    def _turn(self, batch: list[Submission]) -> bool:
        """Runs the next step; returns whether to continue. `batch` holds submissions not yet passed to the writer."""
        waited = self._writer.unsynced_for()
        if waited is not None and waited >= self._sync_s:
            # Before the sync: a write during the sync must wake the thread again.
            self._roused = False
            self._writer.sync()
            return True
        if waited is None and self._roused:
            # Before an unbounded wait: from now on a write must wake the thread, and the second check finds one that
            # came just before.
            self._roused = False
            return True
        try:
            work: _Work | None = self._queue.get(timeout=None if waited is None else self._sync_s - waited)
        except Empty:
            return True
        while not self.resume.wait(self._sync_s):
            # Paused, but earlier writes must still be synced in time.
            self._writer.sync()
        self._window.open(self._writer.seconds())
        while isinstance(work, list):
            batch.extend(work)
            work = self._more(batch)
        if batch:
            taken = batch[:]
            batch.clear()
            self._writer.commit(taken, self._answer)
        if isinstance(work, Rotation):
            self._rotate(work)
        elif isinstance(work, Reopening):
            self._reopen(work)
        elif isinstance(work, Locating):
            self._locate(work)
        elif isinstance(work, _Stop):
            self._writer.close()
            return False
        return True

    def _more(self, batch: list[Submission]) -> _Work | None:
        """Returns more work for this commit, or None if it should start now."""
        try:
            return self._queue.get_nowait()
        except Empty:
            pass
        waiting = sum([submission.callers for submission in batch if submission.needs_sync])
        linger_s = self._window.linger_s(waiting, self._writer.seconds()) if waiting else 0.0
        if linger_s:
            try:
                return self._queue.get(timeout=linger_s)
            except Empty:
                pass
        self._window.close(waiting)
        return None

    def _rotate(self, rotation: Rotation) -> None:
        error = self._writer.rotate(rotation)

        def answer() -> None:
            self.outstanding -= 1
            if error is None:
                rotation.done(rotation.position)
            else:
                rotation.failed(error)

        self._post(answer)

    def _reopen(self, reopening: Reopening) -> None:
        ready = self._writer.can_reopen()

        def answer() -> None:
            self.outstanding -= 1
            if ready:
                reopening.done()

        self._post(answer)

    def _locate(self, locating: Locating) -> None:
        position = self._writer.locate()

        def answer() -> None:
            self.outstanding -= 1
            locating.done(position)

        self._post(answer)

    def _answer(self, group: list[Submission], timing: CommitTiming, error: TopicsError | None) -> None:
        def answer() -> None:
            self.outstanding -= len(group)
            if self._loop_syncs is not None and timing.sync_ms and len(group) == 1:
                self._loop_syncs.synced(timing.sync_ms / 1000, by_loop=False)
            self._shard.finalize(group, timing, error)

        self._post(answer)

    def _post(self, answer: Run) -> None:
        self._answers.append(answer)
        if len(self._answers) == 1:
            self._wake(self._drain_answers)

    def _drain_answers(self) -> None:
        while self._answers:
            self._answering = True
            try:
                self._answers[0]()
            except Exception:
                _log.exception("commit answers failed")
            finally:
                self._answering = False
                # Removed last, so that the writer does not wake the loop for answers that are being drained.
                self._answers.popleft()
