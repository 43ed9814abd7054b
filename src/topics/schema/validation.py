"""JSON Schema validation of entries: schemas are checked and compiled once, and used for every append."""

import math
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final, TypeVar

import jsonschema_rs

from topics.model.errors import BatchTooLargeError, InvalidRequestError, RecordTooLargeError, quoted
from topics.schema.documents import (
    MAX_ENTRY_COST,
    MAX_ERROR_VALUES,
    MAX_ERRORS,
    MAX_MESSAGES,
    MAX_PATTERN_BYTES,
    MAX_PATTERNS,
    MAX_SCHEMA_WEIGHT,
    MAX_UNEVALUATED,
    MAX_VALIDATION_COST,
    shape_of,
    show_pointer,
)

# Incremental compilation of large schemas.
#
# The validator compiles a schema at once, which takes tens of milliseconds for thousands of members. So a new schema is
# checked in pieces, as units of a task of the fair scheduler: it is valid exactly if each piece is.

T = TypeVar("T")
Incremental = Generator[None, None, T]
"""Work that yields between units, like a task of the fair scheduler, and returns a result."""

MAPS: Final = frozenset(
    ("properties", "patternProperties", "definitions", "$defs", "dependentSchemas", "dependencies", "dependentRequired")
)
"""Keywords whose members have arbitrary names."""
_PIECE_NODES: Final = 1_000
"""The approximate number of values of a piece, which is compiled in a millisecond."""
_DEPTH_MAX: Final = 3
"""The depth to which a schema is split. Each level is counted again, and large schemas are wide."""


