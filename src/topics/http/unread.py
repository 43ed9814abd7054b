"""What clients have left unread: counted for each connection, for each account, and in all.

An answer that its client does not read stays in memory. One connection alone costs a buffer and an answer, but a
thousand of them that ask for the largest answers and read none would cost gigabytes. So the application asks how long
an answer may be (`Exchange.room`), which is less and less the more lies unread. What it does not give now the client
asks for later, from where the answer ended. While the budget is used up, a connection that has something unread is
served no further.

Event streams and WebSockets count as well: they are written to on and on, so that each has what its buffer takes. When
the budget gets tight no buffer takes more before it is empty.

An account is whoever the application counts together, such as the bearers of one key. It gets half of the budget, so
that one of them does not take away the room of the others.
"""

from typing import Protocol

MUCH_BYTES = 16 * 1024
"""From here on what was written is counted: less is mostly with the system before anybody could ask."""
FLOOR_BYTES = 64 * 1024
"""What an answer may have in any case: mostly the system's own buffer takes it."""
_PART = 4
"""One answer gets a part of the room that is left, so that many at once find some."""


class Account:
    """Those who share a budget."""

    __slots__ = ("unread_bytes",)

    def __init__(self) -> None:
        self.unread_bytes = 0


NOBODY = Account()
"""Whom unread bytes belong to that the application was not asked about."""


class Meter:
    """What is counted as unread for one sender, and whom it belongs to."""

    __slots__ = ("_unread", "account", "nbytes")

    def __init__(self, unread: "Unread") -> None:
        self._unread = unread
        self.account = NOBODY
        self.nbytes = 0

    def set(self, nbytes: int) -> None:
        self._unread.change(self.account, nbytes - self.nbytes)
        self.nbytes = nbytes

    def charge(self, account: Account) -> None:
        """Says whom it belongs to."""
        nbytes = self.nbytes
        self.set(0)
        self.account = account
        self.set(nbytes)


class Sender(Protocol):
    """A connection that was given something to send."""

    def recount(self) -> None:
        """Tells how much of it is unread."""
        ...


class Unread:
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
        return max(left // _PART, FLOOR_BYTES)

    def change(self, account: Account, more: int) -> None:
        self.held_bytes += more
        account.unread_bytes += more
