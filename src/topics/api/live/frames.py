"""What is delivered, and how it is put into bytes: once for everyone who is to get the same."""

import enum
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import msgspec

from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, ReadResult, last_block
from topics.engine.topic import Topic
from topics.engine.watermarks import removed_count
from topics.model.errors import TopicsError
from topics.model.records import TRAIT_META, TRAIT_TAGS
from topics.model.seq_ranges import LossReason, Tombstone

if TYPE_CHECKING:
    from topics.api.live.feed import Feed


FROM_SEQ_TOO_OLD = "from_seq_too_old"
_RETENTION = (LossReason.CAP, LossReason.TTL, LossReason.MIXED)

Done = Callable[[Any], None]
"""Told what was found, or the error."""
Cursor = Any
"""A place in a topic: a seq, or what a source has instead. They have an order, and two kinds of them never meet."""


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


_RECORDS = FrameKind.RECORDS
"""Not looked up for each frame: an enum's class takes its time to find a member."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One message to a subscriber. `data` is shared by everyone who gets it and must not be changed."""

    kind: FrameKind
    data: bytes
    from_seq: Cursor
    """The cursor before it."""
    cursor: Cursor
    """The cursor behind it, also past records that were left out."""


class RecordBatch(msgspec.Struct, frozen=True, gc=False):
    """What a frame of records says. `body` is their JSON with commas between them, without brackets."""

    topic: str
    body: bytes
    from_seq: int
    to_seq: int
    head_seq: int


class Notices(Protocol):
    """How to write what is no record. What is empty is not transmitted; by default only `caught_up` is not."""

    def caught_up(self, topic: str, head_seq: Cursor) -> bytes:
        return b"caught up"

    def deleted(self, topic: str, head_seq: int, cursor: Cursor) -> bytes:
        return b""

    def error(self, topic: str, error: TopicsError) -> bytes:
        """The topic cannot be read on from here."""
        return b""

    def paced(self, topic: str, retry_after_ms: int) -> bytes:
        """News of the topic is late because of pressure; it goes on by itself."""
        return b""


class Framing(Notices, Protocol):
    """A pure encoder. Each instance stands for one way to write, so use one and the same for all connections that can
    share bytes: a feed has one framing."""

    def records(self, batch: RecordBatch) -> bytes: ...

    def tombstone(self, topic: str, tombstone: Tombstone, reason: str, cursor: int) -> bytes:
        """`reason` is what to tell; `cursor` is where the reader stands behind the gap."""
        ...


class _Quiet(Notices):
    """For connections that find out for themselves what there is to tell, when they are told that they caught up."""


_QUIET = _Quiet()


class Found(Protocol):
    """What a read gives, as far as delivery cares."""

    @property
    def body(self) -> bytes: ...

    @property
    def count(self) -> int: ...

    @property
    def tombstone(self) -> Tombstone | None: ...


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """How followers see a topic: what a read from a cursor finds, and which frames that makes.

    Followers whose sources are equal share feeds, and so the bytes.
    """

    @property
    def framing(self) -> Notices:
        return _QUIET

    @property
    def strong(self) -> bool:
        """Whether records are delivered only once they are on the disk, whatever the topic's class."""
        return False

    def sees(self, topic: Topic) -> bool:
        """Whether a topic that is not deleted is there for these followers."""
        raise NotImplementedError

    def has_ended(self, topic: Topic) -> bool:
        """Whether nothing more will come of a topic that stays. Who has everything is told again that it caught up."""
        return False

    def shape(self, topic: Topic) -> object:
        """What frames depend on besides the records: where it is another, they are made anew."""
        return None

    def place(self, seq: int) -> Cursor:
        """The cursor behind a seq."""
        return seq

    def within(self, room: int) -> Self:
        """The same with frames of at most so many bytes, as far as a single record allows it."""
        return self

    def read(self, engine: Engine, topic: Topic, cursor: Cursor, up_to: Cursor, done: Done) -> None:
        """Reads from a cursor, not past another, at once or later. May raise TopicsError."""
        raise NotImplementedError

    def newest(self, engine: Engine, topic: Topic, cursor: Cursor, up_to: Cursor) -> Frame | None:
        """The frame that `read` and `frames` would make, where it can be told at once; None is always a right answer.
        For those who have followed a topic so far, and so mostly want the block that came last."""
        return None

    def behind(self, found: Any) -> Cursor:
        """The cursor behind what a read found."""
        raise NotImplementedError

    def is_full(self, found: Any) -> bool:
        """Whether a read ended because it had all that one may give."""
        raise NotImplementedError

    def frames(self, topic: Topic, found: Any, cursor: Cursor, too_old: bool) -> list[Frame]:
        """What a read from `cursor` gives to tell, in order, and at least one. The last ends where the read did."""
        raise NotImplementedError


