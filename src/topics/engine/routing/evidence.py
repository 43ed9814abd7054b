"""Which records an `exactly_once` router has copied before: the copies themselves are the evidence.

The cursor alone keeps a router from copying twice. It cannot when the router is deleted and created again over records
that the first one has copied. Then, once, the destination is searched for copies that carry this router's stamp. What
was deleted or evicted there since has left no evidence, and is copied again.
"""

from bisect import bisect_right
from typing import NamedTuple

from topics.core.routers import Stamp
from topics.core.rows import TRAIT_META
from topics.engine.state.runs import Run, RunReader, live_ranges
from topics.engine.topic import Topic
from topics.formats.routing import SeqRange
from topics.wire.copies import Stretch, stamp_in, stamp_mark
from topics.wire.cuts import View


class Search(NamedTuple):
    """Where to look, taken at one moment."""

    topic_id: int
    stamp: Stamp
    earliest: int
    runs: list[tuple[Run, bytes | None]]


def plan_search(dest: Topic, stamp: Stamp) -> Search:
    runs = [
        (run, None if run.flags is None else bytes(run.flags))
        for run in dest.runs_from(dest.earliest)
        if run.traits & TRAIT_META
    ]
    return Search(dest.id, stamp, dest.earliest, runs)


def find_copies(search: Search, reader: RunReader) -> list[SeqRange]:
    """The seqs of the source whose copies are there. Touches nothing that changes, so any thread may do it."""
    found: set[int] = set()
    for run, flags in search.runs:
        known = flags if flags is not None else reader.flags(search.topic_id, run)
        for begin, end in live_ranges(known, max(search.earliest - run.first_seq, 0), run.count):
            for view, lo, hi, _ in reader.views(search.topic_id, run, begin, end):
                found.update(_stamped(view, lo, hi, search.stamp))
    return as_ranges(sorted(found))


def _stamped(view: View, lo: int, hi: int, stamp: Stamp) -> list[int]:
    """The source seqs in the stamps of some fragments; only fragments with the mark in them are looked at."""
    text, mark = bytes(view.whole(lo, hi)), stamp_mark(stamp)
    offset = view.start(lo)
    starts = [view.start(index) - offset for index in range(lo, hi)]
    found: list[int] = []
    at = text.find(mark)
    while at >= 0:
        index = lo + bisect_right(starts, at) - 1
        seq = stamp_in(view, index, stamp)
        if seq is not None:
            found.append(seq)
        at = text.find(mark, view.start(index + 1) - offset)
    return found


def as_ranges(seqs: list[int]) -> list[SeqRange]:
    ranges: list[SeqRange] = []
    for seq in seqs:
        if ranges and ranges[-1][1] + 1 == seq:
            ranges[-1] = (ranges[-1][0], seq)
        else:
            ranges.append((seq, seq))
    return ranges


def absent(stretches: list[Stretch], present: list[SeqRange]) -> list[int]:
    """The seqs of some stretches that are in none of the ranges."""
    kept: list[int] = []
    lasts = [last for _, last in present]
    for stretch in stretches:
        for seq in range(stretch.first_seq, stretch.last_seq + 1):
            place = bisect_right(lasts, seq - 1)
            if place == len(present) or seq < present[place][0]:
                kept.append(seq)
    return kept
