"""Remote data folder: the data folder for Spark tasks on machines that do not have it.

Files are read over HTTP from the server of the folder (`GET /v0/pipeline/files`, scope admin), and fetched to a
temporary file, so that a large one needs no memory. Files are written below `transfer`, a place in the object store
that every machine reaches; the driver copies them into the folder before a manifest names them. A killed or repeated
task leaves unreferenced files there, which the next process that runs the pipeline removes.

The key of the server is taken from the task's own environment, TOPICS_API_KEY, and never sent with the work.
"""

import contextlib
import http.client
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import NoReturn
from urllib.parse import quote, urlsplit

from topics.log.fs import BytesLike, File, FileSystem, FolderLock
from topics.log.object_store.store import StoreUnavailable
from topics.log.object_store.tiered_fs import open_ranged

PART_BYTES = 4 * 1024 * 1024
_TIMEOUT_S = 60.0
_ATTEMPTS = 3


class FetchedFile:
    """A fetched file, for reading."""

    def __init__(self, parts: "FileSource", path: str) -> None:
        with tempfile.TemporaryFile() as file:
            size, at = 1, 0
            while at < size:
                data, size = parts.read(path, at, PART_BYTES)
                if not data:
                    break
                file.write(data)
                at += len(data)
            file.flush()
            self._view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if at else b"")

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(self._view[offset : offset + length])

    def size(self) -> int:
        return len(self._view)

    def map(self) -> memoryview:
        return self._view

    def write_at(self, offset: int, data: BytesLike) -> None:
        raise OSError("a file of another machine is read only")

    def write_whole(self, pieces: Sequence[BytesLike]) -> None:
        self.write_at(0, b"")

    def truncate(self, length: int) -> None:
        self.write_at(0, b"")

    def allocate(self, length: int) -> None:
        self.write_at(0, b"")

    def sync(self) -> None:
        """Nothing to write."""

    def close(self) -> None:
        """Views of it stay valid."""


class FileSource:
    """Parts of files of a server's data folder, over one connection."""

    def __init__(self, url: str, api_key: str | None) -> None:
        found = urlsplit(url)
        kind = http.client.HTTPSConnection if found.scheme == "https" else http.client.HTTPConnection
        self._url = url
        self._connection = kind(found.hostname or "", found.port, timeout=_TIMEOUT_S)
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    def read(self, path: str, offset: int, length: int) -> tuple[bytes, int]:
        """The bytes of a part, and the length of the whole file. Raises FileNotFoundError, and StoreUnavailable for a
        server that does not answer."""
        target = f"/v0/pipeline/files?path={quote(path)}&offset={offset}&length={length}"
        status, headers, body = self._asked(target)
        if status == http.client.OK:
            return body, int(headers["topics-file-bytes"])
        if status == http.client.NOT_FOUND:
            raise FileNotFoundError(path)
        if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            raise PermissionError(
                f"{self._url} refused the file {path}: give the executors a key with the scope admin and without "
                "prefixes, in spark.executorEnv.TOPICS_API_KEY"
            )
        if status >= http.client.INTERNAL_SERVER_ERROR or status == http.client.TOO_MANY_REQUESTS:
            raise StoreUnavailable(f"{self._url} answered {status} for {path}")
        raise OSError(f"{self._url} answered {status} for {path}: {body[:200]!r}")

    def _asked(self, target: str) -> tuple[int, Mapping[str, str], bytes]:
        for attempt in range(_ATTEMPTS):
            try:
                self._connection.request("GET", target, headers=self._headers)
                answer = self._connection.getresponse()
                return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()
            except (http.client.HTTPException, OSError) as error:
                # This may also be a connection that was closed while idle.
                self._connection.close()
                if attempt + 1 == _ATTEMPTS:
                    raise StoreUnavailable(f"{self._url} does not answer: {error}") from error
        raise AssertionError

    def close(self) -> None:
        self._connection.close()


