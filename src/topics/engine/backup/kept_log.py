"""Log files that a checkpoint has absorbed and the next backup wants: moved aside instead of removed.

    backup/log/shard-NN/<16 digits>.wal     as they were in `wal/`, until a backup has them

They are held only so long as they are not too many: an unreachable place of backups must not fill the disk. What is
given up then is the log between two backups, never a backup; the moments in between cannot be restored exactly.
"""

import logging

from topics.formats.frame import Frame, read_frame
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout, number_in, wal_file

_log = logging.getLogger(__name__)


class KeptLog:
    def __init__(self, fs: FileSystem, layout: Layout, bytes_max: int) -> None:
        self._fs = fs
        self._layout = layout
        self._bytes_max = bytes_max

    def retire(self, shard: int, before: int) -> None:
        """Takes a shard's files with lower numbers out of the log, the oldest first, and keeps them."""
        source, target = self._layout.shard(shard), self._layout.kept_log(shard)
        retired = [number for number in _numbers(self._fs, source) if number < before]
        if not retired:
            return
        self._fs.make_dirs(target)
        for number in retired:
            self._fs.rename(wal_file(source, number), wal_file(target, number))
        # Not synced: whatever a power cut undoes of it, a file is in one of the two folders.
        if self.size() > self._bytes_max:
            _log.warning(
                "the log kept for the next backup is given up: there is too much of it",
                extra={"bytes_max": self._bytes_max},
            )
            self.drop()

    def size(self) -> int:
        return sum(self._size(wal_file(self._layout.kept_log(s), n)) for s in self._shards() for n in self.numbers(s))

    def numbers(self, shard: int) -> list[int]:
        """The files kept of a shard."""
        return _numbers(self._fs, self._layout.kept_log(shard))

    def read(self, shard: int, number: int) -> memoryview:
        """A file up to its last valid frame: what is behind it was reserved, or torn by a crash."""
        file = self._fs.open(wal_file(self._layout.kept_log(shard), number))
        try:
            data = file.map()
        finally:
            file.close()
        end = 0
        while isinstance(found := read_frame(data, end), Frame):
            end = found.end
        return data[:end]

    def drop(self, upto: dict[int, int] | None = None) -> None:
        """Removes what was kept; of each shard named, only the files with lower numbers."""
        for shard in self._shards():
            for number in self.numbers(shard):
                if upto is None or number < upto.get(shard, 0):
                    self._fs.remove(wal_file(self._layout.kept_log(shard), number))

    def _shards(self) -> list[int]:
        try:
            names = self._fs.list_dir(self._layout.kept_logs)
        except FileNotFoundError:
            return []
        return [number for name in names if (number := number_in(name, "shard-", "")) is not None]

    def _size(self, path: str) -> int:
        file = self._fs.open(path)
        try:
            return file.size()
        finally:
            file.close()


def _numbers(fs: FileSystem, folder: str) -> list[int]:
    try:
        names = fs.list_dir(folder)
    except FileNotFoundError:
        return []
    return sorted(number for name in names if (number := number_in(name, "", ".wal")) is not None)
