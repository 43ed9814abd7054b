"""Continuous backup: behind each backup of this run the log is shipped, every so often.

What is lost with the machine is then the log of that while, not everything since the last backup. Each time every
shard is asked for the end of its log, and what is up to there goes to the place. Frames of before the question are all
in it, and those behind it have a later moment: there the shipped log is cut (`engine.backup.targets`).
"""

import logging
from collections.abc import Callable

from topics.core.errors import TopicsError
from topics.engine.background import InlineRunner, Job, JobRunner, OffLoop, Until
from topics.engine.backup.log_parts import LogParts
from topics.engine.core import EngineCore
from topics.formats.backup import Manifest
from topics.storage.backups.place import BackupDamaged, BackupPlace
from topics.storage.fs import FileSystem
from topics.storage.log_requests import Locating, LogPosition

_log = logging.getLogger(__name__)

_RETRY_MS = 10_000
"""So long it is not tried again by itself after a failure."""


class Shipping:
    def __init__(self, core: EngineCore, fs: FileSystem) -> None:
        self._core = core
        self._fs = fs
        self.runner: JobRunner = InlineRunner()
        self._parts: LogParts | None = None
        """What is shipped, while there is a backup that it goes on from."""
        self.broken = False
        """Whether log is missing behind the backup: only another one helps."""
        self._shipping = False
        self._tried_at = 0
        self.moment: int | None = None
        """Everything logged up to this moment is at the place."""
        self.at: int | None = None
        """When that was so, by the steady clock."""
        self.shipped_bytes = self.failures = 0
        self.error: str | None = None
        """Why the log could not be shipped the last time."""
        core.chores.append(self._when_due)

    def follow(self, place: BackupPlace, base: Manifest) -> None:
        """From now on the log behind this backup is shipped."""
        options = self._core.options
        if options.backup_ship_ms and options.backup_log_bytes:
            self._parts = LogParts(self._fs, self._core.layout, place, base, lambda: self._core.closed)
            self.moment, self.at, self.broken = base.moment, None, False
            self._tried_at = self._core.steady()

    def ship(self) -> None:
        """Ships what is there, unless that is being done already."""
        if self._parts is not None and not self._shipping:
            self._shipping, self._tried_at = True, self._core.steady()
            self.runner.start(self._job(self._parts))

    def _when_due(self) -> None:
        wait = max(self._core.options.backup_ship_ms, _RETRY_MS if self.error is not None else 0)
        if not self._core.closed and self._core.steady() - self._tried_at >= wait:
            self.ship()

    def _job(self, parts: LogParts) -> Job:
        try:
            moment, asked = self._core.time.end_moment(), self._core.steady()
            ends = yield Until(self._locate)
            if not isinstance(ends, dict):
                raise OSError("a shard of the log takes no writes")
            shipped = yield OffLoop(lambda: parts.ship(ends, moment))
            assert isinstance(shipped, int)
            self.shipped_bytes += shipped
            if parts is self._parts:
                self.moment, self.at, self.error = moment, asked, None
        except FileNotFoundError as error:
            if parts is self._parts:
                self._parts, self.broken = None, True
                self._fail(error)
        except (OSError, TopicsError, BackupDamaged) as error:
            self._fail(error)
        finally:
            self._shipping = False

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        self.error = str(error)
        _log.warning("the log could not be shipped to the place for backups", extra={"error": str(error)})

    def _locate(self, resume: Callable[[object], None]) -> None:
        ends: dict[int, LogPosition | None] = {}
        shards = self._core.shards

        def located(shard: int, position: LogPosition | None) -> None:
            ends[shard] = position
            if len(ends) == len(shards):
                resume(ends if None not in ends.values() else None)

        for shard in shards:
            number = shard.number
            shard.committer.locate(Locating(lambda position, number=number: located(number, position)))  # type: ignore[misc]
