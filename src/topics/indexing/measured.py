"""What measures of many groups came to, as arrays: one number a group, so that to add up, merge and store them takes no
step for each group. What does not fit into numbers of 64 bits is kept as states, one by one."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from topics.indexing.columns import Numbers, ranges
from topics.indexing.measures import Counted, State, Summed

Array = NDArray[Any]
_FEW: Final = 1 << 20
"""Codes that a table is made for; beyond, they are sorted."""
_SAFE: Final = 1 << 62
"""Sums below are exact in 64 bits, however they are come by."""


class Counts:
    """Counts of groups."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, places: Array) -> "Counts":
        return Counts(_wide(self.numbers[places]))

    def added(self, groups: Numbers, size: int) -> "Counts":
        """Those of one group together."""
        return Counts(_added(self.numbers, groups, size))

    def states(self) -> list[State]:
        return [Counted(number) for number in self.numbers.tolist()]


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
            found = np.bincount(pairs, minlength=size * span) if counts is None else _added(counts, pairs, size * span)
            # Who counts may count nothing, and still have said so.
            seen = np.zeros(size * span, np.bool_)
            seen[pairs] = True
            distinct = np.flatnonzero(seen)
            found = found[distinct]
        else:
            distinct, places = np.unique(pairs, return_inverse=True)
            found = _added(np.ones(len(pairs), np.int64) if counts is None else counts, places, len(distinct))
        ends = np.searchsorted(distinct, np.arange(1, size + 1) * span)
        return cls(ends, (distinct % span).astype(np.uint16), found)

    @property
    def _lengths(self) -> Numbers:
        return np.diff(self.ends, prepend=0)

    def take(self, places: Array) -> "Buckets":
        begins = np.where(places > 0, _wide(self.ends[places - 1]), 0)
        lengths = _wide(self.ends[places]) - begins
        inside = ranges(begins, lengths)
        return Buckets(np.cumsum(lengths), self.exponents[inside], _wide(self.counts[inside]))

    def added(self, groups: Numbers, size: int) -> "Buckets":
        return Buckets.of(np.repeat(groups, self._lengths), self.exponents, size, self.counts)

    def histograms(self) -> list[dict[int, Any]]:
        bounds = [1 << exponent for exponent in self.exponents.tolist()]
        counts, found, begin = self.counts.tolist(), [], 0
        for end in self.ends.tolist():
            found.append(dict(zip(bounds[begin:end], counts[begin:end], strict=True)))
            begin = end
        return found


class Sums:
    """Summaries of groups, each of at least one value: integers or floats."""

    def __init__(self, counts: Numbers, sums: Array, least: Array, most: Array, buckets: Buckets | None) -> None:
        self.counts = counts
        self.sums = sums
        self.least = least
        self.most = most
        self.buckets = buckets

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, places: Array) -> "Sums":
        buckets = None if self.buckets is None else self.buckets.take(places)
        return Sums(_wide(self.counts[places]), self.sums[places], self.least[places], self.most[places], buckets)

    def added(self, groups: Numbers, size: int) -> "Measured":
        if not _is_safe(self.sums):
            return States(self.states()).added(groups, size)
        buckets = None if self.buckets is None else self.buckets.added(groups, size)
        return Sums(
            _added(self.counts, groups, size),
            _added(self.sums, groups, size),
            *extremes(self.least, self.most, groups, size),
            buckets,
        )

    def states(self) -> list[State]:
        lists = (array.tolist() for array in (self.counts, self.sums, self.least, self.most))
        states = [Summed(*parts) for parts in zip(*lists, strict=True)]
        if self.buckets is not None:
            for state, histogram in zip(states, self.buckets.histograms(), strict=True):
                state.histogram = histogram
        return list(states)


