import pytest

from topics_protocol.rfc3339 import write_time


@pytest.mark.parametrize(
    ("millis", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (59_999, "1970-01-01T00:00:59.999Z"),
        (60_000, "1970-01-01T00:01:00.000Z"),
        (951_782_400_007, "2000-02-29T00:00:00.007Z"),
        (1_763_415_973_041, "2025-11-17T21:46:13.041Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "9999-12-31T23:59:59.999Z"),
        (10**30, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_moments_are_written_to_the_millisecond(millis: int, text: str) -> None:
    assert write_time(millis) == text
