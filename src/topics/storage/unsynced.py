"""Files that are written at one time and synced at another, and what a sync that fails means for them.

Linux may count pages as clean that a sync could not write: they are still read, and the next sync succeeds without
them. So a file whose sync failed is written again before it is synced again. It is taken from the file itself, since
nobody else has it any more; a checksum from when it was written tells whether the system still has all of it.
"""

import errno
from collections.abc import Sequence

from xxhash import xxh3_64

from topics.storage.fs import File, FileSystem


class UnsyncedFiles:
    """Every method may be called from any thread; of one file, one at a time."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._written: dict[str, int] = {}
        """The checksums of files that were not synced yet."""
        self._doubted: set[str] = set()
        """Those of them whose sync failed."""

    def write(self, path: str, pieces: Sequence[bytes]) -> None:
        """Writes a whole file, and leaves the sync to `sync`."""
        file = self._fs.open(path, create=True)
        try:
            file.write_whole(pieces)
        finally:
            file.close()
        digest = xxh3_64()
        for piece in pieces:
            digest.update(piece)
        self._written[path] = digest.intdigest()
        self._doubted.discard(path)

    def sync(self, path: str) -> None:
        """Makes a file survive a crash as it was written; raises `OSError` where that is not certain."""
        file = self._fs.open(path, write=True)
        try:
            if path in self._doubted:
                self._write_again(path, file)
            try:
                file.sync()
            except OSError:
                self._doubted.add(path)
                raise
        finally:
            file.close()
        self.forget(path)

    def forget(self, path: str) -> None:
        """The file is synced, or removed."""
        self._written.pop(path, None)
        self._doubted.discard(path)

    def _write_again(self, path: str, file: File) -> None:
        data = file.read_at(0, file.size())
        if xxh3_64(data).intdigest() != self._written.get(path):
            raise OSError(errno.EIO, "a sync failed, and what it should have written is gone", path)
        file.write_at(0, data)
