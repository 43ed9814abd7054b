"""Results of calls: the messages of the protocol, where a field that may be missing is None.

An answer may carry `performance`, in which any of `server_total_ms`, `wal_append_ms`, `fsync_ms`, `records_scanned` and
`throttle_wait_ms` can be missing. Fields that a newer server adds are ignored.
"""

from typing import Any, Literal

import msgspec

from topics_protocol import queues, schedules, transactions, v0
from topics_protocol.config import TopicConfig
from topics_protocol.records import Gap, Job, Record

Performance = dict[str, Any]


class TopicPut(v0.PutAnswer, frozen=True, kw_only=True):
    """A topic was created, or its config replaced; `config` is the current one."""

    performance: Performance = msgspec.field(default_factory=dict)


class QueueCounters(v0.QueueCounters, frozen=True, kw_only=True):
    """Jobs of a queue: ready, in flight, and dead."""

    paused: bool = False
    """Whether the queue hands out no jobs."""


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a topic."""

    topic: str
    type: str = "log"
    head_seq: int
    """The highest seq so far; following from here yields only new records."""
    earliest_seq: int
    """The first live record; one behind the head when there is none."""
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    queue: QueueCounters | None = None
    effective_priority: int
    last_write_ts: int | None = None
    last_read_ts: int | None = None
    epoch: int = 0
    """Distinguishes the topic from a later one of the same name; 0 from servers without epochs."""
    content_type: str | None = None
    """The content type of the entries; only of topics that were used as a stream."""
    performance: Performance = msgspec.field(default_factory=dict)


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in a list."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    epoch: int = 0
    queue: QueueCounters | None = None
    """Only of queues."""
    content_type: str | None = None
    """The content type of the entries; only of topics that were used as a stream."""


class TopicPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list of topics."""

    topics: list[TopicSummary]
    next_cursor: str | None = None
    """Where the next page begins; None on the last one."""
    total: v0.ListTotal | None = None
    """The number of topics on all pages, if it was requested."""
    performance: Performance = msgspec.field(default_factory=dict)


class TopicDropped(v0.DropAnswer, frozen=True, kw_only=True):
    """A topic is gone; `deleted` is False when there was none."""

    performance: Performance = msgspec.field(default_factory=dict)


class RouterPut(v0.RouterPutAnswer, frozen=True, kw_only=True):
    """A router was created or changed; the fields are its current config."""

    performance: Performance = msgspec.field(default_factory=dict)


class RouterState(v0.RouterAnswer, frozen=True, kw_only=True):
    """The rules of a router, and how far it got."""

    lag: int = 0
    """How many seqs of the source it has not come to yet."""
    blocked: bool = False
    """Whether it cannot forward, for example into a full destination; `blocked_by` then has the reason."""
    performance: Performance = msgspec.field(default_factory=dict)


class RouterSummary(v0.RouterSummary, frozen=True, kw_only=True):
    """A router in a list."""


class RouterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some routers, in the order of their names."""

    routers: list[RouterSummary]
    next_cursor: str | None = None
    """Where the next page begins; None on the last one."""
    performance: Performance = msgspec.field(default_factory=dict)


class RouterDropped(v0.RouterDropAnswer, frozen=True, kw_only=True):
    """A router is gone; `deleted` is False when there was none."""

    performance: Performance = msgspec.field(default_factory=dict)


class ScheduleSummary(schedules.ScheduleSummary, frozen=True, kw_only=True):
    """A schedule in a list, without its data."""


class ScheduleState(schedules.ScheduleSummary, frozen=True, kw_only=True):
    """A schedule with its last and its next run."""

    data: Any = None
    performance: Performance = msgspec.field(default_factory=dict)


class SchedulePut(ScheduleState, frozen=True, kw_only=True):
    """A schedule exists; `created` is False where it did before."""

    created: bool


class SchedulePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some schedules, in the order of their names."""

    schedules: list[ScheduleSummary]
    next_cursor: str | None = None
    """Where the next page begins; None on the last one."""
    performance: Performance = msgspec.field(default_factory=dict)


