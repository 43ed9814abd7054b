"""Which records are meant: by their tag, and by what is in their payload."""

from collections.abc import Callable
from typing import Annotated, Any

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
        help="Only records whose payload has it: member=value, a.b=value or a!=value. With several, all of them.",
    ),
]
Matches = Callable[[Record], bool]

_MISSING = object()


def matcher(tag: str | None, filters: list[str] | None) -> Matches | None:
    """What tells whether a record is meant; None where all are."""
    conditions = [_condition(text) for text in filters or ()]
    if tag is not None:
        conditions.append(_tagged(tag))
    return (lambda record: all(holds(record) for holds in conditions)) if conditions else None


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
        found = _member(record.data, steps)
        # JSON tells true from 1, and Python does not.
        return (found == wanted and isinstance(found, bool) == isinstance(wanted, bool)) is not negative

    return holds


def _member(value: Any, steps: list[str]) -> object:
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step, _MISSING)
        elif isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return _MISSING
    return value
