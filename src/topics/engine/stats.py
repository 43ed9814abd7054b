"""Engine statistics: a snapshot of counters and gauges, taken on the loop thread."""

from itertools import islice

import msgspec

from topics.engine.backpressure import Throttle, ThrottleStats
from topics.engine.checkpoint import Checkpointer
from topics.engine.core import EngineCore
from topics.engine.read import estimated_ts
from topics.engine.sealing import Sealer
from topics.log.group_commit import Shard
from topics.log.object_store.store import StoreStats
from topics.model.topic_config import SERVER_TOPICS, TRANSACTIONS_TOPIC
from topics.ops.backup.backups import Backups
from topics.routers.routers import Routing
from topics.schedules.schedules import Schedules
from topics.transactions.transactions import Transactions


class ShardStats(msgspec.Struct, frozen=True, kw_only=True):
    """One shard of the log since the start of this process."""

    shard: int
    frames_total: int
    batches_total: int
    fsyncs_total: int
    bytes_written_total: int
    rotations_total: int
    queue_depth: int
    queue_depth_peak: int
    submit_full_total: int
    read_only: bool
    """Whether it refuses writes, temporarily or permanently; then `read_only_cause` has the reason."""
    read_only_cause: str
    fsync_latency_us: list[tuple[int, int]]
    """Cumulative counts by bound, in microseconds."""
    fsync_latency_sum_us: float
    fsync_latency_count: int


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    topics: int
    topics_by_class: dict[str, int]
    queue_topics: int
    records_live: int
    bytes_live: int
    system_topics: int
    """Topics that the server writes. The numbers above leave them out, except for what transactions stage."""
    system_records_live: int
    system_bytes_live: int
    tail_bytes: int
    memory_kept_bytes: int
    """Bytes that count against `max_memory_bytes` (`engine.quotas.KeptMemory`)."""
    """Payload and index of unsealed records held in memory."""
    seal_backlog_bytes: int
    seal_failures: int
    """Failed attempts since sealing last worked."""
    routers: int
    routers_blocked: int
    """Routers that wait for room in their destination, or for another obstacle."""
    router_lag: int
    """The number of records that routers have not forwarded yet."""
    forwarded_total: int
    """Copies made by the existing routers since their creation."""
    dead_letters_waiting: int
    """Live records of dead-letter topics."""
    dead_letters_oldest_ms: int
    """Age of the oldest of them; 0 if there is none."""
    dead_letters_overdue: int
    """Dead-letter topics whose oldest record is as old as `dead_letter_attention_ms`."""
    dead_letters_refused: int
    """Attempts to move a job to its dead letter topic that failed: it is full, closed, or does not take it."""
    consumers_given_up: int
    """How often a topic came to evict records that its slowest consumer had not committed."""
    schedules: int
    schedule_jobs_total: int
    """Jobs that schedules appended since the start."""
    schedules_failing: int
    """Schedules whose last run failed."""
    schedule_failures_total: int
    """Runs of schedules that failed since the start."""
    transactions_open: int
    transactions_staged_bytes: int
    """Payload that is staged and not committed; it is a part of `bytes_live`."""
    transactions_committed_total: int
    transactions_aborted_total: int
    """Since the start, including expired ones."""
    checkpoints_total: int
    checkpoint_failures: int
    """Failed attempts since a checkpoint last worked."""
    shards: list[ShardStats]
    throttle: ThrottleStats
    disk_full: bool = False
    """Whether only operations that free space are accepted."""
    backups_total: int = 0
    backup_failures_total: int = 0
    backup_copied_bytes: int = 0
    backup_shipped_bytes: int = 0
    backup_shipped_objects: int = 0
    backup_ship_failures_total: int = 0
    remote_waiting: int = 0
    """Acknowledgements of class `remote` that wait for the backup storage."""
    remote_timeouts_total: int = 0
    backup_lag_ms: int | None = None
    """None if none was taken since the start."""
    cold_store: StoreStats | None = None
    """None if the cold tier is not an object store."""


