"""Typed columns out of a registry: the columns, and that no part of an entry is lost in them."""

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.spark.typed import merged
from topics.schema.documents import encode
from topics.schema.registry import Registry, Version
from topics.schema.typed_columns import (
    FIRST_COLUMN_ID,
    MAX_COLUMNS,
    MAX_DEPTH,
    MAX_PARTS,
    Column,
    ColumnKind,
    columns_of,
    fill,
)
from topics.spark.iceberg.typed_files import written_schema

KINDS: tuple[ColumnKind, ...] = ("long", "double", "boolean", "timestamp", "string", "json")


def registry(*schemas: dict[str, Any]) -> Registry:
    return Registry(tuple(Version(encode(one), None, 10 * number) for number, one in enumerate(schemas)))


def properties(**parts: Any) -> dict[str, Any]:
    return {"type": "object", "properties": parts}


def test_types_follow_from_the_schema() -> None:
    columns = columns_of(
        registry(
            properties(
                a={"type": "integer"}, b={"type": ["number", "null"]}, c={"type": "boolean"},
                d={"type": "string", "format": "date-time"}, e={"type": "string"}, f={"type": "object"}, g=True, h={},
                i={"type": ["string", "integer"]}, j={"type": ["integer", "number"]},
            )
        )
    ).columns  # fmt: skip
    kinds = ["long", "double", "boolean", "timestamp", "string", "json", "json", "json", "json", "double"]
    assert [column.kind for column in columns] == kinds
    assert [column.column_id for column in columns] == list(range(FIRST_COLUMN_ID, FIRST_COLUMN_ID + 10))


def test_nested_types_follow_from_the_schema() -> None:
    place = properties(city={"type": "string"}, at={"type": "string", "format": "date-time"})
    found = columns_of(
        registry(
            properties(
                place=place, lines={"type": "array", "items": {"type": "integer"}},
                deep={"type": "array", "items": place}, price={"type": "number", "multipleOf": 0.01},
                bare={"type": "object"}, mixed={"type": "array", "items": {"type": ["string", "integer"]}},
                tuple={"type": "array", "items": [{"type": "string"}]}, step={"type": "number", "multipleOf": 0.25},
                tiny={"type": "number", "multipleOf": 1e-19}, whole={"type": "number", "multipleOf": 10},
            )
        )
    ).columns  # fmt: skip
    kinds = {column.name: column.kind for column in found}
    assert kinds == {
        "place": "struct", "lines": "list", "deep": "list", "price": "decimal", "bare": "json", "mixed": "json",
        "tuple": "json", "step": "double", "tiny": "double", "whole": "double",
    }  # fmt: skip
    by_name = {column.name: column for column in found}
    assert by_name["place"] == Column(
        101, "place", "struct", (Column(102, "city", "string"), Column(103, "at", "timestamp"))
    )
    assert by_name["lines"] == Column(104, "lines", "list", (Column(105, "element", "long"),))
    [element] = by_name["deep"].parts
    assert (element.name, element.kind, len(element.parts)) == ("element", "struct", 2)
    assert by_name["price"].scale == 2


