"""Group commit: one writer a shard takes what the event loop hands over, writes it at once and answers once.

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
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from topics.log.commit_requests import CommitTiming, Locating, Reopening, Rotation
from topics.log.frame import FrameKind, seal_frame
from topics.log.shard_writer import Submission, Writer
from topics.log.wal import Room
from topics.model.errors import ThrottledError, TopicsError
from topics.system.events import Event

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
        """`moment` is what a frame says of its time."""
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
        self.gathered: Callable[[], None] | None = None
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
        gathered, self.gathered = self.gathered, None
        if gathered is not None:
            gathered()

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
        """Refuses work before a frame number is spent on it; a patient caller rather queues than is refused. What
        makes room is taken on a full disk as well.

        To be called before anything is staged: what came earlier in this tick and was only put off goes first. Who
        `overtakes` leaves what was gathered where it is.
        """
        if self.coalesced:
            self._stage_records()
        if self.gathered is not None and not overtakes:
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
                _log.exception("a commit callback failed")
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
            _log.warning("a log shard takes writes again", extra={"shard": self.number})
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
        """Commits what is held. What an answer submits comes behind everyone who is still to be answered."""
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
