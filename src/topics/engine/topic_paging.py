"""Topics that are asleep: nothing of them is in memory but the name, the number and the place in a snapshot.

A server may have a million topics and use a thousand. One that has not changed since a snapshot took it is in that
snapshot whole, state and tail, so its objects can go; whoever asks for it finds it there, checked by the checksums of
its frames, and it is awake again. Its place stays known while it is awake: as long as nothing changes it can go back.

Only a topic that nobody can miss sleeps: nothing of it is on its way or waited for, no feature keeps it in a list of
its own, time does nothing to it, and nobody else holds the object. That last is asked of the interpreter, which counts
references. So `topics.get(id) is topic` stays the way to ask whether a topic that one holds still exists.

With no more topics than `awake_topics` none ever sleeps.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from sys import getrefcount
from typing import NamedTuple, Protocol

from topics.engine.apply import Applier, load_block, load_state
from topics.engine.features import Features
from topics.engine.record_runs import Block, RunReader
from topics.engine.retention import Retention
from topics.engine.topic import Topic
from topics.log.block import decode_block
from topics.log.frame import Frame, FrameKind, read_body
from topics.log.snapshot import CLASSES, Directory, TopicPeek, decode_glance, decode_topic
from topics.log.snapshot_files import SnapshotFile, SnapshotWriter, StoredTopic, TopicEntry
from topics.model.errors import DamageError, Finding
from topics.model.names import is_server_name
from topics.model.topic_config import Durability, TopicType

# Where the topics are that have a place in a snapshot: the index of those who sleep.
#
# It is built for a million of them: a place is one number, and everything that is done for all of them at a start is
# done by the thousand.

SIZE_BITS, _OFFSET_BITS = 24, 44
_SIZE_MASK, OFFSET_MASK = (1 << SIZE_BITS) - 1, (1 << _OFFSET_BITS) - 1
FILE_SHIFT = SIZE_BITS + _OFFSET_BITS
SIZE_MAX = _SIZE_MASK


def place_of(number: int, offset: int, size: int) -> int:
    """A snapshot, an offset in it and a size as one number: as tuples, a million would weigh three times as much."""
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
    """A directory that is left in its file."""

    __slots__ = ("at", "end", "number", "oldest")

    def __init__(self, number: int, at: int, end: int, oldest: int) -> None:
        self.number, self.at, self.end = number, at, end
        self.oldest = oldest
        """When the oldest block of a tail in it was written; 0 where there is none."""


class SnapshotPlaces:
    def __init__(self) -> None:
        self.by_id: dict[int, int] = {}
        self.files: dict[int, SnapshotFile] = {}
        """The snapshots that places point into, by number."""
        self.stretches: list[DirectoryRange] = []

    def add(self, number: int, at: int, end: int, directory: Directory, known: Collection[int]) -> Collection[int]:
        """Takes a directory in, but for topics of which something newer is known; the ids that were taken."""
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
        self.stretches.append(DirectoryRange(number, at, end, min(filter(None, written), default=0)))

    def stored(self, place: int) -> StoredTopic:
        """The topic at a place. Raises ValueError or OSError where it cannot be read."""
        return self.files[place >> FILE_SHIFT].topic(place >> SIZE_BITS & OFFSET_MASK, place & _SIZE_MASK)

    def state(self, place: int) -> Frame:
        """The same without its tail."""
        return self.files[place >> FILE_SHIFT].state(place >> SIZE_BITS & OFFSET_MASK)

    def path(self, place: int) -> str:
        return self.files[place >> FILE_SHIFT].path

    def listed(self, stretch: DirectoryRange) -> Iterator[ListedTopic]:
        """The topics of a stretch that are still there: no newer snapshot has them."""
        file, by_id, base = self.files[stretch.number], self.by_id, stretch.number << FILE_SHIFT
        one = file.directory(stretch.at, stretch.end)
        rows = zip(
            one.ids, one.offsets, one.sizes, one.names, one.classes, one.live, one.live_bytes, one.written, strict=True
        )
        for topic_id, offset, size, *rest in rows:
            place = base | offset << SIZE_BITS | size
            if by_id.get(topic_id) == place:
                yield ListedTopic(topic_id, place, *rest)

    def keep(self, numbers: Collection[int]) -> None:
        """Lets go of all other snapshots: nothing is there any more."""
        self.files = {number: file for number, file in self.files.items() if number in numbers}
        self.stretches = [stretch for stretch in self.stretches if stretch.number in numbers]


# What a list says of topics that sleep, read from their snapshots without making topics of them.
#
# With a million topics nothing that a page asks for is in a cache of the processor, and most of what it costs is to
# wait for memory. So a page is looked up as a whole: all numbers, then all places, and then the frames. Only a loop as
# short as that of `map` lets the processor wait for several at once.

_TOPIC = FrameKind.TOPIC
"""A name of its own: to find a member of an enum takes longer than to compare it."""


def read_peeks(places: SnapshotPlaces, ids: Sequence[int | None]) -> list[TopicPeek | None]:
    """The topics of these numbers; None where there is none, as for one that is awake. DamageError."""
    found: list[TopicPeek | None] = []
    files = places.files
    for topic_id, place in zip(ids, list(map(places.by_id.get, ids)), strict=True):  # type: ignore[arg-type]
        if topic_id is None or place is None:
            found.append(None)
            continue
        try:
            # Taken apart here: a call for each part would cost as much as the decoding.
            view, offset = files[place >> FILE_SHIFT].view, place >> SIZE_BITS & OFFSET_MASK
            glance = decode_glance(read_body(view, offset, _TOPIC))
            if glance.topic_id != topic_id:
                raise ValueError(f"topic {glance.topic_id} is where topic {topic_id} should be")
        except ValueError as error:
            raise unreadable(places, place, error) from error
        found.append(glance)
    return found


def unreadable(places: SnapshotPlaces, place: int, error: ValueError) -> DamageError:
    return DamageError([Finding(places.path(place), f"a topic cannot be read: {error}")])


_PLACES_A_STEP = 10_000
_RESTS_A_STEP = 1_000
_ENTRY_BYTES_MAX = SIZE_MAX // 16
"""A larger tail stays awake; its frames must fit into a place, with whatever else the state is."""


def _holders(objects: Mapping[int, object], number: int) -> int:
    one = objects[number]
    return getrefcount(one)


def _unheld() -> int:
    """What `_holders` says of an object in two mappings that only one function holds besides: interpreters differ in
    how they count those who ask, so this one is asked."""
    one = object()
    by_number, by_name = {1: one}, {"a": one}
    return _holders(by_number, len(by_name))


_UNHELD = _unheld()


class PagerView(Protocol):
    """What of the engine's core this needs to know."""

    topics: dict[int, Topic]
    by_name: "TopicsByName"
    dirty: list[set[Topic]]
    features: Features
    applier: Applier
    reader: RunReader
    retention: Retention

    def shard_number(self, topic_id: int) -> int: ...


