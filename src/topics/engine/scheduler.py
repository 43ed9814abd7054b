"""Notification scheduler: changed topics wait here, by priority, until their watchers are notified.

Waiting topics are in five bands of effective priority (see below). A round gives every band a number of turns, more to
higher bands, and within a band the longest waiting topic is next. So important topics are served first, but a topic
behind k others is served after at most k + 1 rounds, regardless of later arrivals; a change of its band may cost one
more. In addition, waiting lifts a topic into higher bands.

A tick of the loop does a bounded amount of this work and then lets the loop serve its sockets.

Under pressure (`engine.backpressure`) two things change. Rounds have a minimum interval, so that several changes of a
topic become one delivery; the highest band is exempt. And the lowest band, priorities below zero, is deferred until the
pressure is gone or age has lifted its topics out of it, which takes ten seconds at most. Nothing is ever dropped: a
topic that waits longer has more to report, once.
"""

import heapq
import logging
from collections.abc import Callable, Hashable, Iterable
from itertools import count, islice, pairwise
from operator import attrgetter
from typing import Final, Protocol

from topics.engine.topic import Topic
from topics.model.limits import MAX_PRIORITY, MIN_PRIORITY
from topics.system.events import Event

# Effective priority: the order in which topics are served, computed on demand and never stored.
#
#     effective = manual, or else recency     + age
#     manual    = priority, clamped to -1000 .. 1000
#     recency   = 500 * 2 ** -(ms since the topic was last consumed / 30,000), and 0 from five minutes on
#     age       = 100 for every second that something has waited to be served, 1000 at most
#
# A manual priority replaces recency, so recent reads do not affect it. Age is always added: in ten seconds even the
# lowest topic gains the whole positive half of the range.
#
# The three terms weigh the same. Everything is integer arithmetic, with 2 ** -x from a table: this runs for every
# waiting topic on every aging tick.

AUTO_MAX: Final = 500
"""A topic that was just read has the priority of a manual 500, which leaves higher values for operators."""
HALF_LIFE_MS: Final = 30_000
AUTO_FLOOR_MS: Final = 300_000
"""Ten half-lives, after which the value rounds to 0."""
AGE_PER_SECOND: Final = 100
AGE_CAP_MS: Final = 10_000

_STEPS: Final = 64
_FRACTION_BITS: Final = 16


def _decay_table() -> tuple[tuple[int, int], ...]:
    """For each 64th of a half-life: 2 ** -x in fixed point, and its decrease until the next step."""
    values = [round(2 ** (_FRACTION_BITS - step / _STEPS)) for step in range(_STEPS + 1)]
    return tuple((value, value - following) for value, following in pairwise(values))


_DECAY: Final = _decay_table()


def effective_priority(
    config_priority: int | None,
    auto_priority: bool,
    last_consumed_ms: int | None,
    enqueued_ms: int | None,
    now_ms: int,
) -> int:
    """Returns the priority at `now_ms`; None means that a topic was never read, or that no change waits."""
    if config_priority is not None:
        base = min(max(config_priority, MIN_PRIORITY), MAX_PRIORITY)
    elif auto_priority and last_consumed_ms is not None:
        base = _recency(now_ms - last_consumed_ms)
    else:
        base = 0
    return base if enqueued_ms is None else base + _age_boost(now_ms - enqueued_ms)


