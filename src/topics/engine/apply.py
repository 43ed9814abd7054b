"""Applying logged changes to the state of topics, by the same code for live operations and for recovery.

A change is applied after its frame is as durable as the topic's class requires, in the order of the log for each topic.
Applying is deterministic: the same state and the same frames give the same result, so replay always agrees with earlier
reads.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from operator import attrgetter

from topics.engine.features import Features
from topics.engine.idempotency import KeyMemory
from topics.engine.read import SeqRange, remember
from topics.engine.retention import Retention
from topics.engine.topic import Block, Run, RunReader, Segment, Topic, count_live
from topics.log.segment import DELETED
from topics.log.segment_files import SegmentKey
from topics.log.snapshot_files import TopicState
from topics.model.seq_ranges import LossReason, LostRange
from topics.model.topic_config import Durability, TopicConfig, decode_config
from topics.system.events import Event
from topics.wire.record_slicing import Range, payload_sizes

# Seq ceilings: the highest seq that a topic may assign before the disk has its head.
#
# Class `disk` shows a record before it is synced, and class `ephemeral` never logs one. If a crash reset the topic to
# the head on the disk, a seq that a reader has seen would be assigned to another record. So every visible seq is at
# most a *ceiling*, and after a crash the topic continues above it.
#
# | what the disk holds | the ceiling that follows from it |
# |---|---|
# | the topic's creation, or a change of its config | its head then, and `reserve` seqs more |
# | a snapshot with its head | that head, and as many more |
# | a CEILING frame | the value in the frame |
#
# The first two cost nothing: recovery adds the reserve itself (`engine.recovery` records its size). So a topic always
# has a reserve for its first records, without waiting. When half of the reserve is left, a frame extends it in the
# background; the faster a topic uses it, the larger the extension. Only a burst of more records than the reserve within
# one sync of the disk waits for the sync: assigning a seq twice would be worse.

_RESERVE_MAX = 1 << 20
_QUICK_MS = 1000


def needs_ceiling(durability: Durability) -> bool:
    return durability.reserves_seqs or not durability.logged


def grant(topic: Topic, reserve: int) -> None:
    """Notes that the disk has the topic's head, or will have it before more records become visible."""
    if needs_ceiling(topic.config.durability):
        topic.ceiling = max(topic.ceiling, topic.head + reserve)
        topic.ceiling_staged = max(topic.ceiling_staged, topic.ceiling)
        topic.reserve = max(topic.reserve, reserve)


def next_ceiling(topic: Topic, last: int, now: int, reserve: int) -> int:
    """Stages a higher ceiling.

    A topic with few writes gets a small reserve, because a crash turns the rest into a gap.
    """
    quick = now - topic.reserved_at < _QUICK_MS
    topic.reserve = max(min(topic.reserve * 2, _RESERVE_MAX) if quick else 0, reserve)
    topic.reserved_at = now
    topic.ceiling_staged = last + topic.reserve
    return topic.ceiling_staged


_DELETED = bytes((DELETED,))
_DELETED_RUNS = re.compile(re.escape(_DELETED) + b"+")
_FULL = bytes([0xFF if byte == DELETED else 0 for byte in range(256)])
"""Translates flags to bits; a set bit means deleted."""
_FIRST_SEQ = attrgetter("first_seq")
_MANY = 64

MANY_RANGES = 800
"""With more ranges than this, deletes go run by run instead of range by range."""


# Deletes of many records of a run at once.
#
# Counting their bytes takes a millisecond for every few thousand, so it is done before, on any thread. Applying then
# only replaces the flags.


