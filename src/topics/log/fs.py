"""File system interface: every access of the log to files goes through it.

Every call that can fail or be cut short by a crash goes through these two interfaces, so a test can stop the world
after each of them. `PosixFileSystem` is the production implementation; `topics.testing` has a fake that distinguishes
written and durable bytes, and a wrapper that fails the n-th call.

Callers rely on these rules, and one test checks them for every implementation:

* `write_at` writes everything or raises `OSError`; after an error any prefix of the bytes may be in the file.
* A write survives a crash only after `File.sync`. Until then any part of it may be there, in any order.
* A new name, a rename or a removal survives a crash only after `sync_dir` of the folder that holds the name.
* `allocate` and growing writes leave zeros in unwritten bytes.
"""

import contextlib
import errno
import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from xxhash import xxh3_64_hexdigest

from topics.model.errors import DiskFullError, RetryLaterError, SystemBusyError

BytesLike = bytes | bytearray | memoryview

_SECTOR_BYTES = 4096


class File(Protocol):
    """An open file, addressed by position; there is no cursor to share."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Returns the bytes at `offset`; fewer than `length` only at the end of the file."""
        ...

    def write_at(self, offset: int, data: BytesLike) -> None: ...

    def write_whole(self, pieces: Sequence[BytesLike]) -> None:
        """Replaces the whole content of the file by these pieces.

        For files that are written once and rarely read soon: the page cache may be bypassed. A crash may leave any
        part.
        """
        ...

    def size(self) -> int: ...

    def truncate(self, length: int) -> None: ...

    def allocate(self, length: int) -> None:
        """Reserves room so that the file is at least `length` long; new bytes read as zeros."""
        ...

    def sync(self) -> None:
        """Makes every earlier write of this file, and its length, durable."""
        ...

    def map(self) -> memoryview:
        """Returns a read-only view of the whole current file. An empty file maps to empty bytes.

        The file is read first, so that an unreadable sector raises OSError here and does not kill the process later.
        For files that are used once, at startup or by a tool. Files that a server serves from are read by `read_at`.
        """
        ...

    def close(self) -> None: ...


class UnreadableError(OSError):
    """The disk cannot read a part of a file, the bytes from `begin` to before `end`, in whole sectors."""

    def __init__(self, cause: OSError, begin: int, end: int) -> None:
        super().__init__(cause.errno, cause.strerror)
        self.begin = begin
        self.end = end


KEEPS_DELETES = "that keeps deletes for an archive"
"""Part of the lock note of a server whose deletes reach the archive. Runs of the pipeline check it."""


class FolderLock(Protocol):
    """Held while a process owns the data folder; the kernel releases it when the process dies."""

    def in_place(self) -> bool:
        """Returns whether the locked file still has its path: False after its folder was removed, moved or replaced."""
        ...

    def release(self) -> None: ...


class FileSystem(Protocol):
    """Paths are strings with `/`; a missing path raises `FileNotFoundError`."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Opens a file; `create` creates a missing one (and implies `write`)."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Replaces `target` atomically."""
        ...

    def link(self, source: str, target: str) -> None:
        """Creates a hard link atomically. Raises FileExistsError if the name is taken."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_dir(self, path: str) -> None:
        """Removes an empty folder."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Returns the names in a folder, sorted."""
        ...

    def make_dirs(self, path: str) -> None:
        """Creates a folder and its missing parents, durably."""
        ...

    def sync_dir(self, path: str) -> None: ...

    def exists(self, path: str) -> bool: ...

    def lock(self, path: str, note: str) -> FolderLock:
        """Takes the exclusive lock file at `path`, leaving `note` in it.

        Raises `BlockingIOError` with the holder's note as its text if another process has it.
        """
        ...


def map_file(fs: FileSystem, path: str) -> memoryview:
    """Returns a view of a whole current file."""
    file = fs.open(path)
    try:
        return file.map()
    finally:
        file.close()


UNREADABLE_BYTE = 0xEE
"""The replacement of `map_damaged` for bytes that cannot be read: neither zeros, which may end a log, nor a checksum.
"""


def map_damaged(fs: FileSystem, path: str) -> memoryview:
    """Returns a view of a whole file for repair tools; unreadable bytes are replaced by `UNREADABLE_BYTE`."""
    file = fs.open(path)
    try:
        try:
            return file.map()
        except UnreadableError:
            return memoryview(_patched(file))
    finally:
        file.close()


def _patched(file: File) -> bytearray:
    whole = bytearray((UNREADABLE_BYTE,)) * file.size()
    for begin in range(0, len(whole), _SECTOR_BYTES):
        end = min(begin + _SECTOR_BYTES, len(whole))
        with contextlib.suppress(OSError):
            whole[begin:end] = file.read_at(begin, end - begin)
    return whole


def unreadable_range(error: OSError) -> tuple[int, int] | None:
    """Returns the range of unreadable bytes, if the error has one."""
    return (error.begin, error.end) if isinstance(error, UnreadableError) else None


def read_small(fs: FileSystem, path: str) -> str:
    """Returns the text of a small file; empty if it does not exist."""
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return ""
    try:
        return str(file.read_at(0, 4096), "utf-8", "replace")
    finally:
        file.close()


