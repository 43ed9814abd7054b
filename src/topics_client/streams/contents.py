"""Streams and their contents: every call as a value, and the answers."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from topics_client.errors import Unsendable
from topics_client.requests import Request, encode_values, given_only, moment
from topics_client.transport.http1 import Response

T = TypeVar("T")

START, NOW = "-1", "now"
_JSON = "application/json"
_BYTES = "application/octet-stream"
_AS_GIVEN = ("stream-key", "stream-seq", "producer-id")
"""Headers in which every character counts."""

Entries = bytes | Iterable[object]
"""Entries to append: bytes unchanged, or values that are encoded as JSON."""


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a stream, and its end."""

    name: str
    content_type: str
    next_offset: str
    """Its end: reading from here returns only new entries."""
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
    """The entries behind an offset."""

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
    """The range lost before the entries, such as `1-57; reason=cap`."""
    scan_limited: bool = False
    """Whether a filtered read stopped at the limit of examined entries for one answer. The next one continues."""

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
    profile: str = "generic"


class ProducerMark(msgspec.Struct, frozen=True):
    """A producer's id, epoch and sequence number, by which a repeated request is recognized."""

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
    """Creates a stream, with its first entries if given, or confirms an existing one.

    The content type cannot change later: JSON by default, or bytes if the entries are bytes. The stream expires after
    `ttl_s` without use, or at `expires_at`.
    """
    body, kind = _body(entries, content_type)
    headers = {"stream-ttl": ttl_s, "stream-expires-at": moment(expires_at), "stream-closed": closed or None}
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
    """Creates a stream that begins with the entries of another, up to an offset or its end, without copying them."""
    headers = {
        "content-type": content_type, "stream-ttl": ttl_s, "stream-expires-at": moment(expires_at),
        "stream-forked-from": stream_path(source), "stream-fork-offset": offset, "stream-fork-sub-offset": sub_offset,
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
    """Appends entries atomically, in order: values to a JSON stream, bytes to any other.

    `key` is the key of all of them, `ts` their time in the past, `seq` must be above every one before, and `close`
    closes the stream with them. Without a `producer` it is sent again only when it certainly was not carried out.
    """
    body, kind = _body(entries, content_type)
    headers = {
        "content-type": kind, "stream-key": key, "stream-timestamp": moment(ts), "stream-seq": seq,
        "stream-closed": close or None, **_producer(producer),
    }  # fmt: skip
    return _post(name, headers, body, repeatable=producer is not None)


def close_stream(name: str, *, producer: ProducerMark | None = None) -> Request[StreamAppended]:
    """Closes a stream for writing; closing it again changes nothing."""
    return _post(name, {"stream-closed": True, **_producer(producer)}, b"", repeatable=True)


def get_stream(name: str) -> Request[StreamState]:
    """Returns content type, end and closure of a stream."""

    def read(response: Response) -> StreamState:
        return _state(name, response)

    return Request(method="HEAD", target=stream_path(name), answer=StreamState, read=read)


def read_stream(
    name: str,
    offset: str | None = None,
    *,
    since: datetime | str | None = None,
    key: str | None = None,
    filter: str | None = None,
    wait_ms: int | None = None,
) -> Request[StreamPage]:
    """Returns the entries behind an offset or from a time on, by default from the start (`-1`); `now` is the end.

    `key` selects the entries of one routing key, `filter` those that match a query over declared fields, such as
    `status:>=500 -service:billing`. `wait_ms` waits for entries if there are none.
    """
    live = {} if wait_ms is None else {"live": "long-poll", "timeout": f"{wait_ms}ms"}
    if wait_ms is not None and offset is None and since is None:
        offset = START
    query = given_only({"offset": offset, "since": moment(since), "key": key, "filter": filter, **live})

    def read(response: Response) -> StreamPage:
        headers = response.headers
        return StreamPage(
            name=name, content_type=headers.get("content-type", ""), content=response.content,
            next_offset=headers["stream-next-offset"], up_to_date=headers.get("stream-up-to-date") == "true",
            closed=headers.get("stream-closed") == "true", gap=headers.get("stream-gap"),
            scan_limited=headers.get("stream-filter-scan-limit-reached") == "true",
        )  # fmt: skip

    target = stream_path(name) + ("?" + urlencode(query) if query else "")
    return Request(method="GET", target=target, answer=StreamPage, read=read, wait_s=(wait_ms or 0) / 1000)


def delete_stream(name: str) -> Request[None]:
    """Deletes a stream with its entries; entries that forks inherited stay readable in the forks."""
    return Request(method="DELETE", target=stream_path(name), answer=None, read=lambda response: None)


def list_streams(prefix: str = "", *, after: str = "", limit: int | None = None) -> Request[list[StreamSummary]]:
    """Returns streams behind the name `after`, by name."""
    query = given_only({"prefix": prefix or None, "after": after or None, "limit": limit})
    target = "/v1/streams" + ("?" + urlencode(query) if query else "")
    return Request(method="GET", target=target, answer=list[StreamSummary])


def stream_path(name: str, part: str = "") -> str:
    if not name.strip("/"):
        raise Unsendable(f"{name!r} is not a stream name")
    return f"/v1/stream/{quote(name, safe='')}{part}"


def _body(entries: Entries, content_type: str | None) -> tuple[bytes | None, str]:
    if isinstance(entries, bytes | bytearray):
        return bytes(entries), content_type or _BYTES
    if isinstance(entries, str | Mapping):
        raise TypeError(f"entries are bytes or several values, not a {type(entries).__name__}: put it in a list")
    values = list(entries)
    return encode_values(values) if values else None, content_type or _JSON


def _producer(mark: ProducerMark | None) -> dict[str, object]:
    return {} if mark is None else {"producer-id": mark.id, "producer-epoch": mark.epoch, "producer-seq": mark.seq}


def _headers(given: Mapping[str, object]) -> dict[str, str]:
    for name in _AS_GIVEN:
        value = given.get(name)
        if isinstance(value, str) and value != value.strip(" "):
            # They would be taken off on the way, and it would be another one.
            raise Unsendable(f"{name}: blanks at the ends of {value!r} cannot be sent")
    return {name: "true" if value is True else str(value) for name, value in given_only(given).items()}


def _put(name: str, headers: Mapping[str, object], body: bytes | None) -> Request[StreamState]:
    def read(response: Response) -> StreamState:
        return _state(name, response)

    return Request(
        method="PUT",
        target=stream_path(name),
        body=body or b"",
        headers=_headers(headers),
        answer=StreamState,
        read=read,
    )


def _post(name: str, headers: Mapping[str, object], body: bytes | None, *, repeatable: bool) -> Request[StreamAppended]:
    def read(response: Response) -> StreamAppended:
        found = response.headers
        return StreamAppended(
            name=name, next_offset=found["stream-next-offset"], closed=found.get("stream-closed") == "true",
            deduped="producer-id" in headers and bool(body) and response.status == 204,
        )  # fmt: skip

    return Request(
        method="POST", target=stream_path(name), body=body or b"", headers=_headers(headers), answer=StreamAppended,
        read=read, repeatable=repeatable,
    )  # fmt: skip


def _state(name: str, response: Response) -> StreamState:
    headers = response.headers
    return StreamState(
        name=name, content_type=headers.get("content-type", ""), next_offset=headers["stream-next-offset"],
        closed=headers.get("stream-closed") == "true", created=response.status == 201,
    )  # fmt: skip
