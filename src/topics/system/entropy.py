"""Random bytes. Code that needs randomness takes an `Entropy` as an argument, so that tests can repeat a run."""

import os
from typing import Protocol


class Entropy(Protocol):
    """A source of unpredictable bytes."""

    def token(self, nbytes: int) -> bytes:
        """Returns exactly `nbytes` fresh random bytes."""
        ...


class SystemEntropy:
    """The kernel's generator: a lease id is a fencing token, so it must not be guessable.

    Without a buffer, because a forked process would have the same bytes, and of two clients with the same idempotency
    key one would lose its records.
    """

    def token(self, nbytes: int) -> bytes:
        return os.urandom(nbytes)
