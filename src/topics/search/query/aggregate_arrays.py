"""Groups of aggregations as arrays: the start, the dimensions and the measures of each group.

Aggregating an index file, deriving days from hours, merging index files and answering a query from them are the same
operation: groups are numbered by their keys, and groups of one number are added.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, islice
from math import frexp, prod
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from topics.search.query.field_values import Numbers, number_json, ranges

# Histograms of many groups as arrays, and helpers for the measures of groups.

Array = NDArray[Any]
_FEW_GROUPS: Final = 1 << 20
"""Up to this number of codes a table is used; more are sorted."""
_INT64_BITS: Final = 63
"""A power of two with this or a greater exponent exceeds 64 bits."""


class Buckets:
    """Histograms of groups: for each group its powers of two in ascending order, and their counts."""

    def __init__(self, ends: Numbers, exponents: Array, counts: Numbers) -> None:
        self.ends = ends
        """The end of each group's part."""
        self.exponents = exponents
        self.counts = counts

    @classmethod
    def of(cls, groups: Numbers, exponents: Array, size: int, counts: Numbers | None = None) -> "Buckets":
        """Builds groups from pairs in any order, each with its count from `counts`, or 1."""
        span = int(exponents.max(initial=0)) + 1
        pairs = groups * span + exponents
        if size * span <= _FEW_GROUPS:
            seen = np.bincount(pairs, minlength=size * span)
            # By the number of pairs and not by their counts: a count of 0 is kept.
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
        """Returns, for each share, the lower bounds of the buckets that reach it, one for each group; None for empty
        groups."""
        lengths = self._lengths
        begins, groups = self.ends - lengths, np.repeat(np.arange(len(lengths)), lengths)
        sums = np.append(0, np.cumsum(self.counts))
        totals, seen = sums[self.ends] - sums[begins], sums[1:] - sums[begins][groups]
        filled = totals > 0
        reached = []
        for share in shares:
            # Counts are not negative, so the buckets that do not reach the share come first.
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
    """Widens stored numbers, which use the smallest type that holds them."""
    return numbers.astype(np.int64, copy=False)


def added(values: Array, groups: Numbers, size: int) -> Array:
    sums = np.zeros(size, values.dtype)
    # A sum of floats may overflow; it is returned as null, without a warning in the server's log.
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(sums, groups, values)
    return sums


# Measures: aggregated values. A state belongs to one group, is made of contributions and can be merged in any order.
#
# Histograms are `log2_v1`: a value is counted in the bucket of the greatest power of two that is not above its amount;
# values below 1 are in the first bucket, which is 1. A percentile is the lower bound of the bucket that reaches the
# share.

Number = int | float
Histogram = dict[int, Number]

SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def log2_bucket(value: Number) -> int:
    amount = abs(value)
    # The exponent of a float is exact; the logarithm of a float just below a power of two is not.
    return 1 if amount < 1 else 1 << (int(amount).bit_length() - 1 if type(amount) is int else frexp(amount)[1] - 1)


def spread(histogram: Histogram) -> tuple[list[int | None], Histogram]:
    """Returns the buckets that reach each of the shares, None for an empty histogram, and the counts in the form of the
    answer. An answer may have tens of thousands of histograms."""
    bounds = sorted(histogram)
    counts = list(map(histogram.__getitem__, bounds))
    reached: list[int | None] = [None] * len(SHARES)
    seen = list(accumulate(counts))
    if seen and seen[-1] > 0:
        # Summaries may have negative counts, and then the cumulative counts are not ascending.
        find, total = bisect_left if min(counts) >= 0 else _first_reaching, seen[-1]
        reached = [bounds[find(seen, share * total)] for share in SHARES.values()]
    if seen and type(seen[-1]) is float:
        counts = list(map(number_json, counts))
    # The encoder converts the keys to strings.
    return reached, dict(zip(bounds, counts, strict=True))


def _first_reaching(seen: list[Number], requested: float) -> int:
    return next(place for place, number in enumerate(seen) if number >= requested)


class State(Protocol):
    count: Any

    def merge(self, other: Any) -> None: ...

    def show(self) -> Any:
        """Returns the value that is encoded."""
        ...


class Counted(msgspec.Struct, gc=False):
    """The state of a count."""

    count: int = 0

    def merge(self, other: "Counted") -> None:
        self.count += other.count

    def show(self) -> "Counted":
        return self


