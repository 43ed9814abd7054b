"""Randomness that a seed repeats."""

from random import Random  # noqa: TID251 - seeded, this is repeatable, and every fake draws from here


class SeededDice:
    """Gives the same answers in the same order for the same seed, so a failing run can be run again."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def token(self, nbytes: int) -> bytes:
        return self._random.randbytes(nbytes)

    def below(self, limit: int) -> int:
        """A number from 0 to `limit` - 1, each as likely as the others."""
        return self._random.randrange(limit)
