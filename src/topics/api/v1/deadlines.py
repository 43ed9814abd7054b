"""Deadlines of many requests with one timer: all have the same length, so those that end first came first."""

import asyncio
from collections import deque
from collections.abc import Callable

_TICK_S = 0.25


class Deadline:
    """One request's time. `met` says that it is answered; until then `missed` may be called, once."""

    __slots__ = ("_at", "_missed", "open")

    def __init__(self, at: float, missed: Callable[[], None]) -> None:
        self._at = at
        self._missed = missed
        self.open = True

    def met(self) -> bool:
        """Whether the answer comes in time; if so, nothing else will answer."""
        was, self.open = self.open, False
        return was

    def due(self, now: float) -> bool:
        return now >= self._at

    def expire(self) -> None:
        if self.met():
            self._missed()


class Deadlines:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: deque[Deadline] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, missed: Callable[[], None]) -> Deadline:
        loop = asyncio.get_running_loop()
        deadline = Deadline(loop.time() + self._seconds, missed)
        self._waiting.append(deadline)
        if self._timer is None:
            self._timer = loop.call_later(_TICK_S, self._look, loop)
        return deadline

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        waiting = self._waiting
        while waiting and (not waiting[0].open or waiting[0].due(now)):
            # Each by itself: one that fails must not keep the others from their end.
            loop.call_soon(waiting.popleft().expire)
        self._timer = loop.call_later(_TICK_S, self._look, loop) if waiting else None


class Pending:
    """A request that is usually answered before anyone could look at a clock; only otherwise it gets a deadline."""

    __slots__ = ("_deadline", "open")

    def __init__(self) -> None:
        self.open = True
        self._deadline: Deadline | None = None

    def met(self) -> bool:
        """Whether the answer comes in time; if so, nothing else will answer."""
        self.open = False
        return self._deadline is None or self._deadline.met()

    def within(self, deadlines: Deadlines, missed: Callable[[], None]) -> None:
        self._deadline = deadlines.begin(missed)
