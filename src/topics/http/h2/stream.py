"""One stream: a request, its body as it comes, and its answer as the client takes it.

To the exchange it is the connection that the request came on (`exchange.Channel`), to an answer without an end what
that is written to (`streams.StreamChannel`). There is no order among streams: an answer goes out when it is there.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from topics.http.bodies import Body, open_body
from topics.http.encodings import compress_later
from topics.http.exchange import Exchange
from topics.http.h2.heads import Fields, split_answer
from topics.http.h2.outgoing import Outgoing
from topics.http.hub import Hub
from topics.http.messages import RequestHead
from topics.http.progress import Phase, Progress
from topics.http.render import LENGTH_LINES
from topics.http.streams import Stream, Upgrade
from topics.http.turns import Step
from topics.http.unread import FLOOR_BYTES, Account, Meter

_UNCOUNTED_BYTES = 4 * 1024
"""Of a body. What a connection holds uncounted stays what it is with HTTP/1.1, though it has a hundred at once."""


class Owner(Protocol):
    """The connection, as its streams see it."""

    peer: str
    write_paused: bool
    held_bytes: int
    """What all of its streams have yet to send."""

    def send_head(self, stream: "Http2Stream", fields: Fields, *, ended: bool) -> None: ...

    def send_on(self, stream: "Http2Stream") -> None:
        """The stream has something to send, or has come to its end."""
        ...

    def finished(self, stream: "Http2Stream") -> None:
        """Everything is sent."""
        ...

    def charge(self, account: Account) -> None:
        """Says whom the bytes belong to that are given to the system."""
        ...

    def work_in_turns(self, exchange: Exchange, step: Step) -> None: ...


class Http2Stream:
    """Implements `Channel`, `StreamChannel` and `outgoing.Sender`."""

    __slots__ = (
        "_full", "_hub", "_meter", "_owner", "_progress", "_sent_bytes", "body", "body_bytes", "discards", "dropping",
        "exchange", "gzip_inline_bytes", "gzip_min_bytes", "lost", "out", "peer", "received_bytes", "receiving",
        "renderer", "small_bytes", "stream_id",
    )  # fmt: skip

    def __init__(self, owner: Owner, hub: Hub, stream_id: int, head: RequestHead) -> None:
        self._owner = owner
        self._hub = hub
        self.stream_id = stream_id
        self.peer = head.peer = owner.peer
        self.renderer = hub.renderer
        self.gzip_min_bytes = hub.limits.gzip_min_bytes
        self.gzip_inline_bytes = hub.limits.gzip_inline_bytes
        self.small_bytes = min(len(LENGTH_LINES), self.gzip_min_bytes)
        self.exchange = Exchange(head, self, hub.monotonic(), head.method != "HEAD", True)
        self.out = Outgoing()
        self.body: Body | None = None
        # Whether the client has not ended the request.
        self.receiving = True
        # Whether what still comes of it is dropped, as it is refused.
        self.dropping = False
        # How long it was said to be, and how much of it came.
        self.body_bytes = self.received_bytes = 0
        self.lost = False
        self._full = False
        self._meter = Meter(hub.unread)
        self._progress = Progress()
        self._sent_bytes = 0

    # Receiving.

    def expect(self, length: int | None, limit: int) -> None:
        """A body is on its way. Raises `HttpError` for one that cannot be taken."""
        head, limits = self.exchange.head, self._hub.limits
        encoding = head.headers.get_list("content-encoding")
        limit = min(limit, limits.body_bytes)
        self.body = open_body(
            encoding, length, limit, limits, self._hub.budget, head.takes_large, free_bytes=_UNCOUNTED_BYTES
        )

    def receive(self, data: bytes) -> None:
        """Takes a part of the body. Raises `HttpError`."""
        self.received_bytes += len(data)
        if self.body is not None:
            self.body.add(data)

    def complete(self) -> Exchange:
        """The exchange with its whole body. Raises `HttpError`.

        Not before it is started: a body that waits counts in the budget as one that is on its way.
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
        """The request is refused: nothing of its body is kept."""
        self.dropping = True
        if self.body is not None:
            self.body.release()
            self.body = None

    # What the exchange calls.

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
        if self._owner.held_bytes > self._hub.limits.write_buffer_bytes:
            # The others of this connection have yet to be read.
            return FLOOR_BYTES
        return self._hub.unread.room(account)

    def compress_later(self, body: bytes, done: Callable[[bytes], None]) -> None:
        compress_later(body, done)

    def work_in_turns(self, exchange: Exchange, step: Step) -> None:
        self._owner.work_in_turns(exchange, step)

    # What an answer without an end calls.

    @property
    def write_paused(self) -> bool:
        return self._full or self._owner.write_paused

    def write(self, data: bytes) -> bool:
        self._queue(data)
        most = 0 if self._hub.unread.tight else self._hub.limits.write_buffer_bytes
        if self.out.nbytes > most:
            self._full = True
        return not self.write_paused

    def end_stream(self, *, last: bool) -> None:
        """The end of an answer is never that of the connection."""
        self.exchange.channel = None
        self.out.ended = True
        self._owner.send_on(self)

    @property
    def buffered_bytes(self) -> int:
        return self.out.nbytes

    # What the connection calls.

    @property
    def is_sent(self) -> bool:
        """Whether the whole answer is on its way."""
        return self.out.ended and not self.out.nbytes

    def sent(self, nbytes: int) -> None:
        self._sent_bytes += nbytes
        self._owner.held_bytes -= nbytes
        self._meter.set(self.out.nbytes)
        if self.is_sent:
            self._owner.finished(self)
        elif self._full and self.out.nbytes <= self._hub.limits.write_buffer_bytes // 4:
            self._full = False
            self.drained()

    def drained(self) -> None:
        """The client has caught up, on this stream or on the connection."""
        if self.exchange.stream is not None and not self.write_paused:
            self.exchange.stream.drained()

    def lose(self) -> None:
        """Nobody will read the answer, or send the rest of the request. May be called more than once."""
        self.lost = True
        self.drop_body()
        self._owner.held_bytes -= self.out.nbytes
        self.out.clear()
        self._meter.set(0)
        self.exchange.lose()

    def idle_phase(self, now: float) -> Phase | None:
        """What the stream is stuck in for longer than it may be, if it is."""
        limits = self._hub.limits
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
