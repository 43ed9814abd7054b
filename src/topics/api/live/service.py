"""Everything of live delivery that a server has once."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from topics.api.auth import KeyRing
from topics.api.live.connections import Connections
from topics.api.live.feeds import Feeds
from topics.api.live.run_queue import RunQueue
from topics.api.live.sessions import Sessions
from topics.api.live.sink import SlowLimits, Sweep
from topics.core.errors import NotReadyError
from topics.engine.engine import Engine
from topics.engine.topic import Topic
from topics.streams.search.service import StreamSearch
from topics.system.clock import Clock
from topics.system.dice import Dice

HEARTBEAT_MS_MAX = 60_000
_SWEEP_S = 0.25


class LiveLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of live delivery; `topics.config` explains each. 0 is no limit for those that begin with `max`."""

    max_watch_sessions: int = 10_000
    max_watch_sessions_per_key: int = 1_000
    max_sse_connections: int = 10_000
    max_sse_connections_per_key: int = 1_000
    max_watch_topics: int = 256
    watch_session_ttl_ms: int = 300_000
    buffer_grace_ms: int = 5_000
    slow_consumer_timeout_ms: int = 30_000
    test_min_heartbeat_ms: int = 1_000

    def clamp_heartbeat_ms(self, heartbeat_ms: int) -> int:
        return min(max(heartbeat_ms, self.test_min_heartbeat_ms), HEARTBEAT_MS_MAX)


class Paced(Protocol):
    def pace(self, retry_after_ms: int) -> None:
        """What this connection waits for is late because of pressure, by so much at the most."""
        ...


class Live:
    """Made with the server, of use once `open` was given the engine."""

    def __init__(self, limits: LiveLimits, keys: KeyRing, clock: Clock, dice: Dice) -> None:
        self.limits = limits
        self.keys = keys
        self.clock = clock
        self.run_queue = RunQueue(_soon, _later, clock.monotonic)
        self.slow_limits = SlowLimits(
            grace_s=limits.buffer_grace_ms / 1000.0, timeout_s=limits.slow_consumer_timeout_ms / 1000.0
        )
        shortest_s = min(limits.test_min_heartbeat_ms, max(limits.slow_consumer_timeout_ms, 1)) / 1000.0
        self.sweep = Sweep(self.run_queue, min(_SWEEP_S, shortest_s / 4))
        self.connections = Connections(limits.max_sse_connections, limits.max_sse_connections_per_key)
        self.sessions = Sessions(
            limits.max_watch_sessions, limits.watch_session_ttl_ms, clock, dice, limits.max_watch_sessions_per_key
        )
        self._feeds: Feeds | None = None
        self.search: Callable[[Engine], StreamSearch] | None = None
        """Whoever finds what matches a filter."""
        self.paced: dict[int, set[Paced]] = {}
        """Connections besides those of feeds that are told when pressure puts their topic off, by its id."""

    def open(self, engine: Engine) -> None:
        self._feeds = feeds = Feeds(engine, self.run_queue)

        def put_off(topic: Topic) -> None:
            feeds.put_off(topic)
            for paced in list(self.paced.get(topic.id, ())):
                paced.pace(feeds.put_off_ms(topic))

        engine.core.scheduler.on_put_off.append(put_off)

    @property
    def feeds(self) -> Feeds:
        if self._feeds is None:
            raise NotReadyError(0.0)
        return self._feeds


def _soon(run: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(run)


def _later(seconds: float, run: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, run)
