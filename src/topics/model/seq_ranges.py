"""Sets of seqs as sorted ranges: covered, removed or missing seqs, with memory for each range and not for each record.

A set is a list of `(first, last)`, both included, ascending and disjoint; adjacent ranges are merged. Every function
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
    """Returns the union; the parts may overlap and have any order."""
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
    """Returns the seqs in `ranges` that are not in `taken`; both must be ascending and disjoint."""
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
    """Returns the intersection."""
    return difference(ranges, difference(ranges, others))


def size(ranges: Iterable[SeqRange]) -> int:
    """Returns the number of seqs."""
    return sum([last - first + 1 for first, last in ranges])


def contains(ranges: Sequence[SeqRange], seq: int) -> bool:
    place = bisect_left(ranges, seq, key=_last)
    return place < len(ranges) and ranges[place][0] <= seq


def covers(ranges: Sequence[SeqRange], first: int, last: int) -> bool:
    """Returns whether every seq from `first` to `last` is in the set."""
    place = bisect_left(ranges, first, key=_last)
    return place < len(ranges) and ranges[place][0] <= first and last <= ranges[place][1]


def _last(part: SeqRange) -> int:
    return part[1]


# Tombstones: reports of lost records to readers.
#
# Loss is never silent and never an error: a read is answered normally, with a tombstone that has the exact range. A
# delete by a client causes no tombstone, so it has no reason here.


class LostRange(msgspec.Struct, frozen=True, gc=False):
    """Seqs `from_seq` to `to_seq`, both included, that a topic has recorded as lost."""

    from_seq: int
    to_seq: int
    reason: LossReason
    existed: int = -1
    """The number of seqs that are known to have been records; -1 if all. The others may only have been reserved."""

    @property
    def records(self) -> int:
        """The number of records known to be lost."""
        return self.to_seq - self.from_seq + 1 if self.existed < 0 else self.existed

    def joined(self, last: "LostRange") -> "LostRange":
        """Returns one range from the start of this one to the end of another one."""
        records = self.records + last.records
        between = last.from_seq - self.to_seq - 1
        all_seqs = records + between == last.to_seq - self.from_seq + 1
        return LostRange(self.from_seq, last.to_seq, self.reason, -1 if all_seqs else records)
