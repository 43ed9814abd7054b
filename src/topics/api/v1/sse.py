"""Live reads as server-sent events.

    event: data
    data:[{"n":1},{"n":2}]

    event: control
    data:{"streamNextOffset":"...","streamCursor":"...","upToDate":true}

Every data event is followed by its control event in the same write, so a client that was given data always knows where
it stands. Text goes out line by line; a line that begins with a blank gets one more, because readers take one away.
What is neither text nor JSON goes out as base64.
"""

import math
from typing import Self

import msgspec
from msgspec.structs import replace
from pybase64 import b64encode

from topics.api.call import Call
from topics.api.live import EventSink, Frame, FrameKind, Source, Subscription
from topics.api.live.frames import Done
from topics.api.live.transports import found_frame
from topics.api.v1.protocol import EVERY, Header, cursor_after
from topics.api.v1.reads import ReadCall, check_found, gap_text, is_closed, lifetime
from topics.engine.engine import Engine
from topics.engine.topic import Topic
from topics.model.errors import TopicsError
from topics.streams.entry_encoding import media_type
from topics.streams.offsets import NOW, Position, offset_of
from topics.streams.read import ReadSpec, StreamSlice
from topics.streams.streams import Streams

SSE_S = 60.0
"""How long a connection lives before the client is asked to come back: it moves between servers that way."""

_encode = msgspec.json.Encoder().encode


def is_text(content_type: str, as_json: bool) -> bool:
    return as_json or media_type(content_type).startswith("text/")


def data_event(body: bytes, as_text: bool) -> bytes:
    if not as_text:
        return b"event: data\ndata:" + b64encode(body) + b"\n\n"
    lines = b"\n" + body
    if b"\r" in body:
        lines = lines.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    # In three passes over the whole instead of a step for each line, of which a megabyte may have a hundred thousand.
    return b"event: data" + lines.replace(b"\n", b"\ndata:").replace(b"\ndata: ", b"\ndata:  ") + b"\n\n"


class Control(msgspec.Struct, omit_defaults=True, rename="camel"):
    stream_next_offset: str
    stream_cursor: str = ""
    up_to_date: bool = False
    stream_closed: bool = False
    stream_gap: str = ""


def control_event(control: Control) -> bytes:
    return b"event: control\ndata:" + _encode(control) + b"\n\n"


class Events(Frame, frozen=True, gc=False):
    """A data event. Which control event follows it depends on the reader, but for what is lost before the data."""

    gap: str = ""


class EventSource(Source, frozen=True, kw_only=True):
    """The entries of a stream as data events. Its cursors are positions."""

    streams: Streams
    spec: ReadSpec
    """Without its position."""
    as_text: bool = False

    @property
    def waits_beyond_end(self) -> bool:
        return True

    def sees(self, topic: Topic) -> bool:
        try:
            self.streams.check_there(topic)
        except TopicsError:
            return False
        return True

    def place(self, seq: int) -> Position:
        return Position(seq)

    def within(self, room: int) -> Self:
        return self if room >= self.spec.max_bytes else replace(self, spec=replace(self.spec, max_bytes=room))

    def read(self, engine: Engine, topic: Topic, cursor: Position, up_to: Position, done: Done) -> None:
        self.streams.read(topic, replace(self.spec, position=cursor, up_to=up_to.counter), done)

    def behind(self, found: StreamSlice) -> Position:
        return found.position

    def frames(self, topic: Topic, found: StreamSlice, cursor: Position, too_old: bool) -> list[Frame]:
        gap = gap_text(found)
        # A loss without data behind it has a comment in its place, since what is empty is not transmitted.
        data = data_event(found.body, self.as_text) if found.count else b": gap\n\n" if gap else b""
        return [Events(FrameKind.TOMBSTONE if gap else FrameKind.RECORDS, data, cursor, found.position, gap)]

    def shape(self, topic: Topic) -> object:
        state = self.streams.state(topic)
        return None if state is None else state.description

    def is_full(self, found: StreamSlice) -> bool:
        return found.count >= self.spec.max_records or 2 * len(found.body) >= self.spec.max_bytes

    def has_ended(self, topic: Topic) -> bool:
        return is_closed(self.streams, topic)


class PollSource(EventSource, frozen=True, kw_only=True):
    """The entries of a stream for requests that wait."""

    def frames(self, topic: Topic, found: StreamSlice, cursor: Position, too_old: bool) -> list[Frame]:
        return [found_frame(self, found, cursor)]


class SseReader(EventSink):
    """One connection."""

    __slots__ = ("_call", "_ends_at", "_read", "_source", "_subscription", "_told")

    def __init__(self, call: Call, streams: Streams, read: ReadCall) -> None:
        super().__init__(call.live, call.key, call.waits)
        self._call = call
        self._read = read
        as_text = is_text(read.content_type, read.spec.as_json)
        self._source = EventSource(streams=streams, spec=replace(read.spec, position=Position(0)), as_text=as_text)
        self._told: tuple[Position, bool] | None = None
        """Where the last control event said that the reader is, and whether at the end."""
        self._subscription: Subscription | None = None
        self._ends_at = math.inf

    def start(self) -> None:
        """Reads once before anything is answered, so that a bad place is a plain refusal."""
        read, streams = self._read, self._source.streams
        if read.offset == NOW:
            self._open(None)
            return

        def got(outcome: StreamSlice | TopicsError) -> None:
            found = check_found(self._call, streams, read, outcome)
            if found is None:
                self.over()
            else:
                self._open(found)

        try:
            streams.read(read.topic, read.spec, got)
        except TopicsError:
            self.over()
            raise

    def _open(self, first: StreamSlice | None) -> None:
        headers: list[Header] = [
            *EVERY, ("content-type", "text/event-stream"), ("cache-control", "no-cache, no-store"),
            ("x-accel-buffering", "no"), *lifetime(self._read.topic),
        ]  # fmt: skip
        if not self._source.as_text:
            headers.append(("stream-sse-data-encoding", "base64"))
        topic, position = self._read.topic, self._read.spec.position
        self._ends_at = self.run_queue.seconds() + SSE_S
        self.attach(self._call.detach().start_stream(200, headers))
        if first is not None and not self.closed:
            self._tell(self._source.frames(topic, first, position, False)[0])
            position = first.position
        if not self.closed:
            self._subscription = self._live.feeds.subscribe(self, topic, self._source, position)

    # Called by live delivery.

    def transmit(self, subscription: Subscription, frame: Frame) -> None:
        self._tell(frame)

    def _tell(self, frame: Frame) -> None:
        topic, position = self._read.topic, frame.cursor
        at_tail = position >= (topic.head, 0)
        closed = at_tail and self._source.has_ended(topic)
        event, gap = (frame.data, frame.gap) if isinstance(frame, Events) else (b"", "")
        told = (position, at_tail)
        if not (event or closed) and self._told == told:
            return
        self._told = told
        cursor = "" if closed else cursor_after(self._call.engine.wall(), self._read.cursor)
        control = Control(offset_of(topic, position), cursor, at_tail, closed, gap)
        self.write(event + control_event(control))
        if closed:
            self.end()

    def end_subscription(self, subscription: Subscription) -> None:
        self.end()

    def end_slow(self) -> None:
        self.end()

    def sweep(self, now: float) -> None:
        if now >= self._ends_at and not self.closed:
            self.end()
        else:
            super().sweep(now)

    def end(self) -> None:
        """Ends the answer: its time is over, the stream is, or the server stops."""
        self.over()
        self._stream.close()

    def let_go(self) -> None:
        if self._subscription is not None:
            self._subscription.cancel()
