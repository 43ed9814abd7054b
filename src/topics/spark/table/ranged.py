"""One column of a Parquet file, without fetching the rest of it."""

import pyarrow as pa
import pyarrow.parquet as pq

from topics.storage.fs import File, FileSystem
from topics.storage.objects.tiers import open_ranged


def read_column(fs: FileSystem, path: str, name: str) -> pa.ChunkedArray:
    file = open_ranged(fs, path)
    try:
        return pq.read_table(pa.PythonFile(_Cursor(file), mode="r"), columns=[name], partitioning=None)[name]
    finally:
        file.close()


class _Cursor:
    """A file as Arrow wants one: with a place in it that moves."""

    closed = False

    def __init__(self, file: File) -> None:
        self._file = file
        self._place = 0

    def read(self, length: int = -1) -> bytes:
        left = self._file.size() - self._place
        data = self._file.read_at(self._place, left if length < 0 else min(length, left))
        self._place += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = offset + (0, self._place, self._file.size())[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def close(self) -> None:
        """Whoever opened the file closes it."""
