"""Requests to a shard's writer besides commits. Each is executed after everything submitted before it."""

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from topics.model.errors import TopicsError


class LogPosition(NamedTuple):
    """The end of a shard's log: a file, and the length of its written part."""

    file: int
    offset: int


class Rotation:
    """Asks the writer to sync and finish its file; `position` is then the number of the file that follows."""

    def __init__(self, done: Callable[[int], None], failed: Callable[[TopicsError], None]) -> None:
        self.done = done
        self.failed = failed
        self.position = 0


class Reopening:
    """Asks the writer of a halted shard to resume; `done` is called when it accepts writes again."""

    def __init__(self, done: Callable[[], None]) -> None:
        self.done = done


class Locating:
    """Asks the writer for the end of its log; `done` gets None if the log is read-only and its end unknown."""

    def __init__(self, done: Callable[[LogPosition | None], None]) -> None:
        self.done = done


Request = Rotation | Reopening | Locating


# Timings of the log that are part of answers.


class CommitTiming(NamedTuple):
    """The durations of the commit's write and sync, for the answer's `performance` block."""

    write_ms: float = 0.0
    sync_ms: float = 0.0


AT_ONCE = CommitTiming()
"""The timing of operations that are not logged."""


# A latency histogram in the form of Prometheus: counts below fixed bounds, a sum and a total.

SYNC_BOUNDS_US = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 25_000, 50_000, 100_000, 500_000, 1_000_000)


class LatencyHistogram:
    """Written by one thread, read by others: a reader may miss the newest sample, but never reads a torn one."""

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
        """Returns for each bound the number of samples at or below it."""
        below, pairs = 0, []
        for bound, count in zip(self.bounds_us, self._counts, strict=False):
            below += count
            pairs.append((bound, below))
        return pairs
