"""Write-ahead log (WAL) of one shard: numbered, preallocated files that frames are appended to.

Only the shard's writer calls this, one call at a time; a sync alone may overlap with a write. A file is made whole
(created, reserved, synced, its name made durable) before its first frame, and synced before the next file takes over;
so when frames stand in file n+1, every frame of file n was on disk.

Reserved room that was never written costs a sync twice: besides the data, the file system has to note that the room is
in use now. While syncs are small and each has somebody waiting, the room ahead is therefore filled with zeros, a piece
at a time, which is what it reads as anyway. Where much is written in small pieces it is filled as well, for the cache:
one long write takes it less than many short ones, each of which has to find a new page.

A call that fails for a reason that passes (`log.fs`) is tried again a few times. A sync is not simply repeated: the
pages it could not write may count as clean by now, and the next sync would succeed over a hole. The contents of the
cache are checked frame by frame, written once more, and then synced.

Shard writer: batches of submissions become commits, one write and at most one sync each.

A write or sync that fails poisons the writer, a lack that passes only halts it; `log.group_commit` reports what becomes
of those who wait.
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
"""Bytes that a log file reserves on a full disk: deletes are small."""
_ZEROS = bytes(256 * 1024)
_SMALL_SYNC_BYTES = 64 * 1024
"""A sync of more than this takes its time for the data."""
_SMALL_WRITE_BYTES = 16 * 1024
_PAGE_BYTES = 4096
_PAGES_BYTES = 64 * 1024
"""Bytes filled ahead for writes of up to that size: filling more would be no faster, and would keep the writer
longer."""


class LogMark(NamedTuple):
    """A place in a shard's log."""

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
        """`on_full` is told when the disk has no room for the next file, and may make some."""
        self._on_full = on_full
        self._fs = fs
        self._folder = folder
        self._file_bytes = file_bytes
        self._file: File | None = None
        self._offset = 0
        self._synced = 0
        self._room = 0
        self._filled = 0
        """Up to here the file was written to, with frames or with zeros."""
        self._doubted = False
        """Whether a sync of the file ever failed. Writes made meanwhile may count as clean as well, so from then on
        everything is written again before it is synced."""
        self.next_number = next_number
        """The number the next file will have; every frame written so far is in a lower one."""

    @property
    def unsynced(self) -> bool:
        """Whether something written is not known to be on disk."""
        return self._offset != self._synced

    def mark(self) -> LogMark:
        """The present end of the log."""
        return LogMark(self.next_number, self._offset)

    def position(self) -> LogPosition:
        """The end of the log as its files have it."""
        if self._file is None:
            return LogPosition(self.next_number, 0)
        return LogPosition(self.next_number - 1, self._offset)

    def has_room(self, size: int) -> bool:
        """Whether a write of that size needs no new file."""
        return self._file is not None and self._offset + size <= self._room

    def write(self, *parts: bytes) -> int:
        """Appends bytes that may hold many frames; they all land in one file. Each part is one write. How many bytes
        they are."""
        size = sum(map(len, parts))
        if self._file is None or self._offset + size > self._room:
            self.rotate()
            self._open_next(size)
        file, offset = self._file, self._offset
        assert file is not None
        # Where little was written since the last sync the zeros would often be on disk before what takes their place.
        if offset + size > self._filled and size <= _SMALL_WRITE_BYTES and offset - self._synced >= _SMALL_SYNC_BYTES:
            self._fill(max(self._filled, offset), _PAGES_BYTES)
        for part in parts:
            file.write_at(offset, part)
            offset += len(part)
        self._offset = offset
        return size

    def is_filled(self, size: int) -> bool:
        """Whether the room ahead stays filled far enough when so much more is written."""
        ahead = max(self._filled, self._offset + size)
        return ahead - self._offset - size >= _SMALL_SYNC_BYTES or ahead >= self._room

    def fill_ahead(self) -> None:
        """Makes the next syncs cheaper, where they are small. Nobody may write meanwhile."""
        ahead = max(self._filled, self._offset)
        small = self._offset - self._synced <= _SMALL_SYNC_BYTES
        if self._file is not None and small and not self.is_filled(0):
            self._fill(ahead, len(_ZEROS))

    def _fill(self, begin: int, size: int) -> None:
        """Writes zeros where nothing was written yet: about so many bytes, up to the end of a page."""
        assert self._file is not None
        end = min((begin + size) // _PAGE_BYTES * _PAGE_BYTES, self._room)
        try:
            self._file.write_at(begin, _ZEROS[: end - begin])
        except OSError as error:
            # Nothing is lost by it but a little speed.
            if not is_passing(error):
                raise
        else:
            self._filled = end

    def sync(self) -> None:
        """Makes everything written before this call durable; a write that comes meanwhile may or may not be."""
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
        """After a failed write or sync: removes what stands behind a mark, as far as the disk lets us.

        The callers were told that it failed, so it should not turn up after a restart. Where even this fails the
        frames may come back; that is what an unknown outcome means.
        """
        if self._file is not None:
            try:
                self._file.truncate(mark.offset if mark.next_number == self.next_number else 0)
                self._file.sync()
            except OSError:
                pass

    def restore(self, mark: LogMark) -> None:
        """After a write that failed for a reason that passes: the log ends at a mark again, durably.

        Raises `OSError` where that cannot be done: then nobody knows what the log holds.
        """
        file = self._file
        if file is None:
            return
        self._cut(file, mark)
        if self.unsynced:
            # Earlier writes are not on the disk yet, and a sync that fails here must not lose them either.
            self.sync()
        else:
            _insist(file.sync)

    def try_cut(self, mark: LogMark) -> bool:
        """After a sync that failed for a reason that passes: the log ends at a mark again, although not durably yet.

        Whether that was possible. If not, nothing has changed.
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
        # The room behind it went with the truncation, so the next write begins a file.
        self._room = self._filled = offset

    def make_ready(self) -> None:
        """Makes sure of a file to write to. Raises `OSError` while there cannot be one."""
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
            # Space reserved before the disk was full would only be missing elsewhere.
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
    """Does something, a few times if it fails for a reason that passes."""
    for tries_left in reversed(range(_TRIES)):
        try:
            action()
            return
        except OSError as error:
            if not tries_left or not is_passing(error):
                raise


def _is_whole(data: bytes, length: int) -> bool:
    """Whether bytes of the log are frames from the first to the last."""
    if len(data) != length:
        return False
    view, offset = memoryview(data), 0
    while offset < length:
        found = read_frame(view, offset)
        if not isinstance(found, Frame):
            return False
        offset = found.end
    return offset == length


# Room on the disk that is kept back, so that room can be made when there is none.
#
# A disk that is full takes no delete either: the delete has to be logged, and the checkpoint that removes the files has
# to be written first. So a file of some megabytes is reserved while there is room. The first write that meets a full
# disk gives it up, and from then on only what makes room is logged, in small files, until the reserve can be had again
# with room for a whole log file beside it: less would let writers in and out from one second to the next.

_log = logging.getLogger(__name__)


class Room:
    """Whether the disk has room: it has, as long as nobody finds out otherwise."""

    def __init__(self) -> None:
        self.short: DiskFullError | None = None
        """The error for callers that need more space; None while there is room. Read by the loop at any moment."""


class DiskRoom(Room):
    """Whether the disk has room, and the reserve. `reserve_bytes` of 0 keeps none. Any thread may call it."""

    def __init__(self, fs: FileSystem, path: str, reserve_bytes: int, spare_bytes: int) -> None:
        super().__init__()
        self._fs = fs
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._spare_bytes = spare_bytes
        self._mutex = threading.Lock()
        self.shortages = 0
        """How often the disk was found full."""

    def ran_out(self) -> None:
        """A write found the disk full: gives the reserve up."""
        with self._mutex:
            if self.short is None:
                self.short = DiskFullError()
                self.shortages += 1
                _log.error("disk full", extra=self._details())
            self._give_up()

    def begin(self) -> None:
        """Reserves at a start. A disk without room for that is full."""
        if self._reserve_bytes and not self._reserve(self._reserve_bytes):
            self.ran_out()

    def regain(self) -> bool:
        """Reserves again; whether there is room. Raises `OSError` where it is not room that is missing."""
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
        # Where even this fails, deletes will too; there is nothing else that could be given.
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
"""A write into the page cache that takes so long was made to wait: the system has more to write than the disk takes.
Less may only mean that another process had the processor meanwhile."""


class Submission:
    """Something waiting for its frames to be in the log. Subclasses define the reaction, on the loop thread."""

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
        """The error for all callers while the shard takes no writes: for good, or for as long as it is halted."""
        self._unfinished: Callable[[], None] | None = None
        """The rest of the commit that halted the shard."""
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
            # Only here: as long as somebody waits for this sync, the loop does not write by itself.
            self._log.fill_ahead()
        except OSError as error:
            self._fail_sync(error, waiting, answer, start if len(waiting) == len(batch) else None)
            return
        back_to = _Before(start, last_lsn) if len(waiting) == len(batch) else None
        self._sync_for(waiting, timing, written, answer, back_to)

    def _sync_for(
        self, waiting: list[Submission], timing: CommitTiming, written: float, answer: Answer, back_to: "_Before | None"
    ) -> None:
        """Syncs and answers those who wait for it.

        On a full disk the batch is cut off the log and refused. It is not refused before the cut has succeeded: a
        delete that was refused and comes back with a restart loses acknowledged records. If a part of the batch was
        answered already, if the cut fails, and if the failure passes by itself, the sync is tried again later.
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
        # Submissions that were answered stay; a batch that failed as a whole is taken back.
        answer(waiting, CommitTiming(), self._poison(error, back_to))

    def can_write_at_once(self, size: int) -> bool:
        """Whether a write needs nothing but the write: no new file, and no failure of others to report."""
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
        """Where the log ends; None while it takes no writes, as the position is unknown then."""
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
                    _log.warning("log sync delayed", extra={"shard": self._shard, "error": str(error)})
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
        # Writes of the loop made meanwhile wait since then at the most. Counted from before the sync, a busy log would
        # be synced again at once, and again.
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
        """After a mistake of ours in the middle of a commit: the content of the log is unknown, so it takes no more."""
        return self._poison(OSError(f"an unexpected failure: {error!r}"))

    def refuse(self, error: ReadOnlyError) -> None:
        """Takes no more writes, from any thread: what is written from now on would be found by nobody."""
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
        """Takes nothing more until `unfinished` could be done and there is a file to write to."""
        poison = self.poison = as_refusal(error)
        self._unfinished = unfinished
        _log.warning("log shard refuses writes temporarily", extra={"shard": self._shard, "error": str(error)})
        return poison

    def _poison(self, error: OSError, back_to: LogMark | None = None) -> ReadOnlyError:
        if back_to is not None:
            self._log.take_back(back_to)
        poison = self.poison = ReadOnlyError(self._shard, str(error))
        # A failed background sync has no caller to notify: without this line nobody would know before the next write.
        _log.error("log shard is read-only", extra={"shard": self._shard, "error": str(error)})
        self._on_poison()
        return poison


class _Before(NamedTuple):
    """Where the log stood before a batch of which nobody was answered yet."""

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
