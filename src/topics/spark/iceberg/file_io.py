"""Iceberg FileIO on a `FileSystem`, so that table files are stored where the archive is: folder or object store."""

import io
from types import TracebackType

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from topics.log.fs import FileSystem, read_whole


class TableIO(FileIO):
    """Reads and writes whole files: metadata files are small."""

    def __init__(self, fs: FileSystem) -> None:
        super().__init__({})
        self._fs = fs

    def new_input(self, location: str) -> InputFile:
        return _Input(self._fs, location)

    def new_output(self, location: str) -> OutputFile:
        return _Output(self._fs, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._fs.remove(location if isinstance(location, str) else location.location)


class _Input(InputFile):
    def __init__(self, fs: FileSystem, location: str) -> None:
        super().__init__(location)
        self._fs = fs

    def __len__(self) -> int:
        return len(self._whole())

    def exists(self) -> bool:
        return self._fs.exists(self.location)

    def open(self, seekable: bool = True) -> InputStream:
        return io.BytesIO(self._whole())

    def _whole(self) -> bytes:
        data = read_whole(self._fs, self.location)
        if data is None:
            raise FileNotFoundError(self.location)
        return data


class _Output(OutputFile):
    def __init__(self, fs: FileSystem, location: str) -> None:
        super().__init__(location)
        self._fs = fs
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def exists(self) -> bool:
        return self._fs.exists(self.location)

    def to_input_file(self) -> InputFile:
        return _Input(self._fs, self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        return _Stream(self)

    def put(self, data: bytes) -> None:
        write_synced(self._fs, self.location, data)
        self._length = len(data)


class _Stream:
    """Writes its bytes to the file when it is closed, and nothing after an exception."""

    def __init__(self, output: _Output) -> None:
        self._output = output
        self._pieces: list[bytes] | None = []

    def write(self, b: bytes) -> int:
        assert self._pieces is not None
        self._pieces.append(bytes(b))
        return len(b)

    def tell(self) -> int:
        return sum(map(len, self._pieces or ()))

    def close(self) -> None:
        pieces, self._pieces = self._pieces, None
        if pieces is not None:
            self._output.put(b"".join(pieces))

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._pieces = None
        self.close()


def write_synced(fs: FileSystem, path: str, data: bytes | memoryview) -> None:
    """Writes a new file and syncs it. The name is durable after the folder is synced."""
    file = fs.open(path, create=True)
    try:
        file.truncate(0)
        file.write_at(0, data)
        file.sync()
    finally:
        file.close()