def collect_stats(
    core: EngineCore,
    sealer: Sealer,
    checkpointer: Checkpointer,
    throttle: Throttle,
    routing: Routing,
    transactions: Transactions,
    backups: Backups,
    schedules: Schedules,
) -> EngineStats:
    """A bounded amount of work, however many topics there are: this stops the event loop for as long as it takes."""
    totals = core.totals
    by_class = {durability.value: count for durability, count in totals.by_class.items()}
    system = [topic for name in SERVER_TOPICS if (topic := core.peek(name)) is not None and topic.created]
    for topic in system:
        by_class[topic.config.durability.value] -= 1
    # Records staged by transactions are user records.
    written = [topic for topic in system if topic.name != TRANSACTIONS_TOPIC]
    system_records = sum([topic.live_count for topic in written])
    system_bytes = sum([topic.live_bytes for topic in written])
    routers = routing.registry.by_name.values()
    letters, ages = _dead_letters(core)
    return EngineStats(
        topics=core.topic_count,
        topics_by_class=by_class,
        queue_topics=totals.queues,
        records_live=totals.records - system_records,
        bytes_live=core.total_bytes - system_bytes,
        system_topics=len(system),
        system_records_live=system_records,
        system_bytes_live=system_bytes,
        tail_bytes=core.retention.tail_bytes,
        memory_kept_bytes=core.memory.total_bytes,
        seal_backlog_bytes=sealer.backlog_bytes,
        seal_failures=sealer.failures,
        routers=len(routers),
        routers_blocked=sum(router.blocked for router in routers),
        router_lag=sum(max(router.source.head - router.cursor, 0) for router in routers),
        forwarded_total=sum(router.forwarded for router in routers),
        dead_letters_waiting=letters,
        dead_letters_oldest_ms=max(ages, default=0),
        dead_letters_overdue=sum([age >= core.options.dead_letter_attention_ms for age in ages]),
        dead_letters_refused=totals.dead_letters_refused,
        consumers_given_up=totals.consumers_given_up,
        schedules=schedules.count,
        schedule_jobs_total=schedules.runs,
        schedules_failing=schedules.failing,
        schedule_failures_total=schedules.failures,
        transactions_open=len(transactions.table.open),
        transactions_staged_bytes=sum([entry.bytes for entry in transactions.table.open.values()]),
        transactions_committed_total=transactions.commits,
        transactions_aborted_total=transactions.aborts,
        checkpoints_total=checkpointer.completed,
        checkpoint_failures=checkpointer.failures,
        shards=[_shard_stats(shard) for shard in core.shards],
        throttle=throttle.stats(),
        disk_full=core.room.short is not None,
        backups_total=backups.completed,
        backup_failures_total=backups.failures,
        backup_copied_bytes=backups.copied_bytes,
        backup_shipped_bytes=backups.shipping.shipped_bytes,
        backup_shipped_objects=backups.shipping.shipped_objects,
        backup_ship_failures_total=backups.shipping.failures,
        remote_waiting=core.path.remote.waiting,
        remote_timeouts_total=core.path.remote.timeouts,
        backup_lag_ms=backups.lag_ms,
        cold_store=None if core.store.far is None else core.store.far.stats(),
    )


_DEAD_LETTER_TOPICS_MAX = 200
"""The maximum number of dead-letter topics that are counted; with more of them the value is a lower bound."""


def _dead_letters(core: EngineCore) -> tuple[int, list[int]]:
    """The number of dead letters, and of each dead-letter topic the age of its oldest one."""
    names = islice(core.totals.dead_letter_topics, _DEAD_LETTER_TOPICS_MAX)
    topics = [topic for name in names if (topic := core.peek(name)) is not None and topic.live_count]
    now = core.wall()
    times = [ts for topic in topics if (ts := estimated_ts(topic, topic.earliest)) is not None]
    return sum([topic.live_count for topic in topics]), [max(now - ts, 0) for ts in times]


def _shard_stats(shard: Shard) -> ShardStats:
    writer, poison = shard.writer, shard.writer.poison
    return ShardStats(
        shard=shard.number,
        frames_total=shard.next_lsn - shard.first_lsn,
        batches_total=writer.commits,
        fsyncs_total=writer.syncs,
        bytes_written_total=writer.written_bytes,
        rotations_total=writer.rotations,
        queue_depth=shard.queue_depth,
        queue_depth_peak=shard.queue_depth_peak,
        submit_full_total=shard.refused,
        read_only=poison is not None,
        read_only_cause="" if poison is None else str(poison),
        fsync_latency_us=writer.sync_latency.cumulative(),
        fsync_latency_sum_us=writer.sync_latency.sum_us,
        fsync_latency_count=writer.sync_latency.total,
    )
