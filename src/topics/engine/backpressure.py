"""Backpressure: measures overload and decides what to delay or refuse (load shedding).

`Governor` computes a pressure and its steps from measurements, without clock or loop; `Throttle` measures, and
`Admission` delays or refuses appends.

Ten times a second four measurements are scaled to 0..1; the largest, smoothed, is the pressure.

    event loop   how late its timer was            0 at `lag_ms`, 1 at a hundred times as much
    deliveries   topics a tick had no time for     0 at one tick's worth, 1 at a hundred
    commits      how long one took, or still takes 0 at `commit_ms`, 1 at a hundred times as much
    queue        bytes on their way to the log     as a part of what may be

The first three are on a logarithmic scale, so that each doubling counts the same.

    pressure over     until below     what is done
    20 %              15 %            deliveries are coalesced, rounds up to 20 ms apart
    40 %              30 %            the writers of the log wait up to 10 ms for company before a sync
    80 %              60 %            the lowest value waits: topics of negative priority, and routers
    95 %              71 %            appends are refused, those to topics of the highest band excepted

Each step holds until the pressure is a quarter below its threshold (hysteresis). The effect of a step grows with the
pressure. Because of the smoothing a single long pause has no effect: it takes about half a second of real overload
until low priorities wait, and a second until appends are refused. A full log refuses appends by itself, immediately.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from math import log
from typing import Final, NamedTuple

import msgspec

from topics.engine.core import EngineCore
from topics.engine.results import AppendDone, AppendResult
from topics.engine.scheduler import TOP, band_of
from topics.log.commit_thread import CommitThread
from topics.log.group_commit import Shard
from topics.model.errors import ShuttingDownError, ThrottledError, TopicsError
from topics.model.records import Batch
from topics.system.clock import Clock

SAMPLE_MS: Final = 100
SMOOTHING: Final = 0.3
"""The weight of the newest sample."""
RELEASE: Final = 0.75
"""A step ends at this fraction of its threshold."""
FULL_SCALE: Final = 100.0
BACKLOG_FLOOR: Final = 256.0
RETRY_MS_MIN: Final = 250
RETRY_MS_MAX: Final = 5_000


class Sample(NamedTuple):
    """Measurements since the previous sample."""

    loop_lag_ms: float = 0.0
    backlog: int = 0
    commit_ms: float = 0.0
    queue_part: float = 0.0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds and the limits of the steps."""

    lag_ms: float = 5.0
    commit_ms: float = 20.0
    coalesce: float = 0.20
    widen: float = 0.40
    defer: float = 0.80
    refuse: float = 0.95
    coalesce_s_max: float = 0.020
    window_s_min: float = 0.0005
    window_s_max: float = 0.010


class Decision(NamedTuple):
    """The decision, valid until the next sample."""

    pressure: float = 0.0
    coalesce_s: float = 0.0
    window_s: float = 0.0
    deferring: bool = False
    refusing: bool = False
    retry_after_ms: int = 0

    @property
    def level(self) -> int:
        """The highest step in force, from 0 for none to 4 for refusing."""
        return 4 if self.refusing else 3 if self.deferring else 2 if self.window_s else 1 if self.coalesce_s else 0


