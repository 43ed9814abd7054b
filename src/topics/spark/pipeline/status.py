"""Pipeline status: two small JSON files in the data folder, which the server reads while any process runs the pipeline.

    pipeline/status.json      totals, lag, quarantines and errors; replaced durably after each round
    pipeline/progress.json    the current or last run and its job; replaced about once a second, lost with the machine

A file with a wrong checksum counts as missing. Also here: quarantines, and exit statuses of the worker process.
"""

import contextlib
import signal
from collections.abc import Callable
from typing import TypeVar

import msgspec

from topics.log.catalog import Listed
from topics.log.fs import FileSystem, add_checksum, check_json, read_whole, replace_file
from topics.log.layout import Layout
from topics.system.clock import Clock

T = TypeVar("T")

ARCHIVE = "archive"
"""The name of the archive in the status."""
INDEX_PRODUCT = "families"
"""The name of the index product in the status."""
FIRST_RETRY_MS = 60_000
LAST_RETRY_MS = 3_600_000
CLOCK_SLACK_MS = 600_000
"""A status from further in the future was written while the clock was wrong: its times are ignored."""


class Quarantine(msgspec.Struct, frozen=True):
    """A failed topic that a product skips until `retry_at_ms`, so that it does not block others."""

    topic_id: int
    topic: str
    product: str
    reason: str
    since_ms: int
    attempts: int
    retry_at_ms: int

    def is_active(self, now_ms: int) -> bool:
        """Whether it is skipped now. A retry time beyond the longest wait was written while the clock was wrong."""
        return 0 < self.retry_at_ms - now_ms <= LAST_RETRY_MS


class LastRun(msgspec.Struct, frozen=True):
    """The last round with work."""

    started_ms: int
    took_ms: int
    records: int
    bytes: int
    segments: int
    records_per_s: float


class ProductStatus(msgspec.Struct, frozen=True):
    """The lag and totals of one product."""

    product: str
    lag_segments: int
    lag_bytes: int
    lag_ms: int
    quarantined: int
    """The number of quarantined topics and other subjects."""
    error: str | None = None
    """The reason why it was skipped in the last round; None if it was not."""
    records: int = 0
    """Records processed so far."""
    segments: int = 0
    records_per_s: float = 0.0
    """The speed of the last round with records; all products of a round share its duration."""
    failures: int = 0
    """Failures of topics or other subjects, plus rounds in which it was skipped."""
    lag_records: int = 0
    bytes: int = 0
    """Bytes of the records processed so far."""
    rows: int | None = None
    """The rows that its tables show; None where it has no table."""


class WorkerStatus(msgspec.Struct, frozen=True):
    """The resources of the worker process."""

    start_ms: int
    """The time to start Spark, up to the session."""
    memory_bytes: int
    """The memory of the process, of Java and of the task workers, after the last round with work."""


class PipelineStatus(msgspec.Struct, frozen=True, kw_only=True):
    running: bool = False
    updated_ms: int = 0
    catalog: int = 0
    """The number of the last catalog that was processed."""
    due_ms: int | None = None
    """The next time at which there is work without a change of the catalog, such as removing a file; None for never."""
    lag_segments: int = 0
    lag_bytes: int = 0
    lag_ms: int = 0
    """Age of the oldest sealed record that is not processed yet."""
    lag_records: int = 0
    lag_catalog: int = 0
    """The number of the catalog that the lag was counted in."""
    listed: Listed | None = None
    """The number of segments that this catalog and earlier ones named; None if an earlier version counted the lag."""
    rounds: int = 0
    records: int = 0
    """Records published so far by the archive, or without one by the product with the most."""
    bytes: int = 0
    segments: int = 0
    failures: int = 0
    """Rounds that failed as a whole since the last success."""
    error: str | None = None
    """The reason why the last round failed as a whole; None after a success."""
    last_run: LastRun | None = None
    quarantined: tuple[Quarantine, ...] = ()
    products: tuple[ProductStatus, ...] = ()
    worker: WorkerStatus | None = None
    """The resources of the last process that started Spark; None before that, or if Spark runs on another machine."""

    def is_ahead(self, now_ms: int) -> bool:
        """Whether the clock was set back since it was written."""
        return self.updated_ms - now_ms > CLOCK_SLACK_MS


