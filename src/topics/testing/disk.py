"""A disk in memory that keeps what was written and what would survive a power loss apart.

Each file holds two contents, the live one that reads see and the durable one, and the ordered operations between them
that no `sync` has covered yet. Each folder does the same for its names. A crash drops everything live, lets some of
the waiting operations through, chosen by a `Survival` and a seed, and hands the rest over as a new disk.

    live = durable + pending          sync: durable := live          crash: durable := durable + some of pending

What the model takes for granted, beyond the rules in `topics.storage.fs`:

* Bytes that a waiting write does not cover are never harmed, not even in a sector it shares with them.
* A folder is journaled: of its waiting name operations a prefix survives, never a later one without an earlier one.
* A rename is one operation, also from folder to folder: where it becomes durable in one of the two, it does in the
  other, together with all that waited before it. So a crash finds the old name or the new one, never both or neither.
* A file whose name, or whose folder's name, did not survive is gone, however well its bytes were synced.

Contents are stored up to the last byte ever written, with the length beside them; the zeros after it cost nothing to
allocate, copy or make durable. A sweep makes thousands of disks, most of their files preallocated and nearly empty.
"""

import copy
import errno
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from topics.storage.fs import BytesLike
from topics.testing.dice import SeededDice
from topics.testing.disk_model import (
    Folder,
    Inode,
    Resize,
    Survival,
    change_names,
    check_rename,
    lose_power,
    os_error,
    settle_names,
    split_path,
)


class PowerCut(BaseException):
    """The machine stopped. Not an `Exception`, because no handler for errors may get in the way of the end."""


class FakeDisk:
    """A `FileSystem` in memory that can be stopped at any call and crashed.

    `call_count` counts the mutating and syncing calls, and `trace` lists them as (operation, path): the n-th call is
    `trace[n - 1]`. `open(create=True)` and `lock` count as one; `make_dirs` counts each folder it makes and each sync,
    since the machine can stop between them. Reading, closing a file and releasing a lock are not counted.

    With `stop_after` = n the n-th counted call is executed, and then every call of any kind raises `PowerCut`; with
    `stop_before` = n the n-th counted call itself raises, without effect. Both may be set at any time. `stopped` says
    whether a call was refused: a sweep over n is over when it is still false at the end of a run. A stopped disk can
    be cloned and crashed, nothing else.

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
        """How long all files may be together; None is no bound. It may be changed at any time."""
        self._mutex = threading.RLock()

    def crash(self, survive: Survival, seed: int = 0) -> "FakeDisk":
        """The disk as it is found after the crash. Nobody has it open or locked, and this one raises from now on."""
        after = FakeDisk()
        with self._mutex:
            self._refuse_if_crashed()
            self._crashed = True
            # The nodes move over without being copied: this disk, and every file opened on it, is dead.
            after._root = self._root
        if survive is not Survival.EVERYTHING:
            lose_power(after._root, survive, SeededDice(seed))
        return after

    def clone(self) -> "FakeDisk":
        """A copy that shares nothing, with counters at zero. Nobody has it open or locked, and it is not stopped."""
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
            # A folder found there is synced too, as the real one does: whoever made it may not have come that far.
            self.sync_dir(parent)

    def sync_dir(self, path: str) -> None:
        with self._change("sync_dir", path):
            folder = self._folder(path)
            while folder.pending:
                settle_names(folder.pending[0])

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
        """Around every call: lets it through, unless the machine has stopped, and lets no other thread in between."""
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
        """How long all files are together."""
        with self._mutex:
            return _length_of(self._root)

    def _make_room(self, inode: Inode, length: int, path: str) -> None:
        """Raises where a file would not fit that is to be so long."""
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
        """The folder that holds the last name of a path, and that name."""
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
    """An open file of a `FakeDisk`. It stays with its bytes when the name is moved or removed."""

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
            inode.settle(inode.pending)

    def fail_sync(self) -> None:
        """What Linux may make of a sync that fails: the pages hold what was written, and are clean."""
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
    """A held lock of a `FakeDisk`; it is held against everyone, since a fake machine runs in one process."""

    def __init__(self, disk: FakeDisk, inode: "Inode", path: str) -> None:
        self._disk = disk
        self._inode: Inode | None = inode
        self._path = path

    def release(self) -> None:
        with self._disk._call("release", self._path):
            if self._inode is not None:
                self._disk._locked.discard(self._inode)
                self._inode = None
