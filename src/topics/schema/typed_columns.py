"""Typed columns: the members of a stream's entries as columns of a table.

A column is a top-level property of the current version's schema. All other members, and values that do not fit their
column exactly, are kept as JSON in the *rest*, so that columns and rest together are the whole entry.

| the schema allows | the column is |
|---|---|
| integer | `long` |
| number | `double` |
| number, a multiple of 0.1, 0.01 ... | `decimal` with 38 digits, so many of them behind the point |
| boolean | `boolean` |
| string, with the format date-time | `timestamp`, in microseconds and UTC |
| string | `string` |
| object with properties | `struct` of these |
| array whose items have one of the types above | `list` |
| anything else, several of these, or no type | `json`, the value as JSON text |

Each may be null. A name that some engines do not allow for a column, or that differs from an earlier one only in case,
has no column. Members of an object that have no place in its struct are in the rest, in an object of the same name. An
array with an element that does not fit as a whole is in the rest.

A column keeps its id across versions as long as its name and type do not change; a struct keeps it when members come
and go. Ids are a function of the versions and are never reused, so every task computes the same.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from decimal import Context, Decimal, InvalidOperation
from itertools import count
from typing import Any, Final, Literal, NamedTuple

import msgspec
from xxhash import xxh3_64_hexdigest

from topics.schema.lens_proof import types_of
from topics.schema.registry import Registry

ColumnKind = Literal["long", "double", "decimal", "boolean", "timestamp", "string", "struct", "list", "json"]

MAX_COLUMNS = 500
"""The maximum number of columns, and of members of one struct."""
MAX_PARTS = 2000
"""The maximum number of members and elements in all structs and lists of a table."""
MAX_DEPTH = 8
"""Values that are nested more deeply are JSON text."""
DECIMAL_DIGITS = 38
FIRST_COLUMN_ID = 101
"""Lower ids are reserved for the columns that every table has."""

_FORMAT = 2
"""Part of the generation: incremented when the same versions result in other columns."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)")
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_SCALE_MAX = 18
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ABSENT: Final = object()

_DECIMALS = Context(prec=DECIMAL_DIGITS, traps=[InvalidOperation])
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Column(NamedTuple):
    column_id: int
    name: str
    kind: ColumnKind
    parts: tuple["Column", ...] = ()
    """The members of a struct, or the element of a list."""
    scale: int = 0
    """The digits of a decimal behind the point."""


class Columns(NamedTuple):
    """The columns of one version."""

    generation: str
    """Identifies the schema of files, which changes with each version."""
    columns: tuple[Column, ...]


def columns_of(registry: Registry) -> Columns:
    """The columns of the current version; empty without a version."""
    known: dict[str, Column] = {}
    ids = count(FIRST_COLUMN_ID)
    for version in range(1, registry.current_version + 1):
        named = _bounded(_named(registry.schema(version), 0))
        known = {name: _numbered(name, part, known.get(name), ids) for name, part in named}
    versions = _encode([_FORMAT, *[[one.schema, one.lens, one.boundary] for one in registry.versions]])
    return Columns(xxh3_64_hexdigest(versions), tuple(known.values()))


class _Type(NamedTuple):
    """A column's type, without ids."""

    kind: ColumnKind
    parts: tuple[tuple[str, "_Type"], ...] = ()
    scale: int = 0


def _bounded(named: Iterable[tuple[str, _Type]]) -> Iterator[tuple[str, _Type]]:
    """The members, of which those with more parts than are left are JSON text."""
    room = MAX_PARTS
    for name, part in named:
        size = _parts(part)
        yield name, part if size <= room else _Type("json")
        room -= size if size <= room else 0


def _parts(part: _Type) -> int:
    return sum(1 + _parts(inner) for _, inner in part.parts)


def _numbered(name: str, part: _Type, before: Column | None, ids: Iterator[int]) -> Column:
    """The column of a member; `before` is that of the same name in the version before."""
    if before is not None and not _same(before, part):
        before = None
    number = next(ids) if before is None else before.column_id
    known = {one.name: one for one in before.parts} if before is not None else {}
    parts = tuple(_numbered(inner, of, known.get(inner), ids) for inner, of in part.parts)
    return Column(number, name, part.kind, parts, part.scale)


def _same(before: Column, part: _Type) -> bool:
    """Whether a column keeps its id. The elements of a list cannot become another type, the members of a struct can."""
    if (before.kind, before.scale) != (part.kind, part.scale):
        return False
    return part.kind != "list" or _same(before.parts[0], part.parts[0][1])


