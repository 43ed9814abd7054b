"""Write-ahead log (WAL) of one shard: numbered, preallocated files that frames are appended to.

Only the shard's writer calls this, one call at a time; a sync alone may overlap with a write. A file is made whole
(created, reserved, synced, its name made durable) before its first frame, and synced before the next file takes over;
so if file n+1 has frames, every frame of file n was on disk.

A sync of reserved but unwritten space costs twice: besides the data, the file system records that the space is now in
use. While syncs are small and each has a waiting caller, the space ahead is therefore filled with zeros, a piece at a
time; unwritten space reads as zeros anyway. Many small writes also fill it ahead, for the page cache: one long write is
cheaper than many short ones, each of which allocates a page.

A call with a transient failure (`log.fs`) is retried a few times. A sync is not simply repeated: the pages that it
could not write may count as clean by now, and the next sync would succeed over a hole. The cached contents are verified
frame by frame, written again, and then synced.

Shard writer: batches of submissions become commits, one write and at most one sync each.

A failed write or sync poisons the writer, a transient shortage only halts it; `log.group_commit` describes the effect
on waiting callers.
"""

import contextlib
import errno
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from topics.log.commit_requests import CommitTiming, LatencyHistogram, LogPosition, Rotation
from topics.log.frame import Frame, read_frame
from topics.log.fs import File, FileSystem, as_refusal, is_full, is_passing
from topics.log.layout import wal_file
from topics.model.errors import DiskFullError, ReadOnlyError, TopicsError

_TRIES = 3
_NARROW_BYTES = 64 * 1024
"""Bytes that a log file reserves on a full disk. Deletes are small."""
_ZEROS = bytes(256 * 1024)
_SMALL_SYNC_BYTES = 64 * 1024
"""The duration of a larger sync is dominated by the data."""
_SMALL_WRITE_BYTES = 16 * 1024
_PAGE_BYTES = 4096
_PAGES_BYTES = 64 * 1024
"""Bytes filled ahead for small writes: filling more would not be faster and would block the writer longer."""


class LogMark(NamedTuple):
    """A position in a shard's log."""

    next_number: int
    offset: int


