"""Dead letters: jobs that were delivered too often go to the dead letter topic, and come back when they are sent back.

Nobody waits for a burial. When it cannot be done now, because the destination is full or being deleted, its log takes
no writes, or it is a stream whose schema demands something else, the job stays where it is, out of reach of workers,
and is tried again a moment later.
"""

import logging
from collections.abc import Callable, Sequence

import msgspec

from topics.core.config import TopicConfigPatch, TopicType
from topics.core.errors import CorruptSegmentError, InvalidRequestError, TopicNotFoundError, TopicsError
from topics.core.records import Record
from topics.core.rows import TRAIT_META
from topics.engine.background import Background
from topics.engine.core import EngineCore
from topics.engine.queues.jobs import Cut, TopicJobs, plan_cut
from topics.engine.queues.messages import RedriveDone, RedriveRequest, RedriveResult
from topics.engine.queues.moving import Move, Mover
from topics.engine.queues.state import Queue, find_queue, queue_of
from topics.engine.results import PutDone, PutResult
from topics.engine.state.runs import Block, Run, RunReader, live_ranges
from topics.engine.streams.description import is_schema_refusal
from topics.engine.topic import Topic
from topics.formats.queue import MoveReason
from topics.storage.segments import SegmentDamaged
from topics.storage.timing import CommitTiming
from topics.wire.cuts import RecordParts, parts_of
from topics.wire.provenance import read_provenance, stamp

_RETRY_MS = 1000
_MOVE_BYTES = 4 * 1024 * 1024
"""Payload that goes into one frame of a move; a single job always fits."""

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
        """By topic, the records that a redrive is taking away."""
        self._creating: dict[str, list[tuple[Topic, Queue, list[int]]]] = {}
        """By name, the dead letter topics on their way, and the burials that wait for each."""

    # There

    def bury(self, topic: Topic, queue: Queue, seqs: list[int]) -> None:
        """Moves jobs that were delivered too often; they are `moving` already."""
        # Meanwhile they may have been deleted, or their topic, or its wish to be rid of them.
        seqs = [seq for seq in seqs if queue.jobs.is_live(seq)]
        name = topic.config.dead_letter
        if not seqs or self._core.topics.get(topic.id) is not topic:
            return
        if name is None:
            queue.book.stay(seqs, self._core.steady())
            return
        dest = self._core.by_name.get(name)
        if dest is None or name in self._creating:
            self._create_and_bury(name, topic, queue, seqs)
            return

        def cut(outcome: object) -> None:
            if isinstance(outcome, list):
                self._bury_found(topic, queue, dest, outcome)
            else:
                self._stay(topic, queue, seqs, _as_error(outcome))

        where, reader = plan_cut(topic, seqs), self._core.reader
        if where.cold:
            self._background(lambda: _take_apart(where, seqs, reader), cut)
            return
        try:
            found = _take_apart(where, seqs, reader)
        except TopicsError as error:
            cut(error)
        else:
            cut(found)

    def _create_and_bury(self, name: str, topic: Topic, queue: Queue, seqs: list[int]) -> None:
        waiting = self._creating.get(name)
        if waiting is not None:
            waiting.append((topic, queue, seqs))
            return

        def created(outcome: PutResult | TopicsError) -> None:
            for burial in self._creating.pop(name):
                if isinstance(outcome, TopicsError):
                    self._stay(*burial, outcome)
                else:
                    self.bury(*burial)

        self._creating[name] = [(topic, queue, seqs)]
        # As lasting as the queue: a job must not become easier to lose by failing.
        patch = TopicConfigPatch(type=TopicType.LOG, durability=topic.config.durability)
        try:
            self._create(name, patch, created)
        except TopicsError as error:
            created(error)

    def _bury_found(self, topic: Topic, queue: Queue, dest: Topic, found: Found) -> None:
        for part in _portions(found):
            self._bury_part(topic, queue, dest, part)

    def _bury_part(self, topic: Topic, queue: Queue, dest: Topic, part: Found) -> None:
        delivered = queue.book.delivered
        seqs = [seq for seq, _ in part]
        records = [_record(parts, stamp(parts.meta, topic.name, delivered.get(seq, 0), seq)) for seq, parts in part]

        def done(outcome: Block | TopicsError, timing: CommitTiming) -> None:
            if not isinstance(outcome, TopicsError):
                return
            if len(part) == 1 or not is_schema_refusal(outcome):
                self._stay(topic, queue, seqs, outcome)
                return
            # One that is not taken keeps none of the others.
            index = outcome.detail.get("index")
            at = index if isinstance(index, int) else len(part) // 2
            for some in (part[:at], part[at : at + 1], part[at + 1 :]):
                if some:
                    self._bury_part(topic, queue, dest, some)

        self._mover.move(Move(topic, seqs, dest, records, MoveReason.DEAD_LETTER, done))

    def _stay(self, topic: Topic, queue: Queue, seqs: Sequence[int], error: TopicsError) -> None:
        self._core.totals.dead_letters_refused += len(seqs)
        _log.warning(
            "jobs could not be moved to the dead letter topic and are tried again",
            extra={"topic": topic.name, "jobs": len(seqs), "error": error.message},
        )
        queue.book.stay(seqs, self._core.steady() + _RETRY_MS)

    # And back

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
        wanted, busy = core.limits.clamp_claim(request.max), self._busy(source)
        runs, earliest, head = list(source.runs_from(source.earliest)), source.earliest, source.head

        def found(outcome: object) -> None:
            try:
                if not isinstance(outcome, list):
                    raise _as_error(outcome)
                self._redrive_found(topic, source, outcome, wanted, done)
            except TopicsError as error:
                done(error)

        # Off the loop: it may have to look at every record of the source to find this queue's.
        self._background(
            lambda: _find(source.name, source.id, runs, core.reader, earliest, head, topic.name, wanted, busy), found
        )

    def _busy(self, source: Topic) -> frozenset[int]:
        """Records of a topic that must stay: workers have them, or they are on their way already."""
        moving, queue = self._moving.get(source.id, set()), find_queue(source)
        if queue is None:
            return frozenset(moving)
        book = queue.book
        return frozenset((*moving, *book.leases, *book.leaving, *book.moving, *book.delayed))

    def _redrive_found(self, topic: Topic, source: Topic, found: Found, wanted: int, done: RedriveDone) -> None:
        core = self._core
        for each in (topic, source):
            if core.topics.get(each.id) is not each:
                raise TopicNotFoundError(each.name)
        # Time has passed since the search began.
        busy, jobs = self._busy(source), TopicJobs(source, core.reader)
        there = [(seq, parts) for seq, parts in found if seq not in busy and jobs.is_live(seq)]
        if not there:
            done(RedriveResult(topic.name, source.name, 0, 0, 0, bool(found)))
            return
        part = _portions(there)[0]
        more = len(found) == wanted or len(part) < len(found)
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
                done(
                    RedriveResult(
                        topic.name, source.name, len(seqs), first, last, more, timing.write_ms, timing.sync_ms
                    )
                )

        self._moving.setdefault(source.id, set()).update(seqs)
        if source.config.type is TopicType.QUEUE:
            # Also where nothing happened in it yet: from now on nobody can claim them there.
            queue_of(source, self._core).book.leave_unleased(seqs)
        self._mover.move(Move(source, seqs, topic, records, MoveReason.REDRIVE, moved))

    def _let_go(self, source: Topic, seqs: list[int], failed: bool) -> None:
        queue = find_queue(source)
        if failed and queue is not None:
            queue.book.stay(seqs, self._core.steady())
        moving, jobs = self._moving[source.id], TopicJobs(source, self._core.reader)
        # What has arrived elsewhere and could not leave must not be sent a second time.
        moving.difference_update(seqs if failed else [seq for seq in seqs if not jobs.is_live(seq)])
        if not moving:
            del self._moving[source.id]