def run_to_end(work: Incremental[T]) -> T:
    """Runs all units at once and returns the result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            done: T = end.value
            return done


def pieces_of(schema: dict[str, Any], depth: int = _DEPTH_MAX) -> Iterator[dict[str, Any]]:
    """Splits a schema into schemas that together accept the same entries.

    An error in one of them has the same path here.
    """
    rest = dict(schema)
    for keyword, members in schema.items():
        if keyword in MAPS and isinstance(members, dict):
            kept: dict[str, Any] = {}
            size = 0
            for name, below in members.items():
                nodes = _count_nodes(below)
                if nodes > _PIECE_NODES and depth and isinstance(below, dict):
                    yield from ({keyword: {name: piece}} for piece in pieces_of(below, depth - 1))
                    continue
                kept[name] = below
                size += nodes
                if size >= _PIECE_NODES:
                    yield {keyword: kept}
                    kept, size = {}, 0
            rest[keyword] = kept
    yield rest


def _count_nodes(value: object) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum([_count_nodes(below) for below in value.values() if isinstance(below, dict | list)])
    if isinstance(value, list):
        return 1 + len(value) + sum([_count_nodes(below) for below in value if isinstance(below, dict | list)])
    return 1


# Supported JSON Schema, and the cost of a schema.
#
# `$schema` selects the draft, from 4 to 2020-12; the default is draft 7. References are not followed, and only the
# format `date-time` is enforced: all others are annotations, as are `contentEncoding` and `contentMediaType`. Patterns
# are run by a linear-time engine, so look-around and back-references are refused.
#
# The time of a validation is bounded by the size of the batch times the schema's weight, its work for one value.
# Members of an object have no weight, because each is looked up by its name; alternatives tried one after the other
# have measured weights: a branch of `anyOf`, `oneOf` and `allOf` and a value of `enum` 1, a pattern of
# `patternProperties`, a dependency and an `if` 2, `contains` 4, `multipleOf` 20, `not` 40.

DRAFT_4: Final = "draft-04"
DRAFT_7: Final = "draft-07"

_VALIDATORS: Final = {
    DRAFT_4: jsonschema_rs.Draft4Validator,
    "draft-06": jsonschema_rs.Draft6Validator,
    DRAFT_7: jsonschema_rs.Draft7Validator,
    "2019-09": jsonschema_rs.Draft201909Validator,
    "2020-12": jsonschema_rs.Draft202012Validator,
}
_DRAFT_BY_ADDRESS: Final = {
    **{f"json-schema.org/{draft}/schema": draft for draft in (DRAFT_4, "draft-06", DRAFT_7)},
    **{f"json-schema.org/draft/{draft}/schema": draft for draft in ("2019-09", "2020-12")},
}

# The linear-time engine, without look-around and back-references.
_PATTERN_OPTIONS: Final = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES, dfa_size_limit=MAX_PATTERN_BYTES)

_REFERENCES: Final = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))
_DATA: Final = frozenset(("const", "enum", "default", "examples"))
"""Keywords whose values are data and contain no keywords."""
_LIST_WEIGHTS: Final = {"anyOf": 1.0, "oneOf": 1.0, "allOf": 1.0, "enum": 1.0}
_MAP_WEIGHTS: Final = {"patternProperties": 2.0, "dependencies": 2.0, "dependentSchemas": 2.0, "dependentRequired": 2.0}
_WEIGHTS: Final = {"not": 40.0, "contains": 4.0, "if": 2.0, "multipleOf": 20.0}
_ENTRY_WEIGHTS: Final = {"oneOf": 3.0, "anyOf": 1.0, "allOf": 1.0}
MAX_EXTREME_NUMBERS: Final = 500
"""`multipleOf` takes 50 microseconds for a number of 300 digits."""
MAX_MULTIPLES: Final = 10_000
"""The maximum number of numbers of an entry that a `multipleOf` with a fraction checks, up to 2 microseconds each."""
MAX_COMPARED_NUMBERS: Final = 12_000
"""Comparisons of a number that has a fraction with a number of an enum: a microsecond each."""
MAX_BOUNDED_NUMBERS: Final = 100_000
"""Numbers of an entry that are compared with a short whole number, 0.1 microseconds each."""
_FRACTION_COST: Final = 4
"""The added cost of a comparison with a fraction or a long number, in units of a comparison."""
_CHEAP_BOUNDS: Final = 20
"""The number of short integer bounds of a number that cost as much as counting it."""
_EXPONENT_COST: Final = 6
"""The cost of a number with an exponent of three digits."""
MAX_COLLISIONS: Final = 40_000
"""Pairs of values of `uniqueItems` that are compared because they have one hash: 0.2 microseconds for each 8 bytes."""
_NUMBER = rb'(?:":|[\[,])\s*-?[0-9]'
"""The start of a number in a JSON text: after a member's name, or in an array. Digits within texts do not count."""
_extreme_numbers = re.compile(_NUMBER + rb"(?:[0-9.]*[eE][+-]?[0-9]{2}|[0-9]{24}|[0-9]*\.[0-9]{20})").findall
_fractions = re.compile(_NUMBER + rb"[0-9]*[.eE]").findall
_EXACT_MAX: Final = 1 << 53
_BOUNDS: Final = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const"))
_LOOKED_AT_ONCE: Final = 5_000


def draft_of(schema: dict[str, Any]) -> str:
    address = schema.get("$schema")
    if address is None:
        return DRAFT_7
    if isinstance(address, str):
        draft = _DRAFT_BY_ADDRESS.get(address.rstrip("#").partition("://")[2])
        if draft is not None:
            return draft
    raise InvalidRequestError(f"schema: {quoted(str(address))} is not a draft of JSON Schema that is known here")


def check_schema(schema: object, what: str = "schema") -> dict[str, Any]:
    """Returns `schema` if it can be installed, otherwise refuses it."""
    return run_to_end(check_schema_incrementally(schema, what))


def check_schema_incrementally(schema: object, what: str = "schema") -> Incremental[dict[str, Any]]:
    """Like `check_schema`, a few milliseconds at a time: a schema may have thousands of members."""
    if not isinstance(schema, dict):
        raise InvalidRequestError(f"{what} must be a JSON object", field=what)
    yield from _refuse_references(schema, what)
    yield
    yield from _refuse_costs(schema, what)
    draft = draft_of(schema)
    for piece in pieces_of(schema):
        yield
        compile_schema(piece, draft, what)
    return schema


