"""Watches of many topics over one connection: a session created by POST, and its event stream by GET.

Events of a watch as text, in two forms that streams can share.

A watch of one topic has ids that depend on the topic and the seq only, so whole events are shared, encoded as HTTP
chunks. The ids of a watch of several topics differ: then only the part after the id is shared.
"""

import base64
import functools
import struct
from array import array
from binascii import b2a_base64
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from topics.api.app import Call, Operation, Parameter, Route, Waiting
from topics.api.auth import Key, Scope
from topics.api.error_responses import NotAcceptableError, UnauthorizedError, status_of
from topics.api.live import EventSink, Frame, FrameKind, Live, Projection, Session, Subscription
from topics.api.live.frames import Framing, RecordBatch
from topics.api.live.watch_sessions import BEFORE_ALL
from topics.api.v0.request_parsing import check_number, decode_body
from topics.http.messages import RequestHead
from topics.http.streaming import Stream
from topics.model.errors import InvalidRequestError, TopicNotFoundError, TopicsError
from topics.model.limits import MAX_U64, Limits
from topics.model.seq_ranges import Tombstone
from topics_protocol.watch import (
    CaughtUpEvent,
    ErrorEvent,
    TombstoneEvent,
    TopicDeletedEvent,
    WatchAnswer,
    WatchBody,
    WatchFrom,
    WatchPosition,
)

# The id of an event: all positions of a watch at that time, so that one value resumes all topics.
#
# Up to 64 topics it is the JSON map of topic to seq. Above that the names would be most of every event, so they are
# left out, and what remains means something only for a watch of the same topics:
#
#     byte 0      1: seqs of four bytes, 2: seqs of eight bytes, 3 and 4: the same with marks
#     bytes 1-4   the generation, little-endian
#     bytes 5-12  XXH3-64 of the sorted names, a zero byte behind each
#     then        the seqs in the order of the sorted names, little-endian
#     then        the marks in the same order, of three bytes, big-endian; only in 3 and 4
#
# A mark is a hash of a topic's epoch, by which a new watch that resumes from an id detects that a topic was recreated.
# 0 means that no mark is set; ids of earlier releases have none. After a map, each mark is 12 characters of white
# space, of two bits each and the highest first, in the order of the map, so the text remains the JSON map of the
# protocol for every parser.
#
# Both are written in base64url without padding. A client treats either as opaque.
#
# The generation counts the recreated topics that the session has found. It distinguishes ids from before and after such
# a change, whose seqs may be equal. It is 0 for nearly all watches, and a map of generation 0 does not show it.

MAPPED_TOPICS_MAX = 64
_NARROW, _WIDE = 1, 2
_MARKED = 2
"""Added to either if marks follow."""
_MARK_BYTES = 3
_MARK_BITS = 8 * _MARK_BYTES
_WHITE = b" \t\n\r"
_NARROW_MAX = 2**32 - 1
_HEAD = struct.Struct("<BI8s")
_SEQ = struct.Struct("<I")
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_GENERATION = "$generation"
"""No topic's name begins like this."""

_encode = msgspec.json.Encoder().encode
_decode_map = msgspec.json.Decoder(dict[str, int]).decode


class Positions(NamedTuple):
    """The decoded content of an event id."""

    cursors: dict[str, int]
    generation: int


def encode_map(cursors: dict[str, int], generation: int = 0, white: bytes = b"") -> bytes:
    """`white` has the marks of the topics, see `white_marks`."""
    shown = {**cursors, _GENERATION: generation} if generation else cursors
    return base64.urlsafe_b64encode(_encode(shown) + white).rstrip(b"=")


def mark_of(epoch: int) -> int:
    """Returns the mark of a topic in an id."""
    return 1 + xxh3_64_intdigest(b"%d" % epoch) % ((1 << _MARK_BITS) - 1)


@functools.lru_cache(1024)
def white_marks(*marks: int) -> bytes:
    """Returns marks as white space."""
    return bytes([_WHITE[mark >> shift & 3] for mark in marks for shift in range(_MARK_BITS - 2, -1, -2)])


