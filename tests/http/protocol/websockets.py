"""WebSockets for tests: a receiver that records its frames, and a peer that sends any given bytes."""

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.http.protocol.support import App, Client, Site
from topics.http import Exchange, HandshakeError, WebSocket, read_handshake, text_frame
from topics.http.messages import HttpError
from topics.http.request_body import LargeBody

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


class Heard(NamedTuple):
    """One frame of the server."""

    opcode: int
    data: bytes
    fin: bool = True

    @property
    def code(self) -> int:
        """The code of a close frame."""
        assert self.opcode == CLOSE
        (code,) = struct.unpack("!H", self.data[:2])
        return int(code)


def frame(opcode: int, data: bytes = b"", *, fin: bool = True, masked: bool = True, rsv: int = 0) -> bytes:
    """A frame of a client, right or wrong."""
    head = bytes(((fin << 7) | (rsv << 4) | opcode,))
    flag = 0x80 if masked else 0
    if len(data) < 126:
        head += bytes((flag | len(data),))
    elif len(data) < 65536:
        head += bytes((flag | 126,)) + struct.pack("!H", len(data))
    else:
        head += bytes((flag | 127,)) + struct.pack("!Q", len(data))
    if not masked:
        return head + data
    mask = b"\x11\x22\x33\x44"
    whole = (mask * (len(data) // 4 + 1))[: len(data)]
    return head + mask + (int.from_bytes(data, "big") ^ int.from_bytes(whole, "big")).to_bytes(len(data), "big")


def closing(code: int = 1000, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack("!H", code) + reason)


def split_frames(stream: bytes) -> list[Heard]:
    """The frames of a server, all of them whole."""
    heard = []
    while stream:
        first, second = stream[0], stream[1]
        assert not first & 0x70 and not second & 0x80
        length, at = second, 2
        if length == 126:
            length, at = struct.unpack("!H", stream[2:4])[0], 4
        elif length == 127:
            length, at = struct.unpack("!Q", stream[2:10])[0], 10
        assert len(stream) >= at + length, "a frame is cut off"
        heard.append(Heard(first & 0xF, stream[at : at + length], bool(first & 0x80)))
        stream = stream[at + length :]
    return heard


class Recorder:
    """Records its input. A text is answered with itself, unless a test wants otherwise."""

    def __init__(self, socket: WebSocket) -> None:
        self.socket = socket
        self.texts: list[bytes] = []
        self.binaries: list[bytes] = []
        self.refused: list[tuple[bytes, str]] = []
        self.drains = 0
        self.closings = 0
        self.gone = 0
        self.answer: Callable[[bytes], None] | None = self.echo
        self.finishes = True
        # How many texts are taken at once.
        self.together = 0

    def echo(self, text: bytes) -> None:
        self.socket.write(text_frame(text))

    def on_text(self, text: bytes) -> None:
        assert not self.gone
        self.texts.append(text)
        if self.answer is not None:
            self.answer(text)

    def on_texts(self, texts: Sequence[bytes]) -> int:
        assert not self.gone and len(texts) > 1
        for text in texts[: self.together]:
            self.on_text(text)
        return min(self.together, len(texts))

    def on_binary(self, data: bytes) -> None:
        assert not self.gone
        self.binaries.append(data)

    def on_large_text(self, text: LargeBody) -> None:
        whole = bytes(text.view)
        text.release()
        self.on_text(whole)

    def on_refused(self, beginning: bytes, error: HttpError) -> None:
        assert not self.gone
        self.refused.append((beginning, error.code))
        self.socket.write(text_frame(error.code.encode()))

    def on_drain(self) -> None:
        self.drains += 1

    def on_closing(self) -> None:
        self.closings += 1
        if self.finishes:
            self.socket.finish()

    def on_disconnect(self) -> None:
        self.gone += 1


class SocketApp(App):
    """Makes a WebSocket of every request that can be one."""

    def __init__(self) -> None:
        super().__init__(self._open)
        self.recorders: list[Recorder] = []

    def _open(self, exchange: Exchange) -> None:
        try:
            handshake = read_handshake(exchange.head)
        except HandshakeError as error:
            exchange.respond(error.status, error.message.encode(), "text/plain", error.headers)
            return
        socket = WebSocket(exchange, handshake)
        recorder = Recorder(socket)
        self.recorders.append(recorder)
        socket.begin(recorder)


class Peer:
    """A client after its handshake."""

    def __init__(self, client: Client, recorder: Recorder) -> None:
        self.client = client
        self.recorder = recorder

    @classmethod
    async def open(cls, site: Site, *, at_once: bytes = b"") -> "Peer":
        app = site.app
        assert isinstance(app, SocketApp)
        client = await site.connect()
        client.send(HANDSHAKE, at_once)
        head = (await client.reader.readuntil(b"\r\n\r\n")).decode()
        assert head.startswith("HTTP/1.1 101 ") and f"sec-websocket-accept: {ACCEPT}\r\n" in head
        return cls(client, app.recorders[-1])

    def send(self, *parts: bytes) -> None:
        self.client.send(*parts)

    async def heard(self) -> Heard:
        """The next frame of the server."""
        reader = self.client.reader
        first, length = await reader.readexactly(2)
        assert not length & 0x80, "a server masks nothing"
        if length >= 126:
            length = int.from_bytes(await reader.readexactly(2 if length == 126 else 8), "big")
        return Heard(first & 0xF, await reader.readexactly(length), bool(first & 0x80))

    async def ask(self, *parts: bytes) -> Heard:
        self.send(*parts)
        return await self.heard()

    async def end(self) -> None:
        """Waits until the server sends no more or closes."""
        try:
            assert await self.client.reader.read() == b""
        except ConnectionError:
            pass
        self.client.close()


async def turns(count: int = 20) -> None:
    """Lets the loop go round, where nothing can be waited for because nothing should happen."""
    for _ in range(count):
        await asyncio.sleep(0.001)
