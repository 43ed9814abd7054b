"""Reads from a cursor: planned on the event loop, with records extracted on any thread.

A read scans the records after its cursor in seq order and reports the distance to the head (the lag). Its answer:

| at or after the cursor | the answer |
|---|---|
| records lost to a cap or to time (cursor + 1 < evict floor) | a tombstone, then records from the first live one |
| nothing live before a range lost in a crash, by a router or to a repair | a tombstone up to the next live record |
| such a range after live records | the records before it; the next read starts with its tombstone |
| deleted records, or records of the reader's own node | nothing: the cursor moves past them |
| the cursor is beyond the head, or of another epoch | a tombstone "recreated", then all records |

Lookup of the seq to read from: by time, or a number of records before the end.

Timestamps never decrease within a topic, so a time is found by bisection: among segments, among the blocks of the tail,
and in the index of one segment.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from operator import attrgetter
from typing import NamedTuple

import msgspec

from topics.engine.topic import (
    SEQ_BASE,
    Block,
    Inheritance,
    Run,
    RunReader,
    Segment,
    Topic,
    count_live,
    first_live,
    has_nodes,
    live_ranges,
)
from topics.log.segment import DELETED
from topics.log.segment_files import UNREADABLE, SegmentDamaged, SegmentKey, SegmentStore
from topics.model.errors import CorruptSegmentError, RetryLaterError
from topics.model.records import TRAIT_META, TRAIT_TAGS
from topics.model.router_rules import TagMatch
from topics.model.seq_ranges import LossReason, LostRange, Tombstone
from topics.wire.record_encoding import node_suffix
from topics.wire.record_slicing import Range, end_that_fits, project, tag_texts, without_nodes


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A read request; `limit` and `max_bytes` are already within their bounds."""

    from_seq: int = 0
    limit: int = 256
    nodes: tuple[str, ...] = ()
    include_tags: bool = False
    include_meta: bool = True
    include_data: bool = True
    max_bytes: int = 1024 * 1024
    up_to: int | None = None
    """The last seq to read, for a reader that must not see later records; None is the head."""
    epoch: int | None = None
    """The epoch of the cursor; None accepts the current topic."""


class ReadResult(msgspec.Struct, kw_only=True):
    """`body` contains the records as JSON, separated by commas, without the enclosing brackets."""

    body: bytes
    count: int
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None
    scanned: int
    epoch: int = 0
    """The epoch of the topic that was read."""

    @property
    def caught_up(self) -> bool:
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        return self.head_seq - self.next_from_seq

    def records(self) -> list[dict[str, object]]:
        """The records as Python values, for people and tests; servers use `body`."""
        decoded: list[dict[str, object]] = msgspec.json.decode(b"[" + self.body + b"]")
        return decoded


class ReadPlan(NamedTuple):
    """An immutable view of a topic for one read."""

    topic_name: str
    topic_id: int
    request: ReadRequest
    start: int
    """The first seq to read."""
    end: int
    """The last seq to read: the head, or the one before a lost range."""
    runs: list[Run]
    head: int
    earliest: int
    tombstone: Tombstone | None
    suffixes: tuple[bytes, ...]
    epoch: int

    @property
    def cold(self) -> bool:
        """Whether it reads from the cold tier, whose speed is unknown."""
        return any(isinstance(run, Segment) and run.cold and run.blocks is None for run in self.runs)

    @property
    def sealed(self) -> bool:
        """Whether it reads any file."""
        return any(isinstance(run, Segment) and run.blocks is None for run in self.runs)


def plan_read(topic: Topic, request: ReadRequest, reader: RunReader | None = None) -> ReadPlan:
    """Plans a read. Without `reader`, a tombstone counts records whose delete flags are in a file as live."""
    if request.from_seq > topic.visible_head or request.epoch not in (None, topic.epoch):
        return _plan_anew(topic, request, reader)
    if topic.origin is not None and request.from_seq < topic.origin.upto:
        return _plan_inherited(topic, topic.origin, request, reader)
    return _plan_own(topic, request, reader)


