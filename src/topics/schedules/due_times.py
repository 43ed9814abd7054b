"""Due times of schedules: cron expressions and intervals, in IANA time zones. Pure but for the time zone files.

`cronsim` parses and evaluates cron expressions of five fields, or six with seconds as the first one. It follows
Debian's cron where clocks are changed, for expressions whose minute and hour do not begin with a star:

    clocks go forward   due times within the gap are due once, when it ends
    clocks go back      due times within the repeated hour are due once, at its first occurrence

Expressions with a star there, and those with seconds, are due at every matching time of the day, in both hours of an
overlap and not at all in a gap. An interval counts elapsed time and knows no time zone.

All times here are milliseconds since 1970. 0 stands for never.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from topics.model.errors import InvalidRequestError, quoted

EVERY_MS_MIN = 1_000
EVERY_MS_MAX = 366 * 86_400_000
CRON_CHARS_MAX = 256
TIMEZONE_CHARS_MAX = 64
NEVER = 0
_ZONES_MAX = 512


class Timing(Protocol):
    """When a schedule is due."""

    @property
    def cron(self) -> str:
        """The cron expression; empty for an interval."""

    @property
    def every_ms(self) -> int:
        """The interval; 0 for a cron expression."""

    @property
    def timezone(self) -> str:
        """The time zone of the cron expression."""

    @property
    def start_ms(self) -> int:
        """The moment from which the interval counts."""


def check_timing(cron: str, every_ms: int, zone: str) -> None:
    """Raises InvalidRequestError unless there is one cron expression or one interval, and both are valid."""
    if bool(cron) == bool(every_ms):
        raise InvalidRequestError("schedule: give one of cron and every_ms", field="cron")
    if every_ms and not EVERY_MS_MIN <= every_ms <= EVERY_MS_MAX:
        raise InvalidRequestError(
            f"schedule field every_ms: must be from {EVERY_MS_MIN} to {EVERY_MS_MAX}", field="every_ms"
        )
    if len(zone) > TIMEZONE_CHARS_MAX:
        raise _unknown_zone(zone[:TIMEZONE_CHARS_MAX])
    found = _zone(zone)
    if not cron:
        return
    if len(cron) > CRON_CHARS_MAX:
        raise InvalidRequestError(
            f"schedule field cron: at most {CRON_CHARS_MAX} characters are allowed", field="cron", max=CRON_CHARS_MAX
        )
    try:
        CronSim(cron, datetime.fromtimestamp(0, found))
    except (CronSimError, ValueError, AssertionError, RecursionError) as error:
        reason = str(error) or "cannot be read"
        raise InvalidRequestError(
            f"schedule field cron: {quoted(cron)} is not a cron expression: {reason}. It has the fields minute, hour, "
            "day of month, month and day of week, optionally with second in front",
            field="cron",
        ) from error


def next_due(timing: Timing, after_ms: int) -> int:
    """The first due time later than a moment; `NEVER` if there is none within fifty years."""
    if timing.every_ms:
        passed = max(after_ms - timing.start_ms, 0)
        return timing.start_ms + (passed // timing.every_ms + 1) * timing.every_ms
    return next((due for due in _due_times(timing.cron, timing.timezone, after_ms) if due > after_ms), NEVER)


def _due_times(cron: str, zone: str, after_ms: int) -> Iterator[int]:
    """The due times of a cron expression, beginning near a moment. In a repeated hour some may precede it, and several
    due times of a gap are the same moment."""
    found = CronSim(cron, datetime.fromtimestamp(after_ms / 1000, _zone(zone)))
    while True:
        try:
            yield round(next(found).timestamp() * 1000)
        except (StopIteration, OverflowError, ValueError):
            # Beyond the years that a calendar has, there is nothing due either.
            return


@lru_cache(_ZONES_MAX)
def _zone(name: str) -> tzinfo:
    """The time zone of a name, by the database of this machine."""
    if name == "UTC":
        # Also on a machine without a database.
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise _unknown_zone(name) from error


def _unknown_zone(name: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"schedule field timezone: {quoted(name)} is not in this machine's time zone database. Use an IANA name such "
        "as Europe/Berlin, or UTC",
        field="timezone",
    )
