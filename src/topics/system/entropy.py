"""Random bytes. Code that needs randomness takes an `Entropy` as an argument, so that tests can repeat a run."""

import os
from typing import Protocol


class Entropy(Protocol):
    """A source of unpredictable bytes."""

    def token(self, nbytes: int) -> bytes:
        """Exactly `nbytes` fresh random bytes."""
        ...


class SystemEntropy:
    """The kernel's generator: a lease id is a fencing token only while it cannot be guessed.

    There is no buffer: a fork of the process would have the same bytes, and of two clients that send the same
    idempotency key one loses its records.
    """

    def token(self, nbytes: int) -> bytes:
        return os.urandom(nbytes)
