"""Calls of webhooks that end badly, and their reported errors. Over https they are tried in tests/http/streams."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from topics.api.v1 import subscriptions
from topics.api.v1.subscriptions import WebhookCaller
from topics.streams.subscriptions.webhooks import NotTaken

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def answer_of(caller: WebhookCaller, url: str) -> Any:
    reported: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    caller.deliver(url, b"{}", "signature", reported.set_result)
    return await asyncio.wait_for(reported, 20)


def call(serve: Serve) -> tuple[Any, WebhookCaller]:
    """Calls a receiver with a scripted connection."""

    async def play() -> tuple[Any, WebhookCaller]:
        receiver = await asyncio.start_server(serve, "127.0.0.1", 0)
        caller = WebhookCaller(allow_loopback=True)
        async with receiver:
            port = receiver.sockets[0].getsockname()[1]
            reported = await answer_of(caller, f"http://127.0.0.1:{port}/hook")
            await caller.close()
        return reported, caller

    return asyncio.run(play())


def saying(answer: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    return serve


def body(text: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text)


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        (body(b'{"done": true}'), {"done": True}),
        (body(b""), {}),
        (body(b"not JSON"), {}),
        (b"HTTP/1.1 204 No Content\r\n\r\n", {}),
        (b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n", NotTaken("it answered 503")),
        (b"HTTP/1.1 302 Elsewhere\r\nlocation: /\r\ncontent-length: 0\r\n\r\n", NotTaken("it answered 302")),
        (body(b"x" * 70_000), NotTaken("its answer is too long")),
    ],
)
def test_an_answer_is_taken_or_reported_why_not(answer: bytes, reported: object) -> None:
    found, caller = call(saying(answer))
    assert found == reported
    assert (caller.calls, caller.failures) == (1, int(isinstance(reported, NotTaken)))


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nx"])
def test_a_receiver_that_does_not_speak_http_has_not_taken_the_call(answer: bytes) -> None:
    found, caller = call(saying(answer))
    assert isinstance(found, NotTaken) and found.reason
    assert (caller.calls, caller.failures) == (1, 1)


def test_a_receiver_that_states_nothing_has_not_taken_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "_TIMEOUT_S", 0.05)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    found, _ = call(serve)
    assert found == NotTaken("it did not answer within 0.05 s")


@pytest.mark.parametrize("url", ["https://10.0.0.1/", "http://[::1", "ftp://localhost/"])
def test_an_address_that_must_not_be_called_is_not(url: str) -> None:
    async def play() -> None:
        caller = WebhookCaller(allow_loopback=False)
        assert isinstance(await answer_of(caller, url), NotTaken)
        assert (caller.calls, caller.failures) == (1, 1)

    asyncio.run(play())
