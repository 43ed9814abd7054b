"""System streams of one server: `__registry__` and `__stream_metrics__`."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from topics.engine.engine import Engine
from topics.model.errors import TopicsError
from topics.model.limits import MIB
from topics.model.records import Record
from topics.model.topic_config import METRICS_STREAM, Durability, TopicConfig
from topics.schema.contract import Contract
from topics.schema.documents import encode
from topics.schema.profiles.metrics import SCHEMA, Metrics
from topics.schema.registry import Registry, Version
from topics.search.service.backend import SearchStats
from topics.streams.append import Later
from topics.streams.lifecycle import own_title
from topics.streams.streams import Streams
from topics.streams.system_streams.registry_stream import LifecycleLog, SystemStream

# Samples: counters and gauges of the server at one time.


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """State outside of the engine."""

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
    """Counters (monotonic), by metric and unit."""
    gauges: dict[tuple[str, str], float]
    syncs: dict[int, int]
    """Syncs of the log by duration: the number since the start for each upper bound in microseconds, with 0 for syncs
    above all bounds."""
    sync_us: float


def read_now(engine: Engine, search: SearchStats, around: Around) -> Readings:
    """Returns a few dozen existing counters: cheap, whatever the number of streams."""
    writers = [shard.writer for shard in engine.shards]
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
            ("topics.append.records", "records"): engine.totals.appended,
            ("topics.append.bytes", "bytes"): engine.totals.appended_bytes,
            ("topics.read.count", "reads"): engine.totals.reads,
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
            ("topics.commit.queue.bytes", "bytes"): sum([shard.queue_bytes for shard in engine.shards]),
            ("topics.tail.bytes", "bytes"): engine.tail_bytes,
            ("topics.seal.backlog.bytes", "bytes"): engine.sealer.backlog_bytes,
            ("topics.stored.bytes", "bytes"): engine.stored_bytes,
            ("topics.streams", "streams"): engine.topic_count,
            ("topics.connections", "connections"): around.connections,
            ("topics.unread.bytes", "bytes"): around.unread_bytes,
            ("topics.pipeline.lag", "ms"): around.pipeline_lag_ms,
            ("topics.pipeline.lag.segments", "segments"): around.pipeline_lag_segments,
            ("topics.pipeline.lag.bytes", "bytes"): around.pipeline_lag_bytes,
        },
        syncs=syncs,
        sync_us=sum([writer.sync_latency.sum_us for writer in writers]),
    )


# Writes `__stream_metrics__`: one interval of each server metric about every ten seconds.
#
# It has no separate counters: it samples existing ones once a second, so operations on streams cost nothing more. An
# interval that cannot be written, such as on a full disk, is omitted; the next one begins at its end.

CAP_BYTES = 64 * MIB
SAMPLE_S = 1.0
RETRY_S = 1.0
# Only the schema, without indexes, whose builds would be in the metrics. The key of an entry is its series, by its
# profile.
CONTRACT = Contract(
    Registry((Version(encode({"title": own_title(METRICS_STREAM), **SCHEMA}), None, 0),)), Metrics()
)  # fmt: skip


class _Gauge:
    """Returns the samples of one interval."""

    __slots__ = ("count", "least", "most", "total")

    def __init__(self, value: float) -> None:
        self.count, self.total, self.least, self.most = 1, value, value, value

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.least, self.most = min(self.least, value), max(self.most, value)


class MetricsLog:
    def __init__(
        self, streams: Streams, later: Later, around: Callable[[], Around], interval_ms: int, retention_ms: int
    ) -> None:
        self._streams = streams
        self._engine = streams.engine
        self._later = later
        self._around = around
        self._interval_ms = interval_ms
        config = TopicConfig(durability=Durability.DISK, ttl_ms=retention_ms, cap_bytes=CAP_BYTES)
        self._stream = SystemStream(self._engine, METRICS_STREAM, CONTRACT, config)
        self._begun_ms = 0
        """The start of the interval, by the wall clock and by the monotonic clock."""
        self._begun = 0
        self._before: Readings | None = None
        self._gauges: dict[tuple[str, str], _Gauge] = {}

    def start(self) -> None:
        if not self._engine.is_closed:
            self._stream.open(self._opened)

    def _opened(self, error: TopicsError | None) -> None:
        if error is not None:
            self._later(RETRY_S, self.start)
            return
        self._begin(self._read())
        self._later(min(SAMPLE_S, self._interval_ms / 1000), self._sample)

    def _read(self) -> Readings:
        return read_now(self._engine, self._streams.search.stats(), self._around())

    def _begin(self, readings: Readings) -> None:
        self._before, self._begun_ms, self._begun = readings, self._engine.wall(), self._engine.steady()
        self._gauges = {name: _Gauge(value) for name, value in readings.gauges.items()}

    def _sample(self) -> None:
        if self._engine.is_closed:
            return
        readings = self._read()
        for name, value in readings.gauges.items():
            self._gauges[name].add(value)
        if self._engine.steady() - self._begun >= self._interval_ms:
            self._write(readings)
            self._begin(readings)
        self._later(min(SAMPLE_S, self._interval_ms / 1000), self._sample)

    def _write(self, readings: Readings) -> None:
        self._stream.write([Record(encode(entry)) for entry in self._entries(readings)], self._written)

    def _written(self, error: TopicsError | None) -> None:
        """The next interval continues from here, regardless of the outcome."""

    def _entries(self, readings: Readings) -> Iterator[dict[str, Any]]:
        before = self._before
        assert before is not None
        # After the clock was set back, an interval must not end before its start.
        span = {"windowStart": self._begun_ms, "windowEnd": max(self._engine.wall(), self._begun_ms)}
        for (metric, unit), value in readings.counters.items():
            grown = value - before.counters[metric, unit]
            yield {**span, "metric": metric, "unit": unit, "metricKind": "counter", "count": 1, "sum": grown,
                   "min": grown, "max": grown}  # fmt: skip
        for (metric, unit), gauge in self._gauges.items():
            yield {**span, "metric": metric, "unit": unit, "metricKind": "gauge", "count": gauge.count,
                   "sum": gauge.total, "min": gauge.least, "max": gauge.most}  # fmt: skip
        yield {**span, "metric": "topics.log.sync.time", "unit": "us", **_syncs(before, readings)}


def _syncs(before: Readings, now: Readings) -> dict[str, Any]:
    """Returns the syncs of an interval as a histogram, by the lower bounds of its buckets."""
    bounds = sorted(bound for bound in now.syncs if bound)
    lower = dict(zip((*bounds, 0), (0, *bounds), strict=True))
    counts = {lower[bound]: count - before.syncs.get(bound, 0) for bound, count in now.syncs.items()}
    buckets = {str(bound): count for bound, count in sorted(counts.items()) if count}
    return {"metricKind": "summary", "count": sum(buckets.values()), "sum": now.sync_us - before.sync_us,
            "min": None, "max": None, "buckets": buckets}  # fmt: skip


class SystemOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of system streams; `topics.model` explains each."""

    streams_registry: bool = True
    streams_metrics: bool = True
    streams_metrics_ms: int = 10_000
    streams_metrics_retention_ms: int = 604_800_000


class SystemStreams:
    def __init__(self, streams: Streams, options: SystemOptions, later: Later, around: Callable[[], Around]) -> None:
        """`around` returns the values from outside of the engine."""
        self.lifecycle = LifecycleLog(streams, later) if options.streams_registry else None
        self.metrics = (
            MetricsLog(streams, later, around, options.streams_metrics_ms, options.streams_metrics_retention_ms)
            if options.streams_metrics
            else None
        )

    def start(self) -> None:
        for stream in (self.lifecycle, self.metrics):
            if stream is not None:
                stream.start()