def write_small(fs: FileSystem, path: str, text: str, folder: str) -> None:
    """Replaces a small file durably: after a crash it has the old text or the new one."""
    file = fs.open(path + ".tmp", create=True)
    try:
        file.truncate(0)
        file.write_at(0, text.encode())
        file.sync()
    finally:
        file.close()
    fs.rename(path + ".tmp", path)
    fs.sync_dir(folder)


# Small files that are replaced atomically: readers get the old bytes or the new ones.


def replace_file(fs: FileSystem, path: str, data: bytes) -> None:
    """Writes `data` to `path`, durably.

    A crash leaves the old file or the new one, and perhaps a `.tmp` that is overwritten later.
    """
    _replace(fs, path, path + ".tmp", data)


def replace_beside_others(fs: FileSystem, path: str, data: bytes, attempt: str) -> None:
    """Like `replace_file`, for concurrent writers: each `attempt` has its own `.tmp`.

    A failed attempt removes its file; a file left by a crash is never overwritten.
    """
    temporary = f"{path}.{attempt}.tmp"
    try:
        _replace(fs, path, temporary, data)
    except Exception:
        with contextlib.suppress(OSError):
            fs.remove(temporary)
        raise


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Adds the path to an error of a write, such as a full disk, for which the system gives none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = path
        raise


def _replace(fs: FileSystem, path: str, temporary: str, data: bytes) -> None:
    file = fs.open(temporary, create=True)
    try:
        with naming(path):
            file.truncate(0)
            file.write_at(0, data)
            file.sync()
    finally:
        file.close()
    fs.rename(temporary, path)
    fs.sync_dir(path.rpartition("/")[0] or ".")


def read_whole(fs: FileSystem, path: str) -> bytes | None:
    """Returns the bytes of a file; None if it does not exist."""
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


# Checksums of small files. A file without one was written by an earlier release and is accepted.
#
#     text    TEXT, line feed, "xxh3 " and the XXH3-64 of NAME, line feed, TEXT as 16 hexadecimal digits, line feed
#     JSON    "checksum" is the last member of the object: the XXH3-64 of every byte before its comma

_TEXT_MARK = "xxh3 "
_JSON_CHECKSUM = re.compile(rb',"checksum":"([0-9a-f]{16})"\}\s*$')


class WrongChecksumError(ValueError):
    """The checksum of a small file is wrong."""


def write_checked(fs: FileSystem, path: str, text: str) -> None:
    """Replaces a small file durably, with a checksum of its name and its text."""
    replace_file(fs, path, f"{text}\n{_TEXT_MARK}{_named_checksum(path, text)}\n".encode())


def _named_checksum(path: str, text: str) -> str:
    """The name is included to detect files that were swapped."""
    return xxh3_64_hexdigest(f"{path.rpartition('/')[2]}\n{text}".encode())


def read_checked(fs: FileSystem, path: str) -> str:
    """Returns the text of a file written by `write_checked`; empty if it does not exist. Raises WrongChecksumError."""
    found = read_small(fs, path)
    text, _, mark = found.removesuffix("\n").rpartition("\n")
    # Development versions left the name out.
    known = {_TEXT_MARK + _named_checksum(path, text), _TEXT_MARK + xxh3_64_hexdigest(text.encode())}
    if found.endswith("\n") and mark in known:
        return text
    if _TEXT_MARK in found or ("\n" in found.rstrip("\n") and found.endswith("\n")):
        raise WrongChecksumError(f"{path} has a wrong checksum")
    return found


def add_checksum(data: bytes) -> bytes:
    """Adds the checksum of a JSON object as its last member."""
    body = data.rstrip().removesuffix(b"}")
    return b'%b,"checksum":"%b"}' % (body, xxh3_64_hexdigest(body).encode())


def check_json(data: bytes) -> bytes:
    """Returns the same bytes. Raises WrongChecksumError if a JSON object contains a wrong checksum."""
    found = _JSON_CHECKSUM.search(data)
    if found is not None and xxh3_64_hexdigest(data[: found.start()]).encode() != found[1]:
        raise WrongChecksumError("it has a wrong checksum")
    return data


# Transient failures of the system, which do not affect the data on the disk.
#
# | errno | what is short |
# |---|---|
# | ENOSPC, EDQUOT | room on the disk |
# | EMFILE, ENFILE | file descriptors |
# | ENOMEM, ENOBUFS | memory |
# | EINTR, EAGAIN | nothing: the call was cut short |
#
# None of them counts as damage or as a permanently failed sync: the call can be repeated.

_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))
_DESCRIPTORS = frozenset((errno.EMFILE, errno.ENFILE))
_PASSING = _ROOM | _DESCRIPTORS | {errno.ENOMEM, errno.ENOBUFS, errno.EINTR, errno.EAGAIN}


def is_passing(error: BaseException) -> bool:
    """Returns whether the call may succeed later without any loss."""
    return isinstance(error, OSError) and error.errno in _PASSING


def is_full(error: BaseException) -> bool:
    """Returns whether the disk is full."""
    return isinstance(error, OSError) and error.errno in _ROOM


def lacks_descriptors(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _DESCRIPTORS


def as_refusal(error: OSError) -> RetryLaterError:
    """Returns the error for a client after a transient failure."""
    return DiskFullError() if is_full(error) else SystemBusyError(error.strerror or str(error))
