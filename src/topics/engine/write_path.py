"""The write path: turns a decision into frames, logs them and publishes the result. No other module numbers frames.

    decide    a feature reads state that includes all operations in flight, and creates a `LogOperation`
    check     `check` and `admit` reject impossible operations before a seq or a frame number is spent
    log       `log` seals the frames in order, selects the durability to wait for, and passes them to the shard
    apply     once they are as durable as the topic's class promises, the transaction is published by `engine.apply`
              exactly as replay does; or undone without a trace

Every write uses this path: appends of both protocols, single records that share a block, copies of routers, moves of
queues, acknowledgements, leases, deletes, configs, streams. Operations differ in their effect; admission, durability
and the fate of assigned seqs are decided here.

A transaction concerns one topic. Several transactions of one shard may be logged in one write and published together
(`log_together`): a move and its departure, or all forwards of a tick.

Publish barrier: holds logged operations back until a commit in another shard is decided.

A transaction commit writes records to the shards of their topics; they become effective once one more frame is on the
disk. Operations committed meanwhile for one of these topics follow them in the log, so they must also follow them for
readers: they wait here, together with all later operations of the topics concerned. Only one commit is decided at a
time, so its decision releases the whole line in order.

Only written operations wait, never decisions: the barrier cannot delay the commit itself.
"""

import enum
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from topics.engine.apply import Applier, next_ceiling
from topics.engine.quotas import Quotas, check_room
from topics.engine.remote_acks import RemoteAcks
from topics.engine.topic import Block, Records, Topic
from topics.log.commit_requests import AT_ONCE, CommitTiming
from topics.log.frame import FrameKind, encode_ceiling, encode_complete, encode_evict
from topics.log.group_commit import Shard
from topics.log.wal import Submission
from topics.model.errors import ShuttingDownError, TopicNotFoundError, TopicsError
from topics.model.limits import Limits
from topics.model.records import Record, payload_bytes
from topics.model.topic_config import SYSTEM_STREAMS

_log = logging.getLogger(__name__)
T = TypeVar("T")


class PendingPublish(Protocol):
    """An operation that waits to be published (`engine.write_path`)."""

    def finalize(self, timing: CommitTiming) -> None: ...

    def failed(self, error: TopicsError) -> None: ...


class HeldTopics:
    def __init__(self) -> None:
        self.active = False
        """Whether any topic is held. Every publisher checks this first."""
        self._topics: set[Topic] = set()
        self._line: deque[tuple[PendingPublish, CommitTiming]] = deque()
        self._lost: dict[Topic, TopicsError] = {}

    def hold(self, submission: PendingPublish, topic: Topic, timing: CommitTiming) -> None:
        """Adds an operation to the line of an undecided commit."""
        self.active = True
        self._topics.add(topic)
        self._line.append((submission, timing))

    def keeps(self, submission: PendingPublish, topics: Sequence[Topic], timing: CommitTiming) -> bool:
        """Returns whether a logged operation must wait before it is published; the barrier then finalizes it."""
        for topic in topics:
            if topic in self._lost:
                submission.failed(self._lost[topic])
                return True
        if self._topics.isdisjoint(topics):
            return False
        self._topics.update(topics)
        self._line.append((submission, timing))
        return True

    def release(self) -> None:
        """Releases the line in order after the commit is decided."""
        while self._line:
            # Operations that arrive meanwhile join the end of the line.
            submission, timing = self._line.popleft()
            try:
                submission.finalize(timing)
            except Exception:
                _log.exception("delayed publish failed")
        self._topics.clear()
        self.active = bool(self._lost)

    def give_up(self, error: TopicsError) -> None:
        """Blocks the topics until a restart: it is unknown whether the commit is on the disk."""
        self._lost.update(dict.fromkeys(self._topics, error))
        self._topics.clear()
        line, self._line = self._line, deque()
        for submission, _ in line:
            submission.failed(error)


# The view of the engine that the write path uses.


