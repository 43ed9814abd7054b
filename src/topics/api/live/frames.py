"""What is delivered, and how it is put into bytes: once for everyone who is to get the same."""

import enum
from typing import NamedTuple, Protocol

import msgspec

from topics.core.errors import TopicsError
from topics.core.loss import LossReason, Tombstone

FROM_SEQ_TOO_OLD = "from_seq_too_old"
_RETENTION = (LossReason.CAP, LossReason.TTL, LossReason.MIXED)


class FrameKind(enum.Enum):
    RECORDS = enum.auto()
    TOMBSTONE = enum.auto()
    CAUGHT_UP = enum.auto()
    DELETED = enum.auto()
    """The topic is gone. The last frame of a subscription."""
    ERROR = enum.auto()
    """The topic cannot be read on. The last frame of a subscription."""
    PACED = enum.auto()
    """News is late because of pressure. It moves no cursor."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One message to a subscriber. `data` is shared by everyone who gets it and must not be changed."""

    kind: FrameKind
    data: bytes
    from_seq: int
    """The cursor before it."""
    cursor: int
    """The cursor behind it, also past records that were left out."""


class RecordBatch(NamedTuple):
    """What a frame of records says. `body` is their JSON with commas between them, without brackets."""

    topic: str
    body: bytes
    from_seq: int
    to_seq: int
    head_seq: int


class Framing(Protocol):
    """A pure encoder. Each instance stands for one way to write, so use one and the same for all connections that can
    share bytes: a feed has one framing."""

    def records(self, batch: RecordBatch) -> bytes: ...

    def tombstone(self, topic: str, tombstone: Tombstone, reason: str, cursor: int) -> bytes:
        """`reason` is what to tell; `cursor` is where the reader stands behind the gap."""
        ...

    def caught_up(self, topic: str, head_seq: int) -> bytes: ...

    def deleted(self, topic: str, head_seq: int, cursor: int) -> bytes: ...

    def error(self, topic: str, error: TopicsError) -> bytes:
        """The topic cannot be read on from here."""
        ...

    def paced(self, topic: str, retry_after_ms: int) -> bytes:
        """News of the topic is late because of pressure; it goes on by itself. Empty where there is no such frame."""
        ...


class Projection(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that makes two followers of a topic get the same bytes. `limit` and `max_bytes` are within bounds."""

    framing: Framing
    nodes: tuple[str, ...] = ()
    include_tags: bool = False
    include_meta: bool = True
    include_data: bool = True
    limit: int = 256
    max_bytes: int = 1024 * 1024
    strong: bool = False
    """Whether records are delivered only once they are on the disk, whatever the topic's class."""

    def __hash__(self) -> int:
        # The framing counts by identity, which is what the default hash of most classes does.
        return hash(
            (
                id(self.framing), self.nodes, self.include_tags, self.include_meta, self.include_data, self.limit,
                self.max_bytes, self.strong,
            )
        )  # fmt: skip


def reason_to_tell(tombstone: Tombstone, too_old: bool) -> str:
    """Retention that passed a reader by before it came, or while it did not read, has a name of its own."""
    return FROM_SEQ_TOO_OLD if too_old and tombstone.reason in _RETENTION else tombstone.reason.value


def cursor_behind(tombstone: Tombstone) -> int:
    """Where a reader stands after a tombstone: at the end of the gap, or before all of a topic that began again."""
    return tombstone.earliest_seq - 1 if tombstone.reason is LossReason.RECREATED else tombstone.gap_to
