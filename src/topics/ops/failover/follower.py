"""Follower: an engine that follows the log which a primary ships, and serves reads (also known as: read replica, hot
standby).

1. The newest backup is restored into a separate folder, with the shipped log as far as it is complete;
2. the objects behind it are read one after the other, and their frames applied to the running engine
   (`engine.following`).

The folder is a cache: a restart of the process restores again. Nothing is written to the backup storage.

| what the follower finds | what it does |
|---|---|
| the next object is not there yet | asks again |
| an object that cannot be read | asks again; it may still be being written |
| a newer backup of the same run of the primary | nothing: the objects go on |
| a backup of another run or of another primary, or one that has the missing object | restores that backup |
| a fence | waits for the backups of the next primary |
| log that does not continue its state | restores again, with the log |
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.following import FollowError, LiveReplay, Merge, applied
from topics.log.frame import Frame
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.model.errors import BackupTargetError, NotPrimaryError
from topics.ops.backup.backup_store import BackupPlace, LogPart, Manifest
from topics.ops.backup.restore import Restore, Target, frames_of
from topics.ops.backup.shipped_log import Continuity, ShippedObject, ship_name
from topics.system.clock import Clock
from topics.system.entropy import Entropy

_log = logging.getLogger(__name__)

READ_AHEAD = 4
"""So many objects are read at once while more are there."""
_MISSING_MS = 10_000
"""An object that is missing for so long, while a newer backup has its contents, was removed."""


class Part(NamedTuple):
    """The contents of an object behind a backup."""

    number: int
    moment: int
    frames: list[tuple[int, Frame]]
    """Each with its shard."""
    log: list[LogPart]
    """Where the frames are at the place."""
    size: int


class LogTail:
    """Reads the shipped log behind a backup, object by object. Blocks; one thread at a time calls it."""

    def __init__(self, place: BackupPlace, base: Manifest, steady: Callable[[], int]) -> None:
        self.place = place
        self.base = base
        self.next_number = base.first_shipped
        self.is_fenced = False
        """Whether a takeover has ended this log."""
        self._continuity = Continuity(base.positions)
        self._lsns = {position.shard: position.lsn for position in base.positions}
        """The number of the next frame of each shard."""
        self._steady = steady
        self._missing_since: int | None = None
        self._more = False

    def read(self, pool: ThreadPoolExecutor | None = None) -> list[Part]:
        """The next objects; none where there is no more yet. Raises OSError and BackupDamaged where one cannot be read,
        and FollowError where log is missing."""
        if self.is_fenced:
            return []
        numbers = range(self.next_number, self.next_number + (READ_AHEAD if pool is not None and self._more else 1))
        get = self.place.shipped_object
        found = [get(self.base.run, numbers[0])] if len(numbers) == 1 or pool is None else list(
            pool.map(lambda number: get(self.base.run, number), numbers)
        )  # fmt: skip
        parts: list[Part] = []
        for one in found:
            if one is None or one.head.fence:
                self.is_fenced = one is not None
                break
            parts.append(self._part(one))
            self.next_number += 1
        self._more = bool(parts)
        self._missing_since = None if parts else self._steady() if self._missing_since is None else self._missing_since
        return parts

    def _part(self, found: ShippedObject) -> Part:
        head = found.head
        name = ship_name(head.run, head.number)
        frames: list[tuple[int, Frame]] = []
        log = []
        try:
            for index, span in self._continuity.behind(head):
                log.append(LogPart(span.shard, span.file, span.start, span.length, name, None, index))
                for frame in frames_of(found.spans[index]):
                    if frame.lsn != self._lsns[span.shard]:
                        raise FollowError(f"frames of shard {span.shard} are missing before {frame.lsn}")
                    self._lsns[span.shard] += 1
                    frames.append((span.shard, frame))
        except ValueError as error:
            raise FollowError(str(error)) from error
        return Part(head.number, head.moment, frames, log, sum(map(len, found.spans)))

    def check(self, lineage: str) -> None:
        """Raises FollowError where this log does not go on: `lineage` are the backups with the newest state."""
        if lineage != self.place.lineage:
            raise FollowError("another primary took over")
        numbers = self.place.numbers()
        if not numbers or numbers[-1] == self.base.number:
            return
        newest = self.place.load(numbers[-1])
        if newest.run != self.base.run:
            raise FollowError("the primary was restarted")
        missing = self._missing_since is not None and self._steady() - self._missing_since >= _MISSING_MS
        if missing and newest.first_shipped > self.next_number:
            raise FollowError(f"object {self.next_number} of the shipped log is missing")


class ReadOnly:
    """The lease of a server that is not the primary (`engine.write_path.PrimaryLease`)."""

    is_valid = False
    given = 0

    def __init__(self, primary: Callable[[], str]) -> None:
        """`primary` returns its URL, empty while it is not known."""
        self._primary = primary

    def check(self, seqs: int = 0) -> None:
        raise NotPrimaryError(self._primary())

    def give(self, seqs: int) -> None:
        self.check()

    def shipped(self, given: int, moment: int) -> None:
        """This server ships no log."""

    def announce(self, lineage: str) -> None:
        self.check()

    def suspect(self) -> None:
        """This server holds no lease that another one could take."""


class Follower:
    """An engine that follows. `apply` is called on the thread of the engine."""

    def __init__(self, engine: Engine, fs: FileSystem, tail: LogTail, merge: Merge, moment: int) -> None:
        self.engine = engine
        self.tail = tail
        self.moment = moment
        """Everything that the primary logged up to this moment is visible, by its clock."""
        self.objects = 0
        """How many were applied."""
        self._merge = merge
        self._replay = LiveReplay(engine.core, fs, merge.committed)

    @property
    def frames(self) -> int:
        """How many were applied."""
        return self._replay.frames

    @property
    def waiting_bytes(self) -> int:
        """The log that was read and is not complete yet."""
        return self._merge.bytes

    def apply(self, parts: list[Part], is_due: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Applies objects, and pauses where `is_due`. Raises FollowError where they do not continue the state: then
        this follower is of no use any more."""
        for part in parts:
            for shard, frame in part.frames:
                self._merge.add(shard, frame)
        self.objects += len(parts)
        if parts:
            yield from self.advance(parts[-1].moment, is_due)

    def advance(self, moment: int, is_due: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Applies what was read up to a moment up to which everything was read."""
        until = self._merge.complete_until(moment)
        yield from applied(self._replay, self._merge.take(until), is_due)
        self.moment = max(self.moment, until)


def build(
    place: BackupPlace, fs: FileSystem, folder: str, options: EngineOptions, clock: Clock, entropy: Entropy,
    primary: Callable[[], str] = lambda: "", boot_id: str = "", stopped: Callable[[], bool] = lambda: False,
) -> Follower:  # fmt: skip
    """Restores the newest state at a place into a folder that is made anew, and opens it. Blocks.

    Raises OSError, TopicsError or BackupDamaged where that is not possible now, and FollowError once `stopped`.
    """
    numbers = place.numbers()
    if not numbers:
        raise BackupTargetError(f"{place.root} has no backup of {place.lineage}")
    base = place.load(numbers[-1])
    tail = LogTail(place, base, lambda: int(clock.monotonic() * 1000))
    merge, log, moment, until = Merge(), [], base.moment, None
    while not stopped() and (parts := tail.read()):
        for part in parts:
            for shard, frame in part.frames:
                merge.add(shard, frame)
            log += part.log
            moment = until = merge.complete_until(part.moment)
            merge.take(until)
    remove_tree(fs, folder)
    layout = Layout(folder)
    job = Restore(place, fs, layout, lambda count: _check(stopped))
    job.copy(Target(base, log, until))
    fs.remove(layout.restoring)
    options = msgspec.structs.replace(
        options, data_dir=folder, cold_dir=None, backup_dir=None, following=True, track_removals=False
    )
    engine = Engine.recover(fs, options, clock, entropy, boot_id=boot_id)
    engine.hold_lease(ReadOnly(primary))
    _log.info("following the primary", extra={"lineage": place.lineage, "backup": base.number, "moment": moment})
    return Follower(engine, fs, tail, merge, moment)


def _check(stopped: Callable[[], bool]) -> None:
    if stopped():
        raise FollowError("the server is being stopped")


def remove_tree(fs: FileSystem, folder: str) -> None:
    """Removes a folder with everything in it, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        for name in fs.list_dir(folder):
            path = f"{folder}/{name}"
            try:
                fs.list_dir(path)
            except NotADirectoryError:
                fs.remove(path)
            else:
                remove_tree(fs, path)
        fs.remove_dir(folder)
