"""The profile `otel-traces`: one canonical record for each span of OpenTelemetry.

A span is accepted in the OTLP JSON form, or in the stored form. Conventional attributes, also by their older names,
become members of the record. A member that exists takes precedence, so a stored span without its attributes can be
appended again.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from topics.model.errors import BatchTooLargeError, InvalidRequestError
from topics.schema.documents import MAX_UNPACKED_BYTES
from topics.schema.profiles.evlog import check_stream
from topics.schema.profiles.profile import (
    REDACTED,
    Canonical,
    Profile,
    column,
    integer_of,
    keyword,
    number_of,
    parse_redact_keys,
    redact,
    refusal,
    text_of,
    words,
)
from topics_protocol.rfc3339 import unix_millis_to_rfc3339

# The schema and the search description of spans.

_TEXT: Final = {"type": "string"}
_OPTIONAL_TEXT: Final = {"type": ["string", "null"]}
_OPTIONAL_INTEGER: Final = {"type": ["integer", "null"]}
_COUNT: Final = {"type": "integer", "minimum": 0}
_OPEN: Final = {"type": "object", "additionalProperties": True}
_OBJECTS: Final = {"type": "array", "items": _OPEN}
_TEXTS: Final = {"type": "array", "items": _TEXT}


def _strict(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": list(properties)}


def _texts(*names: str, **more: Any) -> dict[str, Any]:
    return _strict(**dict.fromkeys(names, _OPTIONAL_TEXT), **more)


SCHEMA: Final[dict[str, Any]] = _strict(
    traceId={"type": "string", "pattern": "^[0-9a-f]{32}$"},
    spanId={"type": "string", "pattern": "^[0-9a-f]{16}$"},
    parentSpanId=_OPTIONAL_TEXT,
    identity=_strict(spanKey=_TEXT),
    timestamp={"type": "string", "format": "date-time"},
    endTimestamp={"type": "string", "format": "date-time"},
    startUnixNano=_TEXT,
    endUnixNano=_TEXT,
    duration={"type": "number", "minimum": 0},
    name=_TEXT,
    kind={"enum": ["unspecified", "internal", "server", "client", "producer", "consumer"]},
    status=_strict(code={"enum": ["unset", "ok", "error"]}, message=_OPTIONAL_TEXT),
    traceState=_OPTIONAL_TEXT,
    traceFlags=_OPTIONAL_INTEGER,
    **dict.fromkeys(
        ("service", "serviceNamespace", "serviceInstanceId", "environment", "version", "region", "requestId"),
        _OPTIONAL_TEXT,
    ),
    http=_texts("method", "route", "path", "url", statusCode=_OPTIONAL_INTEGER),
    db=_texts("system", "name", "operation", "collection", "statement"),
    rpc=_texts("system", "service", "method", statusCode=_OPTIONAL_INTEGER),
    messaging=_texts("system", "destination", "operation"),
    error=_texts("type", "message", "stacktrace", isError={"type": "boolean"}),
    resource=_strict(attributes=_OPEN),
    instrumentationScope=_texts("name", "version", attributes=_OPEN),
    attributes=_OPEN,
    events=_OBJECTS,
    links=_OBJECTS,
    eventNames=_TEXTS,
    dropped=_strict(attributes=_COUNT, events=_COUNT, links=_COUNT),
    redaction=_strict(keys=_TEXTS),
)

_FLAGS: Final = {"exact": True, "exists": True}
_NAMES: Final = {
    "service": "/service",
    "environment": "/environment",
    "name": "/name",
    "kind": "/kind",
    "status.code": "/status/code",
    "http.method": "/http/method",
    "http.route": "/http/route",
    "http.path": "/http/path",
    "db.system": "/db/system",
    "db.name": "/db/name",
    "db.operation": "/db/operation",
    "rpc.system": "/rpc/system",
    "rpc.service": "/rpc/service",
    "rpc.method": "/rpc/method",
    "messaging.system": "/messaging/system",
    "messaging.destination": "/messaging/destination",
    "messaging.operation": "/messaging/operation",
    "error.type": "/error/type",
}
_MEASURES: Final = {
    "spans": {"kind": "count"},
    "errors": {"kind": "count", "include": "error:true"},
    "duration": {"kind": "summary", "field": "duration", "histogram": "log2_v1"},
}
_INTERVALS: Final = ["10s", "1m", "5m", "1h"]

SEARCH: Final[dict[str, Any]] = {
    "profile": "otel-traces",
    "primaryTimestampField": "timestamp",
    "defaultFields": [
        {"field": "error.message", "boost": 2},
        {"field": "status.message", "boost": 1.5},
        {"field": "events.name"},
        {"field": "db.statement"},
    ],
    "aliases": {
        "db": "db.system",
        "duration_ms": "duration",
        "error": "error.isError",
        "method": "http.method",
        "op": "name",
        "parent": "parentSpanId",
        "req": "requestId",
        "route": "http.route",
        "span": "spanId",
        "status": "http.statusCode",
        "svc": "service",
        "time": "timestamp",
        "trace": "traceId",
        "ts": "timestamp",
    },
    "fields": {
        "timestamp": column("date", "/timestamp"),
        "endTimestamp": column("date", "/endTimestamp"),
        "duration": column("float", "/duration"),
        **{name: keyword(f"/{name}") for name in ("traceId", "spanId", "parentSpanId", "requestId")},
        **{name: keyword(pointer, aggregatable=True) for name, pointer in _NAMES.items()},
        "http.statusCode": column("integer", "/http/statusCode"),
        "error.isError": {"kind": "bool", "bindings": [{"version": 1, "jsonPointer": "/error/isError"}], **_FLAGS},
        "status.message": words("/status/message"),
        "error.message": words("/error/message"),
        "error.stacktrace": words("/error/stacktrace"),
        "db.statement": words("/db/statement"),
        "events.name": words("/eventNames"),
    },
    "rollups": {
        "spans": {"dimensions": ["service", "kind", "status.code"], "intervals": _INTERVALS, "measures": _MEASURES},
        "http_server": {
            "include": "kind:server",
            "dimensions": ["service", "http.method", "http.route", "http.statusCode"],
            "intervals": _INTERVALS,
            "measures": _MEASURES,
        },
    },
}


# OTLP in JSON: attributes, ids, times and enums as plain values, and the spans of an export one by one.

_HEX = re.compile(r"[0-9a-f]+")
_KINDS: Final = ("unspecified", "internal", "server", "client", "producer", "consumer")
_STATUSES: Final = ("unset", "ok", "error")
_MAX_NANOS: Final = 2**64 - 1


def spans_of_export(document: Any) -> Iterator[dict[str, Any]]:
    """Yields the spans of an `ExportTraceServiceRequest`, each with its resource and its scope."""
    for resource_spans in _objects(_member(document, "resourceSpans")):
        resource = _member(resource_spans, "resource")
        for scope_spans in _objects(_member(resource_spans, "scopeSpans")):
            scope = _member(scope_spans, "scope")
            for span in _objects(_member(scope_spans, "spans")):
                yield {**span, "resource": resource, "instrumentationScope": scope}


def attributes_of(value: Any) -> dict[str, Any]:
    """Returns attributes as an object, given as an object or as OTLP's list of keys and values."""
    if isinstance(value, dict):
        return value
    pairs = [pair for pair in _objects(value) if isinstance(pair.get("key"), str)]
    return {pair["key"]: any_value(pair.get("value")) for pair in pairs}


