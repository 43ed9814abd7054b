"""The messages of `/v0/ws`: the commands of clients and the frames of the server.

Both are JSON objects with an `op`. The server decodes with the commands and writes frames by hand, because most of a
frame is copied records. The client decodes with the frames; tests compare both sides with them.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from topics_protocol.v0 import Performance, RecordOut

RequestId = str | int | None
"""Chosen by the client and repeated in the answer; an answer to a command without one has none."""


class SubscribeFrom(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where to begin with one topic."""

    from_seq: int = 0
    tail: bool = False
    """Starts at the topic's head and ignores `from_seq`."""
    epoch: int | None = None
    """Which topic of the name `from_seq` is of, as an earlier answer told. A cursor of another one is told a loss."""


class Subscribe(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="subscribe"):
    """Follow topics: the one in `topic`, those in `topics`, or all of them."""

    request_id: RequestId = None
    topic: str | None = None
    from_seq: int = 0
    tail: bool = False
    epoch: int | None = None
    topics: dict[str, SubscribeFrom | None] = {}
    node: str | list[str] | None = None
    limit: int = 0
    max_batch_bytes: int = 0
    include_data: bool = True
    include_tags: bool = False
    include_meta: bool | None = None
    """Unless told, as `include_data`."""


class Unsubscribe(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="unsubscribe"):
    """Follow topics no longer."""

    request_id: RequestId = None
    topic: str | None = None
    topics: list[str] = []


class Ping(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="op", tag="ping"):
    """Is answered with a pong."""

    request_id: RequestId = None


COMMANDS = ("subscribe", "unsubscribe", "publish", "ping")


class Position(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a subscription begins, and where its topic stands."""

    from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: int
    """Another number for every topic that ever had this name."""


class Subscribed(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="subscribed", omit_defaults=True):
    request_id: RequestId = None
    topics: dict[str, Position]


class Unsubscribed(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="unsubscribed", omit_defaults=True):
    request_id: RequestId = None
    topics: list[str]
    """The topics that were followed until now."""


class Ack(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="ack", omit_defaults=True):
    """Records are appended as far as their topic's class promises."""

    request_id: RequestId = None
    topic: str
    first_seq: int
    last_seq: int
    seqs: list[int] | UnsetType = UNSET
    head_seq: int
    count: int
    created: bool
    deduped: bool
    differs: bool | UnsetType = UNSET
    performance: Performance | UnsetType = UNSET


class Pong(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="pong", omit_defaults=True):
    request_id: RequestId = None


class Records(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="record"):
    """New records of one topic. The next frame of the topic begins at `to_seq`."""

    topic: str
    from_seq: int
    to_seq: int
    head_seq: int
    records: list[RecordOut]


class CaughtUp(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="caught_up"):
    """Everything of the topic was sent; what comes now is new."""

    topic: str
    head_seq: int


class TombstoneFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="tombstone"):
    """Records of the topic are lost to this reader."""

    topic: str
    reason: str
    gap_from: int
    gap_to: int
    earliest_seq: int
    head_seq: int


class TopicDeleted(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="topic_deleted"):
    """The topic was deleted; the subscription is over."""

    topic: str
    head_seq: int
    reason: str


class ErrorFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="error", omit_defaults=True):
    """A command was refused, or with a `topic` its subscription is over, or with neither the whole connection."""

    request_id: RequestId = None
    topic: str | None = None
    code: str
    message: str
    detail: dict[str, Any] | None = None


ServerFrame = Subscribed | Unsubscribed | Ack | Pong | Records | CaughtUp | TombstoneFrame | TopicDeleted | ErrorFrame
