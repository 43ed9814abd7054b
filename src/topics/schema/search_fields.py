"""The search registry: the searchable fields of entries, their capabilities, and the rollups.

    {"profile"?, "primaryTimestampField"?, "defaultFields"?, "containsDefaultFields"?, "aliases"?,
     "fields": {name: Field | kind}, "rollups"?: {name: Rollup}}

A field that is only a kind, such as `"status": "integer"`, is the short form: its pointer follows from its name,
`/user/id` for `user.id`, and it has every capability of its kind. It is stored and shown in the long form. With a short
field the primary timestamp is optional: it is the first field of kind date, if any.

This module parses and validates the description. Queries, matching and indexes are in `topics.search`.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from topics.model.errors import InvalidRequestError, quoted
from topics.schema.documents import (
    MAX_NAME_CHARS,
    MAX_QUERY_CHARS,
    MAX_ROLLUP_PARTS,
    MAX_ROLLUPS,
    MAX_SEARCH_FIELDS,
    convert,
    parse_pointer,
    refuse_others,
    show_pointer,
)

Kind = Literal["keyword", "text", "integer", "float", "date", "bool"]

_NAME = re.compile(rf"[a-zA-Z0-9][a-zA-Z0-9._-]{{0,{MAX_NAME_CHARS - 1}}}")
_INTERVAL = re.compile(r"(?P<count>[1-9][0-9]{0,9})(?P<unit>ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class _Strict(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """A part of the description; unknown fields are rejected."""


class Binding(_Strict, frozen=True, kw_only=True):
    """The pointer of a field in entries, from a version on."""

    version: Annotated[int, Meta(ge=1)]
    json_pointer: str


class Field(_Strict, frozen=True, kw_only=True):
    kind: Kind
    bindings: Annotated[tuple[Binding, ...], Meta(min_length=1, max_length=MAX_SEARCH_FIELDS)]
    normalizer: Literal["identity_v1", "lowercase_v1"] | UnsetType = UNSET
    analyzer: Literal["unicode_word_v1"] | UnsetType = UNSET
    exact: bool = False
    prefix: bool = False
    column: bool = False
    exists: bool = False
    sortable: bool = False
    aggregatable: bool = False
    contains: bool = False
    positions: bool = False

    def pointer_for(self, version: int) -> str | None:
        """Returns the pointer of the field in an entry of a version: the binding of the highest version up to that one.

        Entries of a stream without a schema count as version 1.
        """
        known = [binding for binding in self.bindings if binding.version <= max(version, 1)]
        return max(known, key=lambda binding: binding.version).json_pointer if known else None


class DefaultField(_Strict, frozen=True, kw_only=True):
    field: str
    boost: Annotated[int, Meta(gt=0)] | Annotated[float, Meta(gt=0)] | UnsetType = UNSET


class Count(_Strict, frozen=True, kw_only=True, tag_field="kind", tag="count"):
    include: str | UnsetType = UNSET


class Summary(_Strict, frozen=True, kw_only=True, tag_field="kind", tag="summary"):
    field: str
    histogram: Literal["log2_v1"] | UnsetType = UNSET


class SummaryParts(_Strict, frozen=True, kw_only=True, tag_field="kind", tag="summary_parts"):
    count_json_pointer: str
    sum_json_pointer: str
    min_json_pointer: str
    max_json_pointer: str
    histogram_json_pointer: str | UnsetType = UNSET


Measure = Count | Summary | SummaryParts
_Part = Meta(min_length=1, max_length=MAX_ROLLUP_PARTS)


class Rollup(_Strict, frozen=True, kw_only=True):
    timestamp_field: str
    include: str | UnsetType = UNSET
    dimensions: Annotated[tuple[str, ...], Meta(max_length=MAX_ROLLUP_PARTS)] = ()
    intervals: Annotated[tuple[str, ...], _Part]
    measures: Annotated[dict[str, Measure], _Part]


class SearchConfig(_Strict, frozen=True, kw_only=True):
    profile: str | UnsetType = UNSET
    primary_timestamp_field: str | UnsetType = UNSET
    default_fields: tuple[DefaultField, ...] = ()
    contains_default_fields: tuple[DefaultField, ...] = ()
    aliases: dict[str, str] = {}
    fields: dict[str, Field]
    rollups: dict[str, Rollup] = {}

    def resolve(self, name: str) -> Field | None:
        """Returns the field of a name or an alias."""
        return self.fields.get(self.aliases.get(name, name))


def interval_ms(text: str) -> int | None:
    """Returns the length of an interval such as `10s`; None if it is invalid."""
    found = _INTERVAL.fullmatch(text)
    return int(found["count"]) * _UNIT_MS[found["unit"]] if found else None


def parse_search(document: object, what: str = "search") -> SearchConfig:
    """Validates a description: every name exists, and every flag is valid for its kind."""
    if not isinstance(document, dict):
        raise InvalidRequestError(f"{what} must be a JSON object", field=what)
    refuse_others(what, document, _KNOWN)
    primary, given = document.get("primaryTimestampField", UNSET), document.get("fields")
    if not isinstance(primary, str) and not (primary is UNSET and _may_lack_primary(given)):
        raise _refusal(f"{what}.primaryTimestampField", "must name a field")
    fields = {
        name: _parse_field(name, part, f"{what}.fields.{name}")
        for name, part in _named(given, f"{what}.fields", MAX_SEARCH_FIELDS)
    }
    if not fields:
        raise _refusal(f"{what}.fields", "must declare at least one field")
    if primary is UNSET:
        primary = next((name for name, field in fields.items() if field.kind == "date"), UNSET)
    rollups = {
        name: _parse_rollup(part, primary, f"{what}.rollups.{name}")
        for name, part in _named(document.get("rollups", {}), f"{what}.rollups", MAX_ROLLUPS)
    }
    flat = {name: part for name, part in document.items() if name not in ("fields", "rollups")}
    rest = convert(what, {**flat, "fields": {}}, SearchConfig)
    config = msgspec.structs.replace(rest, primary_timestamp_field=primary, fields=fields, rollups=rollups)
    _check_names(config, what)
    for name, rollup in rollups.items():
        _check_rollup(rollup, config, f"{what}.rollups.{name}")
    return config


_KNOWN = frozenset(field.encode_name for field in msgspec.structs.fields(SearchConfig))


def _named(document: object, what: str, most: int) -> Iterable[tuple[str, Any]]:
    if not isinstance(document, dict):
        raise _refusal(what, "must be a JSON object")
    if len(document) > most:
        raise _refusal(what, f"has more than {most} members")
    for name in document:
        _check_name(name, what)
    return document.items()


def _check_name(name: str, what: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"{what}: {quoted(name)} is not a name: 1 to {MAX_NAME_CHARS} of A-Z a-z 0-9 . _ - "
            "beginning with a letter or digit",
            field=what,
        )


# The short form of a field.

_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_NUMBER: Final = ("exact", "column", "exists", "sortable", "aggregatable")
_ABILITIES: Final[dict[Kind, tuple[str, ...]]] = {
    "keyword": ("exact", "prefix", "exists", "sortable", "aggregatable", "contains"),
    "text": ("exists", "contains", "positions"),
    "integer": _NUMBER,
    "float": _NUMBER,
    "date": _NUMBER,
    "bool": ("exact", "column", "exists", "sortable"),
}
"""The capabilities of a kind in the short form. A flag permits queries and does not enlarge indexes."""


def is_short(document: object) -> bool:
    """Returns whether a description has a field in the short form."""
    fields = document.get("fields") if isinstance(document, dict) else None
    return isinstance(fields, dict) and any(isinstance(part, str) for part in fields.values())


def _may_lack_primary(fields: object) -> bool:
    """Returns whether a description needs no primary timestamp: with a short field, or without any date, which is the
    stored form of a short description."""
    if not isinstance(fields, dict) or not fields:
        return False
    parts = list(fields.values())
    return any(isinstance(part, str) for part in parts) or not any(
        isinstance(part, dict) and part.get("kind") == "date" for part in parts
    )


def expand(kind: Kind, pointer: tuple[str, ...]) -> Field:
    """Returns the field of a kind at a pointer, with every capability of its kind."""
    analyzer: Literal["unicode_word_v1"] | UnsetType = "unicode_word_v1" if kind == "text" else UNSET
    field = Field(kind=kind, bindings=(Binding(version=1, json_pointer=show_pointer(pointer)),), analyzer=analyzer)
    return msgspec.structs.replace(field, **dict.fromkeys(_ABILITIES[kind], True))


def _expand_name(name: str, kind: str, what: str) -> Field:
    if kind not in _KINDS:
        raise InvalidRequestError(
            f"{what}: {quoted(kind)} is not a kind of field. Use {', '.join(_KINDS[:-1])} or {_KINDS[-1]}", field=what
        )
    return expand(kind, tuple(name.split(".")))


def _parse_field(name: str, document: object, what: str) -> Field:
    if isinstance(document, str):
        return _expand_name(name, document, what)
    field = convert(what, document, Field)
    versions = [binding.version for binding in field.bindings]
    if len(set(versions)) != len(versions):
        raise _refusal(f"{what}.bindings", "has two bindings of one version")
    for binding in field.bindings:
        parse_pointer(binding.json_pointer, f"{what}.bindings.jsonPointer")
    if field.kind == "text":
        if field.analyzer is UNSET:
            raise _refusal(f"{what}.analyzer", "must be unicode_word_v1 for text")
        _refuse_flags(field, what, "column", "sortable", "aggregatable", "normalizer")
    elif field.kind == "keyword":
        _refuse_flags(field, what, "positions", "analyzer")
    else:
        _refuse_flags(field, what, "positions", "analyzer", "prefix", "normalizer")
    return field


def _refuse_flags(field: Field, what: str, *names: str) -> None:
    for name in names:
        if getattr(field, name) not in (False, UNSET):
            raise _refusal(f"{what}.{name}", f"is not possible for {field.kind}")


def _parse_rollup(document: object, primary: str | UnsetType, what: str) -> Rollup:
    if not isinstance(document, dict):
        raise _refusal(what, "must be a JSON object")
    for name, _ in _named(document.get("measures"), f"{what}.measures", MAX_ROLLUP_PARTS):
        convert(f"{what}.measures.{name}", document["measures"][name], Measure)  # type: ignore[arg-type]
    if "timestampField" not in document and primary is UNSET:
        raise _refusal(f"{what}.timestampField", "must name a declared field of kind date")
    return convert(what, {"timestampField": primary, **document}, Rollup)


def _check_names(config: SearchConfig, what: str) -> None:
    if config.primary_timestamp_field is not UNSET:
        primary = config.fields.get(config.primary_timestamp_field)
        if primary is None or primary.kind != "date":
            raise _refusal(f"{what}.primaryTimestampField", "must name a declared field of kind date")
    if len(config.aliases) > MAX_SEARCH_FIELDS:
        raise _refusal(f"{what}.aliases", f"has more than {MAX_SEARCH_FIELDS} members")
    for alias, name in config.aliases.items():
        _check_name(alias, f"{what}.aliases")
        if alias in config.fields:
            raise _refusal(f"{what}.aliases.{alias}", "is the name of a field")
        if name not in config.fields:
            raise _refusal(f"{what}.aliases.{alias}", "must lead to a declared field")
    for part, defaults in (
        ("defaultFields", config.default_fields),
        ("containsDefaultFields", config.contains_default_fields),
    ):
        for default in defaults:
            if default.field not in config.fields:
                raise _refusal(f"{what}.{part}", f"names {quoted(default.field)}, which is not declared")


def _check_rollup(rollup: Rollup, config: SearchConfig, what: str) -> None:
    timestamp = config.fields.get(rollup.timestamp_field)
    if timestamp is None or timestamp.kind != "date":
        raise _refusal(f"{what}.timestampField", "must name a declared field of kind date")
    if len(set(rollup.dimensions)) != len(rollup.dimensions):
        raise _refusal(f"{what}.dimensions", "names a field twice")
    for name in rollup.dimensions:
        field = config.fields.get(name)
        if field is None or not field.exact or field.kind == "text":
            raise _refusal(f"{what}.dimensions", f"{quoted(name)} is not a declared field with exact")
    lengths = [interval_ms(interval) for interval in rollup.intervals]
    if None in lengths:
        raise _refusal(f"{what}.intervals", "must be lengths such as 10s, 1m, 5m, 1h")
    if len(set(lengths)) != len(lengths):
        raise _refusal(f"{what}.intervals", "has one length twice")
    _check_query(rollup.include, f"{what}.include")
    for name, measure in rollup.measures.items():
        _check_measure(measure, config, f"{what}.measures.{name}")


def own_rollup(
    config: SearchConfig, timestamp_field: str | None, dimensions: tuple[str, ...], measures: dict[str, Any]
) -> Rollup:
    """A rollup that a request defines: over columns, which need no other flag for it."""
    named = timestamp_field or config.primary_timestamp_field
    if named is UNSET:
        raise _refusal("timestamp_field", "must be given, as the stream declares no field of kind date")
    timestamp = config.aliases.get(named, named)
    if timestamp not in config.fields or config.fields[timestamp].kind != "date":
        raise _refusal("timestamp_field", "must name a declared field of kind date")
    for name in dimensions:
        field = config.fields.get(name)
        if field is None or field.kind == "text" or not (field.exact or field.column):
            raise _refusal("group_by", f"{quoted(name)} is not a declared field with exact or column")
    rollup = _parse_rollup(
        {"timestampField": timestamp, "dimensions": dimensions, "intervals": ["1ms"], "measures": measures},
        timestamp,
        "aggregation",
    )
    for name, measure in rollup.measures.items():
        what = f"measures.{name}"
        if isinstance(measure, Summary):
            field = config.resolve(measure.field)
            if field is None or field.kind not in ("integer", "float") or not (field.column or field.aggregatable):
                raise _refusal(f"{what}.field", "must name a column of kind integer or float")
            resolved = config.aliases.get(measure.field, measure.field)
            rollup.measures[name] = msgspec.structs.replace(measure, field=resolved)
        else:
            _check_measure(measure, config, what)
    return rollup


def _check_measure(measure: Measure, config: SearchConfig, what: str) -> None:
    if isinstance(measure, Count):
        _check_query(measure.include, f"{what}.include")
    elif isinstance(measure, Summary):
        field = config.fields.get(measure.field)
        if field is None or field.kind not in ("integer", "float") or not field.aggregatable:
            raise _refusal(f"{what}.field", "must name an aggregatable field of kind integer or float")
    else:
        for part in msgspec.structs.fields(measure):
            pointer = getattr(measure, part.name)
            if isinstance(pointer, str):
                parse_pointer(pointer, f"{what}.{part.encode_name}")


def _check_query(query: str | UnsetType, what: str) -> None:
    if query is not UNSET and not (len(query.strip()) > 0 and len(query) <= MAX_QUERY_CHARS):
        raise _refusal(what, f"must be a query of at most {MAX_QUERY_CHARS} characters")


def _refusal(where: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where} {problem}", field=where)
