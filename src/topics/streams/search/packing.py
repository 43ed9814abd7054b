"""Stored entries as they are sent to the searching process: rows and text, cut but not looked at."""

from collections.abc import Iterator
from typing import NamedTuple

from topics.core.loss import Tombstone
from topics.core.ranges import Ranges, SeqRange
from topics.engine.read import ReadPlan, corrupt_error
from topics.engine.state.runs import Run, RunReader, live_ranges
from topics.engine.topic import Topic
from topics.searching.messages import Piece
from topics.storage.segments import SegmentDamaged
from topics.wire.cuts import View, fitting

PACK_BYTES = 1 << 19
PACK_RECORDS = 4096
"""What is cut on the loop in one go."""


class Pack(NamedTuple):
    pieces: tuple[Piece, ...]
    body: tuple[bytes | memoryview, ...]
    """For each piece its rows, then its text."""
    through: int
    """The last seq that is in it, or that there is nothing of."""
    text_bytes: int
    tombstone: Tombstone | None
    """What is lost before all of it."""


def pack(plan: ReadPlan, reader: RunReader) -> Pack:
    """What a plan reads, as much as fits. Touches nothing that changes, so any thread may do it."""
    packed = _Packing(plan, reader)
    through = min(plan.start - 1, plan.end)
    for run in plan.runs:
        lo, hi = max(plan.start - run.first_seq, 0), min(plan.end + 1 - run.first_seq, run.count)
        try:
            stop = packed.take(run, lo, hi)
        except SegmentDamaged as damage:
            raise corrupt_error(plan, run, damage) from damage
        through = run.first_seq + stop - 1
        if stop < hi:
            break
    else:
        through = max(through, plan.end)
    return Pack(tuple(packed.pieces), tuple(packed.body), min(through, plan.head), packed.size, plan.tombstone)


class _Packing:
    def __init__(self, plan: ReadPlan, reader: RunReader) -> None:
        self._topic_id = plan.topic_id
        self._reader = reader
        self._room = plan.request.max_bytes
        self._wanted = plan.request.limit
        self.pieces: list[Piece] = []
        self.body: list[bytes | memoryview] = []
        self.size = 0

    def take(self, run: Run, lo: int, hi: int) -> int:
        """Takes what fits from a run; the index behind what was taken."""
        for begin, end in live_ranges(self._reader.flags(self._topic_id, run), lo, hi):
            if self._wanted <= 0:
                return begin
            most = min(end, begin + self._wanted)
            for view, view_lo, view_hi, offset in self._reader.views(self._topic_id, run, begin, most):
                stop = fitting(view, view_lo, view_hi, self._room - self.size)
                if stop == view_lo and not self.pieces:
                    stop += 1
                if stop > view_lo:
                    self._add(run.first_seq + offset + view_lo, view, view_lo, stop)
                if stop < view_hi:
                    return offset + stop
            if most < end:
                return most
        return hi

    def _add(self, first_seq: int, view: View, lo: int, hi: int) -> None:
        rows = view.rows[3 * lo : 3 * hi].cast("B")
        text = view.whole(lo, hi)
        self.pieces.append(Piece(first_seq, hi - lo, view.rows[3 * lo], len(rows), len(text)))
        self.body += (bytes(rows), bytes(text))
        self.size += len(text)
        self._wanted -= hi - lo


Chain = Iterator[tuple[Topic, int, int]]


def chain_of(topic: Topic) -> Chain:
    """A stream and those it was forked from, the newest first, each with the first and last seq that is read of it."""
    last = topic.head
    at: Topic | None = topic
    while at is not None:
        origin = at.origin
        yield at, origin.upto + 1 if origin is not None else 1, last
        if origin is None:
            return
        at, last = origin.topic, origin.upto


def has_removed(topic: Topic) -> bool:
    """Whether anything may be gone between the first entry and the last."""
    return topic.origin is not None or topic.live_count != topic.head - topic.earliest + 1


def removed_between(topic: Topic, reader: RunReader, first: int, last: int) -> tuple[SeqRange, ...]:
    """What of a range is gone: flagged as deleted, or in no run, because a run whose last entry goes is gone, too."""
    if not has_removed(topic):
        # All of it is alive, as nearly always; a tail of single entries has as many runs as entries.
        return ()
    found: Ranges = []
    for part, begin, end in chain_of(topic):
        low, high = max(begin, first), min(end, last)
        for run in part.runs_from(low) if low <= high else ():
            if run.first_seq > high:
                break
            if low < run.first_seq:
                found.append((low, run.first_seq - 1))
            flags = reader.flags(part.id, run)
            if flags is not None:
                found += _dead(flags, run.first_seq, run.count)
            low = run.last_seq + 1
        if low <= high:
            found.append((low, high))
    return tuple(found)


def _dead(flags: bytes | bytearray, first_seq: int, count: int) -> Ranges:
    at, found = 0, []
    for begin, end in [*live_ranges(flags, 0, count), (count, count)]:
        if at < begin:
            found.append((first_seq + at, first_seq + begin - 1))
        at = end
    return found


class Stretch(NamedTuple):
    """Seqs that are looked at together."""

    first: int
    last: int


def stretches(topic: Topic, first: int, last: int, max_bytes: int) -> list[Stretch]:
    """A range of seqs in stretches of about so many bytes, the newest first. How large one really is shows when it is
    read; what no run holds is left out."""
    found: list[Stretch] = []
    room, wanted = 0, 0
    for part, begin, end in chain_of(topic):
        low, high = max(begin, first), min(end, last)
        runs = [run for run in part.runs_from(low) if run.first_seq <= high] if low <= high else []
        for run in reversed(runs):
            size = max(run.payload_bytes // run.count, 1)
            bottom, top = max(run.first_seq, low), min(run.last_seq, high)
            while top >= bottom:
                if not found or found[-1].first != top + 1 or min(room // size, wanted) < 1:
                    found.append(Stretch(top + 1, top))
                    room, wanted = max(max_bytes, size), PACK_RECORDS
                taken = min(top - bottom + 1, room // size, wanted)
                found[-1] = Stretch(top - taken + 1, found[-1].last)
                room, wanted, top = room - taken * size, wanted - taken, top - taken
    return found


def window_start(topic: Topic, max_bytes: int) -> int:
    """The seq behind which about so many bytes are stored; 0 where that is everything."""
    room = max_bytes
    for part, begin, end in chain_of(topic):
        runs: list[Run] = [*part.segments, *part.tail]
        for run in reversed(runs):
            if run.first_seq > end or run.last_seq < begin:
                continue
            if run.payload_bytes > room:
                # As many of its last entries as would fit if all were of one size.
                fitting_count = room * run.count // run.payload_bytes
                return min(max(run.last_seq - fitting_count, run.first_seq), end)
            room -= run.payload_bytes
    return 0
