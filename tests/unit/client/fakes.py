"""A server in a function, and one way to drive both clients with it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from topics.testing import ManualClock, SeededEntropy
from topics_client import AsyncClient, Client, ClientOptions, ConnectionFailed
from topics_client.transport.http1 import HttpRequest, Response

APPENDED = {
    "topic": "jobs", "first_seq": 1, "last_seq": 1, "seqs": [1], "head_seq": 1, "count": 1, "created": False,
    "deduped": False, "performance": {"server_total_ms": 0.5},
}  # fmt: skip


class Seen:
    """A request as the server sees it."""

    def __init__(self, request: HttpRequest) -> None:
        parts = urlsplit(request.target)
        self.method, self.target, self.path = request.method, request.target, parts.path
        self.query = dict(parse_qsl(parts.query))
        lines = [line.split(": ", 1) for line in request.headers.decode().splitlines()]
        self.headers = {name: value for name, value in lines}
        assert len(lines) == len(self.headers), "a header is sent twice"
        self.content = request.body or b""
        self.read_timeout_s = request.read_timeout_s


Outcome = Response | Exception
Handler = Callable[[Seen], Outcome]


def lost() -> ConnectionFailed:
    """The answer got lost."""
    return ConnectionFailed("the connection broke", maybe_done=True)


def unsent() -> ConnectionFailed:
    """The server was not there."""
    return ConnectionFailed("refused", maybe_done=False)


def plain(status: int, content: bytes = b"", headers: Mapping[str, str] | None = None) -> Response:
    return Response(status, "", headers or {}, content)


def answered(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return plain(status, msgspec.json.encode(body), headers)


def refused(
    status: int, code: str, detail: dict[str, object] | None = None, headers: dict[str, str] | None = None
) -> Response:
    return answered({"error": {"code": code, "message": "no", "detail": detail}}, status, headers)


class Script:
    """Plays outcomes one after the other and records its requests."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._outcomes = list(outcomes)
        self.requests: list[Seen] = []

    def __call__(self, request: Seen) -> Outcome:
        self.requests.append(request)
        return self._outcomes.pop(0)

    @property
    def exhausted(self) -> bool:
        return not self._outcomes


def _answer(handler: Handler, request: HttpRequest) -> Response:
    outcome = handler(Seen(request))
    # A script may play the same one for several tries and tests, and a client may change it.
    if isinstance(outcome, ConnectionFailed):
        raise ConnectionFailed(str(outcome), maybe_done=outcome.maybe_done)
    if isinstance(outcome, Exception):
        raise outcome
    return Response(outcome.status, outcome.reason, outcome.headers, outcome.content)


class FakeBody:
    """A body that comes at once, and then ends."""

    def __init__(self, response: Response) -> None:
        self._content = response.content
        self.response = Response(response.status, response.reason, response.headers)

    def read(self) -> bytes:
        content, self._content = self._content, b""
        return content

    def abort(self) -> None: ...

    def close(self) -> None: ...


class AsyncFakeBody:
    def __init__(self, response: Response) -> None:
        self._body = FakeBody(response)
        self.response = self._body.response

    async def read(self) -> bytes:
        return self._body.read()

    def abort(self) -> None: ...

    async def aclose(self) -> None: ...


class FakeTransport:
    def __init__(self, handler: Handler) -> None:
        self.closed = False
        self._handler = handler

    def send(self, request: HttpRequest) -> Response:
        return _answer(self._handler, request)

    def open(self, request: HttpRequest) -> FakeBody:
        return FakeBody(_answer(self._handler, request))

    def close(self) -> None:
        self.closed = True


class AsyncFakeTransport:
    def __init__(self, handler: Handler) -> None:
        self.closed = False
        self._handler = handler

    async def send(self, request: HttpRequest) -> Response:
        return _answer(self._handler, request)

    async def open(self, request: HttpRequest) -> AsyncFakeBody:
        return AsyncFakeBody(_answer(self._handler, request))

    async def aclose(self) -> None:
        self.closed = True


class Driver:
    """A client of either kind in front of a handler, with time that passes only while it sleeps."""

    def __init__(self, kind: str, handler: Handler, options: ClientOptions | None = None) -> None:
        self._kind = kind
        self._handler = handler
        self._options = options
        self.clock = ManualClock()
        self.entropy = SeededEntropy(7)
        self.sleeps: list[float] = []

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if self._kind == "sync":
            with self.client() as client:
                return getattr(client, name)(*args, **kwargs)

        async def call() -> Any:
            async with self.async_client() as client:
                return await getattr(client, name)(*args, **kwargs)

        return asyncio.run(call())

    def collect(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Everything an iterator of the client gives, until it ends."""
        if self._kind == "sync":
            with self.client() as client:
                items: Iterator[Any] = getattr(client, name)(*args, **kwargs)
                return list(items)

        async def collect() -> list[Any]:
            async with self.async_client() as client:
                items: AsyncIterator[Any] = getattr(client, name)(*args, **kwargs)
                return [item async for item in items]

        return asyncio.run(collect())

    def client(self) -> Client:
        return Client(
            "http://server.test", api_key="secret", options=self._options, transport=FakeTransport(self._handler),
            clock=self.clock, entropy=self.entropy, sleep=self._sleep,
        )  # fmt: skip

    def async_client(self) -> AsyncClient:
        async def sleep(seconds: float) -> None:
            self._sleep(seconds)

        return AsyncClient(
            "http://server.test", api_key="secret", options=self._options, transport=AsyncFakeTransport(self._handler),
            clock=self.clock, entropy=self.entropy, sleep=sleep,
        )  # fmt: skip

    def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.clock.advance(round(seconds * 1000))
