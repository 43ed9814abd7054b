"""Log shipping (also known as: continuous archiving, WAL archiving): copies the log to the backup storage.

It continues the first backup of a run with numbered objects (`ops.backup.shipped_log`), one for all shards: every
`backup_ship_ms`, and soon after somebody waits for an acknowledgement of class `remote`, at most once in
`remote_flush_ms`. If the machine is lost, only the log since the last object is lost with it, and nothing that class
`remote` acknowledged.

An object is begun by asking every shard for the end of its log; it has everything up to there. Several objects are on
their way at once, and each is acknowledged when those before it are in the storage. A failed upload
is repeated until it succeeds, and no further object is begun meanwhile, so that none is missing between others.

All frames before the ends were asked for have an earlier timestamp than any later frame, so a restore cuts the log at
that moment (`ops.backup.restore`).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple, Protocol

from topics.engine.background_jobs import InlineRunner, Job, JobRunner, OffLoop, Until
from topics.engine.core import EngineCore
from topics.engine.remote_acks import HeldAck
from topics.log.commit_requests import Locating, LogPosition
from topics.log.frame import Frame, read_frame
from topics.log.fs import File, FileSystem
from topics.log.layout import Layout, wal_file
from topics.model.errors import ShuttingDownError, TopicsError
from topics.ops.backup.backup_store import BackupDamaged, BackupPlace, FencedError, Manifest
from topics.ops.backup.shipped_log import LogSpan, ShippedHead
from topics.system.events import Event

_log = logging.getLogger(__name__)

IN_FLIGHT_MAX = 4
"""The maximum number of concurrent uploads."""
_RETRY_MS = 10_000
"""The pause after a failure."""
_RETRY_REMOTE_MS = 1_000
"""The pause if class `remote` is used, whose writes are refused meanwhile."""
_SECOND_MS = 1_000
OBJECTS_MAX = 10_000
"""The number of objects after which another backup is due, because a restore reads all of them."""
OBJECTS_MAX_PRIMARY = 2_000
"""The same with a lease: a takeover reads all of them before it answers anybody."""


class StreamMark(NamedTuple):
    """The position of the shipped log: objects from `first` on may have log after a checkpoint that begins now."""

    run: int
    first: int


class LogRange(NamedTuple):
    """A part of a shard's log; without an end, up to the last frame of the file."""

    shard: int
    file: int
    start: int
    end: int | None


class Object:
    """An upload in flight."""

    def __init__(self, stream: "Stream", number: int, moment: int, asked: int, ranges: list[LogRange]) -> None:
        self.stream = stream
        self.number = number
        self.moment = moment
        self.asked = asked
        self.ranges = ranges
        self.acks: list[HeldAck] = []
        self.given = 0
        """How many seqs were given out before it (`PrimaryLease.given`)."""
        self.stored_bytes: int | None = None
        """None until it is stored."""


class Stream:
    """The shipped log of one run: which objects there are, and where the next one begins."""

    def __init__(self, place: BackupPlace, base: Manifest) -> None:
        self.place = place
        self.run = base.number
        self.base_files: dict[int, int] = {}
        """The file of each shard with which the log behind the newest backup begins."""
        self._ends: dict[int, LogPosition] = {}
        self._numbers = count(1)
        self.next_number = 1
        self.confirmed = 0
        """All objects up to this number are in the storage."""
        self.on_their_way: list[Object] = []
        """Sorted by number."""
        self.rebase(base)

    def rebase(self, base: Manifest) -> None:
        """There is a newer backup: what it has need not be shipped."""
        for position in base.positions:
            self.base_files[position.shard] = position.file
            begin = LogPosition(position.file, 0)
            self._ends[position.shard] = max(self._ends.get(position.shard, begin), begin)

    def cut(self, ends: Mapping[int, LogPosition], moment: int, asked: int) -> Object | None:
        """Returns the object with everything up to these ends; None if nothing is new."""
        ranges: list[LogRange] = []
        for shard, end in sorted(ends.items()):
            begin = self._ends.get(shard)
            while begin is not None and begin < end:
                ranges.append(LogRange(shard, begin.file, begin.offset, end.offset if begin.file == end.file else None))
                begin = LogPosition(begin.file + 1, 0) if begin.file < end.file else end
            if begin is not None:
                self._ends[shard] = begin
        if not ranges:
            return None
        made = Object(self, self.next_number, moment, asked, ranges)
        self.next_number += 1
        self.on_their_way.append(made)
        return made

    def confirm(self) -> list[Object]:
        """Returns the objects that are stored with all earlier ones."""
        found: list[Object] = []
        while self.on_their_way and self.on_their_way[0].stored_bytes is not None:
            found.append(self.on_their_way.pop(0))
            self.confirmed = found[-1].number
        return found


