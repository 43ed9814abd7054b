"""The messages of transactions."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class TransactionBody(msgspec.Struct, frozen=True, kw_only=True):
    """Which transaction begins, and which attempt at it."""

    id: str
    sequence: Sequence
    attempt: str | None = None
    timeout_ms: Annotated[int, msgspec.Meta(ge=0)] = 0


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """The state in which a commit expects a topic that it appends to."""

    expected_head_seq: Annotated[int, msgspec.Meta(ge=0)] | None = None
    fence: str | None = None


class CommitBody(msgspec.Struct, frozen=True, kw_only=True):
    """Which attempt to commit; with `parts` only those, in this order."""

    sequence: Sequence
    attempt: str | None = None
    parts: list[str] | None = None
    conditions: dict[str, Condition] | None = None
    """By topic."""


class AbortBody(msgspec.Struct, frozen=True, kw_only=True):
    """Which attempt to give up."""

    sequence: Sequence
    attempt: str | None = None


class PlacedOut(msgspec.Struct, frozen=True, kw_only=True):
    """Where the records of one topic are. Where others wrote meanwhile, `count` is less than the range holds."""

    topic: str
    first_seq: int
    last_seq: int
    count: int


class TransactionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction as it stands."""

    id: str
    sequence: int
    state: Literal["open", "committed", "aborted"]
    attempt: str | UnsetType = UNSET
    parts: int | UnsetType = UNSET
    records: int
    bytes: int | UnsetType = UNSET
    expires_ts: int | UnsetType = UNSET
    deduped: bool | UnsetType = UNSET
    topics: list[PlacedOut] | UnsetType = UNSET


class StageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    sequence: int
    attempt: str
    part: str
    topic: str
    count: int
    records: int
    bytes: int
