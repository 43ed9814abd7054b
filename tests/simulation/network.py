"""Connections between clients and the server of a simulation: bytes arrive in pieces, late, and in their order."""

import asyncio
from collections import deque
from random import Random
from typing import Any

from tests.simulation.machine import SimulatedLoop
from topics.http.server import HttpServer
from topics_client.transport.http1 import Response, ResponseParser

_HIGH_BYTES = 64 * 1024


class Lost(Exception):
    """The connection ended before the answer did: the outcome of the request is unknown."""


class ServerTransport(asyncio.Transport):
    """The server's end. Its output waits here until the client reads it."""

    def __init__(self, link: "Link") -> None:
        super().__init__()
        self._link = link
        self._high = _HIGH_BYTES
        self._paused = False
        self.reading = True
        self.closing = False
        self.unread = bytearray()

    def write(self, data: Any) -> None:
        if self.closing:
            return
        self.unread += data
        if not self._paused and len(self.unread) > self._high:
            self._paused = True
            self._link.protocol.pause_writing()
        self._link.wake()

    def take(self, most: int) -> bytes:
        """Returns the bytes that the client reads."""
        taken = bytes(self.unread[:most])
        del self.unread[:most]
        if self._paused and len(self.unread) <= self._high // 4:
            self._paused = False
            self._link.protocol.resume_writing()
        return taken

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self.unread)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self._link.pump()

    def is_reading(self) -> bool:
        return self.reading

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._link.ended_by_server()

    def close(self) -> None:
        self._link.ended_by_server()

    def abort(self) -> None:
        self.unread.clear()
        self._link.ended_by_server()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._link.protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default


class Link:
    """A client's connection: one request at a time. Clients that are not patient go away now and then."""

    def __init__(self, http: HttpServer, loop: SimulatedLoop, luck: Random, patient: bool) -> None:
        self._loop, self._luck, self._patient = loop, luck, patient
        self._sent: deque[bytes] = deque()
        self._pumping = False
        self._waiter: asyncio.Future[None] | None = None
        self.open = True
        self.protocol: Any = http.connection()
        self._transport = ServerTransport(self)
        self.protocol.connection_made(self._transport)

    async def ask(self, method: str, target: str, body: bytes | None, headers: str = "") -> Response:
        """Sends a request and waits for all of its answer."""
        length = "" if body is None else f"content-length: {len(body)}\r\n"
        self.send(f"{method} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}{length}\r\n".encode() + (body or b""))
        if not self._patient and self._luck.random() < 0.03:
            self._loop.call_later(self._luck.choice((0, 1, 5, 30)) / 1000, self.hang_up)
        parser = ResponseParser(method)
        while not parser.done:
            parser.feed(await self.receive())
        if not parser.keep_alive:
            self.hang_up()
        answer = parser.response
        assert answer is not None
        return Response(answer.status, answer.reason, answer.headers, parser.take_body())

    def hang_up(self) -> None:
        """The client goes away."""
        if self.open:
            self.open = False
            self._loop.call_soon(self._tell_lost)
            self.wake()

    def ended_by_server(self) -> None:
        if not self._transport.closing:
            self._transport.closing = True
            self._loop.call_soon(self._tell_lost)
            self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def pump(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._loop.call_later(self._luck.choice((0, 0, 0, 1, 3)) / 1000, self._deliver)

    def hang_up_later(self, seconds: float) -> None:
        """The client will not stay."""
        self._loop.call_later(seconds, self.hang_up)

    def send(self, data: bytes) -> None:
        while data:
            size = len(data) if self._luck.random() < 0.8 else self._luck.randrange(1, len(data) + 1)
            self._sent.append(data[:size])
            data = data[size:]
        self.pump()

    def _deliver(self) -> None:
        self._pumping = False
        if self._sent and self.open and self._transport.reading and not self._transport.closing:
            self.protocol.data_received(self._sent.popleft())
            if self._sent:
                self.pump()

    async def receive(self) -> bytes:
        """Returns some of the next bytes; raises `Lost` at the end."""
        while self.open and not self._transport.unread:
            if self._transport.closing:
                raise Lost
            self._waiter = self._loop.create_future()
            await self._waiter
        if not self.open:
            raise Lost
        if self._luck.random() < 0.05:
            await asyncio.sleep(self._luck.choice((0.001, 0.05, 0.4)))
        return self._transport.take(self._luck.choice((1 << 20, 1 << 20, 1000, 7)))

    def _tell_lost(self) -> None:
        protocol, self.protocol = self.protocol, _Nobody()
        self._transport.closing = True
        protocol.connection_lost(None)


class _Nobody(asyncio.Protocol):
    """Stands where the server's end was."""
