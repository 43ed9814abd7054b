"""Log files that a checkpoint has absorbed and the next backup wants: moved aside instead of removed.

    backup/log/shard-NN/<16 digits>.wal     as they were in `wal/`, until a backup has them
    backup/log/run                          where the run ended that the last backup is of: a line of `NUMBER SHARD:FILE
                                            SHARD:FILE ...`, with the number of the newest checkpoint at that start

What a recovery decides stands in no frame, so the log of a later run does not continue the state of an earlier one. The
first start after a backup therefore notes with which files its own log begins; there the log of that backup ends.
Whether a backup counts is known for sure at its place only, so there may be two lines: the first start after the last
one that counts, and the first one after the one that was being taken.

They are held only so long as they are not too many: an unreachable place of backups must not fill the disk. What is
given up then is the log between two backups, never a backup; the moments in between cannot be restored exactly.
"""

import logging
from collections.abc import Mapping
from sys import maxsize
from typing import NamedTuple

from topics.formats.frame import Frame, read_frame
from topics.storage.fs import FileSystem, map_file, read_small, write_small
from topics.storage.layout import Layout, number_in, wal_file, wal_numbers

_log = logging.getLogger(__name__)


class _Start(NamedTuple):
    """A line of `run`."""

    checkpoint: int
    first_files: Mapping[int, int]

    def __str__(self) -> str:
        return " ".join([str(self.checkpoint), *(f"{shard}:{number}" for shard, number in self.first_files.items())])


def _start_of(line: str) -> _Start:
    words = [word.partition(":") for word in line.split()]
    # Older servers noted no number, and one line.
    checkpoint = next((int(word) for word, colon, _ in words if not colon), maxsize)
    return _Start(checkpoint, {int(shard): int(number) for shard, colon, number in words if colon})


class KeptLog:
    def __init__(self, fs: FileSystem, layout: Layout, bytes_max: int) -> None:
        self._fs = fs
        self._layout = layout
        self._bytes_max = bytes_max

    def retire(self, shard: int, before: int) -> None:
        """Takes a shard's files with lower numbers out of the log, the oldest first, and keeps them."""
        source, target = self._layout.shard(shard), self._layout.kept_log(shard)
        retired = [number for number in self._numbers(source) if number < before]
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
            self._drop_files({})

    def size(self) -> int:
        return sum(len(map_file(self._fs, path)) for shard in self._shards() for path in self._paths(shard))

    def numbers(self, shard: int) -> list[int]:
        """The files kept of a shard."""
        return self._numbers(self._layout.kept_log(shard))

    def read(self, shard: int, number: int) -> memoryview:
        """A file up to its last valid frame: what is behind it was reserved, or torn by a crash."""
        data, end = map_file(self._fs, wal_file(self._layout.kept_log(shard), number)), 0
        while isinstance(found := read_frame(data, end), Frame):
            end = found.end
        return data[:end]

    # Runs

    def begin_run(self, checkpoint: int, first_files: Mapping[int, int], last: int, next_: int) -> None:
        """A start at a checkpoint, which goes on with these files. `last` is the newest backup that counts, and `next_`
        the one that may. Only the first start after a backup ends that backup's log.
        """
        noted = [start for start in self._starts() if start.checkpoint >= last][:1]
        if noted and noted[0].checkpoint >= next_:
            return
        self._fs.make_dirs(self._layout.kept_logs)
        text = "\n".join(str(start) for start in (*noted, _Start(checkpoint, first_files)))
        write_small(self._fs, self._layout.kept_run, text, self._layout.kept_logs)

    def run_ends(self, backup: int) -> Mapping[int, int]:
        """With which files the run after that of a backup began, by shard; empty while that run goes on."""
        return next((start.first_files for start in self._starts() if start.checkpoint >= backup), {})

    def _starts(self) -> "list[_Start]":
        return [_start_of(line) for line in read_small(self._fs, self._layout.kept_run).splitlines()]

    # The end

    def drop(self, upto: Mapping[int, int] | None = None) -> None:
        """A backup has the files with lower numbers of each shard: they go, and its run is the one that goes on.
        Without numbers everything goes.
        """
        self._drop_files(upto or {})
        if self._fs.exists(self._layout.kept_run):
            self._fs.remove(self._layout.kept_run)
            self._fs.sync_dir(self._layout.kept_logs)

    def _drop_files(self, upto: Mapping[int, int]) -> None:
        for shard in self._shards():
            for number in self.numbers(shard):
                if not upto or number < upto.get(shard, 0):
                    self._fs.remove(wal_file(self._layout.kept_log(shard), number))

    def _shards(self) -> list[int]:
        names = self._list(self._layout.kept_logs)
        return [number for name in names if (number := number_in(name, "shard-", "")) is not None]

    def _paths(self, shard: int) -> list[str]:
        folder = self._layout.kept_log(shard)
        return [wal_file(folder, number) for number in self._numbers(folder)]

    def _numbers(self, folder: str) -> list[int]:
        return wal_numbers(self._list(folder))

    def _list(self, folder: str) -> list[str]:
        try:
            return self._fs.list_dir(folder)
        except FileNotFoundError:
            return []
