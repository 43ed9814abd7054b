"""Results of write operations, as the engine returns them."""

from collections.abc import Callable

import msgspec

from topics.model.errors import TopicsError
from topics.model.topic_config import TopicConfig


class AppendResult(msgspec.Struct, frozen=True, gc=False):
    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    created: bool = False
    deduped: bool = False
    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0
    throttle_wait_ms: float = 0.0
    """The time that the append waited for admission."""
    differs: bool = False
    """With `deduped`: whether the key was used with different records."""

    @property
    def count(self) -> int:
        return self.last_seq - self.first_seq + 1


class PutResult(msgspec.Struct, frozen=True):
    topic: str
    created: bool
    config: TopicConfig


class DropResult(msgspec.Struct, frozen=True):
    topic: str
    deleted: bool
    routers_removed: list[str] = []
    """The routers that had it as source or destination."""


class DeleteResult(msgspec.Struct, frozen=True):
    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


AppendDone = Callable[[AppendResult | TopicsError], None]
PutDone = Callable[[PutResult | TopicsError], None]
DropDone = Callable[[DropResult | TopicsError], None]
DeleteDone = Callable[[DeleteResult | TopicsError], None]


def deduped(topic: str, first_seq: int, last_seq: int, differs: bool = False) -> AppendResult:
    """The answer to a repeated key: the seqs of the first write and the head at that time."""
    return AppendResult(topic, first_seq, last_seq, last_seq, created=False, deduped=True, differs=differs)
