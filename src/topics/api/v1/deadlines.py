"""Deadlines of many requests with one timer: all have the same length, so those that end first came first."""

import asyncio
from collections import deque
from collections.abc import Callable

from topics.http.exchange import Exchange

REQUEST_TIMEOUT_S = 5.0
"""What everything but an append and a live read may take."""
_TICK_S = 0.25


class Pending:
    """A request that is usually answered before anyone could look at a clock; only otherwise it gets a deadline."""

    __slots__ = ("at", "missed", "open")

    def __init__(self) -> None:
        self.open = True
        self.at = 0.0
        self.missed: Callable[[], None] | None = None

    def met(self) -> bool:
        """Whether the answer comes in time; if so, nothing else will answer."""
        was, self.open = self.open, False
        # It holds the request, whose body need not wait for the next look at the clock to be let go.
        self.missed = None
        return was

    def expire(self) -> None:
        missed = self.missed
        if self.met() and missed is not None:
            missed()


class Deadlines:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: deque[Pending] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, missed: Callable[[], None], pending: Pending | None = None) -> Pending:
        """Calls `missed` once if a request, a new one unless it is given, is not answered in time."""
        pending = pending or Pending()
        loop = asyncio.get_running_loop()
        pending.at, pending.missed = loop.time() + self._seconds, missed
        self._waiting.append(pending)
        if self._timer is None:
            self._timer = loop.call_later(_TICK_S, self._look, loop)
        return pending

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        waiting = self._waiting
        while waiting and (not waiting[0].open or now >= waiting[0].at):
            # Each by itself: one that fails must not keep the others from their end.
            loop.call_soon(waiting.popleft().expire)
        self._timer = loop.call_later(_TICK_S, self._look, loop) if waiting else None


class ExchangeDeadlines:
    """The same for requests that have nothing but their exchange, by which they are told to `missed`."""

    def __init__(self, seconds: float, now_s: Callable[[], float], missed: Callable[[Exchange], None]) -> None:
        self._seconds = seconds
        self._now_s = now_s
        self._missed = missed
        self._waiting: deque[Exchange] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, exchange: Exchange) -> None:
        self._waiting.append(exchange)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_TICK_S, self._look, loop)

    def forget(self, exchanges: list[Exchange]) -> None:
        """Somebody else sees to these, which were the last that were begun, if they were."""
        others = set(map(id, exchanges))
        while self._waiting and id(self._waiting[-1]) in others:
            self._waiting.pop()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, late = self._waiting, self._now_s() - self._seconds
        while waiting:
            exchange = waiting[0]
            if exchange.channel is not None:
                if exchange.started > late:
                    break
                # Each by itself: one that fails must not keep the others from their end.
                loop.call_soon(self._expire, exchange)
            waiting.popleft()
        self._timer = loop.call_later(_TICK_S, self._look, loop) if waiting else None

    def _expire(self, exchange: Exchange) -> None:
        if exchange.channel is not None and not exchange.answered:
            self._missed(exchange)
