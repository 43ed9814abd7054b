"""Alarms: things to do at a moment, behind one timer of the loop however many there are.

Time is the engine's. Without a loop nothing happens by itself: whoever moves the clock calls `run_due`.
"""

import asyncio
import logging
from collections.abc import Callable
from heapq import heappop, heappush

_log = logging.getLogger(__name__)


class Alarm:
    __slots__ = ("action", "due")

    def __init__(self, due: int, action: Callable[[], None]) -> None:
        self.due = due
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class Alarms:
    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0
        self._heap: list[tuple[int, int, Alarm]] = []
        self._order = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arm()

    def stop(self) -> None:
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def at(self, due: int, action: Callable[[], None]) -> Alarm:
        """Calls `action` once the time is `due`, in ms since 1970."""
        alarm = Alarm(due, action)
        self._order += 1
        heappush(self._heap, (due, self._order, alarm))
        self._arm()
        return alarm

    def run_due(self) -> None:
        """Does everything whose moment has come."""
        now = self._now()
        while self._heap and self._heap[0][0] <= now:
            alarm = heappop(self._heap)[2]
            action, alarm.action = alarm.action, None
            if action is not None:
                try:
                    action()
                except Exception:
                    # One queue's trouble must not keep the alarms of the others from going off.
                    _log.exception("an alarm of a queue failed")

    def _arm(self) -> None:
        while self._heap and self._heap[0][2].action is None:
            heappop(self._heap)
        if self._loop is None or not self._heap:
            return
        due = self._heap[0][0]
        if self._timer is not None:
            if self._armed_for <= due:
                return
            self._timer.cancel()
        self._armed_for = due
        self._timer = self._loop.call_later(max(due - self._now(), 1) / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.run_due()
        self._arm()