def _named(schema: dict[str, Any], depth: int) -> Iterable[tuple[str, _Type]]:
    properties = schema.get("properties")
    taken: set[str] = set()
    for name, part in properties.items() if isinstance(properties, dict) else ():
        # Column names are case-insensitive in most engines.
        if _NAME.fullmatch(name) is not None and name.lower() not in taken and len(taken) < MAX_COLUMNS:
            taken.add(name.lower())
            yield name, _type_of(part, depth)


def _type_of(schema: Any, depth: int) -> _Type:
    if not isinstance(schema, dict):
        return _Type("json")
    types = types_of(schema) - {"null"}
    if types == {"integer"}:
        return _Type("long")
    if types in ({"number"}, {"number", "integer"}):
        scale = _scale(schema.get("multipleOf"))
        return _Type("decimal", scale=scale) if scale else _Type("double")
    if types == {"boolean"}:
        return _Type("boolean")
    if types == {"string"}:
        return _Type("timestamp" if schema.get("format") == "date-time" else "string")
    return _nested(schema, types, depth + 1) if depth < MAX_DEPTH else _Type("json")


def _nested(schema: dict[str, Any], types: frozenset[str], depth: int) -> _Type:
    if types == {"object"} and (members := tuple(_named(schema, depth))):
        return _Type("struct", members)
    if types == {"array"} and isinstance(schema.get("items"), dict):
        element = _type_of(schema["items"], depth)
        if element.kind != "json":
            return _Type("list", (("element", element),))
    return _Type("json")


def _scale(multiple_of: Any) -> int:
    """The digits behind the point that `multipleOf` allows: 2 for 0.01, 0 for all but powers of ten below 1."""
    if type(multiple_of) is not float:
        return 0
    sign, digits, exponent = Decimal(repr(multiple_of)).as_tuple()
    is_power = not sign and digits == (1,) and isinstance(exponent, int)
    return -int(exponent) if is_power and -_SCALE_MAX <= int(exponent) < 0 else 0


class Filled(NamedTuple):
    """Returns entries as columns: a list of values for each column, and the rest as JSON text, if any."""

    values: list[list[Any]]
    rest: list[str | None]


def fill(columns: tuple[Column, ...], texts: Iterable[bytes | memoryview]) -> Filled:
    filled = Filled([[] for _ in columns], [])
    fitting = [(one.name, _split_by(one), values.append) for one, values in zip(columns, filled.values, strict=True)]
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
        for name, split, add in fitting:
            value = entry.get(name, _ABSENT)
            fitted, left = (None, _ABSENT) if value is _ABSENT else split(value)
            # An explicit null differs from a missing member, and a value that does not fit is kept in the rest.
            if left is _ABSENT:
                entry.pop(name, None)
            else:
                entry[name] = left
            add(fitted)
        filled.rest.append(_encode(entry).decode() if entry else None)
    return filled


_Split = Callable[[Any], tuple[Any, Any]]
"""Returns the part of a value that fits, and the part for the rest; None and `_ABSENT` where there is none."""


def _split_by(column: Column) -> _Split:
    if column.kind == "struct":
        return _struct(column)
    fit = _list(column) if column.kind == "list" else _fit_of(column)

    def split(value: Any) -> tuple[Any, Any]:
        fitted = fit(value)
        return fitted, (_ABSENT if fitted is not None else value)

    return split


def _struct(column: Column) -> _Split:
    members = {one.name: _split_by(one) for one in column.parts}

    def split(value: Any) -> tuple[Any, Any]:
        if type(value) is not dict:
            return None, value
        fitted, left = {}, {}
        for name, inner in value.items():
            own, other = members[name](inner) if name in members else (None, inner)
            if own is not None:
                fitted[name] = own
            if other is not _ABSENT:
                left[name] = other
        # An object of which nothing fits is in the rest alone.
        return (fitted, left or _ABSENT) if fitted or not left else (None, value)

    return split


def _list(column: Column) -> Callable[[Any], Any]:
    split = _split_by(column.parts[0])

    def fit(value: Any) -> list[Any] | None:
        if type(value) is not list:
            return None
        fitted = []
        for element in value:
            own, left = (None, _ABSENT) if element is None else split(element)
            if left is not _ABSENT:
                return None
            fitted.append(own)
        return fitted

    return fit


def _fit_of(column: Column) -> Callable[[Any], Any]:
    if column.kind != "decimal":
        return _FITTING[column.kind]
    unit = Decimal(1).scaleb(-column.scale)

    def fit(value: Any) -> Decimal | None:
        if type(value) not in (int, float):
            return None
        try:
            exact = Decimal(repr(value))
            fitted = exact.quantize(unit, context=_DECIMALS)
        except InvalidOperation:
            return None
        return fitted if fitted == exact else None

    return fit


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
