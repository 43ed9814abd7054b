"""The messages of /v0, typed. The server decodes and encodes with them, and the OpenAPI document is made of them."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from topics_protocol.config import Guarantee, Tombstone, TopicConfig


class Performance(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time went, in milliseconds. Best effort: any field may be missing."""

    server_total_ms: float
    wal_append_ms: float | UnsetType = UNSET
    fsync_ms: float | UnsetType = UNSET
    records_scanned: int | UnsetType = UNSET
    throttle_wait_ms: float | UnsetType = UNSET


class AppendAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    topic: str
    first_seq: int
    last_seq: int
    seqs: list[int] | UnsetType = UNSET
    head_seq: int
    count: int
    created: bool
    deduped: bool
    differs: bool | UnsetType = UNSET
    """True with `deduped` where the key was used for other records."""


class DiffBody(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """From where to read, how much, and what to leave out."""

    from_seq: int = 0
    limit: int = 0
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int = 0
    max_batch_bytes: int = 0
    epoch: int | None = None
    """Which topic of the name `from_seq` is of, as an earlier answer told. A cursor of another one is told a loss."""
    filter: str | None = None
    """Which records to give, by tag, node, ts, seq and JSON pointers into their data."""
    since_ts: int | str | None = None
    """Instead of `from_seq`: begins with the first record of that time or later."""
    last: int | None = None
    """Instead of `from_seq`: begins with the last so many records."""


class RecordOut(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a read. Names of fields that the server sets begin with `$`."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    node: str | UnsetType = msgspec.field(name="$node", default=UNSET)
    tag: str | UnsetType = msgspec.field(name="$tag", default=UNSET)
    data: Any
    meta: dict[str, Any] | UnsetType = UNSET


class DiffAnswer(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    records: list[RecordOut]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int
    epoch: int
    """Another number for every topic that ever had this name."""


class DeleteBody(msgspec.Struct, frozen=True, kw_only=True):
    """Which records to delete for good; with both fields, those that meet both."""

    before_seq: Any = None
    match: Any = None


class DeleteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


class PutAnswer(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    created: bool
    config: TopicConfig


class DropAnswer(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    deleted: bool
    routers_removed: list[str] = []


class QueueCounters(msgspec.Struct, frozen=True, kw_only=True):
    ready: int
    in_flight: int
    delayed: int = 0
    dead_lettered: int
    paused: bool | UnsetType = UNSET


class TopicAnswer(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    type: str
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    queue: QueueCounters | UnsetType = UNSET
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    epoch: int
    """Distinguishes the topic from a later one of the same name, whose seqs begin again."""
    content_type: str | UnsetType = UNSET
    """Only of topics that were used as a stream."""


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    epoch: int = 0
    """Another number for every topic that ever had this name."""
    queue: QueueCounters | UnsetType = UNSET
    """Only of queues."""
    content_type: str | UnsetType = UNSET
    """Only of topics that were used as a stream."""


class ListTotal(msgspec.Struct, frozen=True, kw_only=True):
    """How many topics a list has on all its pages."""

    value: int
    relation: str
    """`eq`, or `gte` where there may be more."""


class ListAnswer(msgspec.Struct, frozen=True, kw_only=True):
    topics: list[TopicSummary]
    next_cursor: str | UnsetType = UNSET
    total: ListTotal | UnsetType = UNSET
    """Only on request."""


class RouterBody(msgspec.Struct, frozen=True, kw_only=True):
    """From where to where a router forwards, and how."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    filter: Any = None
    allow_cycle: bool = False
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    from_seq: Annotated[int, msgspec.Meta(ge=0)] | None = None


class RouterPutAnswer(msgspec.Struct, frozen=True, kw_only=True):
    router: str
    created: bool
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: tuple[str, str, str] | None
    allow_cycle: bool
    guarantee: Guarantee


class RouterAnswer(msgspec.Struct, frozen=True, kw_only=True):
    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: tuple[str, str, str] | None
    allow_cycle: bool
    guarantee: Guarantee
    forwarded_total: int
    lag: int
    blocked: bool
    blocked_by: str | UnsetType = UNSET
    blocked_seq: int | UnsetType = UNSET


class RouterSummary(msgspec.Struct, frozen=True, kw_only=True):
    router: str
    source: str
    dest: str
    guarantee: Guarantee
    forwarded_total: int


class RouterListAnswer(msgspec.Struct, frozen=True, kw_only=True):
    routers: list[RouterSummary]
    next_cursor: str | UnsetType = UNSET


class RouterDropAnswer(msgspec.Struct, frozen=True, kw_only=True):
    router: str
    deleted: bool


# Fences.


class FenceBody(msgspec.Struct, frozen=True, kw_only=True):
    """The new fence token of a topic; empty removes it."""

    new_fence: str
    fence: str | None = None
    """The token that the topic is expected to have; empty if it has none."""


class FenceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The fence token of a topic; empty if it has none."""

    topic: str
    fence: str
    head_seq: int


# Named consumers.


class ConsumerBody(msgspec.Struct, frozen=True, kw_only=True):
    """Where a new consumer begins; without anything, before the first record."""

    from_seq: Annotated[int, msgspec.Meta(ge=0)] = 0
    since_ts: int | str | None = None
    """Instead of `from_seq`: begins with the first record of that time or later."""
    last: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Instead of `from_seq`: begins with the last so many records; 0 is the end of the topic."""


class CommitConsumerBody(msgspec.Struct, frozen=True, kw_only=True):
    """The new cursor of a consumer: everything up to it is processed."""

    seq: Annotated[int, msgspec.Meta(ge=0)] | None = None
    since_ts: int | str | None = None
    """Instead of `seq`: the seq before the first record of that time or later."""
    last: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Instead of `seq`: the seq before the last so many records; 0 is the end of the topic."""
    force: bool = False
    """Whether the cursor may move back."""
    epoch: int | None = None
    """Which topic of the name the seq is of. Another one is refused with `topic_recreated`."""


class ReadConsumerBody(msgspec.Struct, frozen=True, kw_only=True):
    """How much to read behind the committed cursor, and what to leave out."""

    limit: int = 0
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int = 0
    max_batch_bytes: int = 0
    filter: str | None = None


class ConsumerOut(msgspec.Struct, frozen=True, kw_only=True):
    """A named consumer of a topic."""

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
    committed_ms: int | None
    """Time of the last commit."""
    committed_by: str | None
    """Name of the key of the last commit."""
    lost: Tombstone | None
    """Records behind the cursor that were lost; the next read reports the same."""
    losses: list[Tombstone]
    """Every range behind the cursor that was lost; the first is `lost`."""


class ConsumerPutAnswer(ConsumerOut, frozen=True, kw_only=True):
    created: bool


class ConsumerCommitAnswer(ConsumerOut, frozen=True, kw_only=True):
    moved: bool
    """Whether the cursor is another one now; a commit behind it changes nothing unless it is forced."""


class ConsumerListAnswer(msgspec.Struct, frozen=True, kw_only=True):
    consumers: list[ConsumerOut]
    next_cursor: str | UnsetType = UNSET


class ConsumerDropAnswer(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    consumer: str
    deleted: bool


class HealthAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    version: str
    uptime_ms: int


class ReadyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    wal_replay_complete: bool
    topics: int
    read_only_shards: list[int]
    disk_full: bool
    backup_lag_ms: int | None = None
    """How far the newest backup is behind; None where none was taken since the start."""
    primary_term: int | None = None
    """The term of this primary; None on a server without a lease."""
    role: str = "primary"
    """`primary`, or `standby` for a server that serves reads only."""
    primary: str | None = None
    """Of a standby: the URL of its primary, where it is known."""
    lag_ms: int | None = None
    """Of a standby: how far its state is behind."""


class KeyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The permissions of a key, for its holder. Neither the secret nor anything made of it is part of it."""

    name: str
    """The key's name in logs; empty where no key is required."""
    scopes: list[str]
    prefixes: list[str]
    """Names it may touch begin with one of them; none are all."""


class SelfAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The caller, as the server identifies it, and the permissions of anonymous callers."""

    version: str
    keys_required: bool
    key: KeyAnswer
    limits: dict[str, int]


class PipelineRun(msgspec.Struct, frozen=True, kw_only=True):
    """The last round that had something to do."""

    started_ms: int
    took_ms: int
    records: int
    bytes: int
    segments: int
    records_per_s: float


class QuarantinedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that the pipeline leaves out for now."""

    topic: str
    product: str
    reason: str
    since_ms: int
    attempts: int
    retry_at_ms: int


class PipelineProduct(msgspec.Struct, frozen=True, kw_only=True):
    """How one product of the pipeline stands."""

    product: str
    lag_segments: int
    lag_bytes: int
    lag_ms: int
    quarantined: int
    error: str | None
    records: int = 0
    segments: int = 0
    records_per_s: float = 0.0
    failures: int = 0
    lag_records: int = 0
    bytes: int = 0
    rows: int | None = None
    """The rows that its tables show; null where it has none."""


class PipelineWorker(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of the pipeline's process: the start time of Spark, and the memory of all its processes."""

    start_ms: int
    memory_bytes: int


class PipelineJob(msgspec.Struct, frozen=True, kw_only=True):
    """The Spark job that runs now; `bytes` are those that its tasks read."""

    about: str
    started_ms: int
    tasks: int
    tasks_done: int
    bytes: int
    bytes_done: int


class PipelineProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The current run of the pipeline, or the last one: supervised, by hand, or on a cluster."""

    by: str
    started_ms: int
    updated_ms: int
    ended_ms: int | None
    rounds: int
    records: int
    bytes: int
    error: str | None
    job: PipelineJob | None


class PipelineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Work that an operator has asked of the pipeline, and that waits. `stream` is that of a rebuild."""

    kind: str
    stream: str | None
    by: str
    since_ms: int


class PipelinePause(msgspec.Struct, frozen=True, kw_only=True):
    """The pause of the server's pipeline."""

    by: str
    since_ms: int


class PipelineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Where the pipeline stands. `state` is off, unavailable, idle, running, waiting or paused."""

    state: str
    reason: str | None
    lag_segments: int
    lag_bytes: int
    lag_ms: int
    lag_records: int = 0
    rows: int | None = None
    """The rows that the archive's table shows; null before the first round, and without an archive."""
    rounds: int
    records: int
    bytes: int = 0
    segments: int
    failures: int
    restarts: int
    error: str | None
    last_run: PipelineRun | None
    quarantined: list[QuarantinedTopic]
    products: list[PipelineProduct]
    worker: PipelineWorker | None
    run: PipelineProcess | None = None
    requests: list[PipelineRequest] = []
    paused: PipelinePause | None = None


class MetricsHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Values of metrics at equal steps. The last point of each series is at `end_ms`; null is a step without a
    value."""

    step_ms: int
    end_ms: int
    series: dict[str, list[float | None]]


class TokenBody(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for a token."""

    ttl_ms: int = 60_000


class TokenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Stands for the key that asked, as `?token=` on event streams and WebSockets, until `expires_ms`."""

    token: str
    expires_ms: int


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    code: str
    message: str
    detail: dict[str, Any] | None = None


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Every refusal. Clients branch on `error.code`."""

    error: ErrorBody
    performance: Performance | UnsetType = UNSET
    """Of a request that got as far as its handler."""


class PageCursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """The contents of an opaque list cursor."""

    after: str
    value: int | None = None
    """The sort value of the last topic, in a list that is not sorted by name."""


# Backup answers.


class BackupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One backup of this data folder."""

    number: int
    made_ms: int
    moment_ms: int
    """Everything logged up to this moment is in it."""
    topics: int
    bytes: int
    """Of all its files; backups share what they have in common."""
    before: int | None
    """From this backup on every moment up to this one can be restored; None where there is no log in between."""
    release: str


class BackupStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A backup has begun; the list of backups contains it when it is complete."""

    place: str
    running: bool


class BackupsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Where backups go, how they are doing, and which there are, the oldest first."""

    place: str
    lineage: str | None
    """The name of this data folder at the place; None before the first backup."""
    running: bool
    interval_ms: int
    """Time between backups that are taken by themselves; 0 is never."""
    lag_ms: int | None
    """How far the newest one of this run, with the log shipped behind it, is behind; None before there is one."""
    ship_ms: int
    """Longest time that the log waits to be shipped; 0 is never."""
    shipped_moment_ms: int | None
    """Everything logged up to this moment is at the place; None before there is a backup of this run."""
    ship_error: str | None
    """Why the log could not be shipped the last time; None where it could."""
    completed: int
    failures: int
    error: str | None
    """Why the last one failed; None where it did not."""
    backups: list[BackupInfo]
