"""What every part of the engine shares: the topics, the shards, the time, and the rules for touching them."""

from collections.abc import Iterator
from itertools import takewhile
from sys import maxsize

from xxhash import xxh3_64_intdigest

from topics.config.settings import EngineSettings
from topics.core.backup_errors import BackupTargetError
from topics.core.errors import ReadOnlyError, ShuttingDownError, TopicNotFoundError
from topics.core.limits import Limits
from topics.core.names import SERVER_TOPICS, SYSTEM_STREAMS
from topics.engine.background import Deferral
from topics.engine.engine_time import EngineTime
from topics.engine.features import CrossShardGate, Features
from topics.engine.listeners import Listeners
from topics.engine.pressure.scheduler import Scheduler
from topics.engine.sleeping.sleepers import Sleepers, TopicsByName
from topics.engine.state.apply import Applier
from topics.engine.state.names import SortedNames
from topics.engine.state.retention import Retention
from topics.engine.state.runs import RunReader, Segment
from topics.engine.state.totals import Totals
from topics.engine.topic import Topic
from topics.engine.transaction import WritePath
from topics.engine.write.quotas import Quotas
from topics.formats.block import BASE_MAX
from topics.formats.control import encode_evict
from topics.formats.frame import FrameKind
from topics.storage.commit import Shard
from topics.storage.layout import Layout
from topics.storage.room import DiskRoom
from topics.storage.segments import SegmentKey, SegmentStore
from topics.system.clock import Clock
from topics.system.dice import Dice


class EngineOptions(EngineSettings, frozen=True, kw_only=True):
    """The engine's settings, and what a server decides from others."""

    data_dir: str
    cold_dir: str | None = None
    backup_dir: str | None = None
    restoring: bool = False
    """Whether it is a restore that opens the folder it is filling."""
    wal_shards: int = 1
    track_removals: bool = False
    """Whether deletes out of sealed segments are told to an archive even when the segments are gone."""
    full_disk_reserve_bytes: int = 0
    """Room that is kept back, so that there is some for deletes when the disk is full."""
    limits: Limits = Limits()


