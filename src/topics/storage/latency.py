"""A latency histogram in the shape Prometheus reads: counts below fixed bounds, a sum and a total."""

from bisect import bisect_left

SYNC_BOUNDS_US = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 25_000, 50_000, 100_000, 500_000, 1_000_000)


class LatencyHistogram:
    """Written by one thread, read by others: a reader may miss the newest sample, never see a broken one."""

    __slots__ = ("_counts", "bounds_us", "sum_us", "total")

    def __init__(self, bounds_us: tuple[int, ...] = SYNC_BOUNDS_US) -> None:
        self.bounds_us = bounds_us
        self._counts = [0] * (len(bounds_us) + 1)
        self.sum_us = 0.0
        self.total = 0

    def add(self, seconds: float) -> None:
        microseconds = seconds * 1e6
        self._counts[bisect_left(self.bounds_us, microseconds)] += 1
        self.sum_us += microseconds
        self.total += 1

    def cumulative(self) -> list[tuple[int, int]]:
        """For each bound, how many samples were at or below it."""
        below, pairs = 0, []
        for bound, count in zip(self.bounds_us, self._counts, strict=False):
            below += count
            pairs.append((bound, below))
        return pairs
