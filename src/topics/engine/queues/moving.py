"""Moving records from one topic to another: in one or in the other, never in neither, also across a crash.

The records arrive by value, in one frame of the destination's shard that says where they were; from then on the move
counts. They depart by another frame, in the source's shard, and recovery makes up for one that is missing.

| the two topics are | what is logged | when |
|---|---|---|
| in one shard | arrival and departure, in this order, in one write | at once; a log is read up to where it ends |
| in two shards | the arrival, synced whatever the class; then the departure | never the second without the first |

In one shard both happen at the same moment for readers as well. In two, a reader may find a record in both for the time
of one commit. A destination of class ephemeral logs no arrival: what is moved there is as lasting as anything there.
"""

from collections.abc import Callable, Sequence

from topics.core.durability import Durability
from topics.core.errors import ShuttingDownError, TopicNotFoundError, TopicsError
from topics.core.records import Record
from topics.engine.appending import Appender, stage_block
from topics.engine.core import EngineCore
from topics.engine.operations import TopicOperation, unstage
from topics.engine.queues.feature import QueueFeature
from topics.engine.runs import Block, block_head
from topics.engine.tags import SeqRange, as_ranges
from topics.engine.topic import Topic
from topics.formats.frame import FrameKind
from topics.formats.queue import MoveReason, encode_arrival_head, encode_departure
from topics.storage.commit import AT_ONCE, CommitTiming


class Move:
    """What shall be moved; `done` is told the block it is now in, or why nothing was moved."""

    __slots__ = ("dest", "done", "reason", "records", "seqs", "source")

    def __init__(
        self,
        source: Topic,
        seqs: Sequence[int],
        dest: Topic,
        records: list[Record],
        reason: MoveReason,
        done: Callable[[Block | TopicsError, CommitTiming], None],
    ) -> None:
        self.source = source
        self.seqs = seqs
        self.dest = dest
        self.records = records
        self.reason = reason
        self.done = done


class Mover:
    def __init__(self, core: EngineCore, appender: Appender, feature: QueueFeature) -> None:
        self._core = core
        self._appender = appender
        self._feature = feature

    def move(self, move: Move) -> None:
        """Moves records whose bytes are at hand. The seqs ascend, and nobody else may be moving them."""
        if move.source.shard == move.dest.shard:
            self._begin(move, lambda: None)
        else:
            self._core.crossings.enter(lambda: self._begin(move, self._core.crossings.leave))

    def _begin(self, move: Move, finished: Callable[[], None]) -> None:
        try:
            self._check(move)
        except TopicsError as error:
            move.done(error, AT_ONCE)
            finished()
            return
        self._submit(move, finished)

    def _check(self, move: Move) -> None:
        """Everything that can refuse a move: once its frames are numbered, nothing may."""
        core = self._core
        if core.closed:
            raise ShuttingDownError()
        for topic in (move.source, move.dest):
            if core.topics.get(topic.id) is not topic or topic.closing:
                raise TopicNotFoundError(topic.name)
            core.shards[topic.shard].check_open(patient=True)
        self._appender.check_cap(move.dest, move.records)

    def _submit(self, move: Move, finished: Callable[[], None]) -> None:
        core, source, dest = self._core, move.source, move.dest
        durability = dest.staged_config.durability
        shard = core.shards[dest.shard]
        together = source.shard == dest.shard
        block = stage_block(core, dest, move.records)
        pieces: list[bytes] = []
        if durability.logged:
            front = encode_arrival_head(move.reason, source.id, move.seqs)
            pieces = shard.frame(FrameKind.ARRIVAL, dest.id, front + block_head(block), block.text)
        else:
            dest.unlogged = True
        guarded = durability.reserves_seqs
        ceiling = self._appender.reserve(dest, shard, block.last_seq, block.ts, pieces) if guarded else 0
        needs_sync = (
            durability.acks_after_sync
            or dest.sync_inflight > 0
            or (durability.reserves_seqs and block.last_seq > dest.ceiling)
        )
        if not together:
            # Another shard's log is about to rely on this frame.
            needs_sync = needs_sync or bool(pieces)
            operation = ArrivalOperation(core, move, pieces, needs_sync, block, ceiling, self._appender.after)
            operation.then = lambda timing: self._depart(move, operation, finished)
            operation.otherwise = lambda error: self._failed(move, error, finished)
        else:
            ranges = as_ranges(move.seqs, source.head + 1)
            pieces += self._departure_frame(move, ranges)
            # Without a frame of its own nothing of an ephemeral topic waits, unless it is behind a sync.
            unlogged = not (durability.logged and source.staged_config.durability.logged)
            needs_sync = needs_sync or self._waits(source) or (bool(pieces) and unlogged)
            operation = ArrivalOperation(core, move, pieces, needs_sync, block, ceiling, self._appender.after)
            departure = DepartureOperation(core, self._feature, move, [], needs_sync, ranges)
            departure.then = lambda: self._done(move, operation, finished)
            operation.then = departure.committed

            def fail(error: TopicsError) -> None:
                departure.arrived = False
                departure.then = lambda: self._failed(move, error, finished)
                departure.failed(error)

            operation.otherwise = fail
        if pieces or needs_sync:
            shard.submit(operation)
        else:
            operation.committed(AT_ONCE)
        if durability is Durability.EPHEMERAL or (guarded and not ceiling):
            self._appender.reserve_ahead(dest, shard, block.last_seq, block.ts)

    def _waits(self, source: Topic) -> bool:
        return source.staged_config.durability.acks_after_sync or source.sync_inflight > 0

    def _departure_frame(self, move: Move, ranges: list[SeqRange]) -> list[bytes]:
        source = move.source
        # An ephemeral topic may hold records of a time when it was none, and without a frame those would come back.
        durabilities = (source.staged_config.durability, source.config.durability)
        if not any(durability.logged for durability in durabilities) and not source.segments:
            return []
        body = encode_departure(move.reason, move.dest.id, ranges)
        return self._core.shards[source.shard].frame(FrameKind.DEPARTURE, source.id, body)

    def _depart(self, move: Move, arrival: "ArrivalOperation", finished: Callable[[], None]) -> None:
        """The records are in their destination, for good: now they leave where they were."""
        core, source = self._core, move.source
        if core.topics.get(source.id) is not source or source.closing:
            # Their topic goes as a whole. Should that fail, the next start finds the arrival and finishes the move.
            self._done(move, arrival, finished)
            return
        shard = core.shards[source.shard]
        shard.stage_gathered()
        ranges = as_ranges(move.seqs, source.head + 1)
        pieces = self._departure_frame(move, ranges)
        needs_sync = self._waits(source) or (bool(pieces) and not source.staged_config.durability.logged)
        departure = DepartureOperation(core, self._feature, move, pieces, needs_sync, ranges)
        departure.then = lambda: self._done(move, arrival, finished)
        if pieces or needs_sync:
            shard.submit(departure)
        else:
            departure.committed(AT_ONCE)

    def _done(self, move: Move, arrival: "ArrivalOperation", finished: Callable[[], None]) -> None:
        move.done(arrival.block, arrival.timing)
        finished()

    def _failed(self, move: Move, error: TopicsError, finished: Callable[[], None]) -> None:
        move.done(error, AT_ONCE)
        finished()


