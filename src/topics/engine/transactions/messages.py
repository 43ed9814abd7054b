"""What is asked of transactions, and what they answer."""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from topics.core.config import TopicConfigPatch
from topics.core.errors import TopicsError
from topics.core.records import Record
from topics.formats.transaction import Placed

Permit = Callable[[str], None]
"""Raises unless whoever asks may write to a topic of that name."""


def scoped(tenant: str, transaction_id: str) -> str:
    """The name under which a transaction is kept: each tenant has ids of its own. No id has a slash."""
    return f"{tenant}/{transaction_id}" if tenant else transaction_id


def shown(name: str) -> str:
    """The id by which its tenant calls a transaction."""
    return name.rpartition("/")[2]


class TransactionRef(msgspec.Struct, frozen=True, kw_only=True):
    """Which attempt at which transaction is meant, and who means it."""

    id: str
    sequence: int
    attempt: str | None = None
    """None means the one that is open."""
    owner: str = ""
    tenant: str = ""

    @property
    def name(self) -> str:
        return scoped(self.tenant, self.id)


class BeginRequest(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    sequence: int
    attempt: str | None = None
    """Who names the attempt that is open joins it; any other replaces it, and None is one that nobody knows yet."""
    timeout_ms: int = 0
    """0 is the longest that the server allows."""
    owner: str = ""
    tenant: str = ""

    @property
    def name(self) -> str:
        return scoped(self.tenant, self.id)


class StageRequest(msgspec.Struct, frozen=True, kw_only=True):
    ref: TransactionRef
    topic: str
    records: Sequence[Record]
    part: str
    """Staging a part again replaces it."""
    node: str | None = None
    create: bool | None = None
    config: TopicConfigPatch | None = None


class TransactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction as it stands."""

    id: str
    sequence: int
    state: Literal["open", "committed", "aborted"]
    attempt: str | None = None
    parts: int = 0
    records: int = 0
    bytes: int = 0
    expires_ts: int = 0
    deduped: bool = False
    """It was committed before, and this time nothing changed."""
    topics: list[Placed] = []


class StagedResult(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    sequence: int
    attempt: str
    part: str
    topic: str
    count: int
    records: int
    """Of the whole transaction."""
    bytes: int


TransactionDone = Callable[[TransactionResult | TopicsError], None]
StageDone = Callable[[StagedResult | TopicsError], None]
