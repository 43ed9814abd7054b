"""Which records are meant: by their tag, and by what is in their payload."""

import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import msgspec
from cyclopts import Parameter

from topics.cli.shared.failures import UsageError
from topics.cli.topic.tags import tag_match
from topics.client import Record

Tag = Annotated[str | None, Parameter(help="Only records with this tag; a * at the end is any ending.")]
Filter = Annotated[
    list[str] | None,
    Parameter(
        negative="",
        consume_multiple=False,
        allow_leading_hyphen=True,
        help="Only records whose payload has it: member=value, a.b=value or a!=value; or a query such as"
        " '/total:>=5 tag:order-*', which the server answers. With several, all of them.",
    ),
]
Matches = Callable[[Record], bool]

# How a query begins, which a member and its value never do.
_QUERY = re.compile(r"[\s(-]*(NOT\b|/|(tag|node|ts|seq|has)\s*:)")

_MISSING = object()


class Meant(NamedTuple):
    """Which records are meant: what the server is asked for, and what is looked at here. None is all of them."""

    query: str | None
    matches: Matches | None


def meant(tag: str | None, filters: list[str] | None) -> Meant:
    given = filters or []
    queries = [text for text in given if _QUERY.match(text)]
    conditions = [_condition(text) for text in given if text not in queries]
    if tag is not None:
        conditions.append(_tagged(tag))
    query = queries[0] if len(queries) == 1 else " ".join(f"({text})" for text in queries) or None
    return Meant(query, (lambda record: all(holds(record) for holds in conditions)) if conditions else None)


def _tagged(tag: str) -> Matches:
    match = tag_match(tag)
    return lambda record: match.matches(record.tag)


def _condition(text: str) -> Matches:
    path, sign, value = text.partition("=")
    negative = path.endswith("!")
    steps = path.removesuffix("!").split(".")
    if not sign or not all(steps):
        raise UsageError(f"--filter is {text!r}; accepted is a member and its value, such as status=paid")
    try:
        wanted = msgspec.json.decode(value)
    except msgspec.DecodeError:
        # A text need not be in quotes, which the shell would take away.
        wanted = value

    def holds(record: Record) -> bool:
        found = _member(_data(record), steps)
        # JSON tells true from 1, and Python does not.
        return (found == wanted and isinstance(found, bool) == isinstance(wanted, bool)) is not negative

    return holds


def _data(record: Record) -> object:
    try:
        return record.data
    except (ValueError, RecursionError):
        # JSON has numbers that Python has not, such as 1e999. Whoever writes one must not end the command.
        return _MISSING


def _member(value: Any, steps: list[str]) -> object:
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step, _MISSING)
        elif isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return _MISSING
    return value
