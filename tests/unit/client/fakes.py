"""A server in a function, and one way to drive both clients with it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import httpx
import msgspec

from topics.client import AsyncClient, Client, ClientOptions
from topics.testing import ManualClock, SeededDice

APPENDED = {
    "topic": "jobs", "first_seq": 1, "last_seq": 1, "seqs": [1], "head_seq": 1, "count": 1, "created": False,
    "deduped": False, "performance": {"server_total_ms": 0.5},
}  # fmt: skip

Outcome = httpx.Response | Exception
Handler = Callable[[httpx.Request], Outcome]


def answered(body: object, status: int = 200, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.Response(status, content=msgspec.json.encode(body), headers=headers)


def refused(
    status: int, code: str, detail: dict[str, object] | None = None, headers: dict[str, str] | None = None
) -> httpx.Response:
    return answered({"error": {"code": code, "message": "no", "detail": detail}}, status, headers)


class Script:
    """Plays outcomes one after the other and remembers what it was asked."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._outcomes = list(outcomes)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> Outcome:
        self.requests.append(request)
        return self._outcomes.pop(0)

    @property
    def exhausted(self) -> bool:
        return not self._outcomes


class Driver:
    """A client of either kind in front of a handler, with time that passes only while it sleeps."""

    def __init__(self, kind: str, handler: Handler, options: ClientOptions | None = None) -> None:
        self._kind = kind
        self._handler = handler
        self._options = options
        self.clock = ManualClock()
        self.dice = SeededDice(7)
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
            "http://server.test", api_key="secret", options=self._options, transport=httpx.MockTransport(self._handle),
            clock=self.clock, dice=self.dice, sleep=self._sleep,
        )  # fmt: skip

    def async_client(self) -> AsyncClient:
        async def sleep(seconds: float) -> None:
            self._sleep(seconds)

        return AsyncClient(
            "http://server.test", api_key="secret", options=self._options, transport=httpx.MockTransport(self._handle),
            clock=self.clock, dice=self.dice, sleep=sleep,
        )  # fmt: skip

    def _handle(self, request: httpx.Request) -> httpx.Response:
        outcome = self._handler(request)
        if isinstance(outcome, Exception):
            raise outcome
        # A response can be read once, and a script may play the same one for several tries and tests.
        return httpx.Response(outcome.status_code, content=outcome.content, headers=outcome.headers)

    def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.clock.advance(round(seconds * 1000))
