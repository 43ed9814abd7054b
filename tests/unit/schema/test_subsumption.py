"""Pairs of schemas that are easy to decide wrongly."""

from typing import Any

import pytest

from topics.model.errors import InvalidRequestError
from topics.schema.lens_proof import Comparison, Gap
from topics.schema.validation import DRAFT_4, DRAFT_7

LATER = "2020-12"
TEXT = {"type": "string"}
OBJECT: dict[str, Any] = {"type": "object"}


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (TEXT, {}),
        (False, TEXT),
        ({"type": "integer"}, {"type": "number"}),
        ({"type": "boolean"}, {"enum": [True, False, 5]}),
        ({"enum": [1, "x"], "type": "string"}, TEXT),
        ({"const": 1}, {"enum": [1.0]}),
        (TEXT, {"minimum": 5, "required": ["a"], "items": False}),
        ({"type": ["string", "null"]}, {"anyOf": [TEXT, {"type": "null"}]}),
        ({"anyOf": [TEXT, {"type": "null"}]}, {"type": ["string", "null"]}),
        ({"oneOf": [{"const": 1}, {"const": 2}]}, {"type": "integer"}),
        ({"allOf": [TEXT, {"minLength": 1}]}, TEXT),
        (TEXT, {"allOf": [TEXT, {"maximum": 1}]}),
        ({"minimum": 2}, {"exclusiveMinimum": 1}),
        ({"type": "number", "exclusiveMinimum": 1}, {"minimum": 1}),
        (OBJECT | {"required": ["a", "b"]}, {"minProperties": 2}),
        (OBJECT | {"properties": {"a": {}, "b": False}, "additionalProperties": False}, {"maxProperties": 1}),
        ({"type": "array", "maxItems": 1}, {"uniqueItems": True}),
        ({"type": "array", "maxItems": 0}, {"items": TEXT}),
        (OBJECT | {"additionalProperties": TEXT}, {"properties": {"a": TEXT}}),
        ({"format": "email"}, {"format": "uri"}),
        ({"not": TEXT, "title": "one"}, {"not": TEXT, "title": "other"}),
    ],
)
def test_shown(narrow: Any, wide: Any) -> None:
    Comparison(DRAFT_7).require(narrow, wide)


@pytest.mark.parametrize(
    ("draft", "narrow", "wide"),
    [
        (DRAFT_7, {}, TEXT),
        (DRAFT_7, True, {"type": ["string", "null"]}),
        (DRAFT_7, TEXT, False),
        (DRAFT_7, TEXT, {"const": None}),
        (DRAFT_7, {"const": True}, {"const": 1}),
        (DRAFT_7, {"minimum": 1}, {"minimum": 2}),
        (DRAFT_7, {"minimum": 1}, {"exclusiveMinimum": 1}),
        (DRAFT_7, TEXT, {"format": "date-time"}),
        (DRAFT_7, TEXT | {"pattern": "a"}, {"pattern": "ab"}),
        (DRAFT_7, OBJECT | {"properties": {"a": TEXT}}, {"required": ["a"]}),
        (DRAFT_7, OBJECT, {"properties": {"a": TEXT}}),
        (DRAFT_7, OBJECT, {"additionalProperties": False}),
        # The same word beside other words means another thing.
        (
            DRAFT_7,
            OBJECT | {"properties": {"a": {}}, "additionalProperties": False},
            OBJECT | {"additionalProperties": False},
        ),
        (DRAFT_7, {"if": TEXT, "then": {"minLength": 5}}, {"if": {}, "then": {"minLength": 5}}),
        (
            DRAFT_7,
            OBJECT | {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
            OBJECT | {"additionalProperties": False},
        ),
        (DRAFT_7, {"type": "array", "items": [TEXT]}, {"items": TEXT}),
        (
            LATER,
            {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
            {"unevaluatedProperties": False},
        ),
        (LATER, {"prefixItems": [{}], "items": TEXT}, {"items": TEXT}),
        # Draft 4 does not know `const`, and its `exclusiveMinimum` is a flag.
        (DRAFT_4, {"const": "a"}, TEXT),
        (DRAFT_4, {"minimum": 1}, {"minimum": 1, "exclusiveMinimum": True}),
    ],
)
def test_not_shown(draft: str, narrow: Any, wide: Any) -> None:
    with pytest.raises(Gap):
        Comparison(draft).require(narrow, wide)


def test_a_comparison_has_an_end() -> None:
    def union(depth: int, least: int) -> dict[str, Any]:
        if depth == 0:
            return {"type": "string", "minLength": least}
        below = union(depth - 1, least)
        return {"anyOf": [{"type": "array", "items": below, "minItems": n} for n in range(6)]}

    with pytest.raises(InvalidRequestError, match="too complex"):
        Comparison(DRAFT_7).require(union(6, 0), union(6, 1))