def _refuse_costs(schema: dict[str, Any], what: str) -> Incremental[None]:
    """Refuses schemas that make every entry expensive."""
    patterns = unevaluated = 0
    weight = 1.0
    for number, (name, value) in enumerate(_keywords(schema), 1):
        if name == "pattern":
            patterns += 1
        elif name == "patternProperties" and isinstance(value, dict):
            patterns += len(value)
        elif name.startswith("unevaluated"):
            unevaluated += 1
        weight += _weight(name, value)
        if not number % _LOOKED_AT_ONCE:
            yield
    if patterns > MAX_PATTERNS:
        raise InvalidRequestError(f"{what} has more than {MAX_PATTERNS} patterns", field=what, max=MAX_PATTERNS)
    if unevaluated > MAX_UNEVALUATED:
        raise InvalidRequestError(
            f"{what} has more than {MAX_UNEVALUATED} times unevaluatedProperties or unevaluatedItems",
            max=MAX_UNEVALUATED,
        )
    if weight > MAX_SCHEMA_WEIGHT:
        raise InvalidRequestError(
            f"{what} tries too many alternatives for one value: branches, patterns, dependencies and values of enum",
            field=what,
            max=MAX_SCHEMA_WEIGHT,
        )


def compile_schema(schema: dict[str, Any] | bool, draft: str, what: str = "schema") -> jsonschema_rs.Validator:
    """Compiles the validator of a schema; refuses schemas that are invalid in their draft."""
    try:
        return _VALIDATORS[draft](
            _plain(schema),
            validate_formats=True,
            ignore_unknown_formats=True,
            pattern_options=_PATTERN_OPTIONS,
            offline=True,
        )
    except jsonschema_rs.ValidationError as error:
        where = "/".join(map(str, error.instance_path))
        raise InvalidRequestError(
            f"{what} is not a JSON Schema of {draft}: {quoted(where)[1:-1] or 'its top'}: {_short(error)}", field=what
        ) from None
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise InvalidRequestError(f"{what} is not a JSON Schema of {draft}: {_short(error)}", field=what) from None


def weight_of(schema: object) -> float:
    """The number of steps that a schema takes for one value; at least 1."""
    return 1 + sum(_weight(name, value) for name, value in _keywords(schema))


def error_bound(schema: object) -> int:
    """Returns the maximum number of errors of one value: one for each keyword, and one for each name in `required`, of
    each schema that applies to it. These are the schema of its path, and one for each branch."""
    widest = branches = 0
    for part in _schemas(schema):
        names = part.get("required")
        widest = max(widest, len(part) + (len(names) if isinstance(names, list) else 0))
        for name, value in part.items():
            branches += _branches(name, value)
    return widest * (1 + branches)


def has_branches(schema: object) -> bool:
    return any(_branches(name, value) for name, value in _keywords(schema))


def members_in(schema: object) -> int:
    """Returns the number of members of a schema, at all depths."""
    if isinstance(schema, dict):
        return len(schema) + sum(map(members_in, schema.values()))
    if isinstance(schema, list):
        return len(schema) + sum(map(members_in, schema))
    return 0


def _short(error: Exception) -> str:
    text = error.message if isinstance(error, jsonschema_rs.ValidationError) else str(error)
    return quoted(text)[1:-1].replace('\\"', '"')


def _refuse_references(schema: object, what: str) -> Incremental[None]:
    """Refuses references anywhere, even in data, so that the position need not be interpreted."""
    waiting, looked = [schema], 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            found = _REFERENCES & value.keys()
            if found:
                raise InvalidRequestError(f"{what}: {min(found)} is not supported", field=what)
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        looked += 1
        if not looked % _LOOKED_AT_ONCE:
            yield


