"""Engine core: the state that all parts of the engine share (topics, shards, clocks), and the rules for changing it."""

from collections.abc import Callable, Iterator
from itertools import takewhile
from sys import maxsize

from xxhash import xxh3_64_intdigest

from topics.engine.apply import Applier
from topics.engine.background_jobs import Deferral
from topics.engine.features import CrossShardGate, Features
from topics.engine.quotas import KeptMemory, Quotas, SortedNames, Totals
from topics.engine.retention import Retention
from topics.engine.scheduler import Scheduler
from topics.engine.topic import RunReader, Segment, Topic
from topics.engine.topic_paging import TopicDirectory, TopicPager
from topics.engine.write_path import WritePath
from topics.log.frame import BASE_MAX, FrameKind, encode_evict
from topics.log.group_commit import Shard
from topics.log.layout import Layout
from topics.log.segment_files import SegmentKey, SegmentStore
from topics.log.wal import DiskRoom
from topics.model.errors import BackupTargetError, ReadOnlyError, ShuttingDownError, TopicNotFoundError
from topics.model.limits import Limits
from topics.model.settings import EngineSettings
from topics.model.topic_config import SERVER_TOPICS, SYSTEM_STREAMS
from topics.model.topic_epochs import TopicEpochs
from topics.queues.queue_frames import Ending, JobOrder
from topics.system.clock import Clock
from topics.system.entropy import Entropy
from topics.system.events import Event
from topics.system.fair_scheduler import FairScheduler


class EngineEvents:
    """The events of the engine, to which features and housekeeping subscribe."""

    def __init__(self) -> None:
        self.topic_added: Event[Topic] = Event()
        """A topic was created, and its creation is as durable as its class requires."""
        self.topic_removed: Event[Topic] = Event()
        """A topic was deleted."""
        self.jobs_ordered: Event[Topic, int, int, JobOrder] = Event()
        """Jobs, first and last seq, are about to be published that are delayed or have a priority (`queues`)."""
        self.second_passed: Event[[]] = Event()
        """About once a second, for the periodic work of features (`engine.housekeeping`)."""
        self.capture_due: Event[Topic] = Event()
        """A topic is about to change that a running checkpoint has not saved yet (`engine.checkpoint`)."""
        self.shard_rotated: Event[int] = Event()
        """A checkpoint rotated the log of a shard: the state of its topics so far is behind them in the log."""
        self.run_begins: Event[[]] = Event()
        """Seqs are about to be assigned. A listener raises OSError if that cannot be recorded."""


# The engine's two clocks, and conversions between them.
#
# | | from | for |
# |---|---|---|
# | `wall` | the machine's clock, which may be set forward and back | timestamps, ages, windows, reported times |
# | `steady` | the monotonic clock, counted on from the wall time of the start | leases, delays, alarms, intervals |
#
# A duration ends when that much time has passed, regardless of changes of the wall clock. Its end is reported in
# answers and in the log as wall time (`wall_time`). A logged end is resumed after a restart by `resumed`: the wall
# clock measures the downtime, but no duration becomes longer than it was.

_JITTER_MS = 5
"""The maximum difference of the two clocks by rounding and by consecutive reads."""


class EngineTime:
    def __init__(self, clock: Clock) -> None:
        self.wall = clock.now_ms
        """Milliseconds since 1970. May jump, also backwards."""
        self._monotonic = clock.monotonic
        self._origin = clock.now_ms() - self._passed()
        self._moment = 0
        self._ahead = 0

    def _passed(self) -> int:
        return round(self._monotonic() * 1000)

    def steady(self) -> int:
        """Milliseconds that never jump and never run back; equal to the wall clock at the start of the process."""
        return self._origin + self._passed()

    def moment(self) -> int:
        """The wall time for the log: it stops while the clock is set back. So of two frames in any shards, the
        dependent one never has the lower time, and the log of one run can be cut at a point in time.
        """
        now = self.wall()
        if now > self._moment:
            self._moment = now
        return self._moment

    def end_moment(self) -> int:
        """A time after everything logged so far; later frames have a later one, even if the clock is set back."""
        ended = self.moment()
        self._moment = ended + 1
        return ended

    def wall_time(self, moment: int) -> int:
        """Converts a steady time to wall time; the result does not change while the wall clock runs evenly."""
        ahead = self.wall() - self.steady()
        if abs(ahead - self._ahead) > _JITTER_MS:
            self._ahead = ahead
        return moment + self._ahead

    def ending(self, moment: int) -> Ending:
        """Returns a steady time in the form of the log."""
        return Ending(self.wall_time(moment), max(moment - self.steady(), 0))

    def resumed(self, ending: Ending) -> int:
        """The steady time of an end that another process reported; an end that has passed stays in the past."""
        left = ending.time - self.wall()
        return self.steady() + (left if ending.lasts_ms is None else min(left, ending.lasts_ms))


