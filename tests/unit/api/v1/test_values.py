import pytest

from topics.api.v1.protocol import (
    is_true,
    read_duration_ms,
    read_integer,
    read_producer,
    read_time_ms,
    read_ttl_s,
    utf8,
)
from topics.http.messages import Headers
from topics.model.errors import InvalidRequestError
from topics.streams.stream_frames import Producer
from topics_protocol.rfc3339 import write_time


@pytest.mark.parametrize(
    ("text", "millis"),
    [("0", 0), ("7", 7), ("250ms", 250), ("2s", 2_000), ("3m", 180_000), ("1h", 3_600_000), ("2d", 172_800_000)],
)
def test_durations_have_a_unit_or_that_of_their_field(text: str, millis: int) -> None:
    assert read_duration_ms("timeout", text, bare_ms=1) == millis


@pytest.mark.parametrize("text", ["", " ", "-1", "+1", "01", "1.5", "1e3", "s", "1 s", "1S", "1w", "٣", "9" * 16])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        read_duration_ms("timeout", text, bare_ms=1)


def test_a_lifetime_is_whole_seconds() -> None:
    assert (read_ttl_s("3600"), read_ttl_s("24h"), read_ttl_s("2000ms"), read_ttl_s("0")) == (3600, 86_400, 2, 0)
    with pytest.raises(InvalidRequestError):
        read_ttl_s("1500ms")


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("1970-01-01T00:00:00Z", 0), ("2026-01-31T12:00:00.5Z", 1769860800500),
        ("2026-01-31t14:00:00+02:00", 1769860800000),
        ("2026-01-31T12:00:00.123456789Z", 1769860800123), ("1769860800123456789", 1769860800123), ("0", 0),
    ],
)  # fmt: skip
def test_times_are_rfc_3339_or_nanoseconds(text: str, millis: int) -> None:
    assert read_time_ms("since", text) == millis


@pytest.mark.parametrize(
    "text",
    ["", "now", "2026-01-31", "2026-01-31T12:00:00", "2026-02-30T00:00:00Z", "-1", "1" * 20, "1969-12-31T00:00:00Z"],
)
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        read_time_ms("since", text)


def test_times_are_written_to_the_millisecond() -> None:
    assert write_time(1769860800005) == "2026-01-31T12:00:00.005Z"
    for beyond in (10**15, 10**18, 10**20, 10**21, 10**30):
        assert write_time(beyond) == "9999-12-31T23:59:59.999Z"


@pytest.mark.parametrize("text", ["-1", "+1", "01", "1.0", "", " 1", "9007199254740992", "1" * 40, "٣"])
def test_numbers_are_plain(text: str) -> None:
    assert read_integer("x", "9007199254740991") == 2**53 - 1
    with pytest.raises(InvalidRequestError):
        read_integer("x", text)


def test_a_producer_is_whole_or_not_there() -> None:
    assert read_producer(Headers.of([])) is None
    whole = [(b"Producer-Id", "ü".encode()), (b"Producer-Epoch", b"1"), (b"Producer-Seq", b"2")]
    assert read_producer(Headers.of(whole)) == Producer("ü", 1, 2)
    for left_out in range(3):
        with pytest.raises(InvalidRequestError):
            read_producer(Headers.of(whole[:left_out] + whole[left_out + 1 :]))


def test_headers_are_utf_8() -> None:
    assert utf8("ü".encode().decode("latin-1"), "x") == "ü"
    with pytest.raises(InvalidRequestError):
        utf8("\xff", "x")


def test_only_the_word_is_true() -> None:
    assert is_true("true") and is_true("TRUE")
    assert not any(map(is_true, (None, "", "1", "yes", "false", "true ")))
