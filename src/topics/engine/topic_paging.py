"""Topic paging: topics that are not used are dropped from memory and loaded from a snapshot when they are used again.

A server may have a million topics and use a thousand. A topic that has not changed since a snapshot is complete in it,
state and tail, so its object can be dropped. Only the name, the id and the position in the snapshot stay in memory. A
lookup by name (`TopicDirectory.find`) or by id (`EngineCore.topic_at`) pages it in again, checked by the checksums of
its frames. The position is kept while the topic is resident, so a topic that was only read is paged out again without a
write.

A topic is paged out only if it is idle: it is clean, has no staged operations or waiters, no records that expire, no
feature that keeps it in another structure (`TopicPager.entry`, `Feature.may_page_out`), and no router that writes to
it: a list of topics includes pending copies, and a peek of the snapshot would not.

Object identity: there is never more than one `Topic` for a topic. Some code keeps one across turns of the loop: feeds
and long polls, deliveries in the scheduler, appends and deletes on their way, postponed appends of streams, reads on
threads, routers (source and destination), transactions, dead letter moves, subscriptions, searches and index feeds,
checkpoint captures, sealing and relocation jobs. None of them has to report it. The pager keeps a weak reference to
each object that it paged out, an identity map, and

- `page_in` returns that object while anything still holds it;
- its next use makes it resident again: `EngineCore.before_change`, `EngineCore.exists` and `Topic.notify_on_change`
  call `TopicPager.restore`. Until then the object is what the snapshot has, so reading from it is right as well.

The rejected alternative is a pin count: all of these holders would have to maintain it, and a forgotten pin would
create two objects for one topic, and lose a write. With weak references a holder costs only its memory.

Code that holds a topic asks `EngineCore.exists(topic)` whether it was deleted; `topics.get(id) is topic` is False for a
topic that is paged out.

With no more topics than `awake_topics` none is ever paged out.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

from topics.engine.apply import Applier, load_block, load_state
from topics.engine.features import Features
from topics.engine.quotas import KeptMemory
from topics.engine.retention import Retention
from topics.engine.topic import Block, RunReader, Topic
from topics.log.frame import Frame, decode_block
from topics.log.snapshot_files import (
    CLASSES,
    Directory,
    SnapshotFile,
    SnapshotWriter,
    StoredTopic,
    TopicEntry,
    TopicPeek,
    decode_peek,
    decode_topic,
)
from topics.model.errors import DamageError, Finding
from topics.model.topic_config import Durability, TopicType, is_server_name

# Positions of topics in snapshots.
#
# Built for a million topics: a position is one number, and recovery processes thousands at a time.

SIZE_BITS, _OFFSET_BITS = 24, 44
_SIZE_MASK, OFFSET_MASK = (1 << SIZE_BITS) - 1, (1 << _OFFSET_BITS) - 1
FILE_SHIFT = SIZE_BITS + _OFFSET_BITS
SIZE_MAX = _SIZE_MASK


def place_of(number: int, offset: int, size: int) -> int:
    """A snapshot, an offset in it and a size as one number: tuples would take three times the memory for a million
    topics."""
    return number << FILE_SHIFT | offset << SIZE_BITS | size


class ListedTopic(NamedTuple):
    """One topic of a directory."""

    topic_id: int
    place: int
    name: str
    durability: int
    live: int
    live_bytes: int
    written: int


class DirectoryRange:
    """A directory whose topics stay in its file."""

    __slots__ = ("at", "end", "number", "oldest")

    def __init__(self, number: int, at: int, end: int, oldest: int) -> None:
        self.number, self.at, self.end = number, at, end
        self.oldest = oldest
        """The time at which the oldest tail block in it was written; 0 if there is none."""


class SnapshotPlaces:
    def __init__(self) -> None:
        self.by_id: dict[int, int] = {}
        self.files: dict[int, SnapshotFile] = {}
        """The snapshots that places point into, by number."""
        self.spans: list[DirectoryRange] = []

    def add(self, number: int, at: int, end: int, directory: Directory, known: Collection[int]) -> Collection[int]:
        """Adds a directory, except for topics with newer state. Returns the added ids."""
        ids = directory.ids
        base = number << FILE_SHIFT
        found = [base | o << SIZE_BITS | s for o, s in zip(directory.offsets, directory.sizes, strict=True)]
        news = zip(ids, found, strict=True)
        if known:
            pairs = [pair for pair in news if pair[0] not in known]
            self.by_id.update(pairs)
            ids = [topic_id for topic_id, _ in pairs]
        else:
            self.by_id.update(news)
        self.note(number, at, end, directory.written)
        return ids

    def note(self, number: int, at: int, end: int, written: Collection[int]) -> None:
        self.spans.append(DirectoryRange(number, at, end, min(filter(None, written), default=0)))

    def stored(self, place: int) -> StoredTopic:
        """The topic at a place. Raises ValueError or OSError if it cannot be read."""
        return self.files[place >> FILE_SHIFT].topic(place >> SIZE_BITS & OFFSET_MASK, place & _SIZE_MASK)

    def state(self, place: int) -> Frame:
        """The stored state of a topic without its tail."""
        return self.files[place >> FILE_SHIFT].state(place >> SIZE_BITS & OFFSET_MASK)

    def path(self, place: int) -> str:
        return self.files[place >> FILE_SHIFT].path

    def listed(self, span: DirectoryRange) -> Iterator[ListedTopic]:
        """The topics of a directory that no newer snapshot has."""
        file, by_id, base = self.files[span.number], self.by_id, span.number << FILE_SHIFT
        one = file.directory(span.at, span.end)
        rows = zip(
            one.ids, one.offsets, one.sizes, one.names, one.classes, one.live, one.live_bytes, one.written, strict=True
        )
        for topic_id, offset, size, *rest in rows:
            place = base | offset << SIZE_BITS | size
            if by_id.get(topic_id) == place:
                yield ListedTopic(topic_id, place, *rest)

    def keep(self, numbers: Collection[int]) -> None:
        """Closes all other snapshots, which no position refers to any more."""
        self.files = {number: file for number, file in self.files.items() if number in numbers}
        self.spans = [span for span in self.spans if span.number in numbers]


# Peeks: the listed properties of paged out topics, read from their snapshots without building topics.
#
# With a million topics every lookup of a page misses the processor's caches, which is most of the cost. So a page is
# looked up as a whole: all ids, then all positions, then the frames. A loop as short as that of `map` lets the
# processor overlap several misses.


def read_peeks(places: SnapshotPlaces, ids: Sequence[int | None]) -> list[TopicPeek | None]:
    """Returns the topics of these ids; None for each that does not exist or is resident. Raises DamageError."""
    found: list[TopicPeek | None] = []
    files = places.files
    for topic_id, place in zip(ids, list(map(places.by_id.get, ids)), strict=True):  # type: ignore[arg-type]
        if topic_id is None or place is None:
            found.append(None)
            continue
        try:
            body = files[place >> FILE_SHIFT].state_body(place >> SIZE_BITS & OFFSET_MASK, place & _SIZE_MASK)
            peek = decode_peek(body)
            if peek.topic_id != topic_id:
                raise ValueError(f"topic {peek.topic_id} is where topic {topic_id} should be")
        except ValueError as error:
            raise unreadable(places, place, error) from error
        found.append(peek)
    return found


def unreadable(places: SnapshotPlaces, place: int, error: ValueError) -> DamageError:
    return DamageError([Finding(places.path(place), f"a topic cannot be read: {error}")])


_PLACES_A_STEP = 10_000
_PAGE_OUTS_A_STEP = 1_000
_ENTRY_BYTES_MAX = SIZE_MAX // 16
"""A topic with a larger tail stays resident: the size of its frames must fit into the encoded position."""


class PagerView(Protocol):
    """The parts of the engine's core that paging uses."""

    topics: dict[int, Topic]
    directory: "TopicDirectory"
    dirty: list[set[Topic]]
    features: Features
    applier: Applier
    reader: RunReader
    retention: Retention
    memory: KeptMemory

    def shard_number(self, topic_id: int) -> int: ...


