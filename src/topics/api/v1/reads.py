"""GET of a stream: plain reads and live reads.

Live reads as server-sent events.

    event: data
    data:[{"n":1},{"n":2}]

    event: control
    data:{"streamNextOffset":"...","streamCursor":"...","upToDate":true}

Every data event is followed by its control event in the same write, so a client with data always has its position. Text
is sent line by line; a line that begins with a blank gets another one, because parsers remove one. Other content is
sent as base64.
"""

import math
from hashlib import blake2b
from typing import Self
from urllib.parse import quote

import msgspec
from msgspec.structs import replace
from pybase64 import b64encode

from topics.api.app import Call
from topics.api.error_responses import RequestTimeoutError
from topics.api.live import EventSink, Frame, FrameKind, Source, Subscription
from topics.api.live.frames import Done
from topics.api.live.transports import found_frame
from topics.api.v1.protocol import (
    CLOSED,
    EVERY,
    NO_STORE,
    UP_TO_DATE,
    Deadlines,
    Header,
    Pending,
    answer,
    cursor_after,
    expiry,
    read_duration_ms,
    read_time_ms,
    refuse,
    split_path,
)
from topics.engine.engine import Engine
from topics.engine.read import is_whole, removed_count
from topics.engine.topic import Topic
from topics.http.output_backpressure import ROOM_PART
from topics.model.errors import InvalidRequestError, TopicsError, quoted
from topics.model.limits import MAX_U64
from topics.model.topic_config import TopicType
from topics.search.query.predicates import bind_filter
from topics.search.service.filtered_read import SCAN_BYTES
from topics.search.service.search_service import search_config_of
from topics.streams.entry_encoding import is_json, media_type
from topics.streams.read import CHUNK_BYTES, ReadSpec, StreamSlice
from topics.streams.stream_state import NOW, START, Position, has_versions, offset_of, stream_of, tail_offset
from topics.streams.streams import Streams

# HTTP caching of reads: ETag, revalidation and Cache-Control.
#
#     W/"slice:<start>:<next>:key=<key>:fmt=<json or raw>:filter=<filter>"    as the protocol has it
#     W/"slice:<start>:<next>:key=<key>:fmt=<json or raw>:filter=<filter>:v2:r=<what is left>:c"
#
# Entries never change, so the start and the end of a slice identify its content while every entry between them exists
# and is shown as written. After removals the tag identifies the remaining entries by a digest, which needs no memory
# and stays correct after a restart. A count of removals is not sufficient: a crash may undo a delete of a class that
# does not sync, and the next delete would get its number. Results of a filter always have a digest, because another
# search description finds other entries.
#
# `:v<version>` is present if entries of earlier schema versions are shown in this version, and `:c` if the slice
# reaches the end of a closed stream.

_IMMUTABLE = "max-age=31536000, immutable"
_REVALIDATED = "max-age=60, stale-while-revalidate=300"
_DIGEST_BYTES = 8


def etag_of(topic: Topic, spec: ReadSpec, found: StreamSlice, closed: bool) -> str:
    start, following = offset_of(topic, spec.position), offset_of(topic, found.position)
    form = "json" if spec.as_json else "raw"
    key = quote(spec.key or "", safe="")
    left = (
        "" if _is_complete(topic, spec, found) else f":r={blake2b(found.body, digest_size=_DIGEST_BYTES).hexdigest()}"
    )
    shown = quote(spec.filter or "", safe="") + (f":v{found.promoted_to}" if found.promoted_to else "")
    return f'W/"slice:{start}:{following}:key={key}:fmt={form}:filter={shown}{left}{":c" if closed else ""}"'


def _is_complete(topic: Topic, spec: ReadSpec, found: StreamSlice) -> bool:
    """Returns whether the two ends identify the content: every entry between them is included, selected at most by a
    key. An end may be inside an entry, which then counts."""
    before, last = spec.position.counter, found.position.counter + (found.position.in_block > 0)
    # An empty key has the same tag as no key.
    if spec.filter is not None or spec.key == "":
        return False
    if spec.key is None:
        return found.count == last - before
    return is_whole(topic, before + 1, last)


