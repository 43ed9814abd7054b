"""Times and sizes as people write them."""

import pytest

from topics.cli.arguments import counted, duration_ms, moment_ms, shown_bytes, size_bytes
from topics.cli.failures import UsageError


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("250", 250),
        ("250ms", 250),
        ("30s", 30_000),
        ("1.5s", 1500),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(text, "--x") == ms


@pytest.mark.parametrize("text", ["", "s", "10 m", "-5s", "1y", "5mm", "1e3s", "½s", "٣s"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--x is"):
        duration_ms(text, "--x")


@pytest.mark.parametrize(
    ("text", "ms"),
    [("10m", 400_000), ("1970-01-01T00:00:01Z", 1000), ("1970-01-01T01:00:01+01:00", 1000)],
)
def test_moments(text: str, ms: int) -> None:
    assert moment_ms(text, "--since", 1_000_000) == ms


@pytest.mark.parametrize("text", ["", "yesterday", "2026-99-01", "10x"])
def test_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--since is"):
        moment_ms(text, "--since", 0)


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("4096", 4096), ("64KiB", 65_536), ("64k", 65_536), ("10MB", 10_000_000), ("1 GiB", 2**30)],
)
def test_sizes(text: str, count: int) -> None:
    assert size_bytes(text, "--x") == count


@pytest.mark.parametrize("text", ["", "much", "-1", "1.5k", "1TiBs"])
def test_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--x is"):
        size_bytes(text, "--x")


def test_sizes_for_people() -> None:
    assert [shown_bytes(count) for count in (0, 1023, 1024, 1536, 3 * 2**30, 2**50)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "3.0 GiB", "1024.0 TiB",
    ]  # fmt: skip


def test_one_is_not_many() -> None:
    assert [counted(number, "record") for number in (0, 1, 2)] == ["0 records", "1 record", "2 records"]
