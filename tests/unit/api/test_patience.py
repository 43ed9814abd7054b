"""How a request waits, without a server: what ends the waiting, and that nothing ends it twice."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from topics.api.calls import Call
from topics.api.patience import Patience


class FakeCall:
    def __init__(self) -> None:
        self.waits: set[object] = set()
        self.gone: Callable[[], None] = lambda: None

    def on_gone(self, callback: Callable[[], None]) -> None:
        self.gone = callback


class Bench:
    def __init__(self, wait_s: float = 60.0) -> None:
        self.call = FakeCall()
        self.again = 0
        self.watched: list[Callable[[], None]] = []
        self.patience = Patience(cast(Call, self.call), wait_s, self.read)

    def read(self) -> None:
        self.again += 1

    def watch(self, woken: Callable[[], None]) -> Callable[[], None]:
        self.watched.append(woken)
        return lambda: self.watched.remove(woken)

    def change(self) -> None:
        self.watched.pop()()


def run(scene: Callable[[], Any]) -> None:
    async def main() -> None:
        await scene()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_change_reads_again_and_the_waiting_may_go_on() -> None:
    async def scene() -> None:
        bench = Bench()
        for times in (1, 2, 3):
            bench.patience.wait(bench.watch)
            bench.change()
            assert (bench.again, bench.patience.over, len(bench.call.waits)) == (times, False, 1)
        bench.patience.stop()
        assert (bench.call.waits, bench.watched) == (set(), [])

    run(scene)


def test_the_end_of_the_time_reads_once_more() -> None:
    async def scene() -> None:
        bench = Bench(wait_s=0.0)
        bench.patience.wait(bench.watch)
        while not bench.again:
            await asyncio.sleep(0)
        assert bench.patience.over
        assert (bench.call.waits, bench.watched) == (set(), [])
        bench.patience.end()
        assert bench.again == 1

    run(scene)


def test_a_client_that_is_gone_is_not_read_for() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.patience.wait(bench.watch)
        bench.call.gone()
        assert (bench.again, bench.watched, bench.call.waits) == (0, [], set())

    run(scene)


def test_a_stopping_server_ends_the_waiting() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.patience.wait(bench.watch)
        (waiting,) = bench.call.waits
        cast(Patience, waiting).end()
        assert (bench.again, bench.patience.over) == (1, True)

    run(scene)
