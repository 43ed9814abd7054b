"""One shard's log on disk: numbered, preallocated files that frames are appended to.

Only the shard's writer calls this, one call at a time; a sync alone may overlap with a write. A file is made whole
(created, reserved, synced, its name made durable) before its first frame, and synced before the next file takes over;
so when frames stand in file n+1, every frame of file n was on disk.

Reserved room that was never written costs a sync twice: besides the data, the file system has to note that the room is
in use now. While syncs are small and each has somebody waiting, the room ahead is therefore filled with zeros, a piece
at a time, which is what it reads as anyway.
"""

from typing import NamedTuple

from topics.storage.fs import File, FileSystem
from topics.storage.layout import wal_file

_ZEROS = bytes(256 * 1024)
_SMALL_SYNC_BYTES = 64 * 1024
"""A sync of more than this takes its time for the data."""


class LogMark(NamedTuple):
    """A place in a shard's log."""

    next_number: int
    offset: int


class ShardLog:
    """The growing end of a shard's log."""

    def __init__(self, fs: FileSystem, folder: str, next_number: int, file_bytes: int) -> None:
        self._fs = fs
        self._folder = folder
        self._file_bytes = file_bytes
        self._file: File | None = None
        self._offset = 0
        self._synced = 0
        self._room = 0
        self._filled = 0
        """Up to here the file was written to, with frames or with zeros."""
        self.next_number = next_number
        """The number the next file will have; every frame written so far is in a lower one."""

    @property
    def unsynced(self) -> bool:
        """Whether something written is not known to be on disk."""
        return self._offset != self._synced

    def mark(self) -> LogMark:
        """The present end of the log."""
        return LogMark(self.next_number, self._offset)

    def has_room(self, size: int) -> bool:
        """Whether a write of that size needs no new file."""
        return self._file is not None and self._offset + size <= self._room

    def write(self, data: bytes) -> None:
        """Appends bytes that may hold many frames; they all land in one file."""
        if self._file is None or self._offset + len(data) > self._room:
            self.rotate()
            self._open_next(len(data))
        assert self._file is not None
        self._file.write_at(self._offset, data)
        self._offset += len(data)

    def fill_ahead(self) -> None:
        """Makes the next syncs cheaper, where they are small. Nobody may write meanwhile."""
        ahead = max(self._filled, self._offset)
        small = self._offset - self._synced <= _SMALL_SYNC_BYTES
        if self._file is not None and small and ahead - self._offset < _SMALL_SYNC_BYTES and ahead < self._room:
            self._filled = min(ahead + len(_ZEROS), self._room)
            self._file.write_at(ahead, _ZEROS[: self._filled - ahead])

    def sync(self) -> None:
        """Makes everything written before this call durable; a write that comes meanwhile may or may not be."""
        offset = self._offset
        if self._file is not None and offset != self._synced:
            self._file.sync()
            self._synced = offset

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

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open_next(self, needed: int) -> None:
        file = self._fs.open(wal_file(self._folder, self.next_number), create=True)
        try:
            self._room = max(self._file_bytes, needed)
            file.allocate(self._room)
            file.sync()
            self._fs.sync_dir(self._folder)
        except OSError:
            file.close()
            raise
        self._file = file
        self._offset = self._synced = self._filled = 0
        self.next_number += 1
