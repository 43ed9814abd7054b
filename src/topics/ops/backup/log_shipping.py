"""Log shipping (also known as: continuous archiving, WAL archiving): copies the log to the backup place periodically.

If the machine is lost, only the log since the last shipment is lost with it, not everything since the last backup. Each
shipment asks every shard for the end of its log and copies up to there. All frames before the request are included,
and later frames have a later timestamp, at which the shipped log is cut (`ops.backup.restore`).
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping

from topics.engine.background_jobs import InlineRunner, Job, JobRunner, OffLoop, Until
from topics.engine.core import EngineCore
from topics.log.commit_requests import Locating, LogPosition
from topics.log.frame import Frame, read_frame
from topics.log.fs import File, FileSystem
from topics.log.layout import Layout, wal_file
from topics.model.errors import ShuttingDownError, TopicsError
from topics.ops.backup.backup_store import (
    FORMAT,
    BackupDamaged,
    BackupPlace,
    KeptFile,
    LogPart,
    Manifest,
    ShippedLog,
    part_name,
)

# The log behind a backup goes to the place while it is being written, in parts of whole frames.
#
# A part that is small is written anew with what came since, under another name. So a second's few bytes do not become a
# file each, and never much is written twice. The old one goes a while after the new one counts: somebody may just be
# restoring with it.

_SMALL_BYTES = 1024 * 1024
_LATER = 64
"""So many times the log is shipped before a part goes that counts no more."""


class LogParts:
    """The parts of the log that were shipped behind one backup. Runs off the loop."""

    def __init__(
        self, fs: FileSystem, layout: Layout, place: BackupPlace, base: Manifest, stopped: Callable[[], bool]
    ) -> None:
        self._fs = fs
        self._layout = layout
        self._place = place
        self._base = base
        self._stopped = stopped
        self._ends = {position.shard: LogPosition(position.file, 0) for position in base.positions}
        self._parts: dict[int, list[KeptFile]] = {shard: [] for shard in self._ends}
        self._last: dict[int, LogPart] = {}
        self._superseded: deque[tuple[int, str]] = deque()
        """Parts that count no more once something counts, and after which time of shipping they go."""
        self._times = 0
        self._counts = True
        """Whether everything that was put is named."""

    def ship(self, ends: Mapping[int, LogPosition], moment: int) -> int:
        """Ships everything up to these ends, which have every frame up to a moment; how many bytes were new.

        Raises FileNotFoundError where a log file is gone.
        """
        if not self._times:
            self._superseded.extend((0, name) for name in self._of_earlier_backups())
        self._times += 1
        new = sum([self._ship_shard(shard, end) for shard, end in ends.items()])
        if not self._counts:
            parts = [part for shard in sorted(self._parts) for part in self._parts[shard]]
            number, lineage = self._base.number, self._base.lineage
            self._place.ship(ShippedLog(format=FORMAT, lineage=lineage, before=number, moment=moment, parts=parts))
            self._counts = True
        while self._counts and self._superseded and self._superseded[0][0] + _LATER < self._times:
            self._place.remove(self._superseded[0][1])
            self._superseded.popleft()
        return new

    def _of_earlier_backups(self) -> list[str]:
        try:
            shipped = self._place.shipped()
        except BackupDamaged:
            return []
        return [part.name for part in shipped.parts] if shipped is not None else []

    def _ship_shard(self, shard: int, end: LogPosition) -> int:
        begin = self._ends.get(shard)
        new = 0
        while begin is not None and begin < end:
            if self._stopped():
                raise ShuttingDownError()
            data = self._read(shard, begin, end)
            if data:
                self._keep(LogPart(shard, begin.file, begin.offset), data)
                new += len(data)
            begin = LogPosition(begin.file + 1, 0) if begin.file < end.file else end
            self._ends[shard] = begin
        return new

    def _keep(self, part: LogPart, data: bytes) -> None:
        parts, last = self._parts[part.shard], self._last.get(part.shard)
        grows = last is not None and last.number == part.number and parts[-1].size < _SMALL_BYTES
        if last is not None and grows:
            data, part = bytes(self._place.read(parts[-1])) + data, last
        kept = self._place.put(part_name(part, part.start + len(data)), [data])
        self._counts = False
        if grows:
            self._superseded.append((self._times, parts.pop().name))
        parts.append(kept)
        self._last[part.shard] = part

    def _read(self, shard: int, begin: LogPosition, end: LogPosition) -> bytes:
        """Reads a log file between two positions, or up to its last frame where the log continues in the next file."""
        file = self._open(shard, begin.file)
        try:
            if begin.file == end.file:
                return file.read_at(begin.offset, end.offset - begin.offset)
            data = file.read_at(begin.offset, file.size() - begin.offset)
        finally:
            file.close()
        return data[: _last_frame(memoryview(data))]

    def _open(self, shard: int, number: int) -> File:
        """Checkpoints move log files aside at any time."""
        paths = [wal_file(folder, number) for folder in (self._layout.shard(shard), self._layout.kept_log(shard))]
        for path in paths:
            if self._fs.exists(path):
                try:
                    return self._fs.open(path)
                except FileNotFoundError:
                    continue
        raise FileNotFoundError(f"log file {number} of shard {shard} is gone")


def _last_frame(data: memoryview) -> int:
    end = 0
    while isinstance(found := read_frame(data, end), Frame):
        end = found.end
    return end


_log = logging.getLogger(__name__)

_RETRY_MS = 10_000
"""So long it is not tried again by itself after a failure."""


class Shipping:
    def __init__(self, core: EngineCore, fs: FileSystem) -> None:
        self._core = core
        self._fs = fs
        self.runner: JobRunner = InlineRunner()
        self._parts: LogParts | None = None
        """The shipped parts of the log, while there is a backup that they continue."""
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
        core.second_passed.subscribe(self._when_due)

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
                raise OSError("a log shard refuses writes")
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
        _log.warning("log shipping failed", extra={"error": str(error)})

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
