"""Entries against a schema: compiled once, asked for every append."""

from collections.abc import Sequence, Sized
from typing import Any, Final

import jsonschema_rs

from topics.core.errors import BatchTooLargeError, InvalidRequestError, RecordTooLargeError, quoted
from topics.schema.jsonschemas import compile_schema, draft_of, error_bound, has_branches, weight_of
from topics.schema.limits import MAX_ERRORS, MAX_MESSAGES, MAX_VALIDATION_COST
from topics.schema.pointers import show_pointer

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
"""In the words that users of JSON Schema validators know."""


class EntryValidator:
    """The entries of one version. A batch is judged in one call, which costs two thirds of a call for each entry."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._draft = draft_of(schema)
        self._weight = weight_of(schema)
        below = {name: value for name, value in schema.items() if name != "$schema"}
        self._batch = compile_schema({"items": below}, self._draft)
        self._single: jsonschema_rs.Validator | None = None

    @property
    def weight(self) -> float:
        """What a byte of an entry costs."""
        return self._weight

    def check(self, values: list[Any], raws: Sequence[Sized]) -> None:
        """Refuses the batch when one of its entries is not valid. `raws` are the texts of the same entries."""
        size = sum(map(len, raws))
        if size * self._weight > MAX_VALIDATION_COST:
            raise self._too_large(len(raws), size)
        if not self._batch.is_valid(values):
            single = self._judge()
            for index, value in enumerate(values):
                if not single.is_valid(value):
                    raise self._refusal(index, value)

    def is_valid(self, value: Any) -> bool:
        return self._judge().is_valid(value)

    def _judge(self) -> jsonschema_rs.Validator:
        if self._single is None:
            self._single = compile_schema(self._schema, self._draft)
        return self._single

    def _too_large(self, records: int, size: int) -> InvalidRequestError:
        most = int(MAX_VALIDATION_COST / self._weight)
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
        """All errors of an entry, the first one where that is cheaper, or none where even that is dear: the error of an
        `anyOf` has all errors of its branches in it."""
        if _nodes_in(value, MAX_ERRORS) * error_bound(self._schema) <= MAX_ERRORS:
            return list(self._judge().iter_errors(value))
        if has_branches(self._schema):
            return []
        try:
            self._judge().validate(value)
        except jsonschema_rs.ValidationError as error:
            return [error]
        raise AssertionError("an entry that is not valid has no error")


def _nodes_in(value: Any, most: int) -> int:
    """How many values there are in a value, itself included; it stops counting above `most`."""
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
