"""The messages of a search over /v0."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class TopicSearchBody(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "_source"}):
    """What to find, in which order, and how much of it to show."""

    q: str | None = None
    size: int | None = None
    sort: list[str] | str | None = None
    search_after: list[Any] | None = None
    timeout_ms: int | None = None
    track_total: bool = False
    explain: bool = False
    source: bool = True
    fields: list[str] | None = None
    highlight: bool | list[str] = False
    rank: Literal["bm25"] | None = None
    """By which scores; without it, by those that clauses have."""


class TopicHit(msgspec.Struct, frozen=True, kw_only=True):
    seq: int = msgspec.field(name="$seq")
    score: float
    sort: list[Any]
    fields: dict[str, Any]
    highlights: dict[str, Any] | UnsetType = UNSET
    """For each text field, where the words of the query stand."""
    data: Any | UnsetType = UNSET
    """The record, as the current version of its schema has it."""


class TopicTotal(msgspec.Struct, frozen=True, kw_only=True):
    value: int
    relation: str
    """`eq`, or `gte` where there may be more."""


class TopicCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer is about."""

    complete: bool
    missing_at_most: int
    first_missing_seq: int | None
    spent: str | None
    """The budget that ran out: `time`, `bytes` or `memory`."""
    entries: int
    """Records that were looked at."""
    scanned_bytes: int


class TopicSearchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    hits: list[TopicHit]
    total: TopicTotal
    next_search_after: list[Any] | None
    head_seq: int
    timed_out: bool
    coverage: TopicCoverage
    explain: dict[str, Any] | UnsetType = UNSET
