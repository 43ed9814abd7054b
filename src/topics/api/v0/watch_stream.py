"""The open stream of a watch session: a connection that gets the events of the session's topics.

The session outlives it. What the stream handed to its connection is noted in the session's cursors, so the next stream
goes on from there, or from an earlier place that its client names.
"""

import msgspec

from topics.api.calls import Waiting
from topics.api.live import Frame, FrameKind, Live, Outlet, Projection, Session, Subscription
from topics.api.live.sessions import BEFORE_ALL
from topics.api.v0.watch_frames import RETRY_FIELD, SHARED, SOLO, error_event, heartbeat
from topics.api.v0.watch_ids import IdWriter
from topics.core.errors import TopicNotFoundError
from topics.http.streams import Stream

RETRY_AFTER_STOP_MS = 2_000


class WatchStream(Outlet):
    """A stream of several topics, whose ids are its own."""

    __slots__ = ("_ids", "_leave", "_live", "_session", "_stream", "_subscriptions", "_unsweep", "_waits")

    framing = SHARED

    def __init__(self, live: Live, session: Session, waits: "set[Waiting]") -> None:
        super().__init__(live.turns, live.patience)
        # First of all, as it may refuse.
        self._leave = live.connections.enter(session.key)
        self._live = live
        self._session = session
        self._waits = waits
        self._subscriptions: dict[str, Subscription] = {}
        self._ids = IdWriter(session.cursors)
        self._ids.generation = session.generation
        self._stream = Stream.lost()
        self.idle_timeout_s = session.heartbeat_ms / 1000.0
        self._unsweep = live.sweep.add(self)

    # Opening.

    def open(self, stream: Stream) -> None:
        """Begins to deliver. A topic that is gone by now is told first."""
        live, session = self._live, self._session
        self._stream = stream
        self._waits.add(self)
        live.sessions.attach(session, self)
        # With an id before anything else: a client that loses the connection at once can then say that it saw nothing.
        self._write(b"%bid: %b\n\n" % (RETRY_FIELD, self._ids.write()))
        stream.on_drain(self.drained)
        stream.on_gone(self._over)
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
            self._subscriptions[topic] = self._live.feeds.subscribe(self, topic, projection, cursor, topic)
        except TopicNotFoundError:
            # Gone since the session was made. Its head is not known any more, but what was delivered of it.
            head = 0 if cursor == BEFORE_ALL else cursor
            self._write(self._with_id(SHARED.deleted(topic, head, cursor)))

    # What delivery calls.

    def transmit(self, subscription: Subscription, frame: Frame) -> None:
        topic = subscription.owner
        assert isinstance(topic, str)
        self._session.cursors[topic] = frame.cursor
        bare = frame.kind is FrameKind.ERROR or frame.kind is FrameKind.PACED
        if not self._stream.write(frame.data if bare else self._with_id(frame.data)):
            self.filled()

    def end_subscription(self, subscription: Subscription) -> None:
        topic = subscription.owner
        assert isinstance(topic, str)
        self._session.cursors[topic] = subscription.cursor
        self._subscriptions.pop(topic, None)
        if not self._subscriptions:
            self._run_out()

    def end_slow(self) -> None:
        seconds = self._live.patience.timeout_s
        self._end_with(error_event(408, f"nothing was read for {seconds:g} seconds; come back to go on"))

    def waiting_bytes(self) -> int:
        return self._stream.buffered_bytes

    def beat(self) -> None:
        self._write(heartbeat(self._live.clock.now_ms()))

    # Ending.

    def _run_out(self) -> None:
        """No topic is left."""
        self._over()
        self._stream.close()

    def end(self) -> None:
        """The server stops."""
        self._end_with(error_event(503, "the server is shutting down", RETRY_AFTER_STOP_MS))

    def give_way(self) -> None:
        self._end_with(error_event(409, "another stream of this session was opened"))

    def _end_with(self, text: bytes) -> None:
        """Ends the stream, and the connection with it, as its client may not read on."""
        if not self.closed:
            self._stream.write(text)
            self._over()
            self._stream.close(last=True)

    def _over(self) -> None:
        if self.closed:
            return
        self.close()
        for topic, subscription in self._subscriptions.items():
            self._session.cursors[topic] = subscription.cursor
            subscription.cancel()
        self._subscriptions.clear()
        self._waits.discard(self)
        self._unsweep()
        self._leave()
        self._live.sessions.detach(self._session, self)

    def _write(self, text: bytes) -> None:
        if not self._stream.write(text):
            self.filled()

    def _with_id(self, text: bytes) -> bytes:
        return b"id: %b\n%b" % (self._ids.write(), text)


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
