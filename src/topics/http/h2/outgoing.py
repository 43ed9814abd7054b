"""What the streams of a connection have yet to send, and whose turn it is: a frame each, as far as the client lets
them.

A stream that may not send, because its window or the connection's is used up, waits aside until the client opens it.
"""

from collections import deque
from typing import Protocol

from topics.http.h2.frames import FRAME_BYTES_MAX
from topics.http.h2.session import Session


class Outgoing:
    """The bytes of one answer that are not sent yet."""

    __slots__ = ("_parts", "ended", "nbytes")

    def __init__(self) -> None:
        self._parts: deque[bytes | memoryview] = deque()
        self.nbytes = 0
        # Whether nothing will be added any more.
        self.ended = False

    def add(self, part: bytes) -> None:
        if part:
            self._parts.append(part)
            self.nbytes += len(part)

    def take(self, most: int) -> bytes | memoryview:
        """The next bytes: of one part as they lie there, of many short ones together."""
        taken: list[bytes | memoryview] = []
        room = min(most, self.nbytes)
        self.nbytes -= room
        while room:
            part = self._parts.popleft()
            if len(part) > room:
                view = memoryview(part)
                self._parts.appendleft(view[room:])
                part = view[:room]
            room -= len(part)
            taken.append(part)
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def clear(self) -> None:
        self._parts.clear()
        self.nbytes = 0


class Sender(Protocol):
    """A stream, as seen from here."""

    @property
    def stream_id(self) -> int: ...

    @property
    def out(self) -> Outgoing: ...

    def sent(self, nbytes: int) -> None:
        """So much of it is on its way; with the last of it the stream is at its end."""
        ...


class Outbox:
    """The streams that have something to send."""

    __slots__ = ("_aside", "_ready", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        # In the order of their turns: a dictionary, so that each is in it once and can leave it.
        self._ready: dict[Sender, None] = {}
        self._aside: dict[Sender, None] = {}

    def add(self, stream: Sender) -> None:
        if stream not in self._aside:
            self._ready[stream] = None

    def discard(self, stream: Sender) -> None:
        self._ready.pop(stream, None)
        self._aside.pop(stream, None)

    def opened(self) -> None:
        """The client lets more be sent: on one stream, or on all."""
        self._ready.update(self._aside)
        self._aside.clear()

    def step(self) -> int:
        """Sends the next frame; how many bytes it has with its head, 0 when nobody can send."""
        session = self._session
        while self._ready:
            stream = next(iter(self._ready))
            del self._ready[stream]
            out = stream.out
            window = session.local_flow_control_window(stream.stream_id) if out.nbytes else 0
            if out.nbytes and window <= 0:
                self._aside[stream] = None
                continue
            part = out.take(min(window, FRAME_BYTES_MAX))
            ended = out.ended and not out.nbytes
            if not part and not ended:
                continue
            session.send_data(stream.stream_id, part, end_stream=ended)
            if out.nbytes:
                self._ready[stream] = None
            stream.sent(len(part))
            return len(part) + 9
        return 0
