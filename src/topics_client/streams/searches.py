"""Finding entries of a stream or records of a topic, adding them up, and listing their keys."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode

import msgspec

from topics_client.requests import Request, encode_values, given_only, moment, topic_path
from topics_client.streams.contents import stream_path

T = TypeVar("T")

Moment = datetime | str | int
"""A time with its zone, an ISO 8601 text, or milliseconds since 1970."""

_SEARCH_S = 3.0
"""The time limit of a query on the server."""


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """The coverage of an answer. Offsets and numbers that the question does not have are empty."""

    complete: bool
    """Whether everything up to the end was looked at. Only a budget of time or memory leaves something out."""
    mode: str = ""
    """`complete`, or `published` where something is missing."""
    stream_head_offset: str = ""
    visible_through_offset: str = ""
    """All entries up to here were examined."""
    possible_missing_events_upper_bound: int = 0
    """The number of entries that were not examined; never too low."""
    oldest_omitted_append_at: str | None = None
    scanned_tail_docs: int = 0


class Highlight(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a text around its first words that match the query."""

    text: str
    spans: list[tuple[int, int]]
    """Where they begin and end in `text`."""


class Hit(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """An entry that was found. Its content is decoded when it is first asked for."""

    stream: str | None = None
    """The stream of the hit, where several streams were searched."""
    offset: str
    score: float = 0.0
    sort: list[Any] = []
    """The values of the sort keys."""
    fields: dict[str, Any] = {}
    """The declared fields, as in the entry."""
    highlights: dict[str, list[Highlight]] = {}
    """By text field, where they were asked for."""
    payload: msgspec.Raw = msgspec.field(name="source", default=msgspec.Raw(b"null"))

    @cached_property
    def source(self) -> Any:
        """The entry as Python values, in the current version of its schema; None where it was not asked for."""
        return msgspec.json.decode(self.payload)

    @property
    def raw(self) -> bytes:
        """The entry as JSON text."""
        return bytes(self.payload)

    def decode(self, type: type[T]) -> T:
        """The entry as a value of this type; raises `msgspec.ValidationError` when it is none."""
        return msgspec.json.decode(self.payload, type=type)


class SearchTotal(msgspec.Struct, frozen=True, kw_only=True):
    """How many were found."""

    value: int
    relation: Literal["eq", "gte"]
    """`eq` if there are no others, `gte` if there may be."""


class SearchPage(msgspec.Struct, frozen=True, kw_only=True):
    """The first hits of an order."""

    stream: str
    hits: list[Hit]
    total: SearchTotal
    """The hits of this page, or with `track_total` all that match."""
    next_search_after: list[Any] | None = None
    """Where the next page goes on; None on the last one."""
    timed_out: bool = False
    """Whether time ran out: the hits are those that were found until then."""
    coverage: Coverage
    took_ms: int = 0
    timeout_ms: int = 0
    snapshot_end_offset: str = ""
    """The end of the stream when the query came; everything up to there was searched."""
    explain: dict[str, Any] | None = None


class SkippedStream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that fits and cannot answer the query."""

    stream: str
    reason: str


class StreamsSearchPage(msgspec.Struct, frozen=True, kw_only=True):
    """The first hits of an order, of several streams."""

    streams: list[str]
    """The searched streams."""
    skipped: list[SkippedStream] = []
    more_streams: bool = False
    """Whether there are others that fit, which were not searched."""
    hits: list[Hit]
    total: SearchTotal
    next_search_after: dict[str, Any] | None = None
    """Where the next page goes on; None on the last one."""
    timed_out: bool = False
    coverage: Coverage
    took_ms: int = 0


class TopicHit(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A record that was found. Its data is decoded when it is first asked for."""

    seq: int = msgspec.field(name="$seq")
    score: float = 0.0
    sort: list[Any] = []
    """The values of the sort keys."""
    fields: dict[str, Any] = {}
    """The declared fields, as in the record."""
    highlights: dict[str, list[Highlight]] = {}
    """By text field, where they were asked for."""
    payload: msgspec.Raw = msgspec.field(name="data", default=msgspec.Raw(b"null"))

    @cached_property
    def data(self) -> Any:
        """The record as Python values, in the current version of its schema; None where it was not asked for."""
        return msgspec.json.decode(self.payload)


class TopicCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """The coverage of a topic search."""

    complete: bool
    """Whether everything up to the end was looked at."""
    missing_at_most: int = 0
    first_missing_seq: int | None = None
    spent: str | None = None
    """The budget that ran out: `time`, `bytes` or `memory`."""
    entries: int = 0
    scanned_bytes: int = 0


class TopicSearchPage(msgspec.Struct, frozen=True, kw_only=True):
    """The first hits of an order, of a topic."""

    topic: str
    hits: list[TopicHit]
    total: SearchTotal
    """The hits of this page, or with `track_total` all that match."""
    next_search_after: list[Any] | None = None
    """Where the next page goes on; None on the last one."""
    head_seq: int
    """The end of the topic when the query came."""
    timed_out: bool = False
    """Whether time ran out: the hits are those that were found until then."""
    coverage: TopicCoverage
    explain: dict[str, Any] | None = None


class BucketGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of a bucket with the same dimensions."""

    key: dict[str, Any] = {}
    measures: dict[str, dict[str, Any]] = {}
    """By name: a `count`, or also `sum`, `min`, `max`, `avg`, `p50`, `p95`, `p99` and `histogram`."""


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """One interval of time."""

    start: str
    end: str
    groups: list[BucketGroup]


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """A rollup over a range of time, the oldest bucket first. A bucket without entries is left out."""

    stream: str
    rollup: str | None = None
    """None where the request brought its own."""
    start: str = msgspec.field(name="from")
    end: str = msgspec.field(name="to")
    interval: str | None = None
    coverage: Coverage
    buckets: list[Bucket]


class RoutingKeyPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some routing keys of live entries, sorted, each once."""

    stream: str
    keys: list[str]
    next_after: str | None = None
    """Where the next page begins; None on the last one."""
    coverage: Coverage
    took_ms: int = 0


def search(
    name: str,
    q: str = "",
    *,
    sort: Sequence[str] | str = (),
    size: int | None = None,
    search_after: Sequence[object] | None = None,
    timeout_ms: int | None = None,
    track_total: bool = False,
    source: bool = True,
    fields: Sequence[str] | None = None,
    highlight: bool | Sequence[str] = False,
    explain: bool = False,
    rank: Literal["bm25"] | None = None,
) -> Request[SearchPage]:
    """Searches a stream that has a search description, and returns the first `size` hits of an order, 50 by default.

    `q` is a query such as `status:>=500 timeout`; an empty query matches every entry. `sort` are fields, `_score` or
    `offset`, each with `:asc` or `:desc`; `search_after` is the `next_search_after` of the previous page. A timeout is
    not an error: the page has the hits so far, and `timed_out`. `source=False` leaves out the entries, `fields` selects
    declared fields, `highlight` returns pieces of matching texts, and `track_total` counts all matches. `rank="bm25"`
    scores by how rare words are in the stream instead of by the number of matching words; all pages use the ranking of
    the first.
    """
    given = _asked(q, sort, size, timeout_ms, track_total, source, fields, highlight, explain, rank)
    body = _encoded({**given, "search_after": None if search_after is None else list(search_after)})
    target = stream_path(name, "/_search")
    return Request(method="POST", target=target, body=body, answer=SearchPage, partial_status=408, wait_s=_SEARCH_S)


def search_topic(
    topic: str,
    q: str = "",
    *,
    sort: Sequence[str] | str = (),
    size: int | None = None,
    search_after: Sequence[object] | None = None,
    timeout_ms: int | None = None,
    track_total: bool = False,
    source: bool = True,
    fields: Sequence[str] | None = None,
    highlight: bool | Sequence[str] = False,
    explain: bool = False,
    rank: Literal["bm25"] | None = None,
    streams: bool = False,
) -> Request[TopicSearchPage]:
    """Searches a topic, like `search`, with seqs in place of offsets.

    `streams` permits a stream whose name topics cannot have. A `diff` with a `filter` needs no search description.
    """
    given = _asked(q, sort, size, timeout_ms, track_total, source, fields, highlight, explain, rank)
    body = _encoded({**given, "search_after": None if search_after is None else list(search_after)})
    target = topic_path(topic, "/search", {"streams": "true" if streams else None})
    return Request(method="POST", target=target, body=body, answer=TopicSearchPage, wait_s=_SEARCH_S)


def search_streams(
    streams: str | Sequence[str],
    q: str = "",
    *,
    sort: Sequence[str] | str = (),
    size: int | None = None,
    search_after: Mapping[str, object] | None = None,
    timeout_ms: int | None = None,
    track_total: bool = False,
    source: bool = True,
    fields: Sequence[str] | None = None,
    highlight: bool | Sequence[str] = False,
    rank: Literal["bm25"] | None = None,
) -> Request[StreamsSearchPage]:
    """Searches all streams whose names match a pattern or one of several, like `search`: `*` matches a part of a name's
    segment, `**` any number of segments. Hits have their stream, and are sorted by time by default.
    """
    given = _asked(q, sort, size, timeout_ms, track_total, source, fields, highlight, False, rank)
    names = streams if isinstance(streams, str) else list(streams)
    body = _encoded({"streams": names, **given, "search_after": search_after})
    return Request(
        method="POST", target="/v1/_search", body=body, answer=StreamsSearchPage, partial_status=408, wait_s=_SEARCH_S
    )


def _asked(
    q: str, sort: Sequence[str] | str, size: int | None, timeout_ms: int | None, track_total: bool, source: bool,
    fields: Sequence[str] | None, highlight: bool | Sequence[str], explain: bool,
    rank: str | None,
) -> dict[str, object]:  # fmt: skip
    """The fields that every search request may have."""
    return {
        "q": q or None,
        "sort": [sort] if isinstance(sort, str) else list(sort) or None,
        "size": size,
        "timeout_ms": timeout_ms,
        "track_total": track_total or None,
        "_source": None if source else False,
        "fields": None if fields is None else list(fields),
        "highlight": (highlight if isinstance(highlight, bool) else list(highlight)) or None,
        "explain": explain or None,
        "rank": rank,
    }


def _encoded(given: Mapping[str, object]) -> bytes:
    return encode_values(given_only(given))


def aggregate(
    name: str,
    rollup: str | None = None,
    *,
    start: Moment | None = None,
    end: Moment | None = None,
    interval: str | None = None,
    q: str = "",
    group_by: Sequence[str] | None = None,
    measures: Sequence[str] | Mapping[str, object] | None = None,
    timestamp_field: str | None = None,
    top: int | None = None,
) -> Request[Aggregate]:
    """Aggregates entries from `start` to before `end` in buckets of an interval: of a rollup, or of any fields.

    A `rollup` that the stream declares needs all three of them; `group_by` are its dimensions, `measures` names of its
    measures, or all. Without one the request brings its own: `measures` are objects by name, such as
    `{"ms": {"kind": "summary", "field": "ms"}}`, or a count; `group_by` are any fields, of which `top` keeps the
    largest groups; without an interval all is one bucket. Only entries that match `q` count.
    """
    by_name = isinstance(measures, Mapping)
    given = {
        "rollup": rollup,
        "from": _bound(start),
        "to": _bound(end),
        "interval": interval,
        "q": q or None,
        "group_by": None if group_by is None else list(group_by),
        "measures": measures if measures is None or by_name else list(measures),
        "timestamp_field": timestamp_field,
        "top": top,
    }
    target = stream_path(name, "/_aggregate")
    return Request(method="POST", target=target, body=_encoded(given), answer=Aggregate, wait_s=_SEARCH_S)


def list_routing_keys(name: str, *, after: str | None = None, limit: int | None = None) -> Request[RoutingKeyPage]:
    """Returns one page of the routing keys of live entries, sorted."""
    query = given_only({"after": after, "limit": limit})
    target = stream_path(name, "/_routing_keys") + ("?" + urlencode(query) if query else "")
    return Request(method="GET", target=target, answer=RoutingKeyPage, wait_s=_SEARCH_S)


def _bound(value: Moment | None) -> str | int | None:
    return value if isinstance(value, int) else moment(value)
