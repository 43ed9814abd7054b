"""Feeds by topic: one waiter per topic, `Feeds.subscribe` for new followers, and the live state of a server."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from topics.api.auth import KeyRing
from topics.api.live.feed import Feed, Subscription
from topics.api.live.frames import Cursor, FrameCache, Kin, Source
from topics.api.live.run_queue import RunQueue
from topics.api.live.sink import Connections, Sink, SlowLimits, Sweep
from topics.api.live.watch_sessions import Sessions
from topics.engine.engine import Engine
from topics.engine.topic import Topic
from topics.model.errors import NotReadyError
from topics.search.service.search_service import StreamSearch
from topics.system.clock import Clock
from topics.system.entropy import Entropy


class TopicFeeds:
    """The feeds of one topic. A later topic of the same name has other feeds."""

    __slots__ = (
        "_by_source", "_deleted", "_feeds", "_feeds_of_all", "_left", "cache", "engine", "run_queue", "topic",
        "waited_ms",
    )  # fmt: skip

    def __init__(self, feeds: "Feeds", topic: Topic) -> None:
        self._feeds = feeds
        self.engine = feeds.engine
        self.run_queue = feeds.run_queue
        self.cache = feeds.cache
        self.topic = topic
        self._by_source: dict[Source, Kin] = {}
        self._feeds_of_all: list[Feed] = []
        """The feeds of all sources."""
        self.waited_ms = 0
        """How long backpressure delayed the last notification."""
        self._deleted = False
        self._left = False
        self.topic.notify_on_change(self._woken)

    def feed(self, source: Source) -> Feed:
        """A feed of the source with room for one more follower."""
        kin = self._by_source.get(source)
        if kin is None:
            kin = self._by_source[source] = Kin()
        found = next((feed for feed in kin.feeds if feed.has_room), None)
        if found is None:
            found = Feed(self, source, kin)
            kin.feeds.append(found)
            self._feeds_of_all.append(found)
            found.changed()
        return found

    def __iter__(self) -> Iterator[Feed]:
        return iter(self._feeds_of_all)

    def forget(self, feed: Feed) -> None:
        """Removes a feed without followers."""
        kin = feed.kin
        if feed in kin.feeds:
            kin.feeds.remove(feed)
            self._feeds_of_all.remove(feed)
        if not kin.feeds:
            self.cache.forget(kin)
            self._by_source.pop(feed.source, None)
        if not self._by_source and not self._deleted:
            self._left = True
            self.topic.cancel_notify(self._woken)
            self._feeds.forget(self)

    def check_deleted(self) -> bool:
        """Returns whether the topic is deleted. Ends all feeds the first time."""
        topic = self.topic
        if not topic.rules.usual and not self._deleted and not self.engine.exists(topic):
            self._deleted = True
            self._feeds.forget(self)
            for feed in list(self):
                feed.end()
        return self._deleted

    def when_durable(self, done: Callable[[int], None]) -> None:
        self.engine.when_durable(self.topic, done)

    def _woken(self) -> None:
        if self._left:
            # The last follower left during this tick.
            return
        if not self.check_deleted():
            # Registered again before anything is read, so that no wake-up is lost.
            self.topic.notify_on_change(self._woken)
            self.waited_ms = self.engine.scheduler.waited_ms
            for feed in self._feeds_of_all:
                feed.changed()


class Feeds:
    def __init__(self, engine: Engine, run_queue: RunQueue) -> None:
        self.engine = engine
        self.run_queue = run_queue
        self.cache = FrameCache()
        # Once per tick for all changed topics, so that each connection makes one write for all of them.
        engine.scheduler.tick_ended.subscribe(run_queue.run)
        self._by_topic: dict[int, TopicFeeds] = {}

    def subscribe(self, sink: Sink, topic: Topic, source: Source, cursor: Cursor, owner: object = None) -> Subscription:
        """Follows a topic from `cursor` on; the first frame is delivered in a later turn.

        A cursor beyond the head gets a tombstone, like every read.
        """
        self.engine.catch_up(topic)
        self.engine.consumed(topic)
        feeds = self._by_topic.get(topic.id)
        if feeds is None:
            feeds = self._by_topic[topic.id] = TopicFeeds(self, topic)
        feed = feeds.feed(source)
        subscription = Subscription(feed, sink, cursor, owner)
        feed.add(subscription)
        self.run_queue.add(subscription)
        return subscription

    def put_off(self, topic: Topic) -> None:
        """Notifies the followers of a topic that backpressure delays it."""
        feeds = self._by_topic.get(topic.id)
        if feeds is not None:
            retry_after_ms = self.put_off_ms(topic)
            for feed in list(feeds):
                feed.pace(retry_after_ms)

    def put_off_ms(self, topic: Topic) -> int:
        """The maximum delay: waiting raises the topic's priority until it is served."""
        return max(-self.engine.scheduler.priority(topic) * 10, 100)

    def forget(self, feeds: TopicFeeds) -> None:
        self._by_topic.pop(feeds.topic.id, None)

    def __len__(self) -> int:
        """The number of topics with followers."""
        return len(self._by_topic)


# The live state of a server.

HEARTBEAT_MS_MAX = 60_000
_SWEEP_S = 0.25


class LiveLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of live delivery; `topics.model` explains each.

    For settings that begin with `max`, 0 means no limit.
    """

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
        """Notifies the connection that backpressure delays its records, by at most `retry_after_ms`."""
        ...


class Live:
    """Live delivery of one server. Usable after `open` was called with the engine."""

    def __init__(self, limits: LiveLimits, keys: KeyRing, clock: Clock, entropy: Entropy) -> None:
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
            limits.max_watch_sessions, limits.watch_session_ttl_ms, clock, entropy, limits.max_watch_sessions_per_key
        )
        self._feeds: Feeds | None = None
        self.search: StreamSearch | None = None
        """Evaluates filters of filtered reads."""
        self.paced: dict[int, set[Paced]] = {}
        """Connections outside the feeds to notify when backpressure delays a topic, by topic id."""

    def open(self, engine: Engine, search: StreamSearch | None = None) -> None:
        """Starts delivery from a running engine. Without `search`, filtered reads are not possible."""
        self._feeds = feeds = Feeds(engine, self.run_queue)
        self.search = search

        def put_off(topic: Topic) -> None:
            feeds.put_off(topic)
            for paced in list(self.paced.get(topic.id, ())):
                paced.pace(feeds.put_off_ms(topic))

        engine.scheduler.topic_put_off.subscribe(put_off)

    @property
    def feeds(self) -> Feeds:
        if self._feeds is None:
            raise NotReadyError(0.0)
        return self._feeds


def _soon(run: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(run)


def _later(seconds: float, run: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, run)