def _recency(elapsed_ms: int) -> int:
    if elapsed_ms >= AUTO_FLOOR_MS:
        return 0
    # A clock that was set back must not lift a topic above the maximum.
    halvings, rest_ms = divmod(max(elapsed_ms, 0), HALF_LIFE_MS)
    step, within = divmod(rest_ms * _STEPS, HALF_LIFE_MS)
    value, fall = _DECAY[step]
    exact = AUTO_MAX * (value - fall * within // HALF_LIFE_MS)
    # Adding half of the last kept bit before the shift rounds to the nearest.
    shift = _FRACTION_BITS + halvings
    return (exact + (1 << (shift - 1))) >> shift


def _age_boost(waited_ms: int) -> int:
    return min(max(waited_ms, 0), AGE_CAP_MS) * AGE_PER_SECOND // 1000


_log = logging.getLogger(__name__)

BAND_FLOORS: Final = (750, 500, 250, 0)
"""The lowest priority of each band except the last, which has all priorities below zero."""
BAND_TURNS: Final = (16, 8, 4, 2, 1)
"""The number of turns of each band in a round."""
TOP: Final = 0
LOWEST: Final = len(BAND_FLOORS)

DELIVERIES_A_TICK: Final = 1024
"""The maximum number of watchers notified in one tick. A topic is never split: the last one may exceed it."""
TICK_S: Final = 0.005
"""The duration after which a tick ends early: one watcher may stand for many."""
AGE_TICK_MS: Final = 50
AGED_A_TICK: Final = 1000
"""The number of longest waiting topics examined in an ageing tick, which bounds its cost."""
DEMOTION: Final = 1000
"""The reduction of priority of background work, such as a router's, while pressure is high."""

_CONFIG = attrgetter("config")
_LAST_CONSUMED = attrgetter("last_consumed_ts")

Run = Callable[[], None]


class Timer(Protocol):
    def cancel(self) -> None: ...


class NoTimer:
    """The timer of an engine without a loop; it never fires."""

    def cancel(self) -> None: ...


class _Place:
    """The scheduling state of a topic."""

    __slots__ = ("band", "put_off", "since_ms", "ticket")

    def __init__(self, ticket: int, since_ms: int, band: int) -> None:
        self.ticket = ticket
        self.since_ms = since_ms
        self.band = band
        self.put_off = False
        """Whether it was counted as delayed by pressure."""


def band_of(priority: int) -> int:
    for band, floor in enumerate(BAND_FLOORS):
        if priority >= floor:
            return band
    return LOWEST


class Scheduler:
    """`defer` runs a function later in this tick of the loop, `later` after some seconds. Without a loop there are no
    timers, and a caller that moves the clock calls `run`.
    """

    def __init__(self, now_ms: Callable[[], int], seconds: Callable[[], float], defer: Callable[[Run], object]) -> None:
        self._now_ms = now_ms
        self._seconds = seconds
        self._defer = defer
        self.later: Callable[[float, Run], Timer] = lambda seconds, function: NoTimer()
        self.topic_put_off: Event[Topic] = Event()
        """Emitted when pressure defers a topic, once for each wait."""
        self.tick_ended: Event[[]] = Event()
        """Emitted after the notifications of a tick; their effects are batched."""
        self._waiting: dict[Topic, _Place | None] = {}
        """All waiting topics, longest first; None for arrivals of this tick, which have no place yet."""
        self._fresh: list[Topic] = []
        self._work_since: dict[Hashable, int] = {}
        self._bands: list[list[tuple[int, Topic]]] = [[] for _ in BAND_TURNS]
        """Heaps by ticket. An entry is valid while the topic's place has this ticket and this band."""
        self._sizes = [0] * len(BAND_TURNS)
        self._turns = list(BAND_TURNS)
        self._tickets = 0
        self._armed = False
        self._timer: Timer | None = None
        self._aged_ms = 0
        self._window_s = 0.0
        self._gate_s = 0.0
        """Until this time only the highest band is served."""
        self.deferring = False
        """Whether the lowest band is deferred."""
        self.waited_ms = 0
        """The waiting time of the topic being served, for its watchers."""
        self.backlog = 0
        """The number of topics that the last tick had no time for."""
        self.told_total = 0
        self.coalesced_total = 0
        self.deferred_total = 0

    # Public methods

    def add(self, topic: Topic) -> None:
        """Queues a topic, once however often it changes until its turn."""
        if topic in self._waiting:
            self.coalesced_total += 1
            return
        self._waiting[topic] = None
        self._fresh.append(topic)
        if not self._armed:
            self._arm()

    def priority(self, topic: Topic) -> int:
        """Returns the topic's current effective priority, including age."""
        place = self._waiting.get(topic)
        return self._priority(topic, None if place is None else place.since_ms, self._now_ms())

    def may_run(self, topic: Topic, since_ms: int | None = None) -> bool:
        """Returns whether background work for a topic, such as forwarding its records, may be done now.

        False only while high pressure defers low priorities; callers retry a little later. `since_ms` is the time at
        which the work became possible (`EngineCore.now`): waiting adds age, so the answer becomes True within twenty
        seconds even if the pressure lasts.
        """
        if not self.deferring:
            return True
        now = self._now_ms()
        # Not by `effective_priority` alone, whose maximum age equals the reduction for background work.
        waited = 0 if since_ms is None else max(now - since_ms, 0) // 10
        return self._priority(topic, None, now) + waited >= DEMOTION

    def puts_off(self, work: Hashable, topic: Topic) -> bool:
        """Returns whether background work has to wait.

        Callers retry until it may run; the start of the wait is stored here.
        """
        if not self.deferring:
            return False
        since_ms = self._work_since.setdefault(work, self._now_ms())
        if not self.may_run(topic, since_ms):
            return True
        del self._work_since[work]
        return False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def put_off(self) -> int:
        """The number of topics deferred by pressure."""
        return self._sizes[LOWEST] if self.deferring else 0

    def set_policy(self, window_s: float, deferring: bool) -> None:
        """Sets the minimum interval of rounds, and whether the lowest band is deferred."""
        eased = window_s < self._window_s or (self.deferring and not deferring)
        self._window_s = window_s
        self._gate_s = min(self._gate_s, self._seconds() + window_s)
        self.deferring = deferring
        if not deferring:
            self._work_since.clear()
        if eased and self._waiting:
            self._arm()

    # Notification

    def run(self) -> None:
        """Notifies as many topics as fit into one tick."""
        self._armed = False
        if len(self._fresh) == len(self._waiting) and not self._window_s and not self.deferring:
            # The usual case: no pressure, and no topics left from an earlier tick.
            self._serve_fresh()
        else:
            self._serve_bands()
        self.tick_ended.emit()

    def _serve_fresh(self) -> None:
        """Serves the arrivals of this tick, in rounds.

        Usually there is time for all of them, so none needs a place in the queue; the others get one.
        """
        fresh, self._fresh = self._fresh, []
        if len(fresh) > 1:
            fresh = self._in_rounds(fresh)
        begun, reported = self._seconds(), 0
        self.backlog = 0
        seconds = self._seconds
        for number, topic in enumerate(fresh):
            if reported >= DELIVERIES_A_TICK or seconds() - begun >= TICK_S:
                self._fresh = fresh[number:] + self._fresh
                self._place_fresh(self._now_ms())
                self.backlog = len(fresh) - number
                self._arm()
                return
            reported += self._serve(topic, 0)

    def _in_rounds(self, fresh: list[Topic]) -> list[Topic]:
        """Sorts topics into the order in which rounds serve them.

        Topics that a thousand routers copy into mostly share a config and a read time, so few priorities are computed.
        """
        now_ms = self._now_ms()
        if len(set(map(id, map(_CONFIG, fresh)))) == 1:
            # Within one config, priorities lie between those of the topics read first and last.
            ends = (min(fresh, key=_LAST_CONSUMED), max(fresh, key=_LAST_CONSUMED))
            first, last = [band_of(self._priority(topic, None, now_ms)) for topic in ends]
            if first == last:
                return fresh
        kinds = {(id(topic.config), topic.last_consumed_ts): topic for topic in fresh}
        bands = {kind: band_of(self._priority(topic, None, now_ms)) for kind, topic in kinds.items()}
        if len(set(bands.values())) == 1:
            return fresh
        lines: list[list[Topic]] = [[] for _ in BAND_TURNS]
        for topic in fresh:
            lines[bands[id(topic.config), topic.last_consumed_ts]].append(topic)
        ordered: list[Topic] = []
        for number in count():
            for line, turns in zip(lines, BAND_TURNS, strict=True):
                ordered += line[number * turns : (number + 1) * turns]
            if len(ordered) == len(fresh):
                break
        return ordered

    def _serve_bands(self) -> None:
        now_ms = self._now_ms()
        self._place_fresh(now_ms)
        self._age(now_ms)
        begun = self._seconds()
        gated = self._window_s > 0.0 and begun < self._gate_s
        reported, below_top = 0, False
        while reported < DELIVERIES_A_TICK and self._seconds() - begun < TICK_S:
            topic = self._next(gated)
            if topic is None:
                break
            place = self._waiting[topic]
            assert place is not None
            self._sizes[place.band] -= 1
            below_top = below_top or place.band != TOP
            reported += self._serve(topic, now_ms - place.since_ms)
        self.backlog = self._servable(gated)
        if below_top and self._window_s and not self.backlog:
            # Only after all were served: a backlog coalesces changes by itself, and an interval would let it grow.
            self._gate_s = self._seconds() + self._window_s
        self._go_on(gated)

    def _serve(self, topic: Topic, waited_ms: int) -> int:
        """Notifies all watchers of a topic; returns their number."""
        del self._waiting[topic]
        waiters, topic.waiters = topic.waiters, None
        if not waiters:
            return 1
        self.waited_ms = waited_ms
        for waiter in waiters:
            try:
                waiter()
            except Exception:
                # A failing watcher must not block the notifications of others.
                _log.exception("watcher failed")
        self.told_total += len(waiters)
        return len(waiters)

    def _next(self, gated: bool) -> Topic | None:
        """Returns the next topic to serve: the longest waiting topic of the highest band with turns left."""
        bands = self._open_bands(gated)
        for _ in range(2):
            for band in bands:
                if self._sizes[band] and self._turns[band]:
                    self._turns[band] -= 1
                    return self._pop(band)
            # The round has ended.
            self._turns = list(BAND_TURNS)
        return None

    def _pop(self, band: int) -> Topic:
        heap = self._bands[band]
        while True:
            ticket, topic = heapq.heappop(heap)
            place = self._waiting.get(topic)
            if place is not None and place.ticket == ticket and place.band == band:
                return topic

    def _open_bands(self, gated: bool) -> Iterable[int]:
        if gated:
            return (TOP,)
        return range(LOWEST if self.deferring else LOWEST + 1)

    def _servable(self, gated: bool) -> int:
        return sum([self._sizes[band] for band in self._open_bands(gated)])

    def _go_on(self, gated: bool) -> None:
        """Schedules the rest: in the next tick, or when the interval ends or ageing may have lifted a topic."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.backlog or self._fresh:
            self._arm()
        elif self._waiting:
            wait_s = max(self._gate_s - self._seconds(), 0.0) if gated else AGE_TICK_MS / 1000.0
            self._timer = self.later(wait_s, self.run)

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._defer(self.run)

    # Places

    def _place_fresh(self, now_ms: int) -> None:
        fresh, self._fresh = self._fresh, []
        for topic in fresh:
            self._tickets += 1
            place = _Place(self._tickets, now_ms, band_of(self._priority(topic, None, now_ms)))
            self._waiting[topic] = place
            self._enter(topic, place)

    def _age(self, now_ms: int) -> None:
        if now_ms - self._aged_ms < AGE_TICK_MS:
            return
        self._aged_ms = now_ms
        for topic, place in list(islice(self._waiting.items(), AGED_A_TICK)):
            if place is None or place.since_ms == now_ms:
                continue
            band = band_of(self._priority(topic, place.since_ms, now_ms))
            if band != place.band:
                self._sizes[place.band] -= 1
                place.band = band
                self._enter(topic, place)
            elif band == LOWEST:
                self._note_put_off(topic, place)

    def _enter(self, topic: Topic, place: _Place) -> None:
        heapq.heappush(self._bands[place.band], (place.ticket, topic))
        self._sizes[place.band] += 1
        if place.band == LOWEST:
            self._note_put_off(topic, place)

    def _note_put_off(self, topic: Topic, place: _Place) -> None:
        if self.deferring and not place.put_off:
            place.put_off = True
            self.deferred_total += 1
            for reported in self.topic_put_off.listeners:
                try:
                    reported(topic)
                except Exception:
                    _log.exception("watcher failed")

    def _priority(self, topic: Topic, since_ms: int | None, now_ms: int) -> int:
        config = topic.config
        return effective_priority(
            config.priority, config.auto_priority, topic.last_consumed_ts or None, since_ms, now_ms
        )
