"""File system interface: every access of the log to files goes through it.

Every call that can fail or be cut short by a crash goes through these two interfaces, so a test can stop the world
after each of them. `PosixFileSystem` is the real one; `topics.testing` ships a fake that keeps written and durable
bytes apart, and a wrapper that fails the n-th call.

The rules callers rely on, and every implementation is held to by the same check:

* `write_at` writes everything or raises `OSError`; after an error any prefix of the bytes may be in the file.
* A write survives a crash only after `File.sync`. Until then any part of it may be there, in any order.
* A new name, a rename or a removal survives a crash only after `sync_dir` of the folder that holds the name.
* `allocate` and growing writes leave zeros in the bytes nobody wrote.
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
        """The bytes at `offset`; fewer than `length` only where the file ends."""
        ...

    def write_at(self, offset: int, data: BytesLike) -> None: ...

    def write_whole(self, pieces: Sequence[BytesLike]) -> None:
        """Makes these bytes, one after the other, the whole content of the file.

        For files that are written once and seldom read soon: a disk may pass its cache by. A crash may leave any part.
        """
        ...

    def size(self) -> int: ...

    def truncate(self, length: int) -> None: ...

    def allocate(self, length: int) -> None:
        """Reserves room so that the file is at least `length` long; new bytes read as zeros."""
        ...

    def sync(self) -> None:
        """Makes every earlier write of this file, and its length, survive a crash."""
        ...

    def map(self) -> memoryview:
        """A read-only view of the whole file as it is now. An empty file maps to empty bytes.

        The file is read through first, so that a sector that cannot be read is an OSError here and does not kill the
        process later. For files that are looked at once, at a start or by a tool; what is served from for as long as
        the server runs is read by `read_at`.
        """
        ...

    def close(self) -> None: ...


class UnreadableError(OSError):
    """The disk cannot read a part of a file; `begin` and `end` are its bytes, in whole sectors."""

    def __init__(self, cause: OSError, begin: int, end: int) -> None:
        super().__init__(cause.errno, cause.strerror)
        self.begin = begin
        self.end = end


KEEPS_DELETES = "that keeps deletes for an archive"
"""In the lock note of a server whose deletes reach the archive: a run of the pipeline beside it looks for it."""


class FolderLock(Protocol):
    """Held while one process owns the data folder; the kernel lets go of it when the process dies."""

    def in_place(self) -> bool:
        """Whether the locked file still has its path: not so once its folder was removed, moved or replaced."""
        ...

    def release(self) -> None: ...


class FileSystem(Protocol):
    """Paths are strings with `/`; a missing path raises `FileNotFoundError`."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Opens a file; `create` makes it when it is missing (and implies `write`)."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Replaces `target` in one step."""
        ...

    def link(self, source: str, target: str) -> None:
        """Gives a file a second name, in one step. Raises FileExistsError where that name is taken."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_dir(self, path: str) -> None:
        """Removes an empty folder."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        ...

    def make_dirs(self, path: str) -> None:
        """Makes a folder and its missing parents, each made durable in the folder above it."""
        ...

    def sync_dir(self, path: str) -> None: ...

    def exists(self, path: str) -> bool: ...

    def lock(self, path: str, note: str) -> FolderLock:
        """Takes the exclusive lock file at `path`, leaving `note` in it.

        Raises `BlockingIOError` whose text is the holder's note when another process has it.
        """
        ...


def map_file(fs: FileSystem, path: str) -> memoryview:
    """A view of a whole file as it is now."""
    file = fs.open(path)
    try:
        return file.map()
    finally:
        file.close()


UNREADABLE_BYTE = 0xEE
"""The replacement of `map_damaged` for bytes that cannot be read: neither zeros, which may end a log, nor a checksum.
"""


def map_damaged(fs: FileSystem, path: str) -> memoryview:
    """A view of a whole file for tools that mend it; what cannot be read is filled with `UNREADABLE_BYTE`."""
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
    """The bytes that a disk could not read, where the error has them."""
    return (error.begin, error.end) if isinstance(error, UnreadableError) else None


def read_small(fs: FileSystem, path: str) -> str:
    """The text of a file of a few bytes; empty where there is none."""
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return ""
    try:
        return str(file.read_at(0, 4096), "utf-8", "replace")
    finally:
        file.close()


def write_small(fs: FileSystem, path: str, text: str, folder: str) -> None:
    """Replaces a file of a few bytes, durably: after a crash it has the old text or the new one."""
    file = fs.open(path + ".tmp", create=True)
    try:
        file.truncate(0)
        file.write_at(0, text.encode())
        file.sync()
    finally:
        file.close()
    fs.rename(path + ".tmp", path)
    fs.sync_dir(folder)


# Small files that are replaced as a whole: a caller that reads one gets the old bytes or the new ones.


def replace_file(fs: FileSystem, path: str, data: bytes) -> None:
    """Puts `data` at `path`, durably. A crash leaves the old file, the new one, or a `.tmp` that is written over."""
    _replace(fs, path, path + ".tmp", data)


def replace_beside_others(fs: FileSystem, path: str, data: bytes, attempt: str) -> None:
    """The same where others may put something there at the same moment: each `attempt` has its own `.tmp`.

    Nothing is left of one that fails, and what a crash leaves is written over by nobody.
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
    """Adds the path to an error of a write, such as that of a full disk, which the system leaves without one."""
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
    """The bytes of a file; None when it is not there."""
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


