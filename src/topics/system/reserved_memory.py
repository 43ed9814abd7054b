"""A pool of large buffers: memory is mapped page by page on write, and reused after its return.

The system clears fresh pages, which takes longer than filling them, and a virtual machine that returns free pages to
its host must fetch each of them first. So a pool keeps some buffers.

`reserve` returns a view of a loan, an object that every view and slice of the buffer references. When the last of them
is freed, on any thread, the loan ends and its mapping returns to the pool. There is no explicit release.

A reused buffer still has its earlier content. Callers must only expose bytes that they have written.
"""

import contextlib
import ctypes
import mmap
import threading
import weakref
from collections import deque

_MIB = 1024 * 1024
_LARGE_PAGE_BYTES = 2 * _MIB
_KEPT_BYTES_MIN = 1 * _MIB
"""Smaller buffers are kept by the allocator (`system.process`)."""
_KEPT_BYTES_MAX = 32 * _MIB
"""Larger buffers are rare, or reserved before their size is known, and are not kept."""
_KEPT_BYTES = 160 * _MIB


class ReservedMemory:
    """A pool of buffers."""

    def __init__(self, kept_bytes: int = _KEPT_BYTES) -> None:
        """`kept_bytes` bounds the size of all buffers of the pool, on loan or free."""
        self._most = kept_bytes
        self._free: list[mmap.mmap] = []
        self._returned: deque[mmap.mmap] = deque()
        """Buffers whose loan ended. A loan may end anywhere, also within `reserve`, so it must not take the mutex."""
        self._mutex = threading.Lock()
        self.kept_bytes = 0
        """The bytes that are not returned to the system, on loan or free."""

    def reserve(self, nbytes: int) -> memoryview:
        """Returns a buffer of that size with arbitrary content."""
        if not _KEPT_BYTES_MIN <= nbytes <= _KEPT_BYTES_MAX:
            return memoryview(_map(nbytes))
        with self._mutex:
            while self._returned:
                self._free.append(self._returned.popleft())
            memory = self._reused(nbytes)
            if memory is None:
                size = _rounded(nbytes)
                self._make_room(size)
                memory = _map(size)
                if self.kept_bytes + size > self._most:
                    return memoryview(memory)[:nbytes]
                self.kept_bytes += size
            return self._lend(memory)[:nbytes]

    def _reused(self, nbytes: int) -> mmap.mmap | None:
        """Returns the smallest free buffer that is large enough and not much larger."""
        fitting = [memory for memory in self._free if nbytes <= len(memory) <= 2 * _rounded(nbytes)]
        if not fitting:
            return None
        # Of equal ones the last returned one, which is most likely in a cache of the processor.
        found = min(reversed(fitting), key=len)
        self._free.remove(found)
        return found

    def _make_room(self, size: int) -> None:
        while self._free and self.kept_bytes + size > self._most:
            self.kept_bytes -= len(self._free.pop())

    def _lend(self, memory: mmap.mmap) -> memoryview:
        # An array of ctypes, because a mapping cannot be weakly referenced and the views of one hold it.
        loan = (ctypes.c_ubyte * len(memory)).from_buffer(memory)
        weakref.finalize(loan, self._returned.append, memory).atexit = False
        return memoryview(loan).cast("B")


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _LARGE_PAGE_BYTES) * _LARGE_PAGE_BYTES


def _map(nbytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= _LARGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        # Small pages take four times as long. A kernel that was built without large ones refuses.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


_reserved = ReservedMemory()


def reserve_memory(nbytes: int) -> memoryview:
    """Returns a buffer that uses no memory before it is written; it may have arbitrary content."""
    return _reserved.reserve(nbytes)
