"""Scrapes of the metrics, a piece in each turn of the loop.

What is told is measured at once, when the scrape begins. Putting it into words takes ten times as long, with a thousand
topics some tens of milliseconds, so that is done piece by piece, and one scrape after the other: whoever scrapes
without end slows down other scrapes and nobody else.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from topics.http.exchange import Exchange

_PIECE_S = 0.001


class Scrapes:
    """Those under way. `monotonic` tells the time."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._line: deque[tuple[Exchange, Iterator[bytes], list[bytes], str]] = deque()

    def begin(self, exchange: Exchange, pieces: Iterator[bytes], content_type: str) -> None:
        """Answers with all of the pieces, in time."""
        self._line.append((exchange, pieces, [], content_type))
        if len(self._line) == 1:
            self._go_on()

    def _go_on(self) -> None:
        end = self._monotonic() + _PIECE_S
        while self._line:
            exchange, pieces, said, content_type = self._line[0]
            piece = None if exchange.gone else next(pieces, None)
            if piece is not None:
                said.append(piece)
            else:
                self._line.popleft()
                exchange.respond(200, b"".join(said), content_type)
            if self._line and self._monotonic() >= end:
                asyncio.get_running_loop().call_soon(self._go_on)
                return