class LogReader:
    """Reads ranges of a shard's log. Runs off the loop."""

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout

    def read(self, part: LogRange) -> bytes:
        """Raises FileNotFoundError if the file was removed."""
        file = self._open(part)
        try:
            if part.end is not None:
                return file.read_at(part.start, part.end - part.start)
            data = file.read_at(part.start, file.size() - part.start)
        finally:
            file.close()
        return data[: _last_frame(memoryview(data))]

    def _open(self, part: LogRange) -> File:
        """Checkpoints move log files aside at any time."""
        folders = (self._layout.shard(part.shard), self._layout.kept_log(part.shard))
        for path in [wal_file(folder, part.file) for folder in folders]:
            if self._fs.exists(path):
                try:
                    return self._fs.open(path)
                except FileNotFoundError:
                    continue
        raise FileNotFoundError(f"log file {part.file} of shard {part.shard} is gone")


def _last_frame(data: memoryview) -> int:
    end = 0
    while isinstance(found := read_frame(data, end), Frame):
        end = found.end
    return end


class Timer(Protocol):
    """Calls a function after some seconds."""

    def __call__(self, seconds: float, function: Callable[[], None], /) -> object: ...


class Shipping:
    def __init__(self, core: EngineCore, fs: FileSystem) -> None:
        self._core = core
        self._acks = core.path.remote
        self._reader = LogReader(fs, core.layout)
        self._idle: list[JobRunner] = [InlineRunner()]
        self._all: Sequence[JobRunner] = ()
        self._later: Timer | None = None
        """None without a loop: objects are begun as soon as somebody wants one."""
        self._stream: Stream | None = None
        self.broken = False
        """Whether log after the backup is missing, so that another backup is needed."""
        self._starting = 0
        """Objects whose ends are being requested."""
        self._failed: list[Object] = []
        self._scheduled = False
        self._begun_at = self._tried_at = 0
        self._objects = 0
        """The number of objects after the newest backup."""
        self.moment: int | None = None
        """Everything logged up to this moment is in the storage."""
        self.at: int | None = None
        """The time of that, by the steady clock."""
        self.shipped_bytes = self.shipped_objects = self.failures = 0
        self.error: str | None = None
        """The reason why the last upload failed."""
        self.backup_needed: Event[[]] = Event()
        """Called if an operation waits and log shipping needs another backup."""
        self._acks.upload_needed = self._upload_soon
        core.second_passed.subscribe(self._when_due)

    def start(self, runners: Sequence[JobRunner], later: Timer) -> None:
        """There is a loop, and these do the work from now on."""
        self._idle, self._all, self._later = list(runners), runners, later
        if 0 < self._core.options.backup_ship_ms < _SECOND_MS:
            later(self._core.options.backup_ship_ms / 1000, self._ship_often)

    def _ship_often(self) -> None:
        """Ships at an interval that is shorter than the second of `_when_due`."""
        if self._core.closed or self._later is None:
            return
        self._later(self._core.options.backup_ship_ms / 1000, self._ship_often)
        if self.error is None:
            self._when_due()

    def close(self) -> None:
        """Answers the waiting acknowledgements, and ends the runners."""
        self._acks.close()
        for runner in self._all:
            runner.close()

    # Backups

    @property
    def needs_backup(self) -> bool:
        """Whether log shipping needs another backup to begin, to continue, or to stay short."""
        # A takeover restores backups, so a server with a lease has one as soon as it can.
        waits_for_first = self._stream is None and (self._acks.waiting > 0 or self._core.path.lease is not None)
        most = OBJECTS_MAX if self._core.path.lease is None else OBJECTS_MAX_PRIMARY
        return self.broken or waits_for_first or self._objects >= most

    def mark(self, lineage: str) -> StreamMark | None:
        """To be noted before the checkpoint of a backup; None where the backup begins another stream."""
        stream = self._stream
        if stream is None or self.broken or stream.place.lineage != lineage:
            return None
        return StreamMark(stream.run, stream.next_number)

    def follow(self, place: BackupPlace, base: Manifest) -> None:
        """Ships the log after this backup from now on."""
        if not self._core.options.backup_log_bytes:
            return
        stream = self._stream
        if base.run == base.number:
            self._stream, self._failed = Stream(place, base), []
            for made in stream.on_their_way if stream is not None else ():
                # Their contents are in the backup, or after it in the first object.
                self._acks.retake(made.acks)
            self.broken, self.error, self._acks.failure = False, None, None
        elif stream is None or stream.run != base.run or self.broken:
            return
        else:
            stream.rebase(base)
        self.moment, self.at = base.moment, None
        self._tried_at, self._objects = self._core.steady(), 0
        if self._acks.wants_object:
            self._upload_soon()

    def ship_rest(self, then: Callable[[object], None]) -> None:
        """Calls back once everything logged so far is in the storage, or cannot be shipped. Log that a backup
        contains is not shipped any more behind it, and a standby that follows would have to restore that backup."""
        if self._stream is None or self.broken or self.error is not None or self._core.path.lease is None:
            then(None)
        elif self._later is None:
            self.ship()
            then(None)
        else:
            used = self._acks.used
            self._acks.hold(then, None)
            self._acks.used = used

    # When

    def ship(self) -> None:
        """Ships new log, or retries a failed upload."""
        stream = self._stream
        if stream is None or self.broken or self._core.closed:
            return
        self._tried_at = self._core.steady()
        if self._failed:
            failed, self._failed = self._failed, []
            for made in failed:
                self._store(made)
        elif self._idle:
            self._begin(stream)

    def _upload_soon(self) -> None:
        """Somebody waits whom no object covers. Objects begin at once, and `remote_flush_ms` apart."""
        if self._stream is None:
            if self._later is not None:
                self._core.defer(self.backup_needed.emit)
            return
        if self._scheduled or self._failed:
            return
        later = self._later
        if later is None:
            self.ship()
            return
        self._scheduled = True
        wait_ms = self._begun_at + self._core.options.remote_flush_ms - self._core.steady()
        if wait_ms > 0:
            later(wait_ms / 1000, self._flush)
        else:
            self._core.defer(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._acks.wants_object and self._idle:
            self.ship()

    def _when_due(self) -> None:
        self._acks.expire()
        ship_ms = self._core.options.backup_ship_ms
        waits = self._acks.waiting > 0
        if self.error is not None:
            wait = _RETRY_REMOTE_MS if self._acks.used else max(ship_ms, _RETRY_MS)
        elif waits and self._acks.wants_object and not self._scheduled:
            wait = 0
        elif ship_ms:
            wait = ship_ms
        else:
            return
        if self._core.steady() - self._tried_at >= wait:
            self.ship()

    # How

    def _begin(self, stream: Stream) -> None:
        runner = self._idle.pop()
        self._begun_at = self._core.steady()
        runner.start(self._job(runner, stream))

    def _job(self, runner: JobRunner, stream: Stream) -> Job:
        try:
            moment, asked = self._core.time.end_moment(), self._core.steady()
            lease = self._core.path.lease
            given = 0 if lease is None else lease.given
            acks = self._acks.take()
            ends = yield Until(self._locate)
            if not isinstance(ends, dict):
                self._acks.retake(acks)
                self._fail(OSError("a log shard refuses writes"))
                return
            made = stream.cut(ends, moment, asked) if stream is self._stream else None
            if made is None:
                self._nothing_new(stream, acks, moment, asked, given)
                return
            made.acks, made.given = acks, given
            yield from self._put(made)
        finally:
            self._free(runner)

    def _nothing_new(self, stream: Stream, acks: list[HeldAck], moment: int, asked: int, given: int) -> None:
        if stream is not self._stream:
            self._acks.retake(acks)
        elif stream.on_their_way:
            # They have everything that is logged, but are not stored yet.
            stream.on_their_way[-1].acks += acks
        else:
            self.moment, self.at, self.error, self._acks.failure = moment, asked, None, None
            self._tell_lease(given, moment)
            self._acks.stored(acks)

    def _tell_lease(self, given: int, moment: int) -> None:
        lease = self._core.path.lease
        if lease is not None:
            lease.shipped(given, moment)

    def _store(self, made: Object) -> None:
        """Retries an upload."""
        if not self._idle:
            self._failed.append(made)
            return
        runner = self._idle.pop()

        def job() -> Job:
            try:
                yield from self._put(made)
            finally:
                self._free(runner)

        runner.start(job())

    def _put(self, made: Object) -> Job:
        stream = made.stream
        try:
            stored = yield OffLoop(lambda: self._write(made))
            assert isinstance(stored, int)
        except FileNotFoundError as error:
            if stream is self._stream:
                self.broken = True
                self._fail(error)
            return
        except (OSError, TopicsError, BackupDamaged) as error:
            lease = self._core.path.lease
            if isinstance(error, FencedError) and lease is not None:
                lease.suspect()
            if stream is self._stream:
                self._failed.append(made)
                self._fail(error)
            return
        if stream is not self._stream:
            return
        made.stored_bytes = stored
        self.shipped_bytes += stored
        for confirmed in stream.confirm():
            self.shipped_objects += 1
            self._objects += 1
            self.moment, self.at = confirmed.moment, confirmed.asked
            if not self._failed:
                self.error = self._acks.failure = None
            self._tell_lease(confirmed.given, confirmed.moment)
            self._acks.stored(confirmed.acks)

    def _write(self, made: Object) -> int:
        stream, spans, pieces = made.stream, [], []
        for part in made.ranges:
            if self._core.closed:
                raise ShuttingDownError()
            try:
                data = self._reader.read(part)
            except FileNotFoundError:
                if part.file < stream.base_files.get(part.shard, 0):
                    continue  # A newer backup includes it.
                raise
            if data:
                spans.append(LogSpan(part.shard, part.file, part.start, len(data)))
                pieces.append(data)
        head = ShippedHead(
            lineage=stream.place.lineage, run=stream.run, number=made.number, confirmed=stream.confirmed,
            moment=made.moment, spans=spans,
        )  # fmt: skip
        return stream.place.ship(head, pieces, None if self._core.path.lease is None else "ship")

    def _free(self, runner: JobRunner) -> None:
        self._idle.append(runner)
        if self._acks.wants_object:
            self._upload_soon()

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        self.error = self._acks.failure = str(error)
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