def test_values_nested_too_deeply_or_with_too_many_parts_are_json_text() -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(MAX_DEPTH + 2):
        deep = properties(a=deep)
    [column] = columns_of(registry(deep)).columns
    kinds = []
    while column.parts:
        kinds.append(column.kind)
        [column] = column.parts
    assert kinds == ["struct"] * MAX_DEPTH and column.kind == "json"
    wide = properties(**{f"m{n}": {"type": "string"} for n in range(MAX_COLUMNS)})
    many = columns_of(registry(properties(**{f"w{n}": wide for n in range(6)}))).columns
    assert [column.kind for column in many] == ["struct"] * (MAX_PARTS // MAX_COLUMNS) + ["json"] * 2


def test_members_of_a_struct_keep_their_numbers_and_elements_of_a_list_do_not_change() -> None:
    def of(items: dict[str, Any], **members: Any) -> dict[str, Any]:
        return properties(place=properties(**members), lines={"type": "array", "items": items})

    text, whole = {"type": "string"}, {"type": "integer"}
    first, second = of(whole, city=text, zip=text), of(text, city=text, zip=whole, lat=text)
    place, lines = columns_of(registry(first, second)).columns
    assert (place.column_id, lines.column_id) == (101, 108)
    assert [(one.column_id, one.name) for one in place.parts] == [(102, "city"), (106, "zip"), (107, "lat")]
    assert lines.parts[0].column_id == 109


def test_names_that_are_no_columns_have_none() -> None:
    names = ["ok", "OK", "a.b", "_seq", "1st", "with space", "ü", "", "x" * 200]
    [column] = columns_of(registry(properties(**{name: {} for name in names}))).columns
    assert column.name == "ok"
    assert columns_of(registry()).columns == columns_of(registry({})).columns == ()


def test_a_column_has_its_number_while_it_has_its_name_and_type() -> None:
    first = properties(a={"type": "integer"}, b={"type": "string"})
    second = properties(a={"type": "number"}, b={"type": "string"}, c={"type": "string"})
    third = properties(a={"type": "integer"}, c={"type": "string"})
    found = [columns_of(registry(*schemas)) for schemas in ([first], [first, second], [first, second, third])]
    assert [[column[:2] for column in one.columns] for one in found] == [
        [(101, "a"), (102, "b")],
        [(103, "a"), (102, "b"), (104, "c")],
        [(105, "a"), (104, "c")],
    ]
    assert len({one.generation for one in found}) == 3


def test_a_value_has_its_column_only_where_it_fits() -> None:
    columns = tuple(Column(101 + n, kind[0], kind) for n, kind in enumerate(KINDS))
    entries: list[Any] = [
        {"l": 2.0, "d": 1, "b": True, "t": "2026-03-01T12:00:00.5+02:00", "s": "x", "j": [1]},
        {"l": 2**63, "d": 2**53 + 1, "b": 1, "t": "2026-03-01T10:00:60Z", "s": 1, "j": None},
        {"l": True, "d": 10**400 // 10**399, "t": "2026-03-01T10:00:00.1234567Z", "more": 1},
        7, None, {},
    ]  # fmt: skip
    filled = fill(columns, [json.dumps(entry).encode() for entry in entries])
    rows = [dict(zip("ldbtsj", row, strict=True)) for row in zip(*filled.values, strict=True)]
    moment = 1_772_359_200_500_000
    assert rows[0] == {"l": 2, "d": 1.0, "b": True, "t": moment, "s": "x", "j": "[1]"}
    assert rows[1] == dict.fromkeys("ldbtsj") and json.loads(filled.rest[1] or "") == entries[1]
    assert rows[2] == {**dict.fromkeys("lbtsj"), "d": 10.0}
    assert [filled.rest[0], *filled.rest[3:]] == [None, "7", "null", None]
    assert fill(columns, [b"no json"]).rest == ["no json"]


def test_a_decimal_is_exact_or_in_the_rest() -> None:
    column = Column(101, "d", "decimal", scale=2)
    fitting = ["12.34", "-0.01", "5", "1e2", "0.1", "1e20"]
    others = ["0.123", "1e40", "true", '"1.00"', "null", "0.30000000000000004", str(10**37)]
    filled = fill((column,), [b'{"d":%b}' % text.encode() for text in [*fitting, *others]])
    [values] = filled.values
    assert values == [*map(Decimal, fitting), *[None] * len(others)]
    assert filled.rest[: len(fitting)] == [None] * len(fitting)
    assert [json.loads(rest or "")["d"] for rest in filled.rest[len(fitting) :]] == [json.loads(one) for one in others]


def test_members_without_a_place_in_a_struct_are_in_the_rest() -> None:
    place = Column(101, "place", "struct", (Column(102, "city", "string"), Column(103, "zip", "long")))
    lines = Column(104, "lines", "list", (Column(105, "element", "struct", (Column(106, "n", "long"),)),))
    entries: list[dict[str, Any]] = [
        {"place": {"city": "b", "zip": 1}, "lines": [{"n": 1}, {}, None]},
        {"place": {"city": "b", "zip": "x", "more": [1]}, "lines": [{"n": 1, "more": 2}]},
        {"place": {}, "lines": []}, {"place": {"city": None}, "lines": [{"n": None}]}, {"place": 1, "lines": {}},
    ]  # fmt: skip
    filled = fill((place, lines), [json.dumps(entry).encode() for entry in entries])
    rest = [json.loads(text) if text else None for text in filled.rest]
    assert filled.values[0] == [{"city": "b", "zip": 1}, {"city": "b"}, {}, None, None]
    assert filled.values[1] == [[{"n": 1}, {}, None], None, [], None, None]
    assert rest == [None, {"place": {"zip": "x", "more": [1]}, "lines": [{"n": 1, "more": 2}]}, None, *entries[3:]]


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abcxyz"), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(
    st.lists(_values, max_size=5),
    st.lists(st.sampled_from([kind for kind in KINDS if kind != "timestamp"]), min_size=3, max_size=3),
)
def test_columns_and_rest_are_the_entry(entries: list[Any], kinds: list[ColumnKind]) -> None:
    columns = tuple(Column(101 + n, "abc"[n], kind) for n, kind in enumerate(kinds))
    filled = fill(columns, [json.dumps(entry).encode() for entry in entries])
    for place, entry in enumerate(entries):
        rest = json.loads(filled.rest[place] or "{}")
        held = {
            column.name: json.loads(values[place]) if column.kind == "json" else values[place]
            for column, values in zip(columns, filled.values, strict=True)
            if values[place] is not None
        }
        assert ({**held, **rest} if isinstance(rest, dict) else rest) == entry


_leaf_types = st.sampled_from(
    [{"type": "integer"}, {"type": "number"}, {"type": "string"}, {"type": "number", "multipleOf": 0.1}, {}]
)
_types = st.recursive(
    _leaf_types,
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(
            lambda members: properties(**members),
            st.dictionaries(st.sampled_from("abcx"), inner, min_size=1, max_size=3),
        )
    ),
    max_leaves=5,
)


def restored(column: Column, value: Any) -> Any:
    """The JSON value of a column's value."""
    if column.kind == "json":
        return json.loads(value)
    if column.kind == "decimal":
        return float(value)
    if column.kind == "list":
        return [None if one is None else restored(column.parts[0], one) for one in value]
    if column.kind == "struct":
        parts = {part.name: part for part in column.parts}
        return {name: restored(parts[name], one) for name, one in value.items() if one is not None}
    return value


@given(st.lists(_values, max_size=5), st.dictionaries(st.sampled_from("abc"), _types, min_size=1))
def test_nested_columns_and_rest_are_the_entry(entries: list[Any], types: dict[str, Any]) -> None:
    columns = columns_of(registry(properties(**types))).columns
    filled = fill(columns, [json.dumps(entry).encode() for entry in entries])
    for column, values in zip(columns, filled.values, strict=True):
        # The file's type accepts every value that fits.
        assert len(pa.array(values, written_schema((column,)).field(column.name).type)) == len(entries)
    for place, entry in enumerate(entries):
        held = {
            column.name: restored(column, values[place])
            for column, values in zip(columns, filled.values, strict=True)
            if values[place] is not None
        }
        rest = json.loads(filled.rest[place] or "{}")
        assert (merged(held, rest) if isinstance(rest, dict) else rest) == entry