def _plan_own(topic: Topic, request: ReadRequest, reader: RunReader | None) -> ReadPlan:
    """Plans a read of the topic's own records, without inherited ones."""
    tombstone = find_tombstone(topic, request.from_seq, reader)
    cursor = request.from_seq if tombstone is None else tombstone.gap_to
    start, end = max(cursor + 1, topic.earliest), topic.visible_head
    if request.up_to is not None and request.up_to < end:
        # If the first live record is beyond it, the reader still stops here.
        end = max(request.up_to, cursor)
        start = min(start, end + 1)
    for lost in lost_from(topic, cursor + 1):
        if lost.from_seq > cursor:
            end = min(end, lost.from_seq - 1)
            # If nothing is live before it, the first live record is after it, and the reader must not skip the range.
            start = min(start, end + 1)
            break
    requested, runs = request.limit, []
    for run in topic.runs_from(start):
        if run.first_seq > end:
            break
        if requested <= 0:
            # Records outside the plan are not skipped, even if a concurrent delete leaves fewer than requested.
            end = run.first_seq - 1
            break
        runs.append(run)
        # The first run may begin before the cursor, so only whole runs count towards the limits.
        requested -= run.live if run.first_seq >= start else 0
    suffixes = tuple(map(node_suffix, request.nodes)) if topic.config.dedupe_node else ()
    earliest = topic.earliest if topic.origin is None else first_readable(topic)
    return ReadPlan(
        topic.name, topic.id, request, start, end, runs, topic.visible_head, earliest, tombstone, suffixes, topic.epoch
    )


def last_block(topic: Topic, cursor: int, up_to: int) -> Block | None:
    """The last block, if a read from this cursor up to a seq returns exactly that block. It needs no plan: every reader
    at the head reads this."""
    block = topic.tail[-1] if topic.tail else None
    if (
        block is None
        or block.first_seq != cursor + 1
        or cursor + block.count != topic.head
        or topic.hidden_from
        or up_to != topic.head
        or block.live != block.count
        or block.flags is not None
        or topic.lost is not None
        or block.first_seq < topic.earliest
    ):
        return None
    return block


def _plan_anew(topic: Topic, request: ReadRequest, reader: RunReader | None) -> ReadPlan:
    """Plans a read with a cursor of another topic: it begins with a "recreated" tombstone."""
    head, earliest = topic.visible_head, first_readable(topic)
    anew = msgspec.structs.replace(request, from_seq=min(earliest - 1, head), epoch=None)
    return plan_read(topic, anew, reader)._replace(
        tombstone=Tombstone(SEQ_BASE, head, LossReason.RECREATED, head, earliest, head)
    )


def _plan_inherited(topic: Topic, origin: Inheritance, request: ReadRequest, reader: RunReader | None) -> ReadPlan:
    """Plans a read of inherited records: from one ancestor, up to where the next one begins. The rest is left to the
    next read."""
    below = max(request.from_seq, origin.hidden_below() - 1)
    if below >= origin.upto:
        return _plan_own(topic, msgspec.structs.replace(request, from_seq=below), reader)
    holder, upto = origin.holder(below + 1)
    plan = _plan_own(holder, msgspec.structs.replace(request, from_seq=below), reader)
    tombstone = plan.tombstone
    if tombstone is not None:
        gap_to = min(tombstone.gap_to, upto)
        missed = min(tombstone.missed_estimate, gap_to - tombstone.gap_from + 1)
        tombstone = Tombstone(tombstone.gap_from, gap_to, tombstone.reason, missed, gap_to + 1, topic.visible_head)
    return plan._replace(
        topic_name=topic.name, end=min(plan.end, upto), start=min(plan.start, upto + 1),
        runs=[run for run in plan.runs if run.first_seq <= upto], head=topic.visible_head,
        earliest=first_readable(topic), tombstone=tombstone, epoch=topic.epoch,
    )  # fmt: skip


def first_readable(topic: Topic) -> int:
    """The first live seq, including inherited ones; head + 1 if there is none."""
    inherited = topic.origin.first_readable() if topic.origin is not None else None
    return topic.earliest if inherited is None else inherited


