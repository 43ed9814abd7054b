"""Answers to commands, in the order of the commands.

Publishes of one socket are under way together and may be done in any order, because their topics are of different
classes and shards. A client that matches answers by order, or stops at the first error, must not be misled by that.
"""

from collections import deque
from collections.abc import Callable


class Reply:
    """The place of one answer."""

    __slots__ = ("frame",)

    def __init__(self) -> None:
        self.frame: bytes | None = None


class Replies:
    __slots__ = ("_owed", "_send")

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._owed: deque[Reply] = deque()

    def __len__(self) -> int:
        """The answers that are not sent yet."""
        return len(self._owed)

    def now(self, frame: bytes) -> None:
        """An answer that is there already. It goes out behind those that are owed before it."""
        if not self._owed:
            self._send(frame)
            return
        reply = Reply()
        reply.frame = frame
        self._owed.append(reply)

    def later(self) -> Reply:
        """Keeps a place for an answer that is yet to come."""
        reply = Reply()
        self._owed.append(reply)
        return reply

    def give(self, reply: Reply, frame: bytes) -> None:
        """The answer has come: sends it, and what waited behind it, once it is first."""
        reply.frame = frame
        owed = self._owed
        while owed and (first := owed[0].frame) is not None:
            owed.popleft()
            self._send(first)

    def close(self) -> None:
        """Nothing is sent any more. It also lets go of whoever sent: a lost connection should not wait for a collection
        of garbage."""
        self._owed.clear()
        self._send = _drop


def _drop(frame: bytes) -> None:
    """An answer that nobody hears."""
