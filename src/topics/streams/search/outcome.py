"""What a query found, and what its answer covers."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter

import msgspec

from topics.core.errors import TopicsError
from topics.engine.topic import Topic
from topics.searching.messages import Result
from topics.streams.search.packing import Stretch


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    result: Result
    head: int
    """The last entry when the query came."""
    first: int
    """The index was asked about entries from here to `last`."""
    last: int
    missed_sealed: int = 0
    """Entries that were not looked at, at most."""
    missed_tail: int = 0
    missed_segments: int = 0
    first_missed: int | None = None
    scanned: tuple[Stretch, ...] = ()
    """What was looked at entry by entry, in the order in which it was."""
    scanned_segments: int = 0
    scanned_bytes: int = 0
    indexed_segments: int = 0
    """Segments that companions answered for."""
    spent: str | None = None
    """The budget that ran out."""
    statistics: tuple[int, ...] = ()
    """What was counted for a ranking."""

    @property
    def missed(self) -> int:
        return self.missed_sealed + self.missed_tail

    @property
    def complete(self) -> bool:
        return self.spent is None and not self.missed

    @property
    def looked_at_fresh(self) -> int:
        """Entries that the index has looked at."""
        return self.result.looked_at - self.result.scanned - self.result.indexed


_first_seq, _last_seq = attrgetter("first_seq"), attrgetter("last_seq")

OutcomeDone = Callable[[Outcome | TopicsError], None]


def account(
    topic: Topic,
    result: Result,
    head: int,
    fresh: Stretch,
    scanned: Sequence[Stretch],
    scanned_bytes: int,
    indexed: Sequence[Stretch],
    missed: Sequence[Stretch],
    spent: str | None,
) -> Outcome:
    """Counts what was missed, by where it is. Seqs are counted and not live entries: the bound is never too small."""
    last_sealed = topic.segments[-1].last_seq if topic.segments else (topic.origin.upto if topic.origin else 0)
    sealed = sum([max(min(part.last, last_sealed) - part.first + 1, 0) for part in missed])
    # What the index itself did not get to is counted with the tail.
    tail = sum([max(part.last - max(part.first, last_sealed + 1) + 1, 0) for part in missed]) + result.missed
    firsts = [part.first for part in missed if part.first <= part.last]
    if result.missed:
        firsts.append(fresh.first if result.first_missed is None else result.first_missed)
    return Outcome(
        result=result,
        head=head,
        first=fresh.first,
        last=fresh.last,
        missed_sealed=sealed,
        missed_tail=tail,
        missed_segments=_segments_in(topic, missed) if sealed else 0,
        first_missed=min(firsts) if firsts else None,
        scanned=tuple(scanned),
        scanned_segments=_segments_in(topic, scanned),
        scanned_bytes=scanned_bytes,
        indexed_segments=_segments_in(topic, indexed),
        spent=spent,
    )


def _segments_in(topic: Topic, parts: Sequence[Stretch]) -> int:
    """How many segments have a seq of these. Each part is a small stretch, so neighbours are often of one segment."""
    segments, count, behind = topic.segments, 0, 0
    for part in sorted(parts):
        if part.first <= part.last:
            begin = bisect_left(segments, part.first, behind, key=_last_seq)
            behind = bisect_right(segments, part.last, begin, key=_first_seq)
            count += behind - begin
    return count
