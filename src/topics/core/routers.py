"""Routers: rules that copy every record of one topic into another.

    source ──filter──▶ dest      the copy has a seq and a ts of its own; node, tag, meta and data are the source's

The values here say what a router should do. How far it got, and how its copies survive a crash, is the engine's.
"""

import enum
import re

import msgspec

from topics.core.errors import InvalidRequestError, quoted
from topics.core.selectors import TagMatch

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


class Guarantee(enum.Enum):
    """How a copy is protected from being made twice."""

    AT_LEAST_ONCE = "at_least_once"
    """The cursor moves together with the copies, in one frame: a crash makes no second copy. Only a router that is
    deleted and created again over the same records copies them again."""

    EXACTLY_ONCE = "exactly_once"
    """Each copy also says in its meta where it is from, and a record whose copy is still there is passed over."""


class RouterRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a router does with a record; everything about it that may be changed later."""

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

    @property
    def key_prefix(self) -> str:
        """How the idempotency key of each copy begins; the seq of its record follows."""
        return f"{self.router}:{self.source_id}:{self.source_epoch}:"


class RouterWish(msgspec.Struct, frozen=True, kw_only=True):
    """What a request to create or change a router asks for."""

    source: str
    dest: str
    rules: RouterRules = RouterRules()
    create_dest: bool = True
    from_seq: int | None = None
    """Where a new router begins: behind this seq of its source. None is the present head; 0 is everything there is."""
