"""The most asked for of the metrics, under short names: what a script wants of `/v0/metrics` as JSON."""

import msgspec

from topics.engine.stats import EngineStats
from topics.streams.search.stats import SearchStats


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """What the server knows besides the engine."""

    ready: bool
    recovery_progress: float
    uptime_ms: int
    sse_connections: int = 0
    watch_sessions: int = 0
    queue_leases_in_flight: int = 0
    webhook_calls: int = 0
    webhook_failures: int = 0
    search: SearchStats = msgspec.field(default_factory=SearchStats)


def server_summary(state: ServerState) -> dict[str, object]:
    """What is known also while the log is replayed."""
    return {
        "ready": state.ready,
        "replay_progress": state.recovery_progress,
        "uptime_ms": state.uptime_ms,
        "sse_connections": state.sse_connections,
        "watch_sessions": state.watch_sessions,
        "queue_leases_in_flight": state.queue_leases_in_flight,
    }


def engine_summary(stats: EngineStats) -> dict[str, object]:
    shards = stats.shards
    return {
        "topics": stats.topics,
        **{f"topics_{name}": count for name, count in stats.topics_by_class.items()},
        "routers": stats.routers,
        "records_live": stats.records_live,
        "bytes_live": stats.bytes_live,
        "queue_topics": stats.queue_topics,
        "wal": {
            "frames": sum(s.frames_total for s in shards),
            "batches": sum(s.batches_total for s in shards),
            "fsyncs": sum(s.fsyncs_total for s in shards),
            "bytes_written": sum(s.bytes_written_total for s in shards),
            "rotations": sum(s.rotations_total for s in shards),
            "queue_depth": sum(s.queue_depth for s in shards),
            "queue_depth_peak": max((s.queue_depth_peak for s in shards), default=0),
            "submit_full_total": sum(s.submit_full_total for s in shards),
            "read_only": sum(s.read_only for s in shards),
            "fsync_count": sum(s.fsync_latency_count for s in shards),
            "fsync_micros_total": sum(s.fsync_latency_sum_us for s in shards),
        },
    }
