"""An event stream for tests, over a plain socket: it sees every byte, and nothing is hidden by a library."""

import base64
import json
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import httpx
import msgspec

from topics_protocol.queues import JobEvent
from topics_protocol.watch import CaughtUpEvent, ErrorEvent, RecordEvent, TombstoneEvent, TopicDeletedEvent

# Only to fail instead of hanging.
PATIENCE_S = 30.0

_TYPES: dict[str, type] = {
    "record": RecordEvent, "tombstone": TombstoneEvent, "caught-up": CaughtUpEvent,
    "topic-deleted": TopicDeletedEvent, "error": ErrorEvent, "job": JobEvent,
}  # fmt: skip


class Event(NamedTuple):
    name: str
    """Of an event; `comment` and `retry` stand for themselves."""
    data: Any
    id: str | None = None

    @property
    def seqs(self) -> list[int]:
        return [record["$seq"] for record in self.data["records"]]

    @property
    def cursors(self) -> dict[str, int]:
        """The positions in the id of a watch of few topics."""
        assert self.id is not None
        decoded: dict[str, int] = json.loads(base64.urlsafe_b64decode(self.id + "=" * (-len(self.id) % 4)))
        return decoded


class EventStream:
    """`GET` on a path, read as server-sent events. Fails when a read takes too long."""

    def __init__(
        self,
        url: str,
        path: str,
        headers: dict[str, str] | None = None,
        *,
        version: str = "1.1",
        buffer_bytes: int | None = None,
    ) -> None:
        target = urlsplit(url)
        assert target.hostname is not None
        assert target.port is not None
        self._socket = socket.socket()
        if buffer_bytes is not None:
            # Before the connection is made, or the window is agreed on already.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect((target.hostname, target.port))
        lines = [f"GET {path} HTTP/{version}", f"host: {target.netloc}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self._file = self._socket.makefile("rb")
        self.status = int(self._file.readline().split(b" ")[1])
        self.headers: dict[str, str] = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(": ")
            assert name.lower() not in self.headers
            self.headers[name.lower()] = value
        self._lines = self._read_lines()
        self.opening: Event | None = None
        """The first block, once it was read."""

    def take(self, count: int) -> bytes:
        """So many bytes as they come, instead of events; fewer at the end of the stream."""
        return self._file.read(count)

    @property
    def refusal(self) -> httpx.Response:
        """The answer, if it is not a stream, for `refused`."""
        body = self._file.read(int(self.headers["content-length"]))
        return httpx.Response(self.status, headers=self.headers, content=body)

    def _read_lines(self) -> Iterator[bytes]:
        chunked = self.headers.get("transfer-encoding") == "chunked"
        rest = b""
        while True:
            if chunked:
                size = int(self._file.readline(), 16)
                data = self._file.read(size)
                assert self._file.read(2) == b"\r\n"
            else:
                data = self._file.read1(65536)
            if not data:
                assert not rest
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines

    def next(self) -> Event:
        """The next event, comment or retry; raises EOFError when the stream has ended as it should."""
        name, event_id = "message", None
        data: list[str] = []
        for raw in self._lines:
            line = raw.decode()
            if line.startswith(":"):
                assert next(self._lines) == b""
                return Event("comment", line[1:].strip())
            field, _, value = line.partition(": ")
            match field:
                case "":
                    if name == "retry":
                        return Event("retry", int(data[0]), event_id)
                    decoded = json.loads("\n".join(data))
                    msgspec.convert(decoded, _TYPES[name], strict=True)
                    return Event(name, decoded, event_id)
                case "event":
                    name = value
                case "data":
                    data.append(value)
                case "id":
                    event_id = value
                case "retry":
                    name, data = "retry", [value]
                case _:
                    raise AssertionError(f"unknown field {line!r}")
        raise EOFError

    def event(self) -> Event:
        """The next event, past heartbeats and the retry."""
        while True:
            event = self.next()
            if event.name not in ("comment", "retry"):
                return event

    def events(self, count: int) -> list[Event]:
        return [self.event() for _ in range(count)]

    def records(self, count: int) -> list[dict[str, Any]]:
        """The records of the next events, until there are so many."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            event = self.event()
            assert event.name in ("record", "caught-up"), event
            found += event.data.get("records", [])
        assert len(found) == count
        return found

    def ended(self) -> None:
        """Nothing more comes and the stream is complete."""
        try:
            event = self.event()
        except EOFError:
            return
        raise AssertionError(f"the stream goes on: {event}")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Watch:
    """A session, from its POST on."""

    def __init__(self, url: str, body: object, *, key: str | None = None, query: str = "") -> None:
        self.url = url
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self.answer = httpx.post(
            f"{url}/v0/watch{query}", json=body, headers=self._headers, timeout=PATIENCE_S, trust_env=False
        )

    @property
    def made(self) -> dict[str, Any]:
        assert self.answer.status_code == 200, self.answer.text
        decoded: dict[str, Any] = self.answer.json()
        return decoded

    def open(
        self, last_event_id: str | None = None, *, version: str = "1.1", buffer_bytes: int | None = None
    ) -> EventStream:
        """Opens the stream, which must work, and reads its retry."""
        headers = dict(self._headers)
        if last_event_id is not None:
            headers["last-event-id"] = last_event_id
        path = self.made["stream_url"]
        stream = EventStream(self.url, path, headers, version=version, buffer_bytes=buffer_bytes)
        assert stream.status == 200
        stream.opening = stream.next()
        assert stream.opening[:2] == ("retry", 2000)
        return stream


def watch(url: str, *topics: str, key: str | None = None, **fields: object) -> Watch:
    """Watches topics from the beginning."""
    return Watch(url, {"topics": {topic: {} for topic in topics}, **fields}, key=key)
