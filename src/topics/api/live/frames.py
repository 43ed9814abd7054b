"""Frames of live delivery: the messages to followers, encoded once per source and shared by subscriptions."""

import enum
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import msgspec

from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, ReadResult, last_block, removed_count
from topics.engine.topic import Topic
from topics.model.errors import TopicsError
from topics.model.records import TRAIT_META, TRAIT_TAGS
from topics.model.seq_ranges import LossReason, Tombstone

if TYPE_CHECKING:
    from topics.api.live.feed import Feed


FROM_SEQ_TOO_OLD = "from_seq_too_old"
_RETENTION = (LossReason.CAP, LossReason.TTL, LossReason.MIXED)

Done = Callable[[Any], None]
"""Called with the result of a read, or with the error."""
Cursor = Any
"""A position in a topic: a seq, or what a source uses instead. Ordered within one kind."""


class FrameKind(enum.Enum):
    RECORDS = enum.auto()
    TOMBSTONE = enum.auto()
    CAUGHT_UP = enum.auto()
    DELETED = enum.auto()
    """The topic is deleted. The last frame of a subscription."""
    ERROR = enum.auto()
    """The topic cannot be read further. The last frame of a subscription."""
    PACED = enum.auto()
    """Backpressure delays new records. Moves no cursor."""


_RECORDS = FrameKind.RECORDS
"""Looked up once: finding an enum member for each frame is slow."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One message to subscribers. `data` is shared by all receivers and must not be changed."""

    kind: FrameKind
    data: bytes
    from_seq: Cursor
    """The cursor before it."""
    cursor: Cursor
    """The cursor after it, also past records that were filtered out."""


class RecordBatch(msgspec.Struct, frozen=True, gc=False):
    """The content of a RECORDS frame. `body` is the records' JSON, separated by commas, without brackets."""

    topic: str
    body: bytes
    from_seq: int
    to_seq: int
    head_seq: int


class Notices(Protocol):
    """Encodes notices. An empty notice is not transmitted; by default only `caught_up` is not empty."""

    def caught_up(self, topic: str, head_seq: Cursor) -> bytes:
        return b"caught up"

    def deleted(self, topic: str, head_seq: int, cursor: Cursor) -> bytes:
        return b""

    def error(self, topic: str, error: TopicsError) -> bytes:
        """The topic cannot be read further."""
        return b""

    def paced(self, topic: str, retry_after_ms: int) -> bytes:
        """Backpressure delays records of the topic; delivery continues by itself."""
        return b""


class Framing(Notices, Protocol):
    """A pure encoder. Connections share bytes only if they use the same instance: a feed has one framing."""

    def records(self, batch: RecordBatch) -> bytes: ...

    def tombstone(self, topic: str, tombstone: Tombstone, reason: str, cursor: int) -> bytes:
        """`reason` is the reason to report; `cursor` is the reader's cursor after the gap."""
        ...


class _Quiet(Notices):
    """Notices for connections that only need the caught-up notice and look up the rest."""


_QUIET = _Quiet()


class Found(Protocol):
    """The part of a read result that delivery uses."""

    @property
    def body(self) -> bytes: ...

    @property
    def count(self) -> int: ...

    @property
    def tombstone(self) -> Tombstone | None: ...


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """How followers see a topic: how it is read from a cursor, and which frames result.

    Followers whose sources are equal share feeds, and so the bytes.
    """

    @property
    def framing(self) -> Notices:
        return _QUIET

    @property
    def strong(self) -> bool:
        """Whether records are delivered only once they are synced, in every durability class."""
        return False

    @property
    def reports_drains(self) -> bool:
        """Whether live followers get a caught-up notice when a backlog of several frames ends."""
        return False

    @property
    def waits_beyond_end(self) -> bool:
        """Whether a cursor beyond the end of the topic waits for the end to pass it; otherwise it is read."""
        return False

    def sees(self, topic: Topic) -> bool:
        """Whether these followers may see a topic that is not deleted."""
        raise NotImplementedError

    def has_ended(self, topic: Topic) -> bool:
        """Whether the topic is closed: no more records will come. Followers at its end get another caught-up notice."""
        return False

    def shape(self, topic: Topic) -> object:
        """Everything besides the records that frames depend on; cached frames of another shape are discarded."""
        return None

    def place(self, seq: int) -> Cursor:
        """The cursor after a seq."""
        return seq

    def within(self, room: int) -> Self:
        """The same source with frames of at most `room` bytes; a single larger record is still delivered."""
        return self

    def read(self, engine: Engine, topic: Topic, cursor: Cursor, up_to: Cursor, done: Done) -> None:
        """Read from a cursor up to another one, now or later. May raise TopicsError."""
        raise NotImplementedError

    def newest(self, engine: Engine, topic: Topic, cursor: Cursor, up_to: Cursor) -> Frame | None:
        """The frame that `read` and `frames` would make, if it needs no read; None is always a correct answer.

        A fast path for live followers, which usually want the block that was appended last."""
        return None

    def behind(self, found: Any) -> Cursor:
        """The cursor after the result of a read."""
        raise NotImplementedError

    def is_full(self, found: Any) -> bool:
        """Whether a read ended because it reached its limit."""
        raise NotImplementedError

    def frames(self, topic: Topic, found: Any, cursor: Cursor, too_old: bool) -> list[Frame]:
        """The frames of a read from `cursor`, in order, at least one. The last one ends where the read did."""
        raise NotImplementedError


