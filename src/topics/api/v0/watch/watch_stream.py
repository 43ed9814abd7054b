"""The open stream of a watch session: a connection that gets the events of the session's topics.

The session outlives it. What the stream handed to its connection is noted in the session's cursors, so the next stream
goes on from there, or from an earlier place that its client names.
"""

from typing import Any

import msgspec

from topics.api.calls import Waiting
from topics.api.live import EventSink, Frame, FrameKind, Live, Projection, Session, Subscription
from topics.api.live.sessions import BEFORE_ALL
from topics.api.v0.watch.watch_frames import RETRY_FIELD, SHARED, SOLO, error_event, heartbeat
from topics.api.v0.watch.watch_ids import IdWriter
from topics.core.errors import TopicNotFoundError
from topics.http.streams import Stream

RETRY_AFTER_STOP_MS = 2_000
# An enum's members are looked up by its class, which takes longer than to compare them.
_ERROR, _PACED = FrameKind.ERROR, FrameKind.PACED


class WatchStream(EventSink):
    """A stream of several topics, whose ids are its own."""

    __slots__ = ("_ids", "_session", "_subscriptions")

    framing = SHARED

    def __init__(self, live: Live, session: Session, waits: "set[Waiting]") -> None:
        super().__init__(live, session.key, waits)
        self._session = session
        self._subscriptions: dict[str, Subscription] = {}
        self._ids = IdWriter(session.cursors)
        self._ids.generation = session.generation
        self.idle_timeout_s = session.heartbeat_ms / 1000.0

    # Opening.

    def open(self, stream: Stream) -> None:
        """Begins to deliver. A topic that is gone by now is told first."""
        session = self._session
        self._live.sessions.attach(session, self)
        # With an id before anything else: a client that loses the connection at once can then say that it saw nothing.
        self.attach(stream, b"%bid: %b\n\n" % (RETRY_FIELD, self._ids.write()))
        if self.closed:
            return
        projection = msgspec.structs.replace(session.projection, framing=self.framing)
        for topic in list(session.cursors):
            self._follow(topic, projection)
        if session.cursors and not self._subscriptions:
            self._run_out()

    def _follow(self, topic: str, projection: Projection) -> None:
        cursor = self._session.cursors[topic]
        try:
            feeds = self._live.feeds
            followed = feeds.engine.core.existing(topic)
            self._subscriptions[topic] = feeds.subscribe(self, followed, projection, cursor, topic)
        except TopicNotFoundError:
            # Gone since the session was made. Its head is not known any more, but what was delivered of it.
            head = 0 if cursor == BEFORE_ALL else cursor
            self.write(b"id: %b\n%b" % (self._ids.write(), SHARED.deleted(topic, head, cursor)))

    # What delivery calls.

    def transmit(self, subscription: Subscription, frame: Frame) -> None:
        topic: Any = subscription.owner
        kind = frame.kind
        if kind is _ERROR or kind is _PACED:
            self._session.cursors[topic] = frame.cursor
            self.gather(frame.data)
        else:
            self.gather(b"".join((b"id: ", self._ids.move(topic, frame.cursor), b"\n", frame.data)))

    def end_subscription(self, subscription: Subscription) -> None:
        topic = subscription.owner
        assert isinstance(topic, str)
        self._session.cursors[topic] = subscription.cursor
        self._subscriptions.pop(topic, None)
        if not self._subscriptions:
            self._run_out()

    def end_slow(self) -> None:
        seconds = self._live.slow_limits.timeout_s
        self.end_with(error_event(408, f"nothing was read for {seconds:g} seconds; come back to go on"))

    def beat(self) -> None:
        self.write(heartbeat(self._live.clock.now_ms()))

    # Ending.

    def _run_out(self) -> None:
        """No topic is left."""
        self.flush()
        self.over()
        self._stream.close()

    def end(self) -> None:
        self.end_with(error_event(503, "the server is shutting down", RETRY_AFTER_STOP_MS))

    def give_way(self) -> None:
        self.end_with(error_event(409, "another stream of this session was opened"))

    def let_go(self) -> None:
        for topic, subscription in self._subscriptions.items():
            self._session.cursors[topic] = subscription.cursor
            subscription.cancel()
        self._subscriptions.clear()
        self._live.sessions.detach(self._session, self)


class SoloWatchStream(WatchStream):
    """A stream of one topic: its events are the same for everyone, so they are written as they come."""

    __slots__ = ()

    framing = SOLO  # type: ignore[assignment]

    def open(self, stream: Stream) -> None:
        super().open(stream)
        if not self.closed:
            self.push = stream.chunk_writer

    def transmit(self, subscription: Subscription, frame: Frame) -> None:
        if not self._stream.write_chunk(frame.data):
            self.filled()
