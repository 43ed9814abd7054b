"""A disk in memory that distinguishes written content from content that survives a power loss.

Each file has two contents, the live one for reads and the durable one, and the ordered operations between them that no
`sync` has covered yet. Each folder does the same for its names. A crash drops the live state, applies some of the
pending operations, chosen by a `Survival` and a seed, and returns the result as a new disk.

    live = durable + pending          sync: durable := live          crash: durable := durable + some of pending

Assumptions of the model, beyond the rules in `topics.log.fs`:

* Bytes that a pending write does not cover are never damaged, not even in a shared sector.
* A folder is journaled: a prefix of its pending name operations survives, never a later one without an earlier one.
* A rename is one operation, also between folders: it becomes durable in both at once, together with all earlier pending
  operations. So a crash leaves the old name or the new one, never both or neither.
* A file whose name, or whose folder's name, did not survive is lost, even if its bytes were synced.

Contents are stored up to the last written byte, with a separate length; the zeros after it cost nothing. A sweep
creates thousands of disks, whose files are mostly preallocated and nearly empty.
"""

import copy
import enum
import errno
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import itemgetter
from typing import Any, NamedTuple

from topics.log.fs import BytesLike
from topics.testing.fake_clock import SeededEntropy

# The parts of a fake disk: contents, files and folders with their durable state.
#
# `topics.testing.fake_disk` is the file system on top and explains the model.

SECTOR_BYTES = 512


class Survival(enum.Enum):
    """The effect of a crash on operations that no sync has covered."""

    NOTHING = "all of them are lost"

    EVERYTHING = "the process was killed and the machine runs on: all are there, but wait for a sync as before"
    """A new process sees every write, but a later power loss can still remove them, so it must sync what it relies
    on."""

    TORN = "the last waiting write of each file leaves a part of itself; all other file operations are lost"
    """The part is a strict prefix, cut at any byte, and what follows it inside the write is one of: nothing, up to a
    sector of zeros, up to a sector of garbage. Of the names, a prefix of each folder's operations survives."""

    SCATTERED = "each file operation, and each sector of a write, survives or is lost by itself, as if reordered"
    """A pending write is kept, lost, or kept in some of its sectors; a truncate or allocate is kept or lost.

    Of the names, a prefix of each folder's operations survives.
    """


class _Write(NamedTuple):
    offset: int
    data: bytes

    def apply(self, content: "_Content") -> None:
        content.write(self.offset, self.data)


class Resize(NamedTuple):
    length: int
    may_shrink: bool

    def apply(self, content: "_Content") -> None:
        content.resize(self.length if self.may_shrink else max(content.length, self.length))


_Operation = _Write | Resize


class _Content:
    """The bytes of a file: `stored`, then zeros up to `length`."""

    def __init__(self, stored: bytes | bytearray = b"", length: int = 0) -> None:
        self.stored = bytearray(stored)
        self.length = length

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Content":
        return _Content(self.stored, self.length)

    def read(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.length)
        data = bytes(memoryview(self.stored)[offset:end])
        return data + bytes(max(0, end - offset - len(data)))

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        self._store_up_to(end)
        self.stored[offset:end] = data
        self.length = max(self.length, end)

    def resize(self, length: int) -> None:
        if length < len(self.stored):
            self.stored = self.stored[:length]  # Not truncated in place, for the same reason as below.
        self.length = length

    def view(self) -> memoryview:
        self._store_up_to(self.length)
        return memoryview(self.stored).toreadonly()

    def _store_up_to(self, end: int) -> None:
        missing = end - len(self.stored)
        if missing > 0:
            try:
                self.stored.extend(bytes(missing))
            except BufferError:
                # Python does not resize a buffer with views. The view keeps the old bytes, which the interface allows:
                # that a real mapping also shows later writes is not part of its contract.
                self.stored = self.stored + bytes(missing)


