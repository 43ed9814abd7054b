"""Histograms of many groups as arrays, and what else measures of groups are made with."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from topics.indexing.columns import Numbers, ranges

Array = NDArray[Any]
_FEW: Final = 1 << 20
"""Codes that a table is made for; beyond, they are sorted."""
_INT64_BITS: Final = 63
"""A power of two with a greater exponent is none of 64 bits."""


class Buckets:
    """Histograms of groups: for each group the powers of two that it has, ascending, and how often."""

    def __init__(self, ends: Numbers, exponents: Array, counts: Numbers) -> None:
        self.ends = ends
        """Where those of each group end."""
        self.exponents = exponents
        self.counts = counts

    @classmethod
    def of(cls, groups: Numbers, exponents: Array, size: int, counts: Numbers | None = None) -> "Buckets":
        """Out of pairs in any order, each as often as `counts` says, or once."""
        span = int(exponents.max(initial=0)) + 1
        pairs = groups * span + exponents
        if size * span <= _FEW:
            seen = np.bincount(pairs, minlength=size * span)
            # By how often a pair comes: who counts may count nothing, and still have said so.
            distinct = np.flatnonzero(seen)
            found = (seen if counts is None else added(counts, pairs, size * span))[distinct]
        else:
            distinct, places = np.unique(pairs, return_inverse=True)
            found = added(np.ones(len(pairs), np.int64) if counts is None else counts, places, len(distinct))
        ends = np.searchsorted(distinct, np.arange(1, size + 1) * span)
        return cls(ends, (distinct % span).astype(np.uint16), found)

    @property
    def _lengths(self) -> Numbers:
        return np.diff(self.ends, prepend=0)

    def take(self, places: Array) -> "Buckets":
        begins = np.where(places > 0, wide(self.ends[places - 1]), 0)
        lengths = wide(self.ends[places]) - begins
        inside = ranges(begins, lengths)
        return Buckets(np.cumsum(lengths), self.exponents[inside], wide(self.counts[inside]))

    def added(self, groups: Numbers, size: int) -> "Buckets":
        return Buckets.of(np.repeat(groups, self._lengths), self.exponents, size, self.counts)

    def histograms(self) -> list[dict[int, Any]]:
        pairs = zip(_bounds(self.exponents), self.counts.tolist(), strict=True)
        return [dict(islice(pairs, length)) for length in self._lengths.tolist()]

    def reaching(self, shares: Iterable[float]) -> list[list[int | None]]:
        """For each share the lower bounds of the buckets, one a group, that reach it; None where nothing is in any."""
        lengths = self._lengths
        begins, groups = self.ends - lengths, np.repeat(np.arange(len(lengths)), lengths)
        sums = np.append(0, np.cumsum(self.counts))
        totals, seen = sums[self.ends] - sums[begins], sums[1:] - sums[begins][groups]
        filled = totals > 0
        reached = []
        for share in shares:
            # Counts are not below 0, so the buckets that do not reach it come before those that do.
            before = np.bincount(groups[seen < (share * totals)[groups]], minlength=len(lengths))
            found = np.full(len(lengths), None, object)
            found[filled] = _bounds(self.exponents[(begins + before)[filled]])
            reached.append(found.tolist())
        return reached


def _bounds(exponents: Array) -> list[int]:
    greatest = int(exponents.max(initial=0))
    if greatest < _INT64_BITS:
        found: list[int] = (np.int64(1) << wide(exponents)).tolist()
        return found
    powers = [1 << exponent for exponent in range(greatest + 1)]
    return [powers[exponent] for exponent in exponents.tolist()]


def buckets_together(parts: Sequence[Buckets]) -> Buckets:
    behind = np.cumsum([0, *(len(part.counts) for part in parts)])
    return Buckets(
        np.concatenate([part.ends + before for part, before in zip(parts, behind.tolist(), strict=False)]),
        np.concatenate([part.exponents for part in parts]),
        np.concatenate([part.counts for part in parts]),
    )


def wide(numbers: Array) -> Numbers:
    """Those that are stored take as few bytes as they fit into, until they are taken."""
    return numbers.astype(np.int64, copy=False)


def added(values: Array, groups: Numbers, size: int) -> Array:
    sums = np.zeros(size, values.dtype)
    # A sum of floats may be beyond all of them, which is shown as null: nothing to warn operators of.
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(sums, groups, values)
    return sums
