"""Each op: its effect on an entry, the conditions of its proof, and the documents that are not lenses."""

from typing import Any

import pytest

from topics.model.errors import InvalidRequestError
from topics.schema.documents import fresh
from topics.schema.lens_proof import prove_lens, resolve_defaults
from topics.schema.lenses import OP_BY_NAME, compile_ops, parse_lens, run
from topics.schema.validation import EntryValidator

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
MAP_YN = {"map": {"y": True, "n": False}}
BACK = {"map": {"true": "y", "false": "n"}}


def closed(**members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


def array(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def lens_of(*ops: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "durable.lens/v1", "schema": "s", "from": 1, "to": 2, "ops": list(ops)}


def convert(path: str, source: str, to: str, forward: Any, backward: Any = None) -> dict[str, Any]:
    back = backward or {"builtin": "lowercase"}
    return {"op": "convert", "path": path, "fromType": source, "toType": to, "forward": forward, "backward": back}


SOUND: list[tuple[str, list[dict[str, Any]], dict[str, Any], dict[str, Any], Any, Any]] = [
    (
        "rename",
        [{"op": "rename", "from": "/a", "to": "/b"}],
        closed(a=STRING),
        closed(b=STRING),
        {"a": "x"},
        {"b": "x"},
    ),
    (
        "rename below",
        [{"op": "rename", "from": "/o/a", "to": "/o/b"}],
        closed(o=closed(a=STRING)),
        closed(o=closed(b=STRING)),
        {"o": {"a": "x"}},
        {"o": {"b": "x"}},
    ),
    (
        "names with slashes and tildes",
        [{"op": "rename", "from": "/a~1b", "to": "/c~0d"}],
        closed(**{"a/b": INTEGER}),
        closed(**{"c~d": {"type": "number"}}),
        {"a/b": 1},
        {"c~d": 1},
    ),
    (
        "copy",
        [{"op": "copy", "from": "/a", "to": "/b"}],
        closed(a=array(STRING)),
        closed(a=array(STRING), b=array(STRING)),
        {"a": ["x"]},
        {"a": ["x"], "b": ["x"]},
    ),
    (
        "add with a default",
        [{"op": "add", "path": "/b", "schema": STRING, "default": "todo"}],
        closed(a=STRING),
        closed(a=STRING, b={"enum": ["todo", "done"]}),
        {"a": "x"},
        {"a": "x", "b": "todo"},
    ),
    (
        "add with the default of the new schema",
        [{"op": "add", "path": "/b", "schema": INTEGER}],
        closed(a=STRING),
        closed(a=STRING, b={"type": "integer", "default": 3}),
        {"a": "x"},
        {"a": "x", "b": 3},
    ),
    (
        "add of an empty object and an empty array",
        [
            {"op": "add", "path": "/b", "schema": {"type": "object"}},
            {"op": "add", "path": "/c", "schema": array(STRING)},
        ],
        closed(a=STRING),
        closed(a=STRING, b={"type": "object"}, c=array(STRING)),
        {"a": "x"},
        {"a": "x", "b": {}, "c": []},
    ),
    (
        "remove, of what need not be there either",
        [{"op": "remove", "path": "/a", "schema": STRING}, {"op": "remove", "path": "/b", "schema": STRING}],
        closed(a=STRING, b=STRING, c=STRING) | {"required": ["a", "c"]},
        closed(c=STRING),
        {"a": "x", "c": "y"},
        {"c": "y"},
    ),
    (
        "hoist",
        [{"op": "hoist", "host": "/o", "name": "a", "to": "/a"}],
        closed(o=closed(a=STRING, b=STRING)),
        closed(o=closed(b=STRING), a=STRING),
        {"o": {"a": "x", "b": "y"}},
        {"o": {"b": "y"}, "a": "x"},
    ),
    (
        "hoist that keeps",
        [{"op": "hoist", "host": "/o", "name": "a", "to": "/a", "removeFromHost": False}],
        closed(o=closed(a=STRING)),
        closed(o=closed(a=STRING), a=STRING),
        {"o": {"a": "x"}},
        {"o": {"a": "x"}, "a": "x"},
    ),
    (
        "plunge into a new host",
        [{"op": "plunge", "from": "/a", "host": "/o", "name": "b"}],
        closed(a=STRING),
        closed(o=closed(b=STRING)),
        {"a": "x"},
        {"o": {"b": "x"}},
    ),
    (
        "plunge into a host that may be missing",
        [{"op": "plunge", "from": "/a", "host": "/o", "name": "b", "removeFromSource": False}],
        closed(a=STRING, o=closed(c=STRING)) | {"required": ["a"]},
        closed(a=STRING, o=closed(b=STRING, c=STRING) | {"required": ["b"]}),
        {"a": "x"},
        {"a": "x", "o": {"b": "x"}},
    ),
    (
        "wrap",
        [{"op": "wrap", "path": "/a", "mode": "singleton"}],
        closed(a=STRING),
        closed(a=array(STRING, minItems=1, uniqueItems=True)),
        {"a": "x"},
        {"a": ["x"]},
    ),
    (
        "head",
        [{"op": "head", "path": "/a"}],
        closed(a=array(STRING, minItems=1)),
        closed(a=STRING),
        {"a": ["x", "y"]},
        {"a": "x"},
    ),
    (
        "convert by a table",
        [convert("/a", "string", "boolean", MAP_YN, BACK)],
        closed(a={"type": "string", "enum": ["y", "n"]}),
        closed(a={"type": "boolean"}),
        {"a": "y"},
        {"a": True},
    ),
    (
        "convert by a table with a default",
        [convert("/a", "string", "integer", {"map": {"low": 1}, "default": 0})],
        closed(a=STRING),
        closed(a={"enum": [0, 1]}),
        {"a": "other"},
        {"a": 0},
    ),
    (
        "convert of booleans, which are few",
        [convert("/a", "boolean", "string", BACK)],
        closed(a={"type": "boolean"}),
        closed(a={"enum": ["y", "n"]}),
        {"a": False},
        {"a": "n"},
    ),
    (
        "lowercase",
        [convert("/a", "string", "string", {"builtin": "lowercase"})],
        closed(a=STRING),
        closed(a=STRING),
        {"a": "ÄB"},
        {"a": "äb"},
    ),
    (
        "uppercase of known values",
        [convert("/a", "string", "string", {"builtin": "uppercase"})],
        closed(a={"enum": ["a", "b"], "type": "string"}),
        closed(a={"enum": ["A", "B", "C"]}),
        {"a": "a"},
        {"a": "A"},
    ),
    (
        "string_to_int",
        [convert("/a", "string", "integer", {"builtin": "string_to_int"})],
        closed(a={"enum": ["1", "-2"]}),
        closed(a={"type": "integer", "maximum": 1}),
        {"a": "-2"},
        {"a": -2},
    ),
    (
        "int_to_string",
        [convert("/a", "integer", "string", {"builtin": "int_to_string"})],
        closed(a=INTEGER),
        closed(a=STRING),
        {"a": 7.0},
        {"a": "7"},
    ),
    (
        "rfc3339_to_unix_millis",
        [convert("/a", "string", "integer", {"builtin": "rfc3339_to_unix_millis"})],
        closed(a={"const": "2026-03-25T10:00:00.5+01:00"}),
        closed(a=INTEGER),
        {"a": "2026-03-25T10:00:00.5+01:00"},
        {"a": 1774429200500},
    ),
    (
        "unix_millis_to_rfc3339",
        [convert("/a", "integer", "string", {"builtin": "unix_millis_to_rfc3339"})],
        closed(a=INTEGER),
        closed(a={"type": "string", "format": "date-time"}),
        {"a": 1774429200500},
        {"a": "2026-03-25T09:00:00.500Z"},
    ),
    (
        "in",
        [{"op": "in", "path": "/o", "ops": [{"op": "rename", "from": "/a", "to": "/b"}]}],
        closed(o=closed(a=STRING)),
        closed(o=closed(b=STRING)),
        {"o": {"a": "x"}},
        {"o": {"b": "x"}},
    ),
    (
        "map over objects",
        [
            {
                "op": "map",
                "path": "/l",
                "ops": [
                    {"op": "rename", "from": "/a", "to": "/b"},
                    {"op": "add", "path": "/c", "schema": {}, "default": []},
                ],
            }
        ],
        closed(l=array(closed(a=STRING), minItems=1)),
        closed(l=array(closed(b=STRING, c=array(STRING)), minItems=1)),
        {"l": [{"a": "x"}, {"a": "y"}]},
        {"l": [{"b": "x", "c": []}, {"b": "y", "c": []}]},
    ),
    (
        "map over scalars, by the pointer of the whole",
        [{"op": "map", "path": "/l", "ops": [convert("", "string", "string", {"builtin": "uppercase"})]}],
        closed(l=array(STRING)),
        closed(l=array(STRING)),
        {"l": ["a", "b"]},
        {"l": ["A", "B"]},
    ),
    (
        "map over arrays of arrays",
        [
            {
                "op": "map",
                "path": "/l",
                "ops": [{"op": "map", "path": "", "ops": [{"op": "wrap", "path": "", "mode": "singleton"}]}],
            }
        ],
        closed(l=array(array(STRING))),
        closed(l=array(array(array(STRING)))),
        {"l": [["a"], []]},
        {"l": [[["a"]], []]},
    ),
    (
        "undeclared members stay in an open object",
        [{"op": "rename", "from": "/a", "to": "/b"}],
        {"type": "object", "properties": {"a": STRING}, "required": ["a"]},
        {"type": "object", "properties": {"b": STRING}, "required": ["b"]},
        {"a": "x", "b": 5, "z": [1]},
        {"b": "x", "z": [1]},
    ),
]


@pytest.mark.parametrize(
    ("ops", "old", "new", "entry", "promoted"), [row[1:] for row in SOUND], ids=[row[0] for row in SOUND]
)
def test_an_op_that_is_proven(
    ops: list[dict[str, Any]], old: dict[str, Any], new: dict[str, Any], entry: Any, promoted: Any
) -> None:
    assert EntryValidator(old).is_valid(entry)
    lens = parse_lens(lens_of(*ops))
    before = fresh(old)
    prove_lens(lens, old, new)
    assert old == before
    assert run(compile_ops(resolve_defaults(lens.ops, new)), fresh(entry)) == promoted
    assert EntryValidator(new).is_valid(promoted)


def test_every_op_has_a_row() -> None:
    ops = [op["op"] for row in SOUND for op in row[1]]
    assert set(ops) == set(OP_BY_NAME)


RENAME = {"op": "rename", "from": "/a", "to": "/b"}
UNSOUND: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("the source does not exist", RENAME, closed(c=STRING), closed(b=STRING)),
    ("the source is not declared", RENAME, {"type": "object"}, closed(b=STRING)),
    ("the source is not required", RENAME, closed(a=STRING) | {"required": []}, closed(b=STRING)),
    (
        "the old schema does not say that it is an object",
        RENAME,
        {"properties": {"a": STRING}, "required": ["a"]},
        closed(b=STRING),
    ),
    ("the destination is not declared", RENAME, closed(a=STRING), {"type": "object"}),
    ("another type", RENAME, closed(a=STRING), closed(b=INTEGER)),
    ("a number is no integer", RENAME, closed(a={"type": "number"}), closed(b=INTEGER)),
    (
        "a pattern allows members that are not declared",
        RENAME,
        closed(a=STRING) | {"patternProperties": {"^x": INTEGER}},
        closed(b=STRING),
    ),
    (
        "what a host requires is not there when the host is new",
        {"op": "plunge", "from": "/a", "host": "/o", "name": "b"},
        closed(a=STRING, o=closed(c=STRING)) | {"required": ["a"]},
        closed(o=closed(b=STRING, c=STRING)),
    ),
    ("null is not any text", RENAME, closed(a=STRING), closed(b={"const": None})),
    ("true is not 1", RENAME, closed(a={"const": True}), closed(b={"const": 1})),
    ("fewer values", RENAME, closed(a={"enum": ["x", "y"]}), closed(b={"enum": ["x"]})),
    ("another member is required now", RENAME, closed(a=STRING), closed(b=STRING, c=STRING)),
    (
        "the way leads through what may be missing",
        {"op": "rename", "from": "/o/a", "to": "/b"},
        closed(o=closed(a=STRING)) | {"required": []},
        closed(b=STRING),
    ),
    (
        "the way leads through what may be null",
        {"op": "rename", "from": "/o/a", "to": "/b"},
        closed(o=closed(a=STRING) | {"type": ["object", "null"]}),
        closed(o=closed(), b=STRING),
    ),
    (
        "the destination's parent is not there",
        {"op": "rename", "from": "/a", "to": "/o/a"},
        closed(a=STRING),
        closed(o=closed(a=STRING)),
    ),
    (
        "into itself",
        {"op": "rename", "from": "/a", "to": "/a/b"},
        closed(a=closed(c=STRING)),
        closed(a=closed(b=STRING)),
    ),
    ("the whole document", {"op": "copy", "from": "", "to": "/b"}, closed(a=STRING), closed(a=STRING, b={})),
    (
        "a default that does not fit its schema",
        {"op": "add", "path": "/b", "schema": STRING, "default": 1},
        closed(),
        closed(b={}),
    ),
    (
        "a default that does not fit the new schema",
        {"op": "add", "path": "/b", "schema": {}, "default": 1},
        closed(),
        closed(b=STRING),
    ),
    ("no default", {"op": "add", "path": "/b", "schema": STRING}, closed(), closed(b=STRING)),
    (
        "a reference in the schema of an op",
        {"op": "add", "path": "/b", "schema": {"$ref": "#"}, "default": 1},
        closed(),
        closed(b={}),
    ),
    ("still required", {"op": "remove", "path": "/a", "schema": STRING}, closed(a=STRING), closed(a=STRING)),
    ("head of what may be empty", {"op": "head", "path": "/a"}, closed(a=array(STRING)), closed(a=STRING)),
    ("head of what may be no array", {"op": "head", "path": "/a"}, closed(a={"minItems": 1}), closed(a=STRING)),
    (
        "a table without a default",
        convert("/a", "string", "boolean", MAP_YN),
        closed(a=STRING),
        closed(a={"type": "boolean"}),
    ),
    (
        "a table that lacks a value",
        convert("/a", "string", "boolean", MAP_YN),
        closed(a={"enum": ["y", "?"]}),
        closed(a={"type": "boolean"}),
    ),
    (
        "string_to_int of any text",
        convert("/a", "string", "integer", {"builtin": "string_to_int"}),
        closed(a=STRING),
        closed(a=INTEGER),
    ),
    (
        "string_to_int of what is no integer",
        convert("/a", "string", "integer", {"builtin": "string_to_int"}),
        closed(a={"const": "x"}),
        closed(a=INTEGER),
    ),
    (
        "a date of any text",
        convert("/a", "string", "integer", {"builtin": "rfc3339_to_unix_millis"}),
        closed(a=STRING),
        closed(a=INTEGER),
    ),
    (
        "fromType is another",
        convert("/a", "integer", "string", {"builtin": "int_to_string"}),
        closed(a=STRING),
        closed(a=STRING),
    ),
    ("toType is another", convert("/a", "string", "integer", {"builtin": "lowercase"}), closed(a=STRING), closed(a={})),
    (
        "a function of another type",
        convert("/a", "number", "string", {"builtin": "int_to_string"}),
        closed(a={"type": "number"}),
        closed(a=STRING),
    ),
    (
        "a longer text may come out",
        convert("/a", "string", "string", {"builtin": "uppercase"}),
        closed(a={"type": "string", "maxLength": 1}),
        closed(a={"type": "string", "maxLength": 1}),
    ),
    ("in of what is no object", {"op": "in", "path": "/a", "ops": [RENAME]}, closed(a=STRING), closed(a=STRING)),
    (
        "map of what is no array",
        {"op": "map", "path": "/a", "ops": [RENAME]},
        closed(a=closed(a=STRING)),
        closed(a=closed(b=STRING)),
    ),
    (
        "map over elements that differ",
        {"op": "map", "path": "/a", "ops": [{"op": "wrap", "path": "", "mode": "singleton"}]},
        closed(a=array([STRING, INTEGER])),
        closed(a=array(array({}))),
    ),
    (
        "a large default for each element",
        {"op": "map", "path": "/a", "ops": [{"op": "add", "path": "/b", "schema": {}, "default": "x" * 100}]},
        closed(a=array(closed())),
        closed(a=array(closed(b={}))),
    ),
    (
        "a host that may be missing",
        {"op": "plunge", "from": "/a", "host": "/o", "name": "b", "createHost": False},
        closed(a=STRING, o=closed()) | {"required": ["a"]},
        closed(o=closed(b=STRING)),
    ),
    (
        "a host that is no object",
        {"op": "plunge", "from": "/a", "host": "/o", "name": "b"},
        closed(a=STRING, o=STRING),
        closed(o=closed(b=STRING)),
    ),
    ("a member that no op touches has another type", RENAME, closed(a=STRING, c=STRING), closed(b=STRING, c=INTEGER)),
    (
        "an undeclared member is declared now",
        RENAME,
        closed(a=STRING) | {"additionalProperties": True},
        closed(b=STRING, c=STRING) | {"additionalProperties": True, "required": ["b"]},
    ),
    (
        "an object that was open is closed now",
        RENAME,
        closed(a=STRING) | {"additionalProperties": True},
        closed(b=STRING),
    ),
    (
        "another draft",
        RENAME,
        closed(a=STRING),
        closed(b=STRING) | {"$schema": "https://json-schema.org/draft/2020-12/schema"},
    ),
]


@pytest.mark.parametrize(("op", "old", "new"), [row[1:] for row in UNSOUND], ids=[row[0] for row in UNSOUND])
def test_an_op_that_is_not_proven(op: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> None:
    lens = parse_lens(lens_of(op))
    with pytest.raises(InvalidRequestError):
        prove_lens(lens, old, new)


MALFORMED: list[Any] = [
    None,
    [],
    {},
    lens_of(),
    lens_of(RENAME) | {"apiVersion": "durable.lens/v2"},
    lens_of(RENAME) | {"version": 1},
    lens_of(RENAME) | {"schema": ""},
    lens_of(RENAME) | {"from": -1},
    lens_of(RENAME) | {"from": "1"},
    lens_of(RENAME) | {"description": 1},
    lens_of(RENAME) | {"ops": {"0": RENAME}},
    {name: value for name, value in lens_of(RENAME).items() if name != "apiVersion"},
    {name: value for name, value in lens_of(RENAME).items() if name != "to"},
    lens_of("rename"),  # type: ignore[arg-type]
    lens_of({"op": "move", "from": "/a", "to": "/b"}),
    lens_of(RENAME | {"extra": 1}),
    lens_of(RENAME | {"to": "b"}),
    lens_of(RENAME | {"to": "/b~2"}),
    lens_of({"op": "rename", "from": "/a"}),
    lens_of({"op": "add", "path": "/a"}),
    lens_of({"op": "add", "path": "/a", "schema": 1}),
    lens_of({"op": "hoist", "host": "/a", "name": "", "to": "/b"}),
    lens_of({"op": "wrap", "path": "/a", "mode": "pair"}),
    lens_of({"op": "wrap", "path": "/a", "mode": "singleton", "reverseMode": "last"}),
    lens_of({"op": "head", "path": "/a", "reverseMode": "first"}),
    lens_of({"op": "in", "path": "/a", "ops": []}),
    lens_of({"op": "map", "path": "/a"}),
    lens_of({"op": "map", "path": "/a", "ops": [{"op": "?"}]}),
    lens_of(convert("/a", "text", "string", MAP_YN)),
    lens_of(convert("/a", "string", "string", {"builtin": "reverse"})),
    lens_of(convert("/a", "string", "string", {})),
    lens_of(convert("/a", "string", "string", {"map": {}, "builtin": "lowercase"})),
    lens_of(convert("/a", "string", "string", {"map": {"a": []}})),
    lens_of() | {"ops": [RENAME] * 257},
]


@pytest.mark.parametrize("document", MALFORMED, ids=range(len(MALFORMED)))
def test_documents_that_are_no_lens(document: Any) -> None:
    with pytest.raises(InvalidRequestError):
        parse_lens(document)


def test_a_default_is_not_shared_between_entries() -> None:
    lens = parse_lens(
        lens_of({"op": "add", "path": "/l", "schema": {}, "default": {"n": [1]}}, {"op": "head", "path": "/l/n"})
    )
    steps = compile_ops(lens.ops)
    assert run(steps, {}) == run(steps, {}) == {"l": {"n": 1}}


def test_a_copy_is_not_shared_with_its_source() -> None:
    ops: list[dict[str, Any]] = [
        {"op": "copy", "from": "/a", "to": "/b"},
        {"op": "in", "path": "/b", "ops": [{"op": "remove", "path": "/x", "schema": {}}]},
    ]
    assert run(compile_ops(parse_lens(lens_of(*ops)).ops), {"a": {"x": 1}}) == {"a": {"x": 1}, "b": {}}
