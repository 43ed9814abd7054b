"""The rings of the metrics history: their content, and that they never grow."""

from collections.abc import Callable
from typing import cast

import msgspec
import pytest

from topics.api.metrics_history import SERIES, STEPS, HistoryRecorder, Ring
from topics.http.exchange import Exchange
from topics.testing.fake_clock import ManualClock
from topics_protocol.v0 import MetricsHistory


def sample(value: float) -> tuple[float, ...]:
    return (value,) * len(SERIES)


def first(ring: Ring, count: int = 1000) -> list[float | None]:
    return [None if value != value else value for value in dict(ring.newest(count))[SERIES[0]]]


def test_a_ring_keeps_the_newest_points() -> None:
    ring = Ring(1000, 4)
    assert first(ring) == []
    for second in range(10):
        ring.add(second * 1000 + 300, sample(second))
    assert first(ring) == [6, 7, 8, 9]
    assert first(ring, 2) == [8, 9]
    assert first(ring, 0) == []
    assert ring.end_ms == 9000


def test_a_second_without_a_sample_is_empty_and_a_longer_pause_empties_the_ring() -> None:
    ring = Ring(1000, 4)
    ring.add(1000, sample(1))
    ring.add(3000, sample(3))
    assert first(ring) == [1, None, 3]
    ring.add(3_000_000, sample(5))
    assert first(ring) == [None, None, None, 5]


def test_a_minute_has_its_highest_value_and_a_clock_that_goes_back_changes_nothing() -> None:
    ring = Ring(60_000, 4)
    for now_ms, value in ((1000, 2.0), (2000, 7.0), (3000, 5.0), (61_000, 1.0), (500, 9.0)):
        ring.add(now_ms, sample(value))
    assert first(ring) == [7, 1]


class Asked:
    """Stands for an exchange."""

    body = b""

    def respond(self, status: int, body: bytes, *_: object) -> None:
        self.body = body


@pytest.mark.parametrize("step", STEPS)
def test_a_recorder_samples_each_second_in_bounded_memory(step: str) -> None:
    clock = ManualClock()
    recorder = HistoryRecorder(clock)
    due: list[Callable[[], None]] = []

    def later(seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        assert seconds == 1.0
        due.append(function)
        return due.clear

    ticks = iter(range(100_000))
    recorder.start(lambda: sample(next(ticks)), later)
    before = sum(values.itemsize * len(values) for ring in recorder.rings.values() for values in ring._values)
    for _ in range(4000):
        tick = due.pop()
        clock.advance(1000)
        tick()
    after = sum(values.itemsize * len(values) for ring in recorder.rings.values() for values in ring._values)
    assert before == after == 8 * len(SERIES) * sum(points for _, points in STEPS.values())
    asked = Asked()
    for _ in recorder.answer(cast(Exchange, asked), step, STEPS[step][1]):
        pass
    answer = msgspec.json.decode(asked.body, type=MetricsHistory)
    values = answer.series[SERIES[0]]
    assert values[-1] == 4000
    assert len(values) == (3600 if step == "1s" else 67)
    recorder.stop()
    assert due == []
