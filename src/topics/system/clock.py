"""Clocks. Code that depends on time takes a `Clock` as an argument, so that tests and replays control time."""

import time
from typing import Protocol


class Clock(Protocol):
    """The two times that the engine needs; they are not interchangeable."""

    def now_ms(self) -> int:
        """Returns wall-clock milliseconds since 1970 in UTC. May jump, also backwards: for timestamps only."""
        ...

    def monotonic(self) -> float:
        """Returns seconds since a fixed time. Never decreases: for durations and deadlines."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Without a wrapper, because it is called several times for each request.
    monotonic = staticmethod(time.monotonic)