class Governor:
    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._pressure = 0.0
        self._coalescing = _Step(policy.coalesce)
        self._widening = _Step(policy.widen)
        self._deferring = _Step(policy.defer)
        self._refusing = _Step(policy.refuse)
        self._refused_samples = 0

    def step(self, sample: Sample) -> Decision:
        policy = self._policy
        worst = max(readings(sample, policy).values())
        pressure = self._pressure = SMOOTHING * worst + (1.0 - SMOOTHING) * self._pressure
        if pressure < 0.001:
            # Otherwise it would approach zero and never reach it.
            pressure = self._pressure = 0.0
        coalescing = self._coalescing.reach(pressure)
        widening = self._widening.reach(pressure)
        room_s = max(policy.window_s_max - policy.window_s_min, 0.0)
        deferring = self._deferring.reach(pressure) > 0.0
        refusing = self._refusing.reach(pressure) > 0.0
        self._refused_samples = self._refused_samples + 1 if refusing else 0
        return Decision(
            pressure=pressure,
            coalesce_s=coalescing * policy.coalesce_s_max,
            window_s=policy.window_s_min + widening * room_s if widening else 0.0,
            deferring=deferring,
            refusing=refusing,
            retry_after_ms=self._retry_after_ms(),
        )

    def _retry_after_ms(self) -> int:
        """The retry delay doubles with each second of refusing."""
        if not self._refused_samples:
            return 0
        doublings = min(self._refused_samples * SAMPLE_MS // 1000, 10)
        return min(RETRY_MS_MIN << doublings, RETRY_MS_MAX)


class _Step:
    """A measure that starts at a threshold of the pressure and ends clearly below it."""

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self._end = begin * RELEASE
        self._on = False

    def reach(self, pressure: float) -> float:
        """The strength of the step: 0 if it is not in force, otherwise up to 1."""
        self._on = pressure >= self._begin or (self._on and pressure >= self._end)
        if not self._on:
            return 0.0
        return max((pressure - self._end) / (1.0 - self._end), 0.01)


def readings(sample: Sample, policy: Policy) -> dict[str, float]:
    """The pressure by source, each from 0 (none) to 1."""
    return {
        "event_loop": _scaled(sample.loop_lag_ms, policy.lag_ms),
        "deliveries": _scaled(sample.backlog, BACKLOG_FLOOR),
        "commits": _scaled(sample.commit_ms, policy.commit_ms),
        "queue": min(max(sample.queue_part, 0.0), 1.0),
    }


def _scaled(value: float, floor: float) -> float:
    return min(log(value / floor) / log(FULL_SCALE), 1.0) if value > floor else 0.0


# Admission of appends under pressure.
#
# Normally every append is admitted. While the governor refuses, an append gets 429 with the time after which to try
# again; topics of the highest band are admitted until the log itself is full. Callers that prefer to wait
# (`disable_backpressure`) are queued here, in order, and get their waiting time.
#
# Waiting requests hold memory, so they are bounded like the log's queue: beyond that many bytes, and after half a
# minute, they are refused like the others.

PATIENCE_S: Final = 30.0
FULL_RETRY_MS: Final = 100
"""The retry delay when the queue is full; short, because the queue is being written."""

Append = Callable[[str, Batch, AppendDone], None]


class _Parked(msgspec.Struct, gc=False):
    name: str
    batch: Batch
    done: AppendDone
    since_s: float
    size: int


class Admission:
    def __init__(self, core: EngineCore, seconds: Callable[[], float], append: Append) -> None:
        self._core = core
        self._seconds = seconds
        self._append = append
        self._parked: deque[_Parked] = deque()
        self._parked_bytes = 0
        self.refusing = False
        """Whether every append is checked here, not only patient ones."""
        self._retry_after_ms = 0
        self.refused_total = 0
        self.parked_total = 0
        self.wait_ms_total = 0.0

    @property
    def parked(self) -> int:
        return len(self._parked)

    def set_policy(self, refusing: bool, retry_after_ms: int) -> None:
        self.refusing = refusing
        self._retry_after_ms = retry_after_ms
        self.let_in()

    def keeps_waiting(self, name: str, batch: Batch, done: AppendDone) -> bool:
        """Returns whether an append is queued for later. Raises if it is refused.

        Called for patient appends, and for every append while the governor refuses.
        """
        if not batch.disable_backpressure:
            if not self._lets_in(name):
                self.refused_total += 1
                raise ThrottledError.under_pressure(self._retry_after_ms)
            return False
        if not self._parked and self._lets_in(name) and self._has_room(name):
            return False
        self._park(name, batch, done)
        return True

    def let_in(self) -> None:
        """Admits waiting appends in order while there is room. Called whenever there may be room."""
        if not self._parked:
            return
        now = self._seconds()
        while self._parked:
            first = self._parked[0]
            if self._lets_in(first.name) and self._has_room(first.name):
                self._resume(self._unpark(), now)
            elif now - first.since_s >= PATIENCE_S:
                self.refused_total += 1
                self._unpark().done(ThrottledError.under_pressure(self._retry_after_ms or FULL_RETRY_MS))
            else:
                return

    def close(self) -> None:
        """Refuses all waiting appends, because the engine is closing; they were not accepted yet."""
        while self._parked:
            self._unpark().done(ShuttingDownError())

    def _lets_in(self, name: str) -> bool:
        if not self.refusing:
            return True
        topic = self._core.directory.find(name)
        return topic is not None and band_of(self._core.scheduler.priority(topic)) == TOP

    def _has_room(self, name: str) -> bool:
        core = self._core
        topic = core.directory.find(name)
        number = topic.shard if topic is not None else core.shard_number(core.next_topic_id)
        needs_log = topic is None or not topic.created or topic.staged_config.durability.logged
        return not needs_log or not core.shards[number].full

    def _park(self, name: str, batch: Batch, done: AppendDone) -> None:
        self._core.check_accepting()
        size = sum([len(record.data) + len(record.meta or b"") for record in batch.records])
        if self._parked_bytes + size > self._core.options.commit_queue_bytes and self._parked:
            self.refused_total += 1
            raise ThrottledError.under_pressure(self._retry_after_ms or FULL_RETRY_MS)
        self._parked.append(_Parked(name, batch, done, self._seconds(), size))
        self._parked_bytes += size
        self.parked_total += 1

    def _unpark(self) -> _Parked:
        first = self._parked.popleft()
        self._parked_bytes -= first.size
        return first

    def _resume(self, parked: _Parked, now: float) -> None:
        waited_ms = (now - parked.since_s) * 1000.0
        self.wait_ms_total += waited_ms

        def done(outcome: AppendResult | TopicsError) -> None:
            if isinstance(outcome, AppendResult):
                outcome = msgspec.structs.replace(outcome, throttle_wait_ms=waited_ms)
            parked.done(outcome)

        try:
            self._append(parked.name, parked.batch, done)
        except TopicsError as error:
            parked.done(error)


# Drives the governor: ten times a second measures, passes the values to it, and applies its decision.
#
# All measured values exist anyway: the delay of this timer, the scheduler's backlog, the writers' counters. Request
# paths do no work for it.

_log = logging.getLogger(__name__)


class ThrottleStats(msgspec.Struct, frozen=True):
    """The current pressure and the resulting limits."""

    pressure: float
    """From 0 to 1."""
    throttle_level: int
    """0 nothing, 1 coalescing, 2 widening commits, 3 deferring the lowest value, 4 refusing."""
    readings: dict[str, float]
    """The parts of the pressure in the last sample, each from 0 to 1."""
    loop_lag_ms: float
    commit_ms: float
    coalesce_window_ms: float
    commit_window_ms: float
    """Extra commit delay of the log writers under pressure; otherwise 0."""
    topics_waiting: int
    topics_deferred: int
    watchers_told_total: int
    wakes_coalesced_total: int
    topics_deferred_total: int
    appends_refused_total: int
    appends_parked: int
    appends_parked_total: int
    append_wait_ms_total: float


class Throttle:
    def __init__(self, core: EngineCore, admission: Admission, clock: Clock) -> None:
        options = core.options
        self._core = core
        self._admission = admission
        self._clock = clock
        self._policy = Policy(
            lag_ms=options.pressure_lag_ms,
            commit_ms=options.pressure_commit_ms,
            coalesce=options.pressure_coalesce_percent / 100.0,
            widen=options.pressure_widen_percent / 100.0,
            defer=options.pressure_defer_percent / 100.0,
            refuse=options.pressure_refuse_percent / 100.0,
            coalesce_s_max=options.coalesce_max_ms / 1e3,
            window_s_min=options.commit_window_us / 1e6,
            window_s_max=options.commit_window_max_us / 1e6,
        )
        self._governor = Governor(self._policy)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._meters = [_Meter(shard) for shard in core.shards]
        self.sample = Sample()
        self.decision = Decision()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._meters = [_Meter(shard) for shard in self._core.shards]
        self._schedule()

    def stop(self) -> None:
        """Releases all waiting appends."""
        if self._timer is not None:
            self._timer.cancel()
        self._obey(Decision())

    def measure(self) -> Sample:
        """Measures all values. A test may replace it."""
        now = self._clock.monotonic()
        lag_ms = max(now - self._due_s, 0.0) * 1000.0 if self._due_s else 0.0
        commit_ms = max([meter.read(now) for meter in self._meters], default=0.0)
        queue_part = max([shard.queue_part for shard in self._core.shards], default=0.0)
        return Sample(lag_ms, self._core.scheduler.backlog, commit_ms, queue_part)

    def tick(self) -> None:
        self.sample = self.measure()
        self._obey(self._governor.step(self.sample))

    def stats(self) -> ThrottleStats:
        decision, scheduler, admission = self.decision, self._core.scheduler, self._admission
        return ThrottleStats(
            decision.pressure, decision.level, readings(self.sample, self._policy), self.sample.loop_lag_ms,
            self.sample.commit_ms, decision.coalesce_s * 1e3, decision.window_s * 1e3, scheduler.waiting,
            scheduler.put_off, scheduler.told_total, scheduler.coalesced_total, scheduler.deferred_total,
            admission.refused_total, admission.parked, admission.parked_total, admission.wait_ms_total,
        )  # fmt: skip

    def _obey(self, decision: Decision) -> None:
        before, self.decision = self.decision, decision
        self._core.scheduler.set_policy(decision.coalesce_s, decision.deferring)
        if decision.window_s != before.window_s:
            for shard in self._core.shards:
                if isinstance(shard.committer, CommitThread):
                    shard.committer.widen(decision.window_s)
        self._admission.set_policy(decision.refusing, decision.retry_after_ms)
        if decision.level != before.level and max(decision.level, before.level) >= 3:
            _log.warning(
                "backpressure level changed",
                extra={
                    "throttle_level": decision.level,
                    "pressure": round(decision.pressure, 3),
                    **self.sample._asdict(),
                },
            )

    def _schedule(self) -> None:
        assert self._loop is not None
        self._due_s = self._clock.monotonic() + SAMPLE_MS / 1000.0
        self._timer = self._loop.call_later(SAMPLE_MS / 1000.0, self._tick_and_go_on)

    def _tick_and_go_on(self) -> None:
        try:
            self.tick()
        except Exception:
            _log.exception("backpressure measurement failed")
        self._schedule()


class _Meter:
    """Measures the duration of a shard's commits, from its writer's counters."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._syncs = shard.writer.sync_latency.total
        self._spent_us = shard.writer.sync_latency.sum_us
        self._commits = shard.writer.commits
        self._stuck_since: float | None = None

    def read(self, now: float) -> float:
        """Returns milliseconds: the mean of the syncs since the last reading, or the time without progress."""
        writer = self._shard.writer
        syncs, spent_us = writer.sync_latency.total, writer.sync_latency.sum_us
        mean_ms = (spent_us - self._spent_us) / (syncs - self._syncs) / 1000.0 if syncs > self._syncs else 0.0
        self._syncs, self._spent_us = syncs, spent_us
        moved = writer.commits != self._commits or not self._shard.queue_depth
        self._commits = writer.commits
        if moved:
            self._stuck_since = None
        elif self._stuck_since is None:
            # Requests may have arrived just now, so their waiting time counts from here.
            self._stuck_since = now
        stuck_ms = 0.0 if self._stuck_since is None else (now - self._stuck_since) * 1000.0
        return max(mean_ms, stuck_ms)
