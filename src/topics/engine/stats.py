"""What an operator watches: a snapshot of the engine's counters and gauges, taken on the loop thread."""

import msgspec

from topics.engine.checkpoint import Checkpointer
from topics.engine.core import EngineCore
from topics.engine.routing import Routing
from topics.engine.sealing import Sealer
from topics.engine.throttle import Throttle, ThrottleStats
from topics.storage.objects.meter import StoreStats


class ShardStats(msgspec.Struct, frozen=True):
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
    """Whether a failed write or sync has poisoned it; then `read_only_cause` says why."""
    read_only_cause: str
    fsync_latency_us: list[tuple[int, int]]
    """Cumulative counts by bound, in microseconds."""
    fsync_latency_sum_us: float
    fsync_latency_count: int


class EngineStats(msgspec.Struct, frozen=True):
    topics: int
    topics_by_class: dict[str, int]
    queue_topics: int
    records_live: int
    bytes_live: int
    tail_bytes: int
    """Payload and index of unsealed records held in memory."""
    seal_backlog_bytes: int
    seal_failures: int
    """Failed attempts since sealing last worked."""
    routers: int
    routers_blocked: int
    """Routers that wait for room in their destination, or for something else to be over."""
    router_lag: int
    """Records that routers have not come to yet, over all of them."""
    forwarded_total: int
    """Copies made by the routers there are, since each was created."""
    checkpoints_total: int
    checkpoint_failures: int
    """Failed attempts since a checkpoint last worked."""
    shards: list[ShardStats]
    throttle: ThrottleStats
    cold_store: StoreStats | None = None
    """None where the cold tier is no object store."""


def collect_stats(
    core: EngineCore, sealer: Sealer, checkpointer: Checkpointer, throttle: Throttle, routing: Routing
) -> EngineStats:
    """A bounded amount of work, however many topics there are: this stops the event loop for as long as it takes."""
    census = core.census
    by_class = {durability.value: count for durability, count in census.by_class.items()}
    routers = routing.registry.by_name.values()
    return EngineStats(
        len(core.topics), by_class, census.queues, census.records, core.total_bytes, core.retention.tail_bytes,
        sealer.backlog_bytes, sealer.failures,
        len(routers), sum(r.blocked for r in routers), sum(max(r.source.head - r.cursor, 0) for r in routers),
        sum(r.forwarded for r in routers), checkpointer.completed, checkpointer.failures,
        [_shard_stats(core, n) for n in range(len(core.shards))], throttle.stats(),
        None if core.store.far is None else core.store.far.stats(),
    )  # fmt: skip


def _shard_stats(core: EngineCore, number: int) -> ShardStats:
    shard = core.shards[number]
    writer = shard.writer
    poison = writer.poison
    return ShardStats(
        number, shard.next_lsn - shard.first_lsn, writer.commits, writer.syncs, writer.written_bytes, writer.rotations,
        shard.queue_depth, shard.queue_depth_peak, shard.refused, poison is not None,
        "" if poison is None else str(poison), writer.sync_latency.cumulative(), writer.sync_latency.sum_us,
        writer.sync_latency.total,
    )  # fmt: skip
