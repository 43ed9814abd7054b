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
from functools import partial

from topics.core.errors import TopicsError
from topics.core.records import Record
from topics.engine.core import EngineCore
from topics.engine.queues.feature import QueueFeature
from topics.engine.state.runs import Block, block_head
from topics.engine.state.tags import SeqRange, as_ranges
from topics.engine.topic import Topic
from topics.engine.transaction import FrameDraft, Gate, Transaction
from topics.engine.write.appending import stage_block
from topics.formats.frame import FrameKind
from topics.formats.queue import MoveReason, encode_arrival_head, encode_departure
from topics.storage.timing import AT_ONCE, CommitTiming


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


class Arrival(Transaction):
    """Records come in."""

    __slots__ = ("timing",)

    def __init__(self, core: EngineCore, move: Move, block: Block) -> None:
        frames: list[FrameDraft] = []
        if move.dest.rules.logged:
            front = encode_arrival_head(move.reason, move.source.id, move.seqs)
            frames.append((FrameKind.ARRIVAL, front + block_head(block), block.text))
        super().__init__(core.path, move.dest, frames, block)
        self.timing = AT_ONCE

    def apply(self, timing: CommitTiming) -> None:
        self.timing = timing
        self.publish()

    def undo(self, error: TopicsError) -> None:
        """Nobody saw them."""


class Departure(Transaction):
    """Records that are in another topic now, or come there in the same write, go away."""

    __slots__ = ("_arrived", "_feature", "_ranges", "_reason")

    def __init__(self, core: EngineCore, feature: QueueFeature, move: Move, arrived: bool) -> None:
        source = move.source
        self._arrived = arrived
        self._feature = feature
        self._reason = move.reason
        self._ranges: list[SeqRange] = as_ranges(move.seqs, source.head + 1)
        frames = []
        if core.path.logs_removals(source):
            frames.append((FrameKind.DEPARTURE, encode_departure(move.reason, move.dest.id, self._ranges), b""))
        super().__init__(core.path, source, frames)

    def apply(self, timing: CommitTiming) -> None:
        self._feature.depart(self.topic, self._reason, self._ranges)

    def undo(self, error: TopicsError) -> None:
        """What has arrived counts all the same. This log takes nothing more, so readers see it now, and recovery sees
        to it; or, where the log takes nothing only for now, a later frame."""
        if self._arrived:
            shard = self.path.books.shards[self.topic.shard]
            for kind, body, _ in self.frames if shard.writer.halted else ():
                shard.after_heal[object()] = partial(self.path.note, self.topic, kind, body)
            books, before = self.path.books, self.topic.live_bytes
            books.before_change(self.topic)
            self._feature.depart(self.topic, self._reason, self._ranges)
            books.total_bytes += self.topic.live_bytes - before


class Mover:
    def __init__(self, core: EngineCore, feature: QueueFeature) -> None:
        self._core = core
        self._feature = feature

    def move(self, move: Move) -> None:
        """Moves records whose bytes are at hand. The seqs ascend, and nobody else may be moving them."""
        if move.source.shard == move.dest.shard:
            self._begin(move, lambda: None)
        else:
            self._core.cross_shard_gate.enter(lambda: self._begin(move, self._core.cross_shard_gate.leave))

    def _begin(self, move: Move, finished: Callable[[], None]) -> None:
        path = self._core.path
        try:
            # Everything that can refuse a move: once its frames are numbered, nothing may.
            path.check(move.source, patient=True)
            path.check(move.dest, patient=True)
            records = path.admit(move.dest, lambda: move.records, moved=True) or move.records
            path.check_fits(move.dest, records, grows=False)
        except TopicsError as error:
            move.done(error, AT_ONCE)
            finished()
            return
        arrival = Arrival(self._core, move, stage_block(self._core, move.dest, records))

        def done(error: TopicsError | None) -> None:
            assert arrival.block is not None
            move.done(arrival.block if error is None else error, arrival.timing)
            finished()

        if move.source.shard == move.dest.shard:
            path.log_together((arrival, Departure(self._core, self._feature, move, arrived=False)), done)
            return

        def arrived(error: TopicsError | None) -> None:
            if error is None:
                self._depart(move, done)
            else:
                done(error)

        # Synced where it is logged: another shard's log is about to rely on this frame.
        path.log_together((arrival,), arrived, Gate.SYNC if arrival.frames else Gate.CLASS)

    def _depart(self, move: Move, done: Callable[[TopicsError | None], None]) -> None:
        """The records are in their destination, for good: now they leave where they were."""
        core, source = self._core, move.source
        if core.topics.get(source.id) is not source or source.closing:
            # Their topic goes as a whole. Should that fail, the next start finds the arrival and finishes the move.
            done(None)
            return
        departure = Departure(core, self._feature, move, arrived=True)
        # It counts either way.
        core.path.log_together((departure,), lambda error: done(None))
