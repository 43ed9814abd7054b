"""Coming into a data folder with a tool: is it one, is it free, is all of it there."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from topics.config.settings import SettingsError
from topics.core.errors import FolderBusyError
from topics.engine.repair.verification import Verification
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout

_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def hold_folder(fs: FileSystem, layout: Layout, note: str, *, read_only: bool) -> Iterator[None]:
    """Keeps everyone else out. Raises FolderBusyError, or SettingsError where there is no data folder.

    Who only looks may do so on a medium that cannot be written to, where no server can run either, and leaves no lock
    file in a copy of a folder that has none.
    """
    if not any(fs.exists(folder) for folder in (layout.meta, layout.wal, layout.topics())):
        raise SettingsError(f"{layout.root} is not a data folder of topics")
    lock = None
    try:
        if not read_only or fs.exists(layout.lock):
            lock = fs.lock(layout.lock, note)
    except BlockingIOError as error:
        raise FolderBusyError(layout.root, str(error)) from error
    except OSError as error:
        if not read_only or error.errno not in _UNWRITABLE:
            raise
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def check_cold_folder(fs: FileSystem, layout: Layout, look: Verification) -> None:
    """Refuses to take an unmounted cold folder for a lost one."""
    if not any(segment.cold for _, segment in look.segments()):
        return
    if layout.cold_root is None:
        raise SettingsError("some segments were moved to a cold folder: say where it is with --cold-dir")
    if not fs.exists(layout.topics(cold=True)):
        raise SettingsError(f"some segments were moved to a cold folder, and {layout.cold_root} does not look like it")
