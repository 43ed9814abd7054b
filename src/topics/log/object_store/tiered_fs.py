"""One file system for both tiers: paths below the URL of the cold tier are objects, all others are local files.

This is the only module that opens a cold tier's URL. A server caches copies locally. Other processes, such as a Spark
task or `topics verify`, read each object once and need the content of the store, so they have no cache.

Objects as files: the part of `topics.log.fs` that segments need.

An object cannot be changed in place. A file is buffered in memory while it is written, and `sync` uploads it atomically
and durably. A file that is closed without a sync is discarded. So a crash leaves fewer leftovers than on a disk, and
creating, syncing and removing folders does nothing.

Opening for reading fetches the object, because callers read it next, and one request is better than two. A rename is a
copy and a removal. If it is interrupted in between, both exist, which a second attempt handles.
"""

import contextlib
import errno
from collections.abc import Callable, Sequence
from typing import NamedTuple

from topics.log.fs import BytesLike, File, FileSystem, FolderLock
from topics.log.layout import check_place, is_object_store
from topics.log.object_store.local_cache import LocalCopies
from topics.log.object_store.obstore_client import RemoteStore
from topics.log.object_store.store import GuardedStore, MeteredStore, ObjectStore, StoreStats, TopicRequests
from topics.log.posix import PosixFileSystem


class ReadObject:
    """A fetched object, or its local copy."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(self._data[offset : offset + length])

    def size(self) -> int:
        return len(self._data)

    def map(self) -> memoryview:
        return self._data

    def write_at(self, offset: int, data: BytesLike) -> None:
        raise _read_only()

    def write_whole(self, pieces: Sequence[BytesLike]) -> None:
        raise _read_only()

    def truncate(self, length: int) -> None:
        raise _read_only()

    def allocate(self, length: int) -> None:
        raise _read_only()

    def sync(self) -> None:
        """Nothing to upload."""

    def close(self) -> None:
        """Views of it stay valid, like views of a mapped file."""


class RangedObject(ReadObject):
    """An object of which only the requested bytes are fetched."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        super().__init__(memoryview(b""))
        self._store = store
        self._name = name
        self._size = store.size(name)

    def read_at(self, offset: int, length: int) -> bytes:
        return self._store.get_range(self._name, offset, min(length, self._size - offset))

    def size(self) -> int:
        return self._size

    def map(self) -> memoryview:
        return self._store.get(self._name)


class WrittenObject:
    """An object that is being written. `pieces` is its initial content; None fetches it when needed."""

    def __init__(
        self, store: ObjectStore, copies: LocalCopies | None, name: str, pieces: list[BytesLike] | None = None
    ) -> None:
        self._store = store
        self._copies = copies
        self._name = name
        self._pieces = pieces
        self._changed = False

    def read_at(self, offset: int, length: int) -> bytes:
        return self._joined()[offset : offset + length]

    def write_at(self, offset: int, data: BytesLike) -> None:
        new = _lasting(data)
        if not len(new):
            return
        pieces, self._changed = self._all(), True
        if offset == sum(map(len, pieces)):
            # Pieces that are written in order, as a copy does, are only joined by the upload.
            pieces.append(new)
            return
        whole = bytearray(self._joined())
        whole.extend(bytes(max(offset - len(whole), 0)))
        whole[offset : offset + len(new)] = new
        self._pieces = [bytes(whole)]

    def write_whole(self, pieces: Sequence[BytesLike]) -> None:
        self._pieces, self._changed = [_lasting(piece) for piece in pieces], True

    def size(self) -> int:
        return sum(map(len, self._all()))

    def truncate(self, length: int) -> None:
        kept = self._joined()[:length] if length else b""
        self._pieces, self._changed = [kept + bytes(length - len(kept))] if length else [], True

    def allocate(self, length: int) -> None:
        if self.size() < length:
            self.truncate(length)

    def sync(self) -> None:
        pieces = self._all()
        if self._changed:
            self._store.put(self._name, pieces)
            self._changed = False
        if self._copies is not None:
            # Also without a change: an earlier process may have stopped after the upload.
            self._copies.replaced(self._name, pieces)

    def map(self) -> memoryview:
        return memoryview(self._joined())

    def close(self) -> None:
        """Discard unsynced data: a truncated object must not replace a complete one."""

    def _all(self) -> list[BytesLike]:
        """Returns the bytes so far. They start from the content of the store, not from a local copy."""
        if self._pieces is None:
            try:
                self._pieces = [bytes(self._store.get(self._name))]
            except FileNotFoundError:
                self._pieces = []
        return self._pieces

    def _joined(self) -> bytes:
        pieces = self._all()
        if len(pieces) == 1 and isinstance(pieces[0], bytes):
            return pieces[0]
        whole = b"".join(pieces)
        self._pieces = [whole]
        return whole


