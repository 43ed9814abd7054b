"""Argument parsing and formatting: durations (`1h30m`), times, sizes (`64MiB`), JSON documents and metrics."""

import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from topics.cli.failures import CommandError, UsageError
from topics.system.installation import install_command

Switch = Parameter(negative="", show_default=False)
"""A flag without a value."""
ColdDir = Annotated[
    str | None, Parameter(env_var="TOPICS_COLD_DIR", help="Folder or object store URL with old segments.")
]
Json = Annotated[bool, Switch, Parameter(help="Print the result as JSON.")]

_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN_MS_MAX = 1_000_000 * _MS["d"]
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_BYTES = {"": 1, "b": 1, "k": 1024, "kib": 1024, "m": 1024**2, "mib": 1024**2, "g": 1024**3, "gib": 1024**3}
_BYTES |= {"kb": 1000, "mb": 1000**2, "gb": 1000**3}
_SIZE = re.compile(r"(\d+)\s*([a-z]*)", re.ASCII)


def duration_ms(text: str, what: str) -> int:
    """A duration in milliseconds; a number without a unit is milliseconds."""
    if text.isascii() and text.isdigit():
        return int(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UsageError(f"{what} is {text!r}; accepted is a time such as 500ms, 30s, 10m, 2h or 1h30m")
    span = sum(float(number) * _MS[unit] for number, unit in parts)
    if span > _SPAN_MS_MAX:
        raise UsageError(f"{what} is {text!r}; accepted is a time of up to {_SPAN_MS_MAX // _MS['d']} days")
    return round(span)


def moment_ms(text: str, what: str, now_ms: int) -> int:
    """A time in milliseconds since 1970, from a duration before now or a date."""
    if _PART.match(text):
        # 1970 is the earliest time.
        return max(now_ms - duration_ms(text, what), 0)
    return date_ms(text, what, "a time such as 30s, 10m or 2h, or a date")


def date_ms(text: str, what: str, accepted: str = "a date") -> int:
    """A date in milliseconds since 1970; one without a zone is local time."""
    try:
        return round(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise UsageError(f"{what} is {text!r}; accepted is {accepted} such as 2026-02-24T12:00:00Z") from None


def size_bytes(text: str, what: str) -> int:
    """A size in bytes."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _BYTES:
        raise UsageError(f"{what} is {text!r}; accepted is a size such as 4096, 64KiB, 10MB or 1GiB")
    return int(match[1]) * _BYTES[match[2]]


def shown_bytes(count: float) -> str:
    """A size in readable form: `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def shown_time(moment: int | None) -> str:
    """A time in the local zone; empty for None."""
    if moment is None:
        return ""
    return datetime.fromtimestamp(moment / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def counted(number: int, what: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


# JSON documents as arguments: inline, from a file, or from standard input.

STDIN = "-"


def document(text: str, what: str) -> Any:
    """The JSON of an argument: inline if it begins like an object or array, `-` for standard input, else a file."""
    if text.lstrip()[:1] in ("{", "["):
        return _parsed(text.encode("utf-8", "surrogateescape"), what)
    if text == STDIN:
        return _parsed(sys.stdin.buffer.read(), f"{what} on standard input")
    return _parsed(Path(text).read_bytes(), text)


def one_from_stdin(*given: str | None) -> None:
    """Raises UsageError where more than one argument is `-`: standard input can be read once."""
    if sum(text == STDIN for text in given) > 1:
        raise UsageError("- is standard input, which can be used for one document only")


def _parsed(raw: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"{where} is not valid JSON ({error})") from error


# Optional dependencies.


def has_spark() -> bool:
    """Whether Spark and its dependencies are installed."""
    return all(find_spec(name) is not None for name in ("pyspark", "pyarrow", "pyiceberg"))


def need_spark(what: str) -> None:
    """Raises where Spark is not installed."""
    if not has_spark():
        raise CommandError(f"{what} needs Spark, which is not installed. Install it with: {install_command('spark')}")


# Metrics of the server.


def number(metrics: Mapping[str, Any], name: str) -> float:
    """A metric without labels; 0 where the server does not have it."""
    found = metrics.get(name, 0)
    return float(found) if isinstance(found, int | float) else 0.0


def by_topic(metrics: Mapping[str, Any], name: str) -> dict[str, float]:
    """A metric with a value for each topic."""
    found = metrics.get(name, [])
    if not isinstance(found, list):
        return {}
    return {sample["labels"]["topic"]: float(sample["value"]) for sample in found}
