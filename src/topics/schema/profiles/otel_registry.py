"""The schema and the search description of spans."""

from typing import Any, Final

from topics.schema.profiles.base import column, keyword, words

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
