"""The ratio of two lists of rates that were measured in turns."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.96
"""The quantile of a confidence interval of 95 percent."""


@dataclass(frozen=True)
class Ratio:
    """The ratio of our rate to the peer's: the median of the ratios of all turns, and its confidence interval. No
    distribution is assumed: the ends are ranks of the turns themselves."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Ratio":
        ratios = sorted(our / their for our, their in zip(ours, theirs, strict=True))
        half = _Z * math.sqrt(len(ratios)) / 2
        low = max(0, math.floor(len(ratios) / 2 - half))
        high = min(len(ratios) - 1, math.ceil(len(ratios) / 2 + half))
        return cls(statistics.median(ratios), ratios[low], ratios[high])

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f} to {self.high:.2f})"
