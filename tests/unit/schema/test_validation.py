import json
from contextlib import suppress
from typing import Any

import pytest

from topics.model.errors import BatchTooLargeError, InvalidRequestError, RecordTooLargeError
from topics.schema.documents import MAX_MESSAGES
from topics.schema.validation import EntryValidator, check_schema, draft_of


def refusal(schema: dict[str, Any], value: Any, raw: bytes = b"{}") -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        EntryValidator(schema).check([value], [raw])
    return caught.value


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        ({"type": "integer"}, "x", "must be integer"),
        ({"type": ["string", "null"]}, 5, "must be null,string"),
        ({"required": ["a", "b"]}, {}, "must have required property 'a'; must have required property 'b'"),
        ({"properties": {}, "additionalProperties": False}, {"a": 1, "b": 2}, "must NOT have additional properties"),
        ({"enum": ["a"]}, "b", "must be equal to one of the allowed values"),
        ({"const": 1}, True, "must be equal to constant"),
        ({"minimum": 5}, 4, "must be >= 5"),
        ({"exclusiveMaximum": 5}, 5, "must be < 5"),
        ({"multipleOf": 2}, 3, "must be multiple of 2"),
        ({"maxLength": 2}, "abc", "must NOT have more than 2 characters"),
        ({"minItems": 2}, [1], "must NOT have fewer than 2 items"),
        ({"uniqueItems": True}, [1, 1.0], "must NOT have duplicate items"),
        ({"pattern": "^b"}, "a", 'must match pattern "^b"'),
        ({"format": "date-time"}, "2026-13-01T00:00:00Z", 'must match format "date-time"'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "must match a schema in anyOf"),
        ({"oneOf": [True, True]}, 1, "must match exactly one schema in oneOf"),
        ({"not": {}}, 1, "must NOT be valid"),
        ({"properties": {"a": False}}, {"a": 1}, "boolean schema is false"),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, "must satisfy propertyNames"),
    ],
)
def test_refusal_has_the_path_and_the_reason(schema: dict[str, Any], value: Any, message: str) -> None:
    error = refusal(schema, value)
    assert (error.message, error.detail["index"]) == (message, 0)


def test_a_refusal_names_the_entry_and_the_place() -> None:
    validator = EntryValidator({"properties": {"a/b": {"items": {"type": "string"}}}})
    with pytest.raises(InvalidRequestError) as caught:
        validator.check([{}, {"a/b": ["x", 1]}, 5], [b"{}", b'{"a/b":["x",1]}', b"5"])
    assert caught.value.detail == {"index": 1, "path": "/a~1b/1"}


def test_a_refusal_is_short() -> None:
    error = refusal({"required": [f"p{n}" for n in range(100)]}, {})
    assert error.message.count(";") == MAX_MESSAGES
    assert error.message.endswith("; ...")
    # A large entry has its first error told: collecting all of them would take longer than the append.
    many = list(range(100_000))
    assert refusal({"items": {"type": "string"}}, many, b"x" * 600_000).message == "must be string"


def test_a_refusal_does_not_collect_what_no_memory_could_hold() -> None:
    """Two hundred errors an element are reported as one; collecting them would take gigabytes."""
    schema = {"anyOf": [{"items": {"anyOf": [{"minimum": n + 1} for n in range(100)]}}] * 2}
    assert refusal(check_schema(schema), [0] * 400_000).message == "must match the schema"


def test_a_batch_that_would_take_too_long_is_refused() -> None:
    validator = EntryValidator({"items": {"enum": [f"s{n}" for n in range(200)]}})
    raw = b"x" * 2**17
    validator.check([[]], [raw])
    with pytest.raises(BatchTooLargeError):
        validator.check([[], []], [raw, raw])
    with pytest.raises(RecordTooLargeError) as caught:
        validator.check([[]], [raw * 2])
    assert caught.value.detail["max"] == 32 * 2**20 // 201


@pytest.mark.parametrize("value", ["\n", "x" * 10_000, "\x1b[31m"])
def test_a_refusal_quotes_what_came(value: str) -> None:
    error = refusal({"required": [value]}, {})
    assert len(error.message) < 200
    assert error.message.isprintable()


