"""The streams of /v1: every call as a value, what calls return, and tailing. Nothing here touches the network."""

import base64
import math
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from topics.client.errors import ClientError, ConnectionFailed
from topics.client.requests import Request, encode_values, given_only
from topics.client.transport.http1 import Response
from topics.client.transport.sse import EventParser, ServerEvent

T = TypeVar("T")

START, NOW = "-1", "now"
_JSON = "application/json"
_BYTES = "application/octet-stream"
_LONG_POLL_MS = 20_000
# The server ends an event stream after a minute, and says something at least that often.
_QUIET_S = 75.0

Entries = bytes | Iterable[object]
"""What to append: bytes as they stand, or values that become JSON."""


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream is, and where it ends."""

    name: str
    content_type: str
    next_offset: str
    """Its end: reading from here gives only what is new."""
    closed: bool
    """Whether nothing more will come."""
    created: bool = False
    """Whether this call made it."""


class StreamAppended(msgspec.Struct, frozen=True, kw_only=True):
    """Entries were appended, or had been before."""

    name: str
    next_offset: str
    """The place behind them."""
    closed: bool
    deduped: bool
    """Whether an earlier request of the same producer and number had done it already."""


class StreamPage(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What stands behind an offset."""

    name: str
    content_type: str
    content: bytes
    """The entries: an array of a JSON stream, or the bytes of the others one behind the other."""
    next_offset: str
    """Where to go on."""
    up_to_date: bool
    """Whether this reaches the end."""
    closed: bool
    """Whether it is the end, and nothing will follow."""
    gap: str | None = None
    """What was lost in front of the entries, such as `1-57; reason=cap`."""

    @cached_property
    def values(self) -> list[Any]:
        """The entries of a JSON stream."""
        return self.decode(list[Any])

    def decode(self, type: type[T]) -> T:
        """The entries of a JSON stream as a value of this type, which is one of a list."""
        return msgspec.json.decode(self.content or b"[]", type=type)


class StreamSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A stream in a list. Offsets are counters here, as text."""

    name: str
    created_at: str
    expires_at: str | None = None
    epoch: int
    next_offset: str


class ProducerMark(msgspec.Struct, frozen=True):
    """Who sends a request, and which of its requests that is: what a repetition is known by."""

    id: str
    epoch: int
    seq: int


def put_stream(
    name: str,
    entries: Entries = (),
    *,
    content_type: str | None = None,
    ttl_s: int | None = None,
    expires_at: datetime | str | None = None,
    closed: bool = False,
) -> Request[StreamState]:
    """Creates a stream, with its first entries if there are any, or confirms that it is there as asked.

    Its content type is its own for good: JSON unless told, or bytes where the entries are. It lives until nobody has
    touched it for `ttl_s`, or until `expires_at`.
    """
    body, kind = _body(entries, content_type)
    headers = {"stream-ttl": ttl_s, "stream-expires-at": _moment(expires_at), "stream-closed": closed or None}
    return _put(name, {"content-type": kind, **headers}, body)


def fork_stream(
    name: str,
    source: str,
    *,
    offset: str | None = None,
    sub_offset: int | None = None,
    content_type: str | None = None,
    ttl_s: int | None = None,
    expires_at: datetime | str | None = None,
) -> Request[StreamState]:
    """Creates a stream that begins with what another holds, up to an offset of it or its end. Nothing is copied."""
    headers = {
        "content-type": content_type, "stream-ttl": ttl_s, "stream-expires-at": _moment(expires_at),
        "stream-forked-from": _path(source), "stream-fork-offset": offset, "stream-fork-sub-offset": sub_offset,
    }  # fmt: skip
    return _put(name, headers, None)


def append_stream(
    name: str,
    entries: Entries,
    *,
    content_type: str | None = None,
    key: str | None = None,
    ts: datetime | str | None = None,
    seq: str | None = None,
    close: bool = False,
    producer: ProducerMark | None = None,
) -> Request[StreamAppended]:
    """Appends entries in this order, all or none: values to a JSON stream, bytes to any other.

    `key` is the key of all of them, `ts` their time in the past, `seq` must be above every one before, and `close`
    closes the stream with them. Without a `producer` it is sent again only when it certainly was not carried out.
    """
    body, kind = _body(entries, content_type)
    headers = {
        "content-type": kind, "stream-key": key, "stream-timestamp": _moment(ts), "stream-seq": seq,
        "stream-closed": close or None, **_producer(producer),
    }  # fmt: skip
    return _post(name, headers, body, repeatable=producer is not None)


def close_stream(name: str, *, producer: ProducerMark | None = None) -> Request[StreamAppended]:
    """Closes a stream: it takes nothing more, and its readers are told the end. Closing twice is fine."""
    return _post(name, {"stream-closed": True, **_producer(producer)}, b"", repeatable=True)


def get_stream(name: str) -> Request[StreamState]:
    """What a stream is, and where it ends."""

    def read(response: Response) -> StreamState:
        return _state(name, response)

    return Request(method="HEAD", target=_path(name), answer=StreamState, read=read)


def read_stream(
    name: str,
    offset: str | None = None,
    *,
    since: datetime | str | None = None,
    key: str | None = None,
    wait_ms: int | None = None,
) -> Request[StreamPage]:
    """The entries behind an offset, or from a time on; without either from the start, `-1`. `now` is the end.

    Only entries of one `key`, if one is given. With `wait_ms`, an answer that would be empty is held back so long.
    """
    live = {} if wait_ms is None else {"live": "long-poll", "timeout": f"{wait_ms}ms"}
    if wait_ms is not None and offset is None and since is None:
        offset = START
    query = given_only({"offset": offset, "since": _moment(since), "key": key, **live})

    def read(response: Response) -> StreamPage:
        headers = response.headers
        return StreamPage(
            name=name, content_type=headers.get("content-type", ""), content=response.content,
            next_offset=headers["stream-next-offset"], up_to_date=headers.get("stream-up-to-date") == "true",
            closed=headers.get("stream-closed") == "true", gap=headers.get("stream-gap"),
        )  # fmt: skip

    target = _path(name) + ("?" + urlencode(query) if query else "")
    return Request(method="GET", target=target, answer=StreamPage, read=read, wait_s=(wait_ms or 0) / 1000)


def delete_stream(name: str) -> Request[None]:
    """Deletes a stream with everything in it. One that has forks is kept for them, and for nobody else."""
    return Request(method="DELETE", target=_path(name), answer=None, read=lambda response: None)


def list_streams(prefix: str = "", *, after: str = "", limit: int | None = None) -> Request[list[StreamSummary]]:
    """Streams behind the name `after`, in the order of their names."""
    query = given_only({"prefix": prefix or None, "after": after or None, "limit": limit})
    target = "/v1/streams" + ("?" + urlencode(query) if query else "")
    return Request(method="GET", target=target, answer=list[StreamSummary])


class _Control(msgspec.Struct, rename="camel"):
    stream_next_offset: str
    up_to_date: bool = False
    stream_closed: bool = False
    stream_gap: str | None = None


class StreamTail:
    """The state of a tail; those of both clients drive it."""

    def __init__(self, name: str, offset: str, key: str | None, live: str, deadline_s: float) -> None:
        self.what = f"the tail of stream {name}"
        self.deadline_s = deadline_s
        self.offset = offset
        """Where the last page ended that was handed out."""
        self._name = name
        self._key = key
        self._by_events = live == "sse"
        self._received = offset
        self._closed = False
        self._pages: deque[StreamPage] = deque()
        self._parser = EventParser()
        self._data: bytes | None = None
        self._content_type = ""
        self._is_base64 = False
        self._progress = False

    @property
    def ended(self) -> bool:
        return self._closed and not self._pages

    def next_item(self) -> StreamPage | None:
        if not self._pages:
            return None
        page = self._pages.popleft()
        self.offset = page.next_offset
        return page

    def request(self) -> Request[Any] | None:
        if self._received == NOW or (self._by_events and not self._content_type):
            # Where the end is has to be known before a connection can break: the second now would be a later one.
            return get_stream(self._name)
        if self._by_events:
            return None
        return read_stream(self._name, self._received, key=self._key, wait_ms=_LONG_POLL_MS)

    def made(self, answer: StreamState | StreamPage) -> None:
        if isinstance(answer, StreamPage):
            self._take(answer)
            return
        self._content_type = answer.content_type
        if self._received == NOW:
            self.offset = self._received = answer.next_offset

    def open(self) -> tuple[str, dict[str, str], float] | None:
        if not self._by_events:
            return None
        self._parser = EventParser()
        self._data, self._progress = None, False
        query = given_only({"offset": self._received, "live": "sse", "key": self._key})
        return f"{_path(self._name)}?{urlencode(query)}", {}, _QUIET_S

    def opened(self, response: Response) -> None:
        self._is_base64 = response.headers.get("stream-sse-data-encoding") == "base64"

    def feed(self, chunk: bytes) -> bool:
        events = self._parser.feed(chunk)
        for event in events:
            self._event(event)
        return bool(events)

    def broke(self, error: ClientError) -> ClientError | None:
        # A stream of events ends every minute by itself, and is opened again.
        return None if self._progress and isinstance(error, ConnectionFailed) else error

    def _event(self, event: ServerEvent) -> None:
        try:
            if event.name == "data":
                self._data = base64.b64decode(event.data) if self._is_base64 else event.data
            elif event.name == "control":
                told = msgspec.json.decode(event.data, type=_Control)
                self._progress = True
                data, self._data = self._data or b"", None
                self._take(
                    StreamPage(
                        name=self._name, content_type=self._content_type, content=data,
                        next_offset=told.stream_next_offset, up_to_date=told.up_to_date, closed=told.stream_closed,
                        gap=told.stream_gap,
                    )
                )  # fmt: skip
        except ValueError as problem:
            raise ConnectionFailed(f"an event cannot be understood: {problem}", maybe_done=False) from problem

    def _take(self, page: StreamPage) -> None:
        self._received = page.next_offset
        self._closed = page.closed
        if page.content or page.gap or page.closed:
            self._pages.append(page)
        elif not self._pages:
            self.offset = page.next_offset


def tail_stream(
    name: str,
    offset: str = START,
    *,
    key: str | None = None,
    live: Literal["sse", "long-poll"] = "sse",
    deadline_s: float = math.inf,
) -> StreamTail:
    """An iterator over the pages behind an offset that waits for more, and ends when the stream is closed.

    It begins at the start, `-1`, at the end, `now`, or where an earlier one stopped. A server that restarts, throttles
    or cannot be reached is asked again for `deadline_s`, by default for ever. Nothing is lost or repeated meanwhile.
    """
    return StreamTail(name, offset, key, live, deadline_s)


def _path(name: str) -> str:
    if not name.strip("/"):
        raise ValueError(f"{name!r} is not a stream name")
    return f"/v1/stream/{quote(name, safe='')}"


def _body(entries: Entries, content_type: str | None) -> tuple[bytes | None, str]:
    if isinstance(entries, bytes | bytearray):
        return bytes(entries), content_type or _BYTES
    if isinstance(entries, str | Mapping):
        raise TypeError(f"entries are bytes or several values, not a {type(entries).__name__}: put it in a list")
    values = list(entries)
    return encode_values(values) if values else None, content_type or _JSON


def _moment(value: datetime | str | None) -> str | None:
    if isinstance(value, datetime) and value.tzinfo is None:
        raise ValueError("a time needs its zone, such as datetime.now(UTC)")
    return value.isoformat() if isinstance(value, datetime) else value


def _producer(mark: ProducerMark | None) -> dict[str, object]:
    return {} if mark is None else {"producer-id": mark.id, "producer-epoch": mark.epoch, "producer-seq": mark.seq}


def _headers(given: Mapping[str, object]) -> dict[str, str]:
    return {name: "true" if value is True else str(value) for name, value in given_only(given).items()}


def _put(name: str, headers: Mapping[str, object], body: bytes | None) -> Request[StreamState]:
    def read(response: Response) -> StreamState:
        return _state(name, response)

    return Request(
        method="PUT", target=_path(name), body=body or b"", headers=_headers(headers), answer=StreamState, read=read
    )


def _post(name: str, headers: Mapping[str, object], body: bytes | None, *, repeatable: bool) -> Request[StreamAppended]:
    def read(response: Response) -> StreamAppended:
        found = response.headers
        return StreamAppended(
            name=name, next_offset=found["stream-next-offset"], closed=found.get("stream-closed") == "true",
            deduped="producer-id" in headers and bool(body) and response.status == 204,
        )  # fmt: skip

    return Request(
        method="POST", target=_path(name), body=body or b"", headers=_headers(headers), answer=StreamAppended,
        read=read, repeatable=repeatable,
    )  # fmt: skip


def _state(name: str, response: Response) -> StreamState:
    headers = response.headers
    return StreamState(
        name=name, content_type=headers.get("content-type", ""), next_offset=headers["stream-next-offset"],
        closed=headers.get("stream-closed") == "true", created=response.status == 201,
    )  # fmt: skip
