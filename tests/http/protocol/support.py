"""A separate server for each test, on a loop of either kind, and a client that sends bytes.

The client is on the same loop and writes any given bytes, because most of the tested input would never be sent by a
correct client library.
"""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import pytest
import uvloop

from topics.http import Exchange, HttpError, HttpLimits, HttpServer, Refusal, RequestHead
from topics.http.exchange import BatchHandler
from topics.system.clock import Clock

# Far longer than any test; it only turns a hang into a failure.
GUARD_S = 10.0

Handler = Callable[[Exchange], None]


class Reply(NamedTuple):
    """One answer, taken apart."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class App:
    """An application that records its requests, or runs a test's handler."""

    def __init__(self, handler: Handler | None = None, admit: Callable[[RequestHead], int | Refusal] | None = None):
        self._handler = handler
        self._admit = admit
        self.admitted: list[RequestHead] = []
        """New heads: a head that is known by its bytes has its context already."""
        self.exchanges: list[Exchange] = []
        self.refusals: list[HttpError] = []
        self.gather: BatchHandler | None = None

    @property
    def admission(self) -> object:
        """Another one each time: it wants to be asked about every request."""
        return object()

    def admit(self, head: RequestHead) -> int | Refusal:
        if head.context is None:
            self.admitted.append(head)
            head.context = "found"
        return 1_000_000 if self._admit is None else self._admit(head)

    def batch_handler(self, head: RequestHead) -> BatchHandler | None:
        return self.gather

    def handle(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        (self._handler or echo)(exchange)

    def refuse(self, error: HttpError, path: str) -> Refusal:
        self.refusals.append(error)
        return Refusal(error.status, json.dumps({"code": error.code, "message": error.message}).encode())


class Gathering(App):
    """An application whose decisions hold, and which takes requests with a known head together; otherwise the same."""

    admission: object = "for good"

    def __init__(self, handler: Handler | None = None) -> None:
        super().__init__(handler)
        self.gather = self._gather
        self.gathered: list[int] = []
        """How many were taken at a time."""

    def _gather(self, exchanges: Sequence[Exchange], nbytes: int) -> bool:
        assert {len(exchange.body) for exchange in exchanges} == {nbytes}
        self.gathered.append(len(exchanges))
        for exchange in exchanges:
            self.handle(exchange)
        return True


def echo(exchange: Exchange) -> None:
    head = exchange.head
    seen = {"method": head.method, "path": head.path, "query": head.query, "body": exchange.body.decode("latin-1")}
    exchange.respond(200, json.dumps(seen).encode())


def keep(exchange: Exchange) -> None:
    """Leaves the answer to the test, and the exchange when the client leaves."""
    exchange.on_disconnect(lambda: None)


class Client:
    """One connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def answer(self, *, to_head: bool = False) -> Reply:
        """The next answer; `to_head` for the answer to HEAD, which announces a body and has none."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        status, headers = _split_head(head)
        if to_head or status in (100, 204, 304):
            return Reply(status, headers, b"")
        return Reply(status, headers, await self.reader.readexactly(int(headers["content-length"])))

    async def ask(self, *parts: bytes) -> Reply:
        self.send(*parts)
        return await self.answer()

    async def rest(self) -> bytes:
        """Everything until the server closes its side."""
        return await self.reader.read()

    async def ended(self) -> None:
        """Waits for the end of the connection, whichever way it comes."""
        try:
            assert await self.reader.read() == b""
        except ConnectionError:
            pass

    def abort(self) -> None:
        """Goes away at once, as a killed process does."""
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


class Site:
    """A running server and its application."""

    def __init__(self, app: App, server: HttpServer, port: int) -> None:
        self.app = app
        self.server = server
        self.port = port
        self._clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**24))
        self._clients.append(client)
        return client

    async def ask(self, *parts: bytes) -> Reply:
        """One request on its own connection."""
        client = await self.connect()
        reply = await client.ask(*parts)
        client.close()
        return reply

    async def say(self, *parts: bytes) -> bytes:
        """Returns everything that the server sends for these bytes before it closes."""
        client = await self.connect()
        client.send(*parts)
        return await client.rest()

    async def exchange(self, count: int = 1) -> Exchange:
        """The exchange that makes `count` of them, once the application has it."""
        await until(lambda: len(self.app.exchanges) >= count)
        return self.app.exchanges[count - 1]

    def abort(self) -> None:
        for client in self._clients:
            client.abort()

    async def leave(self) -> None:
        self.abort()
        await until(lambda: self.server.counters.connections_open == 0)


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until something is so."""
    while not condition():
        await asyncio.sleep(0.001)


class Loops:
    """Runs scenes on one kind of loop."""

    def __init__(self, kind: str, caplog: pytest.LogCaptureFixture) -> None:
        self._kind = kind
        self._caplog = caplog

    def run(
        self,
        scene: Callable[[Site], Awaitable[None]],
        app: App | None = None,
        clock: Clock | None = None,
        *,
        logs: tuple[str, ...] = (),
        **limits: Any,
    ) -> None:
        """Runs a scene against a server with these limits, and checks that it left nothing behind: no connection, no
        body bytes, no exception in the loop and no line in the log but `logs`."""
        unhandled: list[dict[str, Any]] = []

        async def play() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
            served = app or App()
            server = HttpServer(served, HttpLimits(**limits), clock)
            [(_, port)] = await server.start("127.0.0.1", 0)
            site = Site(served, server, port)
            try:
                async with asyncio.timeout(GUARD_S):
                    await scene(site)
                    await site.leave()
                    assert server.connections == frozenset()
                    assert server.held_body_bytes == 0
                    assert await server.drain(GUARD_S)
            finally:
                # After a failure: open connections would fail the next test, or keep the loop from closing.
                site.abort()
                await server.drain(0)
                await asyncio.sleep(0)

        self.main(play())
        assert unhandled == []
        assert [record.message for record in self._caplog.records if record.levelname != "DEBUG"] == list(logs)

    def main(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self._kind == "uvloop":
            uvloop.run(coroutine)
        else:
            asyncio.run(coroutine)


def get(path: str, *headers: str, version: str = "1.1", method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", "host: x", *headers, "", ""]).encode("latin-1")


def post(path: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    return get(path, *headers, f"content-length: {len(body)}", version=version, method="POST") + body


def chunked(path: str, *chunks: bytes, headers: tuple[str, ...] = (), trailer: bytes = b"") -> bytes:
    head = get(path, *headers, "transfer-encoding: chunked", method="POST")
    framed = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks if chunk]
    return head + b"".join(framed) + b"0\r\n" + trailer + b"\r\n"


def gzipped(path: str, body: bytes) -> bytes:
    return post(path, gzip.compress(body), "content-encoding: gzip")


def split_answers(stream: bytes) -> list[Reply]:
    """The answers in `stream`, all of them with a length; answers of status 100 are passed over."""
    replies = []
    while stream:
        head, _, stream = stream.partition(b"\r\n\r\n")
        status, headers = _split_head(head)
        length = int(headers.get("content-length", 0))
        if status != 100:
            replies.append(Reply(status, headers, stream[:length]))
        stream = stream[length:]
    return replies


def _split_head(head: bytes) -> tuple[int, dict[str, str]]:
    status, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        assert name == name.lower() and name not in headers, f"bad or repeated header {line!r}"
        headers[name] = value
    return int(status.split()[1]), headers
