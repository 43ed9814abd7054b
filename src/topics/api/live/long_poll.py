"""Long poll: a request that is answered once, with new records of a topic, or with none after its timeout.

It follows the topic as every live connection does, so requests that wait at the same position share one read. Also
known as: blocking read, `wait_ms`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from topics.api.auth import Key
from topics.api.call import Call
from topics.api.live.feed import Subscription
from topics.api.live.frames import Cursor, Done, Found, Frame, FrameKind, Source
from topics.api.live.sink import Sink
from topics.engine.topic import Topic
from topics.model.errors import TopicsError


class FoundFrame(Frame, frozen=True, gc=False):
    """A frame that carries the read result, for sinks that build their own answer."""

    found: Found


def found_frame(source: Source, found: Found, cursor: Cursor) -> Frame:
    # Not written to a client; its length is what the frame costs in the cache and in delivery.
    data = found.body or b"a loss" if _is_news(found) else b""
    return FoundFrame(FrameKind.RECORDS, data, cursor, source.behind(found), found)


class LongPoll(Sink):
    """The sink of one waiting request. `answer` is called once, with the read result or an error, and with how long
    backpressure delayed it. The frames of `source` are `FoundFrame`s."""

    __slots__ = ("_answer", "_call", "_source", "_subscription", "_timer", "_topic", "_wait_s")

    def __init__(
        self, call: Call, topic: Topic, source: Source, wait_s: float, answer: Callable[[Any, int], None]
    ) -> None:
        super().__init__(call.live.run_queue, call.live.slow_limits)
        self._call = call
        self._topic = topic
        self._source = source
        self._wait_s = wait_s
        self._answer = answer
        self._subscription: Subscription | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def key(self) -> Key:
        """The key of the request."""
        return self._call.key

    def begin(self, cursor: Cursor) -> None:
        """Answer with the records there are, or follow the topic until there are some."""
        self._read(cursor, self._got)

    def _read(self, cursor: Cursor, done: Done) -> None:
        source, topic = self._source, self._topic
        try:
            source.read(self._call.engine, topic, cursor, source.place(topic.head), done)
        except TopicsError as error:
            done(error)

    def _got(self, outcome: Any) -> None:
        source, topic, call = self._source, self._topic, self._call
        if isinstance(outcome, TopicsError) or _is_news(outcome) or self._is_last(source.behind(outcome)):
            self._finish(outcome)
            return
        self._subscription = call.live.feeds.subscribe(self, topic, source, source.behind(outcome))
        self._timer = asyncio.get_running_loop().call_later(self._wait_s, self.end)
        call.waits.add(self)
        call.on_gone(self._over)

    def _is_last(self, cursor: Cursor) -> bool:
        """Whether a reader at the cursor has everything that will ever come."""
        return bool(cursor == self._source.place(self._topic.head)) and self._source.has_ended(self._topic)

    # Called by delivery, the timer and a stopping server.

    def transmit(self, subscription: Subscription, frame: Frame) -> None:
        if isinstance(frame, FoundFrame):
            self._finish(frame.found, subscription.feed.topics.waited_ms)
        elif self._is_last(frame.cursor):
            self.end()

    def end_subscription(self, subscription: Subscription) -> None:
        self.end()

    def end(self) -> None:
        """Answer now, with what there is."""
        if not self.closed:
            assert self._subscription is not None
            cursor = self._subscription.cursor
            self._over()
            self._read(cursor, lambda outcome: self._answer(outcome, 0))

    def _finish(self, outcome: Any, waited_ms: int = 0) -> None:
        self._over()
        self._answer(outcome, waited_ms)

    def _over(self) -> None:
        self.close()
        # Break the reference cycles here instead of leaving them to the garbage collector.
        subscription, self._subscription = self._subscription, None
        timer, self._timer = self._timer, None
        if subscription is not None:
            subscription.cancel()
        if timer is not None:
            timer.cancel()
            self._call.waits.discard(self)


def _is_news(found: Found) -> bool:
    return bool(found.count) or found.tombstone is not None
