"""Commit: the staged records are written to their topics, and one frame makes all of them visible.

| step | what is logged | a crash behind it |
|---|---|---|
| prepare | a TXN_APPEND for each batch, in its topic's shard; then these are synced | the seqs are skipped: unseen |
| decide | a TXN_COMMIT in the shard of the transaction log topic; synced | all of it is there |
| publish | nothing | |

If everything is in one shard and not large, prepare and decide are one write and one sync: a log is read from its
start, so the commit never exists without its records. A large transaction is prepared in rounds, so that no tick of the
loop is long, and synced after the last of them; other records may then be between its records.

From its first frame until the decision, no later operation of its topics is published (`engine.write_path`). No
checkpoint rotates the shards meanwhile, so prepares and commit are on the same side of it. One commit runs at a time.

Failures: if a prepare fails, or a commit fails transiently and is truncated, the seqs are skipped, here and by
recovery. After any other failure of the commit the contents of the disk are unknown: the shards concerned become
read-only, and the next start recovers the outcome.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise

import msgspec

from topics.engine.conditional_append import check_conditions
from topics.engine.core import EngineCore
from topics.engine.topic import Block, Topic, block_head
from topics.engine.write_path import Change, FrameDraft, Gate, LogOperation
from topics.log.commit_requests import CommitTiming
from topics.log.frame import BASE_MAX, FrameKind
from topics.log.segment_files import SegmentDamaged
from topics.model.errors import CorruptSegmentError, NotAQueueError, TopicNotFoundError, TopicsError
from topics.model.records import Record
from topics.model.topic_config import TopicType
from topics.queues.job_order import order_frames, order_of
from topics.queues.queue_frames import JobTerms
from topics.schema.documents import MAX_PORTION
from topics.transactions.transaction_frames import Committed, PartState, Placed, encode_append_head, encode_mark
from topics.transactions.transaction_state import TransactionFeature
from topics.wire.record_copies import Copies, RecordSlice, cut_copies, records_of, render
from topics.wire.record_encoding import encode_fragments
from topics_protocol.transactions import Condition

# Staged records as copies for their topics: extracted from the text of the staging records, never parsed.

_BLOCK_RECORDS = 4096
"""The maximum number of records of a block that joins small parts."""


def collect_copies(core: EngineCore, log_topic: Topic, parts: Sequence[PartState]) -> Iterator[Copies]:
    """The records of some parts, in order."""
    slices: list[RecordSlice] = []
    count = 0
    for part in parts:
        if count and count + part.count > _BLOCK_RECORDS:
            yield cut_copies(slices)
            slices, count = [], 0
        slices += _record_slices(core, log_topic, part)
        count += part.count
    if slices:
        yield cut_copies(slices)


def _record_slices(core: EngineCore, log_topic: Topic, part: PartState) -> list[RecordSlice]:
    found: list[RecordSlice] = []
    last = part.first_seq + part.count - 1
    count = 0
    try:
        for run in log_topic.runs_from(part.first_seq):
            if run.first_seq > last:
                break
            lo, hi = max(part.first_seq - run.first_seq, 0), min(last + 1 - run.first_seq, run.count)
            for view, view_lo, view_hi, offset in core.reader.views(log_topic.id, run, lo, hi):
                found.append(RecordSlice(view, view_lo, view_hi, run.first_seq + offset))
                count += view_hi - view_lo
    except SegmentDamaged as damage:
        raise CorruptSegmentError(log_topic.name, part.first_seq, last) from damage
    if count != part.count:
        raise CorruptSegmentError(log_topic.name, part.first_seq, last)
    return found


def stage_copies(core: EngineCore, topic: Topic, copies: Copies | list[Record]) -> Block:
    """Assigns seqs to records, possibly changed by the topic's guard, that already count as in flight.

    From here on nothing may fail until their frame is submitted.
    """
    first = topic.staged_head + 1
    written = core.wall()
    ts = topic.staged_ts = max(written, topic.staged_ts)
    base = topic.next_base if topic.next_base < BASE_MAX else 0
    if isinstance(copies, list):
        text, rows, payload_bytes, traits = encode_fragments(copies, first, ts, None, base)
    else:
        text, rows, payload_bytes, traits = render(copies, first, ts, base)
    block = Block(first, ts, payload_bytes, base, traits, None, rows, text, written)
    topic.staged_head += block.count
    topic.next_base = block.next_base
    return block


_ROUND_BYTES = 512 * 1024
_ROUND_RECORDS = 2000
"""The amount of a transaction that is prepared at once: some milliseconds of work, or one part."""
_PIECE_BYTES = 2 * 1024 * 1024
_PIECE_RECORDS = 2000
"""A larger part is split."""
_NUMBER_BYTES = 8

Outcome = Callable[[list[Placed] | TopicsError], None]


class _Prepare(LogOperation):
    """Records that are in the log of their topic and become visible when their commit is decided."""

    __slots__ = ("_commit", "_core", "_order", "_prepared")

    def __init__(self, core: EngineCore, commit: "Commit", topic: Topic, block: Block, terms: JobTerms | None) -> None:
        frames: list[FrameDraft] = []
        self._core = core
        self._order = None if terms is None else order_of(terms, core.time)
        if topic.rules.logged:
            if self._order is not None:
                frames += order_frames(self._order, block.first_seq, block.last_seq, core.time)
            frames.append((FrameKind.TXN_APPEND, encode_append_head(commit.number) + block_head(block), block.text))
        super().__init__(core.path, topic, frames, block)
        self._commit = commit
        self._prepared = False

    def finalize(self, timing: CommitTiming) -> None:
        if not self._prepared:
            self._prepared = True
            self.path.held.hold(self, self.topic, timing)
        elif self._commit.decided:
            super().finalize(timing)
        else:
            self._skip()

    def _skip(self) -> None:
        """Skips the seqs of a prepared part without a commit, as recovery does."""
        topic, block, engine = self.topic, self.block, self.path.engine
        assert block is not None
        topic.sync_inflight -= self.needs_sync
        engine.before_change(topic)
        topic.ceiling = max(topic.ceiling, self.ceiling)
        self.path.unstage(topic, block)
        engine.applier.gap(topic, block.first_seq, block.last_seq, None)

    def apply(self, timing: CommitTiming) -> None:
        if self._order is not None and self.block is not None:
            # First, because publishing may wake a worker immediately.
            block = self.block
            self._core.jobs_ordered.emit(self.topic, block.first_seq, block.last_seq, self._order)
        self.publish()

    def undo(self, error: TopicsError) -> None:
        """Undoes a commit that was never visible."""


class _Decision(LogOperation):
    """The frame that commits a transaction."""

    __slots__ = ("_committed", "_feature")

    def __init__(self, core: EngineCore, feature: TransactionFeature, topic: Topic, committed: Committed) -> None:
        super().__init__(core.path, topic, ((FrameKind.TXN_COMMIT, encode_mark(committed), b""),))
        self._feature = feature
        self._committed = committed

    def apply(self, timing: CommitTiming) -> None:
        self._feature.drop(self.topic, self._feature.table.commit(self._committed))

    def undo(self, error: TopicsError) -> None:
        """The transaction is still open."""


class Commit:
    """A commit in progress."""

    def __init__(
        self, core: EngineCore, feature: TransactionFeature, transaction_id: str, sequence: int,
        parts: Sequence[PartState], outcome: Outcome, conditions: Mapping[str, Condition],
    ) -> None:  # fmt: skip
        self._core = core
        self._feature = feature
        self._id = transaction_id
        self._sequence = sequence
        self._outcome = outcome
        self._conditions = conditions
        self.number = int.from_bytes(core.entropy.token(_NUMBER_BYTES), "little")
        self.decided = False
        log_topic = feature.topic
        assert log_topic is not None
        self._log_topic = log_topic
        self._rounds = _rounds(parts)
        self._parts = parts
        self._topics: dict[str, Topic] = {}
        self._placed: dict[str, Placed] = {}
        self._reserved: dict[str, tuple[int, int]] = {}
        """By topic: records and bytes that count as in flight but are in no block yet."""
        self._pending = 0
        self._error: TopicsError | None = None
        self._shards: set[int] = set()
        """The shards and topics with prepared records."""

    def start(self) -> None:
        self._core.cross_shard_gate.enter(self._begin)

    def _begin(self) -> None:
        try:
            self._check()
        except TopicsError as error:
            self._finish(error)
            return
        self._reserve()
        self._prepare()

    # Checks

    def _check(self) -> None:
        """Runs all checks that can refuse the commit as a whole."""
        core, path = self._core, self._core.path
        sums: dict[str, tuple[int, int]] = {}
        for part in self._parts:
            count, size = sums.get(part.topic, (0, 0))
            sums[part.topic] = count + part.count, size + part.size
        of_queues = {part.topic for part in self._parts if part.terms is not None}
        path.check(self._log_topic)
        for name, (count, size) in sums.items():
            topic = core.directory.find(name)
            if topic is None or not topic.created:
                raise TopicNotFoundError(name)
            if name in of_queues and topic.staged_config.type is not TopicType.QUEUE:
                raise NotAQueueError(name)
            core.expire(topic)
            path.check(topic, patient=True)
            self._expect(topic)
            path.admit(topic, lambda: ())
            path.check_moves_in(topic, count, size)
            self._topics[name] = topic
        if path.lease is not None:
            path.lease.check(sum(count for count, _ in sums.values()))
        self._reserved = sums

    def _expect(self, topic: Topic) -> None:
        """Raises unless the topic meets the conditions of the commit."""
        condition = self._conditions.get(topic.name)
        if condition is not None:
            check_conditions(topic, condition.expected_head_seq, condition.fence)

    def _reserve(self) -> None:
        """Counts all records as in flight, which reserves their room."""
        for name, (count, size) in self._reserved.items():
            self._count(self._topics[name], count, size)

    def _unreserve(self) -> None:
        """Releases reservations for records that are in no block, or were smaller than staged."""
        for name, (count, size) in self._reserved.items():
            self._count(self._topics[name], -count, -size)
        self._reserved = {}

    def _count(self, topic: Topic, count: int, size: int) -> None:
        topic.staged_count += count
        topic.staged_bytes += size
        self._core.staged_bytes += size

    # Prepare

    def _prepare(self) -> None:
        """Prepares the next round, or decides."""
        if not self._rounds:
            self._decide()
            return
        parts = self._rounds.pop(0)
        try:
            loads = self._load(parts)
        except TopicsError as error:
            self._give_up(error)
            return
        by_shard: dict[int, list[LogOperation]] = {}
        for topic, copies, terms in loads:
            by_shard.setdefault(topic.shard, []).append(self._stage(topic, copies, terms))
        path, log_topic = self._core.path, self._log_topic
        if not self._rounds and not self._shards and by_shard.keys() == {log_topic.shard}:
            # One write for everything.
            path.log_together([*by_shard[log_topic.shard], self._decision()], self._logged, Gate.SYNC, decides=True)
            return
        self._shards |= by_shard.keys()
        self._pending = len(by_shard) + (0 if self._rounds else len(self._shards))
        for prepares in by_shard.values():
            # Written; later parts wait for the sync of earlier ones.
            path.log_together(prepares, self._prepared, Gate.TURN, decides=True)
        for shard in () if self._rounds else self._shards:
            path.log_together([self._barrier(shard)], self._prepared, Gate.SYNC, decides=True)

    def _barrier(self, shard: int) -> LogOperation:
        """Only a position in a shard's log, after all prepared records there."""
        topic = next(topic for topic in self._topics.values() if topic.shard == shard)
        return Change(self._core.path, topic, (), lambda timing: None, lambda error: None)

    def _load(self, parts: Sequence[PartState]) -> list[tuple[Topic, Copies | list[Record], JobTerms | None]]:
        """Loads the staged records of each topic; checks again whether the topics accept them, because other rounds may
        have run meanwhile."""
        core, path = self._core, self._core.path
        loads: list[tuple[Topic, Copies | list[Record], JobTerms | None]] = []
        for name, some in _by_topic(parts).items():
            topic = self._topics[name]
            path.check(topic, patient=True)
            if name not in self._placed:
                self._expect(topic)
            for terms, alike in groupby(some, lambda part: part.terms):
                for copies in collect_copies(core, self._log_topic, list(alike)):
                    loads.append((topic, copies if topic.guard is None else self._admitted(topic, copies), terms))
        path.check(self._log_topic, patient=True)
        return loads

    def _admitted(self, topic: Topic, copies: Copies) -> Copies | list[Record]:
        """Yields the records in small parts, for a topic whose features check them."""
        records, same = records_of(copies), True
        admitted: list[Record] = []
        for begin in range(0, len(records), MAX_PORTION):
            portion = records[begin : begin + MAX_PORTION]
            taken = self._core.path.admit(topic, lambda portion=portion: portion)  # type: ignore[misc]
            same = same and taken is None
            admitted += portion if taken is None else taken
        return copies if same else admitted

    def _stage(self, topic: Topic, copies: Copies | list[Record], terms: JobTerms | None) -> _Prepare:
        block = stage_copies(self._core, topic, copies)
        count, size = self._reserved[topic.name]
        self._reserved[topic.name] = count - block.count, size - block.payload_bytes
        placed = self._placed.get(topic.name)
        self._placed[topic.name] = Placed(
            topic.name, placed.first_seq if placed else block.first_seq, block.last_seq,
            block.count + (placed.count if placed else 0),
        )  # fmt: skip
        return _Prepare(self._core, self, topic, block, terms)

    def _prepared(self, error: TopicsError | None) -> None:
        self._pending -= 1
        self._error = self._error or error
        if self._pending:
            return
        if self._error is not None:
            self._give_up(self._error)
        else:
            self._prepare()

    # Decide

    def _decide(self) -> None:
        poison = self._core.shards[self._log_topic.shard].writer.poison
        if poison is not None:
            self._give_up(poison)
            return
        self._core.path.log_together([self._decision()], self._logged, Gate.SYNC, decides=True)

    def _decision(self) -> _Decision:
        committed = Committed(self.number, self._id, self._sequence, self._core.wall(), list(self._placed.values()))
        return _Decision(self._core, self._feature, self._log_topic, committed)

    def _logged(self, error: TopicsError | None) -> None:
        if error is not None and not self._core.shards[self._log_topic.shard].writer.doubtful:
            # It failed transiently and was truncated.
            self._give_up(error)
            return
        self._unreserve()
        if error is None:
            self.decided = True
            self._core.path.held.release()
            self._core.cross_shard_gate.leave()
            topics = self._topics.values()
            slowest = next((topic for topic in topics if topic.rules.remote), self._log_topic)
            self._core.path.acknowledge(slowest, self._outcome, list(self._placed.values()))
            return
        # It may be on the disk nevertheless. Later operations must not depend on the prepared records.
        for number in self._shards:
            writer = self._core.shards[number].writer
            if not writer.broken:
                writer.give_up(error)
        self._core.path.held.give_up(error)
        self._finish(error)

    def _give_up(self, error: TopicsError) -> None:
        """Called when no commit was written, and none will be."""
        self._unreserve()
        self._core.path.held.release()
        self._finish(error)

    def _finish(self, outcome: list[Placed] | TopicsError) -> None:
        self._core.cross_shard_gate.leave()
        self._outcome(outcome)


def _rounds(parts: Sequence[PartState]) -> list[list[PartState]]:
    rounds: list[list[PartState]] = []
    size = count = 0
    for part in chain.from_iterable(map(_pieces, parts)):
        if not rounds or size + part.size > _ROUND_BYTES or count + part.count > _ROUND_RECORDS:
            rounds.append([])
            size = count = 0
        rounds[-1].append(part)
        size += part.size
        count += part.count
    return rounds


def _pieces(part: PartState) -> list[PartState]:
    """Splits a part that is too large for one round, as if all its records had the same length."""
    count = min(part.count, max(-(-part.size // _PIECE_BYTES), -(-part.count // _PIECE_RECORDS)))
    if count <= 1:
        return [part]
    cuts = [(part.count * number // count, part.size * number // count) for number in range(count + 1)]
    return [
        msgspec.structs.replace(part, first_seq=part.first_seq + first, count=last - first, size=end - begin)
        for (first, begin), (last, end) in pairwise(cuts)
    ]


def _by_topic(parts: Sequence[PartState]) -> dict[str, list[PartState]]:
    found: dict[str, list[PartState]] = {}
    for part in parts:
        found.setdefault(part.topic, []).append(part)
    return found
