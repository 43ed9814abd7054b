"""Whose turn it is: connections that asked for more than a moment's work wait in line for the rest.

A turn of the loop first serves what came in: each connection that was heard gets a slice of time, which is plenty for
what a client sends that waits for its answers. One that wants more, because it sent hundreds of requests at once or a
body in a thousand pieces, gets in line behind the others that do. The line is served round by round, a slice each and a
bounded time in each turn of the loop. So the others wait for a few milliseconds, however many are in line.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

SLICE_S = 0.0005
"""What a connection may use at a time: some twenty short requests."""
GREEDY_S = 0.1
"""How long a connection that wanted more than a slice goes to the line with whatever it sends."""
_TURN_S = 0.002
"""What those in line may use together before the loop looks for what came in meanwhile."""

Pause = Callable[[Callable[[], None]], None]
"""Is given what to call, once and on the loop's thread, when there is something to go on with."""
Step = Callable[[], bool | Pause]
"""Does a bit of some work: True when it is done, False when more is left, or a pause before the rest."""


class Waiting(Protocol):
    """A connection in line."""

    def take_turn(self) -> None:
        """Uses a slice. Whoever is not done then adds itself again."""
        ...


class FairScheduler:
    """The line. Whoever has it sees to it that `serve` is called once in each turn of the loop."""

    __slots__ = ("_line", "_monotonic")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._line: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._line)

    def add(self, waiting: Waiting) -> bool:
        """Gets in line, behind all others; whether there were none. Nobody may do so who is in it."""
        self._line.append(waiting)
        return len(self._line) == 1

    def serve(self) -> bool:
        """Serves those in line for a while, each once at the most; whether any are left."""
        line, end = self._line, self._monotonic() + _TURN_S
        # Kept in the line while they are served, so that one that comes meanwhile does not ask for a turn of its own.
        for _ in range(len(line)):
            waiting = line[0]
            waiting.take_turn()
            line.popleft()
            if self._monotonic() >= end:
                break
        return bool(line)