class States:
    """What groups came to, one by one."""

    def __init__(self, found: Sequence[State]) -> None:
        self._found = found

    def __len__(self) -> int:
        return len(self._found)

    def take(self, places: Array) -> "States":
        return States([self._found[place] for place in places.tolist()])

    def added(self, groups: Numbers, size: int) -> "States":
        merged: list[State | None] = [None] * size
        for state, group in zip(self._found, groups.tolist(), strict=True):
            known = merged[group]
            if known is None:
                # Not itself: what is merged into must belong to nobody else.
                known = merged[group] = Counted() if isinstance(state, Counted) else Summed()
            known.merge(state)
        return States([state for state in merged if state is not None])

    def states(self) -> list[State]:
        return list(self._found)


Measured = Counts | Sums | States


def together(parts: Sequence[Measured]) -> Measured:
    """Those of several one behind the other."""
    counts = [part for part in parts if isinstance(part, Counts)]
    if len(counts) == len(parts):
        return Counts(np.concatenate([part.numbers for part in counts]))
    sums = [part for part in parts if isinstance(part, Sums)]
    kinds = {(part.sums.dtype, part.buckets is None) for part in sums}
    if len(sums) < len(parts) or len(kinds) > 1:
        return States(list(chain.from_iterable(part.states() for part in parts)))
    buckets = [part.buckets for part in sums if part.buckets is not None]
    return Sums(
        np.concatenate([part.counts for part in sums]),
        np.concatenate([part.sums for part in sums]),
        np.concatenate([part.least for part in sums]),
        np.concatenate([part.most for part in sums]),
        _buckets_together(buckets) if buckets else None,
    )


def _buckets_together(parts: Sequence[Buckets]) -> Buckets:
    behind = np.cumsum([0, *(len(part.counts) for part in parts)])
    return Buckets(
        np.concatenate([part.ends + before for part, before in zip(parts, behind.tolist(), strict=False)]),
        np.concatenate([part.exponents for part in parts]),
        np.concatenate([part.counts for part in parts]),
    )


def summarise(values: Array, groups: Numbers, size: int, with_histogram: bool) -> Measured:
    """The summaries of groups out of single values; every group has one."""
    ones = np.bincount(groups, minlength=size)
    buckets = Buckets.of(groups, _exponents(values), size) if with_histogram else None
    safe = _is_safe(values)
    sums = _added(values, groups, size) if safe else np.zeros(size, values.dtype)
    found = Sums(ones, sums, *extremes(values, values, groups, size), buckets)
    if safe:
        return found
    exact = [0] * size
    for value, group in zip(values.tolist(), groups.tolist(), strict=True):
        exact[group] += value
    states = found.states()
    for state, total in zip(states, exact, strict=True):
        assert isinstance(state, Summed)
        state.sum = total
    return States(states)


def _exponents(values: Array) -> Array:
    """Of the greatest power of two that is not above the amount of each, and 0 below 1."""
    amounts = np.maximum(np.abs(values.astype(np.float64)), 1.0)
    if values.dtype != np.float64 and amounts.max(initial=1) >= 1 << 53:
        # As a float, a large integer just below a power of two is that power.
        return np.array([max(abs(value), 1).bit_length() - 1 for value in values.tolist()], np.int64)
    exponents: Array = np.frexp(amounts)[1] - 1
    return exponents


def _is_safe(values: Array) -> bool:
    """Whether no sum of any of them can overflow."""
    return values.dtype == np.float64 or float(np.abs(values.astype(np.float64)).max(initial=0)) * len(values) < _SAFE


def _wide(numbers: Array) -> Numbers:
    """Those that are stored take as few bytes as they fit into, until they are taken."""
    return numbers.astype(np.int64, copy=False)


def _added(values: Array, groups: Numbers, size: int) -> Array:
    sums = np.zeros(size, values.dtype)
    np.add.at(sums, groups, values)
    return sums


def extremes(low: Array, high: Array, groups: Numbers, size: int) -> tuple[Array, Array]:
    """The least and the greatest of each group, which has at least one."""
    # Some value of each group to begin with; which one does not matter.
    least, most = np.zeros(size, low.dtype), np.zeros(size, high.dtype)
    least[groups], most[groups] = low, high
    np.minimum.at(least, groups, low)
    np.maximum.at(most, groups, high)
    return least, most
