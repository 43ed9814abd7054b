"""Followers for tests that need many at once: plain sockets on one event loop, with little work a byte."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any, Self
from urllib.parse import urlsplit


class Caller:
    """Requests over one kept connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    async def connect(cls, url: str) -> "Caller":
        target = urlsplit(url)
        return cls(*await asyncio.open_connection(target.hostname, target.port))

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and decoded body of an answer."""
        content = b"" if body is None else json.dumps(body).encode()
        self._writer.write(
            f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\n\r\n".encode()
            + content
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        status, length = int(head.split(b" ", 2)[1]), 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        return status, json.loads(await self._reader.readexactly(length) or b"null")

    async def append(self, topic: str, *values: object) -> list[int]:
        status, answer = await self.call(
            "POST", f"/v0/topics/{topic}", {"records": [{"data": value} for value in values]}
        )
        assert status in (200, 201), answer
        seqs: list[int] = answer["seqs"]
        return seqs

    async def watch(self, topics: dict[str, object], **fields: object) -> dict[str, Any]:
        status, answer = await self.call("POST", "/v0/watch", {"topics": topics, **fields})
        assert status == 200, answer
        decoded: dict[str, Any] = answer
        return decoded

    def close(self) -> None:
        self._writer.close()


class Event:
    __slots__ = ("_data", "id", "name")

    def __init__(self, name: bytes, data: bytes, event_id: str | None) -> None:
        self.name = name.decode()
        self._data = data
        self.id = event_id

    @property
    def data(self) -> Any:
        return json.loads(self._data)


class Follower:
    """The stream of a watch, event by event; it ends when the stream does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.last_id: str | None = None
        """The id of the last block that was taken."""

    @classmethod
    async def open(cls, url: str, path: str, last_event_id: str | None = None, window: int | None = None) -> "Follower":
        """`window` makes the connection hold little, so that not reading is soon felt by the server."""
        target = urlsplit(url)
        if window is None:
            reader, writer = await asyncio.open_connection(target.hostname, target.port)
        else:
            small = socket.socket()
            small.setblocking(False)
            small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
            try:
                await asyncio.get_running_loop().sock_connect(small, (target.hostname, target.port))
                reader, writer = await asyncio.open_connection(sock=small, limit=window)
            except BaseException:
                small.close()
                raise
        resume = "" if last_event_id is None else f"last-event-id: {last_event_id}\r\n"
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{resume}\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200 "):
                raise ConnectionRefusedError(head.split(b"\r\n")[0].decode())
        except BaseException:
            writer.close()
            raise
        return cls(reader, writer)

    async def events(self) -> AsyncIterator[Event]:
        rest = b""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            data = rest + (await self._reader.readexactly(size + 2))[:-2]
            *blocks, rest = data.split(b"\n\n")
            for block in blocks:
                event = _parse(block)
                self.last_id = event.id or self.last_id
                if event.name:
                    yield event

    def close(self) -> None:
        self._writer.close()


def _parse(block: bytes) -> Event:
    name, event_id, data = b"", None, []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b": ")
        if field == b"event":
            name = value
        elif field == b"id":
            event_id = value.decode()
        elif field == b"data":
            data.append(value)
    return Event(name, b"\n".join(data), event_id)
