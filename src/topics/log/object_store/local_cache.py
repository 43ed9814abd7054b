"""Local cache of objects on disk, which saves requests to the store.

The event loop reads indexes and delete flags, and must never wait for a network. So two small parts of every cold
segment stay in the cache for the segment's lifetime: its index, and the end of its data, which has the flags. Whole
data files are cached within a bound; the least recently used are evicted first.

    <folder>/topics/.../seg-....idx           the object of that name
    <folder>/topics/.../seg-....data          the same, while there is room
    <folder>/topics/.../seg-....data.tail     the last bytes of that object, and the XXH3-64 of its name and of them

Everything here can be fetched again, so nothing here counts as damage: an unreadable copy is treated as missing. A copy
is written under another name, synced and renamed, so a power cut leaves it whole or missing. One exception is the end
of an object that changes: the new end must be durable before the change takes effect.
"""

import contextlib
import struct
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

from xxhash import xxh3_64_intdigest

from topics.log.fs import BytesLike, File, FileSystem

_LASTING = ".idx"
_DATA = ".data"
_TAIL = ".tail"
_TMP = ".tmp"
_CHECKSUM = struct.Struct("<Q")


def _seal(name: str, tail: bytes) -> bytes:
    return _CHECKSUM.pack(xxh3_64_intdigest(name.encode() + tail))


class LocalCopies:
    def __init__(self, fs: FileSystem, folder: str, bytes_max: int) -> None:
        self._fs = fs
        self._folder = folder
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._held: OrderedDict[str, int] = OrderedDict()
        """The sizes of the evictable copies by name, least recently used first."""
        self._bytes = 0
        self._of_folders: Counter[str] = Counter()
        """The bytes of the same copies by the folder of their topic."""
        self.hits = 0
        """Requests for evictable whole objects that were in the cache; `misses` had to be fetched."""
        self.misses = 0

    @property
    def held_bytes(self) -> int:
        """Returns the bytes of the evictable copies."""
        return self._bytes

    def topic_bytes(self, topic_id: int) -> int:
        """Returns the bytes of the evictable copies of one topic."""
        return self._of_folders[f"topics/{topic_id:016x}"]

    def _count(self, name: str, nbytes: int) -> None:
        """Requires the lock. Notes that the copy of `name` has grown by so many bytes."""
        folder = name.rpartition("/")[0]
        self._bytes += nbytes
        self._of_folders[folder] += nbytes
        if not self._of_folders[folder]:
            del self._of_folders[folder]

    # Whole objects

    def lasts(self, name: str) -> bool:
        """Returns whether the copy of this object is kept for the object's lifetime."""
        return name.endswith(_LASTING)

    def has(self, segment: str) -> bool:
        """Returns whether index and flags of a segment, given without a suffix, are cached. They are not verified."""
        return all(self._fs.exists(self._path(segment + ending)) for ending in (_LASTING, _DATA + _TAIL))

    def open(self, name: str) -> File | None:
        """Returns the copy of an object; None if there is none."""
        try:
            file = self._fs.open(self._path(name))
        except OSError:
            return None
        with self._lock:
            if name in self._held:
                self._held.move_to_end(name)
        return file

    def asked_for(self, name: str, found: bool) -> None:
        """Counts a lookup of a whole object. Permanent copies are not counted, because they are never evicted."""
        if self.lasts(name):
            return
        with self._lock:
            if found:
                self.hits += 1
            else:
                self.misses += 1

    def keep(self, name: str, pieces: Sequence[BytesLike]) -> None:
        """Caches the bytes of an object, if there is room for them."""
        size = sum(map(len, pieces))
        if self.lasts(name):
            self._write(name, pieces)
        elif size <= self._bytes_max and self._write(name, pieces):
            with self._lock:
                self._count(name, size - self._held.pop(name, 0))
                self._held[name] = size
            self._make_room()

    # The ends of objects

    def tail(self, name: str, length: int) -> bytes | None:
        """Returns the last bytes of an object, if exactly this many are cached."""
        data = self._read(name + _TAIL)
        if data is None or len(data) != length + _CHECKSUM.size:
            return None
        # Earlier releases left the name out.
        proven = data[length:] in (_seal(name, data[:length]), _CHECKSUM.pack(xxh3_64_intdigest(data[:length])))
        return data[:length] if proven else None

    def keep_tail(self, name: str, tail: bytes) -> bool:
        return self._write(name + _TAIL, [tail, _seal(name, tail)])

    def replaced(self, name: str, pieces: Sequence[BytesLike]) -> None:
        """Updates the copies after a change of an object: the cached end is replaced, and a whole copy is kept only if
        it is permanent.

        Raises OSError if the old end might reappear after a power cut: cached ends are trusted, so the caller must not
        treat the change as durable yet.
        """
        kept = self._read(name + _TAIL)
        if kept is not None:
            length = len(kept) - _CHECKSUM.size
            if not self.keep_tail(name, b"".join(pieces)[-length:]):
                self._fs.remove(self._path(name + _TAIL))
            self._fs.sync_dir(self._path(name).rpartition("/")[0])
        if self.lasts(name):
            self._write(name, pieces)
        else:
            self.let_go(name)

    # Removal

    def drop(self, name: str) -> bool:
        """Removes all copies of an object. Returns whether there were any."""
        found = self.let_go(name)
        return self._remove(name + _TAIL) or found

    def keep_only(self, requested: Callable[[str], bool]) -> None:
        """Removes the copies of unwanted objects, and files left by a crash. Whole data files are dropped."""
        for folder in self._names("topics"):
            for name in self._names(f"topics/{folder}"):
                path = f"topics/{folder}/{name}"
                kept = name.endswith((_LASTING, _TAIL)) and requested(path.removesuffix(_TAIL))
                if not kept and path not in self._held:
                    self._remove(path)
            with contextlib.suppress(OSError):
                self._fs.remove_dir(self._path(f"topics/{folder}"))  # Succeeds only if the folder is empty.

    def _make_room(self) -> None:
        while True:
            with self._lock:
                if self._bytes <= self._bytes_max or not self._held:
                    return
                name, size = self._held.popitem(last=False)
                self._count(name, -size)
            self._remove(name)

    def let_go(self, name: str) -> bool:
        """Removes the copy of a whole object. Returns whether there was one. An end stays: it has a checksum."""
        with self._lock:
            self._count(name, -self._held.pop(name, 0))
        return self._remove(name)

    # Files

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _read(self, name: str) -> bytes | None:
        try:
            file = self._fs.open(self._path(name))
        except OSError:
            return None
        try:
            return file.read_at(0, file.size())
        except OSError:
            return None
        finally:
            file.close()

    def _write(self, name: str, pieces: Sequence[BytesLike]) -> bool:
        # Two threads may fetch the same object: each writes its own file, and the last rename wins.
        path = self._path(name)
        temporary = f"{path}.{threading.get_ident()}{_TMP}"
        try:
            self._fs.make_dirs(path.rpartition("/")[0])
            file = self._fs.open(temporary, create=True)
            try:
                file.write_whole(pieces)
                file.sync()
            finally:
                file.close()
            self._fs.rename(temporary, path)
        except OSError:
            # The disk may be full. The partial copy is removed, because it would keep it full.
            with contextlib.suppress(OSError):
                self._fs.remove(temporary)
            return False
        return True

    def _remove(self, name: str) -> bool:
        try:
            self._fs.remove(self._path(name))
        except OSError:
            return False
        return True

    def _names(self, folder: str) -> list[str]:
        try:
            return self._fs.list_dir(self._path(folder))
        except OSError:
            return []