class Marks:
    """Records of one run to delete, and the effect on the run as of the time of the scan."""

    __slots__ = ("after", "before", "count", "earliest", "first_seq", "live", "live_bytes", "marked", "mask", "pairs")

    def __init__(self, run: Run, mask: bytes | bytearray, earliest: int) -> None:
        """`mask` has a flag for each record to delete; `earliest` is the topic's first live seq."""
        self.first_seq = run.first_seq
        self.count = run.count
        self.mask = bytes(mask)
        self.earliest = earliest
        self.before = None if run.flags is None else bytes(run.flags)
        """The run's flags; None while they are in its file only, or there are none."""
        self.marked = run.marked if isinstance(run, Segment) else 0
        self.after = bytearray()
        self.live = self.live_bytes = 0
        """The number of live records among them, and their payload bytes."""
        self.pairs = array("Q")
        """The first and last seqs of the ranges of live records to delete, concatenated."""

    def weigh(self, reader: RunReader, topic_id: int, run: Run) -> None:
        """Counts the live records and their size. May run on any thread."""
        flags: bytes | bytearray | None = self.before
        if flags is None and self.marked:
            assert isinstance(run, Segment)
            flags = reader.store.flags(SegmentKey(topic_id, run.first_seq, run.cold), run.count)
        mask, hidden = self.mask, self.earliest - self.first_seq
        if hidden > 0:
            mask = bytes(min(hidden, self.count)) + mask[hidden:]
        if flags is not None:
            mask = _and_not(mask, flags)
        self.mask = mask
        self.after = bytearray(mask) if flags is None else bytearray(_or(flags, mask))
        self.live = mask.count(_DELETED)
        self.live_bytes = self._size(reader, topic_id, run) if self.live else 0
        self.pairs = array("Q")
        for span in _DELETED_RUNS.finditer(mask):
            self.pairs.extend((self.first_seq + span.start(), self.first_seq + span.end() - 1))

    def _size(self, reader: RunReader, topic_id: int, run: Run) -> int:
        if self.live == self.count:
            return run.payload_bytes
        if self.live <= _MANY:
            return reader.payload_bytes(topic_id, run, [found.span() for found in _DELETED_RUNS.finditer(self.mask)])
        total = 0
        for view, lo, hi, offset in reader.views(topic_id, run, 0, self.count, check=False):
            total += sum(compress(payload_sizes(view, lo, hi), self.mask[offset + lo : offset + hi]))
        return total

    def fits(self, topic_earliest: int, run: Run) -> bool:
        """Returns whether the run is unchanged: it is the same object, and nothing of it was removed since."""
        if run.first_seq != self.first_seq or run.count != self.count:
            return False
        if topic_earliest > max(self.earliest, self.first_seq):
            return False
        # Flags are never cleared, so equal counts mean equal flags.
        return run.marked == self.marked if isinstance(run, Segment) else run.flags == self.before

    def ranges(self) -> Iterator[Range]:
        """Returns the ranges of live records to delete."""
        return zip(self.pairs[::2], self.pairs[1::2], strict=True)


def marks_of(runs: Iterable[Run], ranges: Sequence[Range], earliest: int) -> Iterator[tuple[Run, Marks]]:
    """Returns marks for each run that contains some of the ascending ranges. They are not counted yet."""
    place, total = 0, len(ranges)
    for run in runs:
        first_seq, last_seq, mask = run.first_seq, run.last_seq, None
        while place < total:
            first, last = ranges[place]
            if first > last_seq:
                break
            if last >= first_seq:
                mask = bytearray(run.count) if mask is None else mask
                lo, hi = max(first - first_seq, 0), min(last, last_seq) - first_seq + 1
                mask[lo:hi] = _DELETED * (hi - lo)
            if last > last_seq:
                break
            place += 1
        if mask is not None:
            yield run, Marks(run, mask, earliest)
        if place == total:
            return


def is_marked(marks: Sequence[Marks], seq: int) -> bool:
    """Returns whether a seq is among the records that ascending marks delete."""
    place = bisect_right(marks, seq, key=_FIRST_SEQ) - 1
    if place < 0:
        return False
    mark, index = marks[place], seq - marks[place].first_seq
    return index < mark.count and mark.mask[index] == DELETED


def _and_not(mask: bytes, flags: bytes | bytearray) -> bytes:
    left = int.from_bytes(mask, "little") & ~int.from_bytes(flags.translate(_FULL), "little")
    return left.to_bytes(len(mask), "little")


def _or(flags: bytes | bytearray, mask: bytes) -> bytes:
    # Any other value means live, so it must not be kept.
    kept = int.from_bytes(flags, "little") & ~int.from_bytes(mask.translate(_FULL), "little")
    return (kept | int.from_bytes(mask, "little")).to_bytes(len(mask), "little")


