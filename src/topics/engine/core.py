"""What every part of the engine shares: the topics, the shards, the time, and the rules for touching them."""

from collections.abc import Callable, Iterator
from itertools import takewhile

from xxhash import xxh3_64_intdigest

from topics.config.settings import EngineSettings
from topics.core.errors import ShuttingDownError, TopicNotFoundError, TopicsError
from topics.core.limits import Limits
from topics.core.loss import LossReason
from topics.engine.apply import Applier
from topics.engine.features import CrossShardGate, Features
from topics.engine.names import SortedNames
from topics.engine.retention import Retention
from topics.engine.runs import RunReader, Segment
from topics.engine.scheduler import Scheduler
from topics.engine.topic import Topic
from topics.engine.totals import Totals
from topics.formats.control import encode_evict
from topics.formats.frame import Frame, FrameKind
from topics.storage.commit import CommitTiming, Shard, Submission
from topics.storage.layout import Layout
from topics.storage.segments import SegmentKey, SegmentStore
from topics.system.clock import Clock
from topics.system.dice import Dice


class EngineOptions(EngineSettings, frozen=True, kw_only=True):
    """The engine's settings, and what a server decides from others."""

    data_dir: str
    cold_dir: str | None = None
    wal_shards: int = 1
    track_removals: bool = False
    """Whether deletes out of sealed segments are told to an archive even when the segments are gone."""
    limits: Limits = Limits()


class Note(Submission):
    """A frame nobody waits for."""

    __slots__ = ("_then",)

    def __init__(self, pieces: list[bytes], needs_sync: bool = False, then: Callable[[], None] | None = None) -> None:
        super().__init__(pieces, needs_sync)
        self._then = then

    def committed(self, timing: CommitTiming) -> None:
        if self._then is not None:
            self._then()

    def failed(self, error: TopicsError) -> None:
        """The shard is poisoned and says so itself."""