def any_value(value: Any) -> Any:
    """Returns the plain value of an `AnyValue`."""
    if not isinstance(value, dict):
        return value
    for name in ("stringValue", "boolValue", "bytesValue"):
        if name in value:
            return value[name]
    if "intValue" in value:
        return integer_of(value["intValue"])
    if "doubleValue" in value:
        return number_of(value["doubleValue"])
    if "arrayValue" in value:
        return [any_value(element) for element in _list(_member(value["arrayValue"], "values"))]
    if "kvlistValue" in value:
        return attributes_of(_member(value["kvlistValue"], "values"))
    return None


def hex_id(value: Any, digits: int) -> str | None:
    """Returns an id in lower case; None for an invalid id, and for an id of zeros, which means a missing id."""
    text = (text_of(value) or "").lower()
    return text if len(text) == digits and _HEX.fullmatch(text) and text.strip("0") else None


def nanos_of(value: Any) -> int | None:
    number = integer_of(value)
    return number if number is not None and 0 <= number <= _MAX_NANOS else None


def moment(nanos: int) -> str:
    return unix_millis_to_rfc3339(nanos // 1_000_000)


def kind_of(value: Any) -> str:
    return _word(value, _KINDS, "span_kind_")


def status_of(value: Any) -> str:
    return _word(value, _STATUSES, "status_code_")


def _word(value: Any, words: tuple[str, ...], prefix: str) -> str:
    """Returns the name of an OTLP enum value, given by number or by name; the first one for unknown values."""
    if isinstance(value, int) and not isinstance(value, bool):
        return words[value] if 0 <= value < len(words) else words[0]
    name = (text_of(value) or "").lower().removeprefix(prefix)
    return name if name in words else words[0]


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _objects(value: Any) -> list[dict[str, Any]]:
    return [element for element in _list(value) if isinstance(element, dict)]


# Splits OTLP exports in JSON into spans without parsing the spans.
#
#     {"resourceSpans": [{"resource": R, "scopeSpans": [{"scope": S, "spans": [{...}, {...}]}]}]}
#
# Each span becomes a separate text, with its resource and its scope after its members. Only the structure around spans
# is parsed here, which is fast; the spans themselves are parsed later, in portions.

_MARK = b'"resourceSpans"'
_RESOURCE_MEMBER, _SCOPE = b'"resource":', b'"instrumentationScope":'
_NOTHING = msgspec.Raw(b"null")


class _Scope(msgspec.Struct, rename="camel", gc=False):
    scope: msgspec.Raw = _NOTHING
    spans: list[msgspec.Raw] | None = None


class _Resource(msgspec.Struct, rename="camel", gc=False):
    resource: msgspec.Raw = _NOTHING
    scope_spans: list[_Scope] | None = None


class _Export(msgspec.Struct, rename="camel", gc=False):
    resource_spans: list[_Resource] | None = None


class ExportLimits(msgspec.Struct, frozen=True):
    """Limits on the spans of all exports in one append."""

    bytes: int
    resources: int
    scopes: int
    spans: int


_decode = msgspec.json.Decoder(_Export).decode


def unpack_exports(raws: Sequence[bytes | msgspec.Raw], limits: ExportLimits) -> list[bytes | msgspec.Raw] | None:
    """Returns the entries of an append, with each export replaced by its spans; None if there is no export."""
    if not any(_MARK in _text(raw) for raw in raws):
        return None
    exports = [_read(index, raw, limits) for index, raw in enumerate(raws)]
    found = [export for export in exports if export is not None]
    _check(found, limits)
    unpacked: list[bytes | msgspec.Raw] = []
    for raw, export in zip(raws, exports, strict=True):
        unpacked += [raw] if export is None else _spans(export)
    if not unpacked:
        raise InvalidRequestError("the export contains no spans. Send at least one span", field="resourceSpans")
    return unpacked


def _text(raw: bytes | msgspec.Raw) -> bytes:
    return raw if isinstance(raw, bytes) else bytes(raw)


def _read(index: int, raw: bytes | msgspec.Raw, limits: ExportLimits) -> _Export | None:
    """Returns an entry as an export; None if it only contains the word."""
    text = _text(raw)
    if _MARK not in text:
        return None
    if len(text) > limits.bytes:
        raise BatchTooLargeError(f"an export has at most {limits.bytes} bytes here; split it", max=limits.bytes)
    try:
        export = _decode(text)
    except (ValueError, RecursionError) as error:
        raise _refusal(index, f"is not an export of traces: {error}") from None
    if export.resource_spans is None:
        return None
    for spans in _span_lists(export):
        for span in spans:
            if bytes(span)[:1] != b"{":
                raise _refusal(index, "holds a span that is not a JSON object")
    return export


def _check(exports: list[_Export], limits: ExportLimits) -> None:
    """Checks the limits of an export before it uses memory: each span gets a copy of its resource."""
    resources = sum([len(export.resource_spans or ()) for export in exports])
    scopes = [scope for export in exports for one in export.resource_spans or () for scope in one.scope_spans or ()]
    spans = sum([len(scope.spans or ()) for scope in scopes])
    for what, count, most in (
        ("resources", resources, limits.resources), ("scopes", len(scopes), limits.scopes),
        ("spans", spans, limits.spans),
    ):  # fmt: skip
        if count > most:
            raise BatchTooLargeError(f"an export has at most {most} {what} here; split it", max=most)
    size = sum(
        (len(one.resource) + len(scope.scope)) * len(scope.spans or ())
        for export in exports
        for one in export.resource_spans or ()
        for scope in one.scope_spans or ()
    )
    if size > MAX_UNPACKED_BYTES:
        raise BatchTooLargeError(
            f"with its resource and scope in each span the export has more than {MAX_UNPACKED_BYTES} bytes; split it",
            max=MAX_UNPACKED_BYTES,
        )


def _span_lists(export: _Export) -> Iterator[list[msgspec.Raw]]:
    for one in export.resource_spans or ():
        for scope in one.scope_spans or ():
            yield scope.spans or []


def _spans(export: _Export) -> Iterator[bytes]:
    for one in export.resource_spans or ():
        for scope in one.scope_spans or ():
            behind = b"".join((_RESOURCE_MEMBER, bytes(one.resource), b",", _SCOPE, bytes(scope.scope), b"}"))
            for span in scope.spans or ():
                # Later members take precedence over members of the same name in the span, as usual in JSON.
                begun = bytes(span).rstrip()[:-1].rstrip()
                yield begun + (b"" if begun.endswith(b"{") else b",") + behind


def _refusal(index: int, problem: str) -> InvalidRequestError:
    detail: dict[str, Any] = {"index": index, "reason": "schema"}
    return InvalidRequestError(f"entry {index} {problem}", **detail)


_SECRETS: Final = frozenset(
    ("password", "token", "secret", "authorization", "cookie", "apikey", "api_key", "set-cookie", "x-api-key")
)
_REQUEST_IDS: Final = (
    "request.id",
    "http.request_id",
    "http.request.header.x_request_id",
    "http.request.header.x-request-id",
    "http.request.header.x_correlation_id",
    "http.request.header.x-correlation-id",
    "correlation.id",
)
_STATEMENTS: Final = ("db.query.text", "db.statement")
_RESOURCE: Final = {
    "service": ("service.name",),
    "serviceNamespace": ("service.namespace",),
    "serviceInstanceId": ("service.instance.id",),
    "environment": ("deployment.environment.name", "deployment.environment"),
    "version": ("service.version",),
    "region": ("cloud.region",),
}
_GROUPS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "http": {
        "method": ("http.request.method", "http.method"),
        "route": ("http.route",),
        "path": ("url.path", "http.target"),
        "url": ("url.full", "http.url"),
        "statusCode": ("http.response.status_code", "http.status_code"),
    },
    "db": {
        "system": ("db.system.name", "db.system"),
        "name": ("db.namespace", "db.name"),
        "operation": ("db.operation.name", "db.operation"),
        "collection": ("db.collection.name", "db.sql.table"),
        "statement": _STATEMENTS,
    },
    "rpc": {
        "system": ("rpc.system",),
        "service": ("rpc.service",),
        "method": ("rpc.method",),
        "statusCode": ("rpc.grpc.status_code",),
    },
    "messaging": {
        "system": ("messaging.system",),
        "destination": ("messaging.destination.name", "messaging.destination"),
        "operation": ("messaging.operation.type", "messaging.operation.name", "messaging.operation"),
    },
}

_Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class _Strict(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """A part of the profile, with no other fields than it declares."""


class AttributeLimits(_Strict, frozen=True, kw_only=True):
    max_attribute_value_bytes: _Positive = 8192
    max_attributes_per_span: _Positive = 256
    max_events_per_span: _Positive = 128
    max_links_per_span: _Positive = 128
    max_statement_bytes: _Positive = 4096


class Store(_Strict, frozen=True, kw_only=True):
    """Original fields that are kept besides the extracted ones."""

    raw_resource_attributes: bool = True
    raw_span_attributes: bool = True
    raw_events: bool = True
    raw_links: bool = True


class OtlpLimits(_Strict, frozen=True, kw_only=True):
    """The limits of one export."""

    max_compressed_bytes: _Positive = 4_194_304
    max_decoded_bytes: _Positive = 16_777_216
    max_resource_spans_per_request: _Positive = 1_024
    max_scope_spans_per_request: _Positive = 4_096
    max_spans_per_request: _Positive = 50_000


class Events(_Strict, frozen=True, kw_only=True):
    events_stream: str


class Observability(_Strict, frozen=True, kw_only=True):
    request: Events


class OtelTraces(Profile, frozen=True, kw_only=True, tag="otel-traces"):
    redact_keys: tuple[str, ...] | UnsetType = UNSET
    request_id_attributes: Annotated[tuple[str, ...], Meta(max_length=32)] | UnsetType = UNSET
    attribute_limits: AttributeLimits = AttributeLimits()
    store: Store = Store()
    db_statement_mode: Literal["drop", "raw"] | UnsetType = UNSET
    otlp_limits: OtlpLimits = OtlpLimits()
    observability: Observability | UnsetType = UNSET

    def normalized(self) -> "OtelTraces":
        if self.observability is not UNSET:
            check_stream(self.observability.request.events_stream.strip(), "profile.observability.request.eventsStream")
        keys = self.redact_keys
        return msgspec.structs.replace(
            self, redact_keys=UNSET if keys is UNSET else parse_redact_keys(keys, "profile.redactKeys")
        )

    def canonical(self) -> Canonical:
        return Canonical(SCHEMA, SEARCH)

    def key_of(self, value: Any) -> str | None:
        key: str = value["traceId"]
        return key

    def unpack(self, raws: Sequence[bytes | msgspec.Raw]) -> Sequence[bytes | msgspec.Raw] | None:
        limits = self.otlp_limits
        return unpack_exports(
            raws,
            ExportLimits(
                limits.max_decoded_bytes, limits.max_resource_spans_per_request, limits.max_scope_spans_per_request,
                limits.max_spans_per_request,
            ),
        )  # fmt: skip

    def normalise(self, index: int, value: Any, now_ms: int) -> Any:
        if not isinstance(value, dict):
            raise refusal(index, "otel-traces", "an entry must be a JSON object")
        trace_id, span_id = hex_id(value.get("traceId"), 32), hex_id(value.get("spanId"), 16)
        start = nanos_of(value.get("startUnixNano", value.get("startTimeUnixNano")))
        end = nanos_of(value.get("endUnixNano", value.get("endTimeUnixNano")))
        name = text_of(value.get("name"))
        for field, given in (("traceId", trace_id), ("spanId", span_id), ("startUnixNano", start), ("name", name)):
            if given is None:
                raise refusal(index, "otel-traces", f"{field} is missing, or not what it should be", field)
        assert start is not None
        return _Span(self, value).record(trace_id, span_id, name, start, start if end is None else end)


class _Span:
    """The conversion of a span to its record."""

    def __init__(self, profile: OtelTraces, value: dict[str, Any]) -> None:
        self._profile = profile
        self._value = value
        self._secrets = _SECRETS if profile.redact_keys is UNSET else _SECRETS.union(profile.redact_keys)
        self._struck: list[str] = [
            key for key in _list(_dict(value.get("redaction")).get("keys")) if isinstance(key, str)
        ]
        given = _dict(value.get("dropped"))
        self._dropped = {
            part: _count(given.get(part)) + _count(value.get(f"dropped{part.title()}Count"))
            for part in ("attributes", "events", "links")
        }
        self._resource = self._attributes(_dict(value.get("resource")), "resource.attributes")
        self._scope = _dict(value.get("instrumentationScope", value.get("scope")))
        self._own = self._attributes(value, "attributes")
        self._events = self._several("events", profile.attribute_limits.max_events_per_span)
        self._links = self._several("links", profile.attribute_limits.max_links_per_span)

    def record(
        self, trace_id: str | None, span_id: str | None, name: str | None, start: int, end: int
    ) -> dict[str, Any]:
        value, store = self._value, self._profile.store
        duration = number_of(value.get("duration"))
        status = value.get("status")
        code, message = (
            (status_of(status.get("code")), status.get("message")) if isinstance(status, dict) else ("unset", None)
        )
        groups = {group: self._group(group, names) for group, names in _GROUPS.items()}
        scope_attributes = self._attributes(self._scope, "instrumentationScope.attributes")
        own = self._own if store.raw_span_attributes else {}
        if self._profile.db_statement_mode != "raw":
            own = {key: member for key, member in own.items() if key not in _STATEMENTS}
        return {
            "traceId": trace_id,
            "spanId": span_id,
            "parentSpanId": hex_id(value.get("parentSpanId"), 16),
            "identity": {"spanKey": f"{trace_id}:{span_id}"},
            "timestamp": moment(start),
            "endTimestamp": moment(end),
            "startUnixNano": str(start),
            "endUnixNano": str(end),
            "duration": max(0, end - start) / 1e6 if duration is None or duration < 0 else duration,
            "name": name,
            "kind": kind_of(value.get("kind")),
            "status": {"code": code, "message": text_of(message)},
            "traceState": text_of(value.get("traceState")),
            "traceFlags": integer_of(value.get("traceFlags", value.get("flags"))),
            **{part: text_of(value.get(part)) or _first(self._resource, keys) for part, keys in _RESOURCE.items()},
            "requestId": self._request_id(),
            **groups,
            "error": self._error(code, text_of(message)),
            "resource": {"attributes": self._resource if store.raw_resource_attributes else {}},
            "instrumentationScope": {
                "name": text_of(self._scope.get("name")),
                "version": text_of(self._scope.get("version")),
                "attributes": scope_attributes,
            },
            "attributes": own,
            "events": self._events if store.raw_events else [],
            "links": self._links if store.raw_links else [],
            "eventNames": self._event_names(),
            "dropped": self._dropped,
            "redaction": {"keys": list(dict.fromkeys(self._struck))},
        }

    def _attributes(self, holder: dict[str, Any], where: str) -> dict[str, Any]:
        """Returns the attributes of a part, within their limits, with secrets redacted."""
        limits = self._profile.attribute_limits
        given = attributes_of(holder.get("attributes"))
        self._dropped["attributes"] += max(0, len(given) - limits.max_attributes_per_span)
        kept = {}
        for key, member in list(given.items())[: limits.max_attributes_per_span]:
            if key.lower() in self._secrets or key.lower().rpartition(".")[2] in self._secrets:
                kept[key] = REDACTED
                self._struck.append(f"{where}.{key}")
            else:
                short = _cut(member, limits.max_attribute_value_bytes)
                kept[key] = redact(short, self._secrets, self._struck, f"{where}.{key}")
        return kept

    def _several(self, part: str, most: int) -> list[dict[str, Any]]:
        given = [element for element in _list(self._value.get(part)) if isinstance(element, dict)]
        self._dropped[part] += max(0, len(given) - most)
        return [
            {**element, "attributes": self._attributes(element, f"{part}.{index}.attributes")}
            for index, element in enumerate(given[:most])
        ]

    def _group(self, group: str, names: dict[str, tuple[str, ...]]) -> dict[str, Any]:
        given = _dict(self._value.get(group))
        found: dict[str, Any] = {}
        for name, keys in names.items():
            if name == "statusCode":
                number = integer_of(given.get(name))
                numbers = (integer_of(self._own.get(key)) for key in keys)
                found[name] = (
                    next((other for other in numbers if other is not None), None) if number is None else number
                )
            else:
                found[name] = text_of(given.get(name)) or _first(self._own, keys)
        if group == "db":
            raw = self._profile.db_statement_mode == "raw"
            found["statement"] = (
                _cut(found["statement"], self._profile.attribute_limits.max_statement_bytes) if raw else None
            )
        return found

    def _request_id(self) -> str | None:
        reported = self._profile.request_id_attributes
        keys = _REQUEST_IDS if reported is UNSET else reported
        return text_of(self._value.get("requestId")) or _first(self._own, keys)

    def _error(self, code: str, message: str | None) -> dict[str, Any]:
        given = _dict(self._value.get("error"))
        raised: dict[str, Any] = next(
            (event["attributes"] for event in self._events if event.get("name") == "exception"), {}
        )
        return {
            "type": text_of(given.get("type")) or _first({**raised, **self._own}, ("error.type", "exception.type")),
            "message": text_of(given.get("message"))
            or _first(raised, ("exception.message",))
            or (message if code == "error" else None),
            "stacktrace": text_of(given.get("stacktrace")) or _first(raised, ("exception.stacktrace",)),
            "isError": code == "error" or given.get("isError") is True,
        }

    def _event_names(self) -> list[str]:
        names = [event.get("name") for event in self._events] + _list(self._value.get("eventNames"))
        return list(dict.fromkeys(name for name in names if isinstance(name, str) and name))


def _first(attributes: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    for key in keys:
        text = text_of(attributes.get(key))
        if text is not None and text != REDACTED:
            return text
    return None


def _cut(value: Any, most: int) -> Any:
    """Truncates a text to this many bytes; texts in arrays and objects are truncated one by one."""
    if isinstance(value, str):
        if len(value) * 4 <= most or len(value.encode()) <= most:
            return value
        return value.encode()[:most].decode(errors="ignore")
    if isinstance(value, list):
        return [_cut(element, most) for element in value]
    if isinstance(value, dict):
        return {name: _cut(member, most) for name, member in value.items()}
    return value


def _count(value: Any) -> int:
    number = integer_of(value)
    return number if number is not None and number > 0 else 0


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