class Applier:
    def __init__(self, reader: RunReader, retention: Retention, reserve: int) -> None:
        self._reader = reader
        self._retention = retention
        self._totals = retention.totals
        self.reserve = reserve
        """The number of seqs that a topic may assign beyond the head on the disk."""
        self.appended: Event[Topic] = Event()
        """A block was published (`engine.sealing`, `search.service.index_feed`)."""
        self.kept: Event[Topic] = Event()
        """The memory kept by a topic changed (`engine.quotas`)."""
        self.cut_due: Event[Topic] = Event()
        """A topic's tail must be sealed (`engine.sealing`)."""
        self.deleted: Event[Topic, int, list[SeqRange]] = Event()
        """Records of a topic with features were deleted (`queues`)."""
        self.before_caps: Event[Topic, Block] = Event()
        """A block of a topic with features was published; its caps are enforced next (`routers`)."""
        self.marked: Event[Topic, Sequence[Marks]] = Event()
        """Many records of a topic were deleted at once (`queues`, `engine.delete_export`)."""
        self.removed: Event[Topic, int, int] = Event()
        """Seqs were deleted on request, first and last (`engine.delete_export`)."""
        self.overfull: set[Topic] = set()
        """Topics that may be above their caps and whose evictions are separate decisions (`engine.write_path`)."""

    def append(self, topic: Topic, block: Block) -> None:
        """Publishes a block: makes it visible to readers."""
        first, count = block.first_seq, block.count
        if not topic.live_count:
            topic.earliest = first
        topic.tail.append(block)
        topic.tail_count += count
        size = len(block.text) + len(block.rows)
        topic.tail_bytes += size
        self._retention.tail_bytes += size
        topic.head = first if count == 1 else first + count - 1
        topic.live_count += count
        totals = self._totals
        totals.records += count
        totals.appended += count
        totals.appended_bytes += block.payload_bytes
        topic.live_bytes += block.payload_bytes
        topic.last_ts = block.ts
        if block.written < topic.last_write_ts:
            self._heal_times(topic, block.written)
        topic.last_write_ts = block.written
        if block.key is not None:
            self._remember(topic, block)
        config = topic.config
        if config.cap_records or config.cap_bytes:
            if topic.parts is not None:
                self.before_caps.emit(topic, block)
            self.enforce_caps(topic)
        if block.key is not None or not config.durability.logged:
            self.kept.emit(topic)
        for listener in self.appended.listeners:
            listener(topic)

    def configure(self, topic: Topic, config: TopicConfig, head: int) -> None:
        """Replaces the config. `head` is the topic's head at the change: a higher one than ours means that unlogged
        records are lost."""
        if head > topic.head:
            self.gap(topic, topic.head + 1, head, LossReason.CRASH)
        was_logged = topic.config.durability.logged
        if config.durability.logged != was_logged:
            # A tail is logged completely or not at all, so blocks written under the old class are sealed.
            self.cut_due.emit(topic)
        if config.durability.logged and not was_logged:
            # Set for every such topic, whatever its content, because replay must get the same result.
            topic.unlogged = True
        if config.durability.logged and not config.durability.reserves_seqs:
            # The change itself was synced, and with it everything before it: so no ceiling is needed. An ephemeral
            # topic keeps its ceiling, because seqs may have been assigned under it while the change was in flight.
            topic.ceiling = topic.ceiling_staged = 0
        self._totals.reconfigured(topic.config, config)
        topic.configure(config)
        grant(topic, self.reserve)
        self.enforce_caps(topic)

    def enforce_caps(self, topic: Topic) -> None:
        if topic.unlogged and (topic.config.durability.logged or topic.segments):
            # Replay has fewer records of this topic, so it would evict fewer, or at another time.
            self.overfull.add(topic)
        else:
            self._retention.enforce_caps(topic)

    def excess_below(self, topic: Topic) -> int:
        """Returns the seq below which a topic's caps evict everything; 0 if they evict nothing."""
        return self._retention.excess_below(topic)

    def complete(self, topic: Topic) -> None:
        """Notes that a replay restores all records of the topic."""
        topic.unlogged = False
        self._retention.enforce_caps(topic)

    def delete(self, topic: Topic, before_seq: int, ranges: list[SeqRange]) -> int:
        """Removes records permanently. Returns the number of live ones."""
        removed = 0
        if before_seq:
            self._notify_removed(topic, topic.earliest, before_seq - 1)
            removed = self._retention.remove_front(topic, before_seq)[0]
        if topic.origin is not None:
            topic.origin.delete_below(before_seq)
        if len(ranges) > MANY_RANGES:
            removed += self.delete_marked(topic, list(self._marks_of(topic, ranges)))
            ranges = []
        for first, last in ranges:
            self._notify_removed(topic, first, last)
            removed += self._mark(topic, first, last)
        if ranges:
            self._retention.advance_earliest(topic)
        if topic.parts is not None and (before_seq or ranges):
            self.deleted.emit(topic, before_seq, ranges)
        if topic.kept_bytes:
            self.kept.emit(topic)
        return removed

    def delete_marked(self, topic: Topic, marks: Sequence[Marks]) -> int:
        """Removes many records permanently and atomically. Returns the number of live ones."""
        removed, emptied = 0, []
        for mark in marks:
            run = topic.run_from(mark.first_seq)
            if run is None or run.first_seq > mark.first_seq:
                continue
            if not mark.fits(topic.earliest, run):
                if (run.first_seq, run.count) != (mark.first_seq, mark.count):
                    # Blocks were sealed meanwhile.
                    removed += sum([self._mark(topic, first, last) for first, last in mark.ranges()])
                    continue
                fresh = Marks(run, mark.mask, topic.earliest)
                fresh.weigh(self._reader, topic.id, run)
            else:
                fresh = mark
            removed += fresh.live
            self._take(topic, run, fresh.live, fresh.live_bytes)
            if not run.live and isinstance(run, Segment):
                emptied.append(run)
            elif fresh.live:
                run.flags = fresh.after
                if isinstance(run, Segment):
                    run.flag_changes += 1
                    run.marked += fresh.live
        self._retention.drop_segments(topic, emptied)
        self._retention.advance_earliest(topic)
        self.marked.emit(topic, marks)
        if topic.kept_bytes:
            self.kept.emit(topic)
        return removed

    def _marks_of(self, topic: Topic, ranges: list[SeqRange]) -> Iterator[Marks]:
        for run, mark in marks_of(topic.runs_from(max(ranges[0][0], topic.earliest)), ranges, topic.earliest):
            mark.weigh(self._reader, topic.id, run)
            yield mark

    def _notify_removed(self, topic: Topic, first: int, last: int) -> None:
        self.removed.emit(topic, first, last)

    def evict(self, topic: Topic, floor: int) -> None:
        """Evicts everything below a floor because of a cap."""
        self._retention.evict(topic, floor, expired=False)

    def expire(self, topic: Topic, floor: int) -> None:
        """Applies an expiry below a floor, which readers have seen."""
        self._retention.expired_below(topic, floor)

    def gap(self, topic: Topic, first: int, last: int, reason: LossReason | None, existed: int = -1) -> None:
        """Leaves a range of seqs empty permanently.

        With a reason, a read across it gets a tombstone. `existed` is the known number of records in it; -1 means all.
        """
        if last > topic.head:
            topic.head = last
        if reason is not None:
            remember(topic, first, last, reason, existed)
        if not topic.live_count:
            topic.earliest = topic.head + 1

    def _mark(self, topic: Topic, first: int, last: int) -> int:
        marked, seq = 0, max(first, topic.earliest)
        # Looked up one by one: a list of all later runs would be long and is rarely needed.
        while seq <= last and (run := topic.run_from(seq)) is not None and run.first_seq <= last:
            lo = max(seq - run.first_seq, 0)
            seq = run.last_seq + 1
            hi = min(last + 1 - run.first_seq, run.count)
            if hi - lo == run.live == run.count and run.flags is None and isinstance(run, Block):
                # All records of one block, such as the jobs that a worker has acknowledged.
                marked += run.live
                self._take(topic, run, run.live, run.live_bytes)
                run.flags = bytearray(_DELETED * run.count)
                continue
            known = self._reader.flags(topic.id, run)
            count = count_live(known, lo, hi)
            if not count:
                continue
            size = run.live_bytes if count == run.live else self._reader.live_bytes(topic.id, run, known, lo, hi)
            marked += count
            self._take(topic, run, count, size)
            if not run.live and isinstance(run, Segment):
                self._retention.drop_segment(topic, run)
                continue
            flags = self._reader.writable_flags(topic.id, run)
            flags[lo:hi] = _DELETED * (hi - lo)
            if isinstance(run, Segment):
                run.marked += count
        return marked

    def _take(self, topic: Topic, run: Run, count: int, size: int) -> None:
        """Subtracts removed records from the counters of a run."""
        topic.live_count -= count
        self._totals.records -= count
        topic.live_bytes -= size
        run.live -= count
        run.live_bytes -= size

    def _remember(self, topic: Topic, block: Block) -> None:
        if topic.keys is None:
            topic.keys = KeyMemory()
        topic.keys.remember(block)
        forget_old_keys(topic, block.written)

    def _heal_times(self, topic: Topic, written: int) -> None:
        """Handles a clock that was set back since the last block: no earlier block can have been written later.

        So times never decrease in a topic, a front with a future time does not keep later records from expiring, and a
        temporary jump of the clock has no lasting effect.
        """
        for run in topic.runs_from(0):
            if isinstance(run, Segment):
                run.first_written = min(run.first_written, written)
                run.last_written = min(run.last_written, written)
            run_blocks = (run,) if isinstance(run, Block) else run.blocks or ()
            for block in run_blocks:
                block.written = min(block.written, written)
        if topic.keys is not None:
            topic.keys.heal(written)


