"""Who is answered what: a tally a route, and whoever wants to be told of each answer."""

from collections.abc import Callable, Iterator

from topics.http.exchange import Exchange
from topics.http.tallies import Tally, Told

_NOWHERE = ("", "")
"""Requests that were refused before their route was known, or have none."""


class Tallies:
    """Made as routes are first asked for, so that there are never more than there are routes."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._told: Told | None = None
        self._by_route: dict[tuple[str, str], Tally] = {}

    def tell(self, told: Told) -> None:
        """From now on `told` is told of every answer, behind those who are already. Before the first request."""
        before = self._told
        if before is None:
            self._told = told
            return

        def both(exchange: Exchange, status: int, spent_s: float) -> None:
            before(exchange, status, spent_s)
            told(exchange, status, spent_s)

        self._told = both

    def of(self, method: str, path: str) -> Tally:
        known = self._by_route.get((method, path))
        if known is None:
            known = self._by_route[method, path] = Tally(self._seconds, self._told)
        return known

    @property
    def nowhere(self) -> Tally:
        return self.of(*_NOWHERE)

    def __iter__(self) -> Iterator[tuple[str, str, Tally]]:
        """Method, path and tally of each route that was asked for, in the order of their paths."""
        for (method, path), tally in sorted(self._by_route.items(), key=lambda one: (one[0][1], one[0][0])):
            yield method, path, tally
