"""A socket's session in one process with its server: its state after the end, and the permission to open one."""

import asyncio
import gc
import json
from typing import Any

import pytest

from tests.http.protocol.memory import Wire
from tests.http.protocol.websockets import HANDSHAKE, TEXT, closing, frame, split_frames
from topics.api import chunked_response
from topics.api.app import Api
from topics.api.auth import KeyRing
from topics.api.live import Live, LiveLimits
from topics.api.operator_routes import OpsHandlers
from topics.api.v0.websocket import Session
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.http import HttpLimits, WebSocket
from topics.http.h1.connection import Connection
from topics.http.server_state import ServerState
from topics.model.limits import Limits
from topics.model.records import check_each
from topics.model.settings import Settings
from topics.server import stream_routes
from topics.system.clock import SystemClock
from topics.testing import FakeDisk, SeededEntropy


class Site:
    """A server without a port, on the running loop."""

    def __init__(self, keys: str = "", limits: Limits | None = None) -> None:
        clock, ring = SystemClock(), KeyRing.parse(keys)
        self.keys = ring
        options = EngineOptions(data_dir="data", wal_shards=1, limits=limits or Limits())
        self.engine = Engine.recover(FakeDisk(), options, clock, SeededEntropy(1), boot_id="a")
        self.engine.start(asyncio.get_running_loop())
        operations = OpsHandlers(clock, stream_routes(Settings()))
        self.live = Live(LiveLimits(), ring, clock, SeededEntropy(2))
        self.live.open(self.engine)
        self.api = operations.api = Api(operations.routes(), ring, clock, 10**6, 0, self.live)
        self.api.engine = self.engine
        self.server_state = ServerState(self.api, HttpLimits(), clock)

    def open(self, *headers: bytes) -> Wire:
        connection = Connection(self.server_state)
        wire = Wire(connection)
        connection.connection_made(wire)
        wire.protocol.data_received(
            HANDSHAKE.replace(b"/ws", b"/v0/ws").replace(b"host:", b"".join(headers) + b"host:")
        )
        assert isinstance(wire.protocol, WebSocket)
        return wire


def ops(wire: Wire) -> list[str]:
    stream = b"".join(wire.writes).partition(b"\r\n\r\n")[2]
    return [json.loads(one.data)["op"] for one in split_frames(stream) if one.opcode == TEXT]


def say(wire: Wire, **command: object) -> None:
    wire.protocol.data_received(frame(TEXT, json.dumps(command).encode()))


async def until(wire: Wire, *expected: str) -> None:
    async with asyncio.timeout(30.0):
        while not set(expected) <= set(ops(wire)):
            await asyncio.sleep(0.001)


def alive() -> set[int]:
    return {id(one) for one in gc.get_objects() if isinstance(one, Session | WebSocket)}


@pytest.mark.parametrize("ending", ["lost", "closed", "stopped", "lost with a publish under way"])
def test_a_session_that_is_over_leaves_nothing_behind(ending: str) -> None:
    async def scene() -> None:
        site = Site()
        wire = site.open()
        say(wire, op="publish", topic="t", records=[{"data": 1}])
        await until(wire, "ack")
        say(wire, op="subscribe", topic="t")
        await until(wire, "record", "caught_up")
        assert (site.live.connections.open, len(site.live.feeds), len(site.api.waits)) == (1, 1, 1)
        if ending == "closed":
            wire.protocol.data_received(closing())
        elif ending == "stopped":
            site.api.drain()
            assert ops(wire)[-1] == "error"
        elif ending != "lost":
            say(wire, op="publish", topic="t", records=[{"data": 2}])
        wire.lose()
        del wire
        assert (site.live.connections.open, len(site.live.feeds), len(site.api.waits)) == (0, 0, 0)
        assert (len(site.live.sweep), site.server_state.connections) == (0, set())
        await asyncio.sleep(0.05)
        await site.engine.close()
        assert alive() - before == set(), "it waits for a collection of garbage"

    gc.collect()
    # Of other tests in this process, which keep theirs.
    before = alive()
    gc.disable()
    try:
        asyncio.run(scene())
    finally:
        gc.enable()


def test_a_publish_of_many_records_is_checked_in_turns_and_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []

    async def scene() -> None:
        site = Site()
        wire, turn, loop = site.open(), 0, asyncio.get_running_loop()

        def tick() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(tick)

        def check(*args: Any) -> None:
            turns.append(turn)
            check_each(*args)

        monkeypatch.setattr(chunked_response, "check_each", check)
        loop.call_soon(tick)
        say(wire, op="publish", topic="t", records=[{"data": 1, "meta": {"a": 1}}] * 10_000, request_id="many")
        say(wire, op="publish", topic="t", records=[{"data": 2}], request_id="one")
        say(wire, op="publish", topic="t", records=[{"data": 2, "meta": 1}] * 600, request_id="wrong")
        say(wire, op="ping", request_id="last")
        await until(wire, "pong")
        answers = [json.loads(one.data) for one in split_frames(b"".join(wire.writes).partition(b"\r\n\r\n")[2])]
        assert [answer["request_id"] for answer in answers] == ["many", "one", "wrong", "last"]
        assert [answer.get("first_seq") for answer in answers] == [1, 10_001, None, None]
        assert answers[2]["code"] == "invalid_request"
        wire.lose()
        await site.engine.close()

    asyncio.run(scene())
    assert len(turns) == 21, "20 portions, and one that is refused"
    assert len(set(turns)) == len(turns)
