"""A scrape takes many turns of the loop, and another one waits for it."""

import asyncio
from collections.abc import Iterator
from typing import cast

from topics.api.metrics import scrape
from topics.http.exchange import Exchange, request_task
from topics.system.fair_scheduler import FairScheduler


class Asked:
    """Stands for an exchange."""

    def __init__(self, gone: bool = False) -> None:
        self.gone = gone
        self.said: bytes | None = None

    def respond(self, status: int, body: bytes, content_type: str) -> None:
        self.said = body


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def pieces(clock: Clock, *parts: bytes) -> Iterator[bytes]:
    for part in parts:
        clock.now += 0.01
        yield part


def test_a_piece_a_turn_and_one_scrape_after_the_other() -> None:
    async def scene() -> None:
        clock = Clock()
        scheduler = FairScheduler(clock, asyncio.get_running_loop().call_soon)
        first, second, gone = Asked(), Asked(), Asked(gone=True)

        def begin(asked: Asked, *parts: bytes) -> None:
            exchange = cast(Exchange, asked)
            task = scrape(exchange, pieces(clock, *parts), "text/plain")
            scheduler.run(request_task(exchange, task, clock), "all scrapes")

        begin(first, b"a", b"b", b"c")
        begin(gone, b"nobody")
        begin(second, b"d")
        assert first.said is None, "the loop has others to serve"
        turns = 0
        while second.said is None:
            await asyncio.sleep(0)
            turns += 1
            assert first.said is not None or second.said is None
        assert [first.said, second.said] == [b"abc", b"d"]
        assert turns >= 3

    asyncio.run(scene())
