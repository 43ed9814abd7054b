"""A connection without a network: bytes go in cut exactly as a test wants them, which no socket promises."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from tests.http.protocol.support import App
from topics.http import HttpLimits
from topics.http.h1.connection import Connection
from topics.http.server_state import ServerState
from topics.testing import ManualClock


class Wire(asyncio.Transport):
    """A transport that records its output and always has room. Once it has reported its end, it fails every call that
    the transports of asyncio or uvloop may fail then."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.writes: list[bytes] = []
        self.reading = True
        self.ended = False
        self.closing = False
        self.lost = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol

    def write(self, data: Any) -> None:
        assert not self.ended and not self.lost
        self.writes.append(bytes(data))

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        assert not self.lost
        self.ended = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        assert not self.lost
        self.closing = True

    def abort(self) -> None:
        assert not self.lost
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert not self.lost

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.1", 1234) if name == "peername" else default

    def lose(self) -> None:
        if not self.lost:
            self.closing = True
            self.protocol.connection_lost(None)
            self.lost = True
            del self.protocol


class Turns(ServerState):
    """A server_state without a loop: deferred calls wait until the test goes on."""

    def __init__(self, app: App, limits: HttpLimits, clock: ManualClock) -> None:
        self.put_off: deque[Callable[[], None]] = deque()
        super().__init__(app, limits, clock, self.put_off.append)


class Memory:
    """A server with one connection, and the client's end of it."""

    def __init__(self, app: App, **limits: Any) -> None:
        self.app = app
        self.clock = ManualClock()
        self.server_state = Turns(app, HttpLimits(**limits), self.clock)
        self.connection = Connection(self.server_state)
        self.wire = Wire(self.connection)
        self._unread: deque[bytes] = deque()
        self.connection.connection_made(self.wire)

    def send(self, *parts: bytes) -> None:
        """Hands the parts over one by one, as far as the server reads."""
        self._unread.extend(part for part in parts if part)
        self.deliver()

    def deliver(self) -> None:
        """Goes on handing over, after the server has made room."""
        while not self.wire.closing:
            if self.server_state.put_off:
                self.server_state.put_off.popleft()()
            elif self._unread and self.wire.reading:
                self.wire.protocol.data_received(self._unread.popleft())
            else:
                break

    @property
    def answered(self) -> bytes:
        return b"".join(self.wire.writes)

    def leave(self) -> None:
        """Stops sending, and gives the server all the time it could want. It must let go of the connection."""
        if not self.wire.closing and not self.wire.protocol.eof_received():
            self.wire.close()
        for _ in range(4):
            for connection in tuple(self.server_state.connections):
                connection.sweep(self.clock.monotonic())
            self.clock.advance(100_000)
        assert self.wire.closing, "the connection never ends"
        self.wire.lose()
        assert self.server_state.connections == set()
        assert self.server_state.counters.connections_open == 0
        assert self.server_state.budget.held_bytes == 0


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """`data` in pieces, cut at these places."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]
