"""What the pipeline remembers and tells: one small file, replaced as a whole after each round."""

import signal

import msgspec

from topics.log.fs import FileSystem, read_whole, replace_file
from topics.log.layout import Layout

FAMILIES = "families"
"""What the product of index families is called."""
FIRST_RETRY_MS = 60_000
LAST_RETRY_MS = 3_600_000
CLOCK_SLACK_MS = 600_000
"""A status from further ahead was written while the clock was wrong: what it says of times is not to be waited for."""


class Quarantine(msgspec.Struct, frozen=True):
    """A topic that cannot be worked on for now, so that it does not hold up the others."""

    topic_id: int
    topic: str
    product: str
    reason: str
    since_ms: int
    attempts: int
    retry_at_ms: int

    def waits(self, now_ms: int) -> bool:
        """Whether it is left alone now. What would wait for longer than anything ever does was noted by a clock that
        was wrong."""
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
    """How one product stands."""

    product: str
    lag_segments: int
    lag_bytes: int
    lag_ms: int
    quarantined: int
    """How many topics, or other subjects, are left out of it for now."""
    error: str | None = None
    """Why it sat out the last round; None when it did not."""
    records: int = 0
    """Records that it has taken in so far."""
    segments: int = 0
    records_per_s: float = 0.0
    """Of the last round in which it took in any; all products of a round share its time."""
    failures: int = 0
    """How often a topic, or another subject, failed in it, and how often it sat a round out."""


class WorkerStatus(msgspec.Struct, frozen=True):
    """What the process that runs the pipeline takes."""

    start_ms: int
    """How long Spark took to start, from nothing to a session."""
    memory_bytes: int
    """Memory of the process, of Java and of the workers of tasks, after the last round that had something to do."""


class PipelineStatus(msgspec.Struct, frozen=True, kw_only=True):
    running: bool = False
    updated_ms: int = 0
    catalog: int = 0
    """The number of the catalog that was last looked at."""
    due_ms: int | None = None
    """When there is something to do even if the catalog stays as it is, such as removing a file; None when never."""
    lag_segments: int = 0
    lag_bytes: int = 0
    lag_ms: int = 0
    """Age of the oldest sealed record that is not worked on yet."""
    rounds: int = 0
    records: int = 0
    segments: int = 0
    failures: int = 0
    """Rounds that failed as a whole since one last worked."""
    error: str | None = None
    """Why the last round failed as a whole; None once one has worked."""
    last_run: LastRun | None = None
    quarantined: tuple[Quarantine, ...] = ()
    products: tuple[ProductStatus, ...] = ()
    worker: WorkerStatus | None = None
    """Of the last process that started Spark; None where none has, or where it runs on another machine."""

    def is_ahead(self, now_ms: int) -> bool:
        """Whether the clock was set back since it was written."""
        return self.updated_ms - now_ms > CLOCK_SLACK_MS


def load_status(fs: FileSystem, layout: Layout) -> PipelineStatus:
    """What the last round left; the beginning when there was none, or when nobody can read it."""
    data = read_whole(fs, f"{layout.pipeline}/status.json")
    if data is None:
        return PipelineStatus()
    try:
        return msgspec.json.decode(data, type=PipelineStatus)
    except msgspec.DecodeError:
        # It is only told, never relied on for what is archived.
        return PipelineStatus()


def save_status(fs: FileSystem, layout: Layout, status: PipelineStatus) -> None:
    fs.make_dirs(layout.pipeline)
    replace_file(fs, f"{layout.pipeline}/status.json", msgspec.json.format(msgspec.json.encode(status), indent=1))


def quarantine(
    known: tuple[Quarantine, ...], topic_id: int, topic: str, product: str, reason: str, now_ms: int
) -> tuple[Quarantine, ...]:
    """One more failure of a topic; each makes the wait until the next attempt twice as long."""
    before = next((one for one in known if one.topic_id == topic_id and one.product == product), None)
    attempts = before.attempts + 1 if before is not None else 1
    wait = min(FIRST_RETRY_MS * 2 ** (attempts - 1), LAST_RETRY_MS)
    since = before.since_ms if before is not None else now_ms
    others = tuple(one for one in known if one is not before)
    return (*others, Quarantine(topic_id, topic, product, reason[:500], since, attempts, now_ms + wait))


# How the pipeline's process ended, as its server saw it: a process that was killed has told nobody.
#
# Nor has one whose disk was full when it wanted to. Such an end counts as a failed round and is told in the place of
# the error that is missing, until a process has worked again or has ended well.

BUSY = 3
"""The exit code of a process that gave way to another one."""


class ExitStatus:
    def __init__(self) -> None:
        self._untold = 0
        self._why: str | None = None
        self._left = PipelineStatus()
        """What the last one left that ended badly."""

    def note(self, code: int, status: PipelineStatus) -> None:
        """A process ended with this exit code, or by a signal if it is negative, and left this status."""
        if code == 0:
            self.forget()
        elif code < 0 or code == BUSY or status.running or status.error is None:
            self.note_untold(_words(code), status)
        else:
            self._why = None

    def note_untold(self, why: str, status: PipelineStatus) -> None:
        self._untold += 1
        self._why, self._left = why, status

    def look(self, status: PipelineStatus) -> None:
        """What a process tells that runs: that it came to the end of a round makes good for all before it."""
        if status != self._left and status.error is None and not status.running:
            self.forget()

    def forget(self) -> None:
        self._untold, self._why = 0, None

    def told(self, status: PipelineStatus) -> PipelineStatus:
        """A status with what its writer did not live to tell."""
        if not self._untold:
            return status
        error = self._why or status.error
        return msgspec.structs.replace(status, failures=status.failures + self._untold, error=error)


def _words(code: int) -> str:
    if code == BUSY:
        return "another process has the pipeline"
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with {code}; the log says why"
