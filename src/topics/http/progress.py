"""How long a connection has not moved.

There is no timer for a connection and no note of the time in the path of a request. Once in a while a sweep looks at
every connection and compares what it sees with what it saw the last time: the phase, and a number that changes when
the phase makes progress. The same twice, or nearly so where bytes are counted, means that the connection has not moved
in between.
"""

import enum

from topics.http.limits import HttpLimits


class Phase(enum.Enum):
    """What a connection is in the middle of, as far as time matters."""

    # Between two requests. The end is a quiet close.
    IDLE = enum.auto()
    # Within a head; the number is the request's, so that dripping bytes are no progress.
    HEAD = enum.auto()
    # Within a body; the number is the bytes received, and a few more are no progress.
    BODY = enum.auto()
    # The handler, or the order of the answers, has the turn: no limit.
    ANSWERING = enum.auto()
    # The client has left too much unread; the number is the bytes that are.
    WRITING = enum.auto()
    # Everything is said, and what is left is to get rid of it.
    CLOSING = enum.auto()


class Progress:
    """What the last sweep saw of a connection."""

    __slots__ = ("_phase", "_progress", "_since")

    def __init__(self) -> None:
        self._phase = Phase.IDLE
        self._progress = -1
        self._since = 0.0

    def look(self, phase: Phase, progress: int, now: float, step: int = 1) -> float:
        """The seconds for which phase and progress have been the same; progress by less than a step is none."""
        if phase is not self._phase or abs(progress - self._progress) >= step:
            self._phase = phase
            self._progress = progress
            self._since = now
        return now - self._since


def limit_s(phase: Phase, limits: HttpLimits, has_asked: bool) -> float:
    """For how long a connection may be in one place. `has_asked` says that it has sent a request before."""
    match phase:
        case Phase.CLOSING:
            return limits.linger_timeout_s
        case Phase.WRITING:
            return limits.write_idle_timeout_s
        case Phase.BODY:
            return limits.body_idle_timeout_s
        case Phase.IDLE if has_asked:
            return limits.keep_alive_s
        case _:
            return limits.head_timeout_s
