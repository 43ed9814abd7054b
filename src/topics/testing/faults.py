"""A file system whose n-th call fails, around any other.

A durable operation is verified when each of its calls has failed once without a loss of promised data. A sweep runs the
operation with `FaultPlan(call=1)`, `call=2` and so on, until a run ends with `failed` still zero.

A failed call does not reach the inner file system, except for the prefix that a short write leaves behind, and but for
a `sync` on a fake disk: like Linux may do, pending bytes remain readable, count as written and are lost in a power cut,
and the next `sync` succeeds without them. Only another write makes them durable.
"""

import enum
import errno
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from topics.log.fs import BytesLike, File, FileSystem, FolderLock
from topics.testing.fake_disk import FakeFile


class Fault(enum.Enum):
    """The kind of failure."""

    EIO = "the device fails; nothing of the call takes effect"
    ENOSPC = "no room is left; nothing of the call takes effect"
    SHORT = "room runs out half way: a write leaves its first half and raises ENOSPC; any other call raises EIO"
    EMFILE = "the process has no descriptor left; nothing of the call takes effect"
    ENOMEM = "the system has no memory left; nothing of the call takes effect"
    EINTR = "the call is interrupted; nothing of it takes effect"


LACK_OF_ROOM = frozenset(("create", "make_dirs", "allocate", "write", "rename"))
"""Calls that a full disk refuses: removing, truncating and syncing need no space."""
LACK_OF_DESCRIPTORS = frozenset(("create", "open", "lock", "sync_dir", "list_dir", "make_dirs", "map"))
"""Calls that open a descriptor."""

_CODES = {
    Fault.EIO: errno.EIO,
    Fault.ENOSPC: errno.ENOSPC,
    Fault.SHORT: errno.EIO,
    Fault.EMFILE: errno.EMFILE,
    Fault.ENOMEM: errno.ENOMEM,
    Fault.EINTR: errno.EINTR,
}


@dataclass(frozen=True)
class FaultPlan:
    """The call that fails, and the kind of failure. Calls are counted from 1, over all files together."""

    call: int | None = None
    """The number of the call that fails; None lets every call pass, which only counts them."""
    fault: Fault = Fault.EIO
    lasting: bool = False
    """Whether every later call fails too, as on a dead or full disk, or only this one."""
    include_reads: bool = False
    """Whether reading calls are counted as well, and so can fail."""
    until: int | None = None
    """The number of the call from which on a lasting fault has ended, such as when space was freed; None for never."""
    only: frozenset[str] = frozenset()
    """Only these operations fail, if any are given; all are counted."""
    within: str = ""
    """Only calls on paths with this prefix fail, like one of several disks; all are counted."""

    def hits(self, number: int, path: str = "", operation: str = "") -> bool:
        due = self.call is not None and (number == self.call or (self.lasting and number > self.call))
        over = self.until is not None and number >= self.until
        meant = not self.only or operation in self.only
        return due and not over and meant and path.startswith(self.within)


NO_FAULTS = FaultPlan()


class FaultyFileSystem:
    """Passes every call on to `inner`, except those that the plan fails.

    `calls` is the number of counted calls, `failed` the number of them that the plan failed, and `trace` the counted
    ones in order as (operation, path): the n-th call is `trace[n - 1]`. `open(create=True)`, `make_dirs` and `lock`
    count as one call each. Closing a file and releasing a lock always pass and are not counted.
    """

    def __init__(self, inner: FileSystem, plan: FaultPlan = NO_FAULTS) -> None:
        self.inner = inner
        self.plan = plan
        self.calls = 0
        self.failed = 0
        self.trace: list[tuple[str, str]] = []
        self._mutex = threading.Lock()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        if create:
            self._change("create", path)
        else:
            self._read("open", path)
        return _FaultyFile(self, self.inner.open(path, write=write, create=create), path)

    def rename(self, source: str, target: str) -> None:
        self._change("rename", f"{source} -> {target}")
        self.inner.rename(source, target)

    def link(self, source: str, target: str) -> None:
        self._change("link", f"{source} -> {target}")
        self.inner.link(source, target)

    def remove(self, path: str) -> None:
        self._change("remove", path)
        self.inner.remove(path)

    def remove_dir(self, path: str) -> None:
        self._change("remove_dir", path)
        self.inner.remove_dir(path)

    def list_dir(self, path: str) -> list[str]:
        self._read("list_dir", path)
        return self.inner.list_dir(path)

    def make_dirs(self, path: str) -> None:
        self._change("make_dirs", path)
        self.inner.make_dirs(path)

    def sync_dir(self, path: str) -> None:
        self._change("sync_dir", path)
        self.inner.sync_dir(path)

    def exists(self, path: str) -> bool:
        self._read("exists", path)
        return self.inner.exists(path)

    def lock(self, path: str, note: str) -> FolderLock:
        self._change("lock", path)
        return self.inner.lock(path, note)

    def _change(self, operation: str, path: str) -> None:
        """Counts a mutating or syncing call, and raises if it is to fail."""
        if error := self._verdict(operation, path):
            raise error

    def _read(self, operation: str, path: str) -> None:
        """Counts a reading call, if the plan includes these, and raises if it is to fail."""
        if self.plan.include_reads:
            self._change(operation, path)

    def _verdict(self, operation: str, path: str) -> OSError | None:
        """Counts the call. Returns its error, if it is to fail."""
        with self._mutex:
            self.calls += 1
            self.trace.append((operation, path))
            if not self.plan.hits(self.calls, path, operation):
                return None
            self.failed += 1
            fault = self.plan.fault
            code = _CODES[fault]
            if fault is Fault.SHORT and operation == "write":
                code = errno.ENOSPC
            return OSError(code, f"injected {fault.name} at call {self.calls}, {operation}", path)


class _FaultyFile:
    """A file of the inner file system whose calls are counted by the outer one."""

    def __init__(self, outer: FaultyFileSystem, inner: File, path: str) -> None:
        self._outer = outer
        self._inner = inner
        self._path = path

    def read_at(self, offset: int, length: int) -> bytes:
        self._outer._read("read", self._path)
        return self._inner.read_at(offset, length)

    def write_at(self, offset: int, data: BytesLike) -> None:
        error = self._outer._verdict("write", self._path)
        if error is None:
            self._inner.write_at(offset, data)
            return
        if self._outer.plan.fault is Fault.SHORT:
            prefix = memoryview(data).cast("B")
            self._inner.write_at(offset, prefix[: len(prefix) // 2])
        raise error

    def write_whole(self, pieces: Sequence[BytesLike]) -> None:
        self.truncate(0)
        self.write_at(0, b"".join(pieces))

    def size(self) -> int:
        self._outer._read("size", self._path)
        return self._inner.size()

    def truncate(self, length: int) -> None:
        self._outer._change("truncate", self._path)
        self._inner.truncate(length)

    def allocate(self, length: int) -> None:
        self._outer._change("allocate", self._path)
        self._inner.allocate(length)

    def sync(self) -> None:
        if error := self._outer._verdict("sync", self._path):
            if isinstance(self._inner, FakeFile):
                self._inner.fail_sync()
            raise error
        self._inner.sync()

    def map(self) -> memoryview:
        self._outer._read("map", self._path)
        return self._inner.map()

    def close(self) -> None:
        self._inner.close()
