"""Watching many topics over one connection: a session made by POST, and its event stream by GET."""

from typing import Any

import msgspec

from topics.api.app import Route
from topics.api.auth import Key, Scope
from topics.api.call import Call, Operation, Parameter, Waiting
from topics.api.error_responses import NotAcceptableError, UnauthorizedError
from topics.api.live import EventSink, Frame, FrameKind, Live, Projection, Session, Subscription
from topics.api.live.watch_sessions import BEFORE_ALL
from topics.api.v0.request_parsing import check_number, decode_body
from topics.api.v0.watch_events import RETRY_FIELD, SHARED, SOLO, IdWriter, error_event, heartbeat, read_id
from topics.http.messages import RequestHead
from topics.http.streaming import Stream
from topics.model.errors import InvalidRequestError, TopicNotFoundError
from topics.model.limits import MAX_U64, Limits
from topics_protocol.watch import WatchAnswer, WatchBody, WatchFrom, WatchPosition

# The start of every event stream: authorization and response headers.

_HEADERS = (
    ("Content-Type", "text/event-stream; charset=utf-8"),
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),
)
_ACCEPTED = ("text/event-stream", "text/*", "*/*")
"""The narrowest first: it says what a wider one beside it does not."""


def check_accepts_events(head: RequestHead, *, by_name: bool = False) -> None:
    """Raises NotAcceptableError for a client that says it takes anything but an event stream.

    With `by_name` it must have asked for just that, if it says anything: a browser that fetches an image for a page
    takes everything, and an older one does not say where the page is from.
    """
    accept = head.headers.get_list("accept").lower()
    weights = dict([_media_range(part) for part in accept.split(",") if part.strip()])
    accepted = _ACCEPTED[:1] if by_name else _ACCEPTED
    if weights and not next((weights[one] for one in accepted if one in weights), 0.0):
        raise NotAcceptableError


def _media_range(text: str) -> tuple[str, float]:
    """A media type and its weight: 1 unless it says otherwise, 0 for what is no number."""
    name, *parameters = [word.strip() for word in text.split(";")]
    weight = next((word[2:] for word in parameters if word.startswith("q=")), "1")
    try:
        return name, float(weight)
    except ValueError:
        return name, 0.0


def start_events(call: Call) -> Stream:
    """The answer begins. From here on nothing can be refused with a status of its own."""
    head = call.exchange.head
    # Said although it is the default, for proxies that want to be told.
    modern = head.http_version == "1.1"
    headers = (*_HEADERS, ("Connection", "keep-alive")) if modern and head.keep_alive else _HEADERS
    return call.detach().start_stream(200, headers, chunked=True)


# The open stream of a watch session: a connection that gets the events of the session's topics.
#
# The session outlives it. What the stream handed to its connection is noted in the session's cursors, so the next
# stream goes on from there, or from an earlier place that its client names.

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
            followed = feeds.engine.existing(topic)
            self._subscriptions[topic] = feeds.subscribe(self, followed, projection, cursor, topic)
        except TopicNotFoundError:
            # Gone since the session was made. Its head is not known any more, but what was delivered of it.
            head = 0 if cursor == BEFORE_ALL else cursor
            self.write(b"id: %b\n%b" % (self._ids.write(), SHARED.deleted(topic, head, cursor)))

    # Called by live delivery.

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


_BEGINNING = WatchFrom()

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WatchBody).decode


def create(call: Call) -> None:
    """Makes a session. Everything is checked while the client can still be told, before any stream."""
    body = decode_body("watch", _decode, call.exchange.body)
    live, engine = call.live, call.engine
    projection = _projection(body, engine.limits)
    _check_topics(body, call.key, live.limits.max_watch_topics)
    resumed = _resumed(body)
    live.sessions.check_room(call.key)
    lenient = call.flag("lenient", False)
    positions: dict[str, WatchPosition] = {}
    cursors: dict[str, int] = {}
    for name, start in body.topics.items():
        try:
            info = call.engine.info(name)
        except TopicNotFoundError:
            if lenient:
                continue
            raise
        asked = start or _BEGINNING
        from_seq = resumed.get(name, info.head_seq if asked.tail else asked.from_seq)
        is_other = not asked.tail and asked.epoch is not None and asked.epoch != info.epoch
        cursors[name] = BEFORE_ALL if is_other else from_seq
        positions[name] = WatchPosition(
            from_seq=from_seq, head_seq=info.head_seq, earliest_seq=info.earliest_seq, epoch=info.epoch
        )
    session = live.sessions.create(
        call.key, projection, live.limits.clamp_heartbeat_ms(body.heartbeat_ms),
        cursors,
        {name: engine.existing(name).id for name in positions},
    )  # fmt: skip
    answer = WatchAnswer(
        wid=session.wid, stream_url=f"/v0/watch/{session.wid}", session_ttl_ms=live.sessions.ttl_ms, topics=positions
    )
    call.reply(200, _encode(answer))


