"""Output backpressure: bytes that clients have not read are counted by connection, by account and in total.

A response that its client does not read stays in memory. One connection costs a buffer and a response, but a thousand
that request the largest responses and read none would cost gigabytes. So the application limits responses
(`Exchange.room`): the more output is unread, the shorter they are. The client requests the rest later, from the end of
the response. While the budget is exhausted, a connection with unread output is not served.

Event streams and WebSockets count as well. They are written to continuously, so each may fill its write buffer. When
the budget is nearly exhausted, only an empty buffer accepts more.

An account groups the clients that the application counts together, such as those with one API key. It may use half of
the budget, so that one account does not starve the others.

`Phase` and `Progress` detect connections without progress (idle timeouts).
"""

import enum
from typing import Protocol

from topics.http.messages import HttpLimits

MUCH_BYTES = 16 * 1024
"""Larger writes are counted; smaller ones are usually accepted by the system before the next check."""
FLOOR_BYTES = 64 * 1024
"""The minimum size limit of a response: the system's buffer takes most of it."""
ROOM_PART = 4
"""The fraction of the remaining budget for one answer, so that concurrent answers get some as well."""


class Account:
    """A group of connections that share a budget."""

    __slots__ = ("unread_bytes",)

    def __init__(self) -> None:
        self.unread_bytes = 0


NOBODY = Account()
"""The account of unread bytes that the application has not assigned."""


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
        """Sets the owner."""
        nbytes = self.nbytes
        self.set(0)
        self.account = account
        self.set(nbytes)


class Sender(Protocol):
    """A connection with new output."""

    def recount(self) -> None:
        """Updates the count of its unread bytes."""
        ...


class OutputBackpressure:
    """The budget of a server."""

    __slots__ = ("held_bytes", "max_bytes", "uncertain")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.uncertain: list[Sender] = []
        """Connections with much new output in this turn of the loop; their unread bytes are known after it."""

    @property
    def exhausted(self) -> bool:
        return self.held_bytes >= self.max_bytes

    @property
    def tight(self) -> bool:
        """Whether so many bytes are unread that only empty buffers accept more."""
        return self.held_bytes >= self.max_bytes // 4 * 3

    def room(self, account: Account) -> int:
        """Returns the number of bytes that another answer may have."""
        left = min(self.max_bytes - self.held_bytes, self.max_bytes // 2 - account.unread_bytes)
        return max(left // ROOM_PART, FLOOR_BYTES)

    def change(self, account: Account, more: int) -> None:
        self.held_bytes += more
        account.unread_bytes += more


# Idle timeouts.
#
# Connections have no timers, and request paths read no clock. A periodic sweep compares each connection with its
# previous state: the phase, and a number that changes when the phase makes progress. If both are unchanged, or nearly
# so for byte counts, the connection has made no progress.


class Phase(enum.Enum):
    """The phase of a connection, for timeouts."""

    # Between two requests. Timeout: the connection is closed without an answer.
    IDLE = enum.auto()
    # Within a head; the number is the request's, so single bytes are not progress.
    HEAD = enum.auto()
    # Within a body; the number is the received bytes, and a few more are not progress.
    BODY = enum.auto()
    # Waiting for the handler or for earlier answers: no timeout.
    ANSWERING = enum.auto()
    # The client has left too much unread; the number is the unread bytes.
    WRITING = enum.auto()
    # The connection is closing.
    CLOSING = enum.auto()


class Progress:
    """The progress of a connection at the last sweep."""

    __slots__ = ("_phase", "_progress", "_since")

    def __init__(self) -> None:
        self._phase = Phase.IDLE
        self._progress = -1
        self._since = 0.0

    def look(self, phase: Phase, progress: int, now: float, step: int = 1) -> float:
        """Returns the seconds for which phase and progress have not changed; progress by less than a step counts as
        none."""
        if phase is not self._phase or abs(progress - self._progress) >= step:
            self._phase = phase
            self._progress = progress
            self._since = now
        return now - self._since


def limit_s(phase: Phase, limits: HttpLimits, has_asked: bool) -> float:
    """Returns the timeout of a phase. `has_asked` states that the connection has sent a request before."""
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
