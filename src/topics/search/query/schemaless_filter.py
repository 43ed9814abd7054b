"""Schemaless filter: the query language for topics without search fields, over the attributes of every record and over
members of its data by JSON pointers.

    tag:order-7  tag:order-*  node:shop  ts:>="2026-03-25T10:00:00Z"  seq:<900  has:/why
    /status:>=500  /user/name:"Ann"  -/ok:true

A value in quotes is a text. One without is also the number, the truth value or the null that it spells. Comparisons are
between numbers where the value is a number, and between texts otherwise. Arrays are flattened: one element is enough.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import Any, Final, NamedTuple

from topics.model.errors import InvalidRequestError, quoted
from topics.schema.documents import MISSING, finder, parse_pointer
from topics.search.query.field_values import date_of, flattened, integer_of
from topics.search.query.predicates import And, Bare, Clause, Has, Node, Not, Or, Text, parse_query

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,99})(?:\.[0-9]{1,99})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_WORDS: Final[dict[str, object]] = {"true": True, "false": False, "null": None}
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {">": gt, ">=": ge, "<": lt, "<=": le}


class Looked(NamedTuple):
    """The parts of one record that a filter reads; unneeded ones may be left out."""

    seq: int
    ts: int
    tag: str | None
    node: str | None
    data: Any


Test = Callable[[Looked], bool]
Values = Callable[[Looked], list[Any] | None]
"""The values of a field; None where there is none."""


class SchemalessFilter:
    """A filter, ready to be asked."""

    def __init__(self, text: str, what: str = "filter") -> None:
        """Raises InvalidRequestError."""
        node = parse_query(text, what)
        if node is None:
            raise InvalidRequestError(f"{what}: is empty. Leave it out to read every record", field=what)
        self._what = what
        self.fields: set[str] = set()
        """Which of the names that every record has it looks at, and `data` where it looks into that."""
        self.matches: Test = self._bind(node)

    def _bind(self, node: Node) -> Test:
        if isinstance(node, And | Or):
            tests = [self._bind(part) for part in node.parts]
            join = all if isinstance(node, And) else any
            return lambda looked: join(test(looked) for test in tests)
        if isinstance(node, Not):
            negated = self._bind(node.part)
            return lambda looked: not negated(looked)
        if isinstance(node, Has):
            values = self._values(node.field)
            return lambda looked: values(looked) is not None
        if isinstance(node, Clause):
            return self._clause(node)
        assert isinstance(node, Bare)
        raise self._refusal(f"{quoted(node.value.text)} has no field in front of it")

    def _values(self, field: str) -> Values:
        if field.startswith("/"):
            self.fields.add("data")
            find = finder(parse_pointer(field, self._what))
            return lambda looked: _found(find(looked.data))
        if field not in ("seq", "ts", "tag", "node"):
            raise self._refusal(f"{quoted(field)} is not tag, node, ts or seq, and not a JSON pointer")
        self.fields.add(field)
        place = Looked._fields.index(field)
        return lambda looked: None if looked[place] is None else [looked[place]]

    def _clause(self, clause: Clause) -> Test:
        field, text = clause.field, clause.value
        values = self._values(field)
        test = self._typed(clause) if field in ("seq", "ts") else _untyped(clause.op, text)
        return lambda looked: any(test(value) for value in values(looked) or ())

    def _typed(self, clause: Clause) -> Callable[[Any], bool]:
        bound = (date_of if clause.field == "ts" else integer_of)(clause.value.text)
        if bound is None:
            kind = "date, nor milliseconds since 1970" if clause.field == "ts" else "whole number"
            raise self._refusal(f"{quoted(clause.value.text)} is no {kind}")
        if clause.op in ("", "="):
            return lambda value: bool(value == bound)
        compare = _COMPARE[clause.op]
        return lambda value: compare(value, bound)

    def _refusal(self, problem: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self._what}: {problem}", field=self._what)


@lru_cache(maxsize=256)
def free_filter(text: str) -> SchemalessFilter:
    """The filter of a text; those that were asked for lately are remembered. Raises InvalidRequestError."""
    return SchemalessFilter(text)


def _found(found: object) -> list[Any] | None:
    if found is MISSING:
        return None
    return (flattened(found) or None) if isinstance(found, list) else [found]


def _untyped(op: str, text: Text) -> Callable[[Any], bool]:
    number = None if text.quoted else _number(text.text)
    if op not in ("", "="):
        compare = _COMPARE[op]
        if number is not None:
            return lambda value: _is_number(value) and compare(value, number)
        return lambda value: type(value) is str and compare(value, text.text)
    if not op and not text.quoted and len(text.text) > 1 and text.text.endswith("*"):
        beginning = text.text[:-1]
        return lambda value: type(value) is str and value.startswith(beginning)
    if number is not None:
        return lambda value: value == number if _is_number(value) else value == text.text
    if not text.quoted and text.text in _WORDS:
        word = _WORDS[text.text]
        return lambda value: value is word or value == text.text
    return lambda value: type(value) is str and value == text.text


def _is_number(value: object) -> bool:
    return type(value) is int or type(value) is float


def _number(text: str) -> int | float | None:
    if _NUMBER.fullmatch(text) is None:
        return None
    return int(text) if text.lstrip("-").isdigit() else float(text)
