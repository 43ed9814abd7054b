"""Tallies: every answer is counted once, whichever way it is given, and looked at often enough."""

from typing import cast

from tests.unit.http.fake_exchange import FakeExchange
from topics.http.exchange import Exchange
from topics.http.messages import BOUNDS_S, RequestCounter


def answered(counter: RequestCounter, status: int, started: float, times: int = 1) -> None:
    exchange = FakeExchange()
    exchange.started = started
    for _ in range(times):
        counter.count(cast(Exchange, exchange), status)


def test_answers_are_counted_by_status_and_by_how_long_they_took() -> None:
    counter = RequestCounter(lambda: 10.0)
    answered(counter, 200, 9.9999)
    answered(counter, 200, 9.0)
    answered(counter, 503, -100.0)
    assert counter.answers() == [(200, 2), (503, 1)]
    at = {bound: place for place, bound in enumerate(BOUNDS_S)}
    assert [count for count in counter.buckets if count] == [1, 1, 1]
    assert counter.buckets[0] == counter.buckets[at[1.0]] == counter.buckets[-1] == 1
    assert abs(counter.spent_s - 111.0001) < 1e-9


def test_of_many_answers_one_in_sixteen_is_looked_at() -> None:
    counter = RequestCounter(lambda: 1.0)
    answered(counter, 200, 0.0, 1024)
    assert counter.looked == 1024
    answered(counter, 200, 0.0, 1600)
    assert counter.looked == 1124
    counter.count_many(cast(Exchange, timed()), 200, 15)
    counter.count_many(cast(Exchange, timed()), 200, 17)
    assert counter.answers() == [(200, 1024 + 1600 + 32)]
    assert sum(counter.buckets) == counter.looked == 1124 + 1


def timed() -> FakeExchange:
    exchange = FakeExchange()
    exchange.started = 0.5
    return exchange


def test_whoever_wants_to_know_of_each_is_notified_of_each() -> None:
    reported: list[tuple[int, float]] = []
    counter = RequestCounter(lambda: 1.0, lambda exchange, status, spent_s: reported.append((status, spent_s)))
    answered(counter, 204, 0.5, 3000)
    assert reported == [(204, 0.5)] * 3000


def test_a_clock_that_stands_makes_no_negative_time() -> None:
    counter = RequestCounter(lambda: 1.0)
    answered(counter, 200, 2.0)
    assert counter.spent_s == 0.0
