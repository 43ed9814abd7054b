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

# Which records a deletion, or a router's filter, means.
#
# The grammar is small on purpose: an exact tag or a prefix is one lookup or one bounded range in a sorted tag index,
# where anything richer would have to scan the log.
#
#     ["tag", "Eq", "X"]     the tag is X
#     ["tag", "Glob", "X*"]  the tag begins with X; the star is the last character and the only one
#     "X"                    the same as ["tag", "Eq", "X"], also where X ends in a star


class DeleteSelector(msgspec.Struct, frozen=True, gc=False):
    """Records with a seq below `before_seq` and a tag that matches; None leaves that half of the condition out.

    The selector has no information about time: the caller bounds it by the head at the moment of the call.
    """

    before_seq: int | None
    match: TagMatch | None


def parse_match(value: object, name: str = "match") -> TagMatch:
    """The condition in a decoded JSON value; `name` is what a refusal calls it."""
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
        # Taking the inner star literally would delete other records than a reader of the pattern expects, and
        # deletion cannot be undone.
        raise _refusal(name, f"the Glob pattern {quoted(pattern)} may hold one * only, at its end")
    return TagMatch(literal, prefix=True)


def parse_selector(before_seq: object, match: object) -> DeleteSelector:
    """The selector of a deletion; None stands for a field that is missing or null. One of the two is needed."""
    if before_seq is None and match is None:
        raise InvalidRequestError("a deletion needs before_seq, match, or both")
    return DeleteSelector(_parse_before_seq(before_seq), None if match is None else parse_match(match))


def _parse_before_seq(value: object) -> int | None:
    if value is None:
        return None
    # JSON's true is an int to Python, and would quietly mean 1.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_U64:
        raise InvalidRequestError(f"before_seq: must be an integer from 0 to {MAX_U64}", field="before_seq")
    return value


def _refusal(name: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name}: {problem}", field=name)


HOPS_MAX = 8
"""How often a record is forwarded within a cycle of routers; then it stops, so that every cycle comes to rest."""

# As for topics, and the > that the usual name "source->dest" needs.
_ROUTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}")

ROUTER_NAME_PATTERN = f"^{_ROUTER_NAME.pattern}$"


def check_router_name(name: str) -> str:
    """`name` itself when it is a legal router name, otherwise `InvalidRequestError`."""
    if _ROUTER_NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"{quoted(name)} is not a router name: 1 to 255 of A-Z a-z 0-9 . _ : - > beginning with a letter or digit"
        )
    return name


class RouterRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that a router applies to each record; all of them may be changed later."""

    preserve_node: bool = True
    preserve_tag: bool = True
    filter: TagMatch | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE

    @property
    def exactly_once(self) -> bool:
        return self.guarantee is Guarantee.EXACTLY_ONCE


class Stamp(msgspec.Struct, frozen=True):
    """Where the copies of an `exactly_once` router are from."""

    router: str
    source: str
    source_id: int
    source_epoch: int

    @classmethod
    def of(cls, router: str, source: str, topic_id: int, epoch: int) -> "Stamp":
        """The stamp of a router with this source."""
        return cls(router, source, public_source_id(topic_id, source, epoch), epoch)

    @property
    def key_prefix(self) -> str:
        """How the idempotency key of each copy begins; the seq of its record follows."""
        return f"{self.router}:{self.source_id}:{self.source_epoch}:"


class RouterWish(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a request to create or change a router."""

    source: str
    dest: str
    rules: RouterRules = RouterRules()
    create_dest: bool = True
    from_seq: int | None = None
    """Where a new router begins: behind this seq of its source. None is the present head; 0 is everything there is."""
