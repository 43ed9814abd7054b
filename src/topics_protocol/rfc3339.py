"""RFC 3339 timestamps as milliseconds since 1970, and back."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

_RFC3339 = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)[Tt ](?P<minute>\d\d:\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d+))?"
    r"(?P<zone>[Zz]|[+-]\d\d:\d\d)"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999
_MINUTE_MS = 60_000
# Precomputed: formatting two numbers with leading zeros took two thirds of the time.
_SECONDS = tuple([f"{second:02d}." for second in range(60)])
_MILLIS = tuple([f"{milli:03d}Z" for milli in range(1000)])


def rfc3339_to_unix_millis(text: str) -> int:
    """Milliseconds since 1970. Raises `ValueError` for a text that is not a date and time of RFC 3339."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError("not a date and time of RFC 3339")
    zone = found["zone"].upper().replace("Z", "+00:00")
    # A leap second has no separate number: it counts as the first millisecond after it.
    second = min(int(found["second"]), 59)
    whole = datetime.fromisoformat(f"{found['day']}T{found['minute']}:{second:02}{zone}")
    millis = (whole - _EPOCH) // timedelta(milliseconds=1) + (int(found["second"]) - second) * 1000
    return millis + int((found["fraction"] or "0").ljust(3, "0")[:3])


def unix_millis_to_rfc3339(number: int | float) -> str:
    """The time in UTC with three digits of milliseconds; the first or last date there is for those beyond it."""
    millis = min(max(int(number), _FIRST_MS), _LAST_MS)
    return (_EPOCH + timedelta(milliseconds=millis)).isoformat(timespec="milliseconds")[:23] + "Z"


def write_time(millis: int) -> str:
    """The same for lists of times, several times as fast; the last date there is for those beyond it."""
    minute, rest = divmod(millis, _MINUTE_MS)
    try:
        return _minute(minute) + _SECONDS[rest // 1000] + _MILLIS[rest % 1000]
    except (ValueError, OverflowError, OSError):
        # Which of them depends on how far it is beyond the last date there is.
        return "9999-12-31T23:59:59.999Z"


@lru_cache(maxsize=4096)
def _minute(minute: int) -> str:
    """Cached, because the hundred times of a page share few minutes."""
    return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%dT%H:%M:}"
