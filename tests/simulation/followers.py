"""Clients that stay: they watch topics by event streams, and publish and follow over WebSockets. Some read slowly."""

import asyncio
import json
from collections.abc import Callable
from random import Random
from typing import Any

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.uri import parse_uri

from tests.simulation.clients import Caller
from tests.simulation.network import Link, Lost
from tests.simulation.oracle import LogTruth
from topics_client.transport.http1 import ResponseParser

_TRANSIENT = ("throttled", "read_only", "shutting_down", "not_ready", "internal", "disk_full", "system_busy")
"""Codes with the meaning "not now" or "outcome unknown"."""
_FOR_S = (0.01, 0.05, 0.3)


async def watch(caller: Caller, topic: LogTruth, luck: Random) -> None:
    """Follows a topic from somewhere for a while, and goes away in the middle of it."""
    start, deleted_below = luck.choice((0, max(topic.values, default=0) // 2)), topic.deleted_below
    answer = await caller.ask("POST", "/v0/watch", {"topics": {topic.name: {"from_seq": start}}})
    if not answer.is_success:
        return
    link = caller.connect()
    assert isinstance(link, Link)
    link.send(f"GET /v0/watch/{json.loads(answer.content)['wid']} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
    link.hang_up_later(luck.choice(_FOR_S))
    parser, text = ResponseParser("GET"), b""
    try:
        while not parser.done:
            parser.feed(await link.receive())
            text += parser.take_body()
    except Lost:
        pass
    records = [pair for event in text.split(b"\n\n")[:-1] for pair in _records(event)]
    caller.note(f"watched {topic.name} from {start}: {records[:1]} to {records[-1:]}")
    topic.check_page(records, deleted_below)


def _records(event: bytes) -> list[tuple[int, int]]:
    lines = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line)
    if lines.get(b"event") != b"record":
        return []
    return [(record["$seq"], record["data"]) for record in json.loads(lines[b"data"])["records"]]


class Socket:
    """A WebSocket over a simulated connection."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._protocol = ClientProtocol(parse_uri("ws://127.0.0.1/v0/ws"))
        request = self._protocol.connect()
        assert isinstance(request, Request)
        self._protocol.send_request(request)
        self._flush()

    def say(self, command: dict[str, Any]) -> None:
        self._protocol.send_text(json.dumps(command).encode())
        self._flush()

    async def opened(self) -> bool:
        while self._protocol.state is State.CONNECTING:
            await self._read()
        return self._protocol.state is State.OPEN

    async def frames(self) -> list[dict[str, Any]]:
        """Yields the next frames."""
        while True:
            await self._read()
            found = [event for event in self._protocol.events_received() if isinstance(event, Frame)]
            texts = [json.loads(bytes(frame.data)) for frame in found if frame.opcode is Opcode.TEXT]
            if texts:
                return texts

    async def _read(self) -> None:
        self._protocol.receive_data(await self._link.receive())
        self._flush()
        if self._protocol.handshake_exc is not None:
            raise Lost

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._link.send(data)


async def talk(caller: Caller, logs: list[LogTruth], numbers: Callable[[], int], luck: Random) -> None:
    """Publishes to some topics and follows one, over one socket."""
    followed = luck.choice(logs)
    deleted_below = followed.deleted_below
    link = caller.connect()
    assert isinstance(link, Link)
    link.hang_up_later(luck.choice(_FOR_S))
    sent: dict[int, tuple[LogTruth, list[int]]] = {}
    records: list[tuple[int, int]] = []
    try:
        socket = Socket(link)
        if not await socket.opened():
            return
        for place in range(luck.choice((0, 1, 5))):
            topic, values = luck.choice(logs), [numbers() for _ in range(luck.choice((1, 3)))]
            topic.sending(values)
            sent[place] = (topic, values)
            body = {"records": [{"data": value} for value in values]}
            socket.say({"op": "publish", "topic": topic.name, "request_id": place, **body})
        socket.say({"op": "subscribe", "topic": followed.name, "from_seq": max(followed.values, default=0) // 2})
        while True:
            for frame in await socket.frames():
                records += _take(frame, sent, followed)
            await asyncio.sleep(luck.choice((0, 0, 0.01)))
    except Lost:
        caller.note(f"talked: {len(sent)} unanswered, followed {followed.name}: {records[:1]} to {records[-1:]}")
    followed.check_page(records, deleted_below)


def _take(
    frame: dict[str, Any], sent: dict[int, tuple[LogTruth, list[int]]], followed: LogTruth
) -> list[tuple[int, int]]:
    asked = frame.get("request_id")
    if frame["op"] == "ack":
        topic, values = sent.pop(frame["request_id"])
        topic.acked(values, frame["first_seq"])
    elif frame["op"] == "error" and asked in sent and frame["code"] not in _TRANSIENT:
        topic, values = sent.pop(asked)
        topic.refused(values)
    elif frame["op"] == "record" and frame["topic"] == followed.name:
        return [(record["$seq"], record["data"]) for record in frame["records"]]
    return []