class EngineCore:
    def __init__(self, options: EngineOptions, layout: Layout, store: SegmentStore, clock: Clock, dice: Dice) -> None:
        self.options = options
        self.limits = options.limits
        self.layout, self.store = layout, store
        self.dice, self._clock = dice, clock
        self._last_now = 0
        self.reader = RunReader(store)
        self.census = Totals()
        self.retention = Retention(self.reader, self._segment_dropped, self.census)
        self.applier = Applier(self.reader, self.retention)
        self.features = Features()
        self.crossings = CrossShardGate()
        self.added: list[Callable[[Topic], None]] = []
        """Who wants to know of every topic that comes to be."""
        self.gone: list[Callable[[Topic], None]] = []
        """Who wants to know of every topic that is no more."""
        self.chores: list[Callable[[], None]] = []
        """What features want done about once a second (`engine.housekeeping`)."""
        self.shards: list[Shard] = []
        self.topics: dict[int, Topic] = {}
        """Every topic that exists, by id."""
        self.by_name: dict[str, Topic] = {}
        """Every topic by name, also one whose creation is still on its way to the disk."""
        self.names = SortedNames()
        """The names of the topics that exist."""
        self.next_topic_id = 1
        self.total_bytes = 0
        self.staged_bytes = 0
        """Payload on its way to the log, over all topics: it counts against the quota before it is published."""
        self.dirty: list[set[Topic]] = []
        """For each shard, the topics that changed since the last checkpoint took them."""
        self.dropped: list[list[int]] = []
        """For each shard, the ids of topics deleted since the last checkpoint."""
        self.trash: list[SegmentKey] = []
        """Segments without anything live; their files go once a snapshot no longer names them."""
        self.capture: Callable[[Topic], None] = lambda topic: None
        """Takes a topic's state for a running checkpoint (`engine.checkpoint`)."""
        self.defer: Callable[[Callable[[], None]], object] = lambda function: function()
        """Runs a function later in this tick of the loop."""
        # `defer` is looked up when it is called: a started engine has another.
        self.scheduler = Scheduler(self.now, clock.monotonic, lambda function: self.defer(function))  # noqa: PLW0108
        self.turned: Callable[[int], None] = lambda shard: None
        """Told when a checkpoint turned a shard: what its topics have so far is behind them in the log."""
        self.dropped_with: Callable[[Topic], list[str]] = lambda topic: []
        """Removes the routers that go with a deleted topic; their names, sorted (`engine.routing`)."""
        self.walk_log: Callable[[Callable[[Frame], None]], None] = lambda visit: None
        """In a recovery: hands every frame of the log behind the snapshots, all shards, to a function."""
        self.lose: Callable[[Topic, int, int], None] = self._lose_to_a_crash
        """In a recovery: tells seqs, first and last, whose records cannot be made again."""
        self.closed = False

    # Time

    def now(self) -> int:
        """Wall clock in milliseconds that never runs back, not even across a restart."""
        now = self._clock.now_ms()
        if now > self._last_now:
            self._last_now = now
        return self._last_now

    def set_floor_of_time(self, now_ms: int) -> None:
        self._last_now = max(self._last_now, now_ms)

    # Topics

    def existing(self, name: str) -> Topic:
        """The topic of that name as readers see it."""
        topic = self.by_name.get(name)
        if topic is None or not topic.created or (topic.guard is not None and topic.guard.hides(topic)):
            raise TopicNotFoundError(name)
        return topic

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
        self.census.came(topic)
        for told in self.added:
            told(topic)

    def remove_topic(self, topic: Topic) -> None:
        del self.topics[topic.id]
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]
        self.names.discard(topic.name)
        self.total_bytes -= topic.live_bytes
        self.retention.tail_bytes -= topic.tail_bytes
        self.census.went(topic)
        self.dirty[topic.shard].discard(topic)
        self.dropped[topic.shard].append(topic.id)
        if topic.guard is not None:
            topic.guard.removed(topic)
        for told in self.gone:
            told(topic)

    def count_all(self) -> None:
        """Counts everything that is kept count of anew: recovery has put the topics together."""
        topics = self.topics.values()
        self.census.begin(topics)
        self.total_bytes = sum([topic.live_bytes for topic in topics])
        self.retention.tail_bytes = sum([topic.tail_bytes for topic in topics])

    # Changes

    def before_change(self, topic: Topic) -> None:
        """Every change of a topic's state comes through here first."""
        if topic.capture_due:
            self.capture(topic)
        self.dirty[topic.shard].add(topic)

    def expire(self, topic: Topic) -> None:
        """Lets time do its work before anyone looks. Readers never wait for the log here, and never fail.

        The frame is sent on its way and not waited for: it only keeps expired records from coming back should the
        clock be set back, and evicting commutes with everything else a topic does.
        """
        if not topic.config.ttl_ms or not topic.live_count:
            return
        if self.topics.get(topic.id) is not topic:
            # Somebody still holds a topic that was deleted: its records count for nothing any more.
            return
        before, floor = topic.live_bytes, topic.evict_floor
        # An ephemeral topic may hold records of a time when it was none, and those would come back.
        logged = topic.config.durability.logged or bool(topic.segments)
        if topic.capture_due:
            self.capture(topic)
        if not self.retention.expire(topic, self.now()):
            return
        self.before_change(topic)
        self.total_bytes += topic.live_bytes - before
        if logged and topic.evict_floor > floor:
            self.log_eviction(topic, expired=True)

    def log_eviction(self, topic: Topic, expired: bool) -> None:
        """Sends a topic's floor on its way to the log, where replay would not find it by itself."""
        shard = self.shards[topic.shard]
        # A topic on its way out logs nothing more: its last frame is the one that drops it. Nor does an engine that was
        # closed: the folder may be another's by now.
        if not topic.closing and not self.closed and shard.writer.poison is None:
            body = encode_evict(topic.evict_floor, expired)
            shard.submit(Note(shard.frame(FrameKind.EVICT, topic.id, body)))

    def wake(self, topic: Topic) -> None:
        """Remembers to tell whoever waits on a topic, once however many changes there are until its turn comes."""
        if topic.waiters:
            self.scheduler.add(topic)

    def _lose_to_a_crash(self, topic: Topic, first: int, last: int) -> None:
        self.applier.gap(topic, first, last, LossReason.CRASH)

    def _segment_dropped(self, topic: Topic, segment: Segment) -> None:
        self.trash.append(SegmentKey(topic.id, segment.first_seq, segment.cold))