def forget_old_keys(topic: Topic, now_ms: int) -> None:
    """Drops idempotency keys whose window has passed."""
    keys = topic.keys
    if keys is not None:
        keys.forget(now_ms - topic.config.idempotency_window_ms)
        if not keys.by_key:
            topic.keys = None


# Loading a topic from its snapshot: in recovery, and when it is paged in.


def load_state(state: TopicState, reserve: int, features: Features) -> Topic:
    """Returns the topic without the blocks of its tail."""
    topic = Topic(state.topic_id, state.name, state.epoch, decode_config(state.config), state.created_ts, True)
    topic.head, topic.ceiling, topic.earliest = state.head, state.ceiling, state.earliest
    topic.evict_floor, topic.cap_floor, topic.ttl_floor = state.evict_floor, state.cap_floor, state.ttl_floor
    topic.last_ts, topic.last_write_ts, topic.next_base = state.last_ts, state.last_write_ts, state.next_base
    if state.segments:
        topic.segments = [Segment(segment) for segment in state.segments]
        topic.live_count = sum([segment.live for segment in topic.segments])
        topic.live_bytes = sum([segment.live_bytes for segment in topic.segments])
    if state.lost:
        topic.lost = [LostRange(lost.first, lost.last, LossReason(lost.reason), lost.existed) for lost in state.lost]
    if state.keyed or state.keys:
        topic.keys = KeyMemory.load(state.keyed, state.keys)
    topic.unlogged = state.unlogged
    grant(topic, reserve)
    features.load(topic, state.parts)
    return topic


def load_block(topic: Topic, block: Block, flags: bytes, reader: RunReader) -> None:
    """Adds the next block of a topic's tail; `flags` is empty if nothing in it is deleted."""
    if flags:
        block.flags = bytearray(flags)
    lo = max(topic.earliest - block.first_seq, 0)
    if flags or lo:
        block.live = count_live(block.flags, lo, block.count)
        block.live_bytes = reader.live_bytes(topic.id, block, block.flags, lo, block.count) if block.live else 0
    topic.tail.append(block)
    topic.tail_count += block.count
    topic.tail_bytes += block.memory_bytes
    topic.live_count += block.live
    topic.live_bytes += block.live_bytes
