"""OTLP in JSON: attributes, ids, times and enums as plain values, and the spans of an export one by one."""

import re
from collections.abc import Iterator
from typing import Any, Final

from topics.schema.conversions import unix_millis_to_rfc3339
from topics.schema.profiles.base import integer_of, number_of, text_of

_HEX = re.compile(r"[0-9a-f]+")
_KINDS: Final = ("unspecified", "internal", "server", "client", "producer", "consumer")
_STATUSES: Final = ("unset", "ok", "error")
_MAX_NANOS: Final = 2**64 - 1


def spans_of_export(document: Any) -> Iterator[dict[str, Any]]:
    """The spans of an `ExportTraceServiceRequest`, each with its resource and its scope."""
    for resource_spans in _objects(_member(document, "resourceSpans")):
        resource = _member(resource_spans, "resource")
        for scope_spans in _objects(_member(resource_spans, "scopeSpans")):
            scope = _member(scope_spans, "scope")
            for span in _objects(_member(scope_spans, "spans")):
                yield {**span, "resource": resource, "instrumentationScope": scope}


def attributes_of(value: Any) -> dict[str, Any]:
    """Attributes as an object, whether they came as one or as OTLP's list of keys and values."""
    if isinstance(value, dict):
        return value
    pairs = [pair for pair in _objects(value) if isinstance(pair.get("key"), str)]
    return {pair["key"]: any_value(pair.get("value")) for pair in pairs}


def any_value(value: Any) -> Any:
    """The plain value of an `AnyValue`."""
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
    """An id in lower case; None for what is none, and for one of zeros, which says that there is none."""
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
    """An enum of OTLP, by number or by name; the first of its words for what is not known."""
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
