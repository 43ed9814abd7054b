"""Writes `__stream_metrics__`: how the server was doing, as one interval of each metric about every ten seconds.

Nothing is counted for it that is not counted anyway, and nothing that happens to a stream costs more because of it: it
looks at the numbers there are, once a second, and writes what became of them. An interval that cannot be written, as on
a full disk, is left out; the next one begins where it ended.
"""

from collections.abc import Callable, Iterator
from typing import Any

from topics.core.config import TopicConfig
from topics.core.durability import Durability
from topics.core.errors import TopicsError
from topics.core.limits import MIB
from topics.core.names import METRICS_STREAM
from topics.core.records import Record
from topics.schema.contract import Contract
from topics.schema.documents import encode
from topics.schema.profiles.metrics import SCHEMA, Metrics
from topics.schema.registry import Registry, Version
from topics.streams.early import Later
from topics.streams.own_names import own_title
from topics.streams.service import Streams
from topics.streams.system.own_stream import OwnStream
from topics.streams.system.readings import Around, Readings, read_now

CAP_BYTES = 64 * MIB
SAMPLE_S = 1.0
RETRY_S = 1.0
# The schema and nothing else: no index is built over what describes the server that would build it. The key of an entry
# is its series, by its profile.
CONTRACT = Contract(
    Registry((Version(encode({"title": own_title(METRICS_STREAM), **SCHEMA}), None, 0),)), Metrics()
)  # fmt: skip


class _Gauge:
    """The samples of one interval."""

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
        self._stream = OwnStream(self._engine, METRICS_STREAM, CONTRACT, config)
        self._begun_ms = 0
        """When the interval began, by the clock on the wall; and by the one that nobody sets."""
        self._begun = 0
        self._before: Readings | None = None
        self._gauges: dict[tuple[str, str], _Gauge] = {}

    def start(self) -> None:
        if not self._engine.core.closed:
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
        core = self._engine.core
        self._before, self._begun_ms, self._begun = readings, core.wall(), core.steady()
        self._gauges = {name: _Gauge(value) for name, value in readings.gauges.items()}

    def _sample(self) -> None:
        core = self._engine.core
        if core.closed:
            return
        readings = self._read()
        for name, value in readings.gauges.items():
            self._gauges[name].add(value)
        if core.steady() - self._begun >= self._interval_ms:
            self._write(readings)
            self._begin(readings)
        self._later(min(SAMPLE_S, self._interval_ms / 1000), self._sample)

    def _write(self, readings: Readings) -> None:
        self._stream.write([Record(encode(entry)) for entry in self._entries(readings)], self._written)

    def _written(self, error: TopicsError | None) -> None:
        """Whatever became of it, the next interval goes on from here."""

    def _entries(self, readings: Readings) -> Iterator[dict[str, Any]]:
        before = self._before
        assert before is not None
        # A clock that was set back must not make an interval that ends before it begins.
        span = {"windowStart": self._begun_ms, "windowEnd": max(self._engine.core.wall(), self._begun_ms)}
        for (metric, unit), value in readings.counters.items():
            grown = value - before.counters[metric, unit]
            yield {**span, "metric": metric, "unit": unit, "metricKind": "counter", "count": 1, "sum": grown,
                   "min": grown, "max": grown}  # fmt: skip
        for (metric, unit), gauge in self._gauges.items():
            yield {**span, "metric": metric, "unit": unit, "metricKind": "gauge", "count": gauge.count,
                   "sum": gauge.total, "min": gauge.least, "max": gauge.most}  # fmt: skip
        yield {**span, "metric": "topics.log.sync.time", "unit": "us", **_syncs(before, readings)}


def _syncs(before: Readings, now: Readings) -> dict[str, Any]:
    """The syncs of an interval as a histogram, by the lower bounds of its buckets."""
    bounds = sorted(bound for bound in now.syncs if bound)
    lower = dict(zip((*bounds, 0), (0, *bounds), strict=True))
    counts = {lower[bound]: count - before.syncs.get(bound, 0) for bound, count in now.syncs.items()}
    buckets = {str(bound): count for bound, count in sorted(counts.items()) if count}
    return {"metricKind": "summary", "count": sum(buckets.values()), "sum": now.sync_us - before.sync_us,
            "min": None, "max": None, "buckets": buckets}  # fmt: skip
