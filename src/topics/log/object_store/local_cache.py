"""Local cache of objects on disk, so that the store is asked as seldom as possible.

The event loop looks into indexes and delete flags, and must never wait for a network. So of every cold segment two
small things stay nearby for as long as the segment is there: its index, and the end of its data, where the flags are.
Whole data files are kept as long as there is room, the longest unused go first.

    <folder>/topics/.../seg-....idx           the object of that name
    <folder>/topics/.../seg-....data          the same, while there is room
    <folder>/topics/.../seg-....data.tail     the last bytes of that object, and the XXH3-64 of its name and of them

Everything here can be fetched again, so nothing here is ever damage: a copy that cannot be read or kept is as good as
none. A copy is written under another name, synced and renamed, so that a power cut leaves it whole or not at all. Only
the end of an object that changes is more than that: it has to be the new one for good before the change counts.
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
        """The copies that may go when room is needed, by name and with their size, the longest unused first."""
        self._bytes = 0
        self._of_folders: Counter[str] = Counter()
        """The bytes of the same copies by the folder of their topic."""
        self.hits = 0
        """Whole objects that were asked for and here, of those that may go; `misses` had to be fetched."""
        self.misses = 0

    @property
    def held_bytes(self) -> int:
        """How much the copies hold that may go."""
        return self._bytes

    def topic_bytes(self, topic_id: int) -> int:
        """How much of it is of one topic."""
        return self._of_folders[f"topics/{topic_id:016x}"]

    def _count(self, name: str, nbytes: int) -> None:
        """Under the lock: the copy of `name` has grown by so many bytes."""
        folder = name.rpartition("/")[0]
        self._bytes += nbytes
        self._of_folders[folder] += nbytes
        if not self._of_folders[folder]:
            del self._of_folders[folder]

    # Whole objects

    def lasts(self, name: str) -> bool:
        """Whether a copy of this object stays for as long as the object."""
        return name.endswith(_LASTING)

    def has(self, segment: str) -> bool:
        """Whether the two small things of a segment, named without an ending, are here. They are not looked into."""
        return all(self._fs.exists(self._path(segment + ending)) for ending in (_LASTING, _DATA + _TAIL))

    def open(self, name: str) -> File | None:
        """The copy of an object; None when there is none."""
        try:
            file = self._fs.open(self._path(name))
        except OSError:
            return None
        with self._lock:
            if name in self._held:
                self._held.move_to_end(name)
        return file

    def asked_for(self, name: str, found: bool) -> None:
        """Counts a look for a whole object. The files whose copies stay have no information about free space."""
        if self.lasts(name):
            return
        with self._lock:
            if found:
                self.hits += 1
            else:
                self.misses += 1

    def keep(self, name: str, pieces: Sequence[BytesLike]) -> None:
        """Keeps the bytes of an object, if there is room for them."""
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
        """The last bytes of an object, where exactly so many are kept."""
        data = self._read(name + _TAIL)
        if data is None or len(data) != length + _CHECKSUM.size:
            return None
        # Earlier releases left the name out.
        proven = data[length:] in (_seal(name, data[:length]), _CHECKSUM.pack(xxh3_64_intdigest(data[:length])))
        return data[:length] if proven else None

    def keep_tail(self, name: str, tail: bytes) -> bool:
        return self._write(name + _TAIL, [tail, _seal(name, tail)])

    def replaced(self, name: str, pieces: Sequence[BytesLike]) -> None:
        """An object has new bytes: the end that was kept follows, and a copy of the whole stays only if it lasts.

        Raises OSError where an old end might come back after a power cut: its content is trusted, so the caller that
        changed the object must not count on the change yet.
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

    # Going

    def drop(self, name: str) -> bool:
        """Forgets everything of an object; whether there was anything."""
        found = self.let_go(name)
        return self._remove(name + _TAIL) or found

    def keep_only(self, requested: Callable[[str], bool]) -> None:
        """Removes the copies of objects that nobody wants, and what a crash left; whole data files start anew."""
        for folder in self._names("topics"):
            for name in self._names(f"topics/{folder}"):
                path = f"topics/{folder}/{name}"
                kept = name.endswith((_LASTING, _TAIL)) and requested(path.removesuffix(_TAIL))
                if not kept and path not in self._held:
                    self._remove(path)
            with contextlib.suppress(OSError):
                self._fs.remove_dir(self._path(f"topics/{folder}"))  # Succeeds only where nothing is left.

    def _make_room(self) -> None:
        while True:
            with self._lock:
                if self._bytes <= self._bytes_max or not self._held:
                    return
                name, size = self._held.popitem(last=False)
                self._count(name, -size)
            self._remove(name)

    def let_go(self, name: str) -> bool:
        """Forgets the copy of a whole object; whether there was one. An end stays: it is proven by its checksum."""
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
        # Two threads may fetch the same object: each writes its own file, and the later name wins.
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
            # The disk may be full. The object is where it was, and what was written of the copy would keep it full.
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