class ScheduleDropped(schedules.ScheduleDropAnswer, frozen=True, kw_only=True):
    """A schedule is gone; `deleted` is False when there was none."""

    performance: Performance = msgspec.field(default_factory=dict)


class Fence(v0.FenceAnswer, frozen=True, kw_only=True):
    """The fence token of a topic; empty if it has none."""

    performance: Performance = msgspec.field(default_factory=dict)


class ConsumerState(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's cursor, its lag and its last commit."""

    topic: str
    consumer: str
    epoch: int
    """That of the topic: another one for every topic that ever had the name."""
    seq: int
    """The committed cursor."""
    head_seq: int
    lag: int
    """Seqs behind the cursor."""
    lag_ms: int
    """Age of the first record behind the cursor; estimated within a sealed segment."""
    created_ms: int
    committed_ms: int | None = None
    """Time of the last commit."""
    committed_by: str | None = None
    """Name of the key of the last commit."""
    lost: Gap | None = None
    """Records behind the cursor that were lost."""
    losses: list[Gap] = []
    """Every range behind the cursor that was lost, at most 64; the first is `lost`."""
    performance: Performance = msgspec.field(default_factory=dict)


class ConsumerPut(ConsumerState, frozen=True, kw_only=True):
    """A consumer exists; `created` is False where it did before, and its cursor stayed."""

    created: bool


class ConsumerCommitted(ConsumerState, frozen=True, kw_only=True):
    """A commit was made; `moved` is False where the cursor stayed."""

    moved: bool


class ConsumerPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some consumers, by topic and name."""

    consumers: list[ConsumerState]
    next_cursor: str | None = None
    """Where the next page begins; None on the last one."""
    performance: Performance = msgspec.field(default_factory=dict)


class ConsumerDropped(v0.ConsumerDropAnswer, frozen=True, kw_only=True):
    """A consumer is gone; `deleted` is False when there was none."""

    performance: Performance = msgspec.field(default_factory=dict)


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """Records were appended, with the seqs from `first_seq` to `last_seq` without a hole."""

    topic: str
    first_seq: int
    last_seq: int
    seqs: list[int] | None = None
    """Every seq, where the call asked for them."""
    head_seq: int
    count: int
    created: bool
    """Whether this append made the topic."""
    deduped: bool
    """Whether an earlier append with the same idempotency key had done it already; the seqs are the ones of then."""
    differs: bool = False
    """Never true for a call of this client, which asks for an error instead."""
    performance: Performance = msgspec.field(default_factory=dict)


class Placed(transactions.PlacedOut, frozen=True, kw_only=True):
    """Where a transaction put the records of one topic; others may have written between them, `count` are its own."""


class TransactionState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a transaction."""

    id: str
    sequence: int
    state: Literal["open", "committed", "aborted"]
    attempt: str | None = None
    """The open attempt. Staging and committing name it, so that an older attempt is refused as replaced."""
    parts: int = 0
    records: int = 0
    bytes: int = 0
    expires_ts: int | None = None
    """When an open one is aborted, unless something is staged before."""
    deduped: bool = False
    """Whether it was committed before, and this call changed nothing."""
    topics: list[Placed] = []
    """Where the records of a committed one are."""
    performance: Performance = msgspec.field(default_factory=dict)


class Staged(transactions.StageAnswer, frozen=True, kw_only=True):
    """Records are staged; `records` and `bytes` are those of the whole transaction."""

    performance: Performance = msgspec.field(default_factory=dict)


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """The records behind a cursor."""

    topic: str
    records: list[Record]
    next_from_seq: int
    """The cursor of the next read. It moves past records that were deleted or left out."""
    head_seq: int
    earliest_seq: int
    caught_up: bool
    """Whether there was nothing more. No records alone does not mean that."""
    tombstone: Gap | None = None
    """The range that was lost in front of the records."""
    lag: int
    epoch: int = 0
    """The epoch of the topic that was read; pass it on with the cursor. 0 from servers without epochs."""
    performance: Performance = msgspec.field(default_factory=dict)


class Deleted(v0.DeleteAnswer, frozen=True, kw_only=True):
    """The number of records that a deletion removed, and the remaining ones."""

    performance: Performance = msgspec.field(default_factory=dict)


class Health(v0.HealthAnswer, frozen=True, kw_only=True):
    """The process answers: since when, and which version it is."""


class Ready(v0.ReadyAnswer, frozen=True, kw_only=True):
    """The server serves, and how many topics it has."""


class WhoAmI(v0.SelfAnswer, frozen=True, kw_only=True):
    """The key as the server sees it, and the limits of the server."""


class Token(v0.TokenAnswer, frozen=True, kw_only=True):
    """Replaces the requesting key, as `?token=` of event streams and WebSockets, until `expires_ms`."""


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that a claim got, in the order of their seqs; none at all is an ordinary answer."""

    topic: str
    claimed: list[Job]
    count: int
    ready: int
    """Jobs that can still be claimed."""
    performance: Performance = msgspec.field(default_factory=dict)


class Acked(queues.AckAnswer, frozen=True, kw_only=True):
    """How many jobs are done, and which were not this worker's any more."""

    performance: Performance = msgspec.field(default_factory=dict)


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a job that is done, or the state of one that is in the queue."""

    topic: str
    seq: int
    state: str
    """`done`, `ready`, `delayed` or `leased`."""
    result: Any = None
    finished_ms: int | None = None
    node: str | None = None
    """The worker that acknowledged it."""
    performance: Performance = msgspec.field(default_factory=dict)


class Nacked(queues.NackAnswer, frozen=True, kw_only=True):
    """How many jobs were given back, and which were not this worker's any more."""

    performance: Performance = msgspec.field(default_factory=dict)


class Extended(queues.ExtendAnswer, frozen=True, kw_only=True):
    """The new deadlines by seq, and which jobs were not this worker's any more."""

    performance: Performance = msgspec.field(default_factory=dict)


class Redriven(queues.RedriveAnswer, frozen=True, kw_only=True):
    """How many dead letters are jobs again, under which seqs, and whether there may be more."""

    performance: Performance = msgspec.field(default_factory=dict)


class JobFailure(queues.JobFailureOut, frozen=True, kw_only=True):
    """Why and when one delivery of a job failed."""


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a queue and its history."""

    seq: int = msgspec.field(name="$seq")
    """Of a dead letter its seq in the dead-letter topic."""
    ts: int = msgspec.field(name="$ts")
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    data: Any
    meta: dict[str, Any] | None = None
    state: str
    """`ready`, `leased`, `delayed` or `dead`."""
    deliveries: int = 0
    priority: int = 0
    worker: str | None = None
    """The worker that holds it."""
    deadline: int | None = None
    ready_at: int | None = None
    first_failure: int | None = None
    failures: list[JobFailure] = []
    """The last three, the newest at the end; of a dead letter the last one."""


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some jobs of one state, by seq. It may be short, or empty, while there is a next page."""

    topic: str
    state: str
    jobs: list[JobState]
    next_cursor: str | None = None
    performance: Performance = msgspec.field(default_factory=dict)


class JobChanged(queues.JobAnswer, frozen=True, kw_only=True):
    """The seq and the state of a job after an operation, and whether that changed it."""

    performance: Performance = msgspec.field(default_factory=dict)


class QueuePaused(queues.QueueAnswer, frozen=True, kw_only=True):
    """Whether a queue hands out jobs."""

    performance: Performance = msgspec.field(default_factory=dict)


class Lease(queues.LeaseOut, frozen=True, kw_only=True):
    """The holder of a job, and until when."""


class LeasePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some leases of a queue, in the order of the seqs."""

    topic: str
    leases: list[Lease]
    next_after: int | None = None
    """Where the next page begins; None on the last one."""
    performance: Performance = msgspec.field(default_factory=dict)


class BackupInfo(v0.BackupInfo, frozen=True, kw_only=True):
    """One backup of the server's data folder."""


class BackupStarted(v0.BackupStarted, frozen=True, kw_only=True):
    """A backup has begun; the list of backups contains it when it is complete."""

    performance: Performance = msgspec.field(default_factory=dict)


class BackupList(v0.BackupsAnswer, frozen=True, kw_only=True):
    """Where backups go, how they are doing, and which there are, the oldest first."""

    performance: Performance = msgspec.field(default_factory=dict)
