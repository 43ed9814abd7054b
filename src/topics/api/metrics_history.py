"""History of the most important metrics since the start of the server, for charts: the answer of
`/v0/metrics/history`.

Two ring buffers in memory have a point a second for the last hour, and a point a minute for the last day. The value of
a minute is the highest of its seconds, which for a counter is the last one. With 8 series the rings take 320 KB.
Nothing is written to the disk. Points are placed by the steady clock; a second in which the loop was blocked has no
point.
"""

from array import array
from collections.abc import Callable, Iterator
from math import isnan, nan

import msgspec

from topics.engine.engine import Engine
from topics.http.exchange import Exchange
from topics.http.server import HttpServer
from topics.system.clock import Clock
from topics.system.fair_scheduler import Task
from topics_protocol.v0 import MetricsHistory

SERIES = (
    "topics_http_requests_total", "topics_http_received_bytes_total", "topics_http_sent_bytes_total",
    "topics_wal_frames_total", "topics_commit_ms", "topics_pressure", "topics_records_live",
    "topics_dead_letters_waiting",
)  # fmt: skip
"""The recorded metrics, by their names in `/v0/metrics`."""
STEPS = {"1s": (1_000, 3_600), "1m": (60_000, 1_440)}
"""By step: its length in milliseconds, and its number of points."""
Sample = Callable[[], tuple[float, ...]]
Later = Callable[[float, Callable[[], None]], Callable[[], None]]
_encode = msgspec.json.Encoder().encode


class Ring:
    """The newest points of all series, one for each step of the clock."""

    def __init__(self, step_ms: int, points: int) -> None:
        self.step_ms = step_ms
        self.points = points
        self._values = [array("d", [nan]) * points for _ in SERIES]
        self._first = self._last = -1
        """The numbers of the first and the last step that were written."""

    def add(self, now_ms: int, sample: tuple[float, ...]) -> None:
        """Stores a sample in its step, which keeps the higher value. A sample with an earlier time is ignored."""
        step = now_ms // self.step_ms
        if self._first < 0:
            self._first, self._last = step, step - 1
        if step < self._last:
            return
        skipped = range(max(self._last + 1, step - self.points + 1), step + 1)
        for values, value in zip(self._values, sample, strict=True):
            for missing in skipped:
                values[missing % self.points] = nan
            before = values[step % self.points]
            values[step % self.points] = value if isnan(before) else max(before, value)
        self._last = step

    @property
    def end_ms(self) -> int:
        """The steady time of the last point."""
        return self._last * self.step_ms

    def newest(self, count: int) -> Iterator[tuple[str, list[float]]]:
        """Returns the last points of each series, oldest first; NaN for missing ones."""
        first = max(self._first, self._last + 1 - min(count, self.points), 0)
        for name, values in zip(SERIES, self._values, strict=True):
            yield name, [values[step % self.points] for step in range(first, self._last + 1)]


class HistoryRecorder:
    """Takes a sample every second from `start` to `stop`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.rings = {name: Ring(step_ms, points) for name, (step_ms, points) in STEPS.items()}
        self._cancel: Callable[[], None] | None = None

    def start(self, sample: Sample, later: Later) -> None:
        def tick() -> None:
            self._cancel = later(1.0, tick)
            self.take(sample())

        tick()

    def stop(self) -> None:
        if self._cancel is not None:
            self._cancel()

    def take(self, sample: tuple[float, ...]) -> None:
        now_ms = int(self._clock.monotonic() * 1000)
        for ring in self.rings.values():
            ring.add(now_ms, sample)

    def answer(self, exchange: Exchange, step: str, count: int) -> Task:
        """A task of the fair scheduler that answers a request, one series after the other."""
        ring = self.rings[step]
        age_ms = int(self._clock.monotonic() * 1000) - ring.end_ms
        series: dict[str, list[float | None]] = {}
        for name, values in ring.newest(count):
            series[name] = [None if isnan(value) else round(value, 3) for value in values]
            yield None
        answer = MetricsHistory(step_ms=ring.step_ms, end_ms=self._clock.now_ms() - age_ms, series=series)
        exchange.respond(200, _encode(answer), "application/json", (("cache-control", "no-store"),))


def sample_of(engine: Engine, http: HttpServer) -> tuple[float, ...]:
    """Returns the current values of `SERIES`."""
    counters, stats = http.counters, engine.stats()
    return (
        counters.requests, counters.bytes_in, counters.bytes_out, sum(shard.frames_total for shard in stats.shards),
        stats.throttle.commit_ms, stats.throttle.pressure, stats.records_live, stats.dead_letters_waiting,
    )  # fmt: skip
