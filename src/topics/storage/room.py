"""Room on the disk that is kept back, so that room can be made when there is none.

A disk that is full takes no delete either: the delete has to be logged, and the checkpoint that removes the files has
to be written first. So a file of some megabytes is reserved while there is room. The first write that meets a full disk
gives it up, and from then on only what makes room is logged, in small files, until the reserve can be had again with
room for a whole log file beside it: less would let writers in and out from one second to the next.
"""

import contextlib
import logging
import threading

from topics.core.errors import DiskFullError
from topics.storage.fs import FileSystem
from topics.storage.shortages import is_passing

_log = logging.getLogger(__name__)


class Room:
    """Whether the disk has room: it has, as long as nobody finds out otherwise."""

    def __init__(self) -> None:
        self.short: DiskFullError | None = None
        """What whoever wants to write more is told; None while there is room. Read by the loop at any moment."""


class DiskRoom(Room):
    """Whether the disk has room, and the reserve. `reserve_bytes` of 0 keeps none. Any thread may call it."""

    def __init__(self, fs: FileSystem, path: str, reserve_bytes: int, spare_bytes: int) -> None:
        super().__init__()
        self._fs = fs
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._spare_bytes = spare_bytes
        self._mutex = threading.Lock()
        self.shortages = 0
        """How often the disk was found full."""

    def ran_out(self) -> None:
        """A write found the disk full: gives the reserve up."""
        with self._mutex:
            if self.short is None:
                self.short = DiskFullError()
                self.shortages += 1
                _log.error("the disk is full: only what makes room is taken until there is some", extra=self._told())
            self._give_up()

    def begin(self) -> None:
        """Reserves at a start. A disk without room for that is full."""
        if self._reserve_bytes and not self._reserve(self._reserve_bytes):
            self.ran_out()

    def regain(self) -> bool:
        """Reserves again; whether there is room. Raises `OSError` where it is not room that is missing."""
        with self._mutex:
            if not self._reserve(self._reserve_bytes + self._spare_bytes):
                return False
            if self.short is not None:
                self.short = None
                _log.warning("the disk has room again: everything is taken", extra=self._told())
            return True

    def _reserve(self, nbytes: int) -> bool:
        try:
            file = self._fs.open(self._path, create=True)
        except OSError as error:
            if is_passing(error):
                return False
            raise
        try:
            file.allocate(nbytes)
            file.truncate(self._reserve_bytes)
            file.sync()
            return True
        except OSError as error:
            with contextlib.suppress(OSError):
                file.truncate(0)
            if is_passing(error):
                return False
            raise
        finally:
            file.close()

    def _give_up(self) -> None:
        # Where even this fails, deletes will too; there is nothing else that could be given.
        with contextlib.suppress(OSError):
            file = self._fs.open(self._path, write=True)
            try:
                file.truncate(0)
                file.sync()
            finally:
                file.close()

    def _told(self) -> dict[str, object]:
        return {"reserve_bytes": self._reserve_bytes}
