"""The governor's eyes and hands: measures ten times a second, asks it, and does what it says.

Everything measured is there anyway: how late this timer was, what the scheduler left over, what the writers count. The
paths that requests take do nothing for it.
"""

import asyncio
import logging

import msgspec

from topics.engine.core import EngineCore
from topics.engine.pressure.admission import Admission
from topics.engine.pressure.governor import SAMPLE_MS, Decision, Governor, Policy, Sample, readings
from topics.storage.commit import Shard
from topics.storage.writers import ThreadCommitter
from topics.system.clock import Clock

_log = logging.getLogger(__name__)


class ThrottleStats(msgspec.Struct, frozen=True):
    """What pressure there is, and what it leads to."""

    pressure: float
    """From 0 to 1."""
    throttle_level: int
    """0 nothing, 1 coalescing, 2 widening commits, 3 deferring the lowest value, 4 refusing."""
    readings: dict[str, float]
    """The parts of the pressure, each from 0 to 1, as they were in the last sample."""
    loop_lag_ms: float
    commit_ms: float
    coalesce_window_ms: float
    commit_window_ms: float
    """What writers of the log wait for company, beyond the usual; 0 when they do not."""
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
        """Lets everything go that still waits."""
        if self._timer is not None:
            self._timer.cancel()
        self._obey(Decision())

    def measure(self) -> Sample:
        """One look at everything. A test may put its own in this place."""
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
                if isinstance(shard.committer, ThreadCommitter):
                    shard.committer.widen(decision.window_s)
        self._admission.set_policy(decision.refusing, decision.retry_after_ms)
        if decision.level != before.level and max(decision.level, before.level) >= 3:
            _log.warning(
                "pressure changed what is served",
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
            _log.exception("measuring the pressure failed")
        self._schedule()


class _Meter:
    """How long a shard's commits take, from what its writer counts anyway."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._syncs = shard.writer.sync_latency.total
        self._spent_us = shard.writer.sync_latency.sum_us
        self._commits = shard.writer.commits
        self._stuck_since: float | None = None

    def read(self, now: float) -> float:
        """Milliseconds: the mean of the syncs since the last reading, or the time that nothing has moved."""
        writer = self._shard.writer
        syncs, spent_us = writer.sync_latency.total, writer.sync_latency.sum_us
        mean_ms = (spent_us - self._spent_us) / (syncs - self._syncs) / 1000.0 if syncs > self._syncs else 0.0
        self._syncs, self._spent_us = syncs, spent_us
        moved = writer.commits != self._commits or not self._shard.queue_depth
        self._commits = writer.commits
        if moved:
            self._stuck_since = None
        elif self._stuck_since is None:
            # What waits may have come this moment: it counts from now on.
            self._stuck_since = now
        stuck_ms = 0.0 if self._stuck_since is None else (now - self._stuck_since) * 1000.0
        return max(mean_ms, stuck_ms)
