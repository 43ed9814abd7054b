"""The conversions of lenses: tables, and functions with names that mean the same for ever.

Each function here is total on the values that a proof lets through, so that a promotion never fails. A date that four
digits of a year cannot say becomes the nearest one they can: refusing the lens would leave a stream with one such entry
stuck at its version.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import UNSET

from topics.schema.lenses import Scalar, Transform

Conversion = Callable[[Any], Scalar]

_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_RFC3339 = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)[Tt ](?P<minute>\d\d:\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d+))?"
    r"(?P<zone>[Zz]|[+-]\d\d:\d\d)"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999


def string_to_int(text: str) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise ValueError("not an integer")
    return int(text)


def int_to_string(number: int | float) -> str:
    return str(int(number))


def rfc3339_to_unix_millis(text: str) -> int:
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
    millis = min(max(int(number), _FIRST_MS), _LAST_MS)
    return (_EPOCH + timedelta(milliseconds=millis)).isoformat(timespec="milliseconds")[:23] + "Z"


BUILTINS: Final[dict[str, Conversion]] = {
    "lowercase": str.lower,
    "uppercase": str.upper,
    "string_to_int": string_to_int,
    "int_to_string": int_to_string,
    "rfc3339_to_unix_millis": rfc3339_to_unix_millis,
    "unix_millis_to_rfc3339": unix_millis_to_rfc3339,
}

BUILTIN_TYPES: Final = {
    "lowercase": ("string", {"type": "string"}),
    "uppercase": ("string", {"type": "string"}),
    "string_to_int": ("string", {"type": "integer"}),
    "int_to_string": ("integer", {"type": "string"}),
    "rfc3339_to_unix_millis": ("string", {"type": "integer"}),
    "unix_millis_to_rfc3339": ("integer", {"type": "string", "format": "date-time"}),
}
"""What each function takes, and a schema of what it gives."""

PARTIAL: Final = frozenset(("string_to_int", "rfc3339_to_unix_millis"))
"""Functions that some texts of their type do not have a value for."""


def conversion(transform: Transform) -> Conversion:
    """The transform as a function. It raises `LookupError` or `ValueError` for what it has no value for."""
    if transform.builtin is not UNSET:
        return BUILTINS[transform.builtin]
    table: dict[str, Scalar] = {} if transform.map is UNSET else transform.map
    default = transform.default
    if default is UNSET:
        return lambda value: table[table_key(value)]
    return lambda value: table.get(table_key(value), default)


def table_key(value: Scalar) -> str:
    """How a value is written as a key of a table: a text as it is, anything else as JSON writes it, 1.0 as 1."""
    if isinstance(value, str):
        return value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return str(value)
