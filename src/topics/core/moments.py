"""Moments as texts."""

from datetime import UTC, datetime


def write_time(millis: int) -> str:
    """A time as RFC 3339 has it, to the millisecond; the last one there is for those behind it."""
    try:
        whole = datetime.fromtimestamp(millis // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        # Which of them depends on how far it is beyond the last date there is.
        return "9999-12-31T23:59:59.999Z"
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{millis % 1000:03d}Z"