class ArrivalOperation(TopicOperation):
    """Records come in."""

    __slots__ = ("_after", "_ceiling", "block", "otherwise", "then", "timing")

    def __init__(
        self,
        core: EngineCore,
        move: Move,
        pieces: list[bytes],
        needs_sync: bool,
        block: Block,
        ceiling: int,
        after: Callable[[Topic], None],
    ) -> None:
        super().__init__(core, move.dest, pieces, needs_sync)
        self.block = block
        self.timing = AT_ONCE
        self._ceiling = ceiling
        self._after = after
        self.then: Callable[[CommitTiming], None] = lambda timing: None
        self.otherwise: Callable[[TopicsError], None] = lambda error: None

    def committed(self, timing: CommitTiming) -> None:
        super().committed(timing)
        self.timing = timing
        self.then(timing)

    def apply(self, timing: CommitTiming) -> None:
        core, topic, block = self._core, self.topic, self.block
        unstage(core, topic, block)
        if self._ceiling > topic.ceiling:
            topic.ceiling = self._ceiling
        core.applier.append(topic, block)
        self._after(topic)

    def undo(self, error: TopicsError) -> None:
        unstage(self._core, self.topic, self.block)
        self.topic.staged_head = min(self.topic.staged_head, self.block.first_seq - 1)
        self.otherwise(error)


class DepartureOperation(TopicOperation):
    """Records that have arrived elsewhere go away."""

    __slots__ = ("_feature", "_ranges", "_reason", "arrived", "then")

    def __init__(
        self,
        core: EngineCore,
        feature: QueueFeature,
        move: Move,
        pieces: list[bytes],
        needs_sync: bool,
        ranges: list[SeqRange],
    ) -> None:
        super().__init__(core, move.source, pieces, needs_sync)
        self._feature = feature
        self._reason = move.reason
        self._ranges = ranges
        self.arrived = True
        """False when the other half of the move failed, and so nothing departs."""
        self.then: Callable[[], None] = lambda: None

    def apply(self, timing: CommitTiming) -> None:
        self._feature.depart(self.topic, self._reason, self._ranges)
        self.then()

    def undo(self, error: TopicsError) -> None:
        """The move counts all the same. This log takes nothing more, so readers see it now, and recovery sees to it."""
        if self.arrived:
            before = self.topic.live_bytes
            self._core.before_change(self.topic)
            self._feature.depart(self.topic, self._reason, self._ranges)
            self._core.total_bytes += self.topic.live_bytes - before
        self.then()
