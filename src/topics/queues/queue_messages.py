"""Requests and results of queue operations."""

from collections.abc import Callable, Sequence

import msgspec

from topics.model.errors import TopicsError
from topics.queues.leases import format_lease_id


class QueueCounters(msgspec.Struct, frozen=True, gc=False):
    """How many jobs are in which state. `ready`, `in_flight` and `delayed` add up to the live jobs."""

    ready: int
    """Could be claimed now."""
    in_flight: int
    """Held by workers, or on their way out of the queue."""
    delayed: int
    """Held back until a moment, by a nack or by whoever appended them."""
    dead_lettered: int
    """Moved to the dead letter topic since the queue was created."""


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A worker asks for jobs."""

    node: str
    max: int = 1
    """0 is 1; more than the limit is cut to it."""
    lease_ms: int | None = None
    """None is what the queue's config says; out-of-range wishes are bent."""


class ClaimedJob(msgspec.Struct, frozen=True, gc=False):
    """One job in a worker's hands."""

    seq: int
    token: int
    deadline: int
    deliveries: int
    fragment: bytes
    """The job as a JSON object: `$seq`, `$ts`, `data`, `lease_id`, `deadline`, `deliveries`, and where it has them
    `$node`, `meta` and `$tag`."""

    @property
    def lease_id(self) -> str:
        return format_lease_id(self.token)


class ClaimResult(msgspec.Struct, frozen=True):
    """The jobs in the order of their seqs. None at all is an ordinary answer."""

    topic: str
    jobs: list[ClaimedJob]
    ready: int
    """Jobs that can still be claimed."""
    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0

    @property
    def body(self) -> bytes:
        """The jobs as JSON with commas between them: put it between brackets and it is an answer."""
        return b",".join([job.fragment for job in self.jobs])


class HeldRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A worker speaks of jobs that it holds."""

    node: str
    seqs: Sequence[int]
    lease_ids: Sequence[str] | None = None
    """One for each seq, in the same order; an empty text fences nothing. A stale id makes its seq skipped."""


class NackRequest(HeldRequest, frozen=True, kw_only=True):
    delay_ms: int = 0


class ExtendRequest(HeldRequest, frozen=True, kw_only=True):
    lease_ms: int
    """From now on: the deadline is set, nothing is added to it."""


class AckResult(msgspec.Struct, frozen=True):
    topic: str
    acked: int
    skipped: list[int]
    """The seqs of the request that the node does not hold, in the order of the request."""
    ready: int
    in_flight: int
    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0


class NackResult(msgspec.Struct, frozen=True):
    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int
    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0


class ExtendResult(msgspec.Struct, frozen=True):
    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[int, int]
    """The new deadline of each extended seq."""
    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0


class RedriveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of a queue shall come back from where dead letters went."""

    max: int = 100
    """At most this many jobs, the oldest first; 0 is 1, and more than the limit of a claim is cut to it."""
    source: str | None = None
    """The topic to take them from; None is the queue's `dead_letter`."""


class RedriveResult(msgspec.Struct, frozen=True):
    topic: str
    source: str
    moved: int
    first_seq: int
    """The seqs the jobs have in the queue now, `first_seq` to `last_seq`; 0 and 0 when nothing was moved."""
    last_seq: int
    more: bool
    """Whether the source may hold more of them."""
    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0


class LeaseInfo(msgspec.Struct, frozen=True, gc=False):
    """Who holds a job. Its lease id is the holder's secret and not part of it."""

    seq: int
    node: str
    deadline: int
    deliveries: int


class LeasePage(msgspec.Struct, frozen=True):
    topic: str
    leases: list[LeaseInfo]
    """By seq."""
    next_after: int | None
    """Where the next page begins (`after`); None when this is the last."""


class WorkerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A worker wants jobs pushed to it, as many at once as it can hold."""

    node: str
    max: int = 1
    lease_ms: int | None = None


ClaimDone = Callable[[ClaimResult | TopicsError], None]
AckDone = Callable[[AckResult | TopicsError], None]
NackDone = Callable[[NackResult | TopicsError], None]
ExtendDone = Callable[[ExtendResult | TopicsError], None]
RedriveDone = Callable[[RedriveResult | TopicsError], None]
Cancel = Callable[[], None]
