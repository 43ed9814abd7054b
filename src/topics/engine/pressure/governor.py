"""How hard the server is pressed, and what it does about it: decisions only, no clock, no loop.

Ten times a second four readings become numbers from 0 to 1; the largest, smoothed, is the pressure.

    event loop   how late its timer was            0 at `lag_ms`, 1 at a hundred times as much
    deliveries   topics a tick had no time for     0 at one tick's worth, 1 at a hundred
    commits      how long one took, or still takes 0 at `commit_ms`, 1 at a hundred times as much
    queue        bytes on their way to the log     as a part of what may be

The first three are on a logarithmic scale, because being twice as late is one step worse, wherever one starts.

    pressure over     until below     what is done
    20 %              15 %            deliveries are coalesced, rounds up to 20 ms apart
    40 %              30 %            the writers of the log wait up to 10 ms for company before a sync
    80 %              60 %            the lowest value waits: topics of negative priority, and routers
    95 %              71 %            appends are refused, those to topics of the highest band excepted

Each step holds until the pressure is a quarter below where it began, so that nothing flutters. What a step does grows
with the pressure from there. Smoothing makes one long pause harmless, whatever its length: it takes about half a second
of real overload until low value waits, and a second until something is refused. A log that is full refuses by itself,
at once.
"""

from math import log
from typing import Final, NamedTuple

import msgspec

SAMPLE_MS: Final = 100
SMOOTHING: Final = 0.3
"""How much of the pressure is the newest sample's."""
RELEASE: Final = 0.75
"""A step ends at this part of the pressure where it began."""
FULL_SCALE: Final = 100.0
BACKLOG_FLOOR: Final = 256.0
RETRY_MS_MIN: Final = 250
RETRY_MS_MAX: Final = 5_000


class Sample(NamedTuple):
    """What was measured since the last one."""

    loop_lag_ms: float = 0.0
    backlog: int = 0
    commit_ms: float = 0.0
    queue_part: float = 0.0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Where each step begins and how far it goes."""

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
    """What holds until the next sample."""

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
            # Otherwise it would approach zero for ever and never be it.
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
        """The longer it has been refusing, the longer it asks to be left alone: twice as long after each second."""
        if not self._refused_samples:
            return 0
        doublings = min(self._refused_samples * SAMPLE_MS // 1000, 10)
        return min(RETRY_MS_MIN << doublings, RETRY_MS_MAX)


class _Step:
    """One thing that is done from some pressure on, and until the pressure is clearly below it."""

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self._end = begin * RELEASE
        self._on = False

    def reach(self, pressure: float) -> float:
        """How far to go: 0 when the step is not in force, otherwise more than 0 and up to 1."""
        self._on = pressure >= self._begin or (self._on and pressure >= self._end)
        if not self._on:
            return 0.0
        return max((pressure - self._end) / (1.0 - self._end), 0.01)


def readings(sample: Sample, policy: Policy) -> dict[str, float]:
    """What was measured, each as a number from 0 for no pressure to 1."""
    return {
        "event_loop": _scaled(sample.loop_lag_ms, policy.lag_ms),
        "deliveries": _scaled(sample.backlog, BACKLOG_FLOOR),
        "commits": _scaled(sample.commit_ms, policy.commit_ms),
        "queue": min(max(sample.queue_part, 0.0), 1.0),
    }


def _scaled(value: float, floor: float) -> float:
    return min(log(value / floor) / log(FULL_SCALE), 1.0) if value > floor else 0.0