def find_tombstone(topic: Topic, from_seq: int, reader: RunReader | None = None) -> Tombstone | None:
    """Returns the tombstone for a reader at this cursor; None if nothing was lost.

    The gap ends before the next live record, which is the tombstone's `earliest_seq`: a reader that continues there
    never gets the same gap again, even if live records precede it.
    """
    head, earliest = topic.visible_head, topic.earliest
    gap_from = from_seq + 1
    if gap_from < topic.evict_floor:
        return Tombstone(gap_from, earliest - 1, _reason(topic, gap_from), earliest - gap_from, earliest, head)
    if topic.lost is None:
        return None
    resume = _first_live(topic, gap_from, reader)
    crossed = list(takewhile(lambda lost: lost.from_seq < resume, lost_from(topic, gap_from)))
    if not crossed:
        return None
    missed = sum([min(lost.to_seq - max(lost.from_seq, gap_from) + 1, lost.records) for lost in crossed])
    reasons = {lost.reason for lost in crossed}
    reason = reasons.pop() if len(reasons) == 1 else LossReason.MIXED
    return Tombstone(gap_from, resume - 1, reason, missed, resume, head)


def _first_live(topic: Topic, seq: int, reader: RunReader | None) -> int:
    """The first live seq from here on; head + 1 if there is none.

    Delete flags that are not in memory are read from local files only: the cold tier may be slow, so its records count
    as live here.
    """
    seq = max(seq, topic.earliest)
    for run in topic.runs_from(seq):
        if not run.live:
            continue
        lo = max(seq - run.first_seq, 0)
        flags: bytes | bytearray | None = run.flags
        if reader is not None and isinstance(run, Segment) and not run.cold:
            try:
                flags = reader.flags(topic.id, run)
            except UNREADABLE:
                flags = None
        first = first_live(flags, lo, run.count)
        if first < run.count:
            return run.first_seq + first
    return topic.head + 1


def estimated_ts(topic: Topic, seq: int) -> int | None:
    """About when the first record from `seq` on was appended; None if there is none. The exact time of a sealed record
    is in a file, or in the cold tier."""
    first = max(seq, topic.earliest)
    run = topic.run_from(first)
    if run is None or isinstance(run, Block):
        return None if run is None else run.ts
    share = max(first - run.first_seq, 0) / run.count
    return run.first_ts + round((run.last_ts - run.first_ts) * share)


def _reason(topic: Topic, gap_from: int) -> LossReason:
    by_cap, by_time = gap_from < topic.cap_floor, gap_from < topic.ttl_floor
    if by_cap and by_time:
        return LossReason.MIXED
    return LossReason.TTL if by_time else LossReason.CAP


def execute_read(plan: ReadPlan, reader: RunReader) -> ReadResult:
    """Extracts the answer from the runs. It reads only immutable state, so it may run on any thread."""
    request = plan.request
    pieces: list[bytes | memoryview] = []
    count, scanned, room, requested = 0, 0, request.max_bytes, request.limit
    # A lost range may lie between the cursor and the first live record: the reader stops before it, to get its
    # tombstone.
    cursor = min(plan.start - 1, plan.end)
    for run in plan.runs:
        lo = max(plan.start - run.first_seq, 0)
        hi = min(plan.end + 1 - run.first_seq, run.count)
        before = len(pieces)
        try:
            taken, kept, size, stop = _read_run(plan, reader, run, lo, hi, requested, room, not count, pieces)
        except RetryLaterError:
            # Return local records; the next read starts with the remote ones.
            del pieces[before:]
            if count:
                break
            raise
        except SegmentDamaged as damage:
            # No record of this run is counted yet, although part of it may have been extracted.
            del pieces[before:]
            # Records before the damage are intact: return them, and let the next read report the damage.
            if count:
                break
            if damage.first <= lo:
                raise corrupt_error(plan, run, damage) from damage
            taken, kept, size, stop = _read_run(plan, reader, run, lo, damage.first, requested, room, True, pieces)
        count += kept
        room -= size
        requested -= taken
        scanned += stop - lo
        cursor = run.first_seq + stop - 1
        if stop < hi or requested <= 0:
            break
    else:
        cursor = max(cursor, plan.end)
    return ReadResult(
        body=b",".join(pieces), count=count, next_from_seq=min(cursor, plan.head), head_seq=plan.head,
        earliest_seq=plan.earliest, tombstone=plan.tombstone, scanned=scanned, epoch=plan.epoch,
    )  # fmt: skip


