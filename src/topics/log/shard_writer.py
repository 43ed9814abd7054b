"""Shard writer: batches of submissions become commits, one write and at most one sync each.

A write or sync that fails poisons the writer, a lack that passes only halts it; `log.group_commit` tells what becomes
of those who wait.
"""

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from topics.log.commit_requests import CommitTiming, LatencyHistogram, LogPosition, Rotation
from topics.log.fs import as_refusal, is_passing
from topics.log.wal import LogMark, ShardLog
from topics.model.errors import ReadOnlyError, TopicsError

_STALL_S = 0.02
"""A write into the page cache that takes so long was made to wait: the system has more to write than the disk takes.
Less may only mean that another process had the processor meanwhile."""

_log = logging.getLogger(__name__)


class Submission:
    """Something waiting for its frames to be in the log. Subclasses say what happens then, on the loop thread."""

    __slots__ = ("last_lsn", "needs_sync", "pieces", "size")

    callers = 1
    """How many callers wait for it: what a cohort is counted by. Of the class, so that no constructor can forget it."""

    def __init__(self, pieces: list[bytes], needs_sync: bool) -> None:
        self.pieces = pieces
        self.needs_sync = needs_sync
        self.size = sum(map(len, pieces))
        self.last_lsn = 0

    def committed(self, timing: CommitTiming) -> None:
        raise NotImplementedError

    def failed(self, error: TopicsError) -> None:
        raise NotImplementedError


class Answer(Protocol):
    """Takes a group of submissions that fared alike back to the loop."""

    def __call__(self, group: list[Submission], timing: CommitTiming, error: TopicsError | None) -> None: ...


