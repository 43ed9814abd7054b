"""WebSockets for tests that need many at once: plain sockets on one event loop, with little work a byte."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

_HANDSHAKE = (
    b"GET /v0/ws HTTP/1.1\r\nhost: [::1]\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_TEXT, _CLOSE, _PING = 0x81, 0x88, 0x89
# A mask of zeros is a mask: the frame is valid, and nothing has to be computed.
_NO_MASK = b"\0\0\0\0"


def text_frame(text: bytes) -> bytes:
    """A text message of a client."""
    return _frame(_TEXT, text)


def _frame(first: int, data: bytes) -> bytes:
    nbytes = len(data)
    if nbytes < 126:
        return bytes((first, 0x80 | nbytes)) + _NO_MASK + data
    if nbytes < 65536:
        return bytes((first, 0xFE)) + nbytes.to_bytes(2, "big") + _NO_MASK + data
    return bytes((first, 0xFF)) + nbytes.to_bytes(8, "big") + _NO_MASK + data


class Talker:
    """One socket: sends commands, and gives the texts of frames as they come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str, buffer: int = 65536) -> "Talker":
        target = urlsplit(url)
        reader, writer = await asyncio.open_connection(target.hostname, target.port, limit=buffer)
        writer.write(_HANDSHAKE)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101 "):
            writer.close()
            raise ConnectionRefusedError(head.split(b"\r\n")[0].decode())
        return cls(reader, writer)

    def send(self, *commands: object) -> None:
        """Sends commands in one write."""
        self._writer.write(b"".join(text_frame(json.dumps(command).encode()) for command in commands))

    async def text(self) -> bytes | None:
        """The next text; None when the server closes. Pings are answered on the way."""
        while True:
            first, length = await self._reader.readexactly(2)
            if length >= 126:
                length = int.from_bytes(await self._reader.readexactly(2 if length == 126 else 8), "big")
            data = await self._reader.readexactly(length)
            if first == _TEXT:
                return data
            if first == _CLOSE:
                self._writer.write(_frame(_CLOSE, data))
                return None
            if first == _PING:
                self._writer.write(_frame(0x8A, data))

    async def frame(self) -> dict[str, Any]:
        """The next frame; raises EOFError when the server closes."""
        text = await self.text()
        if text is None:
            raise EOFError
        decoded: dict[str, Any] = json.loads(text)
        return decoded

    async def ask(self, command: object) -> dict[str, Any]:
        self.send(command)
        return await self.frame()

    async def frames(self) -> AsyncIterator[dict[str, Any]]:
        """Frames until the server closes."""
        while True:
            text = await self.text()
            if text is None:
                return
            yield json.loads(text)

    def close(self) -> None:
        self._writer.close()