def _subschemas(name: str, value: object) -> Iterator[object]:
    """Yields the parts of a keyword's value that may be schemas."""
    if name in _DATA:
        return
    if name in MAPS:
        if isinstance(value, dict):
            yield from value.values()
    elif isinstance(value, list):
        yield from value
    else:
        yield value


def _keywords(schema: object) -> Iterator[tuple[str, Any]]:
    """Yields every keyword of a schema and of its subschemas."""
    if isinstance(schema, dict):
        for name, value in schema.items():
            yield name, value
            for below in _subschemas(name, value):
                yield from _keywords(below)


def _schemas(schema: object) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for name, value in schema.items():
            for below in _subschemas(name, value):
                yield from _schemas(below)


def _branches(name: str, value: object) -> int:
    """Returns the number of further schemas that a keyword applies to the same value, or to each part of it."""
    if name in ("anyOf", "oneOf", "allOf") and isinstance(value, list):
        return len(value)
    if name in ("patternProperties", "dependencies", "dependentSchemas") and isinstance(value, dict):
        return len(value)
    return 1 if name in ("not", "if", "then", "else", "contains", "propertyNames") else 0


def _longest_list(schema: object) -> int:
    """Returns the length of the longest list of a keyword; at least 1."""
    return max([len(value) for _, value in _keywords(schema) if isinstance(value, list)], default=1) or 1


def _numbers_in(values: object) -> int:
    return len([value for value in values if type(value) in (int, float)]) if isinstance(values, list) else 0


def _entry_weight(name: str, value: object) -> float:
    """Returns the measured cost of a keyword for each byte of an entry: texts and numbers of an enum are looked up,
    arrays and objects are compared."""
    if name == "enum" and isinstance(value, list):
        return 10.0 * len([one for one in value if isinstance(one, dict | list)])
    if name in _ENTRY_WEIGHTS and isinstance(value, list):
        return _ENTRY_WEIGHTS[name] * len(value)
    return 12.0 if name == "contains" else _weight(name, value)


def _weight(name: str, value: object) -> float:
    if isinstance(value, list):
        return _LIST_WEIGHTS.get(name, 0.0) * len(value)
    if isinstance(value, dict) and name in _MAP_WEIGHTS:
        return _MAP_WEIGHTS[name] * len(value)
    return _WEIGHTS.get(name, 0.0)


_ANNOTATIONS: Final = frozenset(("$schema", "$id", "contentEncoding", "contentMediaType", "contentSchema"))


def _plain(schema: Any) -> Any:
    """Returns a schema without annotations that the validator would enforce."""
    if not isinstance(schema, dict):
        return schema
    plain: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _ANNOTATIONS or (name == "format" and isinstance(value, str) and value != "date-time"):
            continue
        if name in _DATA:
            plain[name] = value
        elif name in MAPS and isinstance(value, dict):
            plain[name] = {member: _plain(below) for member, below in value.items()}
        elif isinstance(value, list):
            plain[name] = [_plain(below) for below in value]
        else:
            plain[name] = _plain(value)
    return plain


_SENTENCES: Final = {
    "required": "must have required property '{0}'",
    "type": "must be {0}",
    "additionalProperties": "must NOT have additional properties",
    "enum": "must be equal to one of the allowed values",
    "const": "must be equal to constant",
    "minimum": "must be >= {0}",
    "maximum": "must be <= {0}",
    "exclusiveMinimum": "must be > {0}",
    "exclusiveMaximum": "must be < {0}",
    "multipleOf": "must be multiple of {0}",
    "minLength": "must NOT have fewer than {0} characters",
    "maxLength": "must NOT have more than {0} characters",
    "minItems": "must NOT have fewer than {0} items",
    "maxItems": "must NOT have more than {0} items",
    "minProperties": "must NOT have fewer than {0} properties",
    "maxProperties": "must NOT have more than {0} properties",
    "pattern": 'must match pattern "{0}"',
    "format": 'must match format "{0}"',
    "uniqueItems": "must NOT have duplicate items",
    "anyOf": "must match a schema in anyOf",
    "oneOf": "must match exactly one schema in oneOf",
    "not": "must NOT be valid",
    "contains": "must contain a valid item",
    "falseSchema": "boolean schema is false",
}
"""Formats an error in the usual terms of JSON Schema validators."""


