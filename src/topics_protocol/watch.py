"""The messages of a watch: what is asked for by POST, and what the events of its stream carry."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class WatchFrom(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where to begin with one topic."""

    from_seq: int = 0
    tail: bool = False
    """Starts at the topic's head and ignores `from_seq`."""
    epoch: int | None = None
    """Which topic of the name `from_seq` is of, as an earlier answer told. A cursor of another one is told a loss."""


class WatchBody(msgspec.Struct, frozen=True, kw_only=True):
    """Which topics to follow, from where, and what of their records."""

    topics: dict[str, WatchFrom | None]
    node: str | list[str] | None = None
    limit: int = 256
    max_batch_bytes: int = 256 * 1024
    heartbeat_ms: int = 15_000
    include_meta: bool | None = None
    include_tags: bool = False
    include_data: bool = True
    consistency: Literal["eventual", "strong"] = "eventual"
    cursor: str | None = None
    """The id of an event of an earlier watch: positions for the topics it names, over those given here."""


class WatchPosition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a watch begins, and where its topic stands."""

    from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: int
    """Another number for every topic that ever had this name."""


class WatchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, WatchPosition]


class WatchedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record as a watch gives it, with what was asked for."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    node: str | UnsetType = msgspec.field(name="$node", default=UNSET)
    tag: str | UnsetType = msgspec.field(name="$tag", default=UNSET)
    data: Any = UNSET
    meta: dict[str, Any] | UnsetType = UNSET


class RecordEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`event: record`: new records of one topic."""

    topic: str
    records: list[WatchedRecord]
    from_seq: int
    to_seq: int
    head_seq: int


class TombstoneEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`event: tombstone`: records that this reader will never get."""

    topic: str
    reason: str
    gap_from: int
    gap_to: int
    earliest_seq: int
    head_seq: int


class CaughtUpEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`event: caught-up`: everything of the topic was sent; what comes now is new."""

    topic: str
    head_seq: int


class TopicDeletedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`event: topic-deleted`: nothing more comes from this topic."""

    topic: str
    head_seq: int
    reason: str = "deleted"


class ErrorEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`event: error`: `code` is an HTTP status. Without `topics` the whole stream is meant."""

    code: int
    error: str
    retry_after_ms: int | UnsetType = UNSET
    topics: list[str] | UnsetType = UNSET
