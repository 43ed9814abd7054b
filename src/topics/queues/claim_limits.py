"""Claim limits of a queue: the maximum number of jobs handed out per second, and of jobs leased at once. Pure.

`max_per_second` applies to every interval of a second. The window has the last second by the millisecond, so it has at
most a thousand entries. After a restart it is unknown, so no jobs are handed out for the first second.

`max_leased` counts current leases, and those being logged, granted or ended.
"""

from collections import deque

from topics.queues.leases import LeaseTable
from topics_protocol.config import TopicConfig

_SECOND_MS = 1000


class RateWindow:
    """The jobs handed out within the last second; `began` is the start of the process."""

    __slots__ = ("_began", "_handed_out", "_sum")

    def __init__(self, began: int) -> None:
        self._began = began
        self._handed_out: deque[tuple[int, int]] = deque()
        self._sum = 0

    def room(self, now: int, most: int) -> int:
        """Returns the number of jobs that may be handed out now."""
        handed_out = self._handed_out
        while handed_out and handed_out[0][0] <= now - _SECOND_MS:
            self._sum -= handed_out.popleft()[1]
        return 0 if now < self._began + _SECOND_MS else max(most - self._sum, 0)

    def add(self, now: int, jobs: int) -> None:
        """Records jobs that are handed out now."""
        if not jobs:
            return
        self._sum += jobs
        if self._handed_out and self._handed_out[-1][0] == now:
            jobs += self._handed_out.pop()[1]
        self._handed_out.append((now, jobs))

    def next_room(self) -> int:
        """Returns the time from which more jobs may be handed out."""
        return (self._handed_out[0][0] if self._handed_out else self._began) + _SECOND_MS


def room_for_leases(config: TopicConfig, table: LeaseTable) -> int | None:
    """Returns the number of further jobs that may be leased; None without a limit."""
    if not config.max_leased:
        return None
    return max(config.max_leased - table.in_flight - len(table.moving), 0)