def _record(parts: RecordParts, meta: bytes | None) -> Record:
    return Record(msgspec.Raw(parts.data), parts.tag, parts.node, msgspec.Raw(meta) if meta is not None else None)


def _portions(found: Found) -> list[Found]:
    """Jobs in portions that are not too large for one frame."""
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


def _take_apart(cut: Cut, seqs: Sequence[int], reader: RunReader) -> Found:
    parts: list[RecordParts] = []
    for run, lo, hi in cut.stretches:
        try:
            for view, view_lo, view_hi, _ in reader.views(cut.topic_id, run, lo, hi):
                parts += [parts_of(view, index) for index in range(view_lo, view_hi)]
        except SegmentDamaged as damage:
            raise CorruptSegmentError(cut.topic_name, run.first_seq + lo, run.first_seq + hi - 1) from damage
    return list(zip(seqs, parts, strict=True))


def _find(
    name: str, topic_id: int, runs: list[Run], reader: RunReader, earliest: int, head: int, queue: str, wanted: int,
    busy: frozenset[int],
) -> Found:  # fmt: skip
    """The oldest dead letters of a queue. Touches nothing that changes, so any thread may do it."""
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
                            if len(found) == wanted:
                                return found
        except SegmentDamaged as damage:
            raise CorruptSegmentError(name, run.first_seq, run.last_seq) from damage
    return found


def _as_error(outcome: object) -> TopicsError:
    return outcome if isinstance(outcome, TopicsError) else TopicsError(f"dead letters could not be read: {outcome}")
