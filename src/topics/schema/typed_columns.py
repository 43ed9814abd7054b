"""Typed columns: the members of a stream's entries as columns of a table.

A column is a top-level property of the current version's schema. All other members, and values that do not fit their
column exactly, are kept as JSON in the *rest*, so that columns and rest together are the whole entry.

| the schema allows | the column is |
|---|---|
| integer | `long` |
| number | `double` |
| boolean | `boolean` |
| string, with the format date-time | `timestamp`, in microseconds and UTC |
| string | `string` |
| anything else, several of these, or no type | `json`, the value as JSON text |

Each may be null. A name that some engines do not allow for a column, or that differs from an earlier one only in case,
has no column.

A column keeps its id across versions as long as its name and type do not change. Ids are a function of the versions and
are never reused, so every task computes the same.
"""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

import msgspec
from xxhash import xxh3_64_hexdigest

from topics.schema.lens_proof import types_of
from topics.schema.registry import Registry

ColumnKind = Literal["long", "double", "boolean", "timestamp", "string", "json"]

MAX_COLUMNS = 500
FIRST_COLUMN_ID = 101
"""Lower ids are reserved for the columns that every table has."""

_FORMAT = 1
"""Part of the generation: incremented when the same versions result in other columns."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)")
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ABSENT: Final = object()

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Column(NamedTuple):
    column_id: int
    name: str
    kind: ColumnKind


class Columns(NamedTuple):
    """The columns of one version."""

    generation: str
    """Identifies the schema of files, which changes with each version."""
    columns: tuple[Column, ...]


def columns_of(registry: Registry) -> Columns:
    """The columns of the current version; empty without a version."""
    known: dict[str, Column] = {}
    next_id = FIRST_COLUMN_ID
    for version in range(1, registry.current_version + 1):
        found: dict[str, Column] = {}
        for name, kind in _named(registry.schema(version)):
            before = known.get(name)
            if before is None or before.kind != kind:
                before = Column(next_id, name, kind)
                next_id += 1
            found[name] = before
        known = found
    versions = _encode([_FORMAT, *[[one.schema, one.lens, one.boundary] for one in registry.versions]])
    return Columns(xxh3_64_hexdigest(versions), tuple(known.values()))


def _named(schema: dict[str, Any]) -> Iterable[tuple[str, ColumnKind]]:
    properties = schema.get("properties")
    taken: set[str] = set()
    for name, part in properties.items() if isinstance(properties, dict) else ():
        # Column names are case-insensitive in most engines.
        if _NAME.fullmatch(name) is not None and name.lower() not in taken and len(taken) < MAX_COLUMNS:
            taken.add(name.lower())
            yield name, _kind(part)


def _kind(schema: Any) -> ColumnKind:
    if not isinstance(schema, dict):
        return "json"
    types = types_of(schema) - {"null"}
    if types == {"integer"}:
        return "long"
    if types in ({"number"}, {"number", "integer"}):
        return "double"
    if types == {"boolean"}:
        return "boolean"
    if types == {"string"}:
        return "timestamp" if schema.get("format") == "date-time" else "string"
    return "json"


class Filled(NamedTuple):
    """Returns entries as columns: a list of values for each column, and the rest as JSON text, if any."""

    values: list[list[Any]]
    rest: list[str | None]


def fill(columns: tuple[Column, ...], texts: Iterable[bytes | memoryview]) -> Filled:
    filled = Filled([[] for _ in columns], [])
    fitting = [
        (one.name, _FITTING[one.kind], values.append) for one, values in zip(columns, filled.values, strict=True)
    ]
    for text in texts:
        try:
            entry = _decode(text)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            for _, _, add in fitting:
                add(None)
            filled.rest.append(str(text, "utf-8"))
            continue
        for name, fit, add in fitting:
            value = entry.get(name, _ABSENT)
            fitted = None if value is _ABSENT else fit(value)
            # An explicit null differs from a missing member, and a value that does not fit is kept in the rest.
            if fitted is not None:
                del entry[name]
            add(fitted)
        filled.rest.append(_encode(entry).decode() if entry else None)
    return filled


def _long(value: Any) -> int | None:
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and _LONG_MIN <= value <= _LONG_MAX else None


def _double(value: Any) -> float | None:
    if type(value) is int:
        try:
            return float(value) if int(float(value)) == value else None
        except OverflowError:
            return None
    return value if type(value) is float else None


def _timestamp(value: Any) -> int | None:
    """Microseconds since 1970."""
    if type(value) is not str or _MOMENT.fullmatch(value) is None:
        return None
    try:
        since = datetime.fromisoformat(value.upper()) - _EPOCH
    except (ValueError, OverflowError):
        return None
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


_FITTING: Final[dict[ColumnKind, Callable[[Any], Any]]] = {
    "long": _long,
    "double": _double,
    "boolean": lambda value: value if type(value) is bool else None,
    "timestamp": _timestamp,
    "string": lambda value: value if type(value) is str else None,
    "json": lambda value: None if value is None else _encode(value).decode(),
}
