"""Sets of seqs as sorted ranges: what was covered, removed or is missing, without a word for each record.

A set is a list of `(first, last)`, both included, ascending and apart: two ranges that touch are one. Every function
returns such a list and changes none.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec

from topics_protocol.config import LossReason, Tombstone

__all__ = [
    "LossReason", "LostRange", "Ranges", "SeqRange", "Tombstone", "contains", "covers", "difference", "intersection",
    "size", "union",
]  # fmt: skip

SeqRange = tuple[int, int]
Ranges = list[SeqRange]


def union(*sets: Iterable[SeqRange]) -> Ranges:
    """Every seq that is in any of them; the parts may overlap and come in any order."""
    joined: Ranges = []
    for first, last in sorted(part for one in sets for part in one):
        if first > last:
            continue
        if joined and first <= joined[-1][1] + 1:
            if last > joined[-1][1]:
                joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined


def difference(ranges: Sequence[SeqRange], taken: Sequence[SeqRange]) -> Ranges:
    """The seqs in `ranges` that are not in `taken`; both must be ascending and disjoint."""
    left: Ranges = []
    place = 0
    for begin, last in ranges:
        first = begin
        while place < len(taken) and taken[place][1] < first:
            place += 1
        at = place
        while at < len(taken) and taken[at][0] <= last:
            if taken[at][0] > first:
                left.append((first, taken[at][0] - 1))
            first = taken[at][1] + 1
            at += 1
        if first <= last:
            left.append((first, last))
    return left


def intersection(ranges: Sequence[SeqRange], others: Sequence[SeqRange]) -> Ranges:
    """The seqs in both."""
    return difference(ranges, difference(ranges, others))


def size(ranges: Iterable[SeqRange]) -> int:
    """How many seqs there are."""
    return sum([last - first + 1 for first, last in ranges])


def contains(ranges: Sequence[SeqRange], seq: int) -> bool:
    place = bisect_left(ranges, seq, key=_last)
    return place < len(ranges) and ranges[place][0] <= seq


def covers(ranges: Sequence[SeqRange], first: int, last: int) -> bool:
    """Whether every seq from `first` to `last` is in."""
    place = bisect_left(ranges, first, key=_last)
    return place < len(ranges) and ranges[place][0] <= first and last <= ranges[place][1]


def _last(part: SeqRange) -> int:
    return part[1]


# How a reader learns that records are gone which nobody asked to remove.
#
# Loss is never silent and never an error: a read answers normally and carries a tombstone with the exact range.
# A deletion somebody asked for raises no tombstone, so it has no reason here.


class LostRange(msgspec.Struct, frozen=True, gc=False):
    """Seqs `from_seq` to `to_seq`, both included, that a topic remembers as lost."""

    from_seq: int
    to_seq: int
    reason: LossReason
    existed: int = -1
    """How many of them are known to have been records; -1 if all. The others may only have been reserved."""

    @property
    def records(self) -> int:
        """How many records are known to have been lost."""
        return self.to_seq - self.from_seq + 1 if self.existed < 0 else self.existed

    def joined(self, last: "LostRange") -> "LostRange":
        """One range from here to the end of another one."""
        records = self.records + last.records
        between = last.from_seq - self.to_seq - 1
        all_seqs = records + between == last.to_seq - self.from_seq + 1
        return LostRange(self.from_seq, last.to_seq, self.reason, -1 if all_seqs else records)