class TopicDirectory:
    """The topics by name, resident and paged out, including topics being created."""

    __slots__ = ("_paged_out", "_pager", "resident")

    def __init__(self, pager: "TopicPager") -> None:
        self._pager, self._paged_out = pager, pager.names
        self.resident: dict[str, Topic] = {}
        """The topics in memory. A lookup here never pages a topic in: the hot path of an append uses it."""

    def find(self, name: str) -> Topic | None:
        """The topic of that name, paged in if necessary; None if there is none."""
        topic = self.resident.get(name)
        if topic is None and name in self._paged_out:
            return self._pager.page_in_named(name)
        return topic

    def load(self, name: str) -> Topic:
        """The topic of that name, paged in if necessary; KeyError if there is none."""
        topic = self.find(name)
        if topic is None:
            raise KeyError(name)
        return topic

    def __contains__(self, name: object) -> bool:
        return name in self.resident or name in self._paged_out

    def __len__(self) -> int:
        return len(self.resident) + len(self._paged_out)

    def add(self, topic: Topic) -> None:
        self.resident[topic.name] = topic

    def discard(self, topic: Topic) -> None:
        """Removes a topic, unless another one has its name by now."""
        if self.resident.get(topic.name) is topic:
            del self.resident[topic.name]


class TopicPager:
    def __init__(self, view: PagerView, resident_max: int) -> None:
        self._view = view
        self._resident_max = resident_max
        self.names: dict[str, int] = {}
        """The topics that are paged out, by name."""
        self.places = SnapshotPlaces()
        self._held: WeakValueDictionary[int, Topic] = WeakValueDictionary()
        """The objects of topics that are paged out, while something still holds them."""
        self._read_at: dict[int, int] = {}
        """The last read time of paged-out topics; only for topics that were read."""
        self.forgotten: set[int] | None = None
        """During a checkpoint: the topics whose positions are dropped when it has ended."""
        self.destinations: Collection[int] = ()
        """The ids of topics that routers write to, which stay resident; `routers` sets it."""
        self.by_class = dict.fromkeys(Durability, 0)
        self.records = self.bytes = 0
        """The live records and bytes of all paged-out topics."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def needed(self) -> bool:
        """Returns whether there are more topics than may be resident."""
        return len(self._view.directory) > self._resident_max

    @property
    def indexed(self) -> bool:
        """Whether the next snapshot has to have directories."""
        return self.needed or bool(self.places.by_id)

    @property
    def over_limit(self) -> bool:
        """Whether more topics are resident than should be."""
        return len(self._view.topics) > self._resident_max

    # Recovery

    def add_directory(self, directory: Directory, taken: Iterable[int]) -> None:
        """Keeps topics of a snapshot's directory paged out: all of them, or those with the given ids."""
        ids = directory.ids
        rows: Iterable[tuple[int, str, int, int, int]] = zip(
            ids, directory.names, directory.classes, directory.live, directory.live_bytes, strict=True
        )
        if taken is not ids:
            chosen = set(taken)
            rows = [row for row in rows if row[0] in chosen]
        columns = list(zip(*rows, strict=True))
        if not columns:
            return
        ids_, names, codes, live, live_bytes = columns
        self.names.update(zip(names, ids_, strict=True))
        for code in set(codes):
            self.by_class[Durability(CLASSES[code])] += codes.count(code)
        self.records += sum(live)
        self.bytes += sum(live_bytes)

    # Paging in

    def page_in_named(self, name: str) -> Topic:
        return self.page_in(self.names[name])

    def page_in(self, topic_id: int) -> Topic:
        """Makes a topic resident: the object that something still holds, or one loaded from the snapshot."""
        topic = self._held.get(topic_id)
        if topic is None:
            retention = self._view.retention
            tail_bytes = retention.tail_bytes
            topic = self._loaded(topic_id, self.places.by_id[topic_id], whole=True)
            retention.advance_earliest(topic)
            retention.tail_bytes = tail_bytes
        self.restore(topic)
        return topic

    def restore(self, topic: Topic) -> None:
        """Makes the object of a topic that is paged out the resident one."""
        view, topic_id = self._view, topic.id
        topic.paged_out_by = None
        self._held.pop(topic_id, None)
        del self.names[topic.name]
        self._count(topic, -1)
        view.topics[topic_id] = topic
        view.directory.add(topic)
        view.retention.tail_bytes += topic.tail_bytes
        view.memory.note(topic)
        topic.last_read_ts = topic.last_consumed_ts = max(topic.last_read_ts, self._read_at.pop(topic_id, 0))

    def peek(self, name: str) -> Topic:
        """Returns the topic of that name for reading its properties.

        A paged-out topic stays paged out, and the object has no records.
        """
        topic_id = self.names.get(name)
        return self._view.directory.load(name) if topic_id is None else self.peek_at(topic_id)

    def peek_at(self, topic_id: int) -> Topic:
        """Like `peek`, by the id of a paged-out topic."""
        topic = self._loaded(topic_id, self.places.by_id[topic_id], whole=False)
        topic.last_read_ts = topic.last_consumed_ts = self._read_at.get(topic_id, 0)
        return topic

    def peek_many(self, names: Iterable[str]) -> list[TopicPeek | None]:
        """Returns the listed properties of paged-out topics; None for each resident one.

        A list needs no others, because a paged-out topic is a plain log without segments and is not closed (`entry`).
        """
        return read_peeks(self.places, list(map(self.names.get, names)))

    def note_read(self, topic: Topic, now: int) -> None:
        """Notes a read of a paged-out topic, from its properties."""
        self._read_at[topic.id] = now

    def _loaded(self, topic_id: int, place: int, whole: bool) -> Topic:
        view = self._view
        try:
            stored = self.places.stored(place) if whole else None
            state = decode_topic((stored.state if stored is not None else self.places.state(place)).body)
            if state.topic_id != topic_id:
                raise ValueError(f"topic {state.topic_id} is where topic {topic_id} should be")
            topic = load_state(state, view.applier.reserve, view.features)
            if stored is None:
                topic.live_count, topic.live_bytes = state.tail_live, state.tail_live_bytes
            else:
                for frame, flags in zip(stored.tail, state.tail_flags, strict=True):
                    load_block(topic, Block.of(decode_block(frame.body)), flags, view.reader)
        except ValueError as error:
            raise unreadable(self.places, place, error) from error
        topic.staged_head, topic.staged_ts = topic.head, topic.last_ts
        topic.shard = view.shard_number(topic_id)
        return topic

    # Paging out

    def entry(self, topic: Topic) -> TopicEntry | None:
        """Returns the directory entry of a topic that may be paged out in its current state, otherwise None.

        `peek_many` relies on these conditions.
        """
        config = topic.config
        if (
            topic.segments
            or not config.durability.logged
            or config.type is TopicType.QUEUE
            or config.ttl_ms
            or topic.origin is not None
            or topic.unlogged
            or topic.staged_head != topic.head
            or topic.hidden_from
            or topic.tail_bytes > _ENTRY_BYTES_MAX
            or (topic.parts and not self._view.features.may_page_out(topic))
            or is_server_name(topic.name)
        ):
            return None
        written = topic.tail[0].written if topic.tail else 0
        return TopicEntry(topic.name, config.durability.value, topic.live_count, topic.live_bytes, written)

    def page_out(self, topic_id: int) -> bool:
        """Drops a topic from memory if a snapshot has it completely and nothing uses it. Returns whether it did."""
        view = self._view
        topic = view.topics.get(topic_id)
        if topic is None or topic_id not in self.places.by_id or topic in view.dirty[topic.shard]:
            return False
        idle = not (
            topic.capture_due or topic.closing or topic.evicting or topic.sync_inflight or topic.waiters
            or topic.deletion_waiters or topic.staged_count or topic.coalesced is not None
            or topic_id in self.destinations
        )  # fmt: skip
        if not idle or self.entry(topic) is None or view.directory.resident.get(topic.name) is not topic:
            return False
        del view.topics[topic_id]
        view.directory.discard(topic)
        view.memory.forget(topic)
        view.retention.tail_bytes -= topic.tail_bytes
        self.names[topic.name] = topic_id
        self._held[topic_id] = topic
        topic.paged_out_by = self
        self._count(topic, 1)
        if topic.last_read_ts:
            self._read_at[topic_id] = topic.last_read_ts
        return True

    def add_snapshot(self, file: SnapshotFile, written: SnapshotWriter, captured: list[int]) -> Iterator[int]:
        """Records the positions in a new snapshot, and pages out the captured topics, in steps."""
        places, number = self.places, file.number
        places.files[number] = file
        for at, end, oldest in written.directories:
            places.note(number, at, end, oldest)
        news = iter(written.places.items())
        while some := list(islice(news, _PLACES_A_STEP)):
            # A topic in neither was deleted while its frames were written.
            places.by_id.update(
                [(i, place_of(number, *place)) for i, place in some if i in places.by_id or i in self._view.topics]
            )
            yield len(some)
        for first in range(0, len(captured), _PAGE_OUTS_A_STEP):
            for topic_id in captured[first : first + _PAGE_OUTS_A_STEP]:
                if topic_id not in written.places:
                    places.by_id.pop(topic_id, None)
                elif self.over_limit:
                    self.page_out(topic_id)
            yield first

    def forget(self, topic_id: int) -> None:
        """Drops the position of a resident topic that was deleted.

        A running checkpoint keeps it until its end: frames after the rotation of the log refer to a topic that the
        snapshot must have.
        """
        if self.forgotten is not None:
            self.forgotten.add(topic_id)
        else:
            self.places.by_id.pop(topic_id, None)

    def begin_checkpoint(self) -> None:
        """Freezes all positions until `end_checkpoint`."""
        self.forgotten = set()

    def end_checkpoint(self) -> None:
        forgotten, self.forgotten = self.forgotten, None
        for topic_id in forgotten or ():
            self.places.by_id.pop(topic_id, None)

    def is_paged_out(self, topic_id: int) -> bool:
        return (
            topic_id in self.places.by_id
            and topic_id not in self._view.topics
            and (self.forgotten is None or topic_id not in self.forgotten)
        )

    def overdue(self, oldest: int) -> Iterator[int]:
        """Returns the ids of paged-out topics with a tail block that was written before a time."""
        for span in self.places.spans:
            if 0 < span.oldest < oldest:
                left = [one for one in self.places.listed(span) if self.is_paged_out(one.topic_id)]
                yield from [one.topic_id for one in left if 0 < one.written < oldest]
                span.oldest = min([one.written for one in left if one.written >= oldest], default=0)

    def _count(self, topic: Topic, change: int) -> None:
        self.by_class[topic.config.durability] += change
        self.records += change * topic.live_count
        self.bytes += change * topic.live_bytes


# Copies paged-out topics from older snapshots into a new one, off the loop.
#
# Positions do not change until the checkpoint has ended (`begin_checkpoint`): changes of topics are logged after the
# rotation, and the copied frames are the state before it.


def copy_topics(
    places: SnapshotPlaces, writer: SnapshotWriter, captured: Collection[int], replaced: Collection[int]
) -> None:
    """Copies the topics with a position in a replaced snapshot, except captured ones."""
    for span in list(places.spans):
        if span.number not in replaced:
            continue
        for one in places.listed(span):
            if one.topic_id in captured:
                continue
            stored = places.stored(one.place)
            entry = TopicEntry(one.name, CLASSES[one.durability], one.live, one.live_bytes, one.written)
            tail = [(bytes(frame.body), b"") for frame in stored.tail]
            writer.add_topic(one.topic_id, bytes(stored.state.body), tail, entry)