class Inode:
    """A file without its name."""

    def __init__(self) -> None:
        self.live = _Content()
        self.durable = _Content()
        self.pending: list[_Operation] = []
        self.forgot = False
        """Whether it has readable bytes that are not on the disk and that no sync will write."""

    def do(self, operation: _Operation) -> None:
        operation.apply(self.live)
        self.pending.append(operation)

    def write(self, offset: int, data: bytes) -> None:
        if data:  # An empty write does not grow a file, at any position.
            self.do(_Write(offset, data))

    def persist(self, survivors: list[_Operation]) -> None:
        """Makes these operations durable and drops the other pending ones."""
        for operation in survivors:
            operation.apply(self.durable)
        self.pending = []

    def forget(self) -> None:
        """Fails a sync: the pending writes remain readable and count as written, but are not durable."""
        kept: list[_Operation] = [operation for operation in self.pending if isinstance(operation, Resize)]
        self.forgot |= len(kept) < len(self.pending)
        self.pending = kept


class Folder:
    """Names and their files or folders."""

    def __init__(self) -> None:
        self.live: dict[str, Inode | Folder] = {}
        self.durable: dict[str, Inode | Folder] = {}
        self.pending: list[_NameChange] = []

    def child(self, name: str, path: str) -> "Inode | Folder":
        node = self.live.get(name)
        if node is None:
            raise os_error(errno.ENOENT, path)
        return node

    def holds(self, other: "Folder") -> bool:
        """Returns whether `other` is this folder or inside it."""
        return self is other or any(isinstance(node, Folder) and node.holds(other) for node in self.live.values())


_Node = Inode | Folder
_Names = dict[str, _Node]
_Step = tuple[Folder, str, _Node | None]


class _NameChange:
    """One operation on names, in one step or, for a rename, in two; it waits in each folder it touches."""

    def __init__(self, steps: tuple[_Step, ...]) -> None:
        self.steps = steps
        # Most often the two folders of a rename are the same one, where the operation waits once.
        self.folders = list({id(folder): folder for folder, _, _ in steps}.values())


def change_names(*steps: _Step) -> None:
    change = _NameChange(steps)
    for folder, name, node in steps:
        _set_name(folder.live, name, node)
    for folder in change.folders:
        folder.pending.append(change)