COMPILED_PER_BYTE: Final = 64
"""Measured: 30 to 55 bytes for each byte of a schema, with the validators of a batch and of a single entry."""
_PATTERN_BYTES: Final = 20_000
_STATE_BYTES: Final = 32
_UNICODE_STATE_BYTES: Final = 512
"""Of a class such as `\\w`, which has hundreds of ranges."""
_repeats = re.compile(r"\{(?:\d*,)?(\d{1,6})\}").findall
_unicode_class = re.compile(r"\\[wWdDsSpP]").search


def pattern_bytes(schema: dict[str, Any]) -> int:
    """The estimated memory of a schema's compiled patterns: a pattern grows with what it repeats, up to the compiler's
    limit."""
    estimate = 0
    for name, value in _keywords(schema):
        patterns = list(value) if name == "patternProperties" and isinstance(value, dict) else []
        for pattern in [value] if name == "pattern" and isinstance(value, str) else patterns:
            states = len(pattern) * math.prod([max(int(most), 1) for most in _repeats(pattern)[:8]])
            each = _UNICODE_STATE_BYTES if _unicode_class(pattern) else _STATE_BYTES
            estimate += _PATTERN_BYTES + min(states * each, 2 * MAX_PATTERN_BYTES)
    return estimate


class EntryValidator:
    """Validates the entries of one version.

    A batch is validated in one call, which costs two thirds of separate calls.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._draft = draft_of(schema)
        self._weight = weight_of(schema)
        self._entry_weight = 1 + sum([_entry_weight(name, value) for name, value in _keywords(schema)])
        self._multiples = _most_met(schema, lambda name, _: name == "multipleOf")
        self._fraction_multiples = any(
            [name == "multipleOf" and type(value) is not int for name, value in _keywords(schema)]
        )
        self._named_numbers = sum([_numbers_in(value) for name, value in _keywords(schema) if name == "enum"])
        self._longest_list = _longest_list(schema)
        bounds = _most_met(schema, lambda name, value: name in _BOUNDS and type(value) in (int, float))
        long = _most_met(schema, lambda name, value: name in _BOUNDS and _is_long(value))
        self._bounds = bounds > 0
        self._number_cost = max(1, bounds // _CHEAP_BOUNDS) + _FRACTION_COST * long
        self._extreme_cost = _EXPONENT_COST * max(1, bounds)
        self._unique = any([name == "uniqueItems" and value is True for name, value in _keywords(schema)])
        self._counts_numbers = self._multiples > 0 or self._named_numbers > 0 or self._bounds or self._unique
        below = {name: value for name, value in schema.items() if name != "$schema"}
        self._batch = compile_schema({"items": below}, self._draft)
        self._single: jsonschema_rs.Validator | None = None

    @property
    def weight(self) -> float:
        """The validation cost of each byte of an entry."""
        return self._weight

    def check(self, values: list[Any], raws: Sequence[bytes | memoryview]) -> None:
        """Refuses the batch if one of its entries is not valid. `raws` are the texts of the same entries."""
        size = sum(map(len, raws))
        if size * self._weight > MAX_VALIDATION_COST:
            raise self._too_large(len(raws), size, int(MAX_VALIDATION_COST / self._weight))
        if self._counts_numbers:
            self._check_numbers(values, raws)
        cost = max(map(len, raws), default=0) * self._entry_weight
        if cost > MAX_ENTRY_COST:
            raise self._too_large(1, int(cost / self._entry_weight), int(MAX_ENTRY_COST / self._entry_weight))
        if not self._batch.is_valid(values):
            single = self._judge()
            for index, value in enumerate(values):
                if len(values) == 1 or not single.is_valid(value):
                    raise self._refusal(index, value)

    def _check_numbers(self, values: list[Any], raws: Sequence[bytes | memoryview]) -> None:
        """Refuses entries whose numbers take too long: the validator computes with fractions of any size."""
        for raw, value in zip(raws, values, strict=True) if self._bounds or self._unique else ():
            if self._bounds:
                self._check_bounded(raw, value)
            most = math.isqrt(2 * MAX_COLLISIONS)
            long = self._unique and _may_have(raw, most) and shape_of(raw).count(b"0" * 16) > most
            if long and _collisions(value) > MAX_COLLISIONS:
                what = "whole numbers over 2^53 that are nearly equal, or fewer long ones"
                raise _too_many_numbers("uniqueItems", what, most)
        if self._multiples:
            self._check_multiples(values, raws)
        if self._named_numbers:
            most = MAX_COMPARED_NUMBERS // self._named_numbers
            fractions = max([len(_fractions(raw)) for raw in raws if _may_have(raw, most)], default=0)
            if fractions > most:
                raise _too_many_numbers("numbers in enum", "numbers with a fraction or an exponent", most)

    def _check_bounded(self, raw: bytes | memoryview, value: Any) -> None:
        usual, extreme = self._number_cost, self._extreme_cost
        least = MAX_BOUNDED_NUMBERS // max(usual, extreme)
        if _may_have(raw, least) and _bounded_cost(value, usual, extreme) > MAX_BOUNDED_NUMBERS:
            what = f"numbers, or {least} with an exponent over 99"
            raise _too_many_numbers("a minimum, a maximum or a const", what, MAX_BOUNDED_NUMBERS // usual)

    def _check_multiples(self, values: list[Any], raws: Sequence[bytes | memoryview]) -> None:
        most = MAX_EXTREME_NUMBERS // self._multiples
        extreme = max([len(_extreme_numbers(raw)) for raw in raws if _has_extremes(raw, most)], default=0)
        if extreme > most:
            raise _too_many_numbers("multipleOf", "numbers of more than 20 digits or with an exponent over 9", most)
        most = MAX_MULTIPLES // self._multiples
        for raw, value in zip(raws, values, strict=True) if self._fraction_multiples else ():
            if _may_have(raw, most) and _bounded_cost(value, 1, 1, most) > most:
                raise _too_many_numbers("a fraction in multipleOf", "numbers", most)

    def is_valid(self, value: Any) -> bool:
        return self._judge().is_valid(value)

    def _judge(self) -> jsonschema_rs.Validator:
        if self._single is None:
            self._single = compile_schema(self._schema, self._draft)
        return self._single

    def _too_large(self, records: int, size: int, most: int) -> InvalidRequestError:
        if records > 1:
            return BatchTooLargeError(
                f"entries with as many alternatives in their schema come in batches of at most {most} bytes",
                records=records,
                bytes=size,
                max=most,
            )
        return RecordTooLargeError(
            f"an entry with as many alternatives in its schema has at most {most} bytes", bytes=size, max=most
        )

    def _refusal(self, index: int, value: Any) -> InvalidRequestError:
        errors = self._errors(value)
        if not errors:
            return InvalidRequestError("must match the schema", index=index)
        said = list(dict.fromkeys(map(_sentence, errors)))
        more = "; ..." if len(said) > MAX_MESSAGES else ""
        path = show_pointer(tuple(map(str, errors[0].instance_path)))
        return InvalidRequestError("; ".join(said[:MAX_MESSAGES]) + more, index=index, path=quoted(path)[1:-1])

    def _errors(self, value: Any) -> list[jsonschema_rs.ValidationError]:
        """Returns all errors of an entry, only the first one if that is cheaper, or none if even that is expensive: the
        error of an `anyOf` contains all errors of its branches."""
        nodes = _nodes_in(value, MAX_ERRORS)
        # An error has a copy of its keyword's list. All errors are created before the first one can be read.
        few = nodes * self._longest_list <= MAX_ERROR_VALUES
        if few and nodes * error_bound(self._schema) <= MAX_ERRORS:
            return list(self._judge().iter_errors(value))
        if has_branches(self._schema):
            return []
        try:
            self._judge().validate(value)
        except jsonschema_rs.ValidationError as error:
            # Its traceback references the caller's frame, which references the error: this cycle keeps the error, with
            # its copies, until a garbage collection, which takes 50 ms for a thousand of them.
            return [error.with_traceback(None)]
        raise AssertionError("an entry that is not valid has no error")


def _too_many_numbers(keyword: str, what: str, most: int) -> InvalidRequestError:
    return RecordTooLargeError(f"an entry whose schema has {keyword} has at most {most} {what}", max=most)


def _may_have(raw: bytes | memoryview, most: int) -> bool:
    """Returns whether an entry may have more numbers than this."""
    return len(raw) > 2 * most and bytes(raw).count(b",") + bytes(raw).count(b":") >= most


def _has_extremes(raw: bytes | memoryview, most: int) -> bool:
    if not _may_have(raw, most):
        return False
    shape = shape_of(raw)
    return shape.count(b"e00") + shape.count(b"0" * 20) > most


def _is_long(value: object) -> bool:
    """Returns whether the validator compares numbers with this one as fractions of any size."""
    return type(value) is float or (type(value) is int and not -_EXACT_MAX <= value <= _EXACT_MAX)


def _most_met(schema: object, counts: Callable[[str, Any], bool]) -> int:
    """Returns the number of keywords of a kind that may apply to one value: those of its path, and of one schema for
    each branch."""
    widest = branches = total = 0
    for part in _schemas(schema):
        here = 0
        for name, value in part.items():
            here += counts(name, value)
            branches += _branches(name, value)
        widest, total = max(widest, here), total + here
    return min(total, widest * (1 + branches))


def _bounded_cost(value: Any, usual: int, extreme: int, most: int = MAX_BOUNDED_NUMBERS) -> int:
    """Returns the cost of comparing the numbers of an entry; stops counting above `most`."""
    cost, waiting = 0, [value]
    while waiting and cost <= most:
        here = waiting.pop()
        if type(here) is int:
            cost += usual
        elif type(here) is float:
            cost += usual if 1e-99 < abs(here) < 1e100 or not here else max(usual, extreme)
        elif isinstance(here, dict):
            waiting.extend(here.values())
        elif isinstance(here, list):
            waiting.extend(here)
    return cost


def _collisions(value: Any) -> int:
    """Returns the number of pairs of integers with equal hashes in the validator, which hashes the nearest float.

    A pair counts once for each 8 bytes.
    """
    nearest: dict[float, set[int]] = {}
    waiting = [value]
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict):
            waiting.extend(here.values())
        elif isinstance(here, list):
            waiting.extend(here)
        elif type(here) is int and not -_EXACT_MAX <= here <= _EXACT_MAX:
            try:
                nearest.setdefault(float(here), set()).add(here)
            except OverflowError:
                nearest.setdefault(math.inf, set()).add(here)
    groups = [(len(equal), 1 + max(map(int.bit_length, equal)) // 64) for equal in nearest.values()]
    return sum([count * (count - 1) // 2 * words for count, words in groups])


def _nodes_in(value: Any, most: int) -> int:
    """Returns the number of values in a value, including itself; stops counting above `most`."""
    count, waiting = 0, [value]
    while waiting and count <= most:
        here = waiting.pop()
        count += 1
        if isinstance(here, dict):
            waiting.extend(here.values())
        elif isinstance(here, list):
            waiting.extend(here)
    return count


def _sentence(error: jsonschema_rs.ValidationError) -> str:
    kind = error.kind
    sentence = _SENTENCES.get(kind.name)
    if sentence is None:
        return f"must satisfy {kind.name}"
    if "{0}" not in sentence:
        return sentence
    value = kind.value
    if isinstance(value, list):
        value = ",".join(map(str, value))
    return sentence.format(quoted(str(value))[1:-1])
