"""`python -m bench.live --races`: how soon a record arrives at a follower that begins while it is written.

Thousands of times, one at a time on an otherwise idle server, an append and the beginning of a watch, of a subscription
or of a long poll meet: one is sent a random moment of up to two milliseconds before the other. The time runs from the
later of the two until the record is there, so it holds everything that the later one costs. A wake-up that is lost is
seen as a race that waits for a heartbeat, for the end of the poll, or for ever; the last ends the run.
"""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rich.console import Console

from bench.load import Usage
from bench.peers import OURS, Running, own_cores, running
from bench.report import Sheet

WANTED_MS = 50.0
_APART_S = 0.002
_HANG_S = 30.0
_HEARTBEAT_MS = 10_000
_METHOD = """\
An append and the beginning of a watch, a subscription or a long poll meet on an otherwise idle server, one race at a
time, the first of the two up to two milliseconds before the other, at random. The time runs from the later of the two,
when a Python client sends it, until that client has the record. Topics are of class `disk`."""


@dataclass
class Races:
    """The durations of the races of one way to follow, in milliseconds."""

    title: str
    waits_ms: list[float] = field(default_factory=list)

    def at(self, part: float) -> float:
        ordered = sorted(self.waits_ms)
        return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


class Connection:
    """A connection that sends given bytes and waits for others."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str) -> "Connection":
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def send(self, data: bytes) -> float:
        """Sends bytes; returns the time of sending."""
        self._writer.write(data)
        return time.perf_counter()

    def request(self, method: str, path: str, body: object = None) -> float:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return self.send(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)

    async def answer(self) -> dict[str, object]:
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        found: dict[str, object] = json.loads(await self._reader.readexactly(length))
        assert head.split(b" ", 2)[1] in (b"200", b"201"), found
        return found

    async def ask(self, method: str, path: str, body: object = None) -> dict[str, object]:
        self.request(method, path, body)
        return await self.answer()

    async def until(self, word: bytes) -> float:
        """Returns the time at which a text arrived; discards the input before it."""
        seen = b""
        while word not in seen:
            more = await self._reader.read(65536)
            if not more:
                raise RuntimeError(f"the connection ended: {seen[-500:]!r}")
            seen = seen[-len(word) :] + more
        return time.perf_counter()

    def close(self) -> None:
        self._writer.close()


class Course:
    """A topic for the races, with its writer and a function that makes sessions."""

    def __init__(self, address: str, maker: Connection, writer: Connection) -> None:
        self.address = address
        self.maker = maker
        self.writer = writer
        self._rng = random.Random(1)
        self._socket: Connection | None = None
        self._number = 0

    async def race(self, begin: Callable[[], float], came: Callable[[bytes], Awaitable[float]]) -> float:
        """Milliseconds from the later of an append and of `begin` until the record came."""
        self._number += 1
        word = f"~{self._number}~"
        record = {"records": [{"data": word}]}
        both: list[Callable[[], float]] = [
            begin,
            lambda: self.writer.request("POST", "/v0/topics/races?return_seqs=false", record),
        ]
        self._rng.shuffle(both)
        both[0]()
        apart = self._rng.choice([0.0, _APART_S]) * self._rng.random()
        if apart:
            await asyncio.sleep(apart)
        later = both[1]()
        arrived = await came(word.encode())
        await self.writer.answer()
        return (arrived - later) * 1000.0

    async def by_event_stream(self) -> float:
        body = {"topics": {"races": {"tail": True}}, "heartbeat_ms": _HEARTBEAT_MS}
        session = await self.maker.ask("POST", "/v0/watch", body)
        stream = await Connection.open(self.address)
        try:
            return await self.race(lambda: stream.request("GET", str(session["stream_url"])), stream.until)
        finally:
            stream.close()

    async def by_socket(self) -> float:
        if self._socket is None:
            self._socket = await Connection.open(self.address)
            self._socket.send(
                b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            await self._socket.until(b"\r\n\r\n")
        head = await self._head()
        socket, command = self._socket, {"op": "subscribe", "topic": "races", "from_seq": head}
        took = await self.race(lambda: socket.send(text_frame(command)), socket.until)
        socket.send(text_frame({"op": "unsubscribe", "topic": "races"}))
        await socket.until(b"unsubscribed")
        return took

    async def by_long_poll(self) -> float:
        body = {"from_seq": await self._head(), "wait_ms": 20_000}
        took = await self.race(lambda: self.maker.request("POST", "/v0/topics/races/diff", body), self.maker.until)
        return took

    async def _head(self) -> int:
        found = await self.writer.ask("GET", "/v0/topics/races")
        assert isinstance(found["head_seq"], int)
        return found["head_seq"]


WAYS: dict[str, Callable[[Course], Awaitable[float]]] = {
    "a watch's event stream": Course.by_event_stream,
    "a subscription of a WebSocket": Course.by_socket,
    "a long poll": Course.by_long_poll,
}


def text_frame(message: object) -> bytes:
    """A WebSocket message of a client. Its mask is all zeros, which leaves the payload as it is."""
    payload = json.dumps(message).encode()
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + size.to_bytes(2, "big")
    return b"\x81" + length + bytes(4) + payload


async def hold(target: Running, count: int) -> list[Races]:
    """Runs all races of all ways, one after the other."""
    maker, writer = await Connection.open(target.address), await Connection.open(target.address)
    course = Course(target.address, maker, writer)
    await writer.ask("PUT", "/v0/topics/races", {"durability": "disk"})
    found = []
    for title, way in WAYS.items():
        races = Races(title)
        for _ in range(count):
            async with asyncio.timeout(_HANG_S):
                races.waits_ms.append(await way(course))
        found.append(races)
    maker.close()
    writer.close()
    return found


def run(count: int, console: Console, machine: str) -> str:
    """Runs the races, prints their durations, and returns the text of the report."""
    with running(OURS["disk"], own_cores()[0]) as target:
        before, begun = Usage(target.pid), time.monotonic()
        found = asyncio.run(hold(target, count))
        others = (Usage(target.pid).others - before.others) / (time.monotonic() - begun)
    sheet = Sheet(console)
    sheet.paragraph(f"Measured with `python -m bench.live --races` on {machine}.")
    sheet.paragraph(_METHOD)
    rows = [
        [
            races.title, f"{len(races.waits_ms):,}", *(f"{races.at(part):.2f}" for part in (0.5, 0.99, 0.999, 1.0)),
            "met" if races.at(1.0) < WANTED_MS else "missed",
        ]
        for races in found
    ]  # fmt: skip
    head = ["beginning of", "races", "p50", "p99", "p99.9", "max", f"all under {WANTED_MS:.0f} ms"]
    sheet.table("A write and whoever begins to follow, milliseconds", head, rows)
    sheet.noise([others])
    return sheet.text