def _set_name(names: _Names, name: str, node: _Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def check_rename(node: _Node, replaced: _Node | None, into: Folder, target: str) -> None:
    """A file replaces a file; a folder replaces an empty folder, and does not go into itself."""
    if isinstance(node, Folder):
        if node.holds(into):
            raise os_error(errno.EINVAL, target)
        if isinstance(replaced, Inode):
            raise os_error(errno.ENOTDIR, target)
        if replaced is not None and replaced.live:
            raise os_error(errno.ENOTEMPTY, target)
    elif isinstance(replaced, Folder):
        raise os_error(errno.EISDIR, target)


def persist_names(change: _NameChange) -> None:
    """Makes a name operation durable, after all earlier pending ones in any of its folders."""
    for folder in change.folders:
        while folder.pending[0] is not change:
            persist_names(folder.pending[0])
    for folder in change.folders:
        del folder.pending[0]
    for folder, name, node in change.steps:
        _set_name(folder.durable, name, node)


def lose_power(root: Folder, survive: Survival, entropy: SeededEntropy) -> None:
    """Turns the tree under `root` into the state after a power loss."""
    if survive is not Survival.NOTHING:
        # All folders first: one operation may wait in two of them. Folders that exist only in the live tree count as
        # well, since their names may be about to become durable.
        for folder in list(_folders(root, set())):
            for _ in range(entropy.below(len(folder.pending) + 1)):
                persist_names(folder.pending[0])
    _forget(root, survive, entropy)


def _folders(folder: Folder, seen: set[Folder]) -> Iterator[Folder]:
    """Yields every folder once, live or durable, in an order that depends on names only, so that a seed is
    reproducible."""
    if folder not in seen:
        seen.add(folder)
        yield folder
        for _, node in sorted([*folder.durable.items(), *folder.live.items()], key=itemgetter(0)):
            if isinstance(node, Folder):
                yield from _folders(node, seen)


def _forget(folder: Folder, survive: Survival, entropy: SeededEntropy) -> None:
    """Reduces a folder to its durable names, and their files to their surviving content."""
    folder.live = dict(folder.durable)
    folder.pending = []
    for _, node in sorted(folder.durable.items(), key=itemgetter(0)):
        if isinstance(node, Folder):
            _forget(node, survive, entropy)
        elif node.pending or node.forgot:
            node.persist(_survivors(node.pending, survive, entropy))
            node.live = copy.deepcopy(node.durable)
            node.forgot = False


def _survivors(pending: list[_Operation], survive: Survival, entropy: SeededEntropy) -> list[_Operation]:
    """The pending operations of one file that survive a power loss."""
    if survive is Survival.SCATTERED:
        return [kept for operation in pending for kept in _scattered(operation, entropy)]
    if survive is Survival.TORN:
        writes = [operation for operation in pending if isinstance(operation, _Write)]
        return [_torn(write, entropy) for write in writes[-1:]]
    return []


def _torn(write: _Write, entropy: SeededEntropy) -> _Write:
    cut = entropy.below(len(write.data))
    damaged = min(SECTOR_BYTES, len(write.data) - cut)
    tail = (b"", bytes(damaged), entropy.token(damaged))[entropy.below(3)]
    return _Write(write.offset, write.data[:cut] + tail)


def _scattered(operation: _Operation, entropy: SeededEntropy) -> Iterator[_Operation]:
    fate = entropy.below(3)
    if fate == 0:
        return
    if fate == 1 or isinstance(operation, Resize):
        yield operation
        return
    offset, data = operation
    first = SECTOR_BYTES - offset % SECTOR_BYTES  # Sectors are counted from the start of the file, not of the write.
    for start in (0, *range(first, len(data), SECTOR_BYTES)):
        if entropy.below(2):
            stop = first if start == 0 else start + SECTOR_BYTES
            yield _Write(offset + start, data[start:stop])


def split_path(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"the fake disk does not resolve '..': {path}")
    return parts


def os_error(code: int, path: str) -> OSError:
    """Python turns the number into the subclass that the real call would raise."""
    return OSError(code, errno.errorcode[code], path)


class PowerCut(BaseException):
    """The machine stopped. Not an `Exception`, so that no error handler catches it."""


class FakeDisk:
    """A `FileSystem` in memory that can be stopped at any call and crashed.

    `call_count` counts the mutating and syncing calls, and `trace` lists them as (operation, path): the n-th call is
    `trace[n - 1]`. `open(create=True)` and `lock` count as one; `make_dirs` counts each folder it makes and each sync,
    since the machine can stop between them. Reading, closing a file and releasing a lock are not counted.

    With `stop_after` = n the n-th counted call is executed, and then every call of any kind raises `PowerCut`; with
    `stop_before` = n the n-th counted call itself raises, without effect. Both may be set at any time. `stopped`
    reports whether a call was refused: a sweep over n ends when it is still false at the end of a run. A stopped disk
    can be cloned and crashed, nothing else.

    All paths start at the one root, so `a/b` and `/a/b` are the same. Calls may come from several threads.
    """

    def __init__(self, *, stop_after: int | None = None, stop_before: int | None = None) -> None:
        self.stop_after = stop_after
        self.stop_before = stop_before
        self.stopped = False
        self.call_count = 0
        self.trace: list[tuple[str, str]] = []
        self._root = Folder()
        self._locked: set[Inode] = set()
        self._crashed = False
        self.capacity_bytes: int | None = None
        """The maximum length of all files together; None is unlimited. It may be changed at any time."""
        self._mutex = threading.RLock()

    def crash(self, survive: Survival, seed: int = 0) -> "FakeDisk":
        """Returns the disk after the crash, without open files and locks; this one raises from now on."""
        after = FakeDisk()
        with self._mutex:
            self._refuse_if_crashed()
            self._crashed = True
            # The nodes are moved without a copy: this disk, and every file opened on it, is dead.
            after._root = self._root
        if survive is not Survival.EVERYTHING:
            lose_power(after._root, survive, SeededEntropy(seed))
        return after

    def clone(self) -> "FakeDisk":
        """Returns a deep copy with counters at zero, without open files and locks, and not stopped."""
        twin = FakeDisk()
        with self._mutex:
            self._refuse_if_crashed()
            twin._root = copy.deepcopy(self._root)
        return twin

    def open(self, path: str, *, write: bool = False, create: bool = False) -> "FakeFile":
        with self._change("create", path) if create else self._call("open", path):
            return FakeFile(self, self._inode(path, create=create), path, writable=write or create)

    def rename(self, source: str, target: str) -> None:
        with self._change("rename", f"{source} -> {target}"):
            old_folder, old_name = self._place(source)
            new_folder, new_name = self._place(target)
            node = old_folder.child(old_name, source)
            replaced = new_folder.live.get(new_name)
            if replaced is node:
                return
            check_rename(node, replaced, new_folder, target)
            change_names((old_folder, old_name, None), (new_folder, new_name, node))

    def link(self, source: str, target: str) -> None:
        with self._change("link", f"{source} -> {target}"):
            old_folder, old_name = self._place(source)
            new_folder, new_name = self._place(target)
            node = old_folder.child(old_name, source)
            if isinstance(node, Folder):
                raise os_error(errno.EPERM, source)
            if new_name in new_folder.live:
                raise os_error(errno.EEXIST, target)
            change_names((new_folder, new_name, node))

    def remove(self, path: str) -> None:
        with self._change("remove", path):
            folder, name = self._place(path)
            if isinstance(folder.child(name, path), Folder):
                raise os_error(errno.EISDIR, path)
            change_names((folder, name, None))

    def remove_dir(self, path: str) -> None:
        with self._change("remove_dir", path):
            if self._folder(path).live:
                raise os_error(errno.ENOTEMPTY, path)
            change_names((*self._place(path), None))

    def list_dir(self, path: str) -> list[str]:
        with self._call("list_dir", path):
            return sorted(self._folder(path).live)

    def make_dirs(self, path: str) -> None:
        with self._call("make_dirs", path):
            parts = split_path(path)
            if not parts:
                return
            parent = "/" + "/".join(parts[:-1])
            if not self.exists(path):
                self.make_dirs(parent)
                with self._change("mkdir", path):
                    change_names((self._folder(parent), parts[-1], Folder()))
            elif isinstance(self._node(path), Inode):
                raise os_error(errno.EEXIST, path)
            # An existing folder is synced too, as in the real file system: its creator may have stopped before the
            # sync.
            self.sync_dir(parent)

    def sync_dir(self, path: str) -> None:
        with self._change("sync_dir", path):
            folder = self._folder(path)
            while folder.pending:
                persist_names(folder.pending[0])

    def exists(self, path: str) -> bool:
        with self._call("exists", path):
            try:
                self._node(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def lock(self, path: str, note: str) -> "FakeLock":
        with self._change("lock", path):
            inode = self._inode(path, create=True)
            if inode in self._locked:
                raise BlockingIOError(inode.live.read(0, inode.live.length).decode(errors="replace"))
            inode.do(Resize(0, may_shrink=True))
            inode.write(0, note.encode())
            self._locked.add(inode)
            return FakeLock(self, inode, path)

    @contextmanager
    def _call(self, operation: str, path: str, *, counted: bool = False) -> Iterator[None]:
        """Wraps every call: refuses it if the machine has stopped, and excludes other threads."""
        with self._mutex:
            self._refuse_if_crashed()
            if self.stop_after is not None and self.call_count >= self.stop_after:
                self.stopped = True
            if counted and self.stop_before is not None and self.call_count + 1 >= self.stop_before:
                self.stopped = True
            if self.stopped:
                raise PowerCut(f"the power was cut after call {self.call_count}; no {operation} of {path}")
            if counted:
                self.call_count += 1
                self.trace.append((operation, path))
            yield

    def _change(self, operation: str, path: str) -> AbstractContextManager[None]:
        return self._call(operation, path, counted=True)

    def _refuse_if_crashed(self) -> None:
        if self._crashed:
            raise PowerCut("this disk has crashed; to crash one disk in several ways, crash clones of it")

    @property
    def used_bytes(self) -> int:
        """Returns the total length of all files."""
        with self._mutex:
            return _length_of(self._root)

    def _make_room(self, inode: Inode, length: int, path: str) -> None:
        """Raises if a file of this length does not fit."""
        more = length - inode.live.length
        if self.capacity_bytes is not None and more > 0 and _length_of(self._root) + more > self.capacity_bytes:
            raise os_error(errno.ENOSPC, path)

    def _node(self, path: str) -> "Inode | Folder":
        node: Inode | Folder = self._root
        for part in split_path(path):
            if not isinstance(node, Folder):
                raise os_error(errno.ENOTDIR, path)
            node = node.child(part, path)
        return node

    def _folder(self, path: str) -> "Folder":
        node = self._node(path)
        if not isinstance(node, Folder):
            raise os_error(errno.ENOTDIR, path)
        return node

    def _place(self, path: str) -> tuple["Folder", str]:
        """Returns the folder of a path, and its last name."""
        parts = split_path(path)
        if not parts:
            raise os_error(errno.EBUSY, path)
        return self._folder("/".join(parts[:-1])), parts[-1]

    def _inode(self, path: str, *, create: bool) -> "Inode":
        folder, name = self._place(path)
        if create and name not in folder.live:
            change_names((folder, name, Inode()))
        node = folder.child(name, path)
        if isinstance(node, Folder):
            raise os_error(errno.EISDIR, path)
        return node


def _length_of(node: Inode | Folder) -> int:
    return node.live.length if isinstance(node, Inode) else sum(map(_length_of, node.live.values()))


class FakeFile:
    """An open file of a `FakeDisk`. It keeps its bytes when the name is moved or removed."""

    def __init__(self, disk: FakeDisk, inode: "Inode", path: str, *, writable: bool) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._writable = writable
        self._closed = False

    def read_at(self, offset: int, length: int) -> bytes:
        with self._disk._call("read", self._path):
            return self._usable(offset).live.read(offset, length)

    def write_at(self, offset: int, data: BytesLike) -> None:
        with self._disk._change("write", self._path):
            inode = self._usable(offset, write=True)
            self._disk._make_room(inode, offset + len(data), self._path)
            inode.write(offset, bytes(data))

    def write_whole(self, pieces: Sequence[BytesLike]) -> None:
        self.truncate(0)
        self.write_at(0, b"".join(pieces))

    def size(self) -> int:
        with self._disk._call("size", self._path):
            return self._usable().live.length

    def truncate(self, length: int) -> None:
        with self._disk._change("truncate", self._path):
            self._usable(length, write=True).do(Resize(length, may_shrink=True))

    def allocate(self, length: int) -> None:
        with self._disk._change("allocate", self._path):
            inode = self._usable(length, write=True)
            self._disk._make_room(inode, length, self._path)
            inode.do(Resize(length, may_shrink=False))

    def sync(self) -> None:
        with self._disk._change("sync", self._path):
            inode = self._usable()
            inode.persist(inode.pending)

    def fail_sync(self) -> None:
        """Fails a sync like Linux may: the pages keep the written bytes, but count as clean."""
        with self._disk._call("fail_sync", self._path):
            self._usable().forget()

    def map(self) -> memoryview:
        with self._disk._call("map", self._path):
            return self._usable().live.view()

    def close(self) -> None:
        with self._disk._call("close", self._path):
            self._closed = True

    def _usable(self, offset: int = 0, *, write: bool = False) -> "Inode":
        if self._closed or (write and not self._writable):
            raise os_error(errno.EBADF, self._path)
        if offset < 0:
            raise os_error(errno.EINVAL, self._path)
        return self._inode


class FakeLock:
    """A held lock of a `FakeDisk`; it excludes every other caller, because a fake machine runs in one process."""

    def __init__(self, disk: FakeDisk, inode: "Inode", path: str) -> None:
        self._disk = disk
        self._inode: Inode | None = inode
        self._path = path

    def in_place(self) -> bool:
        return self._inode is not None and self._disk.exists(self._path)

    def release(self) -> None:
        with self._disk._call("release", self._path):
            if self._inode is not None:
                self._disk._locked.discard(self._inode)
                self._inode = None