@pytest.mark.parametrize(
    "schema",
    [
        {"format": "email"},
        {"format": "uri"},
        {"contentEncoding": "base64"},
        {"contentMediaType": "application/json"},
        {"properties": {"a": {"format": "ipv4"}}},
        {"x-unknown": 5},
    ],
)
def test_annotations_refuse_nothing(schema: dict[str, Any]) -> None:
    check_schema(schema)
    EntryValidator(schema).check(["!", {"a": "!"}], [b"", b""])


def test_members_with_the_names_of_keywords_are_members() -> None:
    schema = {
        "properties": {"format": {"const": {"format": "email"}}, "enum": {"type": "string", "format": "date-time"}}
    }
    validator = EntryValidator(check_schema(schema))
    assert validator.is_valid({"format": {"format": "email"}, "enum": "2026-03-25T10:00:00Z"})
    assert not validator.is_valid({"format": {}})
    assert not validator.is_valid({"enum": "x"})


def test_the_draft_of_a_schema() -> None:
    tuple_schema = {"prefixItems": [{"type": "string"}]}
    assert EntryValidator(tuple_schema).is_valid([1])
    later = tuple_schema | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    assert not EntryValidator(check_schema(later)).is_valid([1])
    assert draft_of({"$schema": "http://json-schema.org/draft-04/schema#"}) == "draft-04"
    for address in ("http://json-schema.org/draft-03/schema#", "x", 5, ""):
        with pytest.raises(InvalidRequestError):
            draft_of({"$schema": address})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"type": 5},
        {"required": "a"},
        {"properties": []},
        {"minLength": -1},
        {"$ref": "#/definitions/a"},
        {"items": {"anyOf": [{"$ref": "https://example.com/a"}]}},
        {"$dynamicRef": "#a"},
        {"$recursiveRef": "#"},
        {"default": {"$ref": "x"}},
        {"pattern": "("},
        {"pattern": "(?=a)b"},
        {"pattern": r"(a)\1"},
        {"pattern": "a{1000}{1000}"},
        {"patternProperties": {"(?!a)": {}}},
        {"anyOf": [{}] * 2049},
        {"enum": list(range(2049))},
        {"allOf": [{"not": {}}] * 60},
        {"patternProperties": {f"a{n}": {} for n in range(101)}},
        {"allOf": [{"pattern": f"a{n}"} for n in range(101)]},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "allOf": [{"unevaluatedItems": False}] * 5},
    ],
)
def test_schemas_that_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        check_schema(schema)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(x+x+)+y", "(a|a)*b", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_no_pattern_takes_for_ever(pattern: str) -> None:
    """An engine that backtracks needs longer than the age of the world for these: a test that ends is a test passed."""
    validator = EntryValidator(check_schema({"type": "string", "pattern": pattern}))
    validator.is_valid("a" * 50_000 + "!")
    validator.is_valid("x" * 50_000)


def test_nothing_is_fetched() -> None:
    """`$id` and `$schema` name places; they are never fetched."""
    check_schema({"$id": "http://127.0.0.1:9/schema", "$schema": "https://json-schema.org/draft/2020-12/schema"})