def _lasting(data: BytesLike) -> bytes | memoryview:
    """Returns immutable bytes. A mapped file is not copied, because it may be larger than the memory."""
    if isinstance(data, memoryview) and data.readonly and data.itemsize == 1 and data.contiguous:
        return data
    with memoryview(data) as view, view.cast("B") as flat:
        return bytes(flat)


def _has_bytes(copy: File) -> bool:
    try:
        return copy.size() > 0
    except OSError:
        return False  # An unreadable copy is treated as missing.


def _read_only() -> OSError:
    return OSError(errno.EBADF, "the object was opened for reading")


class ObjectFileSystem:
    """Paths are names of objects. `copies` is the cache of a process that reads the same objects repeatedly."""

    def __init__(self, store: ObjectStore, copies: LocalCopies | None = None) -> None:
        self._store = store
        self.copies = copies

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        if create:
            return WrittenObject(self._store, self.copies, path)
        if write:
            return WrittenObject(self._store, self.copies, path, [bytes(self._store.get(path))])
        copy = self.copies.open(path) if self.copies is not None else None
        if copy is not None and not _has_bytes(copy):
            copy.close()
            copy = None
        if self.copies is not None:
            self.copies.asked_for(path, copy is not None)
        return copy if copy is not None else ReadObject(self._fetched(path))

    def near(self, path: str) -> memoryview | None:
        """Returns the local copy of an object, without a request; None if there is none."""
        copy = self.copies.open(path) if self.copies is not None else None
        if copy is None:
            return None
        try:
            return copy.map()
        except OSError:
            return None  # An unreadable copy is treated as missing.
        finally:
            copy.close()

    def _fetched(self, path: str) -> memoryview:
        data = self._store.get(path)
        if self.copies is None:
            return data
        self.copies.keep(path, [data])
        return self.near(path) or data

    def rename(self, source: str, target: str) -> None:
        self._store.copy(source, target)
        self.remove(source)

    def link(self, source: str, target: str) -> None:
        raise OSError(errno.ENOTSUP, "an object has one name; see put_new", target)

    def remove(self, path: str) -> None:
        self._store.remove(path)
        if self.copies is not None:
            self.copies.drop(path)

    def remove_dir(self, path: str) -> None:
        """A folder is only a common prefix of names."""

    def list_dir(self, path: str) -> list[str]:
        found = self._store.list_folder(path)
        names = sorted([*found.folders, *found.objects])
        if not names:
            raise FileNotFoundError(errno.ENOENT, "nothing in the object store is below", path)
        return names

    def make_dirs(self, path: str) -> None:
        """Nothing to create or to sync."""

    def sync_dir(self, path: str) -> None:
        """A name is durable when its object is."""

    def exists(self, path: str) -> bool:
        try:
            self._store.size(path)
            return True
        except FileNotFoundError:
            pass
        found = self._store.list_folder(path)
        return bool(found.folders or found.objects)

    def lock(self, path: str, note: str) -> FolderLock:
        raise OSError(errno.ENOTSUP, "an object store has no locks; the data folder's is taken", path)

    # Methods of object stores only

    def tail(self, path: str, length: int) -> bytes:
        """Returns the last bytes of an object, cached from the first request on."""
        kept = self.copies.tail(path, length) if self.copies is not None else None
        if kept is None:
            kept = self._store.get_tail(path, length)
            if self.copies is not None:
                self.copies.keep_tail(path, kept)
        return kept

    def put_new(self, path: str, data: bytes) -> None:
        """Creates an object atomically. Raises FileExistsError if it exists."""
        self._store.put_new(path, data)

    def copy_object(self, source: str, target: str) -> None:
        self._store.copy(source, target)

    def open_ranged(self, path: str) -> File:
        """Opens an object for callers that read a small part of it."""
        return RangedObject(self._store, path)

    def is_near(self, segment: str) -> bool:
        """Returns whether index and flags of a segment, given without a suffix, are cached."""
        return self.copies is not None and self.copies.has(segment)

    def drop_copies(self, path: str) -> bool:
        """Removes the copy of a whole object, because it may be wrong. Returns whether there was one."""
        return self.copies is not None and self.copies.let_go(path)

    def keep_only(self, requested: Callable[[str], bool]) -> None:
        if self.copies is not None:
            self.copies.keep_only(requested)


