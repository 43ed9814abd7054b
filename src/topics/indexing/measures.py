"""Measures: what is added up about entries. A state is one group's, made of contributions and merged in any order.

Histograms are `log2_v1`: a value is counted in the bucket of the greatest power of two that is not above its amount,
and below 1 in the first one, which is 1. A percentile is the lower bound of the bucket that reaches the share.
"""

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


def spread(histogram: Histogram) -> tuple[dict[str, int | None], dict[str, Number]]:
    """The buckets that reach each of the shares, None where nothing is in any, and the counts as they are shown. An
    answer may have tens of thousands of these, so it is one pass."""
    ordered = sorted(histogram.items())
    total = sum(histogram.values())
    reached: dict[str, int | None] = dict.fromkeys(SHARES)
    shown: dict[str, Number] = {}
    wanted = iter(SHARES.items())
    name, share = next(wanted)
    seen, is_left = 0.0, True
    for bound, count in ordered:
        shown[str(bound)] = count if type(count) is int else number_json(count)
        seen += count
        while is_left and count and seen >= share * total:
            reached[name] = bound
            name, share = next(wanted, (name, share))
            is_left = reached[name] is None
    return reached, shown


class State(Protocol):
    count: Any

    def merge(self, other: Any) -> None: ...

    def show(self) -> dict[str, Any]: ...


class Counted(msgspec.Struct):
    """The state of a count."""

    count: int = 0

    def merge(self, other: "Counted") -> None:
        self.count += other.count

    def show(self) -> dict[str, Any]:
        return {"count": self.count}


class Summed(msgspec.Struct):
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
        reached, shown = (dict.fromkeys(SHARES), None) if self.histogram is None else spread(self.histogram)
        return {
            "count": number_json(self.count),
            "sum": number_json(self.sum),
            "min": None if self.min is None else number_json(self.min),
            "max": None if self.max is None else number_json(self.max),
            "avg": number_json(self.sum / self.count) if self.count else 0,
            **reached,
            "histogram": shown,
        }


def summary_of(value: Number, with_histogram: bool) -> Summed:
    """The contribution of one value."""
    return Summed(1, value, value, value, {log2_bucket(value): 1} if with_histogram else None)