def stream(call: Call) -> None:
    """Opens the stream of a session."""
    head, live = call.exchange.head, call.live
    check_accepts_events(head)
    session = live.sessions.find(call.topic)
    key = live.keys.authenticate_stream(head.headers.get("authorization"), call.query.get("token"))
    if key is not session.key:
        # Another key that is valid by itself is no better than none.
        raise UnauthorizedError
    if head.method == "HEAD":
        start_events(call).close()
        return
    if session.stream is not None:
        # A client that comes back must not wait until its old connection is noticed as dead: the newest wins.
        session.stream.give_way()
    _rewind(session, head.headers.get("last-event-id"))
    session.meet_topics(call.engine)
    solo = head.http_version == "1.1" and len(session.cursors) == 1 and not session.generation
    sink = (SoloWatchStream if solo else WatchStream)(live, session, call.waits)
    sink.open(start_events(call))


def _projection(body: WatchBody, limits: Limits) -> Projection:
    check_number("watch", "limit", body.limit)
    check_number("watch", "max_batch_bytes", body.max_batch_bytes)
    check_number("watch", "heartbeat_ms", body.heartbeat_ms)
    node = body.node
    return Projection(
        framing=SHARED, nodes=() if node is None else (node,) if isinstance(node, str) else tuple(sorted(set(node))),
        include_tags=body.include_tags, include_data=body.include_data,
        # Without data nothing is left but what the server knows of a record, unless meta was asked for by name.
        include_meta=body.include_data if body.include_meta is None else body.include_meta,
        limit=limits.clamp_limit(body.limit), max_bytes=limits.clamp_batch_bytes(body.max_batch_bytes),
        strong=body.consistency == "strong",
    )  # fmt: skip


def _check_topics(body: WatchBody, key: Key, topics_max: int) -> None:
    if not body.topics:
        raise InvalidRequestError("watch field topics: name at least one", field="topics")
    if len(body.topics) > topics_max:
        raise InvalidRequestError(f"watch field topics: at most {topics_max}", field="topics", max=topics_max)
    for name, start in body.topics.items():
        key.check(Scope.READ, name)
        if start is not None:
            check_number("watch", "from_seq", start.from_seq, MAX_U64)


def _resumed(body: WatchBody) -> dict[str, int]:
    if body.cursor is None:
        return {}
    seen = read_id(body.cursor, body.topics)
    if seen is None:
        raise InvalidRequestError("watch field cursor: it is not the id of an event of these topics", field="cursor")
    return seen.cursors


def _rewind(session: Session, last_event_id: str | None) -> None:
    """Goes back to what the client has really seen. What is no id is passed over, as browsers may send anything."""
    seen = read_id(last_event_id, session.cursors) if last_event_id else None
    if seen is not None:
        session.rewind(seen.cursors, seen.generation)


# The routes of a watch, with what they need and what they answer.

WATCH_ROUTES = (
    Route(
        "POST", "/v0/watch", create, Scope.READ, takes_body=True,
        operation=Operation(
            "createWatch", "Make a session that follows topics.", {200: WatchAnswer}, ("topic_not_found",), WatchBody,
            True, (Parameter("lenient", {"type": "boolean"}, "Leave out what does not exist; false unless told."),),
        ),
    ),
    Route(
        "GET", "/v0/watch/{wid}", stream, Scope.READ, guards_itself=True,
        operation=Operation(
            "openWatch", "The session's stream of events.", {200: "text/event-stream"},
            ("not_found", "not_acceptable"),
            query=(Parameter("token", {"type": "string"}, "The key, for browsers, which send no header here."),),
        ),
    ),
)  # fmt: skip