def load_status(fs: FileSystem, layout: Layout) -> PipelineStatus:
    """The saved status; an empty one where there is none or it cannot be read."""
    # It is informational: what is archived does not depend on it.
    return opened(read_whole(fs, _status_path(layout)), PipelineStatus) or PipelineStatus()


def save_status(fs: FileSystem, layout: Layout, status: PipelineStatus) -> None:
    fs.make_dirs(layout.pipeline)
    replace_file(fs, _status_path(layout), checksummed(status))


def _status_path(layout: Layout) -> str:
    return f"{layout.pipeline}/status.json"


def checksummed(value: msgspec.Struct) -> bytes:
    """A structure as a JSON object with a checksum."""
    return add_checksum(msgspec.json.format(msgspec.json.encode(value), indent=1))


def opened(data: bytes | None, kind: type[T]) -> T | None:
    """The structure in a file; None for a missing or damaged one. Files of earlier versions have no checksum."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(check_json(data), type=kind)
    except ValueError:
        return None


def summary(status: PipelineStatus) -> list[str]:
    """Lines about the rows in the archive's table and the remaining records."""
    rows = next((one.rows for one in status.products if one.product == ARCHIVE), None)
    shown = [] if rows is None else [f"{rows} rows in the table"]
    to_go = f"{status.lag_records} records to go in {status.lag_segments} segments"
    return [*shown, f"{to_go}, {status.rounds} rounds, {status.records} records archived in all"]


# Progress of a run: a supervised process, or one that was started by hand, by cron or on a cluster.


class JobProgress(msgspec.Struct, frozen=True):
    """The Spark job that runs now."""

    about: str
    started_ms: int
    tasks: int
    tasks_done: int
    bytes: int
    """The bytes that its tasks read."""
    bytes_done: int


class RunProgress(msgspec.Struct, frozen=True):
    """The current run, or the last one."""

    by: str
    """The process, such as `topics pipeline run, process 12`."""
    started_ms: int
    updated_ms: int
    ended_ms: int | None = None
    """None while it runs. A killed process cannot set it, but then the lock of the pipeline is free."""
    rounds: int = 0
    records: int = 0
    """Records that it has published."""
    bytes: int = 0
    error: str | None = None
    """The reason why it failed."""
    job: JobProgress | None = None


PROGRESS_MS = 1000
"""The shortest time between two writes of the progress of one job."""


class RunReporter:
    """Saves the progress of a run. A full disk does not end the run: progress is informational."""

    def __init__(self, fs: FileSystem, layout: Layout, clock: Clock, by: str) -> None:
        self._fs = fs
        self._layout = layout
        self._clock = clock
        self._saved_at = 0.0
        now = clock.now_ms()
        self.progress = RunProgress(by, now, now)
        self._before = self.progress
        """The status at the start of the current round."""

    def begin(self) -> None:
        self._update()

    def job(self, about: str, tasks: int, nbytes: int) -> None:
        self._update(job=JobProgress(about, self._clock.now_ms(), tasks, 0, nbytes, 0))

    def tasks_done(self, tasks: int, nbytes: int) -> None:
        job = self.progress.job
        if job is not None:
            job = msgspec.structs.replace(job, tasks_done=tasks, bytes_done=nbytes)
            self._note(job=job)
            if (self._clock.monotonic() - self._saved_at) * 1000 >= PROGRESS_MS:
                self._save()

    def published(self, records: int, nbytes: int) -> None:
        """Notes the published records of the current round."""
        self._note(records=self._before.records + records, bytes=self._before.bytes + nbytes)

    def round_over(self) -> None:
        self._update(job=None, rounds=self.progress.rounds + 1)
        self._before = self.progress

    def end(self, error: str | None = None) -> None:
        self._update(job=None, ended_ms=self._clock.now_ms(), error=error)

    def _note(self, **fields: object) -> None:
        self.progress = msgspec.structs.replace(self.progress, updated_ms=self._clock.now_ms(), **fields)

    def _update(self, **fields: object) -> None:
        self._note(**fields)
        self._save()

    def _save(self) -> None:
        self._saved_at = self._clock.monotonic()
        path = _progress_path(self._layout)
        with contextlib.suppress(OSError):
            self._fs.make_dirs(self._layout.pipeline)
            # Not synced, as it is written often. A crash of the machine may leave a part, which its checksum shows.
            file = self._fs.open(path + ".tmp", create=True)
            try:
                file.truncate(0)
                file.write_at(0, checksummed(self.progress))
            finally:
                file.close()
            self._fs.rename(path + ".tmp", path)


