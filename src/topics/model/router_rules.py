"""Routers: rules that copy every record of one topic into another.

    source ──filter──▶ dest      the copy gets its own seq and ts; node, tag, meta and data are the source's

These values define the behaviour of a router. The engine keeps its progress and makes its copies durable.
"""

import re

import msgspec

from topics.model.errors import InvalidRequestError, quoted
from topics.model.limits import MAX_U64
from topics.model.topic_epochs import public_source_id
from topics_protocol.config import Guarantee, TagMatch

__all__ = [
    "HOPS_MAX", "ROUTER_NAME_PATTERN", "DeleteSelector", "Guarantee", "RouterRules", "RouterWish", "Stamp", "TagMatch",
    "check_router_name", "parse_match", "parse_selector",
]  # fmt: skip

# Record selectors of deletes and of router filters.
#
# The grammar is small, because an exact tag or a prefix is one lookup or one range in a sorted tag index, while richer
# conditions would have to scan the log.
#
#     ["tag", "Eq", "X"]     the tag is X
#     ["tag", "Glob", "X*"]  the tag begins with X; the star is the last character and the only one
#     "X"                    the same as ["tag", "Eq", "X"], also where X ends in a star


class DeleteSelector(msgspec.Struct, frozen=True, gc=False):
    """Records with a seq below `before_seq` and a tag that matches; None omits this part of the condition.

    The selector does not depend on time: the caller bounds it by the head at the time of the call.
    """

    before_seq: int | None
    match: TagMatch | None


def parse_match(value: object, name: str = "match") -> TagMatch:
    """Parses the condition in a decoded JSON value; `name` is its name in error messages."""
    if isinstance(value, str):
        return TagMatch(value)
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise _refusal(name, 'must be a tag or ["tag", "Eq" or "Glob", pattern]')
    field, operator, pattern = value
    if field != "tag":
        raise _refusal(name, 'the field must be "tag"')
    if not isinstance(pattern, str):
        raise _refusal(name, "the pattern must be a string")
    if operator == "Eq":
        return TagMatch(pattern)
    if operator == "Glob":
        return _parse_glob(pattern, name)
    raise _refusal(name, 'the operator must be "Eq" or "Glob"')


def _parse_glob(pattern: str, name: str) -> TagMatch:
    if not pattern.endswith("*"):
        raise _refusal(name, f"the Glob pattern {quoted(pattern)} must end in a *")
    literal = pattern[:-1]
    if "*" in literal:
        # A literal inner star would delete other records than users of the pattern expect, and deletes are permanent.
        raise _refusal(name, f"the Glob pattern {quoted(pattern)} may hold one * only, at its end")
    return TagMatch(literal, prefix=True)


def parse_selector(before_seq: object, match: object) -> DeleteSelector:
    """Returns the selector of a delete; None means a missing or null field. One of the two is required."""
    if before_seq is None and match is None:
        raise InvalidRequestError("a deletion needs before_seq, match, or both")
    return DeleteSelector(_parse_before_seq(before_seq), None if match is None else parse_match(match))


def _parse_before_seq(value: object) -> int | None:
    if value is None:
        return None
    # In Python JSON's true is an int, and would mean 1.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_U64:
        raise InvalidRequestError(f"before_seq: must be an integer from 0 to {MAX_U64}", field="before_seq")
    return value


def _refusal(name: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name}: {problem}", field=name)


HOPS_MAX = 8
"""The maximum number of forwards of a record within a cycle of routers, so that every cycle ends."""

# Like topic names, plus the > of the usual name "source->dest".
_ROUTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}")

ROUTER_NAME_PATTERN = f"^{_ROUTER_NAME.pattern}$"


def check_router_name(name: str) -> str:
    """Returns `name` if it is a valid router name, otherwise raises `InvalidRequestError`."""
    if _ROUTER_NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"{quoted(name)} is not a router name: 1 to 255 of A-Z a-z 0-9 . _ : - > beginning with a letter or digit"
        )
    return name


class RouterRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that a router applies to each record; all of them can be changed later."""

    preserve_node: bool = True
    preserve_tag: bool = True
    filter: TagMatch | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE

    @property
    def exactly_once(self) -> bool:
        return self.guarantee is Guarantee.EXACTLY_ONCE


class Stamp(msgspec.Struct, frozen=True):
    """The origin of the copies of an `exactly_once` router."""

    router: str
    source: str
    source_id: int
    source_epoch: int

    @classmethod
    def of(cls, router: str, source: str, topic_id: int, epoch: int) -> "Stamp":
        """Returns the stamp of a router with this source."""
        return cls(router, source, public_source_id(topic_id, source, epoch), epoch)

    @property
    def key_prefix(self) -> str:
        """Returns the prefix of the idempotency key of each copy; the seq of its record follows."""
        return f"{self.router}:{self.source_id}:{self.source_epoch}:"


class RouterWish(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a request to create or change a router."""

    source: str
    dest: str
    rules: RouterRules = RouterRules()
    create_dest: bool = True
    from_seq: int | None = None
    """The start of a new router: after this seq of its source. None means the current head, 0 all records."""
