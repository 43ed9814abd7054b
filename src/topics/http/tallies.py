"""Counts what is answered, by whoever the application says a request belongs to: a route, usually.

Every answer is counted, by its status. How long answers took is looked at for each of the first thousand of a tally,
and from then on for one in sixteen: to look at each would cost a small request more than a hundredth of its time, and
which ones are looked at has nothing to do with how long they take.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics.http.exchange import Exchange

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_EACH = 1024
_ONE_IN = 16
_STATUSES = 600

Told = Callable[["Exchange", int, float], None]
"""Told of an answer that was looked at: its exchange, its status, and the seconds it took."""


class Tally:
    """The answers of one route."""

    __slots__ = ("_seconds", "_told", "buckets", "by_status", "looked", "mask", "spent_s")

    def __init__(self, seconds: Callable[[], float], told: Told | None = None) -> None:
        """`told` is told of every answer, which then are all looked at."""
        self._seconds = seconds
        self._told = told
        self.by_status = [0] * _STATUSES
        self.mask = 0
        """An answer is looked at where its number has none of these bits."""
        self.looked = 0
        self.spent_s = 0.0
        self.buckets = [0] * (len(BOUNDS_S) + 1)

    def count(self, exchange: "Exchange", status: int) -> None:
        """One answer. `Exchange.respond` has the same in fewer steps."""
        number = self.by_status[status] = self.by_status[status] + 1
        if not number & self.mask:
            self.look(exchange, status)

    def count_many(self, exchange: "Exchange", status: int, answers: int) -> None:
        """So many answers that were given together, of which this is the last; for when not each is looked at."""
        before = self.by_status[status]
        self.by_status[status] = before + answers
        if (before + answers) // _ONE_IN != before // _ONE_IN:
            self.look(exchange, status)

    def look(self, exchange: "Exchange", status: int) -> None:
        spent_s = max(0.0, self._seconds() - exchange.started)
        self.looked += 1
        self.spent_s += spent_s
        self.buckets[bisect_left(BOUNDS_S, spent_s)] += 1
        if self._told is not None:
            self._told(exchange, status, spent_s)
        elif self.looked == _EACH:
            self.mask = _ONE_IN - 1

    def answers(self) -> list[tuple[int, int]]:
        """The statuses that were answered, with how often."""
        return [(status, count) for status, count in enumerate(self.by_status) if count]
