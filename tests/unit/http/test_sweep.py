"""The sweep reaches every connection, a few at a time."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from tests.http.protocol.support import App
from topics.http import HttpServer
from topics.http.h1.connection import Connection
from topics.http.output_backpressure import Phase, Progress
from topics.testing import ManualClock


class Swept:
    """A connection that only counts how often it is looked at."""

    def __init__(self) -> None:
        self.times = 0

    def sweep(self, now: float) -> None:
        self.times += 1


class Timers:
    """A loop that only keeps the next call."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.call: Callable[[], object] = lambda: None

    def call_later(self, delay_s: float, call: Callable[..., object], *arguments: Any) -> None:
        self.delay_s = delay_s
        self.call = lambda: call(*arguments)


def crowd(server: HttpServer, count: int) -> list[Swept]:
    swept = [Swept() for _ in range(count)]
    server._server_state.connections.update(cast(list[Connection], swept))
    return swept


def test_a_sweep_reaches_every_connection() -> None:
    server = HttpServer(App(), clock=ManualClock())
    swept = crowd(server, 1_234)
    server.sweep()
    assert {each.times for each in swept} == {1}


def test_many_connections_are_swept_in_several_ticks_of_one_period() -> None:
    server = HttpServer(App(), clock=ManualClock())
    swept = crowd(server, 1_234)
    timers = Timers()
    server._tick(cast(asyncio.AbstractEventLoop, timers))
    assert sum(each.times for each in swept) == 500
    for _ in range(2):
        assert timers.delay_s == 1.0 / 3
        timers.call()
    assert {each.times for each in swept} == {1}
    for _ in range(3):
        timers.call()
    assert {each.times for each in swept} == {2}


def test_few_connections_are_swept_once_a_period() -> None:
    server = HttpServer(App(), clock=ManualClock())
    [swept] = crowd(server, 1)
    timers = Timers()
    server._tick(cast(asyncio.AbstractEventLoop, timers))
    assert (swept.times, timers.delay_s) == (1, 1.0)


def test_only_what_stays_the_same_adds_up() -> None:
    watch = Progress()
    assert watch.look(Phase.HEAD, 1, 10.0) == 0
    assert watch.look(Phase.HEAD, 1, 13.0) == 3
    assert watch.look(Phase.HEAD, 2, 14.0) == 0
    assert watch.look(Phase.BODY, 2, 15.0) == 0
    assert watch.look(Phase.BODY, 2, 15.5) == 0.5
