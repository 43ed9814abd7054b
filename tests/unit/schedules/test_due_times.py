"""Due times of cron expressions and intervals, with the clock changes of time zones."""

from datetime import UTC, datetime
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest

from topics.model.errors import InvalidRequestError
from topics.schedules.due_times import NEVER, check_timing, next_due

BERLIN = "Europe/Berlin"


def ms(*date: int, zone: str = "UTC", fold: int = 0) -> int:
    year, month, day, hour, minute = (*date, 0, 0)[:5]
    moment = datetime(year, month, day, hour, minute, tzinfo=ZoneInfo(zone), fold=fold)
    return round(moment.timestamp() * 1000)


def due_times(cron: str, after: int, count: int, zone: str = BERLIN) -> list[str]:
    """The next due times as UTC."""
    timing = SimpleNamespace(cron=cron, every_ms=0, timezone=zone, start_ms=0)
    found = []
    for _ in range(count):
        after = next_due(timing, after)
        found.append(datetime.fromtimestamp(after / 1000, UTC).strftime("%d %H:%M"))
    return found


def test_a_due_time_is_later_than_its_predecessor() -> None:
    timing = SimpleNamespace(cron="*/5 * * * *", every_ms=0, timezone="UTC", start_ms=0)
    begin = ms(2026, 5, 1, 12, 0)
    assert next_due(timing, begin - 1) == begin
    assert next_due(timing, begin) == begin + 300_000
    assert next_due(timing, begin + 999) == begin + 300_000


def test_seconds_may_be_the_first_field() -> None:
    timing = SimpleNamespace(cron="30 0 3 * * *", every_ms=0, timezone="UTC", start_ms=0)
    assert next_due(timing, ms(2026, 5, 1)) == ms(2026, 5, 1, 3) + 30_000


def test_a_time_zone_shifts_due_times_with_the_season() -> None:
    assert due_times("0 3 * * *", ms(2026, 1, 10), 1) == ["10 02:00"]
    assert due_times("0 3 * * *", ms(2026, 7, 10), 1) == ["10 01:00"]


def test_a_due_time_in_a_gap_is_due_once_at_its_end() -> None:
    # Clocks went from 02:00 to 03:00 on 29 March 2026, which is 01:00 UTC.
    assert due_times("30 2 * * *", ms(2026, 3, 28, 12), 2) == ["29 01:00", "30 00:30"]
    assert due_times("15,30,45 2 * * *", ms(2026, 3, 28, 12), 2) == ["29 01:00", "30 00:15"]


def test_a_due_time_in_an_overlap_is_due_once() -> None:
    # Clocks went from 03:00 back to 02:00 on 25 October 2026, which is 01:00 UTC.
    assert due_times("30 2 * * *", ms(2026, 10, 24, 12), 2) == ["25 00:30", "26 01:30"]
    # Also when the search begins within the second 02:15.
    within = ms(2026, 10, 25, 2, 15, zone=BERLIN, fold=1)
    assert due_times("30 2 * * *", within, 1) == ["26 01:30"]


def test_a_frequent_expression_follows_elapsed_time() -> None:
    assert due_times("*/30 * * * *", ms(2026, 10, 25, 0, 0), 4) == ["25 00:30", "25 01:00", "25 01:30", "25 02:00"]
    assert due_times("*/30 * * * *", ms(2026, 3, 29, 0, 30), 2) == ["29 01:00", "29 01:30"]


def test_an_interval_counts_from_its_start() -> None:
    timing = SimpleNamespace(cron="", every_ms=60_000, timezone=BERLIN, start_ms=1_000)
    assert [next_due(timing, after) for after in (0, 1_000, 61_000, 61_001)] == [61_000, 61_000, 121_000, 121_000]


def test_an_expression_without_a_due_time_is_never_due() -> None:
    timing = SimpleNamespace(cron="* * */20 * 1L", every_ms=0, timezone="UTC", start_ms=0)
    assert next_due(timing, ms(2026, 1, 1)) == NEVER


@pytest.mark.parametrize(
    "cron",
    ["", "*", "* * * *", "61 * * * *", "0 0 30 2 *", "a b c d e", "* * * * * * *", "1/0 * * * *", "0 0 * * 1#9",
     "* " * 200, "²* * * * *", "0 0 LW/2 * L"],
)  # fmt: skip
def test_an_invalid_expression_is_refused(cron: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_timing(cron, 0, "UTC")
    assert caught.value.detail["field"] == "cron"


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", "America", "/etc/localtime", "", "x" * 300, "\0"])
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_timing("* * * * *", 0, zone)
    assert caught.value.detail["field"] == "timezone"


@pytest.mark.parametrize(("cron", "every_ms"), [("* * * * *", 1_000), ("", 0), ("", 999), ("", 400 * 86_400_000)])
def test_one_of_expression_and_interval_is_required(cron: str, every_ms: int) -> None:
    with pytest.raises(InvalidRequestError):
        check_timing(cron, every_ms, "UTC")
