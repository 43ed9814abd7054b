"""One file system for both tiers: paths below the URL of the cold tier are objects, all others are local files.

This is the one place where a cold tier's URL becomes something to work with. A server keeps copies nearby; a guest,
such as a Spark task or `topics verify`, reads each object once and wants it as the store has it, so it keeps none.
"""

from collections.abc import Callable

from topics.log.fs import File, FileSystem, FolderLock
from topics.log.layout import check_place, is_object_store
from topics.log.object_store.local_cache import LocalCopies
from topics.log.object_store.object_files import ObjectFileSystem
from topics.log.object_store.obstore_client import RemoteStore
from topics.log.object_store.store import GuardedStore, MeteredStore, ObjectStore, StoreStats
from topics.log.posix import PosixFileSystem


class TieredFileSystem:
    """Sends each path to where it belongs. Nothing is ever renamed from one tier into the other."""

    def __init__(
        self,
        near: FileSystem,
        root: str,
        far: ObjectFileSystem,
        stats: Callable[[], StoreStats | None] = lambda: None,
    ) -> None:
        self._near = near
        self._below = root + "/"
        self._far = far
        self.stats = stats
        """How the store has been doing; None where nobody counts, as in a process that only visits."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        fs, inner = self._at(path)
        return fs.open(inner, write=write, create=create)

    def rename(self, source: str, target: str) -> None:
        fs, inner = self._at(source)
        fs.rename(inner, self._at(target)[1])

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
        """The last bytes of an object, from nearby where they are kept."""
        return self._far.tail(path.removeprefix(self._below), length)

    def open_ranged(self, path: str) -> File:
        """A file of either tier, of which no more is fetched than is read."""
        fs, inner = self._at(path)
        return open_ranged(fs, inner)

    def is_near(self, segment: str) -> bool:
        """Whether index and flags of a segment, a path without an ending, are kept nearby."""
        return self._far.is_near(segment.removeprefix(self._below))

    def drop_copies(self, path: str) -> bool:
        """Forgets the copy of a whole object; whether there was one."""
        return self._far.drop_copies(path.removeprefix(self._below))

    def near(self, path: str) -> memoryview | None:
        """The copy of an object, without asking the store; None when there is none."""
        return self._far.near(path.removeprefix(self._below))

    def keep_only(self, wanted: Callable[[str], bool]) -> None:
        """Removes the copies of all objects whose paths are not wanted."""
        self._far.keep_only(lambda name: wanted(self._below + name))

    def _at(self, path: str) -> tuple[FileSystem, str]:
        if path.startswith(self._below):
            return self._far, path.removeprefix(self._below)
        if path == self._below[:-1]:
            return self._far, ""
        return self._near, path


def open_ranged(fs: FileSystem, path: str) -> File:
    """A file for whoever reads a little of it; a file of a disk is never fetched anyway."""
    if isinstance(fs, TieredFileSystem | ObjectFileSystem):
        return fs.open_ranged(path)
    return fs.open(path)


def tiered(near: FileSystem, root: str, store: ObjectStore, copies: LocalCopies | None = None) -> TieredFileSystem:
    return TieredFileSystem(near, root, ObjectFileSystem(store, copies))


def tiered_for_server(
    near: FileSystem, root: str, store: ObjectStore, copies: LocalCopies, seconds: Callable[[], float]
) -> TieredFileSystem:
    """Both tiers as a server needs them: with copies, with patience for a store that is away, and with counts."""
    metered = MeteredStore(store)
    # Outside of the counts: what is refused at once is no request.
    guarded = GuardedStore(metered, seconds)

    def stats() -> StoreStats:
        return metered.stats(guarded.paused, copies.held_bytes, copies.hits, copies.misses)

    return TieredFileSystem(near, root, ObjectFileSystem(guarded, copies), stats)


def guest_files(*places: str | None) -> FileSystem:
    """The files of a data folder for a process that only visits, its cold tier and its archive included."""
    files: FileSystem = PosixFileSystem()
    # One place may lie in the other, so the longest name is asked first.
    for place in sorted({found for place in places if (found := check_place(place)) is not None}, key=len):
        if is_object_store(place):
            files = tiered(files, place, RemoteStore(place))
    return files


def server_files(cold_dir: str | None, copies_dir: str, copies_bytes: int, seconds: Callable[[], float]) -> FileSystem:
    """The files of a data folder for the server that owns it. `seconds` is a clock that never runs back."""
    cold_dir = check_place(cold_dir)
    near = PosixFileSystem()
    if cold_dir is None or not is_object_store(cold_dir):
        return near
    copies = LocalCopies(near, copies_dir, copies_bytes)
    return tiered_for_server(near, cold_dir, RemoteStore(cold_dir), copies, seconds)
