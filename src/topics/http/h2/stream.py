"""One HTTP/2 stream: a request, its body as it arrives, and its response, sent as flow control allows.

For the exchange it is the connection (`exchange.Channel`), for a streaming response the channel
(`streaming.StreamChannel`). Streams have no order: a response is sent when it is ready.
"""

import re
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol

from topics.http.exchange import LENGTH_LINES, Exchange, compress_later
from topics.http.h1.request_reader import check_head_size
from topics.http.h2.frames import FRAME_BYTES_MAX, Session, StreamFault
from topics.http.messages import Fault, Headers, HttpError, HttpLimits, RequestHead, split_target
from topics.http.output_backpressure import FLOOR_BYTES, Account, Meter, Phase, Progress
from topics.http.request_body import Body, open_body
from topics.http.server_state import ServerState
from topics.http.streaming import Stream, Upgrade
from topics.system.fair_scheduler import Task

# Output: the streams of a connection send one frame each in turn, as far as flow control allows. A stream without
# window waits until the client opens it.


class Outgoing:
    """The unsent bytes of one answer."""

    __slots__ = ("_parts", "ended", "nbytes")

    def __init__(self) -> None:
        self._parts: deque[bytes | memoryview] = deque()
        self.nbytes = 0
        # Whether the answer is complete.
        self.ended = False

    def add(self, part: bytes) -> None:
        if part:
            self._parts.append(part)
            self.nbytes += len(part)

    def take(self, most: int) -> bytes | memoryview:
        """Returns the next bytes: a slice of one part, or several short parts joined."""
        taken: list[bytes | memoryview] = []
        room = min(most, self.nbytes)
        self.nbytes -= room
        while room:
            part = self._parts.popleft()
            if len(part) > room:
                view = memoryview(part)
                self._parts.appendleft(view[room:])
                part = view[:room]
            room -= len(part)
            taken.append(part)
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def clear(self) -> None:
        self._parts.clear()
        self.nbytes = 0


class Sender(Protocol):
    """The interface of a stream for the output."""

    @property
    def stream_id(self) -> int: ...

    @property
    def out(self) -> Outgoing: ...

    def sent(self, nbytes: int) -> None:
        """Notes that this many bytes were sent; after the last ones the stream has ended."""
        ...