class TopicUse(NamedTuple):
    """Object store usage of a topic."""

    requests: TopicRequests
    """Since the server started."""
    cached_bytes: int
    """Copies of its segments on the local disk."""


NO_USE = TopicUse({}, 0)


class TieredFileSystem:
    """Routes each path to its tier. Nothing is ever renamed from one tier into the other."""

    def __init__(
        self,
        near: FileSystem,
        root: str,
        far: ObjectFileSystem,
        stats: Callable[[], StoreStats | None] = lambda: None,
        of_topic: Callable[[int], TopicUse] = lambda topic_id: NO_USE,
    ) -> None:
        self._near = near
        self._below = root + "/"
        self._far = far
        self.stats = stats
        self.of_topic = of_topic
        """Returns the state of the store; None in processes without counts, such as tools."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        fs, inner = self._at(path)
        return fs.open(inner, write=write, create=create)

    def rename(self, source: str, target: str) -> None:
        fs, inner = self._at(source)
        fs.rename(inner, self._at(target)[1])

    def link(self, source: str, target: str) -> None:
        fs, inner = self._at(source)
        fs.link(inner, self._at(target)[1])

    def remove(self, path: str) -> None:
        fs, inner = self._at(path)
        fs.remove(inner)

    def remove_dir(self, path: str) -> None:
        fs, inner = self._at(path)
        fs.remove_dir(inner)

    def list_dir(self, path: str) -> list[str]:
        fs, inner = self._at(path)
        return fs.list_dir(inner)

    def make_dirs(self, path: str) -> None:
        fs, inner = self._at(path)
        fs.make_dirs(inner)

    def sync_dir(self, path: str) -> None:
        fs, inner = self._at(path)
        fs.sync_dir(inner)

    def exists(self, path: str) -> bool:
        fs, inner = self._at(path)
        return fs.exists(inner)

    def lock(self, path: str, note: str) -> FolderLock:
        fs, inner = self._at(path)
        return fs.lock(inner, note)

    # Methods of the cold tier only

    def tail(self, path: str, length: int) -> bytes:
        """Returns the last bytes of an object, from the cache if possible."""
        return self._far.tail(path.removeprefix(self._below), length)

    def put_new(self, path: str, data: bytes, attempt: str) -> None:
        """Creates a file of either tier; it must not exist."""
        fs, inner = self._at(path)
        put_new(fs, inner, data, attempt)

    def copy_object(self, source: str, target: str) -> None:
        fs, inner = self._at(source)
        copy_file(fs, inner, self._at(target)[1])

    def open_ranged(self, path: str) -> File:
        """Opens a file of either tier; only the bytes read are fetched."""
        fs, inner = self._at(path)
        return open_ranged(fs, inner)

    def is_near(self, segment: str) -> bool:
        """Returns whether index and flags of a segment, a path without a suffix, are cached."""
        return self._far.is_near(segment.removeprefix(self._below))

    def drop_copies(self, path: str) -> bool:
        """Removes the copy of a whole object. Returns whether there was one."""
        return self._far.drop_copies(path.removeprefix(self._below))

    def near(self, path: str) -> memoryview | None:
        """Returns the local copy of an object, without a request; None if there is none."""
        return self._far.near(path.removeprefix(self._below))

    def keep_only(self, requested: Callable[[str], bool]) -> None:
        """Removes the copies of all objects whose paths are not listed."""
        self._far.keep_only(lambda name: requested(self._below + name))

    def _at(self, path: str) -> tuple[FileSystem, str]:
        if path.startswith(self._below):
            return self._far, path.removeprefix(self._below)
        if path == self._below[:-1]:
            return self._far, ""
        return self._near, path


def open_ranged(fs: FileSystem, path: str) -> File:
    """Opens a file for a caller that reads a small part of it; local files are never fetched."""
    if isinstance(fs, TieredFileSystem | ObjectFileSystem):
        return fs.open_ranged(path)
    return fs.open(path)


def put_new(fs: FileSystem, path: str, data: bytes, attempt: str) -> None:
    """Creates `path` with `data` durably and atomically (also known as: conditional put).

    Of several callers one succeeds; the others get FileExistsError. On a disk each `attempt` has its own `.tmp`.
    """
    if isinstance(fs, TieredFileSystem):
        fs.put_new(path, data, attempt)
        return
    if isinstance(fs, ObjectFileSystem):
        fs.put_new(path, data)
        return
    temporary = f"{path}.{attempt}.tmp"
    folder = path.rpartition("/")[0] or "."
    fs.make_dirs(folder)
    try:
        file = fs.open(temporary, create=True)
        try:
            file.write_whole([data])
            file.sync()
        finally:
            file.close()
        fs.link(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            fs.remove(temporary)
    fs.sync_dir(folder)


def copy_file(fs: FileSystem, source: str, target: str) -> None:
    """Gives a file that never changes a second name, durable but for the name: in an object store by a copy there.

    Raises OSError where that is impossible. The folder of `target` must exist.
    """
    if isinstance(fs, TieredFileSystem | ObjectFileSystem):
        fs.copy_object(source, target)
        return
    with contextlib.suppress(FileNotFoundError):
        fs.remove(target)
    fs.link(source, target)


def tiered(near: FileSystem, root: str, store: ObjectStore, copies: LocalCopies | None = None) -> TieredFileSystem:
    return TieredFileSystem(near, root, ObjectFileSystem(store, copies))


def tiered_for_server(
    near: FileSystem, root: str, store: ObjectStore, copies: LocalCopies, seconds: Callable[[], float]
) -> TieredFileSystem:
    """Both tiers for a server: with a cache, a circuit breaker and counts."""
    metered = MeteredStore(store)
    # Outside of the counts: a call that is refused at once is not a request.
    guarded = GuardedStore(metered, seconds)

    def stats() -> StoreStats:
        return metered.stats(guarded.paused, copies.held_bytes, copies.hits, copies.misses)

    def of_topic(topic_id: int) -> TopicUse:
        return TopicUse(metered.of_topic(topic_id), copies.topic_bytes(topic_id))

    return TieredFileSystem(near, root, ObjectFileSystem(guarded, copies), stats, of_topic)


def guest_files(*places: str | None) -> FileSystem:
    """Returns the files of a data folder for a tool, including its cold tier and its archive."""
    files: FileSystem = PosixFileSystem()
    # One place may be inside the other, so the longest prefix is checked first.
    for place in sorted({found for place in places if (found := check_place(place)) is not None}, key=len):
        if is_object_store(place):
            files = tiered(files, place, RemoteStore(place))
    return files


def server_files(cold_dir: str | None, copies_dir: str, copies_bytes: int, seconds: Callable[[], float]) -> FileSystem:
    """Returns the files of a data folder for the server that owns it. `seconds` is a monotonic clock."""
    cold_dir = check_place(cold_dir)
    near = PosixFileSystem()
    if cold_dir is None or not is_object_store(cold_dir):
        return near
    copies = LocalCopies(near, copies_dir, copies_bytes)
    return tiered_for_server(near, cold_dir, RemoteStore(cold_dir), copies, seconds)
