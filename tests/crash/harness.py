"""Drives an engine on a fake disk and records its promises.

A `World` does operations on an engine that works on the caller's stack, and writes each of them into the `Timeline` of
its topic before it is handed over. An answer makes an operation acknowledged; an answer that only a sync may precede
makes it, and everything before it in the timeline, durable. After any stop of the engine, the timelines determine the
state that must be found (`tests.crash.promises`).

A refused operation, one that raises instead of being answered, leaves the timeline: it was never handed to the log. An
operation that is answered with an error stays, unacknowledged: its frames may or may not be in the log.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tests.crash.model import Kept, Model, Payload
from tests.property.totals import check_totals
from topics.consumers.consumer_state import consumers_of
from topics.consumers.consumers import ConsumerCommitted, ConsumerDeleted, ConsumerPut
from topics.engine.conditional_append import fence_of, newest_fence
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.engine.results import AppendResult, DeleteResult, DropResult, PutResult
from topics.engine.topic import Topic
from topics.log.fs import FileSystem
from topics.log.group_commit import InlineCommitter
from topics.log.layout import is_object_store
from topics.log.object_store.local_cache import LocalCopies
from topics.log.object_store.tiered_fs import tiered
from topics.model.errors import DiskFullError, SystemBusyError, TopicsError
from topics.model.records import Batch, Record
from topics.model.router_rules import DeleteSelector, TagMatch
from topics.model.topic_config import Durability, TopicConfig, TopicConfigPatch, resolve_config
from topics.testing import FaultyFileSystem, FolderStore, ManualClock, SeededEntropy

SMALL = EngineOptions(
    data_dir="data",
    cold_dir="cold",
    wal_shards=1,
    wal_file_bytes=2048,
    segment_max_events=6,
    hot_retain_segments=1,
    disk_reserve_seqs=4,
)
"""Everything so small that a handful of operations turns log files, fills segments and crosses ceilings."""

PASSING = (DiskFullError, SystemBusyError)

Answer = (
    AppendResult
    | DeleteResult
    | PutResult
    | DropResult
    | ConsumerPut
    | ConsumerCommitted
    | ConsumerDeleted
    | str
    | TopicsError
)


@dataclass(eq=False)
class Operation:
    """An operation on a topic, and its outcome."""

    name: str
    ts: int
    answer: Answer | None = None
    durable: bool = False
    """Whether it was acknowledged under a promise that outlives a power cut."""
    epoch: int = 0
    """Of the topic that acknowledged it."""

    @property
    def acked(self) -> bool:
        return self.answer is not None and not isinstance(self.answer, TopicsError)

    def apply(self, model: Model | None) -> Model | None:
        """The topic after this operation; None stands for a topic that does not exist."""
        raise NotImplementedError

    def _existing(self, model: Model | None) -> Model:
        assert model is not None, f"{self} on a topic that does not exist"
        return model.copy()


@dataclass(eq=False)
class Create(Operation):
    """Also the first half of an append that creates its topic: the two are two frames, so a crash may part them."""

    patch: TopicConfigPatch = field(default_factory=TopicConfigPatch)

    def apply(self, model: Model | None) -> Model | None:
        # There may be a model already: of a creation that failed, and of which the log may know all the same.
        created = Model(TopicConfig())
        created.configure(self.patch, self.name)
        return created


@dataclass(eq=False)
class Append(Operation):
    records: list[Payload] = field(default_factory=list)
    key: str | None = None
    fence: str | None = None
    """The token that is set with the records."""

    def apply(self, model: Model | None) -> Model | None:
        model = self._existing(model)
        model.append(self.records, self.key, self.ts)
        model.fence = model.fence if self.fence is None else self.fence
        return model


@dataclass(eq=False)
class Delete(Operation):
    below: int = 0
    tag: str | None = None

    def apply(self, model: Model | None) -> Model | None:
        model = self._existing(model)
        model.expire(self.ts)
        model.delete(self.below, self.tag)
        return model


@dataclass(eq=False)
class Configure(Operation):
    patch: TopicConfigPatch = field(default_factory=TopicConfigPatch)

    def apply(self, model: Model | None) -> Model | None:
        model = self._existing(model)
        model.expire(self.ts)
        model.configure(self.patch, self.name)
        return model


@dataclass(eq=False)
class Drop(Operation):
    def apply(self, model: Model | None) -> Model | None:
        return None


@dataclass(eq=False)
class SetConsumer(Operation):
    """A consumer is created or deleted: a control change, synced whatever the class."""

    consumer: str = ""
    seq: int | None = None

    def apply(self, model: Model | None) -> Model | None:
        model = self._existing(model)
        model.commit(self.consumer, self.seq)
        return model


@dataclass(eq=False)
class Commit(SetConsumer):
    """A commit of a consumer, as durable as the topic's class."""


