"""The real disk: Linux system calls behind the `FileSystem` interface, and nothing else.

`fs.py` documents the contract of each call; the comments here explain surprising behaviour of the kernel.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from topics.log.fs import BytesLike, UnreadableError
from topics.model.settings import SettingsError

T = TypeVar("T")

_FILE_BITS, _FOLDER_BITS, _OTHERS = 0o666, 0o777, 0o077

# A file system that cannot reserve space returns one of these; a sparse file of the right length is used instead.
_CANNOT_ALLOCATE = (errno.EOPNOTSUPP, errno.EINVAL)
_CANNOT_WRITE_DIRECTLY = (errno.EOPNOTSUPP, errno.EINVAL)

_CLOSED = -1
_MIB = 1024 * 1024

# Whole files of at least this size bypass the page cache: filling fresh pages costs ten times the copy, and a sealed
# segment is rarely read at once. Direct I/O requires aligned sectors.
_DIRECT_BYTES_MIN = 64 * 1024
_SECTOR_BYTES = 4096
# The middle of a long write to the log also bypasses the page cache.
_LONG_BYTES_MIN = 1024 * 1024
_STAGED_BYTES = 4 * 1024 * 1024
_COPIED_BYTES = 512 * 1024


class _SpareDescriptors:
    """A reserve of open file descriptors, released when there are no others.

    Connections leave a share of the descriptors to files (`topics.system.process`), but libraries or other processes
    may take it. With the reserve a log file can still be rotated.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._fds: list[int] = []
        self._mutex = threading.Lock()

    def insist(self, call: Callable[[], T]) -> T:
        """Calls a function that needs a descriptor; if there is none, releases spare ones and calls it again."""
        try:
            return call()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        self._give_up()
        return call()

    def refill(self) -> None:
        """Refills the reserve as far as possible."""
        if len(self._fds) == self._count:
            return
        with self._mutex, contextlib.suppress(OSError):
            while len(self._fds) < self._count:
                self._fds.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _give_up(self) -> None:
        with self._mutex:
            while self._fds:
                os.close(self._fds.pop())


_SPARE_COUNT = 8
_spare = _SpareDescriptors(_SPARE_COUNT)


class PosixFile:
    """An open file descriptor. It is cleared on close, so a late call fails instead of using a reused number."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read_at(self, offset: int, length: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        return (
            data
            if len(data) == length or not data
            else data + _read_all(self._fd, offset + len(data), length - len(data))
        )

    def write_at(self, offset: int, data: BytesLike) -> None:
        if len(data) < _LONG_BYTES_MIN or not _write_long(self._fd, offset, data):
            _write_all(self._fd, offset, data)

    def write_whole(self, pieces: Sequence[BytesLike]) -> None:
        os.ftruncate(self._fd, 0)
        length = sum(map(len, pieces))
        if length < _DIRECT_BYTES_MIN or not _write_directly(self._fd, pieces, length):
            _write_all(self._fd, 0, b"".join(pieces))

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, length: int) -> None:
        os.ftruncate(self._fd, length)

    def allocate(self, length: int) -> None:
        if length == 0:
            return  # The system call rejects an empty range; length 0 needs no work.
        try:
            os.posix_fallocate(self._fd, 0, length)
        except OSError as error:
            if error.errno not in _CANNOT_ALLOCATE or length < 0:
                raise
            if self.size() < length:
                os.ftruncate(self._fd, length)

    def sync(self) -> None:
        # fdatasync also flushes the metadata needed to read the data, including the length. It saves the journal write
        # for the modification time that fsync makes.
        if self._fd == _CLOSED:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # Python would raise ValueError here, and only here.
        os.fdatasync(self._fd)

    def map(self) -> memoryview:
        length = self.size()
        if length == 0:
            return memoryview(b"")  # The kernel rejects empty mappings.
        # An unreadable page kills the process with SIGBUS at its first access; a read only fails.
        _read_through(self._fd, length)
        # The mapping keeps its own descriptor until its last view is freed, so it outlives close() and remove(), and
        # each mapping needs one more descriptor.
        return _spare.insist(lambda: memoryview(mmap.mmap(self._fd, length, access=mmap.ACCESS_READ)))

    def close(self) -> None:
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            os.close(fd)
            _spare.refill()

    def __del__(self) -> None:
        # A segment or a snapshot stays open while it has readers, and the last reader does not know that it is the
        # last.
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            os.close(fd)


class _Staging(threading.local):
    """Page-aligned buffers, one for each thread, kept because touching new memory costs more than the copy."""

    buffer: mmap.mmap | None = None

    def room(self) -> mmap.mmap:
        if self.buffer is None:
            self.buffer = mmap.mmap(-1, _STAGED_BYTES)
        return self.buffer


_staging = _Staging()


@contextlib.contextmanager
def _past_the_cache(fd: int) -> Iterator[None]:
    """Lets writes to the file bypass the page cache. Raises `OSError` if the file system does not support it."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
    try:
        yield
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def _write_directly(fd: int, pieces: Sequence[BytesLike], length: int) -> bool:
    """Writes without the page cache.

    Returns False if the file system does not support it; nothing relevant was written then.
    """
    try:
        with _past_the_cache(fd):
            _write_sectors(fd, 0, pieces)
            os.ftruncate(fd, length)
        return True
    except OSError as error:
        if error.errno not in _CANNOT_WRITE_DIRECTLY:
            raise
        return False


