"""Pipeline status: one small JSON file, replaced atomically after each round, with quarantines and exit statuses."""

import signal

import msgspec

from topics.log.fs import FileSystem, add_checksum, check_json, read_whole, replace_file
from topics.log.layout import Layout

INDEX_PRODUCT = "families"
"""The name of the index product in the status."""
FIRST_RETRY_MS = 60_000
LAST_RETRY_MS = 3_600_000
CLOCK_SLACK_MS = 600_000
"""A status from further in the future was written while the clock was wrong: its times are ignored."""


class Quarantine(msgspec.Struct, frozen=True):
    """A topic that a product skips until `retry_at_ms` because it failed, so that it does not block others."""

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
    """The last round that had something to do."""

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
    """Why it was skipped in the last round; None when it was not."""
    records: int = 0
    """Records processed so far."""
    segments: int = 0
    records_per_s: float = 0.0
    """Of the last round with records; all products of a round share its duration."""
    failures: int = 0
    """Failures of topics or other subjects, plus rounds in which it was skipped."""


class WorkerStatus(msgspec.Struct, frozen=True):
    """The resources of the worker process."""

    start_ms: int
    """How long Spark took to start, from nothing to a session."""
    memory_bytes: int
    """Memory of the process, of Java and of the workers of tasks, after the last round that had something to do."""


class PipelineStatus(msgspec.Struct, frozen=True, kw_only=True):
    running: bool = False
    updated_ms: int = 0
    catalog: int = 0
    """The number of the last catalog that was processed."""
    due_ms: int | None = None
    """When there is work even if the catalog does not change, such as removing a file; None for never."""
    lag_segments: int = 0
    lag_bytes: int = 0
    lag_ms: int = 0
    """Age of the oldest sealed record that is not processed yet."""
    rounds: int = 0
    records: int = 0
    segments: int = 0
    failures: int = 0
    """Rounds that failed as a whole since the last success."""
    error: str | None = None
    """Why the last round failed as a whole; None after a success."""
    last_run: LastRun | None = None
    quarantined: tuple[Quarantine, ...] = ()
    products: tuple[ProductStatus, ...] = ()
    worker: WorkerStatus | None = None
    """Of the last process that started Spark; None before that, or where Spark runs on another machine."""

    def is_ahead(self, now_ms: int) -> bool:
        """Whether the clock was set back since it was written."""
        return self.updated_ms - now_ms > CLOCK_SLACK_MS


def load_status(fs: FileSystem, layout: Layout) -> PipelineStatus:
    """The saved status; an empty one where there is none or it cannot be read."""
    data = read_whole(fs, f"{layout.pipeline}/status.json")
    if data is None:
        return PipelineStatus()
    try:
        return msgspec.json.decode(check_json(data), type=PipelineStatus)
    except ValueError:
        # It is informational: what is archived does not depend on it.
        return PipelineStatus()


def save_status(fs: FileSystem, layout: Layout, status: PipelineStatus) -> None:
    fs.make_dirs(layout.pipeline)
    data = add_checksum(msgspec.json.format(msgspec.json.encode(status), indent=1))
    replace_file(fs, f"{layout.pipeline}/status.json", data)


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


# Exit status of the worker process, as its server saw it.
#
# A process that was killed, or whose disk was full, could not save its error. Such an exit counts as a failed round and
# is reported in place of the missing error, until a process has finished a round or exited successfully.

BUSY = 3
"""The exit code of a process that found the pipeline locked."""


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