def test_the_errors_of_a_large_enum_are_not_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error has a copy of the whole enum: 4,000 of them took four seconds."""
    validator = EntryValidator({"items": {"enum": [f"{number}" for number in range(2_000)]}})
    value = ["x"] * 4_000
    validator.is_valid(value)
    judge = FirstErrorOnly(validator._judge())
    monkeypatch.setattr(validator, "_judge", lambda: judge)
    with pytest.raises(InvalidRequestError, match="must be equal to one of the allowed values") as caught:
        validator.check([value], [b" " * 16_000])
    assert caught.value.detail["path"] == "/0"


class FirstErrorOnly:
    """A validator that does not make all errors of a value."""

    def __init__(self, judge: Any) -> None:
        self.is_valid, self.validate = judge.is_valid, judge.validate

    def iter_errors(self, value: object) -> None:
        raise AssertionError("all errors were made")


@pytest.mark.parametrize(
    ("schema", "number", "most"),
    [
        ({"items": {"multipleOf": 0.01}}, b"1e308", 500),
        ({"items": {"multipleOf": 3}}, b"1" * 25, 500),
        ({"items": {"allOf": [{"multipleOf": 0.01}] * 4}}, b"1e308", 125),
        ({"items": {"multipleOf": 0.01}}, b"61234567", 10_000),
        ({"items": {"allOf": [{"multipleOf": 0.01}] * 5}}, b"7.5", 2_000),
        ({"items": {"enum": list(range(2_000))}}, b"0.5", 6),
        ({"items": {"enum": [0.25, 0.5]}}, b"5e-1", 6_000),
        ({"items": {"minimum": 0.5}}, b"7", 20_000),
        ({"items": {"maximum": 10**30}}, b"0.5", 20_000),
        ({"items": {"minimum": 0}}, b"7", 100_000),
        ({"items": {"allOf": [{"minimum": 0.5 - n} for n in range(60)]}}, b"7", 411),
        ({"items": {"properties": {"a": {"minimum": 0.5}, "b": {"minimum": 1.5}}}}, b'{"a":2,"b":2}', 10_000),
        ({"items": {"exclusiveMinimum": 5}}, b"1e308", 16_666),
        ({"items": {"not": {"const": 0.5}}}, b"-1.5e-308", 16_666),
    ],
)
def test_numbers_that_take_long_to_compare_are_bounded(schema: dict[str, Any], number: bytes, most: int) -> None:
    few, many = b"[" + b",".join([number] * most) + b"]", b"[" + b",".join([number] * (most + 1)) + b"]"
    for raw in (few, many):
        with pytest.raises(InvalidRequestError) if raw is many else suppress(InvalidRequestError) as caught:
            EntryValidator(schema).check([json.loads(raw)], [raw])
        assert (raw is many) == (caught is not None and isinstance(caught.value, RecordTooLargeError))


@pytest.mark.parametrize("shape", [lambda n: n, lambda n: [n], lambda n: {"a": n}])
@pytest.mark.parametrize("first", [2**62, 2**64 - 2**12, 10**25, 10**400])
def test_unique_whole_numbers_that_have_one_hash_are_bounded(shape: Any, first: int) -> None:
    # 30,000 of them took the validator 160 seconds.
    values = [[shape(first + n) for n in range(count)] for count in (40, 1500)]
    validator = EntryValidator({"uniqueItems": True})
    validator.check(values[:1], [json.dumps(values[0]).encode()])
    with pytest.raises(RecordTooLargeError, match="uniqueItems"):
        validator.check(values[1:], [json.dumps(values[1]).encode()])


def test_unique_long_numbers_that_lie_apart_are_not_bounded() -> None:
    stamps = [1_700_000_000_000_000_000 + 1_000_000 * n for n in range(10_000)]
    tenants = [{"tenant": 2**62, "n": n} for n in range(10_000)]
    for values in (stamps, tenants):
        EntryValidator({"uniqueItems": True}).check([values], [json.dumps(values).encode()])


def test_usual_numbers_are_not_bounded() -> None:
    schema = {"items": {"multipleOf": 0.01}}
    values = [1234567.89] * 10_000
    EntryValidator(schema).check([values], [json.dumps(values).encode()])


def test_digits_within_texts_are_no_numbers() -> None:
    schema = {"properties": {"n": {"multipleOf": 0.01}, "k": {"enum": list(range(2_000))}}}
    entry = {"n": 1.5, "k": 7, "t": ["2026-01-02T03:04:05.678Z", "3e12" * 16, "1" * 40] * 20}
    EntryValidator(schema).check([entry], [json.dumps(entry).encode()])


def test_a_single_entry_that_would_take_too_long_is_refused() -> None:
    """Nothing can interrupt the validation of an entry."""
    schema = {"allOf": [{"pattern": f"^[ab]*$|{number}"} for number in range(99)]}
    validator = EntryValidator(schema)
    validator.check(["a"], [b"x" * 40_000])
    with pytest.raises(RecordTooLargeError):
        validator.check(["a"], [b"x" * 50_000])
