"""An object store in a folder of any file system: on a disk that crashes, every step of every call can be the last.

An object is written under another name, synced, renamed and its name synced, so that it is complete and durable or
missing, as in a real store. The store can be made unavailable, permanently or for the n-th call; failures below it
appear as unavailability.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from topics.log.fs import BytesLike, FileSystem
from topics.log.object_store.store import Listing, StoreUnavailable

_TMP = ".upload"

T = TypeVar("T")


class FolderStore:
    """`away` makes every call fail, `fails` the calls for whose number (from 1) it returns true."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root
        self.away = False
        self.fails: Callable[[int], bool] = lambda call: False
        self.trace: list[tuple[str, str]] = []
        """Every call so far, as (operation, name)."""

    def get(self, name: str) -> memoryview:
        return self._call("get", name, lambda: memoryview(self._read(name)))

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self._call("get_range", name, lambda: self._read(name)[offset : offset + max(length, 0)])

    def get_tail(self, name: str, length: int) -> bytes:
        return self._call("get_tail", name, lambda: self._read(name)[-length:] if length else b"")

    def size(self, name: str) -> int:
        return self._call("size", name, lambda: len(self._read(name)))

    def put(self, name: str, pieces: Sequence[BytesLike]) -> None:
        self._call("put", name, lambda: self._write(name, b"".join(pieces)))

    def put_new(self, name: str, data: bytes) -> None:
        def put() -> None:
            if self._fs.exists(self._path(name)):
                raise FileExistsError(name)
            self._write(name, data)

        self._call("put_new", name, put)

    def remove(self, name: str) -> None:
        self._call("remove", name, lambda: self._remove(name))

    def copy(self, source: str, target: str) -> None:
        self._call("copy", target, lambda: self._write(target, self._read(source)))

    def list_folder(self, folder: str) -> Listing:
        return self._call("list", folder, lambda: self._list(folder))

    def _call(self, operation: str, name: str, call: Callable[[], T]) -> T:
        self.trace.append((operation, name))
        if self.away or self.fails(len(self.trace)):
            raise StoreUnavailable("it was sent away")
        try:
            return call()
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            raise StoreUnavailable(str(error)) from error

    def _read(self, name: str) -> bytes:
        try:
            file = self._fs.open(self._path(name))
        except (IsADirectoryError, NotADirectoryError) as error:
            raise FileNotFoundError(name) from error
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    def _write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        folder = path.rpartition("/")[0]
        self._fs.make_dirs(folder)
        file = self._fs.open(path + _TMP, create=True)
        try:
            file.truncate(0)
            file.write_at(0, data)
            file.sync()
        finally:
            file.close()
        self._fs.rename(path + _TMP, path)
        self._fs.sync_dir(folder)

    def _remove(self, name: str) -> None:
        path = self._path(name)
        try:
            self._fs.remove(path)
        except FileNotFoundError:
            return
        self._fs.sync_dir(path.rpartition("/")[0])

    def _list(self, folder: str) -> Listing:
        path = self._path(folder) if folder else self._root
        folders, objects = [], []
        try:
            names = self._fs.list_dir(path)
        except (FileNotFoundError, NotADirectoryError):
            names = []
        for name in names:
            if name.endswith(_TMP):
                continue
            if self._is_folder(f"{path}/{name}"):
                # A store has no empty folders.
                inner = self._list(f"{folder}/{name}" if folder else name)
                folders += [name] if inner.folders or inner.objects else []
            else:
                objects.append(name)
        return Listing(folders, objects)

    def _is_folder(self, path: str) -> bool:
        try:
            self._fs.list_dir(path)
        except (NotADirectoryError, FileNotFoundError):
            return False
        return True

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"
