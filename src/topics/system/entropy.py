"""Randomness, as an argument, so that a test can repeat a run."""

import os
from typing import Protocol


class Entropy(Protocol):
    """A source of bytes nobody can guess."""

    def token(self, nbytes: int) -> bytes:
        """Exactly `nbytes` fresh random bytes."""
        ...


class SystemEntropy:
    """The kernel's generator: a lease id fences a worker out only while it cannot be guessed.

    It is asked each time. Bytes that were asked for ahead would be in a fork of the process as well, and of two clients
    that send the same idempotency key one loses its records.
    """

    def token(self, nbytes: int) -> bytes:
        return os.urandom(nbytes)
