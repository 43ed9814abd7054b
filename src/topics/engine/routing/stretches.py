"""Gathering what a router forwards next: from its cursor on, a bounded stretch of the source's records.

Planned on the loop from the topic's state, fetched from runs that never change; so a plan that touches the cold folder
can be fetched by another thread.
"""

from typing import NamedTuple

import msgspec

from topics.core.rows import ROW_WORDS
from topics.engine.state.losses import lost_from
from topics.engine.state.runs import Block, Run, RunReader, Segment, live_ranges
from topics.engine.topic import Topic
from topics.wire.copies import Stretch
from topics.wire.cuts import View, fitting

RECORDS_MAX = 1024
"""How many records of the source one pass of a router forwards."""
TEXT_BYTES_MAX = 1024 * 1024


class GatherPlan(NamedTuple):
    """Where to look, taken at one moment."""

    topic_id: int
    cursor: int
    lost: int
    """How many records behind the cursor are gone that nobody asked to remove."""
    start: int
    upto: int
    """The last seq to look at."""
    runs: list[tuple[Run, bytes | None]]
    """Each with its delete flags where they are in memory, as they were at that moment."""

    @property
    def cold(self) -> bool:
        return any(isinstance(run, Segment) and run.cold and run.blocks is None for run, _ in self.runs)


class Gathered(msgspec.Struct, frozen=True):
    """What was found: after `lost` empty places come the records, and the cursor may move to `upto`."""

    lost: int
    upto: int
    stretches: list[Stretch]
    count: int


def plan_gather(topic: Topic, cursor: int, last: int, held: list[Block] | None = None) -> GatherPlan:
    """Plans what lies behind a cursor, up to a seq at most. `held` are blocks that a cap may have taken already."""
    if held and cursor + 1 < topic.evict_floor:
        plan = _plan_held(topic, cursor, last, held)
        if plan is not None:
            return plan
    lost, at = 0, cursor
    if at + 1 < topic.evict_floor:
        lost = min(topic.evict_floor - 1, last) - at
        at += lost
    end = last
    for known in lost_from(topic, at + 1):
        if known.from_seq > at + 1:
            # Told by a forward of its own, after the records before it.
            end = min(end, known.from_seq - 1)
            break
        gone = min(known.to_seq, last) - at
        lost += gone
        at += gone
    start, wanted = max(at + 1, topic.earliest), RECORDS_MAX
    runs: list[tuple[Run, bytes | None]] = []
    for run in topic.runs_from(start) if start <= end else ():
        if run.first_seq > end:
            break
        if wanted <= 0:
            end = run.first_seq - 1
            break
        runs.append((run, None if run.flags is None else bytes(run.flags)))
        wanted -= run.live if run.first_seq >= start else 0
    return GatherPlan(topic.id, cursor, lost, start, max(end, at), runs)


def _plan_held(topic: Topic, cursor: int, last: int, held: list[Block]) -> GatherPlan | None:
    """What a cap took from the topic and is still at hand: none of it is lost to the routers."""
    blocks = [block for block in held if block.last_seq > cursor and block.first_seq <= last]
    if not blocks:
        return None
    start = max(cursor + 1, blocks[0].first_seq)
    runs: list[tuple[Run, bytes | None]] = []
    end = start - 1
    for block in blocks:
        if block.first_seq > end + 1:
            break
        runs.append((block, None if block.flags is None else bytes(block.flags)))
        end = min(block.last_seq, last)
    return GatherPlan(topic.id, cursor, start - 1 - cursor, start, end, runs)


def fetch(plan: GatherPlan, reader: RunReader) -> Gathered:
    """Looks the records up. Raises SegmentDamaged where they cannot be read."""
    stretches: list[Stretch] = []
    count, room, upto = 0, TEXT_BYTES_MAX, plan.upto
    for run, known in plan.runs:
        flags = known if known is not None else reader.flags(plan.topic_id, run)
        lo = max(plan.start - run.first_seq, 0)
        hi = min(plan.upto + 1 - run.first_seq, run.count)
        for begin, live_end in live_ranges(flags, lo, hi):
            end = min(live_end, begin + RECORDS_MAX - count)
            for view, view_lo, view_hi, offset in reader.views(plan.topic_id, run, begin, end):
                fit = fitting(view, view_lo, view_hi, room)
                if fit == view_lo and not count:
                    fit += 1
                if fit > view_lo:
                    stretches.append(_held(Stretch(view, view_lo, fit, run.first_seq + offset), run))
                    count += fit - view_lo
                    room -= view.start(fit) - view.start(view_lo)
                if fit < view_hi:
                    return Gathered(plan.lost, run.first_seq + offset + fit - 1, stretches, count)
            if count >= RECORDS_MAX:
                upto = run.first_seq + end - 1
                return Gathered(plan.lost, upto, stretches, count)
    return Gathered(plan.lost, upto, stretches, count)


def _held(stretch: Stretch, run: Run) -> Stretch:
    """A stretch that does not need the segment's files any more: they may go at any moment."""
    if isinstance(run, Block) or run.blocks is not None:
        return stretch
    view, lo, hi, origin = stretch
    rows = memoryview(view.rows[ROW_WORDS * lo : ROW_WORDS * hi].tobytes()).cast("I")
    return Stretch(View(bytes(view.whole(lo, hi)), rows, rows[0], hi - lo), 0, hi - lo, origin + lo)
