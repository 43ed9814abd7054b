"""A clock that stands still until a test moves it."""

from random import Random  # noqa: TID251 - seeded, this is repeatable, and every fake draws from here


class ManualClock:
    """Wall time and monotonic time that advance together, and only when told to. The first may be set as well."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = now_ms
        self._elapsed_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._start_ms + self._elapsed_ms

    def monotonic(self) -> float:
        """Seconds since this clock was made."""
        return self._elapsed_ms / 1000

    def jump(self, ms: int) -> None:
        """Somebody sets the clock on the wall, forward or back; no time passes."""
        self._start_ms += ms

    def advance(self, ms: int) -> None:
        if ms < 0:
            raise ValueError(f"time does not go back: {ms} ms")
        self._elapsed_ms += ms


# Randomness that a seed repeats.


class SeededEntropy:
    """Gives the same answers in the same order for the same seed, so a failing run can be run again."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def token(self, nbytes: int) -> bytes:
        return self._random.randbytes(nbytes)

    def below(self, limit: int) -> int:
        """A number from 0 to `limit` - 1, each as likely as the others."""
        return self._random.randrange(limit)