def has_it(given: str | None, etag: str) -> bool:
    """Returns whether an If-None-Match matches the response. Tags are compared weakly, as for every GET."""
    if given is None:
        return False
    requested = etag.removeprefix("W/")
    tags = [tag.strip() for tag in given.split(",")]
    return any(tag == "*" or tag.removeprefix("W/") == requested for tag in tags)


def cache_control(call: Call, topic: Topic, offset: str, spec: ReadSpec, found: StreamSlice, immutable: bool) -> Header:
    """Returns Cache-Control: a full chunk of a stream without removals may be cached forever, other data for a minute,
    and an empty slice not at all."""
    if not found.count:
        return NO_STORE
    # Without an explicit offset, the same URL reads another stream after this one is deleted; and with a schema, a
    # later lens may show the same entries differently.
    bound = bool(offset) and offset != START and not has_versions(topic)
    full = bound and not found.at_tail and spec.key is None and spec.filter is None
    for_good = immutable and full and not _may_shrink(topic) and not removed_count(topic)
    # With authentication, responses must not be in shared caches.
    whose = "public" if call.key.number < 0 else "private"
    return "cache-control", f"{whose}, {_IMMUTABLE if for_good else _REVALIDATED}"


_CHAIN_MAX = 64
"""The maximum number of examined ancestors; a longer chain of forks is not cached forever."""


def _may_shrink(topic: Topic) -> bool:
    """Returns whether entries of a stream may be removed automatically: by its config or expiry, or by those of its
    ancestors."""
    at: Topic | None = topic
    for _ in range(_CHAIN_MAX):
        if at is None:
            return False
        config, state = at.config, stream_of(at)
        if config.ttl_ms or config.cap_records or config.cap_bytes or config.type is not TopicType.LOG:
            return True
        if state is not None and (state.ttl_s is not None or state.expires_ms is not None):
            return True
        at = at.origin.parent if at.origin is not None else None
    return True


_LIVE = {"": "", "true": "long-poll", "1": "long-poll", "long-poll": "long-poll", "sse": "sse"}
_FORMATS = {"json": True, "raw": False}


