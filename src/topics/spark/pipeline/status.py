"""What the pipeline remembers and tells: one small file, replaced as a whole after each round."""

import msgspec

from topics.storage.fs import FileSystem
from topics.storage.layout import Layout
from topics.storage.replaced import read_whole, replace_file

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