class RemoteOptions(Protocol):
    """Settings of class `remote`, and of standbys."""

    @property
    def backup_dir(self) -> str | None: ...

    @property
    def restoring(self) -> bool: ...

    @property
    def following(self) -> bool: ...

    @property
    def remote_timeout_ms(self) -> int: ...


class PrimaryLease(Protocol):
    """The lease that lets this server acknowledge writes (`ops.failover.lease_keeper`)."""

    @property
    def is_valid(self) -> bool:
        """Whether it is held."""

    def check(self, seqs: int = 0) -> None:
        """Raises unless it is held, and one operation may take so many seqs."""

    def give(self, seqs: int) -> None:
        """Counts seqs that an operation takes."""

    @property
    def given(self) -> int:
        """All seqs that were counted."""

    def shipped(self, given: int, moment: int) -> None:
        """Reports that everything counted up to here, and everything logged up to a moment, is in the backup
        storage."""

    def announce(self, lineage: str) -> None:
        """Makes a takeover restore from these backups from now on. Blocks; raises if that fails."""

    def suspect(self) -> None:
        """Reports that another server seems to hold the lease."""


class EngineState(Protocol):
    """The part of `EngineCore` that `engine.write_path` uses and changes."""

    shards: list[Shard]
    limits: Limits
    applier: Applier
    topics: dict[int, Topic]
    closed: bool
    total_bytes: int
    staged_bytes: int
    reserve: int
    quiet: bool
    metered: bool
    quotas: Quotas

    @property
    def steady(self) -> Callable[[], int]: ...

    @property
    def options(self) -> RemoteOptions: ...

    def begin(self) -> None: ...

    def before_change(self, topic: Topic) -> None: ...

    def exists(self, topic: Topic) -> bool: ...

    def wake(self, topic: Topic) -> None: ...

    @property
    def used_bytes(self) -> int:
        """Bytes that count against the server's quota."""
        ...


class Gate(enum.Enum):
    """Durability that the frames of an operation need before it is published."""

    CLASS = "as the topic's class promises"
    SYNC = "synced, whatever the class"
    TURN = "written; behind a sync only where something of the topic before it waits for one"


FrameDraft = tuple[FrameKind, bytes, bytes]
"""A frame without a number: its kind, and the two parts of its body."""


SharedFrame = tuple[FrameKind, int, bytes]
"""A frame shared by several transactions: its kind, its topic, and its body."""


class LogOperation(Submission):
    """A decided change of one topic in flight. While it waits for a sync, later operations of the topic wait behind
    it."""

    __slots__ = ("block", "ceiling", "first_seq", "frames", "path", "topic")

    wakes = True
    """Whether followers of the topic are notified."""

    def __init__(
        self, path: "WritePath", topic: Topic, frames: Sequence[FrameDraft] = (), block: Block | None = None
    ) -> None:
        self.path = path
        self.topic = topic
        self.frames = frames
        self.block = block
        self.first_seq = block.first_seq if block is not None else 0
        """The first assigned seq; 0 for an operation without seqs."""
        self.ceiling = 0
        self.last_lsn = 0
        self.needs_sync = False

    def committed(self, timing: CommitTiming) -> None:
        held = self.path.held
        if not held.active or not held.keeps(self, (self.topic,), timing):
            self.finalize(timing)

    def finalize(self, timing: CommitTiming) -> None:
        """Applies the operation. Called in its turn, once it is as durable as its class promises."""
        topic, engine = self.topic, self.path.engine
        if self.needs_sync:
            topic.sync_inflight -= 1
        engine.before_change(topic)
        before = topic.live_bytes
        if self.ceiling:
            topic.ceiling = max(topic.ceiling, self.ceiling)
        if timing.sync_ms and not topic.config.durability.acks_after_sync:
            # Its class does not wait for a sync: the sync belongs to another operation.
            timing = CommitTiming(timing.write_ms)
        self.apply(timing)
        engine.total_bytes += topic.live_bytes - before
        if engine.applier.overfull:
            # Last, because a decision must not begin within another one.
            self.path.bound_overfull()
        if topic.waiters and self.wakes:
            engine.wake(topic)

    def failed(self, error: TopicsError) -> None:
        topic = self.topic
        topic.sync_inflight -= self.needs_sync
        if self.ceiling:
            topic.ceiling_staged = topic.ceiling
        if self.first_seq:
            if self.block is not None:
                self.path.unstage(topic, self.block)
            topic.staged_head = min(topic.staged_head, self.first_seq - 1)
        self.undo(error)
        if not topic.created:
            # Other operations may have waited for the topic's creation.
            self.path.engine.wake(topic)

    def acknowledge(self, done: Callable[[T], None], outcome: T) -> None:
        """Answers the caller: now, or for class `remote` once the backup storage has it."""
        self.path.acknowledge(self.topic, done, outcome)

    def publish(self) -> None:
        """Makes its records visible to readers."""
        block, path = self.block, self.path
        assert block is not None
        path.unstage(self.topic, block)
        if path.lease is not None and path.is_remote(self.topic):
            # Before anybody is told of the block.
            self.topic.hidden_from = self.topic.hidden_from or block.first_seq
            path.engine.applier.append(self.topic, block)
            path.remote.hide(self.topic)
        else:
            path.engine.applier.append(self.topic, block)

    def apply(self, timing: CommitTiming) -> None:
        raise NotImplementedError

    def undo(self, error: TopicsError) -> None:
        raise NotImplementedError


