"""Time, randomness and logs. The first two are arguments: a test can give a client others than the machine's."""

import os
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import logging


class Clock(Protocol):
    """Two readings of time, which are not interchangeable."""

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

    monotonic = staticmethod(time.monotonic)


class Entropy(Protocol):
    """A source of bytes that cannot be guessed."""

    def token(self, nbytes: int) -> bytes:
        """Exactly `nbytes` fresh random bytes."""
        ...


class SystemEntropy:
    """The kernel's generator, asked each time: bytes read ahead would be in a fork of the process as well, and of two
    clients that send the same idempotency key one loses its records.
    """

    def token(self, nbytes: int) -> bytes:
        return os.urandom(nbytes)


def logger(name: str) -> "logging.Logger":
    """The logger of a module. Only a client that logs anything imports `logging`."""
    import logging  # noqa: PLC0415

    return logging.getLogger(name)