def _read_run(
    plan: ReadPlan, reader: RunReader, run: Run, lo: int, hi: int, requested: int, room: int, first: bool,
    pieces: list[bytes | memoryview],
) -> tuple[int, int, int, int]:  # fmt: skip
    """Reads from one run: returns the numbers of scanned and delivered live records, their bytes, and the end index."""
    window, taken, stop = _window(live_ranges(reader.flags(plan.topic_id, run), lo, hi), requested, hi)
    kept = size = 0
    request = plan.request
    tags = request.include_tags or not run.traits & TRAIT_TAGS
    meta = request.include_meta or not run.traits & TRAIT_META
    suffixes = plan.suffixes if has_nodes(run) else ()
    as_stored = tags and meta and request.include_data and not suffixes
    for begin, end in window:
        for view, view_lo, view_hi, offset in reader.views(plan.topic_id, run, begin, end, window_bytes=room - size):
            if as_stored and view_hi - view_lo == view.count and len(view.text) <= room - size:
                # The usual case: all records of the run.
                pieces.append(view.text)
                kept += view_hi
                size += len(view.text) + 1
                continue
            ranges: list[Range] = [(view_lo, view_hi)]
            if suffixes:
                ranges = without_nodes(view, ranges, suffixes)
            for from_index, to_index in ranges:
                fit = end_that_fits(view, from_index, to_index, room - size)
                if fit == from_index and first and not kept:
                    fit += 1
                if fit > from_index:
                    pieces += project(view, [(from_index, fit)], tags, meta, request.include_data)
                    kept += fit - from_index
                    size += view.start(fit) - view.start(from_index)
                if fit < to_index:
                    return taken, kept, size, offset + fit
    return taken, kept, size, stop


def _window(ranges: list[Range], requested: int, hi: int) -> tuple[list[Range], int, int]:
    """The first `requested` live records: their ranges, their number, and the end index of the scan."""
    window: list[Range] = []
    taken = 0
    for begin, end in ranges:
        if end - begin >= requested - taken:
            stop = begin + requested - taken
            window.append((begin, stop))
            return window, requested, stop
        window.append((begin, end))
        taken += end - begin
    return window, taken, hi


def corrupt_error(plan: ReadPlan, run: Run, damage: SegmentDamaged) -> CorruptSegmentError:
    last = damage.last if damage.last >= damage.first else run.count - 1
    return CorruptSegmentError(plan.topic_name, run.first_seq + damage.first, run.first_seq + last)


_last_ts = attrgetter("last_ts")
_ts = attrgetter("ts")


def seek_time(topic: Topic, reader: RunReader, since_ms: int) -> int:
    """The seq before the first live record of this time or later; the head if there is none."""
    origin = topic.origin
    if origin is not None:
        hidden = origin.hidden_below()
        for holder, first, last in reversed(list(chain_of(topic))[1:]):
            found = max(_before_time(holder, reader, since_ms, first), hidden - 1)
            if found < last:
                return found
    return _before_time(topic, reader, since_ms, 1 if origin is None else origin.upto + 1)


def _before_time(topic: Topic, reader: RunReader, since_ms: int, first: int) -> int:
    """The seq before a topic's own first record of that time or later, at least `first - 1`."""
    run = _first_run(topic, since_ms)
    if run is None:
        return topic.head
    return max(first - 1, run.first_seq + reader.before(topic.id, run, since_ms) - 1)


def chain_of(topic: Topic, first: int = 1, last: int | None = None) -> Iterator[tuple[Topic, int, int]]:
    """A topic and its ancestors that hold records of a range of seqs, newest first, each with its first and last seq to
    read. Without a range, all that hold any records."""
    origin = topic.origin
    upto = topic.head if last is None else min(last, topic.head)
    if origin is None or origin.upto < upto or last is None:
        yield topic, origin.upto + 1 if origin is not None else 1, topic.head
    while origin is not None and first <= (upto := min(upto, origin.upto)):
        topic, end = origin.holder(upto)
        origin = topic.origin
        yield topic, origin.upto + 1 if origin is not None else 1, end


