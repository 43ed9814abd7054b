"""Companions of an object store on the local disk: fetched whole when somebody asks, within a bound.

    near/families/<16 hex digits>/<name>.companion

They are fetched one at a time, by a thread, and room for one is made before it comes: of those that no query is at, the
longest unused go first. The searching process maps what it is asked about, so it is told of those that go. A start
empties the folder, so nothing here has to survive a crash, and nothing here is ever damage. The same thread removes
files, one thing after the other: to remove some gigabytes takes a while, too.
"""

import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from topics.engine.background import Job, JobRunner, OffLoop
from topics.storage.companion_copies import CopyDamagedError, CopyStoppedError, fetch
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout

_TMP = ".tmp"

_log = logging.getLogger(__name__)


class Fetched(StrEnum):
    """What became of a question for a companion."""

    OK = "ok"
    UNAVAILABLE = "unavailable"
    """The store, or the local disk, did not do it: a later question may fare better."""
    DAMAGED = "damaged"
    """It is not in the store, or not what was put there."""
    NO_ROOM = "no_room"
    """Queries are at those that are here."""


class Remote(NamedTuple):
    """A companion in an object store."""

    path: str
    bytes: int
    digest: int | None


FetchDone = Callable[[Fetched], None]


class CompanionCache:
    def __init__(
        self, fs: FileSystem, layout: Layout, bytes_max: int, runner: JobRunner, let_go: Callable[[str], None]
    ) -> None:
        """`let_go` is told of paths that are about to be removed."""
        self._fs = fs
        self._folder = layout.near_families
        self.bytes_max = bytes_max
        self._runner = runner
        self._let_go = let_go
        self._here: OrderedDict[str, int] = OrderedDict()
        """Bytes by path, the longest unused first."""
        self._uses: Counter[str] = Counter()
        self._waiting: dict[str, list[FetchDone]] = {}
        """Who waits for the companions that are on their way."""
        self.bytes = 0
        """What is here and on its way."""
        self.outcomes = dict.fromkeys(Fetched, 0)
        self._is_closed = False
        runner.start(_in_the_background(self._empty))

    def path(self, topic_id: int, name: str) -> str:
        return f"{self._folder}/{topic_id:016x}/{name}"

    def __contains__(self, path: str) -> bool:
        return path in self._here

    # Fetching

    def fetch(self, path: str, remote: Remote, done: FetchDone) -> None:
        """Has a companion fetched to its path, unless it is here; `done` is called once, on the loop."""
        if path in self._here:
            done(Fetched.OK)
        elif self._is_closed:
            done(Fetched.UNAVAILABLE)
        elif path in self._waiting:
            self._waiting[path].append(done)
        elif not self._make_room(remote.bytes):
            self.outcomes[Fetched.NO_ROOM] += 1
            done(Fetched.NO_ROOM)
        else:
            # What had to go is removed by then, since its removal is in line before.
            self.bytes += remote.bytes
            self._waiting[path] = [done]
            self._runner.start(self._job(path, remote))

    def _job(self, path: str, remote: Remote) -> Job:
        outcome = Fetched.OK
        try:
            yield OffLoop(partial(self._copy, path, remote))
        except (FileNotFoundError, CopyDamagedError) as error:
            outcome = self._failed(Fetched.DAMAGED, remote, error)
        except (OSError, CopyStoppedError) as error:
            outcome = self._failed(Fetched.UNAVAILABLE, remote, error)
        self.outcomes[outcome] += 1
        if outcome is Fetched.OK:
            self._here[path] = remote.bytes
        else:
            self.bytes -= remote.bytes
        for done in self._waiting.pop(path):
            done(outcome)

    def _failed(self, outcome: Fetched, remote: Remote, error: Exception) -> Fetched:
        _log.warning("a companion cannot be fetched", extra={"path": remote.path, "error": str(error)})
        return outcome

    def _copy(self, path: str, remote: Remote) -> None:
        """On the thread."""
        self._fs.make_dirs(path.rpartition("/")[0])
        try:
            fetch(self._fs, remote.path, path + _TMP, remote.digest, lambda: not self._is_closed)
        except BaseException:
            self._remove(path + _TMP)
            raise
        self._fs.rename(path + _TMP, path)

    # Using

    def use(self, path: str) -> None:
        """Keeps a companion that is here until it is `unused` as often."""
        if path in self._here:
            self._here.move_to_end(path)
        self._uses[path] += 1

    def unused(self, path: str) -> None:
        self._uses[path] -= 1
        if not self._uses[path]:
            del self._uses[path]

    # Going

    def drop(self, path: str) -> bool:
        """Removes a companion, unless somebody is at it or waits for it; whether it is gone."""
        if path in self._uses or path in self._waiting:
            return False
        if path in self._here:
            self._evict(path)
        return True

    def close(self) -> None:
        """Nothing more is fetched."""
        self._is_closed = True
        self._runner.close()

    def _make_room(self, size: int) -> bool:
        """Whether there is room for so many bytes; nothing goes for one that has none even so."""
        spare = [path for path in self._here if path not in self._uses]
        if self.bytes - sum(self._here[path] for path in spare) + size > self.bytes_max:
            return False
        for path in spare:
            if self.bytes + size <= self.bytes_max:
                break
            self._evict(path)
        return True

    def _evict(self, path: str) -> None:
        self.bytes -= self._here.pop(path)
        self._let_go(path)
        self._runner.start(_in_the_background(partial(self._remove, path)))

    def _remove(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self._fs.remove(path)

    def _empty(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for folder in self._fs.list_dir(self._folder):
                for name in self._fs.list_dir(f"{self._folder}/{folder}"):
                    self._fs.remove(f"{self._folder}/{folder}/{name}")
                self._fs.remove_dir(f"{self._folder}/{folder}")


def _in_the_background(function: Callable[[], None]) -> Job:
    yield OffLoop(function)
