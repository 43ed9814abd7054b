"""Tokens: a burst, a rate, and more for important requests."""

import pytest

from topics.http.h2.frames import (
    DATA,
    END_STREAM,
    HEADERS,
    PING,
    RST_STREAM,
    WINDOW_UPDATE,
    ConnectionFault,
    Floods,
    Frame,
)
from topics.http.messages import HttpLimits

LIMITS = HttpLimits(http2_resets=5, http2_resets_per_s=2, http2_idle_frames=10, http2_idle_frames_per_s=4)


def a_frame(kind: int, flags: int = 0, length: int = 0) -> Frame:
    return Frame(kind, flags, 1, length, b"")


def count(floods: Floods, frame: Frame, now: float = 0.0) -> int:
    """How many of a frame are taken before one is too many."""
    for taken in range(1000):
        try:
            floods.check(frame, now)
        except ConnectionFault:
            return taken
    return 1000


@pytest.mark.parametrize(
    ("frame", "most"),
    [
        (a_frame(RST_STREAM), 5), (a_frame(PING), 10), (a_frame(DATA), 10), (a_frame(0xEE), 10),
        (a_frame(WINDOW_UPDATE), 10), (a_frame(HEADERS), 1000), (a_frame(DATA, 0, 1), 1000),
        (a_frame(DATA, END_STREAM), 1000),
    ],
)  # fmt: skip
def test_only_what_states_nothing_is_counted(frame: Frame, most: int) -> None:
    assert count(Floods(LIMITS, 0.0), frame) == most


def test_time_gives_tokens_and_never_more_than_there_were() -> None:
    floods = Floods(LIMITS, 0.0)
    assert count(floods, a_frame(PING), 0.0) == 10
    assert count(floods, a_frame(PING), 1.0) == 3
    assert count(floods, a_frame(PING), 1000.0) == 10


def test_requests_and_bodies_earn_frames_and_answers_earn_windows() -> None:
    floods = Floods(LIMITS, 0.0)
    for _ in range(9):
        floods.check(a_frame(PING), 0.0)
        floods.check(a_frame(WINDOW_UPDATE), 0.0)
    floods.check(a_frame(HEADERS), 0.0)
    floods.check(a_frame(DATA, 0, 5), 0.0)
    floods.sent()
    assert count(floods, a_frame(PING)) == 1 + 4 + 1
    assert count(floods, a_frame(WINDOW_UPDATE)) == 1 + 2


def test_nothing_earns_resets() -> None:
    floods = Floods(LIMITS, 0.0)
    for _ in range(5):
        floods.check(a_frame(HEADERS), 0.0)
        floods.reset(0.0)
    with pytest.raises(ConnectionFault):
        floods.check(a_frame(RST_STREAM), 0.0)
