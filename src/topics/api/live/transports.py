"""The HTTP transports of live delivery: server-sent events (SSE, `EventSink`) and long polling (`LongPoll`).

A long poll is a request that is answered once, with new records of a topic, or with none after its timeout. It follows
the topic like every live connection, so requests that wait at the same position share one read. Also known as: blocking
read, `wait_ms`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from topics.api.app import Call, Waiting
from topics.api.auth import Key
from topics.api.live.feed import Subscription
from topics.api.live.feeds import Live
from topics.api.live.frames import Cursor, Done, Found, Frame, FrameKind, Source
from topics.api.live.sink import Sink
from topics.engine.topic import Topic
from topics.http.streaming import Stream
from topics.model.errors import TopicsError

_BUFFERED_BYTES_MAX = 64 * 1024
"""Flushes at this size, so that a full connection is detected before it gets much more."""


class EventSink(Sink):
    """Created before the response begins, because it may be refused; `attach` sets the response stream."""

    __slots__ = ("_buffered", "_buffered_bytes", "_leave", "_live", "_stream", "_unsweep", "_waits", "key")

    def __init__(self, live: Live, key: Key, waits: set[Waiting]) -> None:
        super().__init__(live.run_queue, live.slow_limits)
        self._leave = live.connections.enter(key)
        self.key = key
        self._live = live
        self._waits = waits
        self._stream = Stream.lost()
        self._buffered: list[bytes] = []
        """Events of this turn of delivery, of all topics that the connection follows."""
        self._buffered_bytes = 0
        self._unsweep = live.sweep.add(self)

    def attach(self, stream: Stream, opening: bytes = b"") -> None:
        """Begins the response. It ends immediately if the client has disconnected."""
        self._stream = stream
        self._waits.add(self)
        if opening:
            self.write(opening)
        stream.on_drain(self.drained)
        stream.on_disconnect(self.over)

    def write(self, text: bytes) -> None:
        if self._buffered:
            self.flush()
        if not self._stream.write(text):
            self.filled()

    def buffer(self, text: bytes) -> None:
        """Writes an event together with the others of this turn of delivery: a thousand topics may change at once, and
        separate writes would cost more than encoding the events."""
        if not self.run_queue.running:
            self.write(text)
            return
        if not self._buffered:
            self.run_queue.at_end.append(self.flush)
        self._buffered.append(text)
        self._buffered_bytes += len(text)
        if self._buffered_bytes > _BUFFERED_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Writes the collected events, at the end of a turn or before another write."""
        if self._buffered:
            events, self._buffered, self._buffered_bytes = self._buffered, [], 0
            if not self._stream.write_pieces(events):
                self.filled()

    def waiting_bytes(self) -> int:
        return self._stream.buffered_bytes

    def frame_room(self) -> int:
        return self._stream.room(self.key.output_account)

    def end_with(self, text: bytes) -> None:
        """Writes a last event and closes the connection."""
        if not self.closed:
            self.flush()
            self._stream.write(text)
            self.over()
            self._stream.close(last=True)

    def over(self) -> None:
        """Closes the sink and releases its resources. Idempotent."""
        if not self.closed:
            self.close()
            self.let_go()
            self._waits.discard(self)
            self._unsweep()
            self._leave()

    # For subclasses.

    def let_go(self) -> None:
        """Releases the connection's resources."""
        raise NotImplementedError

    def end(self) -> None:
        """Ends the connection because the server stops."""
        raise NotImplementedError


# Long polling


class FoundFrame(Frame, frozen=True, gc=False):
    """A frame with the read result, for sinks that build their own answer."""

    found: Found


def found_frame(source: Source, found: Found, cursor: Cursor) -> Frame:
    # Not written to a client; its length is what the frame costs in the cache and in delivery.
    data = found.body or b"a loss" if _is_news(found) else b""
    return FoundFrame(FrameKind.RECORDS, data, cursor, source.behind(found), found)


class LongPoll(Sink):
    """The sink of one waiting request.

    `answer` is called once, with the read result or an error, and with the delay by backpressure. The frames of
    `source` are `FoundFrame`s.
    """

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
        """Answers with the available records, or follows the topic until there are some."""
        self._read(cursor, self._got)

    def _read(self, cursor: Cursor, done: Done) -> None:
        source, topic = self._source, self._topic
        try:
            source.read(self._call.engine, topic, cursor, source.place(topic.visible_head), done)
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
        call.on_disconnect(self._over)

    def _is_last(self, cursor: Cursor) -> bool:
        """Returns whether a reader at the cursor has all records and no more will come."""
        return bool(cursor >= self._source.place(self._topic.visible_head)) and self._source.has_ended(self._topic)

    # Called by delivery, the timer and a stopping server.

    def transmit(self, subscription: Subscription, frame: Frame) -> None:
        if isinstance(frame, FoundFrame):
            self._finish(frame.found, subscription.feed.topics.waited_ms)
        elif self._is_last(frame.cursor):
            self.end()

    def end_subscription(self, subscription: Subscription) -> None:
        self.end()

    def end(self) -> None:
        """Answers immediately with the current result."""
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
