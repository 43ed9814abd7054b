"""Memory for what is long: it comes page by page as it is written to, and is used again when nobody looks at it.

Fresh pages are cleared by the system, which takes longer than to fill them, and on a virtual machine that gives its
free pages back to its host each of them has to be fetched first. So some of it is kept. Who looks at it is counted by
the interpreter: every view of a mapping holds it, whichever thread the last of them ends on.

What is kept still holds what others wrote. Whoever reserves memory shows no more of it than was written since.
"""

import contextlib
import mmap
import threading
from collections.abc import Sequence
from sys import getrefcount

_MIB = 1024 * 1024
_LARGE_PAGE_BYTES = 2 * _MIB
_KEPT_BYTES_MIN = 1 * _MIB
"""Less is kept by the allocator (`system.process`)."""
_KEPT_BYTES_MAX = 32 * _MIB
"""More is asked for without knowing how much is needed, or seldom."""
_KEPT_BYTES = 160 * _MIB


def _holders(memories: Sequence[object], place: int) -> int:
    return getrefcount(memories[place])


_UNHELD = _holders([object()], 0)
"""What it says of one that nobody holds but the list: interpreters differ in how they count those who ask."""


class ReservedMemory:
    """Gives memory, and keeps some of what it gave."""

    def __init__(self, kept_bytes: int = _KEPT_BYTES) -> None:
        """`kept_bytes` is how much of it there may be, in use or not."""
        self._most = kept_bytes
        self._kept: list[mmap.mmap] = []
        self._mutex = threading.Lock()

    def reserve(self, nbytes: int) -> memoryview:
        """So much memory, with anything in it."""
        if not _KEPT_BYTES_MIN <= nbytes <= _KEPT_BYTES_MAX:
            return memoryview(_map(nbytes))
        with self._mutex:
            return memoryview(self._unused(nbytes) or self._another(nbytes))[:nbytes]

    def _unused(self, nbytes: int) -> mmap.mmap | None:
        """The smallest that nobody looks at any more and that is no waste."""
        sizes = [
            (len(self._kept[place]), place)
            for place in range(len(self._kept))
            if nbytes <= len(self._kept[place]) <= 2 * _rounded(nbytes) and self._is_free(place)
        ]
        return self._kept[min(sizes)[1]] if sizes else None

    def _another(self, nbytes: int) -> mmap.mmap:
        size = _rounded(nbytes)
        for place in reversed(range(len(self._kept))):
            if self.kept_bytes + size > self._most and self._is_free(place):
                del self._kept[place]
        memory = _map(size)
        if self.kept_bytes + size <= self._most:
            self._kept.append(memory)
        return memory

    def _is_free(self, place: int) -> bool:
        return _holders(self._kept, place) == _UNHELD

    @property
    def kept_bytes(self) -> int:
        """What is not given back to the system, in use or not."""
        return sum(map(len, self._kept))


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _LARGE_PAGE_BYTES) * _LARGE_PAGE_BYTES


def _map(nbytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= _LARGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        # To be given small pages takes four times as long. A kernel that was built without large ones refuses.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


_reserved = ReservedMemory()


def reserve_memory(nbytes: int) -> memoryview:
    """Memory that costs nothing before it is written to; it may hold what others wrote."""
    return _reserved.reserve(nbytes)