class Projection(Source, frozen=True, kw_only=True):
    """Records, or what is wanted of each. `limit` and `max_bytes` are within bounds."""

    framing: Framing
    nodes: tuple[str, ...] = ()
    include_tags: bool = False
    include_meta: bool = True
    include_data: bool = True
    limit: int = 256
    max_bytes: int = 1024 * 1024
    strong: bool = False

    def __hash__(self) -> int:
        # The framing counts by identity, which is what the default hash of most classes does.
        return hash(
            (
                id(self.framing), self.nodes, self.include_tags, self.include_meta, self.include_data, self.limit,
                self.max_bytes, self.strong,
            )
        )  # fmt: skip

    def sees(self, topic: Topic) -> bool:
        # Asked for each frame of each topic, so by what takes no call where there is no guard.
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
        core = engine.core
        core.totals.reads += 1
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
            data = framing.tombstone(name, tombstone, reason_to_tell(tombstone, too_old), behind)
            frames.append(Frame(FrameKind.TOMBSTONE, data, cursor, behind))
            cursor = behind
        to_seq = found.next_from_seq
        if found.count:
            data = framing.records(RecordBatch(name, found.body, cursor, to_seq, found.head_seq))
            frames.append(Frame(FrameKind.RECORDS, data, cursor, to_seq))
        elif to_seq > cursor or not frames:
            # Nothing in it for this projection: the cursor moves in silence.
            frames.append(Frame(FrameKind.RECORDS, b"", cursor, to_seq))
        return frames

    def is_full(self, found: ReadResult) -> bool:
        return found.count >= self.limit or 2 * len(found.body) >= self.max_bytes


def reason_to_tell(tombstone: Tombstone, too_old: bool) -> str:
    """Retention that passed a reader by before it came, or while it did not read, has a name of its own."""
    return FROM_SEQ_TOO_OLD if too_old and tombstone.reason in _RETENTION else tombstone.reason.value


def cursor_behind(tombstone: Tombstone) -> int:
    """Where a reader stands after a tombstone: at the end of the gap, or before all of a topic that began again."""
    return tombstone.earliest_seq - 1 if tombstone.reason is LossReason.RECREATED else tombstone.gap_to


# Frames that were just made, for others who stand where the first one stood: after a restart, for example, when a
# thousand clients come back with the same cursor.

CACHE_BYTES_MAX = 8 * 1024 * 1024


class Kin:
    """The feeds of one topic and one source, which make the same frames. Known by what it is: to compare sources takes
    longer than to find a frame."""

    __slots__ = ("feeds",)

    def __init__(self) -> None:
        self.feeds: list[Feed] = []


class _Entry(NamedTuple):
    frame: Frame
    filled: bool
    """Whether the batch ended because it was full."""
    state: tuple[object, ...]


class FrameCache:
    """Bounded by bytes, over all feeds; what was used least lately goes first."""

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
        """The frame from this cursor, if reading again up to a seq would give the same or less."""
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
        """Nobody follows these feeds any more."""
        for key in [key for key in self._entries if key[0] is kin]:
            self._drop(key)

    def _drop(self, key: tuple[Kin, Cursor]) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size -= len(entry.frame.data)


def _state(feed: "Feed") -> tuple[object, ...]:
    """What is the same for as long as only appends happen: the number of records that are gone, the config, and how
    records are shown."""
    topic = feed.topic
    return removed_count(topic), topic.config, feed.source.shape(topic)
