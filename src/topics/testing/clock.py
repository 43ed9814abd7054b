"""A clock that stands still until a test moves it."""


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