class ReadCall(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed GET request, shared by plain reads, long polls and event streams."""

    topic: Topic
    offset: str
    """The given value; empty if missing."""
    spec: ReadSpec
    content_type: str
    live: str
    cursor: str
    wait_ms: int | None


def parse_read(call: Call, streams: Streams) -> ReadCall:
    topic = streams.topic(call.topic)
    given = _Query(call.exchange.head.query, call)
    live = _LIVE.get(given.value("live"))
    if live is None:
        raise InvalidRequestError("query live: must be true, long-poll or sse", field="live")
    offset, since, timeout = given.offset(), given.value("since"), given.value("timeout")
    if live and not (offset or since):
        raise InvalidRequestError("query offset: a live read needs an offset, or since", field="offset")
    content_type = streams.content_type(topic)
    position = streams.locate(topic, offset, read_time_ms("since", since) if since else None)
    as_json = _as_json(given.value("format"), content_type)
    filtered = _filter(given.value("filter"), topic, content_type, live)
    # An event stream is long, and bounded by its connection.
    max_bytes = CHUNK_BYTES if live == "sse" else call.room(CHUNK_BYTES)
    return ReadCall(
        topic=topic,
        offset=offset,
        spec=ReadSpec(
            position=position,
            as_json=as_json,
            key=given.key(),
            filter=filtered,
            max_bytes=max_bytes,
            max_entry_bytes=_entry_room(call),
            splits=live == "sse",
        ),
        content_type=content_type,
        live=live,
        cursor=given.text("cursor"),
        wait_ms=read_duration_ms("timeout", timeout, bare_ms=1) if timeout else None,
    )


def _entry_room(call: Call) -> int:
    """The maximum length of an entry that exceeds an answer: the rest of the output budget.

    Without unread output of the key any length is allowed, because otherwise it could never be read.
    """
    account = call.key.output_account
    if not account.unread_bytes:
        return MAX_U64
    return max(call.exchange.room(account) * ROOM_PART, CHUNK_BYTES)


def _filter(text: str, topic: Topic, content_type: str, live: str) -> str | None:
    """Returns the validated filter of a read, or None."""
    if not text:
        return None
    if not text.strip():
        raise InvalidRequestError("query filter: is empty", field="filter")
    if not is_json(content_type):
        raise InvalidRequestError("filter requires application/json stream content-type", field="filter")
    if live == "sse":
        raise InvalidRequestError("query filter: is not possible with live=sse", field="filter")
    bind_filter(text, search_config_of(topic))
    return text


class _Query:
    """Parses the parameters of a read; unknown ones are ignored."""

    def __init__(self, text: str, call: Call) -> None:
        self._text = text
        self._call = call
        self._values = call.query

    def text(self, name: str) -> str:
        return self._values.get(name, "")

    def value(self, name: str) -> str:
        """Parses a parameter that is an enumeration or a quantity, for which an empty value is invalid."""
        text = self._values.get(name)
        if text == "":
            raise InvalidRequestError(f"query {name}: is empty", field=name)
        return text or ""

    def offset(self) -> str:
        if "offset" not in self._values:
            return ""
        if sum(part.partition("=")[0] == "offset" for part in self._text.split("&")) > 1:
            raise InvalidRequestError("query offset: is given more than once", field="offset")
        return self.value("offset")

    def key(self) -> str | None:
        path = split_path(self._call.exchange.head.path)
        return path.key if path.resource == "pk" else self._values.get("key")


def _as_json(form: str, content_type: str) -> bool:
    holds_json = is_json(content_type)
    if not form:
        return holds_json
    if form not in _FORMATS:
        raise InvalidRequestError(f"query format: {quoted(form)} is neither json nor raw", field="format")
    if _FORMATS[form] and not holds_json:
        raise InvalidRequestError("query format: the stream does not hold JSON", field="format")
    return _FORMATS[form]


def read_once(call: Call, streams: Streams, read: ReadCall, deadlines: Deadlines, *, immutable: bool) -> None:
    """A read that answers immediately with the available entries; entries that need a slow disk read are left to the
    next read. `immutable` states whether caches may keep full chunks forever."""
    topic = read.topic
    if read.offset == NOW:
        body = b"[]" if read.spec.as_json else b""
        headers: tuple[Header, ...] = (("stream-next-offset", tail_offset(topic)), *_ends(topic), UP_TO_DATE, NO_STORE)
        answer(call, 200, (*headers, CLOSED) if is_closed(streams, topic) else headers, body, _type(read))
        return
    pending = Pending()

    def done(outcome: StreamSlice | TopicsError) -> None:
        if pending.met():
            _answer_read(call, streams, read, outcome, immutable)

    streams.read(topic, read.spec, done)
    if pending.open:
        deadlines.begin(lambda: refuse(call, RequestTimeoutError()), pending)


def check_found(call: Call, streams: Streams, read: ReadCall, outcome: StreamSlice | TopicsError) -> StreamSlice | None:
    """Returns the slice; None after a refusal because of an error or an offset below retention."""
    try:
        if isinstance(outcome, TopicsError):
            raise outcome
        streams.check_kept(read.topic, read.offset, outcome)
    except TopicsError as error:
        refuse(call, error)
        return None
    return outcome


def _answer_read(
    call: Call, streams: Streams, read: ReadCall, outcome: StreamSlice | TopicsError, immutable: bool
) -> None:
    found = check_found(call, streams, read, outcome)
    if found is None:
        return
    closed = found.at_tail and is_closed(streams, read.topic)
    etag = etag_of(read.topic, read.spec, found, closed)
    kept = cache_control(call, read.topic, read.offset, read.spec, found, immutable)
    headers = [*read_headers(read, found), ("etag", etag), kept]
    if closed:
        headers.append(CLOSED)
    if has_it(call.exchange.head.headers.get("if-none-match"), etag):
        answer(call, 304, tuple(headers))
    else:
        answer(call, 200, tuple(headers), found.body, _type(read))


def read_headers(read: ReadCall, found: StreamSlice) -> list[Header]:
    """Returns the headers of every response with entries."""
    topic = read.topic
    headers: list[Header] = [("stream-next-offset", offset_of(topic, found.position)), *_ends(topic)]
    if found.at_tail:
        headers.append(UP_TO_DATE)
    gap = gap_text(found)
    if gap:
        headers.append(("stream-gap", gap))
    if found.scan_limit_bytes is not None:
        headers += [
            ("stream-filter-scan-limit-reached", "true"),
            ("stream-filter-scan-limit-bytes", str(SCAN_BYTES)),
            ("stream-filter-scanned-bytes", str(found.scan_limit_bytes)),
        ]
    return headers


def gap_text(found: StreamSlice) -> str:
    """Returns the entries lost at the start of the answer, as `first-last; reason`; empty if there are none."""
    loss = found.tombstone
    return "" if loss is None else f"{loss.gap_from}-{loss.gap_to}; reason={loss.reason.value}"


def _ends(topic: Topic) -> tuple[Header, ...]:
    """Returns the current end of the stream, and its expiry."""
    return (("stream-end-offset", tail_offset(topic)), *lifetime(topic))


def lifetime(topic: Topic) -> tuple[Header, ...]:
    state = stream_of(topic)
    return () if state is None else expiry(state.deadline(topic))


def is_closed(streams: Streams, topic: Topic) -> bool:
    state = streams.state(topic)
    return state is not None and state.closed


def _type(read: ReadCall) -> str:
    return "application/json" if read.spec.as_json else read.content_type


def answer_poll(
    call: Call, streams: Streams, read: ReadCall, outcome: StreamSlice | TopicsError, throttled_ms: int = 0
) -> None:
    """Answers a read that waited."""
    found = check_found(call, streams, read, outcome)
    if found is None:
        return
    cursor = ("stream-cursor", cursor_after(call.engine.wall(), read.cursor))
    headers = [*read_headers(read, found), NO_STORE, cursor]
    if found.at_tail and is_closed(streams, read.topic):
        headers.append(CLOSED)
    if found.count:
        answer(call, 200, tuple(headers), found.body, _type(read))
    else:
        answer(call, 204, tuple(headers))


SSE_S = 60.0
"""The lifetime of a connection. Clients then reconnect, which lets them move between servers."""

_encode = msgspec.json.Encoder().encode


def is_text(content_type: str, as_json: bool) -> bool:
    return as_json or media_type(content_type).startswith("text/")


def data_event(body: bytes, as_text: bool) -> bytes:
    if not as_text:
        return b"event: data\ndata:" + b64encode(body) + b"\n\n"
    lines = b"\n" + body
    if b"\r" in body:
        lines = lines.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    # In three passes over the whole text instead of a step for each line: a megabyte may have a hundred thousand lines.
    return b"event: data" + lines.replace(b"\n", b"\ndata:").replace(b"\ndata: ", b"\ndata:  ") + b"\n\n"


class Control(msgspec.Struct, omit_defaults=True, rename="camel"):
    stream_next_offset: str
    stream_cursor: str = ""
    up_to_date: bool = False
    stream_closed: bool = False
    stream_gap: str = ""


def control_event(control: Control) -> bytes:
    return b"event: control\ndata:" + _encode(control) + b"\n\n"


class Events(Frame, frozen=True, gc=False):
    """A data event. The following control event depends on the reader, except for a loss before the data."""

    gap: str = ""


class EventSource(Source, frozen=True, kw_only=True):
    """Reads the entries of a stream as data events. Its cursors are positions."""

    streams: Streams
    spec: ReadSpec
    """The frame without its position."""
    as_text: bool = False

    @property
    def waits_beyond_end(self) -> bool:
        return True

    def sees(self, topic: Topic) -> bool:
        try:
            self.streams.check_there(topic)
        except TopicsError:
            return False
        return True

    def place(self, seq: int) -> Position:
        return Position(seq)

    def within(self, room: int) -> Self:
        return self if room >= self.spec.max_bytes else replace(self, spec=replace(self.spec, max_bytes=room))

    def read(self, engine: Engine, topic: Topic, cursor: Position, up_to: Position, done: Done) -> None:
        self.streams.read(topic, replace(self.spec, position=cursor, up_to=up_to.counter), done)

    def behind(self, found: StreamSlice) -> Position:
        return found.position

    def frames(self, topic: Topic, found: StreamSlice, cursor: Position, too_old: bool) -> list[Frame]:
        gap = gap_text(found)
        # A loss without data after it is sent as a comment, because empty frames are not transmitted.
        data = data_event(found.body, self.as_text) if found.count else b": gap\n\n" if gap else b""
        return [Events(FrameKind.TOMBSTONE if gap else FrameKind.RECORDS, data, cursor, found.position, gap)]

    def shape(self, topic: Topic) -> object:
        state = self.streams.state(topic)
        return None if state is None else state.description

    def is_full(self, found: StreamSlice) -> bool:
        return found.count >= self.spec.max_records or 2 * len(found.body) >= self.spec.max_bytes

    def has_ended(self, topic: Topic) -> bool:
        return is_closed(self.streams, topic)


class PollSource(EventSource, frozen=True, kw_only=True):
    """Reads the entries of a stream for waiting requests."""

    def frames(self, topic: Topic, found: StreamSlice, cursor: Position, too_old: bool) -> list[Frame]:
        return [found_frame(self, found, cursor)]


class SseReader(EventSink):
    """One connection."""

    __slots__ = ("_call", "_ends_at", "_gap", "_is_inside", "_read", "_reported", "_source", "_subscription")

    def __init__(self, call: Call, streams: Streams, read: ReadCall) -> None:
        super().__init__(call.live, call.key, call.waits)
        self._call = call
        self._read = read
        as_text = is_text(read.content_type, read.spec.as_json)
        self._source = EventSource(streams=streams, spec=replace(read.spec, position=Position(0)), as_text=as_text)
        self._reported: tuple[Position, bool] | None = None
        """The position in the last control event, and whether it is the end."""
        self._subscription: Subscription | None = None
        self._ends_at = math.inf
        # Whether the last data event ended inside an entry, and the loss before that entry.
        self._is_inside = False
        self._gap = ""

    def start(self) -> None:
        """Reads once before the answer, so that an invalid position is an ordinary refusal."""
        read, streams = self._read, self._source.streams
        if read.offset == NOW:
            self._open(None)
            return

        def got(outcome: StreamSlice | TopicsError) -> None:
            found = check_found(self._call, streams, read, outcome)
            if found is None:
                self.over()
            else:
                self._open(found)

        try:
            streams.read(read.topic, read.spec, got)
        except TopicsError:
            self.over()
            raise

    def _open(self, first: StreamSlice | None) -> None:
        headers: list[Header] = [
            *EVERY, ("content-type", "text/event-stream"), ("cache-control", "no-cache, no-store"),
            ("x-accel-buffering", "no"), *lifetime(self._read.topic),
        ]  # fmt: skip
        if not self._source.as_text:
            headers.append(("stream-sse-data-encoding", "base64"))
        topic, position = self._read.topic, self._read.spec.position
        self._ends_at = self.run_queue.seconds() + SSE_S
        self.attach(self._call.detach().start_stream(200, headers))
        if first is not None and not self.closed:
            self._report(self._source.frames(topic, first, position, False)[0])
            position = first.position
        if not self.closed:
            self._subscription = self._live.feeds.subscribe(self, topic, self._source, position)

    # Called by live delivery.

    def transmit(self, subscription: Subscription, frame: Frame) -> None:
        self._report(frame)

    def _report(self, frame: Frame) -> None:
        topic, position = self._read.topic, frame.cursor
        if isinstance(frame, Events) and position.in_block:
            # The entry continues in the next data event. An offset, which is between entries, follows the last one.
            self._is_inside, self._gap = True, self._gap or frame.gap
            self.write(frame.data)
            return
        at_tail = position >= (topic.head, 0)
        closed = at_tail and self._source.has_ended(topic)
        event, gap = (frame.data, frame.gap or self._gap) if isinstance(frame, Events) else (b"", "")
        self._is_inside, self._gap = False, ""
        reported = (position, at_tail)
        if not (event or closed) and self._reported == reported:
            return
        self._reported = reported
        cursor = "" if closed else cursor_after(self._call.engine.wall(), self._read.cursor)
        control = Control(offset_of(topic, position), cursor, at_tail, closed, gap)
        self.write(event + control_event(control))
        if closed:
            self.end()

    def end_subscription(self, subscription: Subscription) -> None:
        self.end()

    def end_slow(self) -> None:
        self.end()

    def sweep(self, now: float) -> None:
        if now >= self._ends_at and not self.closed and not self._is_inside:
            self.end()
        else:
            super().sweep(now)

    def end(self) -> None:
        """Ends the answer: its lifetime or the stream has ended, or the server stops."""
        self.over()
        self._stream.close()

    def let_go(self) -> None:
        if self._subscription is not None:
            self._subscription.cancel()
