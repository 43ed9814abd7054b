"""Looking at streams and at the server: details, how far indexes are, limits and memory."""

from typing import Any
from urllib.parse import urlencode

import msgspec

from topics_client.requests import Request
from topics_client.streams.contents import stream_path
from topics_client.streams.contracts import StreamProfile, StreamSchema, profile_of
from topics_client.transport.http1 import Response

_UNCHANGED = 304


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stream with its sizes and times. Counters are texts, as everywhere in /v1."""

    name: str
    content_type: str
    profile: str = "generic"
    created_at: str
    updated_at: str
    expires_at: str | None = None
    ttl_seconds: int | None = None
    stream_seq: str | None = None
    """The highest `seq` of its appends, if any had one."""
    closed: bool
    epoch: int
    next_offset: str
    """How many entries there were so far."""
    sealed_through: str
    segment_count: int
    pending_rows: str
    """Entries that are in no segment yet."""
    pending_bytes: str
    total_size_bytes: str
    last_append_at: str
    last_segment_cut_at: str


class StreamDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a stream."""

    etag: str
    """Identifies this state: `get_stream_details` with it returns only newer ones."""
    stream: StreamInfo
    profile: StreamProfile
    schema: StreamSchema
    index_status: dict[str, Any]
    storage: dict[str, Any]
    """Where its bytes are."""


class IndexStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Which indexes a stream asks for, and how far they are. Searches need none of them to be right."""

    etag: str = ""
    """Identifies this state: `get_index_status` with it returns only newer ones."""
    stream: str
    profile: str
    segments: dict[str, int]
    exact_indexes: list[dict[str, Any]] = []
    search_families: list[dict[str, Any]] = []
    routing_key_index: dict[str, Any] = {}
    routing_key_lexicon: dict[str, Any] = {}
    manifest: dict[str, Any] = {}
    held_up: dict[str, Any] | None = None
    """Why nothing more is indexed; None where that goes on."""


def get_stream_details(
    name: str, *, etag: str | None = None, wait_ms: int | None = None
) -> Request[StreamDetails | None]:
    """Returns everything about a stream; None if the `etag` still applies. `wait_ms` waits for a change."""

    def read(response: Response) -> StreamDetails | None:
        if response.status == _UNCHANGED:
            return None
        found = msgspec.json.decode(response.content, type=_Details)
        return StreamDetails(
            etag=response.headers.get("etag", ""), stream=found.stream, profile=profile_of(found.profile["profile"]),
            schema=found.schema, index_status=found.index_status, storage=found.storage,
        )  # fmt: skip

    return _inspect(name, "_details", etag, wait_ms, read, StreamDetails)


def get_index_status(name: str, *, etag: str | None = None, wait_ms: int | None = None) -> Request[IndexStatus | None]:
    """Returns the progress of a stream's indexes; None if the `etag` still applies. `wait_ms` waits for a change."""

    def read(response: Response) -> IndexStatus | None:
        if response.status == _UNCHANGED:
            return None
        found = msgspec.json.decode(response.content, type=IndexStatus)
        return msgspec.structs.replace(found, etag=response.headers.get("etag", ""))

    return _inspect(name, "_index_status", etag, wait_ms, read, IndexStatus)


def server_details() -> Request[dict[str, Any]]:
    """Returns the limits of the server and its state: memory, queues, the largest streams."""
    return Request(method="GET", target="/v1/server/_details", answer=dict[str, Any], patient=False)


def server_memory() -> Request[dict[str, Any]]:
    """Returns the memory use of the server, by component."""
    return Request(method="GET", target="/v1/server/_mem", answer=dict[str, Any], patient=False)


class _Details(msgspec.Struct):
    stream: StreamInfo
    profile: dict[str, Any]
    schema: StreamSchema
    index_status: dict[str, Any]
    storage: dict[str, Any]


def _inspect(name: str, part: str, etag: str | None, wait_ms: int | None, read: Any, answer: Any) -> Request[Any]:
    if wait_ms is not None and etag is None:
        raise TypeError("wait_ms waits for another state than the one of an etag: give it")
    query = "" if wait_ms is None else "?" + urlencode({"live": "true", "timeout_ms": wait_ms})
    return Request(
        method="GET", target=stream_path(name, f"/{part}{query}"), answer=answer, read=read,
        headers={} if etag is None else {"if-none-match": etag},
        partial_status=_UNCHANGED, wait_s=(wait_ms or 0) / 1000,
    )  # fmt: skip