class Change(LogOperation):
    """A change of a topic's state besides its records; the caller implements the effect and its undo."""

    __slots__ = ("_applied", "_failed")

    def __init__(
        self,
        path: "WritePath",
        topic: Topic,
        frames: Sequence[FrameDraft],
        applied: Callable[[CommitTiming], None],
        failed: Callable[[TopicsError], None],
    ) -> None:
        super().__init__(path, topic, frames)
        self._applied = applied
        self._failed = failed

    def apply(self, timing: CommitTiming) -> None:
        self._applied(timing)

    def undo(self, error: TopicsError) -> None:
        self._failed(error)


class Bundle(Submission):
    """Transactions of one shard that are logged in one write. An operation that fails to be published does not hold
    back the others."""

    __slots__ = ("_decides", "_finished", "_parts")

    def __init__(
        self,
        pieces: list[bytes],
        needs_sync: bool,
        parts: Sequence[LogOperation],
        finished: Callable[[TopicsError | None], None],
        decides: bool,
    ) -> None:
        super().__init__(pieces, needs_sync)
        self._parts = parts
        self._finished = finished
        self._decides = decides

    def committed(self, timing: CommitTiming) -> None:
        held = self._parts[0].path.held
        if not held.active or self._decides or not held.keeps(self, [part.topic for part in self._parts], timing):
            self.finalize(timing)

    def finalize(self, timing: CommitTiming) -> None:
        for part in self._parts:
            try:
                part.finalize(timing)
            except Exception:
                _log.exception("transaction publish failed", extra={"topic": part.topic.name})
        self._finished(None)

    def failed(self, error: TopicsError) -> None:
        for part in self._parts:
            part.failed(error)
        self._finished(error)


class _Eviction(LogOperation):
    """An eviction by a cap that replay could not derive."""

    __slots__ = ("_floor",)

    def __init__(self, path: "WritePath", topic: Topic, floor: int) -> None:
        super().__init__(path, topic, ((FrameKind.EVICT, encode_evict(floor, expired=False), b""),))
        self._floor = floor
        topic.evicting = True

    def apply(self, timing: CommitTiming) -> None:
        self.topic.evicting = False
        self.path.engine.applier.evict(self.topic, self._floor)
        self.path.engine.applier.overfull.add(self.topic)

    def undo(self, error: TopicsError) -> None:
        """The shard is read-only; the next start evaluates the caps itself."""
        self.topic.evicting = False


class _Note(Submission):
    """A frame without a waiting caller, or a log position with one."""

    __slots__ = ("_then", "_undone")

    def __init__(
        self, pieces: list[bytes], needs_sync: bool, then: Callable[[], None] | None, undone: Callable[[], None]
    ) -> None:
        super().__init__(pieces, needs_sync)
        self._then = then
        self._undone = undone

    def committed(self, timing: CommitTiming) -> None:
        if self._then is not None:
            self._then()

    def failed(self, error: TopicsError) -> None:
        """The shard reports the failure itself; pending work is noted again after recovery."""
        self._undone()


