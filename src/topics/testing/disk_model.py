"""What a fake disk is made of: contents, files and folders that know what a power loss would leave of them.

`topics.testing.disk` is the file system on top and explains the model.
"""

import copy
import enum
import errno
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, NamedTuple

from topics.testing.dice import SeededDice

SECTOR_BYTES = 512


class Survival(enum.Enum):
    """What a crash does to operations that no sync has covered."""

    NOTHING = "all of them are lost"

    EVERYTHING = "the process was killed and the machine runs on: all are there, but wait for a sync as before"
    """A new process sees every write, and a power loss later can still take them: it has to sync what it builds on."""

    TORN = "the last waiting write of each file leaves a part of itself; all other file operations are lost"
    """The part is a strict prefix, cut at any byte, and what follows it inside the write is one of: nothing, up to a
    sector of zeros, up to a sector of garbage. Of the names, a prefix of each folder's operations survives."""

    SCATTERED = "each file operation, and each sector of a write, survives or is lost by itself, as if reordered"
    """A waiting write is kept, lost, or kept in some of its sectors; a truncate or allocate is kept or lost. Of the
    names, a prefix of each folder's operations survives."""


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
            self.stored = self.stored[:length]  # Not cut in place, for the same reason as below.
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
                # Python does not resize what a view looks at. The view keeps the old bytes, which is all it may count
                # on: that a map of a real file shows later writes too is more than the interface says.
                self.stored = self.stored + bytes(missing)


class Inode:
    """A file without its name."""

    def __init__(self) -> None:
        self.live = _Content()
        self.durable = _Content()
        self.pending: list[_Operation] = []
        self.forgot = False
        """Whether it shows bytes that are not on the disk and that no sync will bring there."""

    def do(self, operation: _Operation) -> None:
        operation.apply(self.live)
        self.pending.append(operation)

    def write(self, offset: int, data: bytes) -> None:
        if data:  # An empty write does not grow a file, wherever it is put.
            self.do(_Write(offset, data))

    def settle(self, survivors: list[_Operation]) -> None:
        """Makes these operations durable and forgets the others that wait."""
        for operation in survivors:
            operation.apply(self.durable)
        self.pending = []

    def forget(self) -> None:
        """A sync failed: the writes that waited are still shown, count as written, and are not."""
        kept: list[_Operation] = [operation for operation in self.pending if isinstance(operation, Resize)]
        self.forgot |= len(kept) < len(self.pending)
        self.pending = kept


class Folder:
    """Names and what they stand for."""

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
        """Whether `other` is this folder or lies somewhere inside it."""
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


def settle_names(change: _NameChange) -> None:
    """Makes a name operation durable, and before it whatever waits ahead of it in any of its folders."""
    for folder in change.folders:
        while folder.pending[0] is not change:
            settle_names(folder.pending[0])
    for folder in change.folders:
        del folder.pending[0]
    for folder, name, node in change.steps:
        _set_name(folder.durable, name, node)


def lose_power(root: Folder, survive: Survival, dice: SeededDice) -> None:
    """Turns the tree under `root` into what a machine finds when the power is back."""
    if survive is not Survival.NOTHING:
        # All folders first: one operation may wait in two of them. Those that exist only live have a say as well,
        # since their names may be about to survive.
        for folder in list(_folders(root, set())):
            for _ in range(dice.below(len(folder.pending) + 1)):
                settle_names(folder.pending[0])
    _forget(root, survive, dice)


def _folders(folder: Folder, seen: set[Folder]) -> Iterator[Folder]:
    """Every folder once, live or durable, in an order that depends on names alone, so that a seed repeats."""
    if folder not in seen:
        seen.add(folder)
        yield folder
        for _, node in sorted([*folder.durable.items(), *folder.live.items()], key=itemgetter(0)):
            if isinstance(node, Folder):
                yield from _folders(node, seen)


def _forget(folder: Folder, survive: Survival, dice: SeededDice) -> None:
    """Leaves a folder with its durable names, and the files behind them with what survives in them."""
    folder.live = dict(folder.durable)
    folder.pending = []
    for _, node in sorted(folder.durable.items(), key=itemgetter(0)):
        if isinstance(node, Folder):
            _forget(node, survive, dice)
        elif node.pending or node.forgot:
            node.settle(_survivors(node.pending, survive, dice))
            node.live = copy.deepcopy(node.durable)
            node.forgot = False


def _survivors(pending: list[_Operation], survive: Survival, dice: SeededDice) -> list[_Operation]:
    """What a power loss leaves of the operations that wait on one file."""
    if survive is Survival.SCATTERED:
        return [kept for operation in pending for kept in _scattered(operation, dice)]
    if survive is Survival.TORN:
        writes = [operation for operation in pending if isinstance(operation, _Write)]
        return [_torn(write, dice) for write in writes[-1:]]
    return []


def _torn(write: _Write, dice: SeededDice) -> _Write:
    cut = dice.below(len(write.data))
    damaged = min(SECTOR_BYTES, len(write.data) - cut)
    tail = (b"", bytes(damaged), dice.token(damaged))[dice.below(3)]
    return _Write(write.offset, write.data[:cut] + tail)


def _scattered(operation: _Operation, dice: SeededDice) -> Iterator[_Operation]:
    fate = dice.below(3)
    if fate == 0:
        return
    if fate == 1 or isinstance(operation, Resize):
        yield operation
        return
    offset, data = operation
    first = SECTOR_BYTES - offset % SECTOR_BYTES  # Sectors are counted from the start of the file, not of the write.
    for start in (0, *range(first, len(data), SECTOR_BYTES)):
        if dice.below(2):
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
