"""The same clients against a real server: its own process, real sockets, real files."""

import asyncio
from collections.abc import Callable

from tests.simulation.clients import Caller
from tests.simulation.network import Lost
from topics_client.transport.http1 import Response, ResponseParser


class RealLine:
    """A connection over loopback, one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.open = True

    async def ask(self, method: str, target: str, body: bytes | None, headers: str = "") -> Response:
        length = "" if body is None else f"content-length: {len(body)}\r\n"
        head = f"{method} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}{length}\r\n"
        parser = ResponseParser(method)
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(head.encode() + (body or b""))
            while not parser.done:
                parser.feed(await reader.read(1 << 16))
        except OSError as error:
            raise Lost from error
        if not parser.keep_alive:
            self.hang_up()
        assert parser.response is not None
        answer = parser.response
        return Response(answer.status, answer.reason, answer.headers, parser.take_body())

    def hang_up(self) -> None:
        self.open = False
        if self._streams is not None:
            self._streams[1].transport.abort()


def real_caller(name: str, port: int, note: Callable[[str], None]) -> Caller:
    return Caller(name, lambda: RealLine(port), note)


async def wait_until_ready(caller: Caller) -> None:
    """Asks until the log is replayed; a server that never is fails the test by its own patience."""
    for _ in range(6_000):
        try:
            if (await caller.ask("GET", "/v0/ready")).status == 200:
                return
        except Lost:
            pass
        await asyncio.sleep(0.01)
    raise AssertionError("the server does not become ready")