class WritePath:
    def __init__(self, engine: EngineState) -> None:
        self.engine = engine
        self.held = HeldTopics()
        """Topics for which nothing is published until a commit is decided."""
        options = engine.options
        self.remote = RemoteAcks(
            engine.steady, options.remote_timeout_ms, options.backup_dir is not None, options.restoring
        )
        """Acknowledgements of class `remote`."""
        self.remote.shown = engine.wake
        self.follows = options.following
        """Whether this is a standby, which logs nothing itself."""
        self.lease: PrimaryLease | None = None
        """None unless another server may take over."""

    # Admission

    def check(self, topic: Topic, patient: bool = False, frees: bool = False, overtakes: bool = False) -> None:
        """Raises unless the topic can be written now. A patient caller is queued instead of refused; operations that
        free space are logged on a full disk as well.

        Call it before any decision: it stages the single records of this tick and the pending acknowledgements first,
        unless the new operation may precede them.
        """
        engine = self.engine
        if engine.closed:
            raise ShuttingDownError()
        rules = topic.rules
        if rules.closing or (rules.created and engine.topics.get(topic.id) is not topic and not engine.exists(topic)):
            # The delete frame must be the topic's last.
            raise TopicNotFoundError(topic.name)
        if self.lease is not None:
            self.lease.check(1)
        if rules.remote:
            self.remote.check()
        if engine.quiet:
            engine.begin()
        engine.shards[topic.shard].check_open(patient=patient, frees=frees, overtakes=overtakes)

    def admit(
        self, topic: Topic, records: Records, moved: bool = False, prepared: object = None
    ) -> Sequence[Record] | None:
        """Raises unless the topic accepts these records. Returns the records to store, or None if they are stored
        unchanged, as in most topics.

        `moved` states that they were first written to another topic, which assigned their tags. `prepared` is an
        earlier result of the guard (`Guard.postpones`).
        """
        guard = topic.guard
        if guard is None:
            return None
        guard.check_append(topic)
        if guard.hides(topic):
            # The topic is about to expire, and a record would extend its life.
            raise TopicNotFoundError(topic.name)
        return guard.admit(topic, records, moved, prepared)

    def check_fits(self, topic: Topic, records: Sequence[Record], grows: bool = True) -> None:
        """Raises unless there is room for these records. A move does not increase the server's total."""
        engine = self.engine
        metered = grows and engine.metered and topic.name not in SYSTEM_STREAMS
        quota = engine.limits.max_total_bytes if metered else 0
        if metered or topic.rules.rejects:
            size = payload_bytes(records)
            check_room(topic, len(records), size, quota, engine.used_bytes)
            if metered:
                engine.quotas.check_bytes(topic.name, size)

    def check_moves_in(self, topic: Topic, count: int, size: int) -> None:
        """Raises unless the topic has room for records that the server's total already includes."""
        if topic.rules.rejects:
            check_room(topic, count, size, 0, 0)
        if self.engine.metered:
            self.engine.quotas.check_bytes(topic.name, size)

    def takes_notes(self, topic: Topic) -> bool:
        """Returns whether a frame without a waiting caller can be logged: not for a topic being deleted, nor in a
        closed or failed log, nor by a standby."""
        engine = self.engine
        return (
            not self.follows
            and not topic.closing
            and not engine.closed
            and engine.shards[topic.shard].writer.poison is None
        )

    def logs_removals(self, topic: Topic) -> bool:
        """Returns whether a removal needs a frame: without one, replay would restore the records.

        An ephemeral topic may hold records from before it became ephemeral.
        """
        return topic.rules.logged or topic.config.durability.logged or bool(topic.segments)

    def acknowledge(self, topic: Topic, done: Callable[[T], None], outcome: T) -> None:
        """Answers with the outcome of a published operation: now, or for class `remote` once the backup storage has
        it."""
        if self.is_remote(topic):
            self.remote.hold(done, outcome)
        else:
            done(outcome)

    def is_remote(self, topic: Topic) -> bool:
        """Whether acknowledgements of the topic wait for the backup storage."""
        return topic.rules.remote or topic in self.remote.leaving

    # Logging

    def stage_coalesced(self, shard_number: int) -> None:
        """Stages the single records of this tick. Call it before assigning seqs to any other operation."""
        self.engine.shards[shard_number].stage_coalesced()

    def log(self, transaction: LogOperation, gate: Gate = Gate.CLASS) -> None:
        """Logs a transaction. Nothing here may fail: every assigned number must be logged."""
        topic = transaction.topic
        shard = self.engine.shards[topic.shard]
        pieces = self._seal(shard, transaction)
        last = topic.staged_head if transaction.first_seq else 0
        needs_sync = transaction.needs_sync = self.waits(topic, last, bool(pieces), gate)
        transaction.pieces = pieces
        transaction.size = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
        if needs_sync:
            topic.sync_inflight += 1
        if pieces or needs_sync:
            shard.submit(transaction)
        else:
            transaction.committed(AT_ONCE)
        if transaction.first_seq:
            if self.lease is not None:
                self.lease.give(last - transaction.first_seq + 1)
            if topic.staged_head + topic.reserve // 2 >= topic.ceiling_staged:
                self._reserve_ahead(topic, shard)

    def log_together(
        self,
        parts: Sequence[LogOperation],
        finished: Callable[[TopicsError | None], None],
        gate: Gate = Gate.CLASS,
        decides: bool = False,
        shared: Sequence[SharedFrame] = (),
    ) -> None:
        """Logs transactions of one shard in one write, and publishes them together.

        `decides` marks the commit that held operations wait for. `shared` are frames for several of the transactions,
        which then have no separate frames.
        """
        shard = self.engine.shards[parts[0].topic.shard]
        pieces: list[bytes] = []
        for kind, topic_id, body in shared:
            pieces += shard.frame(kind, topic_id, body)
        needs_sync = unlogged = False
        for part in parts:
            topic = part.topic
            # Most copies of routers have no separate frame, and seqs below the ceiling.
            sealed: Sequence[bytes] = ()
            if part.frames or topic.staged_head > topic.ceiling_staged or not topic.rules.logged:
                sealed = self._seal(shard, part)
                pieces += sealed
                unlogged = unlogged or not topic.rules.logged
            if not needs_sync:
                needs_sync = self.waits(topic, topic.staged_head if part.first_seq else 0, bool(sealed), gate)
        # Unlogged records must not overtake records that an ephemeral topic receives in frames of another topic.
        needs_sync = needs_sync or (bool(pieces) and unlogged)
        bundle = Bundle(pieces, needs_sync, parts, finished, decides)
        for part in parts if needs_sync else ():
            part.needs_sync = True
            part.topic.sync_inflight += 1
        if pieces or needs_sync:
            shard.submit(bundle)
        else:
            bundle.committed(AT_ONCE)
        for part in parts:
            topic = part.topic
            if part.first_seq:
                if self.lease is not None:
                    self.lease.give(topic.staged_head - part.first_seq + 1)
                if topic.staged_head + topic.reserve // 2 >= topic.ceiling_staged:
                    self._reserve_ahead(topic, shard)

    def note(self, topic: Topic, kind: FrameKind, body: bytes) -> None:
        """Logs a frame without a waiting caller, if possible."""
        shard = self.engine.shards[topic.shard]

        def note_again() -> None:
            shard.after_heal[topic.id, kind] = lambda: self.note(topic, kind, body)

        if self.takes_notes(topic):
            shard.submit(_Note(shard.frame(kind, topic.id, body), False, None, note_again))
        elif shard.writer.halted:
            note_again()

    def after_sync(self, shard_number: int, then: Callable[[], None]) -> None:
        """Calls back once everything submitted to a shard so far is on the disk; never, if that fails permanently."""
        shard = self.engine.shards[shard_number]

        def wait_again() -> None:
            shard.after_heal[object()] = lambda: self.after_sync(shard_number, then)

        shard.submit(_Note([], True, then, wait_again))

    def is_synced(self, shard_number: int) -> bool:
        """Whether everything that was logged in a shard is on the disk."""
        shard = self.engine.shards[shard_number]
        return shard.next_lsn - 1 <= shard.writer.synced_lsn

    def waits(self, topic: Topic, last_seq: int, has_frames: bool, gate: Gate = Gate.CLASS) -> bool:
        """Returns whether an operation logged for the topic now is published only after a sync.

        `last_seq` is its last assigned seq; 0 if none is assigned.
        """
        if topic.sync_inflight or gate is not Gate.CLASS:
            # Operations of a topic never overtake waiting ones.
            return gate is Gate.SYNC or topic.sync_inflight > 0
        rules = topic.rules
        return (
            rules.waits
            or (last_seq > topic.ceiling and rules.reserves)
            # Later operations of an ephemeral topic write no bytes: they keep their order only by waiting for a sync.
            or (has_frames and not rules.logged)
        )

    def _seal(self, shard: Shard, transaction: LogOperation) -> list[bytes]:
        """Numbers the frames of a transaction, with the ceiling its seqs need."""
        topic = transaction.topic
        pieces: list[bytes] = []
        for kind, head, tail in transaction.frames:
            sealed = shard.frame(kind, topic.id, head, tail)
            pieces = pieces + sealed if pieces else sealed
        if transaction.first_seq:
            if not topic.rules.logged:
                topic.unlogged = True
            elif topic.staged_head > topic.ceiling_staged and topic.rules.reserves:
                transaction.ceiling = self._next_ceiling(topic, topic.staged_head)
                pieces = pieces + shard.frame(FrameKind.CEILING, topic.id, encode_ceiling(transaction.ceiling))
        return pieces

    def unstage(self, topic: Topic, block: Block) -> None:
        """Removes a block from the count in flight after it was published or failed."""
        topic.staged_count -= block.count
        topic.staged_bytes -= block.payload_bytes
        self.engine.staged_bytes -= block.payload_bytes

    # Ceilings

    def _next_ceiling(self, topic: Topic, last: int) -> int:
        return next_ceiling(topic, last, topic.staged_ts, self.engine.reserve)

    def _reserve_ahead(self, topic: Topic, shard: Shard) -> None:
        """Raises the ceiling before it is reached, so that no write waits for it."""
        engine = self.engine
        if not topic.rules.ceilings or shard.writer.poison is not None:
            return
        ceiling = self._next_ceiling(topic, topic.staged_head)

        def raised() -> None:
            engine.before_change(topic)
            topic.ceiling = max(topic.ceiling, ceiling)
            topic.ceiling_staged = max(topic.ceiling_staged, ceiling)

        def undone() -> None:
            topic.ceiling_staged = topic.ceiling

        shard.submit(_Note(shard.frame(FrameKind.CEILING, topic.id, encode_ceiling(ceiling)), True, raised, undone))

    # Caps of topics that hold more records than replay would restore

    def bound_overfull(self) -> None:
        overfull, self.engine.applier.overfull = self.engine.applier.overfull, set()
        for topic in overfull:
            self.bound(topic)

    def bound(self, topic: Topic) -> None:
        """Decides the evictions of such a topic. They are logged in order: earlier decisions, such as a delete, precede
        them for readers as for replay."""
        engine = self.engine
        if topic.evicting or not self.takes_notes(topic) or not engine.exists(topic):
            return
        floor = engine.applier.excess_below(topic)
        if floor > topic.earliest:
            self.log(_Eviction(self, topic, floor), Gate.TURN)

    def complete(self, topic: Topic) -> None:
        """Ends explicit evictions after a snapshot contains the whole topic: from here replay derives them."""
        if not self.takes_notes(topic):
            return

        def applied(timing: CommitTiming) -> None:
            self.engine.applier.complete(topic)

        frame = (FrameKind.EVICT, encode_complete(), b"")
        self.log(Change(self, topic, (frame,), applied, lambda error: None), Gate.TURN)