@dataclass(eq=False)
class SetFence(Operation):
    """A fence token is set by a call: a control change."""

    token: str = ""

    def apply(self, model: Model | None) -> Model | None:
        model = self._existing(model)
        model.fence = self.token
        return model


class Timeline:
    """Every operation on the topics of one name, in the order in which the log has them."""

    def __init__(self, base: Model | None = None, base_epoch: int = 0) -> None:
        self.base = base
        self.base_epoch = base_epoch
        self.operations: list[Operation] = []

    def states(self) -> list[Model | None]:
        """Returns the states after none of the operations, after the first, and so on."""
        states = [self.base]
        for operation in self.operations:
            states.append(operation.apply(states[-1]))
        return states

    def acked_state(self) -> Model | None:
        """Returns the state in which only acknowledged operations count: the state that a reader of a running engine
        sees."""
        state = self.base
        for operation in self.operations:
            if operation.acked:
                state = operation.apply(state)
        return state

    def promised(self, power: bool) -> int:
        """How many of the operations have to be found, at least, after a power cut or after a kill."""
        kept = [op.durable if power else op.acked for op in self.operations]
        return len(kept) - kept[::-1].index(True) if True in kept else 0


class TopicDump(NamedTuple):
    """All that can be seen of a topic."""

    topic_id: int
    epoch: int
    config: TopicConfig
    head: int
    earliest: int
    evict_floor: int
    cap_floor: int
    ttl_floor: int
    record_count: int
    record_bytes: int
    live: dict[int, Kept]
    lost: list[tuple[int, int, str]]
    keys: dict[str, tuple[int, int, int]]
    reported: list[tuple[int, int, str]]
    """The tombstones a reader meets on its way from the beginning to the head."""
    created_ts: int
    last_ts: int
    last_write_ts: int
    consumers: dict[str, int]
    fence: str

    @property
    def lost_seqs(self) -> frozenset[int]:
        seqs = (seq for first, last, _ in self.lost for seq in range(first, last + 1))
        return frozenset(seq for seq in seqs if seq >= self.evict_floor)

    def as_model(self) -> Model:
        """Returns the model that a continued timeline starts with."""
        return Model(
            self.config, self.head, dict(self.live), self.evict_floor, self.cap_floor, self.ttl_floor, dict(self.keys),
            self.lost_seqs, not self.config.durability.logged, consumers=dict(self.consumers),
            fence=self.fence,
        )  # fmt: skip


Dump = dict[str, TopicDump]


def dump(engine: Engine) -> Dump:
    """The whole visible state of an engine, read the way a reader reads it. Counters of the engine are checked against
    it."""
    check_totals(engine)
    return {info.topic: _dump_topic(engine, info.topic) for info in engine.list_topics(limit=1000)}


def _dump_topic(engine: Engine, name: str) -> TopicDump:
    live, reported = read_all(engine, name)
    info, topic = engine.info(name), engine.core.existing(name)
    oldest = engine.core.wall() - topic.config.idempotency_window_ms
    return TopicDump(
        topic.id, info.epoch, info.config, info.head_seq, info.earliest_seq, topic.evict_floor, topic.cap_floor,
        topic.ttl_floor, info.count, info.bytes, live,
        [(lost.from_seq, lost.to_seq, lost.reason.value) for lost in topic.lost or ()],
        # A key past its window is forgotten at the next lookup, which a dump must not depend on.
        {key: known[:3] for key, known in (topic.keys or {}).items() if known[2] >= oldest},
        reported, topic.created_ts, topic.last_ts, topic.last_write_ts,
        {one.consumer: one.seq for one in engine.consumers.list_topic(topic)}, fence_of(topic),
    )  # fmt: skip


def read_all(engine: Engine, name: str) -> tuple[dict[int, Kept], list[tuple[int, int, str]]]:
    """Every record and every tombstone between the beginning and the head, a few records at a time."""
    live: dict[int, Kept] = {}
    reported: list[tuple[int, int, str]] = []
    cursor = 0
    while True:
        result = engine.read_now(name, ReadRequest(from_seq=cursor, limit=7, include_tags=True))
        if result.tombstone is not None:
            reported.append((result.tombstone.gap_from, result.tombstone.gap_to, result.tombstone.reason.value))
        for record in result.records():
            seq, ts, tag = record["$seq"], record["$ts"], record.get("$tag")
            assert isinstance(seq, int) and isinstance(ts, int) and (tag is None or isinstance(tag, str))
            live[seq] = Kept(record["data"], tag, ts, logged=True)
        if result.next_from_seq <= cursor:
            assert result.caught_up, f"a reader of {name} is stuck at {cursor}, the head is {result.head_seq}"
            return live, reported
        cursor = result.next_from_seq