def read_marks(text: str, names: Iterable[str]) -> dict[str, int]:
    """Returns the marks in a valid id for a watch of these topics; empty if it has none."""
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_")
    if raw[:1] == b"{":
        white, named = raw[raw.rindex(b"}") + 1 :], list(_read_map(raw).cursors)
        bits = functools.reduce(lambda read, byte: read << 2 | _WHITE.index(byte), white, 0)
        packed = bits.to_bytes((len(white) + 3) // 4, "big")
    else:
        named = sorted(names)
        packed = raw[-_MARK_BYTES * len(named) :] if raw[0] > _MARKED else b""
    if len(packed) != _MARK_BYTES * len(named):
        return {}
    marks = [packed[at : at + _MARK_BYTES] for at in range(0, len(packed), _MARK_BYTES)]
    return {name: int.from_bytes(mark, "big") for name, mark in zip(named, marks, strict=True)}


class IdWriter:
    """Encodes the ids of one stream, whose topics do not change."""

    __slots__ = ("_cursors", "_fingerprint", "_marks", "_names", "_packed", "_places", "_text", "generation")

    def __init__(self, cursors: dict[str, int], epochs: dict[str, int] | None = None) -> None:
        """`epochs` are the topics' epochs; without them the ids have no marks."""
        self.generation = 0
        self._cursors = cursors
        is_packed = len(cursors) > MAPPED_TOPICS_MAX
        marks = [mark_of(epochs[name]) if name in epochs else 0 for name in _ordered(cursors)] if epochs else []
        packed = b"".join([mark.to_bytes(_MARK_BYTES, "big") for mark in marks]) if is_packed else b""
        self._marks = packed if is_packed else white_marks(*marks)
        self._names = sorted(cursors)
        self._fingerprint = _fingerprint(self._names) if len(cursors) > MAPPED_TOPICS_MAX else b""
        self._places = {name: _HEAD.size + _SEQ.size * number for number, name in enumerate(self._names)}
        self._packed = bytearray()
        self._text: bytearray | None = None
        """The last id, and its bytes if its seqs have four bytes: the next id differs in one seq, which is in two
        groups of three bytes."""

    def write(self) -> bytes:
        """Returns the id of the current positions."""
        self._text = None
        if not self._fingerprint:
            return encode_map(self._cursors, self.generation, self._marks)
        seqs = list(map(self._cursors.__getitem__, self._names))
        kind, code = (_NARROW, "I") if max(seqs) <= _NARROW_MAX else (_WIDE, "Q")
        shown = kind + _MARKED if self._marks else kind
        packed = _HEAD.pack(shown, self.generation, self._fingerprint) + array(code, seqs).tobytes() + self._marks
        text = _in_base64(packed).rstrip(b"=")
        if kind == _NARROW:
            # Padded to whole groups; the padding of the last one is not part of the text.
            self._packed, self._text = bytearray(packed + bytes(-len(packed) % 3)), bytearray(text)
        return text

    def move(self, topic: str, cursor: int) -> bytes | bytearray:
        """Updates the position of one topic. Returns the new id, which is valid until the next move."""
        self._cursors[topic] = cursor
        text, packed = self._text, self._packed
        if text is None or cursor > _NARROW_MAX:
            return self.write()
        place = self._places[topic]
        _SEQ.pack_into(packed, place, cursor)
        # Four bytes are always in two groups of three, which are eight letters.
        first, length = place // 3, len(text)
        text[4 * first : 4 * first + 8] = _in_base64(packed[3 * first : 3 * first + 6])
        # The padding of base64 is omitted.
        del text[length:]
        return text


def read_id(text: str, names: Iterable[str]) -> Positions | None:
    """Returns the positions in an id, for a watch of these topics; None for an invalid id, or one of other topics."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        positions = _read_map(raw) if raw[:1] == b"{" else _unpack(raw, sorted(names))
    except (ValueError, struct.error):
        return None
    if positions is None or not all(0 <= number <= MAX_U64 for number in (*positions.cursors.values(), positions[1])):
        return None
    return positions


def _read_map(raw: bytes) -> Positions:
    cursors = _decode_map(raw)
    return Positions(cursors, cursors.pop(_GENERATION, 0))


def _unpack(raw: bytes, names: list[str]) -> Positions | None:
    kind, generation, fingerprint = _HEAD.unpack_from(raw)
    if kind > _MARKED:
        kind, raw = kind - _MARKED, raw[: -_MARK_BYTES * len(names)]
    width, packed = {_NARROW: 4, _WIDE: 8}.get(kind), raw[_HEAD.size :]
    if width is None or fingerprint != _fingerprint(names) or len(packed) != width * len(names):
        return None
    seqs = array("I" if width == 4 else "Q", packed)
    return Positions(dict(zip(names, seqs, strict=True)), generation)


def _ordered(cursors: dict[str, int]) -> list[str]:
    """Returns the names in the order of an id."""
    return sorted(cursors) if len(cursors) > MAPPED_TOPICS_MAX else list(cursors)


def _in_base64(packed: bytes | bytearray) -> bytes:
    return b2a_base64(packed, newline=False).translate(_URL_SAFE)


def _fingerprint(names: list[str]) -> bytes:
    return xxh3_64_digest(b"".join(name.encode() + b"\0" for name in names))


RETRY_FIELD = b"retry: 2000\n"
RETRY = RETRY_FIELD + b"\n"


def event(name: bytes, data: bytes) -> bytes:
    """An event without an id. A payload may have line ends between its JSON tokens; each line is a separate field."""
    if b"\n" in data or b"\r" in data:
        data = _in_fields(data)
    return b"event: %b\ndata: %b\n\n" % (name, data)


def _in_fields(data: bytes) -> bytes:
    return b"\ndata: ".join(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"))


@functools.lru_cache(256)
def _behind_records(from_seq: int, to_seq: int, head_seq: int) -> bytes:
    """Returns the end of an event of records.

    Cached, because topics that a router copies into mostly have equal positions.
    """
    return b'],"from_seq":%d,"to_seq":%d,"head_seq":%d}\n\n' % (from_seq, to_seq, head_seq)


def error_event(code: int, text: str, retry_after_ms: int | None = None, topics: list[str] | None = None) -> bytes:
    retry = msgspec.UNSET if retry_after_ms is None else retry_after_ms
    named = msgspec.UNSET if topics is None else topics
    return event(b"error", _encode(ErrorEvent(code=code, error=text, retry_after_ms=retry, topics=named)))


def heartbeat(now_ms: int) -> bytes:
    return b": hb %d\n\n" % now_ms


class SharedFraming:
    """Encodes events without their ids."""

    def records(self, batch: RecordBatch) -> bytes:
        body, behind = batch.body, _behind_records(batch.from_seq, batch.to_seq, batch.head_seq)
        if b"\n" in body or b"\r" in body:
            body = _in_fields(body)
        return b"".join((b'event: record\ndata: {"topic":', _encode(batch.topic), b',"records":[', body, behind))

    def tombstone(self, topic: str, tombstone: Tombstone, reason: str, cursor: int) -> bytes:
        reported = TombstoneEvent(
            topic=topic, reason=reason, gap_from=tombstone.gap_from, gap_to=tombstone.gap_to,
            earliest_seq=tombstone.earliest_seq, head_seq=tombstone.head_seq,
        )  # fmt: skip
        return event(b"tombstone", _encode(reported))

    def caught_up(self, topic: str, head_seq: int) -> bytes:
        return event(b"caught-up", _encode(CaughtUpEvent(topic=topic, head_seq=head_seq)))

    def deleted(self, topic: str, head_seq: int, cursor: int) -> bytes:
        return event(b"topic-deleted", _encode(TopicDeletedEvent(topic=topic, head_seq=head_seq)))

    def error(self, topic: str, error: TopicsError) -> bytes:
        return error_event(status_of(error), error.message, topics=[topic])

    def paced(self, topic: str, retry_after_ms: int) -> bytes:
        return error_event(429, "watch throttled under pressure", retry_after_ms, [topic])


class SoloFraming:
    """Encodes whole events of a watch of one topic, as HTTP chunks. `white` is the mark of the topic."""

    def __init__(self, white: bytes = b"") -> None:
        self._plain = SharedFraming()
        self._white = white

    def records(self, batch: RecordBatch) -> bytes:
        return self._chunk(batch.topic, batch.to_seq, self._plain.records(batch))

    def tombstone(self, topic: str, tombstone: Tombstone, reason: str, cursor: int) -> bytes:
        return self._chunk(topic, cursor, self._plain.tombstone(topic, tombstone, reason, cursor))

    def caught_up(self, topic: str, head_seq: int) -> bytes:
        return self._chunk(topic, head_seq, self._plain.caught_up(topic, head_seq))

    def deleted(self, topic: str, head_seq: int, cursor: int) -> bytes:
        return self._chunk(topic, cursor, self._plain.deleted(topic, head_seq, cursor))

    def error(self, topic: str, error: TopicsError) -> bytes:
        text = self._plain.error(topic, error)
        return b"%x\r\n%b\r\n" % (len(text), text)

    def paced(self, topic: str, retry_after_ms: int) -> bytes:
        text = self._plain.paced(topic, retry_after_ms)
        return b"%x\r\n%b\r\n" % (len(text), text)

    def _chunk(self, topic: str, cursor: int, text: bytes) -> bytes:
        word = encode_map({topic: cursor}, 0, self._white)
        return b"%x\r\nid: %b\n%b\r\n" % (len(text) + len(word) + 5, word, text)


SHARED = SharedFraming()
SOLO = SoloFraming()


@functools.lru_cache(4096)
def solo_framing(white: bytes) -> SoloFraming:
    """Returns the framing for a topic with this mark. Watches of one topic share the object, and so the events."""
    return SoloFraming(white)


# The start of every event stream: authorization and response headers.

_HEADERS = (
    ("Content-Type", "text/event-stream; charset=utf-8"),
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),
)
_ACCEPTED = ("text/event-stream", "text/*", "*/*")
"""The narrowest range first, because it overrides wider ones."""


def check_accepts_events(head: RequestHead, *, by_name: bool = False) -> None:
    """Raises NotAcceptableError for a client that does not accept event streams.

    With `by_name` an `Accept` header must name event streams: a browser that fetches an image for a page accepts
    everything, and an older one does not send the page's origin.
    """
    accept = head.headers.get_list("accept").lower()
    weights = dict([_media_range(part) for part in accept.split(",") if part.strip()])
    accepted = _ACCEPTED[:1] if by_name else _ACCEPTED
    if weights and not next((weights[one] for one in accepted if one in weights), 0.0):
        raise NotAcceptableError


def _media_range(text: str) -> tuple[str, float]:
    """Returns a media type and its weight: 1 by default, 0 for an invalid number."""
    name, *parameters = [word.strip() for word in text.split(";")]
    weight = next((word[2:] for word in parameters if word.startswith("q=")), "1")
    try:
        return name, float(weight)
    except ValueError:
        return name, 0.0


def start_events(call: Call) -> Stream:
    """Begins the answer. A later failure cannot have a status."""
    head = call.exchange.head
    # Sent although it is the default, for proxies that require it.
    modern = head.http_version == "1.1"
    headers = (*_HEADERS, ("Connection", "keep-alive")) if modern and head.keep_alive else _HEADERS
    return call.detach().start_stream(200, headers, chunked=True)


# The open stream of a watch session: a connection that gets the events of the session's topics.
#
# The session outlives it. The session's cursors are the positions passed to the connection, so the next stream
# continues from there, or from an earlier position of its client.

RETRY_AFTER_STOP_MS = 2_000
# Looking up an enum's member by its class takes longer than a comparison.
_ERROR, _PACED = FrameKind.ERROR, FrameKind.PACED


class WatchStream(EventSink):
    """A stream of several topics, with its own ids."""

    __slots__ = ("_ids", "_session", "_subscriptions")

    def __init__(self, live: Live, session: Session, waits: "set[Waiting]") -> None:
        super().__init__(live, session.key, waits)
        self._session = session
        self._subscriptions: dict[str, Subscription] = {}
        self._ids = IdWriter(session.cursors, session.epochs)
        self._ids.generation = session.generation
        self.idle_timeout_s = session.heartbeat_ms / 1000.0

    # Opening.

    def open(self, stream: Stream) -> None:
        """Starts delivery. Deleted topics are reported first."""
        session = self._session
        self._live.sessions.attach(session, self)
        # An id is sent first, so that a client that loses the connection immediately can report that it saw nothing.
        self.attach(stream, b"%bid: %b\n\n" % (RETRY_FIELD, self._ids.write()))
        if self.closed:
            return
        projection = msgspec.structs.replace(session.projection, framing=self._framing())
        for topic in list(session.cursors):
            self._follow(topic, projection)
        if session.cursors and not self._subscriptions:
            self._run_out()

    def _framing(self) -> Framing:
        return SHARED

    def _follow(self, topic: str, projection: Projection) -> None:
        cursor = self._session.cursors[topic]
        try:
            feeds = self._live.feeds
            followed = feeds.engine.existing(topic)
            self._subscriptions[topic] = feeds.subscribe(self, followed, projection, cursor, topic)
        except TopicNotFoundError:
            # Deleted since the session was created. Its head is unknown, but its delivered position is known.
            head = 0 if cursor == BEFORE_ALL else cursor
            self.write(b"id: %b\n%b" % (self._ids.write(), SHARED.deleted(topic, head, cursor)))

    # Called by live delivery.

    def transmit(self, subscription: Subscription, frame: Frame) -> None:
        topic: Any = subscription.owner
        kind = frame.kind
        if kind is _ERROR or kind is _PACED:
            self._session.cursors[topic] = frame.cursor
            self.buffer(frame.data)
        else:
            self.buffer(b"".join((b"id: ", self._ids.move(topic, frame.cursor), b"\n", frame.data)))

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
    """A stream of one topic: its events are equal for all clients, so they are written unchanged."""

    __slots__ = ()

    def _framing(self) -> Framing:
        (epoch,) = self._session.epochs.values()
        return solo_framing(white_marks(mark_of(epoch)))

    def open(self, stream: Stream) -> None:
        super().open(stream)
        if not self.closed:
            self.push = stream.chunk_writer

    def transmit(self, subscription: Subscription, frame: Frame) -> None:
        if not self._stream.write_chunk(frame.data):
            self.filled()


_BEGINNING = WatchFrom()

_decode = msgspec.json.Decoder(WatchBody).decode


def create(call: Call) -> None:
    """Creates a session. All checks come first, while an error can still be returned."""
    body = decode_body("watch", _decode, call.exchange.body)
    live, engine = call.live, call.engine
    projection = _projection(body, engine.limits)
    _check_topics(body, call.key, live.limits.max_watch_topics)
    resumed, marks = _resumed(body)
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
        is_other = is_other or (bool(marks.get(name)) and marks[name] != mark_of(info.epoch))
        cursors[name] = BEFORE_ALL if is_other else from_seq
        positions[name] = WatchPosition(
            from_seq=from_seq, head_seq=info.head_seq, earliest_seq=info.earliest_seq, epoch=info.epoch
        )
    session = live.sessions.create(
        call.key, projection, live.limits.clamp_heartbeat_ms(body.heartbeat_ms),
        cursors,
        {name: engine.existing(name).id for name in positions},
        {name: position.epoch for name, position in positions.items()},
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
        # Another valid key is refused like a missing one.
        raise UnauthorizedError
    if head.method == "HEAD":
        start_events(call).close()
        return
    if session.stream is not None:
        # A reconnecting client must not wait until its old connection is detected as dead, so the newest stream
        # replaces it.
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
        # Without data only the server's fields of a record are left, unless meta was requested by name.
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


def _resumed(body: WatchBody) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the positions in the cursor of a watch, and the marks of their topics."""
    if body.cursor is None:
        return {}, {}
    seen = read_id(body.cursor, body.topics)
    if seen is None:
        raise InvalidRequestError("watch field cursor: it is not the id of an event of these topics", field="cursor")
    return seen.cursors, read_marks(body.cursor, body.topics)


def _rewind(session: Session, last_event_id: str | None) -> None:
    """Goes back to the client's last event. An invalid id is ignored, because browsers may send any value."""
    seen = read_id(last_event_id, session.cursors) if last_event_id else None
    if seen is not None:
        session.rewind(seen.cursors, seen.generation)


# The routes of a watch, with their requirements and answers.

WATCH_ROUTES = (
    Route(
        "POST", "/v0/watch", create, Scope.READ, takes_body=True,
        operation=Operation(
            "createWatch", "Make a session that follows topics.", {200: WatchAnswer}, ("topic_not_found",), WatchBody,
            True, (Parameter("lenient", {"type": "boolean"},
                "Leave out missing topics instead of refusing. Default: false."),),
        ),
    ),
    Route(
        "GET", "/v0/watch/{wid}", stream, Scope.READ, guards_itself=True,
        operation=Operation(
            "openWatch", "The session's stream of events.", {200: "text/event-stream"},
            ("not_found", "not_acceptable"),
            query=(Parameter("token", {"type": "string"}, "A short-lived token, or the key, for browsers."),),
        ),
    ),
)  # fmt: skip
