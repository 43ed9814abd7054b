"""Moments as texts."""

from datetime import UTC, datetime
from functools import lru_cache

_MINUTE_MS = 60_000
# Texts that are there already: to write two numbers with their zeros took two thirds of the time of a moment.
_SECONDS = tuple([f"{second:02d}." for second in range(60)])
_MILLIS = tuple([f"{milli:03d}Z" for milli in range(1000)])


def write_time(millis: int) -> str:
    """A time as RFC 3339 has it, to the millisecond; the last one there is for those behind it."""
    minute, rest = divmod(millis, _MINUTE_MS)
    try:
        return _minute(minute) + _SECONDS[rest // 1000] + _MILLIS[rest % 1000]
    except (ValueError, OverflowError, OSError):
        # Which of them depends on how far it is beyond the last date there is.
        return "9999-12-31T23:59:59.999Z"


@lru_cache(maxsize=4096)
def _minute(minute: int) -> str:
    """A page of a list is a hundred moments, and a day has few minutes: each is made a text once."""
    return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%dT%H:%M:}"
