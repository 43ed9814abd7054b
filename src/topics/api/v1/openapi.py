"""OpenAPI description of /v1: each route by its method and path, as `StreamsApi.listed` names them.

A test fails for a route that is missing here.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from topics.api.app import Parameter
from topics.api.error_responses import V1_CODE_BY_STATUS, V1_STATUS_BY_CODE
from topics.api.openapi import JSON, REF, OperationSpec, ParameterSpec, ResponseSpec, Schema, write_operation
from topics.api.v1.stream_details import ListedStream
from topics.api.v1.subscriptions import ClaimRequest, LinkRequest, ReleaseRequest
from topics.streams.subscriptions.subscription import SubscriptionRequest
from topics.streams.subscriptions.subscriptions import Acks
from topics_protocol.v0 import ErrorAnswer

# The parts of descriptions of /v1: names, parameters, headers, and messages without a type in this package.

_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "string", "enum": ["true"]}
_DURATION: Schema = {"type": "string", "pattern": "^(0|[1-9][0-9]{0,9})(ms|s|m|h|d)?$"}
_DATE, _CLOCK = "[0-9]{4}-[0-9]{2}-[0-9]{2}", "[0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,9})?"
_MOMENT: Schema = {"type": "string", "pattern": f"^([0-9]{{1,19}}|{_DATE}T{_CLOCK}(Z|[+-][0-9]{{2}}:[0-9]{{2}}))$"}
_OFFSET: Schema = {"type": "string", "pattern": "^(-1|now|[0-7][0-9A-HJKMNP-TV-Z]{25})$"}
_NUMBER: Schema = {"type": "string", "pattern": "^(0|[1-9][0-9]{0,14})$"}


def whole(minimum: int) -> Schema:
    return {"type": "integer", "minimum": minimum, "maximum": 2**53 - 1}


NAMES: dict[str, tuple[Schema, str]] = {
    "stream": (
        {"type": "string", "minLength": 1, "maxLength": 1024},
        "1 to 1024 bytes of printable UTF-8; slashes belong to it. Some names are reserved.",
    ),
    "key": ({"type": "string", "minLength": 1}, "The key of the entries."),
    "id": ({"type": "string", "minLength": 1, "maxLength": 255}, "The subscription; at most 255 bytes."),
    "name": ({"type": "string", "minLength": 1}, "The stream."),
}

READ_QUERY = (
    Parameter("offset", _OFFSET, "-1 the start, now the end, or an offset; a live read must give one."),
    Parameter("since", _MOMENT, "Begin at a time, RFC 3339 or nanoseconds since 1970; an offset wins."),
    Parameter("key", _TEXT, "Only entries of this key."),
    Parameter("filter", _TEXT, "Only entries that match a query over declared fields: status:>=500 AND has:error."),
    Parameter("format", {"type": "string", "enum": ["json", "raw"]}, "An array, or concatenated bytes."),
    Parameter("live", {"type": "string", "enum": ["long-poll", "true", "1", "sse"]}, "Wait for new entries."),
    Parameter("timeout", _DURATION, "How long a long poll may wait, such as 250ms or 2s."),
    Parameter("cursor", _TEXT, "The last Stream-Cursor."),
)

REQUEST_HEADERS: dict[str, tuple[Schema, str]] = {
    "Stream-TTL": (_DURATION, "How long the stream lives unused, in whole seconds; 3600 or 1h."),
    "Stream-Expires-At": (_MOMENT, "When the stream ends."),
    "Stream-Closed": (_FLAG, "Close the stream."),
    "Stream-Forked-From": (_TEXT, "The path of the stream to begin with."),
    "Stream-Fork-Offset": (_OFFSET, "Where the fork leaves its source; its end unless told."),
    "Stream-Fork-Sub-Offset": (_NUMBER, "How much of the next entry or append belongs to the fork as well."),
    "Stream-Key": (_TEXT, "The key of the entries; not allowed if the stream has a routing key."),
    "Stream-Timestamp": (_MOMENT, "The append time."),
    "Stream-Seq": (_TEXT, "Must be above the last one of the stream."),
    "Producer-Id": ({"type": "string", "minLength": 1}, "Id of the producer; with the next two or without."),
    "Producer-Epoch": (_NUMBER, "Which run of the producer."),
    "Producer-Seq": (_NUMBER, "Which request of this run."),
    "If-None-Match": (_TEXT, "The ETag of what the client has."),
}

ANSWER_HEADERS: dict[str, str] = {
    "Stream-Next-Offset": "Where to go on.",
    "Stream-End-Offset": "The end of the stream at that moment.",
    "Stream-Up-To-Date": "true: the answer reaches the end.",
    "Stream-Closed": "true: nothing will follow.",
    "Stream-Gap": "Entries that were lost before the first one of the answer.",
    "Stream-Cursor": "To be sent with the next live read.",
    "Stream-TTL": "How long the stream lives unused, in seconds.",
    "Stream-Expires-At": "When the stream ends.",
    "Stream-SSE-Data-Encoding": "base64, where data is neither text nor JSON.",
    "Stream-Filter-Scan-Limit-Reached": "true: the filter stopped where it had looked at enough.",
    "Stream-Filter-Scan-Limit-Bytes": "How much one read with a filter looks at.",
    "Stream-Filter-Scanned-Bytes": "How much it looked at.",
    "Stream-Expected-Seq": "The Stream-Seq that the next must be above.",
    "Stream-Received-Seq": "The Stream-Seq that was sent.",
    "Producer-Epoch": "The current run of the producer.",
    "Producer-Seq": "The highest accepted request of the producer.",
    "Producer-Expected-Seq": "The request of the producer that is next.",
    "Producer-Received-Seq": "The request of the producer that was sent.",
    "ETag": "Stands for what the answer holds.",
    "Cache-Control": "How long it may be kept.",
    "Location": "The address of the stream.",
    "Retry-After": "Seconds to wait.",
    "WWW-Authenticate": "Bearer.",
    "Allow": "The allowed methods.",
}

_BYTES: Schema = {"type": "string", "format": "binary"}
BODIES: dict[str, Schema] = {
    "application/json": {"description": "One value, or an array of which every element is an entry."},
    "application/octet-stream": _BYTES,
    "text/plain": _TEXT,
}
ENTRIES: dict[str, type | Schema] = {
    "application/json": {"type": "array", "description": "The entries; with format=raw they have no brackets."},
    "text/event-stream": _TEXT,
    "*/*": _BYTES,
}


def _described(properties: dict[str, Schema], texts: dict[str, str]) -> dict[str, Schema]:
    """The properties with their help texts."""
    return {name: {**schema, "description": texts[name]} for name, schema in properties.items()}


def _object(**required: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": dict(required)}


REGISTRY = _object(
    apiVersion={"const": "durable.streams/schema-registry/v1"}, schema=_TEXT, currentVersion=whole(0),
    boundaries={"type": "array", "items": _object(offset=whole(0), version=whole(1))}, schemas={"type": "object"},
    lenses={"type": "object"},
)  # fmt: skip
_OPTIONAL_OBJECT: Schema = {"anyOf": [{"type": "object"}, {"type": "null"}]}
REGISTRY_BODY: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "durable.streams/schema-registry/v1"}, "schema": {"type": "object"},
        "lens": {"type": "object"}, "routingKey": _OPTIONAL_OBJECT, "search": _OPTIONAL_OBJECT,
    },
}  # fmt: skip
_INFER_BODY: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"entries": {"type": "integer", "minimum": 1, "maximum": 1000}},
}
_INFERRED = _object(
    apiVersion={"const": "durable.streams/schema-registry/v1"}, search=_object(fields={"type": "object"}),
    sampled=_object(entries=whole(0), objects=whole(0), bytes=whole(0)),
    skipped={"type": "array", "items": _object(pointer=_TEXT, reason=_TEXT)},
)  # fmt: skip
PROFILE = _object(apiVersion={"const": "durable.streams/profile/v1"}, profile=_object(kind=_TEXT))
PROFILE_BODY: Schema = {
    "type": "object",
    "required": ["profile"],
    "properties": {"apiVersion": {"const": "durable.streams/profile/v1"}, "profile": _object(kind=_TEXT)},
}
SUBSCRIPTION = _object(
    id=_TEXT, type={"enum": ["webhook", "pull-wake"]}, lease_ttl_ms=whole(0), created_at=_TEXT, generation=whole(0),
    status={"enum": ["claimed", "idle"]}, streams={"type": "array", "items": {"type": "object"}},
)  # fmt: skip
GRANTED = _object(
    wake_id=_TEXT, generation=whole(0), token=_TEXT, lease_ttl_ms=whole(0),
    streams={"type": "array", "items": {"type": "object"}},
)  # fmt: skip
_LIST: Schema = {"type": "array", "items": {"type": "object"}}
TOUCH_META = _object(cursor=_TEXT, epoch=_TEXT, generation=whole(0), settled={"type": "boolean"})
_TEMPLATES: Schema = {
    "type": "array",
    "maxItems": 256,
    "items": _object(entity=_TEXT, fields={"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "object"}}),
}
_LIFETIME: Schema = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
TOUCH_WAIT: Schema = {
    "type": "object",
    "required": ["cursor"],
    "additionalProperties": False,
    "properties": {
        "cursor": {"type": "string", "minLength": 1, "maxLength": 64},
        "keys": {"type": "array", "maxItems": 1024, "items": _TEXT},
        "keyIds": {"type": "array", "maxItems": 1024, "items": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}},
        "timeoutMs": {"type": "integer", "minimum": 0, "maximum": 120_000},
        "interestMode": {"enum": ["fine", "coarse"]},
        "exact": {"type": "boolean"},
        "templateIdsUsed": {"type": "array", "items": {"type": "string", "pattern": "^[0-9a-f]{16}$"}},
        "declareTemplates": _TEMPLATES,
        "inactivityTtlMs": _LIFETIME,
    },
}
TOUCHED = _object(cursor=_TEXT, effectiveWaitKind=_TEXT)
TEMPLATES_BODY: Schema = {
    "type": "object",
    "required": ["templates"],
    "additionalProperties": False,
    "properties": {"templates": {**_TEMPLATES, "minItems": 1}, "inactivityTtlMs": _LIFETIME},
}
TEMPLATES = _object(activated=_LIST, denied=_LIST, limits={"type": "object"})

# Search

SEARCH_FIELDS: dict[str, str] = {
    "q": "The query.",
    "size": "1 to 500 hits, 50 by default.",
    "sort": (
        "`_score`, `offset` or a field, each with `:asc` or `:desc` (default); `offset:desc` is the last key. Default: "
        "newest first, or for queries with words by score, primary timestamp and offset, all descending."
    ),
    "search_after": "`next_search_after` of the previous page.",
    "timeout_ms": "At most 3000.",
    "track_total": "Counts all matches in `total`.",
    "explain": "Adds the parsed query and sort, and the work of each part of the plan.",
    "rank": "`bm25` scores by rarity of words.",
    "_source": "`false` leaves out `source`.",
    "fields": "The declared fields to return.",
    "highlight": (
        "`true`, or a list of text fields: adds the text around the first match and its positions: "
        '`{"text": "paid by card", "spans": [[8, 12]]}`.'
    ),
}
SEARCH_ANSWER: dict[str, str] = {
    "stream": "The name of the stream.",
    "took_ms": "The time that the query took.",
    "timed_out": "Whether the query exceeded its time.",
    "snapshot_end_offset": "The end of the stream at the start of the query, which searches up to there.",
    "hits": "`offset`, `score`, `sort` (the sort keys), `fields` (as in the entry), `source` (the entry, promoted).",
    "total": "Hits of this page, with relation `eq` if there are no others.",
    "next_search_after": "The start of the next page, if this page is full.",
    "coverage": "The searched part of the stream.",
}
AGGREGATE_FIELDS: dict[str, str] = {
    "rollup": "A rollup of the search description. Without one, any declared fields can be aggregated.",
    "interval": "With a rollup required, one of its intervals; else such as `10s`, or one bucket without it.",
    "from": "With a rollup required.",
    "to": "With a rollup required; excluded.",
    "q": "Aggregates only entries that match.",
    "group_by": "Dimensions of the rollup; without one, fields with `exact` or `column`.",
    "measures": (
        "Some of the rollup's measures. Without a rollup an object of measures: `count`, or `summary` of a column of "
        "integers or floats, with `histogram` for percentiles; default: one `count`."
    ),
    "timestamp_field": (
        "Without a rollup: a date field; default: the primary timestamp. Entries without it do not count."
    ),
    "top": (
        "Without a rollup: the number of groups per bucket; those with the greatest counts of the first measure are "
        "returned."
    ),
}
COVERAGE: dict[str, str] = {
    "complete": "Whether everything up to the end was searched.",
    "mode": "`complete` or `published` (incomplete).",
    "stream_head_offset": "The end of the stream.",
    "visible_through_offset": "Everything up to here was searched.",
    "possible_missing_events_upper_bound": "Upper bound of the entries not searched.",
    "possible_missing_sealed_rows": "Entries of sealed segments not searched.",
    "possible_missing_wal_rows": "Entries of the log not searched.",
    "possible_missing_uploaded_segments": "The number of segments not searched.",
    "oldest_omitted_append_at": "The time of the first entry not searched, or slightly earlier.",
    "scanned_tail_docs": "Entries examined in the memory index.",
    "indexed_segments": "Segments covered by index files.",
    "index_families_used": "Types of index used: `exact`, `col`, `fts`; for an aggregation `agg` or `col`.",
    "used_rollups": "Whether an aggregation used precomputed sums.",
}

_BOOLEAN: Schema = {"type": "boolean"}
_SIZE: Schema = {"type": "integer", "minimum": 1, "maximum": 500}
_MOMENT_OR_MS: Schema = {"anyOf": [_TEXT, {"type": "integer"}]}
_NAMES_LIST: Schema = {"type": "array", "items": _TEXT}
_RANK: Schema = {"enum": ["bm25"]}
SEARCH_QUERY = (
    Parameter("q", _TEXT, "The query."),
    Parameter("size", _SIZE, "Hits of a page; 50 by default."),
    Parameter("search_after", _TEXT, "The next_search_after of the previous page, as a JSON array."),
    Parameter("sort", _TEXT, "_score, offset or fields with :asc or :desc, separated by commas."),
    Parameter("timeout_ms", whole(0), "Time limit of the query."),
    Parameter("track_total", _BOOLEAN, "Whether to count all hits."),
    Parameter("explain", _BOOLEAN, "Whether to explain the plan of the query."),
    Parameter("_source", _BOOLEAN, "Whether hits hold their entries."),
    Parameter("fields", _TEXT, "The fields that hits hold, separated by commas."),
    Parameter(
        "highlight", _TEXT, "Whether to return matching text with positions, or the fields for it, separated by commas."
    ),
    Parameter("rank", _RANK, "bm25 scores by rarity of words; the default by the number of matches."),
)
_SEARCH_FIELDS: dict[str, Schema] = {
    "q": _TEXT, "size": _SIZE, "sort": {"anyOf": [_TEXT, _NAMES_LIST]}, "timeout_ms": whole(0),
    "track_total": _BOOLEAN, "explain": _BOOLEAN, "_source": _BOOLEAN, "fields": _NAMES_LIST,
    "highlight": {"anyOf": [_BOOLEAN, _NAMES_LIST]}, "rank": _RANK,
}  # fmt: skip
SEARCH_BODY: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": _described({**_SEARCH_FIELDS, "search_after": {"type": "array"}}, SEARCH_FIELDS),
}
SEARCH_MANY_BODY: Schema = {
    "type": "object",
    "additionalProperties": False,
    "required": ["streams"],
    "properties": {
        **_SEARCH_FIELDS, "streams": {"anyOf": [_TEXT, _NAMES_LIST]},
        "search_after": {"type": "object", "additionalProperties": {"anyOf": [{"type": "array"}, {"type": "null"}]}},
    },
}  # fmt: skip
SEARCHED_MANY = _object(
    streams=_NAMES_LIST, skipped=_LIST, more_streams=_BOOLEAN, took_ms={"type": "number"}, timed_out=_BOOLEAN,
    coverage={"type": "object"}, total=_object(value=whole(0), relation={"enum": ["eq", "gte"]}), hits=_LIST,
    next_search_after={"anyOf": [{"type": "object"}, {"type": "null"}]},
)  # fmt: skip
_COVERAGE: Schema = {"type": "object", "properties": {name: {"description": text} for name, text in COVERAGE.items()}}
SEARCHED = _object(
    **_described(
        {
            "stream": _TEXT, "snapshot_end_offset": _TEXT, "took_ms": {"type": "number"}, "timed_out": _BOOLEAN,
            "coverage": _COVERAGE, "total": _object(value=whole(0), relation={"enum": ["eq", "gte"]}), "hits": _LIST,
            "next_search_after": {"anyOf": [{"type": "array"}, {"type": "null"}]},
        },
        SEARCH_ANSWER,
    )
)  # fmt: skip
AGGREGATE_BODY: Schema = {
    "type": "object",
    "properties": _described(
        {
            "rollup": _TEXT, "interval": _TEXT, "from": _MOMENT_OR_MS, "to": _MOMENT_OR_MS, "q": _TEXT,
            "group_by": _NAMES_LIST, "measures": {"anyOf": [_NAMES_LIST, {"type": "object"}]},
            "timestamp_field": _TEXT, "top": whole(1),
        },
        AGGREGATE_FIELDS,
    ),
}  # fmt: skip
_TEXT_OR_NULL: Schema = {"anyOf": [_TEXT, {"type": "null"}]}
AGGREGATED = _object(rollup=_TEXT_OR_NULL, to=_TEXT, interval=_TEXT_OR_NULL, coverage={"type": "object"}, buckets=_LIST)
ROUTING_KEYS = _object(
    stream=_TEXT, coverage={"type": "object"}, took_ms={"type": "number"}, keys=_NAMES_LIST,
    next_after={"anyOf": [_TEXT, {"type": "null"}]},
)  # fmt: skip

# Inspection

INSPECT_QUERY = (
    Parameter(
        "live",
        {"type": "string", "enum": ["long-poll", "true", "1"]},
        "Wait while the ETag of If-None-Match still applies.",
    ),
    Parameter("timeout", _DURATION, "How long to wait, such as 250ms or 2s."),
    Parameter("timeout_ms", whole(0), "The same in milliseconds."),
)
_PART: Schema = {"type": "object"}
_STATUS: dict[str, Schema] = dict(
    stream=_TEXT, profile=_TEXT, desired_index_plan_generation=whole(0), segments=_PART, manifest=_PART,
    routing_key_index=_PART, routing_key_lexicon=_PART, exact_indexes=_LIST, bundled_companions=_PART,
    search_families=_LIST,
)  # fmt: skip
# The reason is present only after a failure.
INDEX_STATUS: Schema = {"type": "object", "required": list(_STATUS), "properties": {**_STATUS, "held_up": _PART}}
STREAM_DETAILS = _object(
    stream=_object(
        name=_TEXT, content_type=_TEXT, profile=_TEXT, created_at=_TEXT, epoch=whole(0), next_offset=_NUMBER,
        sealed_through=_TEXT, uploaded_through=_TEXT, segment_count=whole(0), total_size_bytes=_NUMBER,
        closed=_BOOLEAN,
    ),
    profile=PROFILE, schema=REGISTRY, index_status=INDEX_STATUS, storage=_PART, object_store_requests=_PART,
)  # fmt: skip
SERVER_DETAILS = _object(auto_tune=_PART, configured_limits=_PART, runtime=_PART)
SERVER_MEMORY = _object(
    ts=_TEXT, process=_PART, process_breakdown=_PART, sqlite=_PART, gc=_PART, high_water=_PART, counters=_PART,
    runtime_counts=_PART, runtime_bytes=_PART, runtime_totals=_PART, top_streams=_PART,
)  # fmt: skip


_TIMEOUT = 408
_STREAM = "/v1/stream/{stream}"
_SUBSCRIPTION = "/v1/stream/__ds/subscriptions/{id}"
_EVERY = (400, 404, 405, 408, 429, 500, 503)
_WITH_KEYS = (401, 403)
_ERROR_HEADERS = {
    401: ("WWW-Authenticate",), 403: ("Producer-Epoch",), 405: ("Allow",), 429: ("Retry-After",), 503: ("Retry-After",),
    409: (
        "Stream-Closed", "Stream-Next-Offset", "Stream-Expected-Seq", "Stream-Received-Seq", "Producer-Expected-Seq",
        "Producer-Received-Seq",
    ),
}  # fmt: skip


class Reply(msgspec.Struct, frozen=True):
    """An answer: its meaning, its body by content type, and its headers."""

    text: str
    content: dict[str, type | Schema] = {}
    headers: tuple[str, ...] = ()


class Described(msgspec.Struct, frozen=True):
    name: str
    summary: str
    answers: dict[int, Reply]
    errors: tuple[int, ...] = ()
    """Statuses besides the common ones."""
    query: tuple[Parameter, ...] = ()
    headers: tuple[str, ...] = ()
    """Request headers, from `REQUEST_HEADERS`."""
    body: dict[str, type | Schema] = {}
    body_required: bool = False
    open: bool = False
    """Answers without a key."""


_WRITTEN = ("Stream-Next-Offset", "Stream-Closed", "Producer-Epoch", "Producer-Seq")
_CREATED = ("Stream-Next-Offset", "Stream-Closed", "Stream-Expires-At")
_READ = (
    "Stream-Next-Offset", "Stream-End-Offset", "Stream-Up-To-Date", "Stream-Closed", "Stream-Gap", "Stream-Cursor",
    "Stream-Expires-At", "Stream-SSE-Data-Encoding", "Stream-Filter-Scan-Limit-Reached",
    "Stream-Filter-Scan-Limit-Bytes", "Stream-Filter-Scanned-Bytes", "ETag", "Cache-Control",
)  # fmt: skip
_APPEND_HEADERS = (
    "Stream-Key", "Stream-Timestamp", "Stream-Seq", "Stream-Closed", "Producer-Id", "Producer-Epoch", "Producer-Seq",
)  # fmt: skip
_CREATE_HEADERS = (
    "Stream-TTL", "Stream-Expires-At", "Stream-Closed", "Stream-Key", "Stream-Timestamp", "Stream-Forked-From",
    "Stream-Fork-Offset", "Stream-Fork-Sub-Offset",
)  # fmt: skip
_READS = {
    200: Reply("The entries, as an array, as bytes one behind the other, or as events.", ENTRIES, _READ),
    204: Reply("Nothing came while a long poll waited, or the stream is closed.", {}, _READ),
    304: Reply("The client's copy is still current.", {}, _READ),
}
_TAGGED = ("ETag", "Cache-Control")
_ACKED = {200: Reply("Acknowledged.", {JSON: {"type": "object", "required": ["ok", "next_wake"]}})}
_ENTRY_BODY: dict[str, type | Schema] = {**BODIES}

_PAGES = {
    200: Reply("A page of hits.", {JSON: SEARCHED}),
    408: Reply("What was found before the time was over.", {JSON: SEARCHED}),
}
OPERATIONS: dict[tuple[str, str], Described] = {
    ("GET", "/v1/streams"): Described(
        "listStreams", "Streams in the order of their names.",
        {200: Reply("A page of them.", {JSON: {"type": "array", "items": {"$ref": REF.format(name="ListedStream")}}})},
        query=(
            Parameter("limit", whole(1), "Size of the page, clamped to 1 to 1000. Default: 100."),
            Parameter("offset", whole(0), "How many to pass over first."),
            Parameter("prefix", {"type": "string"}, "Only names with this prefix."),
            Parameter("after", {"type": "string"}, "Only names behind this one."),
            Parameter("system", {"type": "boolean"}, "With system streams; true with a prefix that begins with `_`."),
        ),
    ),
    ("PUT", _STREAM): Described(
        "putStream", "Create a stream, or confirm that it is there as asked.",
        {
            201: Reply("Created.", {}, (*_CREATED, "Location")), 200: Reply("It was there as asked.", {}, _CREATED),
        },
        (409, 410, 413, 415), headers=_CREATE_HEADERS, body=_ENTRY_BODY,
    ),
    ("POST", _STREAM): Described(
        "appendToStream", "Append entries, close the stream, or both at once.",
        {
            204: Reply("Done; with a producer: it was done before.", {}, _WRITTEN),
            200: Reply("With a producer: new data.", {}, _WRITTEN),
        },
        (409, 410, 413, 415, 422), headers=_APPEND_HEADERS, body=_ENTRY_BODY,
    ),
    ("GET", _STREAM): Described(
        "readStream", "Read entries, at once or waiting.", _READS, (410,), READ_QUERY, ("If-None-Match",),
    ),
    ("GET", f"{_STREAM}/pk/{{key}}"): Described(
        "readStreamKey", "Read the entries of one key.", _READS, (410,), READ_QUERY, ("If-None-Match",),
    ),
    ("HEAD", _STREAM): Described(
        "headStream", "Describe a stream: content type, end, closure.",
        {200: Reply(
            "It is there.", {},
            ("Stream-Next-Offset", "Stream-End-Offset", "Stream-TTL", "Stream-Expires-At", "Stream-Closed"),
        )}, (410,),
    ),
    ("DELETE", _STREAM): Described(
        "deleteStream", "Delete a stream with everything in it.",
        {204: Reply("Deleted.", {}, ("Stream-Next-Offset",))}, (409, 410),
    ),
    ("GET", f"{_STREAM}/_schema"): Described(
        "getStreamSchema", "The schemas, lenses, routing key and search description of a stream.",
        {200: Reply("The registry.", {JSON: REGISTRY})}, (410,),
    ),
    ("POST", f"{_STREAM}/_schema"): Described(
        "updateStreamSchema", "Install a schema, a routing key or a search description.",
        {200: Reply("The registry as it is now.", {JSON: REGISTRY})}, (409, 410, 413, 415),
        body={JSON: REGISTRY_BODY}, body_required=True,
    ),
    ("POST", f"{_STREAM}/_schema/infer"): Described(
        "inferSearch", "Propose search fields from the newest entries, without changing anything.",
        {200: Reply("A search description for `updateStreamSchema`, and the members left out.", {JSON: _INFERRED})},
        (410, 413, 415), body={JSON: _INFER_BODY},
    ),
    ("GET", f"{_STREAM}/_profile"): Described(
        "getStreamProfile", "The profile of a stream.", {200: Reply("The profile.", {JSON: PROFILE})}, (410,),
    ),
    ("POST", f"{_STREAM}/_profile"): Described(
        "updateStreamProfile", "Give a stream another profile.",
        {200: Reply("The profile as it is now.", {JSON: PROFILE})}, (409, 410, 413, 415),
        body={JSON: PROFILE_BODY}, body_required=True,
    ),
    ("GET", f"{_STREAM}/_search"): Described(
        "findEntries", "Search the entries of a stream, with the fields of the body as parameters.",
        _PAGES, (410,), SEARCH_QUERY,
    ),
    ("POST", f"{_STREAM}/_search"): Described(
        "searchStream", "Search the entries of a stream.", _PAGES,
        (410, 413, 415), body={JSON: SEARCH_BODY},
    ),
    ("POST", "/v1/_search"): Described(
        "searchStreams", "Search the entries of several streams.",
        {200: Reply("A page of hits.", {JSON: SEARCHED_MANY}), 408: Reply("The same in part.", {JSON: SEARCHED_MANY})},
        (413, 415), body={JSON: SEARCH_MANY_BODY}, body_required=True,
    ),
    ("POST", f"{_STREAM}/_aggregate"): Described(
        "aggregateStream", "Measures of a rollup, in intervals of time.",
        {200: Reply("The buckets that hold something.", {JSON: AGGREGATED})}, (410, 413, 415),
        body={JSON: AGGREGATE_BODY}, body_required=True,
    ),
    ("GET", f"{_STREAM}/_routing_keys"): Described(
        "listRoutingKeys", "The keys of a stream in their order.",
        {200: Reply("A page of them.", {JSON: ROUTING_KEYS})}, (410,),
        query=(
            Parameter("limit", whole(1), "How many."), Parameter("after", {"type": "string"}, "Only keys behind this."),
        ),
    ),
    ("GET", f"{_STREAM}/_details"): Described(
        "getStreamDetails", "Everything about a stream, now or once it is otherwise.",
        {200: Reply("The details.", {JSON: STREAM_DETAILS}, _TAGGED), 304: Reply("Not modified.", {}, _TAGGED)},
        (410,), INSPECT_QUERY, ("If-None-Match",),
    ),
    ("GET", f"{_STREAM}/_index_status"): Described(
        "getIndexStatus", "Which indexes a stream asks for, and how far they are; now or once that is otherwise.",
        {200: Reply("The status.", {JSON: INDEX_STATUS}, _TAGGED), 304: Reply("It is as it was.", {}, _TAGGED)},
        (410,), INSPECT_QUERY, ("If-None-Match",),
    ),
    ("GET", "/v1/server/_details"): Described(
        "getServerDetails", "Get the limits and the state of the server.",
        {200: Reply("The details.", {JSON: SERVER_DETAILS})},
    ),
    ("GET", "/v1/server/_mem"): Described(
        "getServerMemory", "Get the memory use of the server.", {200: Reply("By component.", {JSON: SERVER_MEMORY})},
    ),
    ("GET", f"{_STREAM}/touch/meta"): Described(
        "getTouches", "The cursor to wait from, and counters.", {200: Reply("How it stands.", {JSON: TOUCH_META})},
        (410,),
        query=(
            Parameter("settle", {"type": "string", "enum": ["flush"]}, "Wait until all entries were looked at."),
            Parameter("timeoutMs", whole(0), "How long, up to 120000."),
        ),
    ),
    ("POST", f"{_STREAM}/touch/wait"): Described(
        "waitForTouch", "Wait until one of some keys is touched.", {200: Reply("How it ended.", {JSON: TOUCHED})},
        (410, 413, 415), body={JSON: TOUCH_WAIT}, body_required=True,
    ),
    ("POST", f"{_STREAM}/touch/templates/activate"): Described(
        "activateTemplates", "Let changes be looked at for templates of queries.",
        {200: Reply("Which are active.", {JSON: TEMPLATES})}, (410, 413, 415), body={JSON: TEMPLATES_BODY},
        body_required=True,
    ),
    ("PUT", _SUBSCRIPTION): Described(
        "putSubscription", "Create a subscription, or confirm that it is there as asked.",
        {
            201: Reply("Created.", {JSON: SUBSCRIPTION}), 200: Reply("It was there as asked.", {JSON: SUBSCRIPTION}),
        },
        (409, 413, 415), body={JSON: SubscriptionRequest}, body_required=True,
    ),
    ("GET", _SUBSCRIPTION): Described(
        "getSubscription", "Get a subscription and its state.",
        {200: Reply("The subscription.", {JSON: SUBSCRIPTION})},
    ),
    ("DELETE", _SUBSCRIPTION): Described(
        "deleteSubscription", "Delete a subscription.", {204: Reply("It is not there any more.")},
    ),
    ("POST", f"{_SUBSCRIPTION}/streams"): Described(
        "linkStreams", "Add streams to a subscription.", {204: Reply("Added.")}, (409, 413, 415),
        body={JSON: LinkRequest}, body_required=True,
    ),
    ("DELETE", f"{_SUBSCRIPTION}/streams/{{name}}"): Described(
        "unlinkStream", "Take a stream out of a subscription.", {204: Reply("It does not belong to it any more.")},
    ),
    ("POST", f"{_SUBSCRIPTION}/claim"): Described(
        "claimWake", "Take the lease of a subscription that has something new.",
        {200: Reply("The lease, and what is new.", {JSON: GRANTED})}, (409, 413, 415), body={JSON: ClaimRequest},
    ),
    ("POST", f"{_SUBSCRIPTION}/ack"): Described(
        "ackWake", "Acknowledge offsets and renew the lease, with the token of the claim.", _ACKED,
        (401, 409, 413, 415), body={JSON: Acks}, body_required=True, open=True,
    ),
    ("POST", f"{_SUBSCRIPTION}/callback"): Described(
        "callBack", "The same for the receiver of a webhook.", _ACKED, (401, 409, 413, 415),
        body={JSON: Acks}, body_required=True, open=True,
    ),
    ("POST", f"{_SUBSCRIPTION}/release"): Described(
        "releaseWake", "Give the lease back, with the token of the claim.", {204: Reply("Given back.")},
        (401, 409, 413, 415), body={JSON: ReleaseRequest}, body_required=True, open=True,
    ),
    ("GET", "/v1/stream/__ds/jwks.json"): Described(
        "getSigningKeys", "The key that signs webhooks.",
        {200: Reply("A set of one key.", {"application/jwk-set+json": {"type": "object", "required": ["keys"]}})},
        open=True,
    ),
}  # fmt: skip


def described_types() -> frozenset[type]:
    """Returns the message types that the descriptions use."""
    reported = [answer.content for one in OPERATIONS.values() for answer in one.answers.values()]
    bodies = [one.body for one in OPERATIONS.values()]
    kinds = [kind for content in (*reported, *bodies) for kind in content.values()]
    return frozenset((ListedStream, *(kind for kind in kinds if isinstance(kind, type))))


def stream_paths(listed: Iterable[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Returns the paths of the document, for the existing routes."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path in listed:
        described = OPERATIONS.get((method, path))
        if described is not None:
            paths.setdefault(path, {})[method.lower()] = write_operation(_spec_of(path, described))
    return paths


def _spec_of(path: str, described: Described) -> OperationSpec:
    return OperationSpec(
        name=described.name,
        summary=described.summary,
        tag="/v1",
        responses={
            status: ResponseSpec(reported.text, reported.content, _headers(reported.headers))
            for status, reported in described.answers.items()
        },
        refusals=_refusals(path, described),
        parameters=[
            *(ParameterSpec(name, "path", *NAMES[name]) for name in re.findall(r"\{(\w+)\}", path)),
            *(ParameterSpec(one.name, "query", one.schema, one.text) for one in described.query),
            *(ParameterSpec(name, "header", *REQUEST_HEADERS[name]) for name in described.headers),
        ],
        body=described.body,
        body_required=described.body_required,
        open=described.open,
    )


def _refusals(path: str, described: Described) -> dict[int, ResponseSpec]:
    keyed = () if described.open else _WITH_KEYS
    is_subscription = path.startswith("/v1/stream/__ds/")
    refusals = {}
    for status in sorted({*_EVERY, *keyed, *described.errors}):
        codes = _codes(status, is_subscription)
        headers = _headers(_ERROR_HEADERS.get(status, ()))
        refusals[status] = ResponseSpec(" or ".join(codes) or "refused", {JSON: _error(codes)}, headers)
    return refusals


def _codes(status: int, is_subscription: bool) -> list[str]:
    """The error codes of a status. The subscription routes have separate codes."""
    if is_subscription:
        return [code for code, of in V1_STATUS_BY_CODE.items() if of == status and code.isupper()]
    codes = [V1_CODE_BY_STATUS.get(status, "topic_full")]
    return [*codes, "append_timeout"] if status == _TIMEOUT else codes


def _error(codes: list[str]) -> type | Schema:
    if not codes or codes[0].isupper():
        return ErrorAnswer
    general: Schema = {"$ref": REF.format(name=ErrorAnswer.__name__)}
    return {"allOf": [general, {"properties": {"error": {"properties": {"code": {"enum": codes}}}}}]}


def _headers(names: tuple[str, ...]) -> dict[str, str]:
    return {name: ANSWER_HEADERS[name] for name in names}
