"""What the fast paths of both protocols have in common: requests that come together are taken together.

A request with a head that is known is only gathered when it comes (`engine.coalesce`). At the end of the tick
all of them are read at once, share a block in the log, and are answered in one pass. Where one of them is not as plain
as that, all are handled one by one, in their order, as if they had never been gathered. A client that brings several
records at a time will go on doing so: its next requests are not gathered at all.
"""

import logging
from collections.abc import Callable, Sequence

from topics.api.app import Match, match_of
from topics.engine.coalesce import Unread
from topics.engine.engine import Engine
from topics.http.exchange import Exchange, Gather
from topics.model.errors import TopicsError

APART = 64
"""So many requests are not gathered after one that brought more than a record."""

_log = logging.getLogger(__name__)


class RequestBatchers:
    """Gathers requests, counts them for their keys, and hands on those that are to be looked at one by one.

    `inflight_max` bounds the requests of one key at the same time; 0 where they are not counted.
    """

    def __init__(
        self, bytes_max: int, streams: bool, inflight_max: int, handle: Callable[[Exchange], None],
        refuse: Callable[[Exchange, TopicsError], None],
    ) -> None:  # fmt: skip
        """`streams` says that users of streams ask, `handle` takes a request in the usual way, and `refuse` answers
        with an error. Bodies have fewer than `bytes_max`."""
        self._bytes_max = bytes_max
        self._streams = streams
        self._inflight_max = inflight_max
        self._handle = handle
        self._refuse = refuse

    def of(self, unread: Unread, engine: Engine, match: Match) -> Gather:
        """What gathers requests with one head."""
        topic, key, most, append_unread = match.topic, match.key, self._inflight_max, engine.append_unread
        bytes_max, streams, habit = self._bytes_max, self._streams, match.habit

        def gather(exchanges: Sequence[Exchange], nbytes: int) -> bool:
            if habit.apart:
                habit.apart -= 1
                return False
            return 0 < nbytes < bytes_max and append_unread(topic, exchanges, unread, streams)

        def gather_counted(exchanges: Sequence[Exchange], nbytes: int) -> bool:
            if key.inflight + len(exchanges) > most or not gather(exchanges, nbytes):
                return False
            key.inflight += len(exchanges)
            return True

        return gather_counted if most else gather

    def handle_each(self, exchanges: list[Exchange]) -> None:
        self.count_out(exchanges)
        for exchange in exchanges:
            try:
                self._handle(exchange)
            except Exception:
                # None of the others may be kept from its answer.
                _log.exception("a request failed", extra={"path": exchange.head.path})
                if not exchange.answered:
                    self._refuse(exchange, TopicsError("the server made a mistake; it is in its log"))

    def count_out(self, exchanges: list[Exchange]) -> None:
        """They are answered, or about to be counted again."""
        if self._inflight_max:
            for exchange in exchanges:
                match_of(exchange.head).key.inflight -= 1