def _write_long(fd: int, offset: int, data: BytesLike) -> bool:
    """Writes whole sectors without the page cache, and the rest at both ends through it.

    Returns False if the file system does not support it; any part may be written then.
    """
    first = -(-offset // _SECTOR_BYTES) * _SECTOR_BYTES
    try:
        with memoryview(data) as whole, whole.cast("B") as view:
            last = (offset + len(view)) // _SECTOR_BYTES * _SECTOR_BYTES
            # In order, so that a stopped process has written a prefix.
            _write_all(fd, offset, view[: first - offset])
            with _past_the_cache(fd), view[first - offset : last - offset] as sectors:
                _write_sectors(fd, first, (sectors,))
            _write_all(fd, last, view[last - offset :])
        return True
    except OSError as error:
        if error.errno not in _CANNOT_WRITE_DIRECTLY:
            raise
        return False


def _write_sectors(fd: int, offset: int, pieces: Sequence[BytesLike]) -> None:
    """Writes pieces consecutively, and pads the last one to a whole sector."""
    with memoryview(_staging.room()) as staged:
        filled = 0
        for piece in pieces:
            with memoryview(piece) as whole, whole.cast("B") as view:
                done = 0
                while done < len(view):
                    # In small parts: a copy holds the interpreter lock.
                    size = min(_COPIED_BYTES, len(view) - done, _STAGED_BYTES - filled)
                    staged[filled : filled + size] = view[done : done + size]
                    done, filled = done + size, filled + size
                    if filled == _STAGED_BYTES:
                        _write_all(fd, offset, staged)
                        offset, filled = offset + filled, 0
        if filled:
            _write_all(fd, offset, staged[: -(-filled // _SECTOR_BYTES) * _SECTOR_BYTES])


class PosixLock:
    """A held flock. The file is not removed on release: otherwise two later owners could lock two different files."""

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def in_place(self) -> bool:
        try:
            return self._fd != _CLOSED and os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            # Closing alone is not enough: a forked child may still share the descriptor, and with it the lock.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


class PosixFileSystem:
    """Every call is one or a few system calls. There is no state, so one instance serves all threads.

    A new file or folder inherits the permissions of its folder, minus the umask. So the root folder alone
    (`make_private`) determines access, whichever tool works in it.
    """

    def open(self, path: str, *, write: bool = False, create: bool = False) -> PosixFile:
        flags = os.O_RDWR if write or create else os.O_RDONLY
        mode = _mode_in(path, _FILE_BITS) if create else 0
        fd = _spare.insist(lambda: os.open(path, flags | (os.O_CREAT if create else 0), mode))
        # Linux opens a folder for reading without an error; only the first read would fail.
        if flags == os.O_RDONLY and stat.S_ISDIR(os.fstat(fd).st_mode):
            os.close(fd)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return PosixFile(fd)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

    def list_dir(self, path: str) -> list[str]:
        return sorted(_spare.insist(lambda: os.listdir(path)))

    def make_dirs(self, path: str) -> None:
        path = os.path.normpath(path)
        parent = os.path.dirname(path) or "."
        if os.path.isdir(path):
            # The folder may have been created by a process that was killed before it synced the name, so an existing
            # folder is synced, too. If the parent is not readable, this process cannot have created it.
            with contextlib.suppress(PermissionError):
                self.sync_dir(parent)
            return
        self.make_dirs(parent)
        try:
            os.mkdir(path, _mode_in(path, _FOLDER_BITS))
        except FileExistsError:
            if not os.path.isdir(path):  # Another process may create the same folder first.
                raise
        self.sync_dir(parent)

    def sync_dir(self, path: str) -> None:
        fd = _spare.insist(lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        # os.path.exists returns False for every error. A log that seems missing because of a read error would be
        # overwritten by a new one, so only errors that mean "not found" return False here.
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def lock(self, path: str, note: str) -> PosixLock:
        # Opened without O_TRUNC: the note in the file belongs to the holder until this process has the lock.
        fd = os.open(path, os.O_RDWR | os.O_CREAT, _mode_in(path, _FILE_BITS))
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _read_all(fd, 0, os.fstat(fd).st_size)
                raise BlockingIOError(holder.decode(errors="replace")) from None
            # A process that reads between these two calls gets an empty note, which is better than half of an old one.
            os.ftruncate(fd, 0)
            _write_all(fd, 0, note.encode())
        except BaseException:
            os.close(fd)
            raise
        return PosixLock(fd, path)


def check_data_folder(path: str, needed_bytes: int) -> None:
    """Raises SettingsError for an unusable data folder: a file, or a new folder on a disk that is too small.

    An existing folder is opened on a full disk as well: its records can be read and deleted.
    """
    found = os.path.abspath(path)
    while not os.path.lexists(found):
        found = os.path.dirname(found)
    if not os.path.isdir(found):
        where = "is a file" if found == os.path.abspath(path) else f"cannot be made: {found} is a file"
        raise SettingsError(f"the data folder {path} {where}. Give a folder with --data-dir or TOPICS_DATA_DIR")
    disk = os.statvfs(found)
    free = disk.f_bavail * disk.f_frsize
    if free < needed_bytes and not os.path.exists(f"{path}/wal"):
        raise SettingsError(
            f"the disk of the data folder {path} has {free / _MIB:.1f} MiB free, and a new data folder needs at least "
            f"{needed_bytes / _MIB:.1f} MiB: full_disk_reserve_bytes and a log file of wal_file_bytes. Use another "
            "disk with --data-dir, or lower these settings"
        )


def is_locked(path: str) -> bool:
    """Returns whether a process holds the lock file at `path`. A free lock is taken for a moment."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def make_private(path: str) -> None:
    """Restricts a folder to its owner. A folder of another user is not changed."""
    os.makedirs(path, _FOLDER_BITS & ~_OTHERS, exist_ok=True)
    found = os.stat(path)
    if found.st_mode & _OTHERS and found.st_uid == os.geteuid():
        os.chmod(path, stat.S_IMODE(found.st_mode) & ~_OTHERS)


def _mode_in(path: str, bits: int) -> int:
    """The permission bits of a new file or folder, inherited from the folder it is created in."""
    return os.stat(os.path.dirname(path) or ".").st_mode & bits


def _read_all(fd: int, offset: int, length: int) -> bytes:
    """Reads until `length` or the end of the file: a signal or a network disk may cause short reads."""
    data = os.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    done = len(data)
    while done < length and (data := os.pread(fd, length - done, offset + done)):
        parts.append(data)
        done += len(data)
    return b"".join(parts)


def _read_through(fd: int, length: int) -> None:
    """Reads a file and discards the content. Raises UnreadableError with the sectors that the disk cannot read."""
    with memoryview(_staging.room()) as room:
        offset = 0
        while offset < length:
            try:
                done = os.preadv(fd, [room[: min(_COPIED_BYTES, length - offset)]], offset)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                raise _unreadable(fd, offset, length, error) from error
            if not done:
                return
            offset += done


def _unreadable(fd: int, offset: int, length: int, error: OSError) -> UnreadableError:
    """Returns the first run of unreadable sectors from an offset on."""
    begin = end = offset
    found = False
    while end < length:
        try:
            os.pread(fd, _SECTOR_BYTES, end)
        except OSError:
            begin, found = (begin if found else end), True
        else:
            if found:
                break
        end += _SECTOR_BYTES
    return UnreadableError(error, begin if found else offset, min(end, length))


def _write_all(fd: int, offset: int, data: BytesLike) -> None:
    """Writes until nothing is left: the kernel may accept fewer bytes, and reports the reason at the next call."""
    done = os.pwrite(fd, data, offset)
    if isinstance(data, bytes) and done == len(data):
        return
    with memoryview(data) as whole, whole.cast("B") as view:
        while done < len(view):
            written = os.pwrite(fd, view[done:], offset + done)
            if written == 0:
                raise OSError(errno.EIO, "the kernel took none of the bytes and gave no reason")
            done += written
