"""RFC 3339 timestamps as milliseconds since 1970, and back."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_RFC3339 = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)[Tt ](?P<minute>\d\d:\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d+))?"
    r"(?P<zone>[Zz]|[+-]\d\d:\d\d)"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999


def rfc3339_to_unix_millis(text: str) -> int:
    """Milliseconds since 1970. Raises `ValueError` for a text that is not a date and time of RFC 3339."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError("not a date and time of RFC 3339")
    zone = found["zone"].upper().replace("Z", "+00:00")
    # A leap second has no number of its own: it is taken for the first millisecond after it.
    second = min(int(found["second"]), 59)
    whole = datetime.fromisoformat(f"{found['day']}T{found['minute']}:{second:02}{zone}")
    millis = (whole - _EPOCH) // timedelta(milliseconds=1) + (int(found["second"]) - second) * 1000
    return millis + int((found["fraction"] or "0").ljust(3, "0")[:3])


def unix_millis_to_rfc3339(number: int | float) -> str:
    """The time in UTC with three digits of milliseconds; the first or last date there is for those beyond it."""
    millis = min(max(int(number), _FIRST_MS), _LAST_MS)
    return (_EPOCH + timedelta(milliseconds=millis)).isoformat(timespec="milliseconds")[:23] + "Z"