class EngineOptions(EngineSettings, frozen=True, kw_only=True):
    """The engine's settings, and values that a server derives from others."""

    data_dir: str
    cold_dir: str | None = None
    backup_dir: str | None = None
    restoring: bool = False
    """Whether a restore opens the folder that it fills."""
    following: bool = False
    """Whether the state is only what a standby replays of its primary's log (`engine.following`)."""
    wal_shards: int = 1
    track_removals: bool = False
    """Whether deletes from sealed segments are reported to an archive even after the segments are removed."""
    full_disk_reserve_bytes: int = 0
    """Reserved disk space, used for deletes when the disk is full."""
    limits: Limits = Limits()


class EngineCore(EngineEvents):
    def __init__(
        self,
        options: EngineOptions,
        layout: Layout,
        store: SegmentStore,
        clock: Clock,
        entropy: Entropy,
        room: DiskRoom,
        defer: Deferral,
    ) -> None:
        super().__init__()
        self.options, self.limits = options, options.limits
        self.layout, self.store, self.room = layout, store, room
        self.entropy = entropy
        self.time = EngineTime(clock)
        self.wall, self.steady = self.time.wall, self.time.steady
        self.reader, self.totals = RunReader(store), Totals()
        self.retention = Retention(self.reader, self._segment_dropped, self.totals)
        self.reserve = options.disk_reserve_seqs
        self.applier = Applier(self.reader, self.retention, self.reserve)
        self.path, self.quotas = WritePath(self), Quotas(self, options.limits)
        """The only way into the log."""
        self.memory = KeptMemory(options.limits)
        """Memory that topics keep, and its budgets."""
        self.applier.kept.subscribe(self.memory.note)
        self.features, self.cross_shard_gate = Features(), CrossShardGate()
        self.shards: list[Shard] = []
        self.topics: dict[int, Topic] = {}
        """Every resident topic, by id."""
        # A restore reads every topic once, before it serves requests, so it pages none out.
        self.pager = TopicPager(self, maxsize if options.restoring else options.awake_topics)
        """The topics that are left in their snapshot until they are used."""
        self.directory = TopicDirectory(self.pager)
        self.names = SortedNames()
        """The names of the topics that exist."""
        self.next_topic_id = 1
        self.epochs = TopicEpochs()
        self.preencoding: set[str] = set()
        """Topics for which a long batch is being prepared, by name."""
        # Staged bytes count against the quota before they are published.
        self.total_bytes = self.staged_bytes = 0
        self.metered = bool(options.limits.max_total_bytes)
        """Whether bytes are counted against other limits than the caps of their topic."""
        # For each shard: the topics that changed, and the ids of those deleted, since the last checkpoint took them.
        self.dirty: list[set[Topic]]
        self.dropped: list[list[int]]
        self.dirty, self.dropped = [], []
        self.trash: list[SegmentKey] = []
        """Segments without live records; their files are removed when no snapshot names them."""
        self.defer = defer
        """Runs a function later in this tick of the loop."""
        self.scheduler = Scheduler(self.steady, clock.monotonic, defer)
        self.fair_scheduler = FairScheduler(clock.monotonic, defer)
        """Long work on the loop, in units (`system.fair_scheduler`)."""
        self.detach_routers: Callable[[Topic], list[str]] = lambda topic: []
        """Removes the routers of a deleted topic and returns their names, sorted; `routers` sets it."""
        # Quiet while no seqs are assigned, before or after serving: a snapshot records this (`engine.recovery`).
        self.closed, self.quiet = False, True
        self.held_sources: set[Topic] = set()
        """Topics that reject appends until their routers have made most pending copies (`routers.pump`)."""

    # Topics

    def existing(self, name: str) -> Topic:
        """Returns the published topic of that name."""
        topic = self.directory.find(name)
        if topic is None or not topic.created or (topic.guard is not None and topic.guard.hides(topic)):
            raise TopicNotFoundError(name)
        return topic

    def readable(self, name: str) -> Topic:
        """The topic of that name for clients that also read streams, including names reserved for streams."""
        topic = self.directory.find(name)
        if topic is None or not topic.created or (topic.guard is not None and topic.guard.over(topic)):
            raise TopicNotFoundError(name)
        return topic

    @property
    def topic_count(self) -> int:
        """The number of topics without system topics."""
        return len(self.topics) + len(self.pager) - sum([name in self.names for name in SERVER_TOPICS])

    @property
    def name_count(self) -> int:
        """The number of topics, including creations in flight."""
        return len(self.directory) - sum([name in self.directory for name in SERVER_TOPICS])

    @property
    def coming_count(self) -> int:
        """The number of topics being created."""
        return len(self.directory) - len(self.names)

    def peek(self, name: str) -> Topic | None:
        """Returns the topic of that name for reading its properties. A paged-out topic stays paged out."""
        return self.pager.peek(name) if name in self.directory else None

    def peek_at(self, topic_id: int) -> Topic | None:
        """Returns the topic of that id for reading its properties. A paged-out topic stays paged out."""
        topic = self.topics.get(topic_id)
        return self.pager.peek_at(topic_id) if topic is None and self.pager.is_paged_out(topic_id) else topic

    def topic_at(self, topic_id: int) -> Topic | None:
        """The topic of that id, paged in if necessary; None if there is none."""
        topic = self.topics.get(topic_id)
        if topic is None and self.pager.is_paged_out(topic_id):
            return self.pager.page_in(topic_id)
        return topic

    def exists(self, topic: Topic) -> bool:
        """Returns whether a held topic still exists; it is resident afterwards."""
        if topic.paged_out_by is not None:
            topic.paged_out_by.restore(topic)
        return self.topics.get(topic.id) is topic

    @property
    def used_bytes(self) -> int:
        """Bytes counted against the quota: live records and records in flight, without system streams, which have their
        own caps."""
        own = [topic.live_bytes for name in SYSTEM_STREAMS if (topic := self.directory.find(name)) is not None]
        return self.total_bytes + self.staged_bytes - sum(own)

    def next_numbers(self, name: str, ts: int | None = None) -> tuple[int, int]:
        """The seq and the ts that a batch for a topic would get now, for a caller that prepares one with that ts."""
        topic = self.directory.find(name)
        ts = self.wall() if ts is None else ts
        return (1, ts) if topic is None else (topic.staged_head + 1, max(ts, topic.staged_ts))

    def next_base(self, name: str) -> int:
        """Where the text of such a batch would begin in the topic's coordinate."""
        topic = self.directory.find(name)
        return topic.next_base if topic is not None and topic.next_base < BASE_MAX else 0

    def check_accepting(self) -> None:
        """Raises unless changes are accepted."""
        if self.closed:
            raise ShuttingDownError()
        if self.path.lease is not None:
            self.path.lease.check()

    def shard_number(self, topic_id: int) -> int:
        return xxh3_64_intdigest(topic_id.to_bytes(8, "little")) % len(self.shards)

    def names_from(self, prefix: str, after: str) -> Iterator[str]:
        """The sorted names with a prefix, beginning after `after`."""
        found = self.names.behind(after) if after >= prefix else self.names.from_(prefix)
        return takewhile(lambda name: name.startswith(prefix), found) if prefix else found

    def add_topic(self, topic: Topic) -> None:
        """Registers a created topic."""
        topic.created = True
        self.topics[topic.id] = topic
        self.directory.add(topic)
        self.names.add(topic.name)
        self.totals.topic_added(topic)
        self.topic_added.emit(topic)

    def rename(self, topic: Topic, name: str) -> None:
        """Renames a topic before its first use; the next checkpoint contains it."""
        if name == topic.name:
            return
        if name in self.directory:
            raise BackupTargetError(f"two topics would have the name {name}")
        self.directory.discard(topic)
        self.names.discard(topic.name)
        topic.name = name
        self.directory.add(topic)
        self.names.add(name)

    def remove_routers(self, topic: Topic) -> list[str]:
        """Removes the routers that had a topic, which no longer exists for others, as source or destination; their
        names."""
        return self.detach_routers(topic)

    def remove_topic(self, topic: Topic) -> None:
        # Permanently: a caller that still references it detects this by its rules.
        topic.closing = True
        self.epochs.note_deleted(topic.name, topic.epoch)
        del self.topics[topic.id]
        self.pager.forget(topic.id)
        self.directory.discard(topic)
        self.names.discard(topic.name)
        self.total_bytes -= topic.live_bytes
        self.retention.tail_bytes -= topic.tail_bytes
        self.totals.topic_removed(topic)
        self.memory.forget(topic)
        self.dirty[topic.shard].discard(topic)
        self.dropped[topic.shard].append(topic.id)
        if topic.guard is not None:
            topic.guard.removed(topic)
        self.topic_removed.emit(topic)

    def count_all(self) -> None:
        """Recomputes all counters after recovery."""
        topics, pager = self.topics.values(), self.pager
        self.totals.begin(topics)
        self.totals.add(pager.by_class, pager.records)
        self.total_bytes = sum([topic.live_bytes for topic in topics]) + pager.bytes
        self.retention.tail_bytes = sum([topic.tail_bytes for topic in topics])
        for topic in topics:
            self.memory.note(topic)

    # Changes

    def begin(self) -> None:
        """Called before the first seq is assigned, if the start has not recorded the run already."""
        try:
            self.note_run()
        except OSError as error:
            raise ReadOnlyError(0, str(error)) from error

    def note_run(self) -> None:
        """Records that seqs are about to be assigned. Raises OSError if that is not possible."""
        self.run_begins.emit()
        self.quiet = False

    def before_change(self, topic: Topic) -> None:
        """Called before every change of a topic's state."""
        if topic.paged_out_by is not None:
            topic.paged_out_by.restore(topic)
        if topic.capture_due:
            self.capture_due.emit(topic)
        self.dirty[topic.shard].add(topic)

    def consumed(self, topic: Topic) -> None:
        """Notes a read, a watch or a claim of the topic, which raises its priority."""
        topic.last_read_ts = topic.last_consumed_ts = now = self.wall()
        if self.topics.get(topic.id) is not topic and topic.name in self.pager.names:
            self.pager.note_read(topic, now)

    def expire(self, topic: Topic) -> None:
        """Removes expired records before a read. Readers never wait for the log here, and never fail.

        A standby leaves that to its primary. The frame is logged without waiting: it keeps expired records from
        reappearing if the clock is set back, and from counting as deleted.
        """
        if not topic.config.ttl_ms or not topic.live_count or self.path.follows:
            return
        if self.topics.get(topic.id) is not topic:
            # A deleted topic may still be held: its records no longer count.
            return
        before, floor = topic.live_bytes, topic.evict_floor
        logged = self.path.logs_removals(topic)
        if topic.capture_due:
            self.capture_due.emit(topic)
        if not self.retention.expire(topic, self.wall()):
            return
        self.before_change(topic)
        self.memory.note(topic)
        self.total_bytes += topic.live_bytes - before
        if logged and topic.evict_floor > floor:
            self.path.note(topic, FrameKind.EVICT, encode_evict(topic.evict_floor, expired=True))

    def wake(self, topic: Topic) -> None:
        """Schedules one notification of the waiters of a topic, however many changes there are until its turn."""
        if topic.waiters:
            self.scheduler.add(topic)

    def _segment_dropped(self, topic: Topic, segment: Segment) -> None:
        self.trash.append(SegmentKey(topic.id, segment.first_seq, segment.cold))