def _first_run(topic: Topic, since_ms: int) -> Run | None:
    """The first run with a record of that time or later."""
    segments, tail = topic.segments, topic.tail
    place = bisect_left(segments, since_ms, key=_last_ts)
    if place < len(segments):
        return segments[place]
    place = bisect_left(tail, since_ms, key=_ts)
    return tail[place] if place < len(tail) else None


def seek_last(topic: Topic, reader: RunReader, requested: int) -> int | None:
    """The seq before the last `count` live records; None if there are fewer."""
    hidden = topic.origin.hidden_below() if topic.origin is not None else 0
    for at, bottom, last in chain_of(topic):
        first = max(at.earliest, bottom, hidden if at is not topic else 0)
        for run in _backwards(at):
            low, high = max(first, run.first_seq), min(last, run.last_seq)
            if low > high:
                continue
            flags = reader.flags(at.id, run)
            for begin, end in reversed(live_ranges(flags, low - run.first_seq, high + 1 - run.first_seq)):
                if end - begin >= requested:
                    return run.first_seq + end - requested - 1
                requested -= end - begin
    return None


def _backwards(topic: Topic) -> Iterator[Run]:
    yield from reversed(topic.tail)
    yield from reversed(topic.segments)


# Lookup of records by tag without reading the log.
#
# Sealed segments carry their tags sorted on disk. The tail is indexed here, and only for topics whose records are ever
# deleted by tag: the first such delete indexes the tail, later ones only the new records. Tags are compared as their
# JSON strings: the encoding is one to one and keeps prefixes, so nothing is decoded.

SeqRange = tuple[int, int]
"""The first and the last seq, inclusive."""

_encode = msgspec.json.Encoder().encode


def match_text(match: TagMatch) -> bytes:
    """The JSON string that a tag must equal or begin with."""
    text = _encode(match.pattern)
    return text[:-1] if match.prefix else text


class TailTags:
    """The tags of a topic's tail."""

    __slots__ = ("_by_tag", "_upto")

    def __init__(self) -> None:
        self._by_tag: dict[bytes, list[int]] = {}
        self._upto = 0

    def find(self, tail: list[Block], match: TagMatch) -> list[int]:
        for block in tail:
            if block.first_seq > self._upto:
                self._upto = block.last_seq
                collect_tags(block, block.first_seq, self._by_tag)
        return _lookup(self._by_tag, match)


def collect_tags(block: Block, first: int, into: dict[bytes, list[int]]) -> None:
    """Adds a block's tags to a map; its records are numbered from `first`."""
    if block.traits & TRAIT_TAGS:
        for index, text in tag_texts(block.view, 0, block.count):
            into.setdefault(text, []).append(first + index)


def _lookup(by_tag: dict[bytes, list[int]], match: TagMatch) -> list[int]:
    text = match_text(match)
    if not match.prefix:
        return by_tag.get(text, [])
    return [seq for tag, seqs in by_tag.items() if tag.startswith(text) for seq in seqs]


def find_in_tail(topic: Topic, match: TagMatch) -> list[int]:
    """Matching seqs in the tail."""
    if not isinstance(topic.tags, TailTags):
        topic.tags = TailTags()
    return list(topic.tags.find(topic.tail, match))


def find_in_run(store: SegmentStore, topic_id: int, run: Run, match: TagMatch) -> list[int]:
    """Matching records of a run, by their index in it. Reads only immutable data, so it may run on any thread."""
    blocks = [run] if isinstance(run, Block) else run.blocks
    if blocks is not None:
        by_tag: dict[bytes, list[int]] = {}
        for block in blocks:
            collect_tags(block, block.first_seq - run.first_seq, by_tag)
        return _lookup(by_tag, match)
    assert isinstance(run, Segment)
    text, found = match_text(match), []
    index = store.index(SegmentKey(topic_id, run.first_seq, run.cold))
    place = index.first_tag_from(text)
    while place < index.tag_count:
        tag = index.tag_at(place)
        if tag != text and not (match.prefix and tag.startswith(text)):
            break
        found += index.postings_at(place)
        place += 1
    return found


