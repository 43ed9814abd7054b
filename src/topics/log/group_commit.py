"""Group commit: one writer a shard writes what the event loop hands over at once, syncs it once and answers once.

`Shard` is the queue between both, `CommitWindow` and `TickWindow` decide how long a commit waits for more, and
`InlineCommitter` commits on the loop where that is faster. `log.commit_thread` is the writer's thread, `log.wal` does
the shared write and sync.

The loop thread owns `Shard`: it numbers frames, collects submissions during a tick and hands them over together. The
writer owns the files. A submission is answered on the loop thread by `committed` or `failed`, in the order of the log
within each gate: those that only need the write first, those that need the sync behind them.

The window is adaptive. A lone writer never waits: its frame is written the moment it arrives. When the last commit
served several waiting syncs, the writer lingers for a moment for the others of that cohort, because one sync for all
of them is cheaper than one each (`log.commit_thread` has the thread and the window).

A write or sync that fails poisons the shard: everyone in its batch who was not answered yet and everything behind it
fail, nothing of theirs is ever published, and the shard takes no more writes until a restart has looked at what the
disk really holds.

A write that fails for a reason that passes, a full disk or a lack of descriptors, only *halts* it. Its batch is taken
out of the log again, it and everything behind it fail, and when nothing is on its way any more the numbers go on where
the log ends and the shard takes writes again (`Shard.heal`).

## Commit policy

Pure decisions; `log.commit_thread` carries them out.

On the loop (`TickWindow`), after a group of several callers the next one stays open for two more ticks, if they are
short, and as long as some of those are missing who came lately. A small group that needs no sync is written by the loop
itself, unless a write was made to wait not long ago.

On the thread (`CommitWindow`), after a commit that several waited for the next one lingers for half as many, a slice at
a time. Under pressure every commit of its that syncs waits for company, for a wider window.

Where few wait for a sync and syncs are short (`InlineSyncPolicy`), the loop does not hand it to the thread: both ways
between the two take longer, the more so the busier the loop is, which the thread has to get the interpreter from.

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
"""How long the thread lingers at a time for the rest of a cohort; about half of what a sync costs."""
SILENCE = 0.1
"""How long it does so in a widened window, as a part of it."""

AT_ONCE_BYTES = 1024 * 1024
"""The largest group the loop writes itself; it takes a fifth of a millisecond."""
SYNC_AT_ONCE_BYTES = 32 * 1024
"""The largest group that it also syncs."""
WARY_GROUPS = 64
"""How many groups the thread writes after a write that was made to wait."""

COMPANY = 4
"""A group of so many callers is worth waiting for the next time."""
COMPANY_TICKS = 2
COMPANY_S = 0.0003

SINGLE_CALLER_GROUPS = 8
"""So many groups in a row, each of a single caller while nobody else was heard, make a lone client."""
LOOP_SYNC_S = 0.001
SINGLE_CALLER_SYNC_S = 0.002
"""The loop syncs by itself where that takes no longer than this, in the mean; for a lone client on somewhat slower
disks, too, as it keeps only those waiting who follow."""
LOOP_SYNC_SHARE = 0.1
"""How much of its time it spends so while others ask for something, too."""
LOOP_SYNC_SAVED_S = 0.02
LOOP_SYNC_LONG_S = 0.004
WARY_SYNCS = 16
WARY_SYNCS_MAX = 1024
"""How many groups the thread syncs after one that took the loop long: twice as many each time, at most. Each that does
not makes it one less. So a disk that hesitates now and then costs next to nothing, and one that is
in trouble is soon left to the thread."""

_UNKNOWN_S = 0.01
"""Assumed duration of a sync before the first measurement, which the thread makes."""


class TickWindow:
    """Decides on the loop when a group is complete, and whether the loop may write it."""

    __slots__ = ("_most", "_stalls", "_until", "_wary", "company", "ticks_left")

    def __init__(self) -> None:
        self.company = 0
        """How many callers the last group had."""
        self._most = 0
        """How many come, judged by the last groups: the most of them, and a little less with every smaller one. By the
        last one alone groups would only ever get smaller."""
        self.ticks_left = 0
        """For how many ticks more the group may stay open; with none nobody needs to look at a clock."""
        self._until = 0.0
        self._stalls = 0
        self._wary = 0
        """Groups that are left to the thread because of a stall."""

    def open(self, seconds: Callable[[], float]) -> None:
        """The first of a group is there. Where those of the last one are not worth waiting for, the clock is not asked
        at all."""
        if self.company < COMPANY:
            self.ticks_left = 0
        else:
            self.ticks_left = COMPANY_TICKS
            self._until = seconds() + COMPANY_S

    def close(self, callers: int) -> None:
        """A group of so many is handed over."""
        self.company = callers
        self._most = max(callers, self._most - (self._most >> 3) - 1)

    def stays_open(self, now: float, callers: int = 0) -> bool:
        """A tick is over: whether the group waits for one more. So many are in it, as far as that is known."""
        if not self.ticks_left or now >= self._until or callers >= self._most > 0:
            return False
        self.ticks_left -= 1
        return True

    def is_wary(self, stalls: int) -> bool:
        """Whether this group is left to the thread; `stalls` counts the writes so far that were made to wait."""
        if self._stalls != stalls:
            self._stalls, self._wary = stalls, WARY_GROUPS
        if not self._wary:
            return False
        self._wary -= 1
        return True


class InlineSyncPolicy:
    """Decides on the loop whether it syncs a group itself: for a lone client, which is all there is to do, and for few
    callers beside others, as long as that takes little of its time. One for all logs that the loop writes.

    `heard` counts the requests of all clients so far.
    """

    __slots__ = ("_caution", "_heard", "_heard_before", "_mean_s", "_saved_s", "_seen", "_streak", "_wary")

    def __init__(self, heard: Callable[[], int]) -> None:
        self._heard = heard
        self._heard_before = 0
        self._streak = 0
        """How many groups in a row were of a lone client."""
        self._wary = 0
        """Groups that are left to the thread because of a sync that took long."""
        self._caution = WARY_SYNCS
        """How many it will be the next time."""
        self._mean_s = _UNKNOWN_S
        self._seen = 0.0
        self._saved_s = 0.0
        """How much of its time the loop may spend on syncs beside others."""

    def synced(self, took_s: float, by_loop: bool) -> None:
        """A sync is done that one caller waited for, or the loop did."""
        self._mean_s += (took_s - self._mean_s) / 8
        if by_loop:
            self._saved_s = max(self._saved_s - took_s, -LOOP_SYNC_SAVED_S)
            if took_s > LOOP_SYNC_LONG_S:
                self._wary = self._caution
                self._caution = min(2 * self._caution, WARY_SYNCS_MAX)
            elif self._caution > WARY_SYNCS:
                self._caution -= 1

    def allows(self, callers: int, now: float, wide: bool = False) -> bool:
        """A group that waits for a sync is complete: whether the loop syncs it. `wide` states that the server is under
        pressure, so that groups wait for company on the thread; a lone client would wait in vain."""
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
        """How many callers the last commit synced for."""

    def widen(self, window_s: float) -> None:
        """Lets commits that sync wait so long for company, whether or not there was any before; 0 ends it.

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
        """Nothing more came: the commit is for these."""
        self._cohort = waiting


