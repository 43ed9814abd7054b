"""The profile `otel-traces`: one canonical record a span of OpenTelemetry.

A span comes as OTLP writes it in JSON, or as this profile stores it. What attributes say by convention (the older names
are known, too) stands in members of its own; a member that is already there wins, so that a stored span which kept none
of its attributes can be appended again.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from topics.schema.profiles.base import Canonical, Profile, integer_of, number_of, refusal, text_of
from topics.schema.profiles.evlog import check_stream
from topics.schema.profiles.otel_registry import SCHEMA, SEARCH
from topics.schema.profiles.otlp import attributes_of, hex_id, kind_of, moment, nanos_of, status_of
from topics.schema.profiles.otlp_export import ExportLimits, unpack_exports
from topics.schema.profiles.redaction import REDACTED, parse_redact_keys, redact

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
    """What is kept as it came, besides what was read out of it."""

    raw_resource_attributes: bool = True
    raw_span_attributes: bool = True
    raw_events: bool = True
    raw_links: bool = True


class OtlpLimits(_Strict, frozen=True, kw_only=True):
    """Bounds of one export."""

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

    def settled(self) -> "OtelTraces":
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
    """One span on its way to its record."""

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
        """The attributes of a part, within their limits, with secrets struck out."""
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
        told = self._profile.request_id_attributes
        keys = _REQUEST_IDS if told is UNSET else told
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
    """A text of at most so many bytes; texts in arrays and objects are cut one by one."""
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


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
