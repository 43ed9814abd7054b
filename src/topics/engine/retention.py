"""Retention: eviction of records by age and by caps, and its effect on the two watermarks.

`earliest` moves whenever the first live record changes, for any reason. `evict_floor` moves only when retention removes
live records. Because the two are separate, a tombstone always means that a reader has missed records. Records are
evicted in seq order, whole runs at a time where possible; the files of a run are removed when none of its records is
live.

Invariants of a topic's state, checked on the state as a snapshot has it. Pure.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise

from topics.engine.quotas import Totals
from topics.engine.topic import Run, RunReader, Segment, Topic, first_live, live_ranges
from topics.log.segment import DELETED
from topics.log.segment_files import UNREADABLE
from topics.log.snapshot_files import TopicState
from topics.model.errors import quoted
from topics.model.names import is_own_name, is_topic_name
from topics.model.seq_ranges import LossReason, LostRange
from topics.model.topic_config import Discard, decode_config
from topics.queues.queue_frames import PART_NAME, decode_part
from topics.streams.stream_frames import PART_NAME as STREAM
from topics.transactions.transaction_frames import PART_NAME as TRANSACTIONS_PART
from topics.transactions.transaction_frames import decode_part as decode_transactions
from topics.wire.record_slicing import Range, payload_sizes

SeqRange = tuple[int, int]


def state_problems(state: TopicState, tail: list[SeqRange]) -> Iterator[str]:
    """Everything that contradicts itself in a state; `tail` has the seqs of each block that follows it."""
    yield from _config_problems(state)
    if not 1 <= state.evict_floor <= state.earliest <= state.head + 1:
        yield (
            f"its watermarks are out of order: evicted below {state.evict_floor}, first live {state.earliest}, "
            f"head {state.head}"
        )
    if max(state.cap_floor, state.ttl_floor) > state.evict_floor:
        yield "a cap or a time evicted more than was evicted in all"
    if len(state.tail_flags) != len(tail):
        yield f"its tail has {len(tail)} blocks instead of {len(state.tail_flags)}"
    for flags, (first, last) in zip(state.tail_flags, tail, strict=False):
        if flags and len(flags) != last - first + 1:
            yield f"the delete flags of the block at {first} have the wrong length"
    segments = [(segment.first_seq, segment.first_seq + segment.count - 1) for segment in state.segments]
    runs = [*segments, *tail]
    if any(first > last for first, last in runs) or not _ascending(runs):
        yield "its segments and blocks overlap or are out of order"
    if runs and runs[-1][1] > state.head:
        yield f"it holds record {runs[-1][1]} and its head is {state.head}"
    if any(segment.flags and len(segment.flags) != segment.count for segment in state.segments):
        yield "the delete flags of a segment have the wrong length"
    times = [time for segment in state.segments for time in (segment.first_ts, segment.last_ts)]
    if any(before > after for before, after in pairwise([*times, state.last_ts])):
        yield "its times run back"
    lost = [(lost.first, lost.last) for lost in state.lost]
    if any(first > last for first, last in lost) or not _ascending(lost) or (lost and lost[-1][1] > state.head):
        yield "its lost ranges overlap, are out of order or lie beyond its head"
    yield from _queue_problems(state)
    yield from _transaction_problems(state)
    if any(last > state.head for last in _last_keyed(state)):
        yield "it knows an idempotency key of records beyond its head"


def _last_keyed(state: TopicState) -> Iterator[int]:
    """The last seqs that idempotency keys speak of."""
    for key in state.keys:
        yield key.first_seq + key.count - 1
    for keyed in state.keyed:
        place = 0 if isinstance(keyed.keys, str) else max(keyed.keys.values(), default=0)
        yield keyed.first_seq + place + keyed.count - 1


def _config_problems(state: TopicState) -> Iterator[str]:
    # A stream may be called more than a topic of /v0.
    if not (is_topic_name(state.name) or is_own_name(state.name) or STREAM in state.parts):
        yield f"{quoted(state.name)} is not the name of a topic"
    try:
        config = decode_config(state.config)
    except ValueError as error:
        yield f"its config makes no sense: {error}"
        return
    if config.durability.reserves_seqs and 0 < state.ceiling < state.head:
        yield f"its head {state.head} is above the ceiling {state.ceiling}"


def _queue_problems(state: TopicState) -> Iterator[str]:
    if PART_NAME not in state.parts:
        return
    try:
        part = decode_part(state.parts[PART_NAME])
    except ValueError as error:
        yield f"its queue makes no sense: {error}"
        return
    leased = {lease.seq for lease in part.leases}
    if len(leased) < len(part.leases) or any(seq in leased for seq, _ in (*part.delayed, *part.delivered)):
        yield "a job of its queue is in two states at once"
    # A delay may speak of jobs beyond the head: it is logged ahead of them.
    if any(seq > state.head for seq in leased) or any(seq > state.head for seq, _ in part.delivered):
        yield "its queue knows jobs beyond its head"


def _transaction_problems(state: TopicState) -> Iterator[str]:
    if TRANSACTIONS_PART not in state.parts:
        return
    try:
        part = decode_transactions(state.parts[TRANSACTIONS_PART])
    except ValueError as error:
        yield f"its transactions make no sense: {error}"
        return
    if any(one.first_seq + one.count - 1 > state.head for entry in part.open for one in entry.parts):
        yield "a transaction has staged records beyond its head"


def _ascending(ranges: Iterable[SeqRange]) -> bool:
    return all(before[1] < after[0] for before, after in pairwise(ranges))


# The ranges that a topic remembers as lost: in order, apart from each other, and few.
#
# A range is told to whoever reads across it, so it has to be kept for as long as anything before it may be read. A
# router that lags behind a source which evicts leaves one for every time it goes on. Two things keep their number from
# growing with everything that ever went through a topic:
#
# * What is below the floor of evictions is told by the floor, and forgotten here.
# * Two ranges with nothing live between them are one: a reader that meets the first has nothing to read before it meets
#   the second. What was deleted on purpose between them then counts as part of the gap, as it does below the floor
#   (docs/decisions/0041). That is only done once there are many, since exactly what was lost is the better answer.
#
# So there are at most as many ranges as live records, and one, besides a few that are not worth the look.

EXACT_MAX = 64
"""Up to so many ranges are kept exactly as they were lost."""


def remember(topic: Topic, first: int, last: int, reason: LossReason) -> None:
    """Notes a range, which neither overlaps nor touches any of another reason."""
    lost = topic.lost
    if lost is None:
        topic.lost = [LostRange(first, last, reason)]
        return
    end = lost[-1]
    if end.to_seq + 1 == first and end.reason is reason:
        lost[-1] = LostRange(end.from_seq, last, reason)
    elif end.to_seq < first:
        lost.append(LostRange(first, last, reason))
    else:
        # Only a repair finds out late about what lies further in front.
        lost.insert(_place(lost, first), LostRange(first, last, reason))
    if len(lost) > EXACT_MAX and lost[1].to_seq < topic.earliest and lost[0].reason is lost[1].reason:
        # Nothing is live before the first live record.
        lost[:2] = [LostRange(lost[0].from_seq, lost[1].to_seq, lost[0].reason)]


def lost_from(topic: Topic, seq: int) -> Iterator[LostRange]:
    """The ranges that hold this seq or anything behind it."""
    lost = topic.lost
    return islice(lost, _place(lost, seq), None) if lost is not None else iter(())


def forget_below(topic: Topic, floor: int) -> None:
    """Gives up the ranges that end before the floor."""
    lost = topic.lost
    if lost is not None and lost[0].to_seq < floor:
        topic.lost = lost[_place(lost, floor) :] or None


def join(topic: Topic, reader: RunReader) -> None:
    """Makes one of all neighbours that have nothing live between them, where there are many."""
    lost = topic.lost
    if lost is None or len(lost) <= EXACT_MAX:
        return
    joined = lost[:1]
    for known in lost[1:]:
        before = joined[-1]
        if known.reason is before.reason and not anything_live(topic, reader, before.to_seq + 1, known.from_seq - 1):
            joined[-1] = LostRange(before.from_seq, known.to_seq, known.reason)
        else:
            joined.append(known)
    topic.lost = joined


def anything_live(topic: Topic, reader: RunReader, first: int, last: int) -> bool:
    """Whether any record from one seq to another is live, as far as anybody can tell."""
    seq = max(first, topic.earliest)
    while seq <= last and (run := topic.run_from(seq)) is not None and run.first_seq <= last:
        lo, hi = max(seq - run.first_seq, 0), min(last + 1 - run.first_seq, run.count)
        try:
            if live_ranges(reader.flags(topic.id, run), lo, hi):
                return True
        except UNREADABLE:
            return True
        seq = run.last_seq + 1
    return False


def _place(lost: list[LostRange], seq: int) -> int:
    """Where the ranges begin that do not end before a seq."""
    return bisect_left(lost, seq, key=lambda known: known.to_seq)


# Live seqs of a topic, including those inherited by a fork.


def removed_count(topic: Topic) -> int:
    """How many seqs stand for nothing any more: deleted, acknowledged, taken by a cap or by time, or lost.

    It is 0 while nothing is gone, and never the same before and after something went. Of a source everything counts,
    whether it is inherited or not: this tells that something changed, not what.
    """
    gone, origin = topic.head - topic.live_count, topic.origin
    if origin is not None:
        gone += max(origin.hidden_below() - 1, 0)
    while origin is not None:
        gone -= origin.upto
        holder = origin.parent
        gone += holder.head - holder.live_count
        origin = holder.origin
    return gone


def is_whole(topic: Topic, first: int, last: int) -> bool:
    """Whether every record of a range is certainly there.

    Where that could only be told by reading flags from a file the answer is no.
    """
    origin = topic.origin
    if origin is not None and first <= origin.upto and first < origin.hidden_below():
        return False
    while origin is not None and first <= min(last, origin.upto):
        holder, upto = origin.holder(first)
        if not _holds_all(holder, first, min(last, upto)):
            return False
        first = upto + 1
    return first > last or _holds_all(topic, first, last)


def _holds_all(topic: Topic, first: int, last: int) -> bool:
    if topic.origin is None and topic.head == topic.live_count:
        return last <= topic.head
    return topic.earliest <= first and _runs_are_whole(topic, first, last)


def _runs_are_whole(topic: Topic, first: int, last: int) -> bool:
    for run in topic.runs_from(first):
        if run.first_seq > first:
            return False
        if run.flags is not None:
            if run.flags.find(DELETED, first - run.first_seq, last + 1 - run.first_seq) >= 0:
                return False
        elif isinstance(run, Segment) and run.marked:
            return False
        first = run.last_seq + 1
        if first > last:
            return True
    return False


_CHUNK_RECORDS = 256
Dropped = Callable[[Topic, Segment], None]
"""Told of each segment that no longer holds anything live, so that its files can go."""


class Retention:
    def __init__(self, reader: RunReader, dropped: Dropped, totals: Totals) -> None:
        self._reader = reader
        self._dropped = dropped
        self.totals = totals
        self.tail_bytes = 0
        """Memory held by the tails of all topics together: `Topic.tail_bytes`, summed up."""

    def expire(self, topic: Topic, now_ms: int) -> bool:
        """Evicts what is older than the topic's TTL; True when anything was."""
        ttl = topic.config.ttl_ms
        if not ttl or not topic.live_count:
            return False
        upto = self._expired_upto(topic, now_ms - ttl)
        return upto > topic.earliest and self.evict(topic, upto, expired=True)

    def enforce_caps(self, topic: Topic) -> None:
        """Evicts from the front until the topic is within its caps; called after each append and each new config."""
        config = topic.config
        over = (config.cap_records and topic.live_count > config.cap_records) or (
            config.cap_bytes and topic.live_bytes > config.cap_bytes
        )
        if over:
            self.evict(topic, self.excess_below(topic), expired=False)

    def excess_below(self, topic: Topic) -> int:
        """The seq below which everything has to go for the topic to be within its caps; 0 when it is."""
        config, floor = topic.config, 0
        if config.discard is Discard.REJECT:
            # Such a topic never drops: one that holds more than a new cap allows takes nothing until it is drained.
            return floor
        if config.cap_records and topic.live_count > config.cap_records:
            floor = self._upto_for_count(topic, topic.live_count - config.cap_records)
        if config.cap_bytes and topic.live_bytes > config.cap_bytes:
            floor = max(floor, self._upto_for_bytes(topic, topic.live_bytes - config.cap_bytes))
        return floor

    def make_room(self, topic: Topic, count: int, size: int) -> None:
        """Evicts what records pushed out that are lost themselves by now: it does not come back in their place."""
        config = topic.config
        if config.discard is Discard.REJECT:
            return
        excess = topic.live_count + count - config.cap_records
        if config.cap_records and excess > 0:
            self.evict(topic, self._upto_for_count(topic, min(excess, topic.live_count)), expired=False)
        excess = topic.live_bytes + size - config.cap_bytes
        if config.cap_bytes and excess > 0:
            self.evict(topic, self._upto_for_bytes(topic, min(excess, topic.live_bytes)), expired=False)

    def evict(self, topic: Topic, upto: int, expired: bool) -> bool:
        """Everything live below `upto` is lost; the floors say so. True when there was anything."""
        removed, last = self.remove_front(topic, upto)
        if removed:
            self._raise_floors(topic, last + 1, expired)
        return bool(removed)

    def expired_below(self, topic: Topic, floor: int) -> None:
        """Does again what time did. Readers were told that everything below was lost when it was: a delete that was on
        its way then stands before it in the log, and must not make a silence of it."""
        self.remove_front(topic, floor)
        self._raise_floors(topic, min(floor, topic.head + 1), expired=True)

    def _raise_floors(self, topic: Topic, floor: int, expired: bool) -> None:
        topic.evict_floor = max(topic.evict_floor, floor)
        if expired:
            topic.ttl_floor = max(topic.ttl_floor, floor)
        else:
            topic.cap_floor = max(topic.cap_floor, floor)
        # The floor covers lost ranges below it.
        forget_below(topic, topic.evict_floor)

    def remove_front(self, topic: Topic, upto: int) -> tuple[int, int]:
        """Takes every live record below `upto` away: how many there were, and the seq of the last."""
        removed, last = 0, 0
        while (run := topic.first_run()) is not None and run.first_seq < upto:
            whole = run.last_seq < upto
            if whole and run.live == run.count:
                count, size, end = run.live, run.live_bytes, run.last_seq
            else:
                count, size, end = self._live_below(topic, run, upto)
            if count:
                removed, last = removed + count, end
                topic.live_count -= count
                topic.live_bytes -= size
                run.live -= count
                run.live_bytes -= size
            if run.live:
                break
            self.drop_first(topic, run)
        self.totals.records -= removed
        topic.earliest = max(topic.earliest, min(upto, topic.head + 1))
        self.advance_earliest(topic)
        return removed, last

    def advance_earliest(self, topic: Topic) -> None:
        """Moves `earliest` to the first live record, taking away runs in front that hold none."""
        while (run := topic.first_run()) is not None and not run.live:
            self.drop_first(topic, run)
        if run is None:
            topic.earliest = topic.head + 1
            return
        lo = max(topic.earliest - run.first_seq, 0)
        try:
            flags = self._reader.flags(topic.id, run)
        except UNREADABLE:
            flags = None
        first = first_live(flags, lo, run.count)
        topic.earliest = run.first_seq + (first if first < run.count else lo)

    def drop_first(self, topic: Topic, run: Run) -> None:
        if isinstance(run, Segment):
            self.drop_segment(topic, run)
        else:
            del topic.tail[0]
            topic.tail_count -= run.count
            size = run.memory_bytes
            topic.tail_bytes -= size
            self.tail_bytes -= size

    def drop_segment(self, topic: Topic, segment: Segment) -> None:
        """Takes a segment without live records out of the topic, wherever it stands.

        Dead blocks stay in the tail until they are in front: the tail must keep its seqs without holes, because it
        becomes one segment.
        """
        topic.segments.remove(segment)
        self._dropped(topic, segment)

    def drop_segments(self, topic: Topic, emptied: Sequence[Segment]) -> None:
        """Takes many segments without live records out of the topic."""
        if emptied:
            topic.segments[:] = [segment for segment in topic.segments if segment.live]
            for segment in emptied:
                self._dropped(topic, segment)

    def _live_below(self, topic: Topic, run: Run, upto: int) -> tuple[int, int, int]:
        """How many of a run's live records are below `upto`, their bytes, and the last one's seq."""
        lo = max(topic.earliest - run.first_seq, 0)
        hi = min(upto - run.first_seq, run.count)
        try:
            ranges = live_ranges(self._reader.flags(topic.id, run), lo, hi)
            if not ranges:
                return 0, 0, 0
            count = sum([end - begin for begin, end in ranges])
            size = run.live_bytes if count == run.live else self._reader.payload_bytes(topic.id, run, ranges)
            return count, size, run.first_seq + ranges[-1][1] - 1
        except UNREADABLE:
            # Nobody can look inside. All of it goes, or its counts stay and the floor alone hides what is below.
            whole = hi == run.count
            return (run.live, run.live_bytes, run.last_seq) if whole else (0, 0, 0)

    def _upto_for_count(self, topic: Topic, excess: int) -> int:
        """The seq below which exactly `excess` live records lie."""
        for run in topic.runs_from(topic.earliest):
            if run.live <= excess:
                excess -= run.live
                if not excess:
                    return run.last_seq + 1
                continue
            for begin, end in self._live_in(topic, run):
                if end - begin >= excess:
                    return run.first_seq + begin + excess
                excess -= end - begin
        return topic.head + 1

    def _upto_for_bytes(self, topic: Topic, excess: int) -> int:
        """The seq below which the fewest live records with at least `excess` payload bytes lie."""
        for run in topic.runs_from(topic.earliest):
            if run.live_bytes <= excess:
                excess -= run.live_bytes
                if not excess:
                    return run.last_seq + 1
                continue
            for begin, end in self._live_in(topic, run):
                for index, size in self._sizes(topic, run, begin, end):
                    excess -= size
                    if excess <= 0:
                        return run.first_seq + index + 1
        return topic.head + 1

    def _live_in(self, topic: Topic, run: Run) -> list[Range]:
        """A run's live records; all of them when nobody can look inside."""
        lo = max(topic.earliest - run.first_seq, 0)
        try:
            return live_ranges(self._reader.flags(topic.id, run), lo, run.count)
        except UNREADABLE:
            return [(lo, run.count)]

    def _sizes(self, topic: Topic, run: Run, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """Each record's index and size, looked up a span at a time: mostly the first few are all that is wanted."""
        for begin in range(lo, hi, _CHUNK_RECORDS):
            end = min(begin + _CHUNK_RECORDS, hi)
            try:
                views = list(self._reader.views(topic.id, run, begin, end, check=False))
            except UNREADABLE:
                # Nobody can look inside: count what is left as one.
                yield hi - 1, run.live_bytes
                return
            for view, view_lo, view_hi, offset in views:
                yield from enumerate(payload_sizes(view, view_lo, view_hi), offset + view_lo)

    def _expired_upto(self, topic: Topic, deadline: int) -> int:
        for run in topic.runs_from(topic.earliest):
            try:
                expired = self._reader.written_before(topic.id, run, deadline)
            except UNREADABLE:
                # Its newest record is young enough, and nobody can tell about the others.
                expired = 0
            if expired < run.count:
                return run.first_seq + expired
        return topic.head + 1