def files_of(fs: FileSystem, options: EngineOptions) -> FileSystem:
    """The file system that an engine gets. An object store is a folder of the same disk, and crashes with it."""
    if options.cold_dir is None or not is_object_store(options.cold_dir):
        return fs
    return tiered(fs, options.cold_dir, FolderStore(fs, "bucket"), LocalCopies(fs, "data/near", 10_000))


class World:
    """An engine, the disk under it, and its promises."""

    def __init__(self, fs: FileSystem, options: EngineOptions = SMALL, clock: ManualClock | None = None) -> None:
        self.fs = fs
        self.options = options
        self.clock = clock or ManualClock()
        self.boot = 0
        self.timelines: dict[str, Timeline] = {}
        self.epochs: dict[str, int] = {}
        """The highest epoch that any acknowledged operation saw, by name; it outlives a rebase."""
        self.highest: dict[tuple[str, int], int] = {}
        """The highest seq acknowledged by class disk or fsync, by name and epoch."""
        self.starting = False
        """Whether a start is under way, or was cut short."""
        self.lost_power = False
        """Whether the machine went down since the timelines began."""
        self.call_failed = False
        """Whether a call failed since then: the next start may then not trust the page cache, and report unsynced
        records as possibly lost, as after a power cut."""
        self.files: Callable[[FileSystem, EngineOptions], FileSystem] = files_of
        """Makes the file system that an engine gets out of the disk."""
        self.engine: Engine = None  # type: ignore[assignment]
        self._value = 0

    # Life

    def start(self, fs: FileSystem | None = None, *, restarted: bool = False) -> None:
        """Opens the folder; `restarted` states that the machine went down since."""
        self.call_failed = self.call_failed or (isinstance(self.fs, FaultyFileSystem) and self.fs.failed > 0)
        self.fs = self.fs if fs is None else fs
        self.boot += restarted
        self.lost_power = self.lost_power or restarted
        self.starting = True
        self.engine = Engine.recover(
            self.files(self.fs, self.options),
            self.options,
            self.clock,
            SeededEntropy(self.boot),
            boot_id=f"boot-{self.boot}",
        )
        self.starting = False

    def kill(self) -> None:
        """The process ends and the machine runs on: the kernel lets go of the lock, and keeps every write."""
        self.engine._lock.release()

    def start_over(self) -> None:
        """Opens the folder again after a kill or a clean stop, and continues the timelines from the state found."""
        self.start()
        # Even to look may write, where time has passed: the start is over when the timelines know what it found.
        self.starting = True
        self.rebase(dump(self.engine))
        self.starting = False

    def rebase(self, found: Dump) -> None:
        """Restarts the timelines from the state found, all of which is durable now."""
        self.lost_power = self.call_failed = False
        self.timelines = {name: Timeline(topic.as_model(), topic.epoch) for name, topic in found.items()}

    def fork(self) -> "World":
        """The same promises for another future of the same disk; operations already done are shared, not copied."""
        twin = World(self.fs, self.options, self.clock)
        twin.boot, twin._value = self.boot, self._value
        twin.starting, twin.lost_power = self.starting, self.lost_power
        twin.call_failed = self.call_failed or (isinstance(self.fs, FaultyFileSystem) and self.fs.failed > 0)
        twin.epochs, twin.highest = dict(self.epochs), dict(self.highest)
        for name, timeline in self.timelines.items():
            twin.timelines[name] = Timeline(timeline.base, timeline.base_epoch)
            twin.timelines[name].operations = list(timeline.operations)
        return twin

    def timeline(self, name: str) -> Timeline:
        return self.timelines.setdefault(name, Timeline())

    # Operations

    def append(
        self,
        name: str,
        count: int = 1,
        *,
        tag: str | None = None,
        key: str | None = None,
        size: int = 0,
        fence: str | None = None,
        **config: object,
    ) -> Answer | None:
        """Appends records whose values occur only once; `config` is for a topic that the append creates. With a token
        it expects the newest fence and head of the topic, and sets the token."""
        self.heal()
        records: list[Payload] = [(self._next_value(size), tag) for _ in range(count)]
        patch = _patch(config)
        batch = Batch(records=[Record.of(value, tag=tag) for value, tag in records], idempotency_key=key, config=patch)
        if fence is not None:
            topic = self.engine.core.directory.find(name)
            head, held = (0, "") if topic is None else (topic.staged_head, newest_fence(topic))
            batch = msgspec.structs.replace(batch, expected_head_seq=head, fence=held, new_fence=fence)
        if key is not None and any(isinstance(op, Append) and op.key == key for op in self._unanswered(name)):
            self.engine.append(name, batch, _same_as_the_first)
            return None
        steps: list[Operation] = [Append(name, self.clock.now_ms(), records=records, key=key, fence=fence)]
        if not self._exists(name):
            steps.insert(0, Create(name, self.clock.now_ms(), patch=patch))
        return self._do(steps, lambda done: self.engine.append(name, batch, done))

    def delete(self, name: str, *, before: int | None = None, tag: str | None = None) -> Answer | None:
        self.heal()
        topic = self.engine.core.directory.find(name)
        below = topic.head + 1 if topic is not None else 0
        step = Delete(name, self.clock.now_ms(), below=min(below, before or below), tag=tag)
        selector = DeleteSelector(before, None if tag is None else TagMatch(tag))
        return self._do([step], lambda done: self.engine.delete_records(name, selector, done))

    def put(self, name: str, **config: object) -> Answer | None:
        self.heal()
        patch, now = _patch(config), self.clock.now_ms()
        topic = self.engine.core.directory.find(name)
        if topic is not None and resolve_config(patch, name, topic.staged_config) == topic.staged_config:
            return None  # A config that changes nothing is not logged, so its answer promises nothing.
        step = Configure(name, now, patch=patch) if self._exists(name) else Create(name, now, patch=patch)
        return self._do([step], lambda done: self.engine.put_topic(name, patch, done))

    def drop(self, name: str) -> Answer | None:
        step = Drop(name, self.clock.now_ms())
        return self._do([step], lambda done: self.engine.drop_topic(name, False, done))

    def consume(self, name: str, consumer: str, seq: int = 0) -> Answer | None:
        """Creates a consumer that does not exist."""
        self.heal()
        topic = self.engine.core.directory.find(name)
        if topic is None or consumer in self._consumers(topic) or seq > topic.head:
            return None
        step = SetConsumer(name, self.clock.now_ms(), consumer=consumer, seq=seq)
        return self._do([step], lambda done: self.engine.consumers.put(topic, consumer, seq, "key", done))

    def commit(self, name: str, consumer: str, seq: int) -> Answer | None:
        """Moves a consumer that exists to any seq there is."""
        self.heal()
        topic = self.engine.core.directory.find(name)
        if topic is None or consumer not in self._consumers(topic) or seq > topic.head:
            return None
        step = Commit(name, self.clock.now_ms(), consumer=consumer, seq=seq)
        return self._do(
            [step], lambda done: self.engine.consumers.commit(topic, consumer, seq, "key", done, force=True)
        )

    def forget(self, name: str, consumer: str) -> Answer | None:
        """Deletes a consumer that exists."""
        self.heal()
        topic = self.engine.core.directory.find(name)
        if topic is None or consumer not in self._consumers(topic):
            return None
        step = SetConsumer(name, self.clock.now_ms(), consumer=consumer)
        return self._do([step], lambda done: self.engine.consumers.delete(topic, consumer, done))

    @staticmethod
    def _consumers(topic: Topic) -> set[str]:
        found = consumers_of(topic)
        return set() if found is None else {name for name in found.marks.keys() | found.staged if found.newest(name)}

    def set_fence(self, name: str, token: str) -> Answer | None:
        self.heal()
        topic = self.engine.core.directory.find(name)
        if topic is None:
            return None
        step = SetFence(name, self.clock.now_ms(), token=token)
        return self._do([step], lambda done: self.engine.fences.set(topic, token, None, done))

    def checkpoint(self, full: bool = False) -> bool:
        outcome: list[bool] = []
        self.engine.run_job(self.engine.checkpointer.job(full=full, then=outcome.append))
        if outcome[0]:
            self._everything_is_durable()
        return outcome[0]

    def seal(self, name: str) -> None:
        """Cuts a topic's tail as housekeeping does with an old one."""
        topic = self.engine.core.directory.find(name)
        if topic is not None:
            self.engine.core.before_change(topic)
            self.engine.sealer.cut(topic)

    def relocate(self, name: str) -> None:
        topic = self.engine.core.directory.find(name)
        if topic is not None:
            self.engine.run_job(self.engine.housekeeper.relocate(topic))

    def background_sync(self) -> None:
        """Runs the sync that the threads of the log run shortly after a write."""
        for shard in self.engine.core.shards:
            shard.writer.sync()
        if not self.poisoned:
            self._everything_is_durable()

    def close(self) -> None:
        """A clean stop."""
        completed = self.engine.checkpointer.completed
        self.engine.close_inline()
        if self.engine.checkpointer.completed > completed:
            self._everything_is_durable()

    @property
    def poisoned(self) -> bool:
        return any(shard.writer.poison is not None for shard in self.engine.core.shards)

    @property
    def broken(self) -> bool:
        """Whether a shard refuses writes permanently."""
        return any(shard.writer.broken for shard in self.engine.core.shards)

    def hold(self) -> None:
        """Gathers the following operations into one commit a shard, until `flush`, and single records into one
        block."""
        for committer in self._committers():
            committer.hold = committer.coalesces = True

    def flush(self) -> None:
        for committer in self._committers():
            committer.hold = committer.coalesces = False
            committer.flush()

    def _unanswered(self, name: str) -> list[Operation]:
        return [operation for operation in self.timeline(name).operations if operation.answer is None]

    def _committers(self) -> Iterator[InlineCommitter]:
        for shard in self.engine.core.shards:
            assert isinstance(shard.committer, InlineCommitter)
            yield shard.committer

    def heal(self) -> None:
        """Retries after a shortage, as housekeeping does once a second."""
        core = self.engine.core
        for shard in core.shards:
            shard.heal()
        if core.room.short is not None:
            try:
                core.room.regain()
            except OSError:
                return

    def _do(self, steps: list[Operation], submit: Callable[[Callable[[Answer], None]], None]) -> Answer | None:
        """Hands an operation over; its answer, or None while it waits in a held group."""
        self.heal()
        operations = self.timeline(steps[0].name).operations
        if operations and isinstance(operations[-1].answer, TopicsError) and not isinstance(steps[0], Create):
            # The log may or may not know of the operation that failed. An operation behind it, where its shard still
            # takes anything, has no single right outcome after a restart, so none follows.
            return operations[-1].answer
        operations += steps
        answers: list[Answer] = []

        def done(answer: Answer) -> None:
            answers.append(answer)
            assert len(answers) == 1, "an operation was answered twice"
            if (isinstance(answer, AppendResult) and answer.deduped) or isinstance(answer, PASSING):
                # An operation that fails for a temporary reason is rolled back: it never appears.
                self._forget(steps)
            else:
                self._answered(steps, answer)

        try:
            submit(done)
        except TopicsError as refusal:
            self._forget(steps)
            return refusal
        return answers[0] if answers else None

    def _forget(self, steps: list[Operation]) -> None:
        operations = self.timeline(steps[0].name).operations
        for step in steps:
            operations.remove(step)

    def _answered(self, steps: list[Operation], answer: Answer) -> None:
        name = steps[0].name
        topic = self.engine.core.directory.find(name)
        durability = topic.config.durability if topic is not None else Durability.FSYNC
        for step in steps:
            step.answer = answer
            if step.acked:
                step.epoch = topic.epoch if topic is not None else 0
                control = not isinstance(steps[0], Append | Delete | Commit)
                step.durable = control or durability.acks_after_sync
        if isinstance(answer, AppendResult) and topic is not None:
            self.epochs[name] = max(self.epochs.get(name, 0), topic.epoch)
            if durability in (Durability.DISK, Durability.FSYNC):
                known = self.highest.get((name, topic.epoch), 0)
                self.highest[name, topic.epoch] = max(known, answer.last_seq)

    def _everything_is_durable(self) -> None:
        for timeline in self.timelines.values():
            for operation in timeline.operations:
                operation.durable = operation.durable or operation.acked

    def _exists(self, name: str) -> bool:
        topic = self.engine.core.directory.find(name)
        return topic is not None and not topic.closing

    def _next_value(self, size: int) -> object:
        self._value += 1
        return {"n": self._value, "pad": "x" * size} if size else self._value


def _same_as_the_first(answer: Answer) -> None:
    """For a repeated key while the first write with it is on its way: the repeat does not count as an operation."""
    assert isinstance(answer, TopicsError) or (isinstance(answer, AppendResult) and answer.deduped)


def _patch(config: dict[str, object]) -> TopicConfigPatch:
    return msgspec.convert(config, TopicConfigPatch)
