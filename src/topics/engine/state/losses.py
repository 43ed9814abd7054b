"""The ranges that a topic remembers as lost: in order, apart from each other, and few.

A range is told to whoever reads across it, so it has to be kept for as long as anything before it may be read. A router
that lags behind a source which evicts leaves one for every time it goes on. Two things keep their number from growing
with everything that ever went through a topic:

* What is below the floor of evictions is told by the floor, and forgotten here.
* Two ranges with nothing live between them are one: a reader that meets the first has nothing to read before it meets
  the second. What was deleted on purpose between them then counts as part of the gap, as it does below the floor
  (docs/decisions/0041). That is only done once there are many, since exactly what was lost is the better answer.

So there are at most as many ranges as live records, and one, besides a few that are not worth the look.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from topics.core.loss import LossReason, LostRange
from topics.engine.state.runs import RunReader, live_ranges
from topics.engine.topic import Topic
from topics.storage.segments import UNREADABLE

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