class Summed(msgspec.Struct, array_like=True):
    """The state of a summary. The minimum and maximum are None until a contribution has them."""

    count: Number = 0
    sum: Number = 0
    min: Number | None = None
    max: Number | None = None
    histogram: Histogram | None = None

    def merge(self, other: "Summed") -> None:
        self.count += other.count
        self.sum += other.sum
        if other.min is not None and (self.min is None or other.min < self.min):
            self.min = other.min
        if other.max is not None and (self.max is None or other.max > self.max):
            self.max = other.max
        if other.histogram is not None:
            mine = self.histogram = self.histogram or {}
            for bound, count in other.histogram.items():
                mine[bound] = mine.get(bound, 0) + count

    def show(self) -> dict[str, Any]:
        count, total, least, most = self.count, self.sum, self.min, self.max
        (p50, p95, p99), histogram = ((None, None, None), None) if self.histogram is None else spread(self.histogram)
        return {
            "count": number_json(count),
            "sum": number_json(total),
            "min": None if least is None else number_json(least),
            "max": None if most is None else number_json(most),
            "avg": number_json(total / count) if count else 0,
            "p50": p50,
            "p95": p95,
            "p99": p99,
            "histogram": histogram,
        }


def summary_of(value: Number, with_histogram: bool) -> Summed:
    """Returns the contribution of one value."""
    return Summed(1, value, value, value, {log2_bucket(value): 1} if with_histogram else None)


# Measures of many groups as arrays, one number for each group, so that adding, merging and storing take no step for
# each group. Values that do not fit into 64-bit numbers are kept as single states.

_EXACT: Final = 1 << 53
_EXPONENT_AT: Final = 52
_EXPONENT_OF_ONE: Final = 1023
_SAFE: Final = 1 << 62
"""Sums below this are exact in 64 bits in any order of additions."""


class Counts:
    """Counts of groups."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, places: Array) -> "Counts":
        return Counts(wide(self.numbers[places]))

    def added(self, groups: Numbers, size: int) -> "Counts":
        """Adds up the counts of each group."""
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
    """States of groups, one by one."""

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
    """Concatenates the measures of several parts."""
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
    # The exponent is read from the bits of the float, which is twice as fast as frexp.
    exponents: Array = (amounts.view(np.int64) >> _EXPONENT_AT) - _EXPONENT_OF_ONE
    return exponents


def _plain(values: Array) -> list[int | float]:
    """Returns numbers in the form in which they are written (`number_json`)."""
    found: list[int | float] = values.tolist()
    if values.dtype == np.float64:
        whole = (np.floor(values) == values) & (np.abs(values) < _EXACT)
        for place in np.flatnonzero(whole).tolist():
            found[place] = int(found[place])
    return found


def _is_safe(values: Array) -> bool:
    """Returns whether no sum of these values can overflow."""
    if values.dtype == np.float64:
        return True
    return max(int(values.max(initial=0)), -int(values.min(initial=0))) * len(values) < _SAFE


def extremes(low: Array, high: Array, groups: Numbers, size: int) -> tuple[Array, Array]:
    """Returns the minimum and the maximum of each group, which must not be empty."""
    least, most = np.full(size, low.max(initial=0)), np.full(size, high.min(initial=0))
    np.minimum.at(least, groups, low)
    np.maximum.at(most, groups, high)
    return least, most


# Numbering of keys: for each row a number below the number of distinct keys, in the order of the keys.

_FEW: Final = 4096
_A_ROW: Final = 16
"""With at most this many codes for each row a table is faster than sorting, and below `_FEW` codes always."""
_MOST: Final = 1 << 20
"""The maximum length of a table, which bounds its memory."""


class Axis(NamedTuple):
    """One part of the keys: a code for each row, and an upper bound of the codes."""

    codes: Array
    size: int


class Numbered(NamedTuple):
    groups: Numbers
    """The number of each row's key."""
    counts: Numbers
    """The number of rows of each key."""
    keys: list[Numbers]
    """For each axis, the codes of the keys."""