_log = logging.getLogger(__name__)


class Committer(Protocol):
    """Runs the writer of a shard."""

    coalesces: bool
    """Whether submissions wait for the end of a tick, so that it makes sense to gather until then."""
    outstanding: int
    """Submissions and rotations that another thread has and that are not answered yet."""

    @property
    def company(self) -> int:
        """How many callers the last group had."""
        ...

    def expect(self) -> None:
        """Something is coalesced: at the end of the tick it has to be staged and committed."""
        ...

    def submit(self, submission: Submission) -> None: ...

    def write_now(self) -> None:
        """Commits what was submitted where that takes the write alone; what has to wait for more waits as before."""
        ...

    def rotate(self, rotation: Rotation) -> None: ...

    def reopen(self, reopening: Reopening) -> None: ...

    def locate(self, locating: Locating) -> None: ...

    def close(self) -> None: ...


class PutOff(Protocol):
    """Something that is staged at the end of the tick, or before."""

    @property
    def waiting(self) -> int:
        """How many callers wait for that."""
        ...

    def stage(self) -> None:
        """Stages it, unless that was done."""
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
        """`moment` is the time that a frame records."""
        self.number = number
        self.writer = writer
        self._moment = moment
        self.room = room or Room()
        self.next_lsn = next_lsn
        self.first_lsn = next_lsn
        """Where this run began to count frames."""
        self.queue_bytes = 0
        self.queue_depth = 0
        self.queue_depth_peak = 0
        self.refused = 0
        """How often a write was refused because too much was on its way already."""
        self.logged_bytes = 0
        """Bytes of log since the last snapshot began."""
        self._queue_bytes_max = queue_bytes_max
        self.coalesced: deque[PutOff] = deque()
        """Appends deferred to the end of the tick (`engine.coalesce`)."""
        self.stage_pending: Callable[[], None] | None = None
        """Stages what appends may come before (`queues.queues`); None while there is nothing."""
        self.after_heal: dict[object, Callable[[], None]] = {}
        """Callbacks for when the shard takes writes again after a shortage, by subject."""
        self.committed: Event[[]] = Event()
        """A group was answered: there is room in the queue again."""
        self.committer: Committer = InlineCommitter(self)

    def frame(self, kind: FrameKind, topic_id: int, head: bytes, tail: bytes = b"") -> list[bytes]:
        """A frame with the next number of this shard; it must be submitted before any other is made."""
        lsn = self.next_lsn
        self.next_lsn = lsn + 1
        return seal_frame(kind, topic_id, lsn, self.writer.synced_lsn, head, tail, self._moment())

    def stage_coalesced(self) -> None:
        """Has staged what was put off to the end of the tick."""
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
        """Whether single records may be coalesced for the end of the tick: `check_open` would let them through."""
        return (
            self.committer.coalesces
            and self.writer.poison is None
            and self.room.short is None
            and self.queue_bytes <= self._queue_bytes_max
        )

    def check_open(self, size: int = 0, patient: bool = False, frees: bool = False, overtakes: bool = False) -> None:
        """Refuses work before a frame number is spent on it; a patient caller rather queues than is refused. Writes
        that make room are taken on a full disk as well.

        To be called before anything is staged: what came earlier in this tick and was only put off goes first. A
        submission that `overtakes` leaves the pending group where it is.
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
        """How much is on its way, as a part of what may be."""
        return self.queue_bytes / self._queue_bytes_max

    @property
    def full(self) -> bool:
        """Whether `check_open` would refuse for want of room."""
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
                # One caller's broken callback must not keep the answers of the others.
                _log.exception("commit callback failed")
        for listener in self.committed.listeners:
            listener()

    def heal(self) -> None:
        """Takes writes again after a failure that has passed. To be called now and then."""
        if self.writer.halted:
            self.committer.reopen(Reopening(self._reopened))

    def _reopened(self) -> None:
        if self.writer.halted and not self.queue_depth:
            # Whatever was numbered behind the failure has failed with it, so the numbers go on where the log ends.
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
        """Commits what is held. Submissions of a callback come behind everyone who is still to be answered."""
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
        """Everything is committed already, or held on purpose."""

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
