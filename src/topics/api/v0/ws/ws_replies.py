"""Answers to commands, in the order of the commands.

Publishes of one socket are under way together and may be done in any order, because their topics are of different
classes and shards. A client that matches answers by order, or stops at the first error, must not be misled by that.
"""

from collections import deque
from collections.abc import Callable


class Reply:
    """The place of one answer, or of several that come together."""

    __slots__ = ("count", "frame")

    def __init__(self, count: int) -> None:
        self.count = count
        self.frame: bytes | None = None


class Replies:
    __slots__ = ("_count", "_owed", "_send")

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._owed: deque[Reply] = deque()
        self._count = 0

    def __len__(self) -> int:
        """The answers that are not sent yet."""
        return self._count

    def now(self, frame: bytes) -> None:
        """An answer that is there already. It goes out behind those that are owed before it."""
        if not self._owed:
            self._send(frame)
            return
        self.later().frame = frame

    def later(self, count: int = 1) -> Reply:
        """Keeps a place for so many answers that are yet to come, all at once."""
        reply = Reply(count)
        self._owed.append(reply)
        self._count += count
        return reply

    def withdraw(self, reply: Reply) -> None:
        """Nothing comes in the last place that was kept."""
        last = self._owed.pop()
        assert last is reply
        self._count -= reply.count

    def part(self, reply: Reply) -> list[Reply]:
        """A place for each of several answers in the place that was kept for all of them."""
        parts = [Reply(1) for _ in range(reply.count)]
        if reply in self._owed:
            at = self._owed.index(reply)
            self._owed.remove(reply)
            for number, each in enumerate(parts, at):
                self._owed.insert(number, each)
        return parts

    def give(self, reply: Reply, frame: bytes) -> None:
        """The answer has come: sends it, and what waited behind it, once it is first."""
        reply.frame = frame
        owed = self._owed
        while owed and (first := owed[0].frame) is not None:
            self._count -= owed.popleft().count
            self._send(first)

    def close(self) -> None:
        """Nothing is sent any more. It also lets go of whoever sent: a lost connection should not wait for a collection
        of garbage."""
        self._owed.clear()
        self._count = 0
        self._send = _drop


def _drop(frame: bytes) -> None:
    """An answer that nobody hears."""
