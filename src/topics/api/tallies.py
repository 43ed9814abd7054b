"""Who is answered what: a tally a route, and a line of the log for each answer where that is asked for."""

import logging
from collections.abc import Callable, Iterator

from topics.api.traces import trace_of
from topics.http.exchange import Exchange
from topics.http.tallies import Tally, Told

_NOWHERE = ("", "")
"""Requests that were refused before their route was known, or have none."""

_access = logging.getLogger("topics.access")


class Tallies:
    """Made as routes are first asked for, so that there are never more than there are routes."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._told: Told | None = None
        self._by_route: dict[tuple[str, str], Tally] = {}

    def log_each(self) -> None:
        """From now on every answer is a line of the log. Before the first request."""
        self._told = _log

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


def _log(exchange: Exchange, status: int, spent_s: float) -> None:
    head = exchange.head
    key = getattr(head.context, "key", None)
    line: dict[str, object] = {
        "method": head.method,
        # Without the query, where a token may stand.
        "path": head.path,
        "status": status,
        "took_ms": round(spent_s * 1000, 3),
        "peer": exchange.peer,
    }
    if key is not None and key.name:
        line["key"] = key.name
    trace = trace_of(head)
    if trace is not None:
        line["trace_id"], line["span_id"] = trace
    _access.info("answered", extra=line)