def number_keys(axes: Sequence[Axis], count: int) -> Numbered:
    """Numbers the keys of `count` rows; there is at least one axis."""
    if is_few(prod(axis.size for axis in axes), count):
        return _number_at_once(axes, count)
    groups, size, keys = np.zeros(count, np.int64), 1, list[Numbers]()
    for codes, below in axes:
        # Renumbered after each axis, so that no product of their sizes can overflow.
        groups, present = compacted(groups * below + codes, size * below)
        keys = [*(known[present // below] for known in keys), present % below]
        size = len(present)
    return Numbered(groups, np.bincount(groups, minlength=size), keys)


def _number_at_once(axes: Sequence[Axis], count: int) -> Numbered:
    size, joined = 1, np.zeros(count, np.int64)
    for codes, below in axes:
        joined = codes.astype(np.int64, copy=False) if size == 1 else joined * below + codes
        size *= below
    counts = np.bincount(joined, minlength=size)
    present = rest = np.flatnonzero(counts)
    keys: list[Numbers] = []
    for _, below in reversed(axes):
        rest, codes = np.divmod(rest, below)
        keys.insert(0, codes)
    return Numbered(_without_holes(joined, present, size), counts[present], keys)


def compacted(codes: Array, size: int) -> tuple[Numbers, Numbers]:
    """Maps codes below a size to consecutive numbers in the same order. Returns them and the distinct codes."""
    if not is_few(size, len(codes)):
        present, numbers = np.unique(codes, return_inverse=True)
        return numbers, present.astype(np.int64, copy=False)
    seen = np.zeros(size, np.bool_)
    seen[codes] = True
    present = np.flatnonzero(seen)
    return _without_holes(codes, present, size), present


def is_few(size: int, count: int) -> bool:
    """Returns whether a table of all codes below a size is faster than sorting `count` codes."""
    return size <= max(_FEW, min(_A_ROW * count, _MOST))


def _without_holes(codes: Array, present: Numbers, size: int) -> Numbers:
    if len(present) == size:
        return codes.astype(np.int64, copy=False)
    numbers = np.empty(size, np.int64)
    numbers[present] = np.arange(len(present))
    return numbers.take(codes)


class Dimension(NamedTuple):
    """One dimension of groups: a code for each group, and the value of each code; None is null."""

    codes: Array
    names: Sequence[str | None]

    def take(self, places: Array) -> "Dimension":
        return Dimension(self.codes[places], self.names)

    def ranks(self) -> Array:
        """The rank of each code; a smaller one sorts first."""
        ranks = np.empty(len(self.names), np.int64)
        ranks[sorted(range(len(self.names)), key=lambda code: _order(self.names[code]))] = np.arange(len(self.names))
        return ranks[self.codes]


def _order(name: str | None) -> tuple[bool, str]:
    return name is None, name or ""


class Groups:
    def __init__(self, starts: Numbers, dimensions: Sequence[Dimension], measures: Sequence[Measured]) -> None:
        self.starts = starts
        self.dimensions = dimensions
        self.measures = measures

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, places: Array) -> "Groups":
        return Groups(
            self.starts[places],
            [dimension.take(places) for dimension in self.dimensions],
            [measure.take(places) for measure in self.measures],
        )

    def arranged(self) -> "Groups":
        """Returns the groups in order: by time, then by the names of their dimensions; null is last."""
        order = np.lexsort([dimension.ranks() for dimension in reversed(self.dimensions)] + [self.starts])
        return self if np.array_equal(order, np.arange(len(order))) else self.take(order)


NO_GROUPS: Final = Groups(np.zeros(0, np.int64), (), ())


def regroup(sources: Sequence[Groups], interval_ms: int, requested: Sequence[int]) -> Groups:
    """Merges groups of several sources, by some of their dimensions, into buckets whose length is a multiple of each
    source's. The result is sorted by time, then by the names of the dimensions; null is last."""
    starts = np.concatenate([source.starts for source in sources]) // interval_ms * interval_ms
    distinct, times = np.unique(starts, return_inverse=True)
    joined = [_one_dimension([source.dimensions[place] for source in sources]) for place in requested]
    axes = [Axis(times, len(distinct)), *(Axis(one.codes, len(one.names)) for one in joined)]
    groups, counts, (buckets, *keys) = number_keys(axes, len(starts))
    measures = [together(parts) for parts in zip(*(source.measures for source in sources), strict=True)]
    return Groups(
        distinct[buckets],
        [Dimension(codes, one.names) for codes, one in zip(keys, joined, strict=True)],
        [measure.added(groups, len(counts)) for measure in measures],
    )


def _one_dimension(parts: Sequence[Dimension]) -> Dimension:
    """Concatenates the dimensions of several parts, by names in order."""
    names = sorted({name for part in parts for name in part.names}, key=_order)
    codes = {name: code for code, name in enumerate(names)}
    known = [np.array([codes[name] for name in part.names], np.int64) for part in parts]
    return Dimension(np.concatenate([new[part.codes] for new, part in zip(known, parts, strict=True)]), names)