class Projection(Source, frozen=True, kw_only=True):
    """Records, or the requested parts of each. `limit` and `max_bytes` are within bounds."""

    framing: Framing
    nodes: tuple[str, ...] = ()
    include_tags: bool = False
    include_meta: bool = True
    include_data: bool = True
    limit: int = 256
    max_bytes: int = 1024 * 1024
    strong: bool = False

    def __hash__(self) -> int:
        # The framing is compared by identity.
        return hash(
            (
                id(self.framing), self.nodes, self.include_tags, self.include_meta, self.include_data, self.limit,
                self.max_bytes, self.strong,
            )
        )  # fmt: skip

    @property
    def reports_drains(self) -> bool:
        return True

    def sees(self, topic: Topic) -> bool:
        # Called for each frame of each topic, so it avoids a call where there is no guard.
        guard = topic.guard if topic.rules.guarded else None
        return guard is None or not guard.hides(topic)

    def within(self, room: int) -> Self:
        return self if room >= self.max_bytes else msgspec.structs.replace(self, max_bytes=room)

    def read(self, engine: Engine, topic: Topic, cursor: int, up_to: int, done: Done) -> None:
        request = ReadRequest(
            from_seq=cursor, limit=self.limit, nodes=self.nodes, include_tags=self.include_tags,
            include_meta=self.include_meta, include_data=self.include_data, max_bytes=self.max_bytes, up_to=up_to,
        )  # fmt: skip
        engine.read(topic.name, request, done)

    def newest(self, engine: Engine, topic: Topic, cursor: int, up_to: int) -> Frame | None:
        block = last_block(topic, cursor, up_to)
        if block is None or self.nodes or not self.include_data:
            return None
        text, count, traits = block.text, block.count, block.traits
        if (traits & TRAIT_TAGS and not self.include_tags) or (traits & TRAIT_META and not self.include_meta):
            return None
        if count > self.limit or len(text) > self.max_bytes:
            return None
        engine.totals.reads += 1
        engine.consumed(topic)
        data = self.framing.records(RecordBatch(topic.name, text, cursor, up_to, up_to))
        return Frame(_RECORDS, data, cursor, up_to)

    def behind(self, found: ReadResult) -> int:
        return found.next_from_seq

    def frames(self, topic: Topic, found: ReadResult, cursor: int, too_old: bool) -> list[Frame]:
        name, framing, frames = topic.name, self.framing, []
        tombstone = found.tombstone
        if tombstone is not None:
            behind = cursor_behind(tombstone)
            data = framing.tombstone(name, tombstone, tombstone_reason(tombstone, too_old), behind)
            frames.append(Frame(FrameKind.TOMBSTONE, data, cursor, behind))
            cursor = behind
        to_seq = found.next_from_seq
        if found.count:
            data = framing.records(RecordBatch(name, found.body, cursor, to_seq, found.head_seq))
            frames.append(Frame(FrameKind.RECORDS, data, cursor, to_seq))
        elif to_seq > cursor or not frames:
            # All records are filtered out: only the cursor moves.
            frames.append(Frame(FrameKind.RECORDS, b"", cursor, to_seq))
        return frames

    def is_full(self, found: ReadResult) -> bool:
        return found.count >= self.limit or 2 * len(found.body) >= self.max_bytes


def tombstone_reason(tombstone: Tombstone, too_old: bool) -> str:
    """The reason to report. Retention from before the reader came, or while it did not read, has its own name."""
    return FROM_SEQ_TOO_OLD if too_old and tombstone.reason in _RETENTION else tombstone.reason.value


def cursor_behind(tombstone: Tombstone) -> int:
    """The reader's cursor after a tombstone: the end of the gap, or the start of a recreated topic."""
    return tombstone.earliest_seq - 1 if tombstone.reason is LossReason.RECREATED else tombstone.gap_to


# Frame cache: recent frames for other followers at the same cursor, for example when a thousand clients reconnect after
# a restart.

CACHE_BYTES_MAX = 8 * 1024 * 1024


class Kin:
    """The feeds of one topic and one source, which make the same frames. Compared by identity, because comparing
    sources takes longer than finding a frame."""

    __slots__ = ("feeds",)

    def __init__(self) -> None:
        self.feeds: list[Feed] = []


class _Entry(NamedTuple):
    frame: Frame
    filled: bool
    """Whether the batch ended because it was full."""
    state: tuple[object, ...]


class FrameCache:
    """An LRU cache of frames, bounded by bytes over all feeds."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[tuple[Kin, Cursor], _Entry] = OrderedDict()
        self.size = 0

    def put(self, feed: "Feed", frame: Frame, filled: bool) -> None:
        self._drop((feed.kin, frame.from_seq))
        self._entries[feed.kin, frame.from_seq] = _Entry(frame, filled, _state(feed))
        self.size += len(frame.data)
        while self.size > self._bytes_max:
            self._drop(next(iter(self._entries)))

    def find(self, feed: "Feed", cursor: Cursor, up_to: Cursor) -> Frame | None:
        """The frame from this cursor, if reading again up to `up_to` would give the same or less."""
        key = (feed.kin, cursor)
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.state != _state(feed):
            self._drop(key)
            return None
        end = entry.frame.cursor
        if end > up_to or not (entry.filled or end == up_to):
            return None
        self._entries.move_to_end(key)
        return entry.frame

    def forget(self, kin: Kin) -> None:
        """Drop the frames of feeds without followers."""
        for key in [key for key in self._entries if key[0] is kin]:
            self._drop(key)

    def _drop(self, key: tuple[Kin, Cursor]) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size -= len(entry.frame.data)


def _state(feed: "Feed") -> tuple[object, ...]:
    """A value that stays the same while only appends happen: number of removed records, config, and source shape."""
    topic = feed.topic
    return removed_count(topic), topic.config, feed.source.shape(topic)
