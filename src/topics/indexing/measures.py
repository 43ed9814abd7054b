"""Measures: what is added up about entries. A state is one group's, made of contributions and merged in any order.

Histograms are `log2_v1`: a value is counted in the bucket of the greatest power of two that is not above its amount,
and below 1 in the first one, which is 1. A percentile is the lower bound of the bucket that reaches the share.
"""

from bisect import bisect_left
from itertools import accumulate
from math import frexp
from typing import Any, Final, Protocol

import msgspec

from topics.indexing.values import number_json

Number = int | float
Histogram = dict[int, Number]

SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def log2_bucket(value: Number) -> int:
    amount = abs(value)
    # The exponent of a float is exact, the logarithm of one just below a power of two is not.
    return 1 if amount < 1 else 1 << (int(amount).bit_length() - 1 if type(amount) is int else frexp(amount)[1] - 1)


def spread(histogram: Histogram) -> tuple[list[int | None], Histogram]:
    """The buckets that reach each of the shares, None where nothing is in any, and the counts as they are shown. An
    answer may have tens of thousands of these."""
    bounds = sorted(histogram)
    counts = list(map(histogram.__getitem__, bounds))
    reached: list[int | None] = [None] * len(SHARES)
    seen = list(accumulate(counts))
    if seen and seen[-1] > 0:
        # Whoever brings summaries may count less than nothing, and then this is not ascending.
        find, total = bisect_left if min(counts) >= 0 else _first_reaching, seen[-1]
        reached = [bounds[find(seen, share * total)] for share in SHARES.values()]
    if seen and type(seen[-1]) is float:
        counts = list(map(number_json, counts))
    # The encoder makes the names.
    return reached, dict(zip(bounds, counts, strict=True))


def _first_reaching(seen: list[Number], wanted: float) -> int:
    return next(place for place, number in enumerate(seen) if number >= wanted)


class State(Protocol):
    count: Any

    def merge(self, other: Any) -> None: ...

    def show(self) -> Any:
        """As it is encoded."""
        ...


class Counted(msgspec.Struct, gc=False):
    """The state of a count."""

    count: int = 0

    def merge(self, other: "Counted") -> None:
        self.count += other.count

    def show(self) -> "Counted":
        return self


class Summed(msgspec.Struct, array_like=True):
    """The state of a summary. The least and greatest are None while nobody told them."""

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
    """The contribution of one value."""
    return Summed(1, value, value, value, {log2_bucket(value): 1} if with_histogram else None)
