"""A large schema is checked in small steps, and the refusals equal the refusals of one pass."""

import random
from typing import Any

import pytest

from topics.model.errors import InvalidRequestError
from topics.schema import validation
from topics.schema.validation import check_schema, check_schema_incrementally, compile_schema, pieces_of, run_to_end

DRAFT = "draft-07"


def wide(count: int, last: object) -> dict[str, Any]:
    members: dict[str, Any] = {f"name{number}": {"type": "string"} for number in range(count)}
    return {"type": "object", "required": ["name1"], "properties": {**members, "last": last}}


def refusal(schema: dict[str, Any]) -> str:
    with pytest.raises(InvalidRequestError) as refused:
        check_schema(schema)
    return refused.value.message


def test_a_schema_of_few_members_is_one_piece() -> None:
    schema = wide(3, {"properties": {"a": {"type": "number"}}})
    assert list(pieces_of(schema)) == [schema]


@pytest.mark.parametrize("above", [(), ("payload",), ("payload", "of", "it")])
def test_a_large_one_is_many_small_pieces(above: tuple[str, ...]) -> None:
    schema = wide(5000, {"enum": [1, 2]})
    for name in reversed(above):
        schema = {"properties": {name: schema, "beside": {"type": "null"}}}
    pieces = list(pieces_of(schema))
    assert len(pieces) > 10
    assert max(map(validation._count_nodes, pieces)) < 2 * validation._PIECE_NODES
    steps = check_schema_incrementally(schema)
    assert sum(1 for _ in steps) >= len(pieces)
    assert check_schema(schema) is schema


@pytest.mark.parametrize("above", [(), ("payload",)])
def test_what_is_wrong_with_it_is_reported_with_its_place(above: tuple[str, ...]) -> None:
    schema = wide(5000, {"type": "nothing"})
    for name in reversed(above):
        schema = {"properties": {name: schema}}
    place = "/".join([*[f"properties/{name}" for name in above], "properties/last/type"])
    assert f": {place}: " in refusal(schema)
    assert "pattern" in refusal(wide(5000, {"pattern": "("})) or "regex" in refusal(wide(5000, {"pattern": "("}))
    assert "$ref is not supported" in refusal(wide(5000, {"default": [{"$ref": "#"}]}))


def draw_schema(rng: random.Random, depth: int) -> Any:
    if not depth or rng.random() < 0.2:
        return rng.choice((True, {}, {"type": "string"}, {"minimum": 3}, {"enum": [1]}, {"pattern": "a+"}))
    if rng.random() < 0.04:
        return rng.choice((7, {"type": "nothing"}, {"pattern": "("}, {"required": "a"}, {"minimum": "x"}))
    schema: dict[str, Any] = {}
    for keyword in rng.sample(sorted(validation.MAPS - {"dependentRequired", "patternProperties"}), rng.randrange(3)):
        schema[keyword] = {f"m{number}": draw_schema(rng, depth - 1) for number in range(rng.randrange(6))}
    if rng.random() < 0.3:
        schema["anyOf"] = [draw_schema(rng, depth - 1) for _ in range(1, 3)]
    if rng.random() < 0.2:
        schema["items"] = draw_schema(rng, depth - 1)
    return schema


def can_be_compiled(schema: Any) -> bool:
    try:
        compile_schema(schema, DRAFT)
    except InvalidRequestError:
        return False
    return True


def test_the_pieces_are_right_exactly_where_the_whole_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_PIECE_NODES", 4)
    rng, seen = random.Random(3), {True: 0, False: 0}
    while min(seen.values()) < 100:
        schema = draw_schema(rng, 4)
        if isinstance(schema, dict):
            whole = can_be_compiled(schema)
            seen[whole] += 1
            assert all(map(can_be_compiled, pieces_of(schema))) is whole, schema


def test_steps_in_one_go_give_what_they_return() -> None:
    def steps() -> validation.Incremental[int]:
        yield
        return 7

    assert run_to_end(steps()) == 7
