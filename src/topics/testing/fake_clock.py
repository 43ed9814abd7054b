"""A clock that only tests advance."""

from random import Random  # noqa: TID251 - seeded, this is repeatable, and every fake draws from here


class ManualClock:
    """Wall time and monotonic time that advance together, only by `advance`. The wall time may be set as well."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = now_ms
        self._elapsed_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._start_ms + self._elapsed_ms

    def monotonic(self) -> float:
        """Seconds since this clock was created."""
        return self._elapsed_ms / 1000

    def jump(self, ms: int) -> None:
        """Sets the wall clock, forward or back; no time passes."""
        self._start_ms += ms

    def advance(self, ms: int) -> None:
        if ms < 0:
            raise ValueError(f"time does not go back: {ms} ms")
        self._elapsed_ms += ms


# Deterministic randomness from a seed.


class SeededEntropy:
    """Returns the same values in the same order for the same seed, so a failing run can be repeated."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def token(self, nbytes: int) -> bytes:
        return self._random.randbytes(nbytes)

    def below(self, limit: int) -> int:
        """Returns a uniform random number from 0 to `limit` - 1."""
        return self._random.randrange(limit)