# Checksums of small files. A file without one was written by an earlier release and is read as it is.
#
#     text    TEXT, line feed, "xxh3 " and the XXH3-64 of NAME, line feed, TEXT as 16 hexadecimal digits, line feed
#     JSON    "checksum" is the last member of the object: the XXH3-64 of every byte before its comma

_TEXT_MARK = "xxh3 "
_JSON_CHECKSUM = re.compile(rb',"checksum":"([0-9a-f]{16})"\}\s*$')


class WrongChecksumError(ValueError):
    """A small file is not what was written."""


def write_checked(fs: FileSystem, path: str, text: str) -> None:
    """Replaces a file of a few bytes, durably, with a checksum of its name and its text."""
    replace_file(fs, path, f"{text}\n{_TEXT_MARK}{_named_checksum(path, text)}\n".encode())


def _named_checksum(path: str, text: str) -> str:
    """With the name in it, so that a file in the place of another one is found."""
    return xxh3_64_hexdigest(f"{path.rpartition('/')[2]}\n{text}".encode())


def read_checked(fs: FileSystem, path: str) -> str:
    """The text of a file that `write_checked` wrote; empty where there is none. Raises WrongChecksumError."""
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
    """A JSON object with its checksum as the last member."""
    body = data.rstrip().removesuffix(b"}")
    return b'%b,"checksum":"%b"}' % (body, xxh3_64_hexdigest(body).encode())


def check_json(data: bytes) -> bytes:
    """The same bytes. Raises WrongChecksumError where a JSON object has a checksum that is not its own."""
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
# None of them may be taken for damage, and none for a sync that failed for good: what was asked for can be asked again.

_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))
_DESCRIPTORS = frozenset((errno.EMFILE, errno.ENFILE))
_PASSING = _ROOM | _DESCRIPTORS | {errno.ENOMEM, errno.ENOBUFS, errno.EINTR, errno.EAGAIN}


def is_passing(error: BaseException) -> bool:
    """Whether the same call may well succeed later, with nothing lost meanwhile."""
    return isinstance(error, OSError) and error.errno in _PASSING


def is_full(error: BaseException) -> bool:
    """Whether it is room on the disk that is short."""
    return isinstance(error, OSError) and error.errno in _ROOM


def lacks_descriptors(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _DESCRIPTORS


def as_refusal(error: OSError) -> RetryLaterError:
    """The error for a client after a transient failure."""
    return DiskFullError() if is_full(error) else SystemBusyError(error.strerror or str(error))
