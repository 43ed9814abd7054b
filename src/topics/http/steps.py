"""Work on one request that would hold the loop for too long, done bit by bit in line with the others (`http.turns`)."""

import logging
from collections.abc import Callable

from topics.http.exchange import Exchange
from topics.http.turns import SLICE_S, Pause, Step, Waiting

# Steps of one turn, however short they are.
_STEPS_MAX = 32

_logger = logging.getLogger(__name__)


class Steps:
    """Implements `Waiting`."""

    __slots__ = ("_done", "_exchange", "_get_in_line", "_monotonic", "_step")

    def __init__(
        self,
        exchange: Exchange,
        step: Step,
        monotonic: Callable[[], float],
        get_in_line: Callable[[Waiting], None],
        done: Callable[[], None],
    ) -> None:
        self._exchange = exchange
        self._step = step
        self._monotonic = monotonic
        self._get_in_line = get_in_line
        self._done = done

    def take_turn(self) -> None:
        end = self._monotonic() + SLICE_S
        for _ in range(_STEPS_MAX):
            over = self._go_on()
            if over is True:
                self._exchange.large_body = None
                self._done()
                return
            if over is not False:
                # It keeps its place before later work of the connection, and takes no turns for nothing.
                over(lambda: self._get_in_line(self))
                return
            if self._monotonic() >= end:
                break
        self._get_in_line(self)

    def _go_on(self) -> bool | Pause:
        if self._exchange.gone:
            return True
        try:
            return self._step()
        except Exception:
            # It answers by itself what goes wrong with the request; this is a mistake of ours.
            _logger.exception("work on a request failed", extra={"path": self._exchange.head.path})
            if not self._exchange.answered:
                self._exchange.respond(500)
            return True
