"""Group commit: one writer for each shard writes the submissions of a tick together, with one write and one sync.

`Shard` is the queue between the loop and the writer, `CommitWindow` and `TickWindow` decide how long a commit waits for
more submissions, and `InlineCommitter` commits on the loop where that is faster. `log.commit_thread` is the writer's
thread, `log.wal` does the shared write and sync.

The loop thread owns `Shard`: it numbers frames, collects submissions during a tick and hands them over together. The
writer owns the files. A submission is answered on the loop thread by `committed` or `failed`, in the order of the log
within each gate: submissions that need only the write first, then submissions that need the sync.

The window is adaptive. A single client never waits: its frame is written when it arrives. If the last commit served
several waiting syncs, the writer lingers for a moment for the others of that cohort, because one shared sync is cheaper
than one for each (`log.commit_thread` has the thread and the window).

A failed write or sync poisons the shard: every unanswered submission of its batch and all later ones fail, none of them
is ever published, and the shard is read-only until a restart has recovered the actual contents of the disk.

A transient failure, such as a full disk or a lack of descriptors, only *halts* the shard. The batch is removed from the
log again, it and all later submissions fail, and once nothing is in flight, numbering continues at the end of the log
and the shard accepts writes again (`Shard.heal`).

## Commit policy

Pure decisions; `log.commit_thread` carries them out.

On the loop (`TickWindow`), after a group of several callers the next group stays open for up to two more short ticks,
while recent callers are missing. The loop writes a small group without sync itself, unless a write stalled recently.

On the thread (`CommitWindow`), after a commit with several waiting callers the next one lingers for half as many, a
slice at a time. Under pressure every syncing commit of the thread waits for more callers, in a wider window.

If few callers wait for a sync and syncs are short (`InlineSyncPolicy`), the loop syncs itself: the two thread switches
take longer, above all with a busy loop, which holds the interpreter lock.

Both sides count callers and not submissions: one submission may stand for many. Times are in seconds, of any clock.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from topics.log.commit_requests import CommitTiming, Locating, Reopening, Rotation
from topics.log.frame import FrameKind, seal_frame
from topics.log.wal import Room, Submission, Writer
from topics.model.errors import ThrottledError, TopicsError
from topics.system.events import Event

SLICE_S = 0.00005
"""The slice for which the thread lingers for the rest of a cohort; about half the duration of a sync."""
SILENCE = 0.1
"""The slice in a widened window, as a fraction of the window."""

AT_ONCE_BYTES = 1024 * 1024
"""The largest group the loop writes itself; it takes a fifth of a millisecond."""
SYNC_AT_ONCE_BYTES = 32 * 1024
"""The largest group that it also syncs."""
WARY_GROUPS = 64
"""The number of groups that the thread writes after a stalled write."""

COMPANY = 4
"""The number of callers from which the next group is worth waiting for."""
COMPANY_TICKS = 2
COMPANY_S = 0.0003

SINGLE_CALLER_GROUPS = 8
"""The number of consecutive groups of a single caller, without requests of others, that identify a lone client."""
LOOP_SYNC_S = 0.001
SINGLE_CALLER_SYNC_S = 0.002
"""The mean duration of a sync up to which the loop syncs itself; higher for a lone client, whose syncs delay only later
requests."""
LOOP_SYNC_SHARE = 0.1
"""The fraction of its time that the loop spends on syncs while other clients send requests."""
LOOP_SYNC_SAVED_S = 0.02
LOOP_SYNC_LONG_S = 0.004
WARY_SYNCS = 16
WARY_SYNCS_MAX = 1024
"""The maximum number of groups that the thread syncs after a slow sync of the loop: the number doubles each time and
falls by one with each fast sync. So a disk with rare stalls costs almost nothing, and a failing disk is soon left to
the thread."""

_UNKNOWN_S = 0.01
"""Assumed duration of a sync before the first measurement, which the thread makes."""


class TickWindow:
    """Decides on the loop when a group is complete, and whether the loop may write it."""

    __slots__ = ("_most", "_stalls", "_until", "_wary", "company", "ticks_left")

    def __init__(self) -> None:
        self.company = 0
        """The number of callers of the last group."""
        self._most = 0
        """The expected number of callers: the maximum of recent groups, which decays with every smaller group. By the
        last group alone groups would only ever get smaller."""
        self.ticks_left = 0
        """The number of further ticks for which the group may stay open; with 0 no clock is read."""
        self._until = 0.0
        self._stalls = 0
        self._wary = 0
        """Groups that are left to the thread because of a stall."""

    def open(self, seconds: Callable[[], float]) -> None:
        """Begins a group. If the last group was too small to wait for, no clock is read."""
        if self.company < COMPANY:
            self.ticks_left = 0
        else:
            self.ticks_left = COMPANY_TICKS
            self._until = seconds() + COMPANY_S

    def close(self, callers: int) -> None:
        """Records that a group of so many callers is handed over."""
        self.company = callers
        self._most = max(callers, self._most - (self._most >> 3) - 1)

    def stays_open(self, now: float, callers: int = 0) -> bool:
        """Called after a tick; returns whether the group waits for one more. `callers` is the known size of the
        group."""
        if not self.ticks_left or now >= self._until or callers >= self._most > 0:
            return False
        self.ticks_left -= 1
        return True

    def is_wary(self, stalls: int) -> bool:
        """Returns whether this group is left to the thread; `stalls` counts the stalled writes so far."""
        if self._stalls != stalls:
            self._stalls, self._wary = stalls, WARY_GROUPS
        if not self._wary:
            return False
        self._wary -= 1
        return True


class InlineSyncPolicy:
    """Decides on the loop whether it syncs a group itself: always for a lone client, and for few callers among others
    while that takes a small part of its time. One object serves all logs that the loop writes.

    `heard` counts the requests of all clients so far.
    """

    __slots__ = ("_caution", "_heard", "_heard_before", "_mean_s", "_saved_s", "_seen", "_streak", "_wary")

    def __init__(self, heard: Callable[[], int]) -> None:
        self._heard = heard
        self._heard_before = 0
        self._streak = 0
        """The number of consecutive groups of a lone client."""
        self._wary = 0
        """Groups that are left to the thread because of a slow sync."""
        self._caution = WARY_SYNCS
        """The number for the next slow sync."""
        self._mean_s = _UNKNOWN_S
        self._seen = 0.0
        self._saved_s = 0.0
        """The time that the loop may currently spend on syncs among other requests."""

    def synced(self, took_s: float, by_loop: bool) -> None:
        """Records a sync that one caller waited for or that the loop did."""
        self._mean_s += (took_s - self._mean_s) / 8
        if by_loop:
            self._saved_s = max(self._saved_s - took_s, -LOOP_SYNC_SAVED_S)
            if took_s > LOOP_SYNC_LONG_S:
                self._wary = self._caution
                self._caution = min(2 * self._caution, WARY_SYNCS_MAX)
            elif self._caution > WARY_SYNCS:
                self._caution -= 1

    def allows(self, callers: int, now: float, wide: bool = False) -> bool:
        """Returns whether the loop syncs a complete group. `wide` states that the server is under pressure, so that
        groups wait for more callers on the thread; a lone client would wait in vain."""
        heard = self._heard()
        self._streak = self._streak + 1 if callers == 1 and heard - self._heard_before == 1 else 0
        self._heard_before = heard
        self._saved_s = min(self._saved_s + (now - self._seen) * LOOP_SYNC_SHARE, LOOP_SYNC_SAVED_S)
        self._seen = now
        if self._wary:
            self._wary -= 1
            return False
        if self._streak > SINGLE_CALLER_GROUPS:
            return self._mean_s <= (LOOP_SYNC_S if wide else SINGLE_CALLER_SYNC_S)
        return not wide and callers < COMPANY and self._mean_s <= min(self._saved_s, LOOP_SYNC_S)


class CommitWindow:
    """Decides on the thread how long a commit waits for more before it writes and syncs."""

    __slots__ = ("_cohort", "_until", "_wide_s", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._wide_s = 0.0
        self._until = 0.0
        self._cohort = 0
        """The number of callers that the last commit synced for."""

    def widen(self, window_s: float) -> None:
        """Makes every syncing commit wait so long for more callers, regardless of the last cohort; 0 ends it.

        May be called from another thread: it counts from the next commit on.
        """
        self._wide_s = window_s

    @property
    def is_wide(self) -> bool:
        return self._wide_s > 0

    def open(self, now: float) -> None:
        """A commit begins."""
        self._until = now + max(self._window_s, self._wide_s)

    def linger_s(self, waiting: int, now: float) -> float:
        """How long to wait for more, while so many callers wait for the sync; 0 is not at all."""
        wide_s = self._wide_s
        # Half of the last cohort is enough: the others are being answered and will make the next commit.
        if not waiting or not (wide_s or waiting * 2 < self._cohort):
            return 0.0
        return max(min(max(SLICE_S, wide_s * SILENCE), self._until - now), 0.0)

    def close(self, waiting: int) -> None:
        """Ends the wait with the callers that arrived."""
        self._cohort = waiting


_log = logging.getLogger(__name__)


class Committer(Protocol):
    """Runs the writer of a shard."""

    coalesces: bool
    """Whether submissions wait for the end of a tick, so that gathering until then is useful."""
    outstanding: int
    """The number of unanswered submissions and rotations on another thread."""

    @property
    def company(self) -> int:
        """The number of callers of the last group."""
        ...

    def expect(self) -> None:
        """Registers coalesced work, which is staged and committed at the end of the tick."""
        ...

    def submit(self, submission: Submission) -> None: ...

    def write_now(self) -> None:
        """Commits the submissions that need only the write; the others wait as before."""
        ...

    def rotate(self, rotation: Rotation) -> None: ...

    def reopen(self, reopening: Reopening) -> None: ...

    def locate(self, locating: Locating) -> None: ...

    def close(self) -> None: ...


class PutOff(Protocol):
    """Work that is staged at the end of the tick, or earlier."""

    @property
    def waiting(self) -> int:
        """The number of callers that wait for it."""
        ...

    def stage(self) -> None:
        """Stages it, unless already done."""
        ...


class Shard:
    """The loop side of a shard. Its committer decides who runs the writer: a thread, or the caller itself."""

    def __init__(
        self,
        number: int,
        writer: Writer,
        next_lsn: int,
        queue_bytes_max: int,
        room: Room | None = None,
        moment: Callable[[], int] = lambda: 0,
    ) -> None:
        """`moment` returns the time that a frame records."""
        self.number = number
        self.writer = writer
        self._moment = moment
        self.room = room or Room()
        self.next_lsn = next_lsn
        self.first_lsn = next_lsn
        """The first frame number of this run."""
        self.queue_bytes = 0
        self.queue_depth = 0
        self.queue_depth_peak = 0
        self.refused = 0
        """The number of writes refused because too much was in flight."""
        self.logged_bytes = 0
        """Bytes of log since the last snapshot began."""
        self._queue_bytes_max = queue_bytes_max
        self.coalesced: deque[PutOff] = deque()
        """Appends deferred to the end of the tick (`engine.coalesce`)."""
        self.stage_pending: Callable[[], None] | None = None
        """Stages work that appends may overtake (`queues.queues`), or None."""
        self.after_heal: dict[object, Callable[[], None]] = {}
        """Callbacks for when the shard takes writes again after a shortage, by subject."""
        self.committed: Event[[]] = Event()
        """Emitted after a group was answered: the queue has room again."""
        self.committer: Committer = InlineCommitter(self)

    def frame(self, kind: FrameKind, topic_id: int, head: bytes, tail: bytes = b"") -> list[bytes]:
        """Creates a frame with the next number of this shard; it must be submitted before the next one is created."""
        lsn = self.next_lsn
        self.next_lsn = lsn + 1
        return seal_frame(kind, topic_id, lsn, self.writer.synced_lsn, head, tail, self._moment())

    def stage_coalesced(self) -> None:
        """Stages the work deferred to the end of the tick."""
        self._stage_records()
        stage_pending, self.stage_pending = self.stage_pending, None
        if stage_pending is not None:
            stage_pending()

    def _stage_records(self) -> None:
        coalesced = self.coalesced
        while coalesced:
            coalesced.popleft().stage()

    @property
    def coalesces(self) -> bool:
        """Returns whether single records may be coalesced for the end of the tick: `check_open` would accept them."""
        return (
            self.committer.coalesces
            and self.writer.poison is None
            and self.room.short is None
            and self.queue_bytes <= self._queue_bytes_max
        )

    def check_open(self, size: int = 0, patient: bool = False, frees: bool = False, overtakes: bool = False) -> None:
        """Refuses work before a frame number is assigned; a patient caller is queued instead. Writes that free space
        are accepted on a full disk as well.

        Call it before staging: deferred work of this tick is staged first. A submission that `overtakes` leaves the
        pending group in place.
        """
        if self.coalesced:
            self._stage_records()
        if self.stage_pending is not None and not overtakes:
            self.stage_coalesced()
        if self.writer.poison is not None:
            raise self.writer.poison
        if self.room.short is not None and not frees:
            raise self.room.short
        if self.queue_bytes and self.queue_bytes + size > self._queue_bytes_max and not patient:
            self.refused += 1
            raise ThrottledError.under_pressure(retry_after_ms=100)

    @property
    def queue_part(self) -> float:
        """The fraction of the in-flight limit in use."""
        return self.queue_bytes / self._queue_bytes_max

    @property
    def full(self) -> bool:
        """Returns whether `check_open` would refuse for lack of room."""
        return self.queue_bytes > self._queue_bytes_max

    def submit(self, submission: Submission) -> None:
        submission.last_lsn = self.next_lsn - 1
        self.queue_bytes += submission.size
        self.queue_depth += 1
        if self.queue_depth > self.queue_depth_peak:
            self.queue_depth_peak = self.queue_depth
        self.logged_bytes += submission.size
        self.committer.submit(submission)

    def finalize(self, group: list[Submission], timing: CommitTiming, error: TopicsError | None) -> None:
        """Answers a group of submissions; runs on the loop thread."""
        self.queue_depth -= len(group)
        for submission in group:
            self.queue_bytes -= submission.size
            try:
                if error is None:
                    submission.committed(timing)
                else:
                    submission.failed(error)
            except Exception:
                # A failing callback of one caller must not block the answers of others.
                _log.exception("commit callback failed")
        for listener in self.committed.listeners:
            listener()

    def heal(self) -> None:
        """Accepts writes again after a transient failure. Call it periodically."""
        if self.writer.halted:
            self.committer.reopen(Reopening(self._reopened))

    def _reopened(self) -> None:
        if self.writer.halted and not self.queue_depth:
            # Every frame numbered after the failure failed as well, so numbering continues at the end of the log.
            self.next_lsn = self.writer.written_lsn + 1
            self.writer.poison = None
            _log.warning("log shard accepts writes again", extra={"shard": self.number})
            waiting, self.after_heal = self.after_heal, {}
            for action in waiting.values():
                action()
            self.committed.emit()


class InlineCommitter:
    """Commits on the caller's stack: deterministic, for tests and tools.

    `hold` keeps submissions until `flush`; with `coalesces` as well, single records are coalesced until then.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._held: list[Submission] = []
        self._flushing = False
        self.hold = False
        self.coalesces = False
        self.outstanding = 0
        self.company = 0

    def expect(self) -> None:
        if not self.hold:
            self.flush()

    def submit(self, submission: Submission) -> None:
        self._held.append(submission)
        if not self.hold:
            self.flush()

    def flush(self) -> None:
        """Commits the held submissions. Submissions of a callback follow all that are not answered yet."""
        self._shard.stage_coalesced()
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._held:
                batch, self._held = self._held, []
                self._shard.writer.commit(batch, self._shard.finalize)
        finally:
            self._flushing = False

    def write_now(self) -> None:
        """Does nothing: everything is committed already, or held on purpose."""

    def rotate(self, rotation: Rotation) -> None:
        self.flush()
        error = self._shard.writer.rotate(rotation)
        if error is None:
            rotation.done(rotation.position)
        else:
            rotation.failed(error)

    def reopen(self, reopening: Reopening) -> None:
        self.flush()
        if self._shard.writer.can_reopen():
            reopening.done()

    def locate(self, locating: Locating) -> None:
        self.flush()
        locating.done(self._shard.writer.locate())

    def close(self) -> None:
        self.flush()
        self._shard.writer.close()
