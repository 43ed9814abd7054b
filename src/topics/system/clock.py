"""Time, as an argument.

Everything that depends on time takes a `Clock`, so a test can move time by hand and a replay meets the time it logged.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """The two readings of time that the engine needs; they are not interchangeable."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970 in UTC. May jump, also backwards: for timestamps only."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment. Never goes backwards: for durations and deadlines."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Without a call of our own in between: it is asked several times for each request.
    monotonic = staticmethod(time.monotonic)