def load_progress(fs: FileSystem, layout: Layout) -> RunProgress | None:
    """The current or last run; None where there was none, or its file is damaged."""
    return opened(read_whole(fs, _progress_path(layout)), RunProgress)


def _progress_path(layout: Layout) -> str:
    return f"{layout.pipeline}/progress.json"


class StatusWatch:
    """Reads both files for a server; a file is decoded if its bytes have changed."""

    def __init__(self, fs: FileSystem, layout: Layout, is_locked: Callable[[str], bool]) -> None:
        self._fs = fs
        self._layout = layout
        self._is_locked = is_locked
        self._data: dict[str, bytes | None] = {}
        self.status = PipelineStatus()
        self.progress: RunProgress | None = None
        self.is_running = False
        """Returns whether a process runs the pipeline, according to its progress and the lock."""

    def look(self) -> None:
        if self._changed(_status_path(self._layout)):
            self.status = opened(self._data[_status_path(self._layout)], PipelineStatus) or PipelineStatus()
        path = _progress_path(self._layout)
        if self._changed(path):
            self.progress = opened(self._data[path], RunProgress)
            self.is_running = self.progress is not None and self.progress.ended_ms is None
        if self.is_running:
            # A killed process stays dead: the lock is not tested again, so that a new run finds it free.
            self.is_running = self._is_locked(f"{self._layout.pipeline}/lock")

    def _changed(self, path: str) -> bool:
        data = read_whole(self._fs, path)
        changed = path not in self._data or data != self._data[path]
        self._data[path] = data
        return changed


def quarantine(
    known: tuple[Quarantine, ...], topic_id: int, topic: str, product: str, reason: str, now_ms: int
) -> tuple[Quarantine, ...]:
    """Adds a failure of a topic, with exponential backoff until the next attempt."""
    before = next((one for one in known if one.topic_id == topic_id and one.product == product), None)
    attempts = before.attempts + 1 if before is not None else 1
    wait = min(FIRST_RETRY_MS * 2 ** (attempts - 1), LAST_RETRY_MS)
    since = before.since_ms if before is not None else now_ms
    others = tuple(one for one in known if one is not before)
    return (*others, Quarantine(topic_id, topic, product, reason[:500], since, attempts, now_ms + wait))


# Exit status of the worker process, seen by its server.
#
# A process that was killed, or whose disk was full, could not save its error. Such an exit counts as a failed round and
# is reported in place of the missing error, until a process has finished a round or exited successfully.

BUSY = 3
"""The exit code of a process for which the pipeline was locked."""


class ExitStatus:
    def __init__(self) -> None:
        self._unreported = 0
        self._reason: str | None = None
        self._left = PipelineStatus()
        """The status that the last failed process left."""

    def note(self, code: int, status: PipelineStatus) -> None:
        """Notes the exit code of a process, negative for a signal, and the status it left."""
        if code == 0:
            self.forget()
        elif code < 0 or code == BUSY or status.running or status.error is None:
            self.note_unreported(_description(code), status)
        else:
            self._reason = None

    def note_unreported(self, reason: str, status: PipelineStatus) -> None:
        self._unreported += 1
        self._reason, self._left = reason, status

    def observe(self, status: PipelineStatus) -> None:
        """Observes the status of a running process: a finished round clears earlier failures."""
        if status != self._left and status.error is None and not status.running:
            self.forget()

    def forget(self) -> None:
        self._unreported, self._reason = 0, None

    def amended(self, status: PipelineStatus) -> PipelineStatus:
        """The status with unreported failures added."""
        if not self._unreported:
            return status
        error = self._reason or status.error
        return msgspec.structs.replace(status, failures=status.failures + self._unreported, error=error)


def _description(code: int) -> str:
    if code == BUSY:
        return "another process has the pipeline"
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with {code}; the log says why"