def as_ranges(seqs: Iterable[int], below: int) -> list[SeqRange]:
    """Seqs under a bound as ascending ranges, the form a delete is logged in."""
    ranges: list[SeqRange] = []
    first = last = -1
    for seq in sorted(seqs):
        if seq >= below:
            break
        if seq == last + 1 and first >= 0:
            last = seq
        elif seq != last:
            if first >= 0:
                ranges.append((first, last))
            first = last = seq
    if first >= 0:
        ranges.append((first, last))
    return ranges


# The lost ranges of a topic: ordered, disjoint, and few.
#
# A range is reported to every read across it, so it is kept while any record before it may be read. A router that lags
# behind an evicting source adds one each time it continues. Two rules bound their number:
#
# * Ranges below the floor of evictions are dropped: the floor reports them.
# * Two ranges without live records between them are merged: a reader that meets the first has no records to read before
#   the second. Records deleted on purpose between them then count as part of the gap, as they do below the floor
#   (docs/decisions/0041). Ranges are merged only once there are many, since exact ranges are the better answer.
#
# So there are at most one more range than live records, plus a few that are not worth merging.

EXACT_MAX = 64
"""The number of ranges that are kept exactly."""


def remember(topic: Topic, first: int, last: int, reason: LossReason, existed: int = -1) -> None:
    """Adds a range, which neither overlaps nor touches a range with another reason."""
    lost, new = topic.lost, LostRange(first, last, reason, existed)
    if lost is None:
        topic.lost = [new]
        return
    end = lost[-1]
    if end.to_seq + 1 == first and end.reason is reason:
        lost[-1] = end.joined(new)
    elif end.to_seq < first:
        lost.append(new)
    else:
        # Only a repair reports an earlier range late.
        lost.insert(_place(lost, first), new)
    if len(lost) > EXACT_MAX and lost[1].to_seq < topic.earliest and lost[0].reason is lost[1].reason:
        # Nothing is live before the first live record.
        lost[:2] = [lost[0].joined(lost[1])]


def lost_from(topic: Topic, seq: int) -> Iterator[LostRange]:
    """The ranges that contain this seq or a later one."""
    lost = topic.lost
    return islice(lost, _place(lost, seq), None) if lost is not None else iter(())


def forget_below(topic: Topic, floor: int) -> None:
    """Drops the ranges that end before the floor."""
    lost = topic.lost
    if lost is not None and lost[0].to_seq < floor:
        topic.lost = lost[_place(lost, floor) :] or None


def join(topic: Topic, reader: RunReader) -> None:
    """Merges neighbours without live records between them, if there are many ranges."""
    lost = topic.lost
    if lost is None or len(lost) <= EXACT_MAX:
        return
    joined = lost[:1]
    for known in lost[1:]:
        before = joined[-1]
        if known.reason is before.reason and not anything_live(topic, reader, before.to_seq + 1, known.from_seq - 1):
            joined[-1] = before.joined(known)
        else:
            joined.append(known)
    topic.lost = joined


def anything_live(topic: Topic, reader: RunReader, first: int, last: int) -> bool:
    """Returns whether any record in a range of seqs is live, as far as is known in memory."""
    seq = max(first, topic.earliest)
    while seq <= last and (run := topic.run_from(seq)) is not None and run.first_seq <= last:
        lo, hi = max(seq - run.first_seq, 0), min(last + 1 - run.first_seq, run.count)
        try:
            if count_live(reader.flags(topic.id, run), lo, hi):
                return True
        except UNREADABLE:
            return True
        seq = run.last_seq + 1
    return False


def _place(lost: list[LostRange], seq: int) -> int:
    """The index of the first range that does not end before a seq."""
    return bisect_left(lost, seq, key=lambda known: known.to_seq)


# Live seqs of a topic, including those inherited by a fork.


def removed_count(topic: Topic) -> int:
    """The number of removed seqs: deleted, acknowledged, evicted by a cap or by time, or lost.

    It is 0 while nothing is removed, and every removal changes it. All removals in a fork's source count, inherited or
    not: the number reports that something changed, not what.
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
    """Returns whether every record of a range certainly exists.

    False if the answer would need flags from a file.
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