class TopicsByName(dict[str, Topic]):
    """The topics that are awake, by name; asked for one that sleeps, it wakes it.

    Where speed counts and a sleeping topic is not the usual case, `dict.get` asks for those that are awake alone.
    """

    def __init__(self, sleepers: "TopicPager") -> None:
        super().__init__()
        self._sleepers = sleepers

    def get(self, name: str, default: None = None) -> Topic | None:  # type: ignore[override]
        topic = dict.get(self, name)
        if topic is None and name in self._sleepers.names:
            return self._sleepers.wake_named(name)
        return topic

    def __missing__(self, name: str) -> Topic:
        if name in self._sleepers.names:
            return self._sleepers.wake_named(name)
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or name in self._sleepers.names


class TopicPager:
    def __init__(self, books: PagerView, awake_topics: int) -> None:
        self._books = books
        self._awake_topics = awake_topics
        self.names: dict[str, int] = {}
        """The topics that sleep, by name."""
        self.places = SnapshotPlaces()
        self._read_at: dict[int, int] = {}
        """When topics were last read that sleep; for those that ever were."""
        self.held: set[int] | None = None
        """While a checkpoint is on its way: the topics whose places are to be forgotten behind it."""
        self.by_class = dict.fromkeys(Durability, 0)
        self.records = self.bytes = 0
        """What they hold together."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def wanted(self) -> bool:
        """Whether there are so many topics that some should sleep."""
        return len(self._books.by_name) + len(self.names) > self._awake_topics

    @property
    def indexed(self) -> bool:
        """Whether the next snapshot has to have directories."""
        return self.wanted or bool(self.places.by_id)

    @property
    def crowded(self) -> bool:
        """Whether more are awake than should be."""
        return len(self._books.topics) > self._awake_topics

    # A start

    def take(self, directory: Directory, taken: Iterable[int]) -> None:
        """Topics of a directory sleep: all of them, or those that are said."""
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

    # Waking

    def wake_named(self, name: str) -> Topic:
        return self.wake(self.names[name])

    def wake(self, topic_id: int) -> Topic:
        """Makes a sleeping topic be as it was."""
        books, place = self._books, self.places.by_id[topic_id]
        topic = self._loaded(topic_id, place, whole=True)
        held = books.retention.tail_bytes
        books.retention.settle_front(topic)
        del self.names[topic.name]
        self._count(topic, -1)
        books.topics[topic_id] = topic
        books.by_name[topic.name] = topic
        books.retention.tail_bytes = held + topic.tail_bytes
        topic.last_read_ts = topic.last_consumed_ts = self._read_at.pop(topic_id, 0)
        return topic

    def look(self, name: str) -> Topic:
        """A topic for one who only looks at what it says of itself: one that sleeps goes on to, and its tail is left
        where it is."""
        topic_id = self.names.get(name)
        return self._books.by_name[name] if topic_id is None else self.look_at(topic_id)

    def look_at(self, topic_id: int) -> Topic:
        """The same for the number of one that sleeps."""
        topic = self._loaded(topic_id, self.places.by_id[topic_id], whole=False)
        topic.last_read_ts = topic.last_consumed_ts = self._read_at.get(topic_id, 0)
        return topic

    def glances(self, names: Iterable[str]) -> list[TopicPeek | None]:
        """What a list says of topics that sleep; None for each that is awake. Nobody needs to look further: one that
        sleeps is a log without segments and without an end, and nothing else is special about it, or it would not."""
        return read_peeks(self.places, list(map(self.names.get, names)))

    def consumed(self, topic: Topic, now: int) -> None:
        """Somebody looked at a topic that sleeps."""
        self._read_at[topic.id] = now

    def _loaded(self, topic_id: int, place: int, whole: bool) -> Topic:
        books = self._books
        try:
            stored = self.places.stored(place) if whole else None
            state = decode_topic((stored.state if stored is not None else self.places.state(place)).body)
            if state.topic_id != topic_id:
                raise ValueError(f"topic {state.topic_id} is where topic {topic_id} should be")
            topic = load_state(state, books.applier.reserve, books.features)
            if stored is None:
                topic.live_count, topic.live_bytes = state.tail_live, state.tail_live_bytes
            else:
                for frame, flags in zip(stored.tail, state.tail_flags, strict=True):
                    load_block(topic, Block.of(decode_block(frame.body)), flags, books.reader)
        except ValueError as error:
            raise unreadable(self.places, place, error) from error
        topic.staged_head, topic.staged_ts = topic.head, topic.last_ts
        topic.shard = books.shard_number(topic_id)
        return topic

    # Sleeping

    def entry(self, topic: Topic) -> TopicEntry | None:
        """What a directory says of a topic that may sleep as it is now; None where it may not. Lists rely on what
        may not (`glances`)."""
        config = topic.config
        if (
            topic.segments
            or not config.durability.logged
            or config.type is TopicType.QUEUE
            or config.ttl_ms
            or topic.origin is not None
            or topic.unlogged
            or topic.staged_head != topic.head
            or topic.tail_bytes > _ENTRY_BYTES_MAX
            or (topic.parts and not self._books.features.let_sleep(topic))
            or is_server_name(topic.name)
        ):
            return None
        written = topic.tail[0].written if topic.tail else 0
        return TopicEntry(topic.name, config.durability.value, topic.live_count, topic.live_bytes, written)

    def rest(self, topic_id: int) -> bool:
        """Lets go of a topic that its place has whole, if nobody would miss it."""
        books = self._books
        topic = books.topics.get(topic_id)
        if topic is None or topic_id not in self.places.by_id or topic in books.dirty[topic.shard]:
            return False
        idle = not (
            topic.capture_due or topic.closing or topic.evicting or topic.sync_inflight or topic.waiters
            or topic.when_gone or topic.staged_count
        )  # fmt: skip
        if not idle or self.entry(topic) is None or dict.get(books.by_name, topic.name) is not topic:
            return False
        if _holders(books.topics, topic_id) > _UNHELD:
            return False
        del books.topics[topic_id], books.by_name[topic.name]
        books.retention.tail_bytes -= topic.tail_bytes
        self.names[topic.name] = topic_id
        self._count(topic, 1)
        if topic.last_read_ts:
            self._read_at[topic_id] = topic.last_read_ts
        return True

    def settle(self, file: SnapshotFile, written: SnapshotWriter, captured: list[int]) -> Iterator[int]:
        """A snapshot was written: notes the places in it, and lets what was captured sleep, some of it a step."""
        places, number = self.places, file.number
        places.files[number] = file
        for at, end, oldest in written.directories:
            places.note(number, at, end, oldest)
        news = iter(written.places.items())
        while some := list(islice(news, _PLACES_A_STEP)):
            # One that is not there any more was deleted while its frames were written.
            places.by_id.update(
                [(i, place_of(number, *place)) for i, place in some if i in places.by_id or i in self._books.topics]
            )
            yield len(some)
        for first in range(0, len(captured), _RESTS_A_STEP):
            for topic_id in captured[first : first + _RESTS_A_STEP]:
                if topic_id not in written.places:
                    places.by_id.pop(topic_id, None)
                elif self.crowded:
                    self.rest(topic_id)
            yield first

    def forget(self, topic_id: int) -> None:
        """A topic, which is awake, is no more. A checkpoint on its way has it all the same: what the log says of it
        behind the turn is about a topic that the snapshot must have."""
        if self.held is not None:
            self.held.add(topic_id)
        else:
            self.places.by_id.pop(topic_id, None)

    def hold(self) -> None:
        """A checkpoint begins: every place stays what it is until `let_go`."""
        self.held = set()

    def let_go(self) -> None:
        forgotten, self.held = self.held, None
        for topic_id in forgotten or ():
            self.places.by_id.pop(topic_id, None)

    def sleeps(self, topic_id: int) -> bool:
        return (
            topic_id in self.places.by_id
            and topic_id not in self._books.topics
            and (self.held is None or topic_id not in self.held)
        )

    def overdue(self, oldest: int) -> Iterator[int]:
        """Sleeping topics with something in the tail that was written before a moment."""
        for stretch in self.places.stretches:
            if 0 < stretch.oldest < oldest:
                rest = [one for one in self.places.listed(stretch) if self.sleeps(one.topic_id)]
                yield from [one.topic_id for one in rest if 0 < one.written < oldest]
                stretch.oldest = min([one.written for one in rest if one.written >= oldest], default=0)

    def _count(self, topic: Topic, change: int) -> None:
        self.by_class[topic.config.durability] += change
        self.records += change * topic.live_count
        self.bytes += change * topic.live_bytes


# Copies topics that sleep from older snapshots into a new one; runs off the loop.
#
# The loop goes on meanwhile, and changes no place until the checkpoint is through (`Sleepers.hold`): whatever happens
# to a topic now happens behind the turn, and its frames are what it was then.


def copy_topics(
    places: SnapshotPlaces, writer: SnapshotWriter, captured: Collection[int], replaced: Collection[int]
) -> None:
    """Copies what has its place in a snapshot that is replaced, but for what was captured."""
    for stretch in list(places.stretches):
        if stretch.number not in replaced:
            continue
        for one in places.listed(stretch):
            if one.topic_id in captured:
                continue
            stored = places.stored(one.place)
            entry = TopicEntry(one.name, CLASSES[one.durability], one.live, one.live_bytes, one.written)
            tail = [(bytes(frame.body), b"") for frame in stored.tail]
            writer.add_topic(one.topic_id, bytes(stored.state.body), tail, entry)
