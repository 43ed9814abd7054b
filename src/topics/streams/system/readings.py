"""What the metrics of a server are made of: counters and gauges as they stand at one moment."""

import msgspec

from topics.engine.engine import Engine
from topics.streams.search.stats import SearchStats


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What is known outside of the engine."""

    requests: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    connections: int = 0
    unread_bytes: int = 0
    pipeline_lag_ms: int = 0
    pipeline_lag_segments: int = 0
    pipeline_lag_bytes: int = 0


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    counters: dict[tuple[str, str], float]
    """What only grows, by metric and unit."""
    gauges: dict[tuple[str, str], float]
    syncs: dict[int, int]
    """Syncs of the log by how long they took: how many since the start, by the bound in microseconds that they are
    below, with 0 for those above all bounds."""
    sync_us: float


def read_now(engine: Engine, search: SearchStats, around: Around) -> Readings:
    """A few dozen numbers that are all kept anyway: cheap, however many streams there are."""
    core = engine.core
    writers = [shard.writer for shard in core.shards]
    syncs: dict[int, int] = {}
    for writer in writers:
        below = 0
        for bound, count in writer.sync_latency.cumulative():
            syncs[bound] = syncs.get(bound, 0) + count - below
            below = count
        syncs[0] = syncs.get(0, 0) + writer.sync_latency.total - below
    throttle = engine.throttle.stats()
    return Readings(
        counters={
            ("topics.append.records", "records"): core.totals.appended,
            ("topics.append.bytes", "bytes"): core.totals.appended_bytes,
            ("topics.read.count", "reads"): core.totals.reads,
            ("topics.log.bytes", "bytes"): sum([writer.written_bytes for writer in writers]),
            ("topics.log.commits", "commits"): sum([writer.commits for writer in writers]),
            ("topics.http.requests", "requests"): around.requests,
            ("topics.http.received.bytes", "bytes"): around.received_bytes,
            ("topics.http.sent.bytes", "bytes"): around.sent_bytes,
            ("topics.search.queries", "queries"): search.queries,
        },
        gauges={
            ("topics.commit.time", "ms"): throttle.commit_ms,
            ("topics.loop.lag", "ms"): throttle.loop_lag_ms,
            ("topics.commit.queue.bytes", "bytes"): sum([shard.queue_bytes for shard in core.shards]),
            ("topics.tail.bytes", "bytes"): core.retention.tail_bytes,
            ("topics.seal.backlog.bytes", "bytes"): engine.sealer.backlog_bytes,
            ("topics.stored.bytes", "bytes"): core.total_bytes,
            ("topics.streams", "streams"): core.topic_count,
            ("topics.connections", "connections"): around.connections,
            ("topics.unread.bytes", "bytes"): around.unread_bytes,
            ("topics.pipeline.lag", "ms"): around.pipeline_lag_ms,
            ("topics.pipeline.lag.segments", "segments"): around.pipeline_lag_segments,
            ("topics.pipeline.lag.bytes", "bytes"): around.pipeline_lag_bytes,
        },
        syncs=syncs,
        sync_us=sum([writer.sync_latency.sum_us for writer in writers]),
    )
