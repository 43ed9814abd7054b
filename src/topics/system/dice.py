"""Randomness, as an argument, so that a test can repeat a run."""

import os
from typing import Protocol


class Dice(Protocol):
    """A source of bytes nobody can guess."""

    def token(self, nbytes: int) -> bytes:
        """Exactly `nbytes` fresh random bytes."""
        ...


_STORE_BYTES = 4096


class SystemDice:
    """The kernel's generator: a lease id fences a worker out only while it cannot be guessed.

    It is asked for some bytes ahead, as to ask takes longer than to get them; none is given out twice.
    """

    __slots__ = ("_at", "_store")

    def __init__(self) -> None:
        self._store = b""
        self._at = 0

    def token(self, nbytes: int) -> bytes:
        begin, end = self._at, self._at + nbytes
        if end > len(self._store):
            if nbytes > _STORE_BYTES:
                return os.urandom(nbytes)
            self._store = os.urandom(_STORE_BYTES)
            begin, end = 0, nbytes
        self._at = end
        return self._store[begin:end]