class EngineCore(Listeners):
    def __init__(
        self,
        options: EngineOptions,
        layout: Layout,
        store: SegmentStore,
        clock: Clock,
        dice: Dice,
        room: DiskRoom,
        defer: Deferral,
    ) -> None:
        super().__init__()
        self.options, self.limits = options, options.limits
        self.layout, self.store, self.room = layout, store, room
        self.dice = dice
        self.time = EngineTime(clock)
        self.wall, self.steady = self.time.wall, self.time.steady
        self.reader, self.totals = RunReader(store), Totals()
        self.retention = Retention(self.reader, self._segment_dropped, self.totals)
        self.reserve = options.disk_reserve_seqs
        self.applier = Applier(self.reader, self.retention, self.reserve)
        self.path, self.quotas = WritePath(self), Quotas(self, options.limits)
        """The one way into the log."""
        self.features, self.cross_shard_gate = Features(), CrossShardGate()
        self.shards: list[Shard] = []
        self.topics: dict[int, Topic] = {}
        """Every topic that exists and is awake, by id."""
        # A restore looks at every topic once, before anybody else does.
        self.sleepers = Sleepers(self, maxsize if options.restoring else options.awake_topics)
        """Those that are left in their snapshot until somebody asks for them."""
        self.by_name = TopicsByName(self.sleepers)
        """Every topic by name, also one whose creation is still on its way to the disk."""
        self.names = SortedNames()
        """The names of the topics that exist."""
        self.next_topic_id = 1
        self.drafting: set[str] = set()
        """Topics for which a long batch is being prepared, by name."""
        # What is on its way to the log counts against the quota before it is published.
        self.total_bytes = self.staged_bytes = 0
        self.metered = bool(options.limits.max_total_bytes)
        """Whether bytes are counted against anything but the caps of their topic."""
        # For each shard: the topics that changed, and the ids of those deleted, since the last checkpoint took them.
        self.dirty: list[set[Topic]]
        self.dropped: list[list[int]]
        self.dirty, self.dropped = [], []
        self.trash: list[SegmentKey] = []
        """Segments without anything live; their files go once a snapshot no longer names them."""
        self.defer = defer
        """Runs a function later in this tick of the loop."""
        self.scheduler = Scheduler(self.steady, clock.monotonic, defer)
        # Quiet while no seqs are given out, not yet or not any more: a snapshot says so (`engine.last_run`).
        self.closed, self.quiet = False, True

    # Topics

    def existing(self, name: str) -> Topic:
        """The topic of that name as readers see it."""
        topic = self.by_name.get(name)
        if topic is None or not topic.created or (topic.guard is not None and topic.guard.hides(topic)):
            raise TopicNotFoundError(name)
        return topic

    def readable(self, name: str) -> Topic:
        """The topic of that name for those who read streams as well: also one whose name topics cannot have."""
        topic = self.by_name.get(name)
        if topic is None or not topic.created or (topic.guard is not None and topic.guard.over(topic)):
            raise TopicNotFoundError(name)
        return topic

    @property
    def topic_count(self) -> int:
        """How many topics there are besides the server's own."""
        return len(self.topics) + len(self.sleepers) - sum([name in self.names for name in SERVER_TOPICS])

    @property
    def name_count(self) -> int:
        """The same with those that are on their way."""
        return len(self.by_name) + len(self.sleepers) - sum([name in self.by_name for name in SERVER_TOPICS])

    @property
    def coming_count(self) -> int:
        """How many topics are on their way."""
        return len(self.by_name) + len(self.sleepers) - len(self.names)

    def glance(self, name: str) -> Topic | None:
        """The topic of that name for one who only looks at what it says of itself: one that sleeps goes on to."""
        return self.sleepers.look(name) if name in self.by_name else None

    def glance_at(self, topic_id: int) -> Topic | None:
        """The same by its number."""
        topic = self.topics.get(topic_id)
        return self.sleepers.look_at(topic_id) if topic is None and self.sleepers.sleeps(topic_id) else topic

    def topic_at(self, topic_id: int) -> Topic | None:
        """The topic of that number, awake; None where there is none."""
        topic = self.topics.get(topic_id)
        if topic is None and self.sleepers.sleeps(topic_id):
            return self.sleepers.wake(topic_id)
        return topic

    @property
    def used_bytes(self) -> int:
        """What counts against the quota: everything live and everything on its way, but for the streams that nobody
        asked for. Those have caps of their own."""
        own = [topic.live_bytes for name in SYSTEM_STREAMS if (topic := self.by_name.get(name)) is not None]
        return self.total_bytes + self.staged_bytes - sum(own)

    def next_numbers(self, name: str, ts: int | None = None) -> tuple[int, int]:
        """The seq and the ts that a batch for a topic would get now, for whoever prepares one with that ts."""
        topic = self.by_name.get(name)
        ts = self.wall() if ts is None else ts
        return (1, ts) if topic is None else (topic.staged_head + 1, max(ts, topic.staged_ts))

    def next_base(self, name: str) -> int:
        """Where the text of such a batch would begin in the topic's coordinate."""
        topic = self.by_name.get(name)
        return topic.next_base if topic is not None and topic.next_base < BASE_MAX else 0

    def check_accepting(self) -> None:
        if self.closed:
            raise ShuttingDownError()

    def shard_number(self, topic_id: int) -> int:
        return xxh3_64_intdigest(topic_id.to_bytes(8, "little")) % len(self.shards)

    def names_from(self, prefix: str, after: str) -> Iterator[str]:
        """The sorted names with a prefix, those behind `after`."""
        found = self.names.behind(after) if after >= prefix else self.names.from_(prefix)
        return takewhile(lambda name: name.startswith(prefix), found) if prefix else found

    def add_topic(self, topic: Topic) -> None:
        """Makes a topic exist."""
        topic.created = True
        self.topics[topic.id] = topic
        self.by_name[topic.name] = topic
        self.names.add(topic.name)
        self.totals.came(topic)
        for told in self.added:
            told(topic)

    def rename(self, topic: Topic, name: str) -> None:
        """Gives a topic another name, before anybody uses it; the next checkpoint has it."""
        if name == topic.name:
            return
        if name in self.by_name:
            raise BackupTargetError(f"two topics would have the name {name}")
        del self.by_name[topic.name]
        self.names.discard(topic.name)
        topic.name = name
        self.by_name[name] = topic
        self.names.add(name)

    def remove_routers(self, topic: Topic) -> list[str]:
        """Removes the routers that had a topic, which is no more for others, as source or destination; their names."""
        return [name for detach in self.detach for name in detach(topic)]

    def remove_topic(self, topic: Topic) -> None:
        # For good: whoever still holds it sees by its rules that it is not to be taken for granted.
        topic.closing = True
        del self.topics[topic.id]
        self.sleepers.forget(topic.id)
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]
        self.names.discard(topic.name)
        self.total_bytes -= topic.live_bytes
        self.retention.tail_bytes -= topic.tail_bytes
        self.totals.went(topic)
        self.dirty[topic.shard].discard(topic)
        self.dropped[topic.shard].append(topic.id)
        if topic.guard is not None:
            topic.guard.removed(topic)
        for told in self.gone:
            told(topic)

    def count_all(self) -> None:
        """Counts everything that is kept count of anew: recovery has put the topics together."""
        topics, sleepers = self.topics.values(), self.sleepers
        self.totals.begin(topics)
        self.totals.add(sleepers.by_class, sleepers.records)
        self.total_bytes = sum([topic.live_bytes for topic in topics]) + sleepers.bytes
        self.retention.tail_bytes = sum([topic.tail_bytes for topic in topics])

    # Changes

    def begin(self) -> None:
        """Comes before the first seq that is given out, where a start has not noted the run already."""
        try:
            self.note_run()
        except OSError as error:
            raise ReadOnlyError(0, str(error)) from error

    def note_run(self) -> None:
        """Notes that seqs are about to be given out; raises OSError where that is not possible."""
        for noted in self.begins:
            noted()
        self.quiet = False

    def before_change(self, topic: Topic) -> None:
        """Every change of a topic's state comes through here first."""
        if topic.capture_due:
            self._capture(topic)
        self.dirty[topic.shard].add(topic)

    def _capture(self, topic: Topic) -> None:
        for capture in self.captures:
            capture(topic)

    def consumed(self, topic: Topic) -> None:
        """Somebody takes records of the topic, or has come to follow it or to work on it: that raises its priority."""
        topic.last_read_ts = topic.last_consumed_ts = now = self.wall()
        if self.topics.get(topic.id) is not topic and topic.name in self.sleepers.names:
            self.sleepers.consumed(topic, now)

    def expire(self, topic: Topic) -> None:
        """Lets time do its work before anyone looks. Readers never wait for the log here, and never fail.

        The frame is sent on its way and not waited for: it keeps expired records from coming back should the clock be
        set back, and from being taken for deleted ones.
        """
        if not topic.config.ttl_ms or not topic.live_count:
            return
        if self.topics.get(topic.id) is not topic:
            # Somebody still holds a topic that was deleted: its records count for nothing any more.
            return
        before, floor = topic.live_bytes, topic.evict_floor
        logged = self.path.logs_removals(topic)
        if topic.capture_due:
            self._capture(topic)
        if not self.retention.expire(topic, self.wall()):
            return
        self.before_change(topic)
        self.total_bytes += topic.live_bytes - before
        if logged and topic.evict_floor > floor:
            self.path.note(topic, FrameKind.EVICT, encode_evict(topic.evict_floor, expired=True))

    def wake(self, topic: Topic) -> None:
        """Remembers to tell whoever waits on a topic, once however many changes there are until its turn comes."""
        if topic.waiters:
            self.scheduler.add(topic)

    def _segment_dropped(self, topic: Topic, segment: Segment) -> None:
        self.trash.append(SegmentKey(topic.id, segment.first_seq, segment.cold))