class Outbox:
    """The streams with output."""

    __slots__ = ("_aside", "_ready", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        # In the order of their turns; a dictionary, so that each is in it once and can be removed.
        self._ready: dict[Sender, None] = {}
        self._aside: dict[Sender, None] = {}

    def add(self, stream: Sender) -> None:
        if stream not in self._aside:
            self._ready[stream] = None

    def discard(self, stream: Sender) -> None:
        self._ready.pop(stream, None)
        self._aside.pop(stream, None)

    def opened(self) -> None:
        """Handles a larger window: of one stream, or of all."""
        self._ready.update(self._aside)
        self._aside.clear()

    def step(self) -> int:
        """Sends the next frame; returns its bytes with its head, 0 if no frame can be sent."""
        session = self._session
        while self._ready:
            stream = next(iter(self._ready))
            del self._ready[stream]
            out = stream.out
            window = session.local_flow_control_window(stream.stream_id) if out.nbytes else 0
            if out.nbytes and window <= 0:
                self._aside[stream] = None
                continue
            part = out.take(min(window, FRAME_BYTES_MAX))
            ended = out.ended and not out.nbytes
            if not part and not ended:
                continue
            session.send_data(stream.stream_id, part, end_stream=ended)
            if out.nbytes:
                self._ready[stream] = None
            stream.sent(len(part))
            return len(part) + 9
        return 0


# Heads, in both directions.
#
# The fields of a request become a `RequestHead`, as in HTTP/1.1: `:authority` is the Host, and a body of unknown length
# counts as chunked. A message that is malformed in HTTP/2 is reset; a well-formed one that exceeds a limit is refused
# with the status of HTTP/1.1.
#
# A response is encoded as HTTP/1.1 by one module (`http.exchange`). Its lines are converted to fields here, without
# connection headers.

Fields = list[tuple[bytes, bytes]]

VERSION = "2"

_PSEUDO = (b":method", b":scheme", b":path", b":authority")
_OF_CONNECTIONS = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_is_name = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_is_value = re.compile(rb"(?:[^\0\r\n \t](?:[^\0\r\n]*[^\0\r\n \t])?)?").fullmatch
_is_path = re.compile(rb"/[\x21-\x7e]*").fullmatch
_HEAD_END = b"\r\n\r\n"


def read_head(
    fields: Iterable[tuple[bytes, bytes]], limits: HttpLimits, *, ended: bool
) -> tuple[RequestHead, int | None]:
    """Returns the head of a request and the length of its body, None if unknown. `ended` states that there is no body.

    Raises `StreamFault`, and `HttpError` for a well-formed head that is refused.
    """
    asked, headers = _split(fields)
    method = asked.get(b":method", b"").decode("latin-1")
    if method == "CONNECT":
        raise HttpError(Fault.UNSUPPORTED_METHOD)
    target = asked.get(b":path", b"")
    if not method or b":scheme" not in asked:
        raise StreamFault("a request has a method and a scheme")
    if not _is_path(target) and not (target == b"*" and method == "OPTIONS"):
        raise StreamFault("the path of a request begins with a slash")
    length = _length(headers, ended)
    _set_host(headers, asked.get(b":authority"))
    check_head_size(headers, target, limits)
    if length is None:
        headers.first[b"transfer-encoding"] = b"chunked"
    path, query = split_target(target)
    return RequestHead(method, target, path, query, headers, VERSION, True), length


def _split(fields: Iterable[tuple[bytes, bytes]]) -> tuple[dict[bytes, bytes], Headers]:
    """Returns the pseudo-headers, and the other headers."""
    asked: dict[bytes, bytes] = {}
    headers = Headers({}, [])
    for name, value in fields:
        if not _is_value(value):
            raise StreamFault("a value has an end of a line in it, or space around it")
        if name[:1] == b":":
            if name not in _PSEUDO or name in asked or len(headers):
                raise StreamFault("a pseudo-header is unknown, repeated, or behind the headers")
            asked[name] = value
        elif not _is_name(name) or name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
            raise StreamFault("a header has no business on a stream")
        else:
            headers.add(name, value)
    return asked, headers


def are_trailers(fields: Iterable[tuple[bytes, bytes]]) -> bool:
    """Returns whether trailers are allowed: none may be a pseudo-header (RFC 9113, 8.1)."""
    return all(_is_name(name) and _is_value(value) for name, value in fields)


def _length(headers: Headers, ended: bool) -> int | None:
    """The library has verified that it is a number."""
    reported = headers.first.get(b"content-length")
    if not ended:
        return None if reported is None else int(reported)
    if reported is not None and int(reported):
        raise StreamFault("a body is announced and does not come")
    return 0


def _set_host(headers: Headers, authority: bytes | None) -> None:
    hosts = headers.get_all("host")
    if authority is None:
        if len(hosts) != 1:
            raise HttpError(Fault.BAD_HOST, "a request has an :authority, or exactly one Host header")
    elif any(host.encode("latin-1") != authority for host in hosts):
        raise HttpError(Fault.BAD_HOST, "the :authority of a request and its Host header are not the same")
    else:
        headers.first[b"host"] = authority


def split_answer(payload: Sequence[bytes]) -> tuple[Fields, list[bytes]]:
    """Returns the fields of an HTTP/1.1 answer, and the parts of its body."""
    head, _, body = payload[0].partition(_HEAD_END)
    lines = head.split(b"\r\n")
    fields = [(b":status", lines[0][9:12])]
    for line in lines[1:]:
        name, _, value = line.partition(b": ")
        name = name.lower()
        if name not in _OF_CONNECTIONS:
            fields.append((name, value))
    return fields, [part for part in (body, *payload[1:]) if part]


_UNCOUNTED_BYTES = 4 * 1024
"""The uncounted bytes of a body.

A connection may use as much uncounted memory as with HTTP/1.1, although it has a hundred streams.
"""


class Owner(Protocol):
    """The interface of the connection for its streams."""

    peer: str
    write_paused: bool
    held_bytes: int
    """The unsent bytes of all its streams."""

    def send_head(self, stream: "Http2Stream", fields: Fields, *, ended: bool) -> None: ...

    def send_on(self, stream: "Http2Stream") -> None:
        """Notes that the stream has output, or has ended."""
        ...

    def finished(self, stream: "Http2Stream") -> None:
        """Called when everything is sent."""
        ...

    def charge(self, account: Account) -> None:
        """Sets the owner of the bytes passed to the system."""
        ...

    def run(self, exchange: Exchange, task: Task, owner: Hashable | None) -> None: ...


class Http2Stream:
    """Implements `Channel`, `StreamChannel` and `Sender`."""

    __slots__ = (
        "_full", "_meter", "_owner", "_progress", "_sent_bytes", "_server_state", "body", "body_bytes", "discards",
        "dropping", "exchange", "gzip_inline_bytes", "gzip_min_bytes", "lost", "out", "peer", "received_bytes",
        "receiving", "renderer", "small_bytes", "stream_id", "told_bytes",
    )  # fmt: skip

    def __init__(self, owner: Owner, server_state: ServerState, stream_id: int, head: RequestHead) -> None:
        self._owner = owner
        self._server_state = server_state
        self.stream_id = stream_id
        self.peer = head.peer = owner.peer
        self.renderer = server_state.renderer
        self.gzip_min_bytes = server_state.limits.gzip_min_bytes
        self.gzip_inline_bytes = server_state.limits.gzip_inline_bytes
        self.small_bytes = min(len(LENGTH_LINES), self.gzip_min_bytes)
        self.exchange = Exchange(head, self, server_state.monotonic(), head.method != "HEAD", True)
        self.out = Outgoing()
        self.body: Body | None = None
        # Whether the client has not ended the request.
        self.receiving = True
        # Whether the rest of the request is dropped because it was refused.
        self.dropping = False
        # The announced length, and the number of received bytes.
        self.body_bytes = self.received_bytes = 0
        self.told_bytes: int | None = None
        self.lost = False
        self._full = False
        self._meter = Meter(server_state.output_backpressure)
        self._progress = Progress()
        self._sent_bytes = 0

    # Receiving.

    def expect(self, length: int | None, limit: int) -> None:
        """Starts a body. Raises `HttpError` if it cannot be accepted."""
        head, limits = self.exchange.head, self._server_state.limits
        encoding = head.headers.get_list("content-encoding")
        limit = min(limit, limits.body_bytes)
        self.body = open_body(
            encoding, length, limit, limits, self._server_state.budget, head.takes_large, free_bytes=_UNCOUNTED_BYTES
        )

    def receive(self, data: bytes) -> None:
        """Adds a part of the body. Raises `HttpError`."""
        self.received_bytes += len(data)
        if self.body is not None:
            self.body.add(data)

    def complete(self) -> Exchange:
        """Returns the exchange with its whole body. Raises `HttpError`.

        Called when the exchange is started, because a waiting body counts in the budget.
        """
        body, self.body = self.body, None
        if body is not None:
            try:
                whole = body.finish()
            finally:
                body.release()
            if isinstance(whole, bytes):
                self.exchange.body = whole
            else:
                self.exchange.large_body = whole
        return self.exchange

    def drop_body(self) -> None:
        """Refuses the request and drops its body."""
        self.dropping = True
        if self.body is not None:
            self.body.release()
            self.body = None

    # Called by the exchange.

    def deliver_plain(self, exchange: Exchange, answer: bytes) -> None:
        self.deliver(exchange, (answer,))

    def deliver_run(self, exchanges: Sequence[Exchange], answers: Sequence[bytes]) -> None:
        """A stream has one request, so there is one answer."""
        for exchange, answer in zip(exchanges, answers, strict=True):
            self.deliver(exchange, (answer,))

    def deliver(self, exchange: Exchange, payload: tuple[bytes, ...]) -> None:
        fields, parts = split_answer(payload)
        self.out.ended = True
        self._owner.send_head(self, fields, ended=not parts)
        if parts:
            self._queue(*parts)
        else:
            self._owner.finished(self)

    def is_last(self, exchange: Exchange) -> bool:
        return False

    def open_stream(self, exchange: Exchange, payload: tuple[bytes, ...], stream: Stream) -> None:
        exchange.stream = stream
        exchange.plain = False
        self._owner.send_head(self, split_answer(payload)[0], ended=False)
        stream.begin(self)

    def hand_over(self, exchange: Exchange) -> Upgrade:
        raise RuntimeError("a stream of HTTP/2 cannot become another protocol")

    def room(self, account: Account) -> int:
        if account is not self._meter.account:
            self._meter.charge(account)
        self._owner.charge(account)
        if self._owner.held_bytes > self._server_state.limits.write_buffer_bytes:
            # The other answers of this connection are still unread.
            return FLOOR_BYTES
        return self._server_state.output_backpressure.room(account)

    def compress_later(self, body: bytes, done: Callable[[bytes], None]) -> None:
        compress_later(body, done)

    def run(self, exchange: Exchange, task: Task, owner: Hashable | None) -> None:
        self._owner.run(exchange, task, owner)

    # Called by streaming responses.

    @property
    def write_paused(self) -> bool:
        return self._full or self._owner.write_paused

    def write(self, data: bytes) -> bool:
        self._queue(data)
        most = 0 if self._server_state.output_backpressure.tight else self._server_state.limits.write_buffer_bytes
        if self.out.nbytes > most:
            self._full = True
        return not self.write_paused

    def end_stream(self, *, last: bool) -> None:
        """The end of an answer never ends the connection."""
        self.exchange.channel = None
        self.out.ended = True
        self._owner.send_on(self)

    @property
    def buffered_bytes(self) -> int:
        return self.out.nbytes

    # Called by the connection.

    @property
    def is_sent(self) -> bool:
        """Returns whether the whole answer has been sent."""
        return self.out.ended and not self.out.nbytes

    def sent(self, nbytes: int) -> None:
        self._sent_bytes += nbytes
        self._owner.held_bytes -= nbytes
        self._meter.set(self.out.nbytes)
        if self.is_sent:
            self._owner.finished(self)
        elif self._full and self.out.nbytes <= self._server_state.limits.write_buffer_bytes // 4:
            self._full = False
            self.drained()

    def drained(self) -> None:
        """Called when the client has read its output, on this stream or on the connection."""
        if self.exchange.stream is not None and not self.write_paused:
            self.exchange.stream.drained()

    def lose(self) -> None:
        """Releases the stream: the answer will not be read. May be called more than once."""
        self.lost = True
        self.drop_body()
        self._owner.held_bytes -= self.out.nbytes
        self.out.clear()
        self._meter.set(0)
        self.exchange.lose()

    def idle_phase(self, now: float) -> Phase | None:
        """Returns the phase that the stream has been in for longer than allowed, if any."""
        limits = self._server_state.limits
        if self.out.nbytes:
            stuck_s = self._progress.look(Phase.WRITING, self._sent_bytes, now)
            return Phase.WRITING if stuck_s >= limits.write_idle_timeout_s else None
        if self.receiving:
            stuck_s = self._progress.look(Phase.BODY, self.received_bytes, now, limits.body_step_bytes)
            return Phase.BODY if stuck_s >= limits.body_idle_timeout_s else None
        self._progress.look(Phase.ANSWERING, 0, now)
        return None

    def _queue(self, *parts: bytes) -> None:
        before = self.out.nbytes
        for part in parts:
            self.out.add(part)
        self._owner.held_bytes += self.out.nbytes - before
        self._meter.set(self.out.nbytes)
        self._owner.send_on(self)
