"""Output backpressure: bytes that clients have not read are counted by connection, by account and in total.

A response that its client does not read stays in memory. One connection alone costs a buffer and a response, but a
thousand of them that ask for the largest responses and read none would cost gigabytes. So the application asks how long
a response may be (`Exchange.room`): the more output is unread, the shorter. The client asks for the rest later, from
where the response ended. While the budget is used up, a connection with unread output is served no further.

Event streams and WebSockets count as well. They are written to continuously, so each may fill its write buffer. When
the budget gets tight, a buffer takes more only when it is empty.

An account groups the clients that the application counts together, such as those with one API key. It gets half of the
budget, so that one account does not take the room of the others.

`Phase` and `Progress` are the other part: they find connections that have stopped moving (idle timeouts).
"""

import enum
from typing import Protocol

from topics.http.messages import HttpLimits

MUCH_BYTES = 16 * 1024
"""From here on what was written is counted: less is mostly with the system before anybody could ask."""
FLOOR_BYTES = 64 * 1024
"""Bytes that a response may have in any case: the system's own buffer takes most of them."""
ROOM_PART = 4
"""One answer gets a part of the room that is left, so that many at once find some."""


class Account:
    """Connections that share a budget."""

    __slots__ = ("unread_bytes",)

    def __init__(self) -> None:
        self.unread_bytes = 0


NOBODY = Account()
"""Whom unread bytes belong to that the application was not asked about."""


class Meter:
    """The unread bytes of one sender, and its account."""

    __slots__ = ("_backpressure", "account", "nbytes")

    def __init__(self, backpressure: "OutputBackpressure") -> None:
        self._backpressure = backpressure
        self.account = NOBODY
        self.nbytes = 0

    def set(self, nbytes: int) -> None:
        self._backpressure.change(self.account, nbytes - self.nbytes)
        self.nbytes = nbytes

    def charge(self, account: Account) -> None:
        """Names the owner."""
        nbytes = self.nbytes
        self.set(0)
        self.account = account
        self.set(nbytes)


class Sender(Protocol):
    """A connection that was given something to send."""

    def recount(self) -> None:
        """Reports how much of it is unread."""
        ...


class OutputBackpressure:
    """The budget of a server."""

    __slots__ = ("held_bytes", "max_bytes", "uncertain")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.uncertain: list[Sender] = []
        """Connections that were given much in this turn of the loop: how much the system took is known after it."""

    @property
    def exhausted(self) -> bool:
        return self.held_bytes >= self.max_bytes

    @property
    def tight(self) -> bool:
        """Whether so much lies unread that connections get their buffers back only when they are empty."""
        return self.held_bytes >= self.max_bytes // 4 * 3

    def room(self, account: Account) -> int:
        """How many bytes one more answer may have."""
        left = min(self.max_bytes - self.held_bytes, self.max_bytes // 2 - account.unread_bytes)
        return max(left // ROOM_PART, FLOOR_BYTES)

    def change(self, account: Account, more: int) -> None:
        self.held_bytes += more
        account.unread_bytes += more


# Idle timeouts.
#
# There is no timer for a connection, and no time is noted in the path of a request. A periodic sweep compares what it
# sees of each connection with what it saw the last time: the phase, and a number that changes when the phase makes
# progress. The same twice, or nearly so where bytes are counted, means that the connection has not moved in between.


class Phase(enum.Enum):
    """The phase of a connection, for timeouts."""

    # Between two requests. The end is a quiet close.
    IDLE = enum.auto()
    # Within a head; the number is the request's, so that dripping bytes are not progress.
    HEAD = enum.auto()
    # Within a body; the number is the bytes received, and a few more are not progress.
    BODY = enum.auto()
    # The handler, or the order of the answers, has the turn: no limit.
    ANSWERING = enum.auto()
    # The client has left too much unread; the number is the bytes that are.
    WRITING = enum.auto()
    # Everything is said, and what is left is to get rid of it.
    CLOSING = enum.auto()


class Progress:
    """The progress of a connection at the last sweep."""

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
    """For how long a connection may be in one place. `has_asked` states that it has sent a request before."""
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
