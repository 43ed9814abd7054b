"""Live reads as server-sent events.

    event: data
    data:[{"n":1},{"n":2}]

    event: control
    data:{"streamNextOffset":"...","streamCursor":"...","upToDate":true}

Every data event is followed by its control event in the same write, so a client that was given data always knows where
it stands. Text goes out line by line; a line that begins with a blank gets one more, because readers take one away.
What is neither text nor JSON goes out as base64.
"""

import asyncio
import re
from binascii import b2a_base64
from collections.abc import Callable

import msgspec

from topics.api.calls import Call
from topics.api.v1.answers import EVERY, Header, refuse
from topics.api.v1.cursors import cursor_after
from topics.api.v1.reads import ReadCall, gap_text
from topics.core.errors import TopicsError
from topics.http.streams import Stream
from topics.streams import Position, Streams, StreamSlice
from topics.streams.contents import media_type
from topics.streams.offsets import NOW, offset_of

SSE_S = 60.0
"""How long a connection lives before the client is asked to come back: it moves between servers that way."""

_LINE_ENDS = re.compile(rb"\r\n|\r|\n")
_encode = msgspec.json.Encoder().encode


def is_text(content_type: str, as_json: bool) -> bool:
    return as_json or media_type(content_type).startswith("text/")


def data_event(body: bytes, as_text: bool) -> bytes:
    if not as_text:
        return b"event: data\ndata:" + b2a_base64(body, newline=False) + b"\n\n"
    lines = _LINE_ENDS.split(body) if b"\n" in body or b"\r" in body else [body]
    return (
        b"event: data\n" + b"".join([b"data: %b\n" % n if n[:1] == b" " else b"data:%b\n" % n for n in lines]) + b"\n"
    )


class Control(msgspec.Struct, omit_defaults=True, rename="camel"):
    stream_next_offset: str
    stream_cursor: str = ""
    up_to_date: bool = False
    stream_closed: bool = False
    stream_gap: str = ""


def control_event(control: Control) -> bytes:
    return b"event: control\ndata:" + _encode(control) + b"\n\n"


class SharedEvents:
    """Events made once a tick for all who stand at the same place: a thousand readers of one stream share the bytes."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], bytes] = {}

    def data(self, read: ReadCall, found: StreamSlice, as_text: bool) -> bytes:
        key = (read.topic.id, read.spec, found.position)
        event = self._made.get(key)
        if event is None:
            if not self._made:
                asyncio.get_running_loop().call_soon(self._made.clear)
            event = self._made[key] = data_event(found.body, as_text)
        return event


class SseReader:
    """One connection. It reads when the stream changes and when the client can take more, and never in a task."""

    def __init__(
        self, call: Call, streams: Streams, read: ReadCall, shared: SharedEvents, now_ms: Callable[[], int]
    ) -> None:
        self._call = call
        self._streams = streams
        self._read = read
        self._shared = shared
        self._now_ms = now_ms
        self._as_text = is_text(read.content_type, read.spec.as_json)
        self._told: Position | None = None
        """Where the last control event said that the reader is."""
        self._unwatch: Callable[[], None] | None = None
        self._reading = False
        self._out: Stream
        self._timer: asyncio.TimerHandle | None = None
        self._leave: Callable[[], None] = lambda: None
        """Gives back its place among the long-lived connections."""

    def start(self) -> None:
        """Reads once before anything is answered, so that a bad place is a plain refusal."""
        self._leave = self._call.live.connections.enter(self._call.key)
        if self._read.offset == NOW:
            self._open()
            return

        def got(outcome: StreamSlice | TopicsError) -> None:
            try:
                if isinstance(outcome, TopicsError):
                    raise outcome
                self._streams.check_kept(self._read.topic, self._read.offset, outcome)
            except TopicsError as error:
                self._leave()
                refuse(self._call, error)
                return
            self._open()
            self._got(outcome)

        try:
            self._streams.read(self._read.topic, self._read.spec, got)
        except TopicsError:
            self._leave()
            raise

    def _open(self) -> None:
        headers: list[Header] = [
            *EVERY, ("content-type", "text/event-stream"), ("cache-control", "no-cache, no-store"),
            ("x-accel-buffering", "no"),
        ]  # fmt: skip
        if not self._as_text:
            headers.append(("stream-sse-data-encoding", "base64"))
        self._out = self._call.start_stream(200, headers)
        self._call.waits.add(self)
        self._timer = asyncio.get_running_loop().call_later(SSE_S, self.end)
        self._out.on_gone(self._forget)
        self._out.on_drain(self._pump)
        if self._read.offset == NOW:
            self._pump()

    def _pump(self) -> None:
        if self._reading or self._unwatch is not None or self._timer is None:
            return
        self._reading = True
        try:
            self._streams.read(self._read.topic, self._read.spec, self._got)
        except TopicsError:
            # The stream is gone, and so is what there was to tell.
            self.end()

    def _got(self, outcome: StreamSlice | TopicsError) -> None:
        self._reading = False
        if self._timer is None:
            return
        if isinstance(outcome, TopicsError):
            self.end()
            return
        state = self._streams.state(self._read.topic)
        closed = outcome.at_tail and state is not None and state.closed and outcome.head == self._read.topic.head
        event = self._shared.data(self._read, outcome, self._as_text) if outcome.count else b""
        self._read = self._read.moved(outcome.position)
        if event or closed or outcome.tombstone is not None or self._told is None:
            event += self._control(outcome, closed)
        more = self._out.write(event) if event else True
        if closed:
            self.end()
        elif not outcome.at_tail:
            if more:
                asyncio.get_running_loop().call_soon(self._pump)
        else:
            self._watch()

    def _control(self, found: StreamSlice, closed: bool) -> bytes:
        self._told = found.position
        return control_event(
            Control(
                offset_of(self._read.topic, found.position),
                "" if closed else cursor_after(self._now_ms(), self._read.cursor),
                found.at_tail,
                closed,
                gap_text(found),
            )
        )

    def _watch(self) -> None:
        try:
            self._unwatch = self._streams.watch(self._read.topic, self._woken)
        except TopicsError:
            self.end()

    def _woken(self) -> None:
        self._unwatch = None
        if self._out.writable:
            self._pump()

    def end(self) -> None:
        """Ends the answer: its time is over, the stream is, or the server stops."""
        self._forget()
        self._out.close()

    def _forget(self) -> None:
        self._leave()
        self._call.waits.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
