"""GET of a stream: what is there, and waiting for what comes."""

import msgspec

from topics.api.calls import Call
from topics.api.errors import RequestTimeoutError
from topics.api.v1.answers import CLOSED, NO_STORE, UP_TO_DATE, Header, answer, expiry, refuse
from topics.api.v1.caching import cache_control, etag_of, has_it
from topics.api.v1.cursors import cursor_after
from topics.api.v1.deadlines import Deadlines, Pending
from topics.api.v1.paths import split_path
from topics.api.v1.values import read_duration_ms, read_time_ms
from topics.core.errors import InvalidRequestError, TopicsError, quoted
from topics.engine.streams.state import stream_of
from topics.engine.topic import Topic
from topics.indexing.predicates import bind_filter
from topics.streams.contents import is_json
from topics.streams.offsets import NOW, offset_of, tail_offset
from topics.streams.reading import CHUNK_BYTES, ReadSpec, StreamSlice
from topics.streams.search.filtering import SCAN_BYTES
from topics.streams.search.service import search_config_of
from topics.streams.service import Streams

_LIVE = {"": "", "true": "long-poll", "1": "long-poll", "long-poll": "long-poll", "sse": "sse"}
_FORMATS = {"json": True, "raw": False}


class ReadCall(msgspec.Struct, frozen=True, kw_only=True):
    """What a GET asks for, read once and used by every way of answering it."""

    topic: Topic
    offset: str
    """As it was given; empty when it was not."""
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
    offset = given.offset()
    if live and not offset:
        raise InvalidRequestError("query offset: a live read says where it begins", field="offset")
    since, timeout = given.value("since"), given.value("timeout")
    content_type = streams.content_type(topic)
    position = streams.locate(topic, offset, read_time_ms("since", since) if since else None)
    as_json = _as_json(given.value("format"), content_type)
    filtered = _filter(given.text("filter"), topic, content_type, live)
    # An event stream goes on for long, and is bounded by what its connection takes.
    max_bytes = CHUNK_BYTES if live == "sse" else call.room(CHUNK_BYTES)
    return ReadCall(
        topic=topic,
        offset=offset,
        spec=ReadSpec(position=position, as_json=as_json, key=given.key(), filter=filtered, max_bytes=max_bytes),
        content_type=content_type,
        live=live,
        cursor=given.text("cursor"),
        wait_ms=read_duration_ms("timeout", timeout, bare_ms=1) if timeout else None,
    )


def _filter(text: str, topic: Topic, content_type: str, live: str) -> str | None:
    """The filter of a read, checked; None where there is none."""
    if not text:
        return None
    if not is_json(content_type):
        raise InvalidRequestError("filter requires application/json stream content-type", field="filter")
    if live == "sse":
        raise InvalidRequestError("query filter: is not possible with live=sse", field="filter")
    bind_filter(text, search_config_of(topic))
    return text


class _Query:
    """The parameters of a read; those it does not know are nobody's business."""

    def __init__(self, text: str, call: Call) -> None:
        self._text = text
        self._call = call
        self._values = call.query

    def text(self, name: str) -> str:
        return self._values.get(name, "")

    def value(self, name: str) -> str:
        """A parameter that is one of several words or a quantity, so that an empty one is none of them."""
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
    """A read that answers at once with what there is; what the disk is too slow to give is told to come back.

    `immutable` says whether caches may be told to keep anything for good.
    """
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
    """What was found; None where the request is refused instead, for an error or for an offset that is gone."""
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
    """What every answer with entries says about them."""
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
    """Entries that are lost where the answer begins, as `first-last; reason`; empty when there are none."""
    loss = found.tombstone
    return "" if loss is None else f"{loss.gap_from}-{loss.gap_to}; reason={loss.reason.value}"


def _ends(topic: Topic) -> tuple[Header, ...]:
    """Where the stream ends now, and when it ends for good."""
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
    """The answer of a read that waited."""
    found = check_found(call, streams, read, outcome)
    if found is None:
        return
    cursor = ("stream-cursor", cursor_after(call.engine.core.wall(), read.cursor))
    headers = [*read_headers(read, found), NO_STORE, cursor]
    if found.at_tail and is_closed(streams, read.topic):
        headers.append(CLOSED)
    if found.count:
        answer(call, 200, tuple(headers), found.body, _type(read))
    else:
        answer(call, 204, tuple(headers))
