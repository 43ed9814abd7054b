"""Tailing a stream: the state of it, which the loops of both clients drive."""

import base64
import math
from collections import deque
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec

from topics_client.errors import ClientError, ConnectionFailed
from topics_client.requests import Request, given_only
from topics_client.streams.contents import NOW, START, StreamPage, StreamState, get_stream, read_stream, stream_path
from topics_client.transport.http1 import Response
from topics_client.transport.sse import EventParser, ServerEvent

_LONG_POLL_MS = 20_000
# The server ends an event stream after a minute, and sends something at least that often.
_QUIET_S = 75.0


class _Control(msgspec.Struct, rename="camel"):
    stream_next_offset: str
    up_to_date: bool = False
    stream_closed: bool = False
    stream_gap: str | None = None


class StreamTail:
    """The state of a tail, used by both clients."""

    def __init__(
        self, name: str, offset: str, key: str | None, filter: str | None, live: str | None, deadline_s: float
    ) -> None:
        self.what = f"the tail of stream {name}"
        self.deadline_s = deadline_s
        self.offset = offset
        """Where the last page ended that was handed out."""
        self._name = name
        self._key = key
        self._filter = filter
        self._by_events = live == "sse" or (live is None and filter is None)
        self._is_free = live is None
        self._received = offset
        self._closed = False
        self._pages: deque[StreamPage] = deque()
        self._parser = EventParser()
        self._data: bytes | None = None
        self._content_type = ""
        self._is_base64 = False
        self._progress = False

    @property
    def ended(self) -> bool:
        return self._closed and not self._pages

    def next_item(self) -> StreamPage | None:
        if not self._pages:
            return None
        page = self._pages.popleft()
        self.offset = page.next_offset
        return page

    def request(self) -> Request[Any] | None:
        if self._received == NOW or (self._by_events and not self._content_type):
            # Where the end is has to be known before a connection can break: the second now would be a later one.
            return get_stream(self._name)
        if self._by_events:
            return None
        return read_stream(self._name, self._received, key=self._key, filter=self._filter, wait_ms=_LONG_POLL_MS)

    def made(self, answer: StreamState | StreamPage) -> None:
        if isinstance(answer, StreamPage):
            self._take(answer)
            return
        self._content_type = answer.content_type
        if self._is_free and answer.content_type.lower().startswith("text/"):
            # An event has lines and no ends of lines: a CR in a text would arrive as LF.
            self._by_events = False
        if self._received == NOW:
            self.offset = self._received = answer.next_offset

    def open(self) -> tuple[str, dict[str, str], float] | None:
        if not self._by_events:
            return None
        self._parser = EventParser()
        self._data, self._progress = None, False
        query = given_only({"offset": self._received, "live": "sse", "key": self._key})
        return f"{stream_path(self._name)}?{urlencode(query)}", {}, _QUIET_S

    def opened(self, response: Response) -> None:
        self._is_base64 = response.headers.get("stream-sse-data-encoding") == "base64"

    def feed(self, chunk: bytes) -> bool:
        events = self._parser.feed(chunk)
        for event in events:
            self._event(event)
        return bool(events)

    def broke(self, error: ClientError) -> ClientError | None:
        # A stream of events ends every minute by itself, and is opened again.
        return None if self._progress and isinstance(error, ConnectionFailed) else error

    def _event(self, event: ServerEvent) -> None:
        try:
            if event.name == "data":
                self._data = base64.b64decode(event.data) if self._is_base64 else event.data
            elif event.name == "control":
                reported = msgspec.json.decode(event.data, type=_Control)
                self._progress = True
                data, self._data = self._data or b"", None
                self._take(
                    StreamPage(
                        name=self._name, content_type=self._content_type, content=data,
                        next_offset=reported.stream_next_offset,
                        up_to_date=reported.up_to_date, closed=reported.stream_closed,
                        gap=reported.stream_gap,
                    )
                )  # fmt: skip
        except ValueError as problem:
            raise ConnectionFailed(f"an event cannot be understood: {problem}", maybe_done=False) from problem

    def _take(self, page: StreamPage) -> None:
        self._received = page.next_offset
        self._closed = page.closed
        if page.content or page.gap or page.closed:
            self._pages.append(page)
        elif not self._pages:
            self.offset = page.next_offset


def tail_stream(
    name: str,
    offset: str = START,
    *,
    key: str | None = None,
    filter: str | None = None,
    live: Literal["sse", "long-poll"] | None = None,
    deadline_s: float = math.inf,
) -> StreamTail:
    """Iterates over pages behind an offset, waits for new entries, and ends when the stream is closed.

    `offset` is the start (`-1`), the end (`now`), or the offset at which an earlier tail stopped. The tail retries for
    `deadline_s`, by default forever, when the server restarts, throttles or is unreachable, without loss or repetition.
    It uses server-sent events, except with `live="long-poll"`, with a `filter`, and for streams of text unless
    `live="sse"` is given, because events change line ends.
    """
    if filter is not None and live == "sse":
        raise ValueError("a filter cannot be pushed: live must be long-poll, or not given")
    return StreamTail(name, offset, key, filter, live, deadline_s)
