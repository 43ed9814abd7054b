"""An HTTP/2 client that sends any given frames.

It answers nothing by itself but what a test needs to go on: settings are acknowledged, and what is read is acknowledged
unless the test wants a client that does not read.
"""

import asyncio
import json
import struct
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple, cast

from hpack import Decoder, Encoder

from tests.http.protocol.support import Client, Loops, Site

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 0x3, 0x4

NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 0, 1, 3, 5, 6
REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 7, 8, 11

Fields = Iterable[tuple[str, str]]
GET = (":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "x")
POST = (":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "x")


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def number(self) -> int:
        """The last number in it: the code of a reset or of a goodbye, the bytes of a window."""
        return int(struct.unpack(">L", self.payload[-4:])[0])


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def frame(kind: int, flags: int = 0, stream_id: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">L", len(payload))[1:] + struct.pack(">BBL", kind, flags, stream_id) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, payload=b"".join(struct.pack(">HL", *pair) for pair in pairs))


def window(stream_id: int, nbytes: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, struct.pack(">L", nbytes))


def reset(stream_id: int, code: int = CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream_id, struct.pack(">L", code))


class Http2Client:
    """One connection, behind its preface."""

    def __init__(self, client: Client, *, reads: bool = True) -> None:
        self._client = client
        self._reads = reads
        self._encoder, self._decoder = Encoder(), Decoder()
        self._replies: dict[int, tuple[dict[str, str], list[bytes]]] = {}
        self._ended: set[int] = set()
        self.settings: dict[int, int] = {}
        self.resets: dict[int, int] = {}
        """The streams that the server has reset, and why."""
        self.goodbyes: list[Frame] = []
        self.pongs: list[bytes] = []
        self.received: dict[int, int] = {}
        """The bytes of bodies that came, by stream."""

    def send(self, *parts: bytes) -> None:
        self._client.send(*parts)

    def headers(self, stream_id: int, fields: Fields, *, ended: bool = True) -> bytes:
        flags = END_HEADERS | (END_STREAM if ended else 0)
        return frame(HEADERS, flags, stream_id, self.block(fields))

    def block(self, fields: Fields) -> bytes:
        return bytes(self._encoder.encode(list(fields)))

    def ask(self, stream_id: int, path: str = "/", *more: tuple[str, str], method: str = "GET") -> None:
        fields = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "x"), *more]
        self.send(self.headers(stream_id, fields))

    def post(self, stream_id: int, body: bytes, *more: tuple[str, str], length: bool = True) -> None:
        reported = [("content-length", str(len(body)))] if length else []
        self.send(self.headers(stream_id, [*POST, *reported, *more], ended=False))
        self.send(frame(DATA, END_STREAM, stream_id, body))

    async def answer(self, stream_id: int) -> Reply:
        """The whole answer of a stream."""
        while stream_id not in self._ended:
            assert stream_id not in self.resets, f"reset by {self.resets[stream_id]}"
            assert not [bye for bye in self.goodbyes if bye.number], self.goodbyes
            await self.read()
        headers, parts = self._replies[stream_id]
        return Reply(int(headers[":status"]), headers, b"".join(parts))

    def head(self, stream_id: int) -> dict[str, str]:
        return self._replies[stream_id][0]

    def body(self, stream_id: int) -> bytes:
        """Returns the body received so far."""
        return b"".join(self._replies[stream_id][1]) if stream_id in self._replies else b""

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            await self.read()

    async def read(self) -> Frame:
        """The next frame, which is taken notice of."""
        head = await self._client.reader.readexactly(9)
        kind, flags, stream_id = struct.unpack(">BBL", head[3:])
        payload = await self._client.reader.readexactly(int.from_bytes(head[:3], "big"))
        got = Frame(kind, flags, stream_id & 0x7FFFFFFF, payload)
        self._notice(got)
        return got

    def _notice(self, got: Frame) -> None:
        if got.kind == SETTINGS and not got.flags & ACK:
            self.settings.update(struct.iter_unpack(">HL", got.payload))
            self.send(frame(SETTINGS, ACK))
        elif got.kind == HEADERS:
            assert got.flags & END_HEADERS
            pairs = [(str(name), str(value)) for name, value in self._decoder.decode(got.payload)]
            assert len(dict(pairs)) == len(pairs), f"repeated headers: {pairs}"
            self._replies[got.stream_id] = dict(pairs), []
        elif got.kind == DATA:
            self._replies[got.stream_id][1].append(got.payload)
            self.received[got.stream_id] = self.received.get(got.stream_id, 0) + len(got.payload)
            if self._reads and got.payload:
                self.send(window(0, len(got.payload)), window(got.stream_id, len(got.payload)))
        elif got.kind == RST_STREAM:
            self.resets[got.stream_id] = got.number
        elif got.kind == GOAWAY:
            self.goodbyes.append(got)
        elif got.kind == PING and got.flags & ACK:
            self.pongs.append(got.payload)
        if got.kind in (HEADERS, DATA) and got.flags & END_STREAM:
            self._ended.add(got.stream_id)

    async def goodbye(self) -> int:
        """The code that the server ends the connection with, and its end."""
        try:
            while True:
                await self.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            return self.goodbyes[-1].number

    def listen(self, on: bool) -> None:
        """Reads incoming data, or leaves it in the socket."""
        # A cast and no check: the transports of uvloop do not derive from asyncio's classes.
        transport = cast(asyncio.Transport, self._client.writer.transport)
        (transport.resume_reading if on else transport.pause_reading)()

    async def settle(self) -> None:
        """Until the server has dealt with everything that was sent."""
        pongs = len(self.pongs)
        self.send(frame(PING, payload=b"settled?"))
        await self.until(lambda: len(self.pongs) > pongs)


async def connect(site: Site, *pairs: tuple[int, int], reads: bool = True) -> Http2Client:
    """A connection that has said hello."""
    client = Http2Client(await site.connect(), reads=reads)
    client.send(PREFACE, settings(*pairs))
    return client


def run(
    loops: Loops, scene: Callable[[Site, Http2Client], Coroutine[Any, Any, None]], *args: Any, **limits: Any
) -> None:
    """Runs a scene with a client that has said hello."""

    async def play(site: Site) -> None:
        await scene(site, await connect(site))

    loops.run(play, *args, **limits)
