"""The profile `evlog`: one wide event for each request, in an envelope of twenty members.

Members that the envelope does not name move into `context`, and secrets are redacted there. Normalisation is
idempotent, so that events can be copied from one such stream into another.
"""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from topics.model.errors import InvalidRequestError
from topics.schema.documents import has_extreme_numbers
from topics.schema.profiles.profile import (
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
from topics_protocol.rfc3339 import rfc3339_to_unix_millis, unix_millis_to_rfc3339

# Plain events: all members belong to the envelope, have its types and need no normalisation.
#
# Clients of the profile send mostly these. A batch of them is decoded to and encoded from structs by the library, and
# only time and level are checked one by one. All other events are passed to `Evlog.normalise`, which gives the same
# results (`tests/property/test_schema_laws.py` compares the two).

_SPOILERS: Final = (b"\\", b'" ', b' "', b'""', b"\t", b"\n", b"\r")
"""If a text has none of these, no string is empty, begins or ends with a blank, or needs a check."""

_LEVELS: Final = frozenset(("debug", "info", "warn", "error"))
_NO_KEYS: Final[dict[str, list[str]]] = {"keys": []}
_NOTHING: Final[dict[str, Any]] = {}


class _Event(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The envelope in its order. Fields that a plain event cannot have are not decoded."""

    timestamp: str
    level: str | None = None
    service: str | None = None
    environment: str | None = None
    version: str | None = None
    region: str | None = None
    requestId: str | None = None
    traceId: str | None = None
    spanId: str | None = None
    method: str | None = None
    path: str | None = None
    status: int | None = None
    duration: int | float | None = None
    message: str | None = None
    why: str | None = None
    fix: str | None = None
    link: str | None = None
    sampling: None = None
    redaction: dict[str, list[str]] | None = None
    context: dict[str, Any] | UnsetType = UNSET


_decode = msgspec.json.Decoder(list[_Event]).decode
_encode_lines = msgspec.json.Encoder().encode_lines


def make_plain(
    raws: Sequence[bytes | msgspec.Raw], is_canonical: Callable[[str], bool]
) -> tuple[list[bytes], list[str | None]] | None:
    """Returns the stored texts and the keys of a batch of plain events; None if one is not plain."""
    text = b"[%b]" % b",".join(raws)
    if not text.isascii() or any(spoiler in text for spoiler in _SPOILERS) or has_extreme_numbers(text):
        return None
    try:
        events = _decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
    for event in events:
        if event.context is not UNSET or event.redaction is not None or not is_canonical(event.timestamp):
            return None
        level = event.level
        if level is None:
            event.level = _level_of(event)
        elif level not in _LEVELS:
            return None
        event.redaction, event.context = _NO_KEYS, _NOTHING
    if len(events) != len(raws):
        return None
    lines = _encode_lines(events).split(b"\n")
    lines.pop()
    return lines, [event.requestId or event.traceId for event in events]


def _level_of(event: _Event) -> str:
    status = event.status
    if event.why or event.fix or event.link:
        return "error"
    if status is not None and status >= 400:
        return "error" if status >= 500 else "warn"
    return "info"


_TEXTS: Final = ("service", "environment", "version", "region", "method", "path", "message", "why", "fix", "link")
LEVELS: Final = ("debug", "info", "warn", "error")
ENVELOPE: Final = (
    *("timestamp", "level", "service", "environment", "version", "region", "requestId", "traceId", "spanId"),
    *("method", "path", "status", "duration", "message", "why", "fix", "link", "sampling", "redaction", "context"),
)
_NAMED: Final = frozenset(ENVELOPE)
_TEXT_NAMES: Final = frozenset(_TEXTS)
_EMPTY: Final[dict[str, Any]] = dict.fromkeys(ENVELOPE)
_SECRETS: Final = frozenset(("password", "token", "secret", "authorization", "cookie", "apikey"))
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?", re.DOTALL)

_Names = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=32)]


class _Strict(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """A part of the profile; unknown fields are rejected."""


class Correlation(_Strict, frozen=True, kw_only=True):
    """The paths of ids. A field is a dotted path."""

    request_id_fields: _Names | UnsetType = UNSET
    trace_context_fields: _Names | UnsetType = UNSET
    parse_traceparent: bool | UnsetType = UNSET


class Traces(_Strict, frozen=True, kw_only=True):
    traces_stream: str


class Observability(_Strict, frozen=True, kw_only=True):
    request: Traces


class Evlog(Profile, frozen=True, kw_only=True, tag="evlog"):
    redact_keys: tuple[str, ...] | UnsetType = UNSET
    correlation: Correlation | UnsetType = UNSET
    observability: Observability | UnsetType = UNSET

    def normalized(self) -> "Evlog":
        if self.observability is not UNSET:
            name = self.observability.request.traces_stream.strip()
            check_stream(name, "profile.observability.request.tracesStream")
            observability = Observability(request=Traces(traces_stream=name))
        keys = self.redact_keys
        return Evlog(
            redact_keys=UNSET if keys is UNSET else parse_redact_keys(keys, "profile.redactKeys"),
            correlation=self.correlation,
            observability=UNSET if self.observability is UNSET else observability,
        )

    def canonical(self) -> Canonical:
        return Canonical(SCHEMA, SEARCH)

    def key_of(self, value: Any) -> str | None:
        key: str | None = value["requestId"] or value["traceId"]
        return key

    def make_plain(self, raws: Sequence[bytes | msgspec.Raw]) -> tuple[list[bytes], list[str | None]] | None:
        return make_plain(raws, _is_canonical) if self.correlation is UNSET else None

    def normalise(self, index: int, value: Any, now_ms: int) -> Any:
        if not isinstance(value, dict):
            raise refusal(index, "evlog", "an entry must be a JSON object")
        event, rest = dict(_EMPTY), {}
        # Inlined, in one pass over the members: a call for each member would double the cost.
        for name, member in value.items():
            if name in _TEXT_NAMES:
                if type(member) is str:
                    event[name] = member.strip() or None
            elif name not in _NAMED:
                rest[name] = member
        given = value.get
        found: list[str] = []
        # Before the search, so that redactions of an earlier stream are included.
        earlier = given("redaction")
        if isinstance(earlier, dict) and isinstance(earlier.get("keys"), list):
            found += [key for key in earlier["keys"] if isinstance(key, str)]
        context = _context(value, rest)
        sampling = given("sampling")
        if sampling is not None and not isinstance(sampling, dict):
            raise refusal(index, "evlog", "sampling must be a JSON object or null", "sampling")
        event["timestamp"] = _timestamp(given("timestamp"), now_ms)
        event["requestId"], event["traceId"], event["spanId"] = self._ids(value)
        event["status"] = integer_of(given("status"))
        event["level"] = _level(given("level"), event)
        event["duration"] = number_of(given("duration"))
        event["sampling"] = sampling
        event["context"] = redact(context, _secrets(self.redact_keys), found) if context else context
        event["redaction"] = {"keys": list(dict.fromkeys(found)) if found else []}
        return event

    def _ids(self, value: dict[str, Any]) -> tuple[str | None, str | None, str | None]:
        """Request, trace and span."""
        if self.correlation is UNSET and _ELSEWHERE.isdisjoint(value):
            given = value.get
            return text_of(given("requestId")), text_of(given("traceId")), text_of(given("spanId"))
        places = _USUAL if self.correlation is UNSET else _places(self.correlation)
        request_id, trace_id = _first(value, places.request), _first(value, places.trace)
        span_id = _first(value, places.span)
        if places.traceparent and not (trace_id and span_id):
            parent = _first_parent(value, places.traceparent)
            if parent is not None:
                trace_id, span_id = trace_id or parent["trace"], span_id or parent["span"]
        return request_id, trace_id, span_id


@lru_cache(maxsize=256)
def _secrets(keys: tuple[str, ...] | UnsetType) -> frozenset[str]:
    return _SECRETS if keys is UNSET else _SECRETS.union(keys)


_Paths = tuple[tuple[str, ...], ...]


class _Places(NamedTuple):
    """The possible paths of each id, in order of precedence."""

    request: _Paths
    trace: _Paths
    span: _Paths
    traceparent: _Paths


@lru_cache(maxsize=256)
def _places(reported: Correlation) -> _Places:
    """Equal for every entry of a stream, so it is computed once."""
    requests = ("requestId", "context.requestId") if reported.request_id_fields is UNSET else reported.request_id_fields
    contexts = reported.trace_context_fields
    if contexts is UNSET:
        contexts = ("traceContext", "context.traceContext")
    headers = ("traceparent", "context.traceparent", "headers.traceparent", "context.headers.traceparent")
    found = (
        requests,
        ("traceId", *(f"{name}.traceId" for name in contexts)),
        ("spanId", *(f"{name}.spanId" for name in contexts)),
        () if reported.parse_traceparent is False else (*headers, *(f"{name}.traceparent" for name in contexts)),
    )
    return _Places(*(tuple(tuple(path.split(".")) for path in paths) for paths in found))


_USUAL: Final = _places(Correlation())
_ELSEWHERE: Final = frozenset(path[0] for paths in _USUAL for path in paths) - {"requestId", "traceId", "spanId"}
"""Members that may contain ids, besides the three members of these names."""


def check_stream(name: str, what: str) -> None:
    if not name:
        raise InvalidRequestError(f"{what} must not be empty", field=what)


def _first(value: dict[str, Any], paths: _Paths) -> str | None:
    for path in paths:
        if path[0] in value:
            found: Any = value
            for name in path:
                found = found.get(name) if isinstance(found, dict) else None
            text = text_of(found)
            if text is not None:
                return text
    return None


def _first_parent(value: dict[str, Any], paths: _Paths) -> re.Match[str] | None:
    """The first valid `traceparent`. W3C Trace Context declares ids of zeros invalid."""
    for path in paths:
        header = _first(value, (path,))
        parsed = _TRACEPARENT.fullmatch(header.lower()) if header is not None else None
        if parsed is not None and parsed["trace"].strip("0") and parsed["span"].strip("0"):
            return parsed
    return None


def _context(value: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """Returns `context` with the members that are not in the envelope.

    A `context` that is not an object becomes a member.
    """
    if "context" not in value:
        return rest
    given = value["context"]
    return {**given, **rest} if isinstance(given, dict) else {"context": given, **rest}


def _timestamp(value: Any, now_ms: int) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return unix_millis_to_rfc3339(value)
    if isinstance(value, str):
        if _is_canonical(value):
            return value
        try:
            return unix_millis_to_rfc3339(rfc3339_to_unix_millis(value.strip()))
        except ValueError:
            pass
    return unix_millis_to_rfc3339(now_ms)


def _is_canonical(text: str) -> bool:
    """Returns whether a time has its stored form already, as most have."""
    if len(text) != 24 or text[10::9] != "T." or text[4:8:3] != "--" or text[23] != "Z" or not text.isascii():
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _level(given: Any, event: dict[str, Any]) -> str:
    if given is not None:
        level = (text_of(given) or "").lower()
        if level in LEVELS:
            return level
    if event["why"] or event["fix"] or event["link"]:
        return "error"
    status = event["status"]
    if status is not None and status >= 400:
        return "error" if status >= 500 else "warn"
    return "info"


_OPTIONAL_TEXT: Final = {"type": ["string", "null"]}
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        **{name: _OPTIONAL_TEXT for name in ENVELOPE},
        "timestamp": {"type": "string"},
        "level": {"type": "string", "enum": list(LEVELS)},
        "status": {"type": ["integer", "null"]},
        "duration": {"type": ["number", "null"]},
        "sampling": {"type": ["object", "null"], "additionalProperties": True},
        "redaction": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"keys": {"type": "array", "items": {"type": "string"}}},
            "required": ["keys"],
        },
        "context": {"type": "object", "additionalProperties": True},
    },
    "required": list(ENVELOPE),
}

_LOWER: Final = {"normalizer": "lowercase_v1", "aggregatable": True}
SEARCH: Final[dict[str, Any]] = {
    "profile": "evlog",
    "primaryTimestampField": "timestamp",
    "defaultFields": [
        {"field": "message", "boost": 2},
        {"field": "why", "boost": 1.5},
        {"field": "fix", "boost": 1.25},
        {"field": "error.message", "boost": 2},
    ],
    "aliases": {
        "env": "environment",
        "msg": "message",
        "req": "requestId",
        "span": "spanId",
        "time": "timestamp",
        "trace": "traceId",
        "ts": "timestamp",
    },
    "fields": {
        "timestamp": column("date", "/timestamp"),
        "level": keyword("/level", **_LOWER),
        "service": keyword("/service", **_LOWER),
        "environment": keyword("/environment", **_LOWER),
        "requestId": keyword("/requestId"),
        "traceId": keyword("/traceId"),
        "spanId": keyword("/spanId"),
        "path": keyword("/path", aggregatable=True),
        "method": keyword("/method", **_LOWER),
        "status": column("integer", "/status"),
        "duration": column("float", "/duration"),
        "message": words("/message"),
        "why": words("/why"),
        "fix": words("/fix"),
        "error.message": words("/context/error/message"),
    },
    # An event without a duration counts as a request but not for latency, so these are two rollups.
    "rollups": {
        "requests": {
            "dimensions": ["service", "environment", "level", "method", "status"],
            "intervals": ["10s", "1m", "5m", "1h"],
            "measures": {"requests": {"kind": "count"}, "errors": {"kind": "count", "include": "level:error"}},
        },
        "latency": {
            "dimensions": ["service", "environment", "method", "path"],
            "intervals": ["10s", "1m", "5m", "1h"],
            "measures": {"duration": {"kind": "summary", "field": "duration", "histogram": "log2_v1"}},
        },
    },
}
