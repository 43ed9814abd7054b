"""Writes whose log does not answer, or that fail."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from tests.unit.timeless import run
from topics.api.app import Call
from topics.api.auth import ANYONE
from topics.api.v1.protocol import Deadlines
from topics.api.v1.writes import Writes
from topics.http.messages import Headers, RequestHead
from topics.streams.append import Appended
from topics.streams.streams import Streams


class SlowStreams:
    """Keeps a caller that asks."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def append(self, name: str, request: object, done: Any) -> None:
        self.waiting.append(done)


class Asked:
    """As much of a call as a handler that is refused touches."""

    def __init__(self) -> None:
        headers = Headers.of([(b"content-type", b"text/plain")])
        head = RequestHead("POST", b"", "/v1/stream/a", "", headers, "1.1", True)
        self.exchange = type("Exchange", (), {"head": head, "body": b"x", "large_body": None})
        self.topic = "a"
        self.key = ANYONE
        self.answers: list[tuple[int, bytes]] = []

    def finish(self, status: int, body: bytes, headers: object = (), content_type: str = "") -> None:
        self.answers.append((status, body))


class BrokenStreams:
    """Makes a mistake."""

    def append(self, name: str, request: object, done: Any) -> None:
        raise RuntimeError("a mistake")

    create = append


@pytest.mark.parametrize("what", ["append", "create"])
def test_a_write_that_fails_is_not_answered_a_second_time_when_its_time_is_over(what: str) -> None:
    async def play() -> None:
        call, writes = Asked(), Writes(Deadlines(5.0))
        deadlines = writes._deadlines = Deadlines(0.0)
        with pytest.raises(RuntimeError):
            getattr(writes, what)(cast(Call, call), cast(Streams, BrokenStreams()))
        later: list[str] = []
        deadlines.begin(lambda: later.append("over"))
        while not later:
            await asyncio.sleep(0.01)
        assert call.answers == []

    run(play())


def test_slow_append_gets_append_timeout_with_unknown_outcome() -> None:
    async def play() -> None:
        call, streams, writes = Asked(), SlowStreams(), Writes(Deadlines(5.0))
        writes._deadlines = Deadlines(0.0)
        writes.append(cast(Call, call), cast(Streams, streams))
        while not call.answers:
            await asyncio.sleep(0.01)
        streams.waiting[0](Appended("late"))
        ((status, body),) = call.answers
        assert status == 408
        assert msgspec.json.decode(body) == {
            "error": {
                "code": "append_timeout",
                "message": "append timed out; append outcome is unknown, check Stream-Next-Offset before retrying",
            }
        }

    run(play())