class RemoteFolder:
    """A file system: paths below `root` are those of another machine, all others are those of `files`."""

    def __init__(self, files: FileSystem, root: str, source: FileSource, transfer: str) -> None:
        self._files = files
        self._below = root + "/"
        self._source = source
        self._transfer = transfer
        self._written: dict[str, None] = {}

    @property
    def sent(self) -> list[str]:
        """The written files, relative to the folder, in the order in which they were begun."""
        return list(self._written)

    def close(self) -> None:
        """Closes the connection to the server. Open files stay valid."""
        self._source.close()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        inner = self._inner(path)
        if inner is None:
            return self._files.open(path, write=write, create=create)
        if create:
            self._written[inner] = None
        if inner in self._written:
            return self._files.open(self._target(inner), write=write, create=create)
        if write:
            self._refuse(path)
        return FetchedFile(self._source, inner)

    def open_ranged(self, path: str) -> File:
        return self.open(path) if self._inner(path) is not None else open_ranged(self._files, path)

    def remove(self, path: str) -> None:
        inner = self._inner(path)
        if inner is None:
            self._files.remove(path)
        elif inner in self._written:
            del self._written[inner]
            self._files.remove(self._target(inner))
        else:
            raise FileNotFoundError(path)

    def rename(self, source: str, target: str) -> None:
        if self._inner(source) is not None or self._inner(target) is not None:
            self._refuse(target)
        self._files.rename(source, target)

    def link(self, source: str, target: str) -> None:
        if self._inner(source) is not None or self._inner(target) is not None:
            self._refuse(target)
        self._files.link(source, target)

    def exists(self, path: str) -> bool:
        inner = self._inner(path)
        if inner is None:
            return self._files.exists(path)
        if inner in self._written:
            return True
        try:
            self._source.read(inner, 0, 1)
        except FileNotFoundError:
            return False
        return True

    def list_dir(self, path: str) -> list[str]:
        if self._inner(path) is None:
            return self._files.list_dir(path)
        raise FileNotFoundError(path)

    def remove_dir(self, path: str) -> None:
        if self._inner(path) is None:
            self._files.remove_dir(path)

    def make_dirs(self, path: str) -> None:
        if self._inner(path) is None:
            self._files.make_dirs(path)

    def sync_dir(self, path: str) -> None:
        if self._inner(path) is None:
            self._files.sync_dir(path)

    def lock(self, path: str, note: str) -> FolderLock:
        if self._inner(path) is not None:
            self._refuse(path)
        return self._files.lock(path, note)

    def _inner(self, path: str) -> str | None:
        return path.removeprefix(self._below) if path.startswith(self._below) else None

    def _target(self, inner: str) -> str:
        return f"{self._transfer}/{inner}"

    def _refuse(self, path: str) -> NoReturn:
        raise OSError(f"{path} is on another machine and cannot be changed there")


def remote_folder(files: FileSystem, root: str, url: str, transfer: str) -> RemoteFolder:
    """Returns the data folder `root`, read from the server at `url`."""
    return RemoteFolder(files, root, FileSource(url, os.environ.get("TOPICS_API_KEY")), transfer)


# The part of the driver.


def discard(files: FileSystem, transfer: str, paths: Sequence[str]) -> None:
    """Removes files that tasks have sent and that are no longer needed. Files that cannot be removed are left to
    `clear`."""
    with contextlib.suppress(OSError):
        for path in paths:
            files.remove(f"{transfer}/{path}")


def receive(files: FileSystem, transfer: str, root: str, paths: Sequence[str]) -> None:
    """Copies files that tasks have sent into the data folder, durably, and removes them from the transfer."""
    folders = sorted({path.rpartition("/")[0] for path in paths})
    for folder in folders:
        files.make_dirs(f"{root}/{folder}")
    for path in paths:
        reader = open_ranged(files, f"{transfer}/{path}")
        try:
            _copy(reader, files, f"{root}/{path}")
        finally:
            reader.close()
    for folder in folders:
        files.sync_dir(f"{root}/{folder}")
    for path in paths:
        files.remove(f"{transfer}/{path}")


def _copy(reader: File, files: FileSystem, target: str) -> None:
    writer = files.open(target, create=True)
    try:
        writer.truncate(0)
        size = reader.size()
        for at in range(0, size, PART_BYTES):
            writer.write_at(at, reader.read_at(at, min(PART_BYTES, size - at)))
        writer.sync()
    finally:
        writer.close()


def clear(files: FileSystem, transfer: str) -> None:
    """Removes files that tasks of earlier processes have left in the transfer."""
    for path in list(_left(files, transfer)):
        files.remove(path)


def _left(files: FileSystem, folder: str) -> list[str]:
    try:
        names = files.list_dir(folder)
    except FileNotFoundError:
        return []
    # Names of files have a dot, names of folders have none.
    return [
        path for name in names for path in ([f"{folder}/{name}"] if "." in name else _left(files, f"{folder}/{name}"))
    ]