class ShardLog:
    """The growing end of a shard's log."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        next_number: int,
        file_bytes: int,
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_full` is called if the disk has no room for the next file, and may free some."""
        self._on_full = on_full
        self._fs = fs
        self._folder = folder
        self._file_bytes = file_bytes
        self._file: File | None = None
        self._offset = 0
        self._synced = 0
        self._room = 0
        self._filled = 0
        """The end of the written part of the file, with frames or zeros."""
        self._doubted = False
        """Whether a sync of the file ever failed. Later writes may count as clean as well, so from then on everything
        is written again before it is synced."""
        self.next_number = next_number
        """The number of the next file; every frame written so far is in a lower one."""

    @property
    def unsynced(self) -> bool:
        """Whether any written bytes are not known to be on disk."""
        return self._offset != self._synced

    def mark(self) -> LogMark:
        """The current end of the log."""
        return LogMark(self.next_number, self._offset)

    def position(self) -> LogPosition:
        """The end of the log according to its files."""
        if self._file is None:
            return LogPosition(self.next_number, 0)
        return LogPosition(self.next_number - 1, self._offset)

    def has_room(self, size: int) -> bool:
        """Returns whether a write of that size fits into the current file."""
        return self._file is not None and self._offset + size <= self._room

    def write(self, *parts: bytes) -> int:
        """Appends bytes of one or more frames to one file, with one write for each part. Returns their size."""
        size = sum(map(len, parts))
        if self._file is None or self._offset + size > self._room:
            self.rotate()
            self._open_next(size)
        file, offset = self._file, self._offset
        assert file is not None
        # If little was written since the last sync, the zeros would often be flushed before the frames that replace
        # them.
        if offset + size > self._filled and size <= _SMALL_WRITE_BYTES and offset - self._synced >= _SMALL_SYNC_BYTES:
            self._fill(max(self._filled, offset), _PAGES_BYTES)
        for part in parts:
            file.write_at(offset, part)
            offset += len(part)
        self._offset = offset
        return size

    def is_filled(self, size: int) -> bool:
        """Returns whether the filled space remains sufficient after so many more bytes."""
        ahead = max(self._filled, self._offset + size)
        return ahead - self._offset - size >= _SMALL_SYNC_BYTES or ahead >= self._room

    def fill_ahead(self) -> None:
        """Fills space ahead to make small syncs cheaper. No write may run meanwhile."""
        ahead = max(self._filled, self._offset)
        small = self._offset - self._synced <= _SMALL_SYNC_BYTES
        if self._file is not None and small and not self.is_filled(0):
            self._fill(ahead, len(_ZEROS))

    def _fill(self, begin: int, size: int) -> None:
        """Writes zeros to unwritten space: about so many bytes, up to the end of a page."""
        assert self._file is not None
        end = min((begin + size) // _PAGE_BYTES * _PAGE_BYTES, self._room)
        try:
            self._file.write_at(begin, _ZEROS[: end - begin])
        except OSError as error:
            # A failure costs only a little speed.
            if not is_passing(error):
                raise
        else:
            self._filled = end

    def sync(self) -> None:
        """Makes all writes before this call durable; concurrent writes may or may not be included."""
        offset = self._offset
        if self._file is not None and offset != self._synced:
            if not self._doubted:
                try:
                    self._file.sync()
                except OSError as error:
                    self._doubted = True
                    if not is_passing(error):
                        raise
            if self._doubted:
                _insist(lambda: self._write_and_sync_again(offset))
            self._synced = offset

    def _write_and_sync_again(self, upto: int) -> None:
        file = self._file
        assert file is not None
        data = file.read_at(self._synced, upto - self._synced)
        if not _is_whole(data, upto - self._synced):
            raise OSError(errno.EIO, "a sync failed, and what it should have written is gone")
        file.write_at(self._synced, data)
        file.sync()

    def rotate(self) -> None:
        """Finishes the current file; the next write starts a new one."""
        if self._file is not None:
            self.sync()
            self._file.close()
            self._file = None
            self._offset = self._synced = 0

    def take_back(self, mark: LogMark) -> None:
        """Truncates the log at a mark after a failed write or sync, if the disk allows it.

        The callers got an error, so the frames should not reappear after a restart. If the truncation fails they may
        reappear: the outcome is unknown.
        """
        if self._file is not None:
            try:
                self._file.truncate(mark.offset if mark.next_number == self.next_number else 0)
                self._file.sync()
            except OSError:
                pass

    def restore(self, mark: LogMark) -> None:
        """Truncates the log durably at a mark after a transient write failure.

        Raises `OSError` if that fails: the contents of the log are then unknown.
        """
        file = self._file
        if file is None:
            return
        self._cut(file, mark)
        if self.unsynced:
            # Earlier writes are not on the disk yet, and a failed sync must not lose them either.
            self.sync()
        else:
            _insist(file.sync)

    def try_cut(self, mark: LogMark) -> bool:
        """Truncates the log at a mark after a transient sync failure, not yet durably.

        Returns whether that was possible. If not, nothing has changed.
        """
        if self._file is None:
            return False
        try:
            self._cut(self._file, mark)
        except OSError:
            return False
        return True

    def _cut(self, file: File, mark: LogMark) -> None:
        offset = mark.offset if mark.next_number == self.next_number else 0
        _insist(lambda: file.truncate(offset))
        # After a failed sync the end was past the mark already.
        self._offset = min(self._offset, offset)
        self._synced = min(self._synced, offset)
        # The truncation removed the reserved space, so the next write begins a new file.
        self._room = self._filled = offset

    def make_ready(self) -> None:
        """Ensures that there is a file to write to. Raises `OSError` if none can be created."""
        if self._file is None or self._offset >= self._room:
            self.rotate()
            self._open_next(0)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open_next(self, needed: int) -> None:
        size = max(self._file_bytes, needed)
        for tries_left in reversed(range(_TRIES)):
            try:
                self._make_next(size)
                return
            except OSError as error:
                if not tries_left or not is_passing(error):
                    raise
                if is_full(error):
                    self._on_full()
                    size = max(min(self._file_bytes, _NARROW_BYTES), needed)

    def _make_next(self, size: int) -> None:
        file = self._fs.open(wal_file(self._folder, self.next_number), create=True)
        try:
            file.allocate(size)
            file.sync()
            self._fs.sync_dir(self._folder)
        except OSError:
            # Space reserved before the disk was full would be missing elsewhere.
            with contextlib.suppress(OSError):
                file.truncate(0)
            file.close()
            raise
        self._room = size
        self._file = file
        self._offset = self._synced = self._filled = 0
        self._doubted = False
        self.next_number += 1


def _insist(action: Callable[[], None]) -> None:
    """Calls a function and retries it a few times after transient failures."""
    for tries_left in reversed(range(_TRIES)):
        try:
            action()
            return
        except OSError as error:
            if not tries_left or not is_passing(error):
                raise


def _is_whole(data: bytes, length: int) -> bool:
    """Returns whether bytes of the log consist of complete frames only."""
    if len(data) != length:
        return False
    view, offset = memoryview(data), 0
    while offset < length:
        found = read_frame(view, offset)
        if not isinstance(found, Frame):
            return False
        offset = found.end
    return offset == length


# Disk reserve: space that is kept back, so that deletes can be logged on a full disk.
#
# A full disk would also block deletes: a delete must be logged, and the checkpoint that removes the files must be
# written first. So a file of some megabytes is reserved while there is space. The first write that meets a full disk
# releases it, and from then on only operations that free space are logged, in small files, until the reserve and a
# whole log file fit again: a lower threshold would open and close the server for writes every second.

_log = logging.getLogger(__name__)


class Room:
    """Reports whether the disk has room. This one always does, unless a subclass detects otherwise."""

    def __init__(self) -> None:
        self.short: DiskFullError | None = None
        """The error for callers that need more space, or None. Read by the loop at any moment."""


class DiskRoom(Room):
    """Tracks whether the disk has room, and keeps the reserve. `reserve_bytes` of 0 keeps none. Any thread may call
    it."""

    def __init__(self, fs: FileSystem, path: str, reserve_bytes: int, spare_bytes: int) -> None:
        super().__init__()
        self._fs = fs
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._spare_bytes = spare_bytes
        self._mutex = threading.Lock()
        self.shortages = 0
        """The number of times that the disk was found full."""

    def ran_out(self) -> None:
        """Releases the reserve after a write found the disk full."""
        with self._mutex:
            if self.short is None:
                self.short = DiskFullError()
                self.shortages += 1
                _log.error("disk full", extra=self._details())
            self._give_up()

    def begin(self) -> None:
        """Creates the reserve at startup. A disk without room for it counts as full."""
        if self._reserve_bytes and not self._reserve(self._reserve_bytes):
            self.ran_out()

    def regain(self) -> bool:
        """Creates the reserve again; returns whether there is room. Raises `OSError` for other failures."""
        with self._mutex:
            if not self._reserve(self._reserve_bytes + self._spare_bytes):
                return False
            if self.short is not None:
                self.short = None
                _log.warning("disk has space again", extra=self._details())
            return True

    def _reserve(self, nbytes: int) -> bool:
        try:
            file = self._fs.open(self._path, create=True)
        except OSError as error:
            if is_passing(error):
                return False
            raise
        try:
            file.allocate(nbytes)
            file.truncate(self._reserve_bytes)
            file.sync()
            return True
        except OSError as error:
            with contextlib.suppress(OSError):
                file.truncate(0)
            if is_passing(error):
                return False
            raise
        finally:
            file.close()

    def _give_up(self) -> None:
        # If this fails, deletes fail too: there is no other space to release.
        with contextlib.suppress(OSError):
            file = self._fs.open(self._path, write=True)
            try:
                file.truncate(0)
                file.sync()
            finally:
                file.close()

    def _details(self) -> dict[str, object]:
        return {"reserve_bytes": self._reserve_bytes, "needed_bytes": self._reserve_bytes + self._spare_bytes}


_STALL_S = 0.02
"""A write into the page cache that takes so long has stalled: the system has more dirty pages than the disk can write.
A shorter delay may only mean that another process had the processor."""


class Submission:
    """A caller that waits for its frames to be logged. Subclasses define the reaction, on the loop thread."""

    __slots__ = ("last_lsn", "needs_sync", "pieces", "size")

    callers = 1
    """The number of callers that wait for it, which determines the size of a cohort. A class attribute, so that every
    constructor has a value."""

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
    """Passes a group of submissions with the same outcome back to the loop."""

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
        """Every frame up to this one is on disk. Read by the loop thread, where the value may be late but never
        early."""
        self.poison: TopicsError | None = None
        """The error for all callers while the shard is read-only: permanently, or while it is halted."""
        self._unfinished: Callable[[], None] | None = None
        """The rest of the commit that halted the shard."""
        self._on_poison = on_poison
        """Called when the shard becomes read-only, on the detecting thread."""
        self.commits = 0
        self.syncs = 0
        self.written_bytes = 0
        self.rotations = 0
        self.stalls = 0
        """The number of stalled writes."""
        self.stall_s = _STALL_S
        self.sync_latency = LatencyHistogram()

    @property
    def next_file(self) -> int:
        """The number of the next log file."""
        return self._log.next_number

    def commit(self, batch: list[Submission], answer: Answer) -> None:
        """Writes a batch with one write and at most one sync, and answers its submissions."""
        if self.poison is not None:
            answer(batch, CommitTiming(), self.poison)
            return
        begun, start, last_lsn = self.seconds(), self._log.mark(), self._written_lsn
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
            # Only here: while callers wait for this sync, the loop does not write itself.
            self._log.fill_ahead()
        except OSError as error:
            self._fail_sync(error, waiting, answer, start if len(waiting) == len(batch) else None)
            return
        back_to = _Before(start, last_lsn) if len(waiting) == len(batch) else None
        self._sync_for(waiting, timing, written, answer, back_to)

    def _sync_for(
        self, waiting: list[Submission], timing: CommitTiming, written: float, answer: Answer, back_to: "_Before | None"
    ) -> None:
        """Syncs and answers the waiting submissions.

        On a full disk the batch is truncated from the log and refused. It is refused only after the truncation: a
        refused delete that reappears with a restart loses acknowledged records. If a part of the batch was answered
        already, if the truncation fails, or if the failure is transient, the sync is retried later.
        """
        try:
            self._sync()
        except OSError as error:
            if is_full(error) and back_to is not None and self._log.try_cut(back_to.mark):
                self._written_lsn = back_to.lsn
                answer(waiting, CommitTiming(), self._fail_write(error, back_to.mark))
            elif is_passing(error):
                self._halt(error, partial(self._sync_for, waiting, timing, written, answer, back_to))
            else:
                self._fail_sync(error, waiting, answer, back_to.mark if back_to is not None else None)
            return
        answer(waiting, CommitTiming(timing.write_ms, (self.seconds() - written) * 1000.0), None)

    def _fail_sync(self, error: OSError, waiting: list[Submission], answer: Answer, back_to: LogMark | None) -> None:
        # Answered submissions stay; a batch that failed as a whole is truncated.
        answer(waiting, CommitTiming(), self._poison(error, back_to))

    def can_write_at_once(self, size: int) -> bool:
        """Returns whether a write needs no other work: no new file, and no earlier failure to report."""
        return self.poison is None and self._log.has_room(size)

    def can_sync_at_once(self, size: int) -> bool:
        """Returns whether a write and its sync need no other work, and no other sync is pending."""
        return self.can_write_at_once(size) and not self._log.unsynced and self._log.is_filled(size)

    def unsynced_for(self) -> float | None:
        """The age of the oldest unsynced write in seconds; None if there is none."""
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
        """The end of the log; None while the shard is read-only, because the position is then unknown."""
        return self._log.position() if self.poison is None else None

    def sync(self) -> None:
        """Runs the background sync of class disk, which bounds the loss in a power cut."""
        if not self.broken and self._log.unsynced:
            try:
                self._sync()
            except OSError as error:
                if is_passing(error):
                    # Tried again in time; until then it counts as unsynced.
                    self._unsynced_since = self.seconds()
                    _log.warning("log sync delayed", extra={"shard": self._shard, "error": str(error)})
                else:
                    self._poison(error)

    @property
    def broken(self) -> bool:
        """Whether it is permanently read-only."""
        return isinstance(self.poison, ReadOnlyError)

    @property
    def halted(self) -> bool:
        """Whether it is halted."""
        return self.poison is not None and not self.broken

    @property
    def written_lsn(self) -> int:
        """The last frame in the log."""
        return self._written_lsn

    @property
    def all_synced(self) -> bool:
        """Whether the disk has exactly the bytes that were written."""
        return not self.broken and self._unfinished is None and self.synced_lsn == self._written_lsn

    def can_reopen(self) -> bool:
        """Resumes a halted log; returns whether it accepts writes again."""
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
        """Finishes the commit that halted the log. Raises `OSError` if that still fails."""
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
        # Concurrent writes of the loop have waited since then at most. Counted from before the sync, a busy log would
        # be synced again and again.
        self._unsynced_since = max(self._unsynced_since, begun)
        self.sync_latency.add(self.seconds() - begun)
        # The loop may have synced more meanwhile.
        self.synced_lsn = max(self.synced_lsn, written)
        self.syncs += 1

    @property
    def doubtful(self) -> bool:
        """Returns whether a failed write may still be in the log, because it could not be truncated, or not yet."""
        return self.broken or self._unfinished is not None

    def give_up(self, error: Exception) -> ReadOnlyError:
        """Makes the log read-only after an internal error during a commit: its contents are unknown."""
        return self._poison(OSError(f"an unexpected failure: {error!r}"))

    def refuse(self, error: ReadOnlyError) -> None:
        """Makes the log read-only, from any thread: later writes would never be read."""
        self.poison = error

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
        """Halts the log until `unfinished` succeeds and there is a file to write to."""
        poison = self.poison = as_refusal(error)
        self._unfinished = unfinished
        _log.warning("log shard refuses writes temporarily", extra={"shard": self._shard, "error": str(error)})
        return poison

    def _poison(self, error: OSError, back_to: LogMark | None = None) -> ReadOnlyError:
        if back_to is not None:
            self._log.take_back(back_to)
        poison = self.poison = ReadOnlyError(self._shard, str(error))
        # A failed background sync has no caller to notify: without this log line it would go unnoticed until the next
        # write.
        _log.error("log shard is read-only", extra={"shard": self._shard, "error": str(error)})
        self._on_poison()
        return poison


class _Before(NamedTuple):
    """The end of the log before a batch without answered submissions."""

    mark: LogMark
    lsn: int


def _joined(pieces: list[bytes]) -> list[bytes]:
    """The buffers to write: all pieces joined into one, except views (`wire.preencoding`). Long submissions: joining
    them with others would block the interpreter."""
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
