"""The parts that descriptions of /v1 are made of: names, parameters, headers and messages that have no type of ours."""

from topics.api.openapi_operation import Parameter

Schema = dict[str, object]

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
    Parameter("filter", _TEXT, "Only entries that fit, by declared search fields: status:>=500 AND has:error."),
    Parameter("format", {"type": "string", "enum": ["json", "raw"]}, "An array, or bytes one behind the other."),
    Parameter("live", {"type": "string", "enum": ["long-poll", "true", "1", "sse"]}, "Wait for what comes."),
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
    "Stream-Key": (_TEXT, "The key of the entries; not where the stream's schema tells it."),
    "Stream-Timestamp": (_MOMENT, "The append time."),
    "Stream-Seq": (_TEXT, "Must be above the last one of the stream."),
    "Producer-Id": ({"type": "string", "minLength": 1}, "Who sends; with the next two or without."),
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
    "Allow": "What is possible here.",
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

_BOOLEAN: Schema = {"type": "boolean"}
_SIZE: Schema = {"type": "integer", "minimum": 1, "maximum": 500}
_MOMENT_OR_MS: Schema = {"anyOf": [_TEXT, {"type": "integer"}]}
_NAMES_LIST: Schema = {"type": "array", "items": _TEXT}
_RANK: Schema = {"enum": ["bm25"]}
SEARCH_QUERY = (
    Parameter("q", _TEXT, "The query."),
    Parameter("size", _SIZE, "Hits of a page; 50 unless told."),
    Parameter("search_after", _TEXT, "The next_search_after of the page before, as a JSON array."),
    Parameter("sort", _TEXT, "_score, offset or fields with :asc or :desc, separated by commas."),
    Parameter("timeout_ms", whole(0), "How long it may take."),
    Parameter("track_total", _BOOLEAN, "Whether to count all hits."),
    Parameter("explain", _BOOLEAN, "Whether the answer says how it was made."),
    Parameter("_source", _BOOLEAN, "Whether hits hold their entries."),
    Parameter("fields", _TEXT, "The fields that hits hold, separated by commas."),
    Parameter("highlight", _TEXT, "Whether hits tell where words stand, or in which fields, separated by commas."),
    Parameter("rank", _RANK, "bm25: scores by how rare the words are; without it, by how many match."),
)
_SEARCH_FIELDS: Schema = {
    "q": _TEXT, "size": _SIZE, "sort": {"anyOf": [_TEXT, _NAMES_LIST]}, "timeout_ms": whole(0),
    "track_total": _BOOLEAN, "explain": _BOOLEAN, "_source": _BOOLEAN, "fields": _NAMES_LIST,
    "highlight": {"anyOf": [_BOOLEAN, _NAMES_LIST]}, "rank": _RANK,
}  # fmt: skip
SEARCH_BODY: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {**_SEARCH_FIELDS, "search_after": {"type": "array"}},
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
SEARCHED = _object(
    stream=_TEXT, snapshot_end_offset=_TEXT, took_ms={"type": "number"}, timed_out=_BOOLEAN,
    coverage={"type": "object"}, total=_object(value=whole(0), relation={"enum": ["eq", "gte"]}), hits=_LIST,
    next_search_after={"anyOf": [{"type": "array"}, {"type": "null"}]},
)  # fmt: skip
AGGREGATE_BODY: Schema = {
    "type": "object",
    "properties": {
        "rollup": _TEXT, "from": _MOMENT_OR_MS, "to": _MOMENT_OR_MS, "interval": _TEXT, "q": _TEXT,
        "group_by": _NAMES_LIST, "measures": {"anyOf": [_NAMES_LIST, {"type": "object"}]}, "timestamp_field": _TEXT,
        "top": whole(1),
    },
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
        "live", {"type": "string", "enum": ["long-poll", "true", "1"]}, "Wait while it is as If-None-Match says."
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
# What holds it up is only told where something is wrong.
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
