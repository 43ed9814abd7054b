"""Typed columns out of a registry: the columns, and that no part of an entry is lost in them."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from topics.schema.documents import encode
from topics.schema.registry import Registry, Version
from topics.schema.typed_columns import FIRST_COLUMN_ID, Column, ColumnKind, columns_of, fill

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
