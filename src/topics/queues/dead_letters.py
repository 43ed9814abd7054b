"""Dead-letter queue: moves jobs that exceed their deliveries to the dead letter topic, and back on request.

No client waits for the move. If it is impossible now, because the destination is full or being deleted, its log is
read-only, or it is a stream whose schema refuses the job, the job stays in the queue, unavailable to workers, and the
move is retried shortly after.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from topics.engine.append import stage_block
from topics.engine.background_jobs import Background
from topics.engine.core import EngineCore
from topics.engine.read import SeqRange, as_ranges
from topics.engine.results import PutDone, PutResult
from topics.engine.topic import Block, Run, RunReader, Topic, block_head, live_ranges
from topics.engine.write_path import FrameDraft, Gate, LogOperation
from topics.log.commit_requests import AT_ONCE, CommitTiming
from topics.log.frame import FrameKind
from topics.log.segment_files import SegmentDamaged
from topics.model.errors import (
    CorruptSegmentError,
    InvalidRequestError,
    JobNotFoundError,
    TopicNotFoundError,
    TopicsError,
)
from topics.model.records import TRAIT_META, Record
from topics.model.topic_config import TopicConfigPatch, TopicType
from topics.queues.leases import RedriveDone, RedriveRequest, RedriveResult
from topics.queues.queue_frames import JobHistory, MoveReason, encode_arrival_head, encode_departure
from topics.queues.queue_state import Cut, Queue, QueueFeature, TopicJobs, find_queue, plan_cut, queue_of
from topics.streams.chunked_validation import is_schema_refusal
from topics.wire.record_copies import Failures, read_provenance, stamp
from topics.wire.record_slicing import RecordParts, parts_of

# Atomic moves of records between topics: a record is in one of them, never in neither, also after a crash.
#
# The records arrive by value, in one frame of the destination's shard that names their origin; that frame is the commit
# of the move. They depart by another frame, in the source's shard; recovery adds a missing departure.
#
# | the two topics are | what is logged | when |
# |---|---|---|
# | in one shard | arrival and departure, in this order, in one write | immediately; replay reads a log up to its end |
# | in two shards | the arrival, synced whatever the class; then the departure | never the second without the first |
#
# In one shard readers see both at the same moment. In two, a reader may find a record in both topics for the duration
# of one commit. A destination of class ephemeral logs no arrival: moved records are as durable as its other records.


class Move:
    """Jobs to move. `done` gets their new block, or the error if nothing was moved."""

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


class Arrival(LogOperation):
    """The arrival of moved records."""

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
        """The records were never visible."""


class Departure(LogOperation):
    """The departure of records that are in another topic now, or arrive there in the same write."""

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
        """Removes the arrived jobs anyway. This log is read-only, so readers see the departure now, and recovery
        repeats it; if the log is only halted, a later frame does."""
        if self._arrived:
            shard = self.path.engine.shards[self.topic.shard]
            for kind, body, _ in self.frames if shard.writer.halted else ():
                shard.after_heal[object()] = partial(self.path.note, self.topic, kind, body)
            engine, before = self.path.engine, self.topic.live_bytes
            engine.before_change(self.topic)
            self._feature.depart(self.topic, self._reason, self._ranges)
            engine.total_bytes += self.topic.live_bytes - before


class Mover:
    def __init__(self, core: EngineCore, feature: QueueFeature) -> None:
        self._core = core
        self._feature = feature

    def move(self, move: Move) -> None:
        """Moves records whose bytes are given. The seqs ascend, and no other move may include them."""
        if move.source.shard == move.dest.shard:
            self._begin(move, lambda: None)
        else:
            self._core.cross_shard_gate.enter(lambda: self._begin(move, self._core.cross_shard_gate.leave))

    def _begin(self, move: Move, finished: Callable[[], None]) -> None:
        path = self._core.path
        try:
            # All checks come first: once its frames are numbered, a move must not fail.
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

        # Synced if it is logged: another shard's log will depend on this frame.
        path.log_together((arrival,), arrived, Gate.SYNC if arrival.frames else Gate.CLASS)

    def _depart(self, move: Move, done: Callable[[TopicsError | None], None]) -> None:
        """Removes the records from their source after the durable arrival."""
        core, source = self._core, move.source
        if not core.exists(source) or source.closing:
            # Their topic is being deleted. If that fails, the next start finds the arrival and finishes the move.
            done(None)
            return
        departure = Departure(core, self._feature, move, arrived=True)
        # The arrival is effective either way.
        core.path.log_together((departure,), lambda error: done(None))


_RETRY_MS = 1000
_MOVE_BYTES = 4 * 1024 * 1024
"""The maximum payload of one frame of a move; a single job always fits."""

CreateTopic = Callable[[str, TopicConfigPatch, PutDone], None]
Found = list[tuple[int, RecordParts]]

_log = logging.getLogger(__name__)


class DeadLetters:
    def __init__(self, core: EngineCore, mover: Mover, background: Background, create: CreateTopic) -> None:
        self._core = core
        self._mover = mover
        self._background = background
        self._create = create
        self._moving: dict[int, set[int]] = {}
        """By topic, the records that a redrive is removing."""
        self._creating: dict[str, list[tuple[Topic, Queue, list[int], Callable[[], None]]]] = {}
        """By name, the dead letter topics being created, and the moves that wait for each."""

    # There

    def bury(self, topic: Topic, queue: Queue, seqs: list[int], then: Callable[[], None] = lambda: None) -> None:
        """Moves jobs that exceeded their deliveries; they are `moving` already. Calls back once each of them has moved
        or is scheduled for a retry."""
        # Meanwhile they, their topic or its dead letter config may have been deleted.
        seqs = [seq for seq in seqs if queue.jobs.is_live(seq)]
        name = topic.config.dead_letter
        if not seqs or not self._core.exists(topic):
            then()
            return
        if name is None:
            queue.lease_table.stay(seqs, self._core.steady())
            then()
            return
        dest = self._core.directory.find(name)
        if dest is None and not topic.config.auto_create:
            self._stay(topic, queue, seqs, TopicNotFoundError(name))
            then()
            return
        if dest is None or name in self._creating:
            self._create_and_bury(name, topic, queue, seqs, then)
            return

        def cut(outcome: object) -> None:
            if isinstance(outcome, list):
                self._bury_found(topic, queue, dest, outcome, then)
            else:
                self._stay(topic, queue, seqs, _as_error(outcome))
                then()

        where, reader = plan_cut(topic, seqs), self._core.reader
        if where.cold:
            self._background(lambda: _split_records(where, seqs, reader), cut, topic.name)
            return
        try:
            found = _split_records(where, seqs, reader)
        except TopicsError as error:
            cut(error)
        else:
            cut(found)

    def _create_and_bury(
        self, name: str, topic: Topic, queue: Queue, seqs: list[int], then: Callable[[], None]
    ) -> None:
        waiting = self._creating.get(name)
        if waiting is not None:
            waiting.append((topic, queue, seqs, then))
            return

        def created(outcome: PutResult | TopicsError) -> None:
            for burial in self._creating.pop(name):
                if isinstance(outcome, TopicsError):
                    self._stay(*burial[:3], outcome)
                    burial[3]()
                else:
                    self.bury(*burial)

        self._creating[name] = [(topic, queue, seqs, then)]
        # As durable as the queue: a failed job must not be easier to lose.
        patch = TopicConfigPatch(type=TopicType.LOG, durability=topic.config.durability)
        try:
            self._create(name, patch, created)
        except TopicsError as error:
            created(error)

    def _bury_found(self, topic: Topic, queue: Queue, dest: Topic, found: Found, then: Callable[[], None]) -> None:
        parts = _portions(found)
        over = _after(len(parts), then)
        for part in parts:
            self._bury_part(topic, queue, dest, part, over)

    def _bury_part(self, topic: Topic, queue: Queue, dest: Topic, part: Found, then: Callable[[], None]) -> None:
        delivered, failures = queue.lease_table.delivered, queue.lease_table.failures
        seqs = [seq for seq, _ in part]
        records = [
            _record(parts, stamp(parts.meta, topic.name, delivered.get(seq, 0), seq, _told(failures.get(seq))))
            for seq, parts in part
        ]

        def done(outcome: Block | TopicsError, timing: CommitTiming) -> None:
            if not isinstance(outcome, TopicsError):
                then()
                return
            if len(part) == 1 or not is_schema_refusal(outcome):
                self._stay(topic, queue, seqs, outcome)
                then()
                return
            # A refused job does not block the others.
            index = outcome.detail.get("index")
            at = index if isinstance(index, int) else len(part) // 2
            some = [one for one in (part[:at], part[at : at + 1], part[at + 1 :]) if one]
            over = _after(len(some), then)
            for one in some:
                self._bury_part(topic, queue, dest, one, over)

        self._mover.move(Move(topic, seqs, dest, records, MoveReason.DEAD_LETTER, done))

    def _stay(self, topic: Topic, queue: Queue, seqs: Sequence[int], error: TopicsError) -> None:
        self._core.totals.dead_letters_refused += len(seqs)
        _log.warning(
            "dead-letter move failed",
            extra={"topic": topic.name, "jobs": len(seqs), "error": error.message},
        )
        queue.lease_table.stay(seqs, self._core.steady() + _RETRY_MS)

    # Redrive

    def redrive(self, topic: Topic, request: RedriveRequest, done: RedriveDone) -> None:
        """Moves jobs of a queue from a topic of dead letters back into it, the oldest first, in one step."""
        core = self._core
        name = request.source if request.source is not None else topic.config.dead_letter
        if name is None:
            raise InvalidRequestError("source: the queue has no dead letter topic", field="source")
        if name == topic.name:
            raise InvalidRequestError("source: must be another topic than the queue", field="source")
        core.check_accepting()
        source = core.existing(name)
        core.expire(source)
        requested, busy = core.limits.clamp_claim(request.max), self._busy(source)
        runs, earliest, head = list(source.runs_from(source.earliest)), source.earliest, source.head

        def found(outcome: object) -> None:
            try:
                if not isinstance(outcome, list):
                    raise _as_error(outcome)
                self._redrive_found(topic, source, outcome, requested, done)
            except TopicsError as error:
                done(error)

        # Off the loop: it may have to scan every record of the source to find this queue's.
        self._background(
            lambda: _find(source.name, source.id, runs, core.reader, earliest, head, topic.name, requested, busy),
            found,
            topic.name,
        )

    def retry(self, topic: Topic, source: Topic, seq: int, done: RedriveDone) -> None:
        """Moves one dead letter back into its queue; JobNotFoundError if it is not a dead letter of this queue."""

        def found(letters: Found) -> None:
            self._redrive_found(topic, source, letters, 1, done)

        self._read_letter(topic, source, seq, found, done)

    def find(
        self, topic: Topic, source: Topic, seq: int, then: Callable[[], None], failed: Callable[[TopicsError], None]
    ) -> None:
        """Continues after a record is confirmed as an unleased dead letter of the queue."""

        def found(letters: Found) -> None:
            if seq in self._busy(source) or not TopicJobs(source, self._core.reader).is_live(seq):
                raise JobNotFoundError(topic.name, seq)
            then()

        self._read_letter(topic, source, seq, found, failed)

    def _read_letter(
        self,
        topic: Topic,
        source: Topic,
        seq: int,
        then: Callable[[Found], None],
        failed: Callable[[TopicsError], None],
    ) -> None:
        core = self._core
        core.check_accepting()
        core.expire(source)
        if not TopicJobs(source, core.reader).is_live(seq):
            raise JobNotFoundError(topic.name, seq)
        cut, reader = plan_cut(source, [seq]), core.reader

        def found(outcome: object) -> None:
            try:
                if not isinstance(outcome, list):
                    raise _as_error(outcome)
                provenance = read_provenance(outcome[0][1].meta)
                if provenance is None or provenance.source != topic.name:
                    raise JobNotFoundError(topic.name, seq)
                then(outcome)
            except TopicsError as error:
                failed(error)

        self._background(lambda: _split_records(cut, [seq], reader), found, topic.name)

    def _busy(self, source: Topic) -> frozenset[int]:
        """Records of a topic that must stay: they are leased or already moving."""
        moving, queue = self._moving.get(source.id, set()), find_queue(source)
        if queue is None:
            return frozenset(moving)
        lease_table = queue.lease_table
        return frozenset(
            (*moving, *lease_table.leases, *lease_table.leaving, *lease_table.moving, *lease_table.delayed)
        )

    def _redrive_found(self, topic: Topic, source: Topic, found: Found, requested: int, done: RedriveDone) -> None:
        core = self._core
        for each in (topic, source):
            if not core.exists(each):
                raise TopicNotFoundError(each.name)
        # The state may have changed since the search began.
        busy, jobs = self._busy(source), TopicJobs(source, core.reader)
        there = [(seq, parts) for seq, parts in found if seq not in busy and jobs.is_live(seq)]
        if not there:
            done(RedriveResult(topic.name, source.name, 0, 0, 0, bool(found)))
            return
        part = _portions(there)[0]
        more = len(found) == requested or len(part) < len(found)
        seqs = [seq for seq, _ in part]
        records = []
        for _, parts in part:
            provenance = read_provenance(parts.meta)
            records.append(_record(parts, provenance.meta if provenance is not None else parts.meta))

        def moved(outcome: Block | TopicsError, timing: CommitTiming) -> None:
            self._let_go(source, seqs, failed=isinstance(outcome, TopicsError))
            if isinstance(outcome, TopicsError):
                done(outcome)
            else:
                first, last = outcome.first_seq, outcome.last_seq
                core.path.acknowledge(
                    topic if topic.rules.remote else source, done,
                    RedriveResult(
                        topic.name, source.name, len(seqs), first, last, more, timing.write_ms, timing.sync_ms
                    ),
                )  # fmt: skip

        self._moving.setdefault(source.id, set()).update(seqs)
        if source.config.type is TopicType.QUEUE:
            # Also for a queue without state: from now on they cannot be claimed there.
            queue_of(source, self._core).lease_table.leave_unleased(seqs)
        self._mover.move(Move(source, seqs, topic, records, MoveReason.REDRIVE, moved))

    def _let_go(self, source: Topic, seqs: list[int], failed: bool) -> None:
        queue = find_queue(source)
        if failed and queue is not None:
            queue.lease_table.stay(seqs, self._core.steady())
        moving, jobs = self._moving[source.id], TopicJobs(source, self._core.reader)
        # Jobs that have arrived elsewhere and could not be removed here must not be moved twice.
        moving.difference_update(seqs if failed else [seq for seq in seqs if not jobs.is_live(seq)])
        if not moving:
            del self._moving[source.id]


def _after(count: int, then: Callable[[], None]) -> Callable[[], None]:
    """Returns a function that calls `done` at its nth call."""
    left = count

    def done() -> None:
        nonlocal left
        left -= 1
        if not left:
            then()

    return done


def _record(parts: RecordParts, meta: bytes | None) -> Record:
    return Record(msgspec.Raw(parts.data), parts.tag, parts.node, msgspec.Raw(meta) if meta is not None else None)


def _told(history: JobHistory | None) -> Failures | None:
    """The failures of a job in its dead letter."""
    return None if history is None else Failures(history.last[-1].reason, history.first_ms, history.last[-1].at_ms)


def _portions(found: Found) -> list[Found]:
    """Jobs in portions that fit into one frame."""
    portions: list[Found] = [[]]
    room = _MOVE_BYTES
    for seq, parts in found:
        size = len(parts.data) + len(parts.meta or b"")
        if portions[-1] and size > room:
            portions.append([])
            room = _MOVE_BYTES
        portions[-1].append((seq, parts))
        room -= size
    return portions


def _split_records(cut: Cut, seqs: Sequence[int], reader: RunReader) -> Found:
    parts: list[RecordParts] = []
    for run, lo, hi in cut.slices:
        try:
            for view, view_lo, view_hi, _ in reader.views(cut.topic_id, run, lo, hi):
                parts += [parts_of(view, index) for index in range(view_lo, view_hi)]
        except SegmentDamaged as damage:
            raise CorruptSegmentError(cut.topic_name, run.first_seq + lo, run.first_seq + hi - 1) from damage
    return list(zip(seqs, parts, strict=True))


def _find(
    name: str, topic_id: int, runs: list[Run], reader: RunReader, earliest: int, head: int, queue: str, requested: int,
    busy: frozenset[int],
) -> Found:  # fmt: skip
    """The oldest dead letters of a queue. Reads only immutable state, so it may run on any thread."""
    found: Found = []
    for run in runs:
        if not run.traits & TRAIT_META or run.first_seq > head:
            continue
        try:
            for lo, hi in live_ranges(reader.flags(topic_id, run), max(earliest - run.first_seq, 0), run.count):
                for view, view_lo, view_hi, offset in reader.views(topic_id, run, lo, hi):
                    for index in range(view_lo, view_hi):
                        seq = run.first_seq + offset + index
                        if seq in busy or not view.rows[3 * index + 1]:
                            continue
                        parts = parts_of(view, index)
                        provenance = read_provenance(parts.meta)
                        if provenance is not None and provenance.source == queue:
                            found.append((seq, parts))
                            if len(found) == requested:
                                return found
        except SegmentDamaged as damage:
            raise CorruptSegmentError(name, run.first_seq, run.last_seq) from damage
    return found


def _as_error(outcome: object) -> TopicsError:
    return outcome if isinstance(outcome, TopicsError) else TopicsError(f"dead letters could not be read: {outcome}")