class Writer:
    """The file side of a shard: turns batches of submissions into commits. One thread at a time may call it."""

    def __init__(
        self,
        shard: int,
        log: ShardLog,
        last_lsn: int,
        seconds: Callable[[], float],
        on_poison: Callable[[], None] = lambda: None,
    ) -> None:
        self._shard = shard
        self._log = log
        self.seconds = seconds
        self._written_lsn = last_lsn
        self._unsynced_since = 0.0
        self.synced_lsn = last_lsn
        """Every frame up to this one is on disk. Read by the loop thread, which may see it late but never early."""
        self.poison: TopicsError | None = None
        """What everyone is told while it takes no writes: for good, or for as long as it is halted."""
        self._unfinished: Callable[[], None] | None = None
        """What is left to be done of the commit that halted it."""
        self._on_poison = on_poison
        """Told when the shard stops taking writes, on whatever thread found out."""
        self.commits = 0
        self.syncs = 0
        self.written_bytes = 0
        self.rotations = 0
        self.stalls = 0
        """Writes that were made to wait."""
        self.stall_s = _STALL_S
        self.sync_latency = LatencyHistogram()

    @property
    def next_file(self) -> int:
        """The number of the log file that is begun next."""
        return self._log.next_number

    def commit(self, batch: list[Submission], answer: Answer) -> None:
        """Writes a batch with one write and at most one sync, and answers everyone in it."""
        if self.poison is not None:
            answer(batch, CommitTiming(), self.poison)
            return
        begun, start = self.seconds(), self._log.mark()
        waiting = batch
        try:
            self._write(batch, begun)
        except OSError as error:
            answer(batch, CommitTiming(), self._fail_write(error, start))
            return
        try:
            written = self.seconds()
            if written - begun > self.stall_s:
                self.stalls += 1
            timing = CommitTiming((written - begun) * 1000.0)
            waiting = [submission for submission in batch if submission.needs_sync]
            if not waiting:
                answer(batch, timing, None)
                return
            if len(waiting) < len(batch):
                answer([submission for submission in batch if not submission.needs_sync], timing, None)
            # Only here: as long as somebody waits for this sync, the loop does not write by itself.
            self._log.fill_ahead()
        except OSError as error:
            self._fail_sync(error, waiting, answer, start if len(waiting) == len(batch) else None)
            return
        self._sync_for(waiting, timing, written, answer, start if len(waiting) == len(batch) else None)

    def _sync_for(
        self, waiting: list[Submission], timing: CommitTiming, written: float, answer: Answer, back_to: LogMark | None
    ) -> None:
        """Syncs and answers those who wait for it. Where the sync is put off, so are they."""
        try:
            self._sync()
        except OSError as error:
            if is_passing(error):
                self._halt(error, partial(self._sync_for, waiting, timing, written, answer, back_to))
            else:
                self._fail_sync(error, waiting, answer, back_to)
            return
        answer(waiting, CommitTiming(timing.write_ms, (self.seconds() - written) * 1000.0), None)

    def _fail_sync(self, error: OSError, waiting: list[Submission], answer: Answer, back_to: LogMark | None) -> None:
        # What was answered already stays; a batch that failed as a whole is taken back.
        answer(waiting, CommitTiming(), self._poison(error, back_to))

    def can_write_at_once(self, size: int) -> bool:
        """Whether a write needs nothing but the write: no new file, nobody else's failure to tell."""
        return self.poison is None and self._log.has_room(size)

    def can_sync_at_once(self, size: int) -> bool:
        """Whether a write and its sync need nothing else, and nobody else is about to sync."""
        return self.can_write_at_once(size) and not self._log.unsynced and self._log.is_filled(size)

    def unsynced_for(self) -> float | None:
        """How long the oldest unsynced write has been waiting, in seconds; None when there is none."""
        return self.seconds() - self._unsynced_since if self._log.unsynced and not self.broken else None

    def rotate(self, rotation: Rotation) -> TopicsError | None:
        if self.poison is None:
            try:
                self._log.rotate()
                self.rotations += 1
                self.synced_lsn = self._written_lsn
                rotation.position = self._log.next_number
            except OSError as error:
                if is_passing(error):
                    return as_refusal(error)
                self._poison(error)
        return self.poison

    def locate(self) -> LogPosition | None:
        """Where the log ends; None while it takes no writes, as nobody can say then."""
        return self._log.position() if self.poison is None else None

    def sync(self) -> None:
        """The background sync of class disk: bounds how much a power cut can take."""
        if not self.broken and self._log.unsynced:
            try:
                self._sync()
            except OSError as error:
                if is_passing(error):
                    # Tried again in time; until then it counts as unsynced.
                    self._unsynced_since = self.seconds()
                    _log.warning("a sync of the log is put off", extra={"shard": self._shard, "error": str(error)})
                else:
                    self._poison(error)

    @property
    def broken(self) -> bool:
        """Whether it takes no more writes for good."""
        return isinstance(self.poison, ReadOnlyError)

    @property
    def halted(self) -> bool:
        """Whether it takes no writes for now."""
        return self.poison is not None and not self.broken

    @property
    def written_lsn(self) -> int:
        """The last frame in the log."""
        return self._written_lsn

    @property
    def all_synced(self) -> bool:
        """Whether everything that was ever written is on the disk, and nothing else."""
        return not self.broken and self._unfinished is None and self.synced_lsn == self._written_lsn

    def can_reopen(self) -> bool:
        """Whether a halted log could be written to now."""
        try:
            self._finish()
            if not self.broken and self._unfinished is None:
                self._log.make_ready()
        except OSError as error:
            if not is_passing(error):
                self._poison(error)
            return False
        return not self.broken and self._unfinished is None

    def _finish(self) -> None:
        """Does what is left of the commit that halted the log. Raises `OSError` where that still cannot be done."""
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            try:
                unfinished()
            except OSError:
                self._unfinished = unfinished
                raise

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._finish()
        self.sync()
        self._log.close()

    def _write(self, batch: list[Submission], now: float) -> None:
        parts = _joined([piece for submission in batch for piece in submission.pieces])
        if parts:
            if not self._log.unsynced:
                self._unsynced_since = now
            self.written_bytes += self._log.write(*parts)
            self._written_lsn = batch[-1].last_lsn
        self.commits += 1

    def _sync(self) -> None:
        written, begun = self._written_lsn, self.seconds()
        self._log.sync()
        # What the loop has written meanwhile waits since then at the most. Counted from before the sync, a busy log
        # would be synced again at once, and again.
        self._unsynced_since = max(self._unsynced_since, begun)
        self.sync_latency.add(self.seconds() - begun)
        # The loop may have synced more meanwhile.
        self.synced_lsn = max(self.synced_lsn, written)
        self.syncs += 1

    @property
    def doubtful(self) -> bool:
        """Whether a write that failed may still be found in the log: it could not be taken back, or not yet."""
        return self.broken or self._unfinished is not None

    def give_up(self, error: Exception) -> ReadOnlyError:
        """After a mistake of ours in the middle of a commit: nobody can say what the log holds, so it takes no more."""
        return self._poison(OSError(f"an unexpected failure: {error!r}"))

    def _fail_write(self, error: OSError, start: LogMark) -> TopicsError:
        if not is_passing(error):
            return self._poison(error, start)
        restore = partial(self._log.restore, start)
        try:
            restore()
        except OSError as worse:
            if not is_passing(worse):
                return self._poison(worse, start)
            return self._halt(worse, restore)
        return self._halt(error, None)

    def _halt(self, error: OSError, unfinished: Callable[[], None] | None) -> TopicsError:
        """Takes nothing more until `unfinished` could be done and there is a file to write to."""
        poison = self.poison = as_refusal(error)
        self._unfinished = unfinished
        _log.warning("a log shard takes no writes for now", extra={"shard": self._shard, "error": str(error)})
        return poison

    def _poison(self, error: OSError, back_to: LogMark | None = None) -> ReadOnlyError:
        if back_to is not None:
            self._log.take_back(back_to)
        poison = self.poison = ReadOnlyError(self._shard, str(error))
        # A failed background sync has no caller to tell: without this line nobody would know before the next write.
        _log.error("a log shard takes no more writes", extra={"shard": self._shard, "error": str(error)})
        self._on_poison()
        return poison


def _joined(pieces: list[bytes]) -> list[bytes]:
    """What is written at once: all pieces as one, but for views (`wire.preencoding`). Those are long, and to join them
    with others would keep the interpreter from everyone else."""
    if memoryview not in map(type, pieces):
        whole = b"".join(pieces)
        return [whole] if whole else []
    parts: list[bytes] = []
    some: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, memoryview):
            parts += (b"".join(some), piece)
            some = []
        else:
            some.append(piece)
    return [part for part in (*parts, b"".join(some)) if part]
