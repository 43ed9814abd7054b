"""What measures of many groups came to, as arrays: one number a group, so that to add up, merge and store them takes no
step for each group. What does not fit into numbers of 64 bits is kept as states, one by one."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np

from topics.indexing.columns import Numbers
from topics.indexing.histograms import Array, Buckets, added, buckets_together, wide
from topics.indexing.measures import SHARES, Counted, State, Summed

_EXACT: Final = 1 << 53
_EXPONENT_AT: Final = 52
_EXPONENT_OF_ONE: Final = 1023
_SAFE: Final = 1 << 62
"""Sums below are exact in 64 bits, however they are come by."""


class Counts:
    """Counts of groups."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, places: Array) -> "Counts":
        return Counts(wide(self.numbers[places]))

    def added(self, groups: Numbers, size: int) -> "Counts":
        """Those of one group together."""
        return Counts(added(self.numbers, groups, size))

    @property
    def counts(self) -> Numbers:
        return self.numbers

    def states(self) -> list[State]:
        return [Counted(number) for number in self.numbers.tolist()]

    def shown(self) -> list[Any]:
        """As they are encoded, one for each group."""
        return self.states()


class _Shown(msgspec.Struct, gc=False):
    """A summary as it is answered (`Summed.show`)."""

    count: Any
    sum: Any
    min: Any
    max: Any
    avg: Any
    p50: int | None = None
    p95: int | None = None
    p99: int | None = None
    histogram: dict[int, Any] | None = None


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
        return Sums(wide(self.counts[places]), self.sums[places], self.least[places], self.most[places], buckets)

    def added(self, groups: Numbers, size: int) -> "Measured":
        if not _is_safe(self.sums):
            return States(self.states()).added(groups, size)
        buckets = None if self.buckets is None else self.buckets.added(groups, size)
        return Sums(
            added(self.counts, groups, size),
            added(self.sums, groups, size),
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

    def shown(self) -> list[Any]:
        counts, sums = self.counts.tolist(), self.sums.tolist()
        # Divided in Python: of integers, numpy divides the nearest floats.
        averages = [total / count if count else 0.0 for total, count in zip(sums, counts, strict=True)]
        numbers = [counts, *map(_plain, (self.sums, self.least, self.most, np.array(averages)))]
        if self.buckets is not None:
            numbers += [*self.buckets.reaching(SHARES.values()), self.buckets.histograms()]
        return list(map(_Shown, *numbers))


class States:
    """What groups came to, one by one."""

    def __init__(self, found: Sequence[State]) -> None:
        self._found = found

    @property
    def counts(self) -> Array:
        return np.array([state.count for state in self._found], object)

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

    def shown(self) -> list[Any]:
        return [state.show() for state in self._found]


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
        buckets_together(buckets) if buckets else None,
    )


def summarise(values: Array, groups: Numbers, counts: Numbers, with_histogram: bool) -> Measured:
    """The summaries of groups out of single values; `counts` are how many each group has, at least one."""
    size = len(counts)
    buckets = Buckets.of(groups, _exponents(values), size) if with_histogram else None
    safe = _is_safe(values)
    sums = added(values, groups, size) if safe else np.zeros(size, values.dtype)
    found = Sums(counts, sums, *extremes(values, values, groups, size), buckets)
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
    # The exponent as it stands in the bits of a float, which is twice as fast as to take it apart.
    exponents: Array = (amounts.view(np.int64) >> _EXPONENT_AT) - _EXPONENT_OF_ONE
    return exponents


def _plain(values: Array) -> list[int | float]:
    """Numbers as they should be written (`number_json`)."""
    found: list[int | float] = values.tolist()
    if values.dtype == np.float64:
        whole = (np.floor(values) == values) & (np.abs(values) < _EXACT)
        for place in np.flatnonzero(whole).tolist():
            found[place] = int(found[place])
    return found


def _is_safe(values: Array) -> bool:
    """Whether no sum of any of them can overflow."""
    if values.dtype == np.float64:
        return True
    return max(int(values.max(initial=0)), -int(values.min(initial=0))) * len(values) < _SAFE


def extremes(low: Array, high: Array, groups: Numbers, size: int) -> tuple[Array, Array]:
    """The least and the greatest of each group, which has at least one."""
    least, most = np.full(size, low.max(initial=0)), np.full(size, high.min(initial=0))
    np.minimum.at(least, groups, low)
    np.maximum.at(most, groups, high)
    return least, most
