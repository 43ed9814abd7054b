"""Exchanges: one request and its response, and the interface that an application implements."""

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import msgspec

from topics.http.messages import Answer, HttpError, Refusal, RequestHead
from topics.http.output_backpressure import FLOOR_BYTES, Account
from topics.http.request_body import LargeBody
from topics.http.response_encoding import (
    JOINED_BYTES_MAX,
    LENGTH_LINES,
    Renderer,
    accepts_gzip,
    compress,
    connection_line,
    header_lines,
    is_bodiless,
)
from topics.http.streaming import Stream, Upgrade
from topics.system.fair_scheduler import Task, in_slices

_VARY = ("vary", "accept-encoding")
_VARY_LINE = header_lines((_VARY,))
_GZIPPED = ("content-encoding", "gzip")
_READERS = ("access-control-allow-origin", "access-control-expose-headers")

_logger = logging.getLogger(__name__)


class Channel(Protocol):
    """The interface of a connection for its exchanges."""

    peer: str
    renderer: Renderer
    gzip_min_bytes: int
    gzip_inline_bytes: int
    small_bytes: int
    """Bodies shorter than this are never compressed, and the line that tells their length is made already."""

    def deliver_plain(self, exchange: "Exchange", answer: bytes) -> None:
        """Sends a small answer in the usual form when the exchange's turn comes."""
        ...

    def deliver_run(self, exchanges: Sequence["Exchange"], answers: Sequence[bytes]) -> None:
        """Sends several such answers, to requests that came one after the other."""
        ...

    def deliver(self, exchange: "Exchange", payload: tuple[bytes, ...]) -> None:
        """Sends the answer when the exchange's turn comes."""
        ...

    def is_last(self, exchange: "Exchange") -> bool:
        """Whether the connection ends after this answer for reasons of the server."""
        ...

    def open_stream(self, exchange: "Exchange", payload: tuple[bytes, ...], stream: Stream) -> None: ...

    def hand_over(self, exchange: "Exchange") -> Upgrade: ...

    def room(self, account: Account) -> int:
        """How many bytes the answer may have, for whoever asks."""
        ...

    def compress_later(self, body: bytes, done: Callable[[bytes], None]) -> None:
        """Compresses on a thread and calls `done` on the loop."""
        ...

    def run(self, exchange: "Exchange", task: Task, owner: Hashable | None) -> None:
        """Runs a long task on a request, in turns with everyone else; see `Exchange.run`."""
        ...


class Exchange(msgspec.Struct, eq=False):
    """A complete request that wants one answer: `respond`, `start_stream` or `upgrade`, once, on the loop's thread.

    When the client goes away first, `on_gone` tells, and an answer that still comes is dropped without a word. A
    client that only closes its sending side counts as gone for those who asked to be told, as nothing tells it from
    one that went away; it still gets the answers of the others.
    """

    head: RequestHead
    # The connection; None once there is nothing more to be sent.
    channel: Channel | None
    # Monotonic seconds when the head was complete.
    started: float
    # An answer by the usual form: HTTP/1.1, kept alive, with a body.
    plain: bool
    # Whether the connection may go on after the answer.
    keep: bool
    body: bytes = b""
    # The body instead, where it is long and its head says that it is taken so.
    large_body: LargeBody | None = None
    # The bytes of the answer while earlier exchanges of the connection still wait for theirs.
    payload: tuple[bytes, ...] | None = None
    # How long it is, while it waits for them.
    held_bytes: int = 0
    answered: bool = False
    wants_continue: bool = False
    stream: Stream | None = None
    gone_callback: Callable[[], None] | None = None

    @property
    def peer(self) -> str:
        """The client's address, host:port; empty once it is gone."""
        return "" if self.channel is None else self.channel.peer

    def room(self, account: Account) -> int:
        """How many bytes the answer may have: less, the more of its account's answers and of all lie unread."""
        return FLOOR_BYTES if self.channel is None else self.channel.room(account)

    def run(self, task: Task, owner: Hashable | None = None) -> None:
        """Runs a long task on this request, in turns with everyone else (`system.fair_scheduler`), until it ends or the
        client is gone. No later request of the connection is begun before, so that their order stays what it was. Tasks
        of one `owner`, by default of the connection, run one after the other."""
        if self.channel is not None:
            self.channel.run(self, task, owner)

    @property
    def gone(self) -> bool:
        """Whether an answer would go nowhere."""
        return self.channel is None and not self.answered

    def respond(
        self,
        status: int,
        body: bytes = b"",
        content_type: str = "application/json",
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Sends the whole answer. Raises `RuntimeError` when there is one already, `ValueError` for a bad header."""
        channel = self.channel
        if channel is None or self.answered:
            self._drop_answer()
            return
        counter = self.head.counter
        if counter is not None:
            number = counter.by_status[status] = counter.by_status[status] + 1
            if not number & counter.mask:
                counter.look(self, status)
        nbytes = len(body)
        if self.plain and not headers:
            prefix = channel.renderer.prefixes.get((status, content_type))
            lines = LENGTH_LINES[nbytes] if nbytes < channel.small_bytes else self._length_lines(channel, nbytes)
            if prefix is not None and lines:
                self.answered = True
                self.channel = None
                channel.deliver_plain(self, prefix + lines + body)
                return
        self._respond_in_full(channel, Answer(status, body, content_type, headers))

    def _length_lines(self, channel: Channel, nbytes: int) -> bytes:
        """The last lines of an answer that is not small, if nobody asks for it to be compressed; none otherwise."""
        if nbytes > JOINED_BYTES_MAX or b"accept-encoding" in self.head.headers.first:
            return b""
        # Also where the body stays plain: a cache must not give this answer to a client that accepts gzip.
        vary = _VARY_LINE if nbytes >= channel.gzip_min_bytes else b""
        return b"%bcontent-length: %d\r\n\r\n" % (vary, nbytes)

    def _respond_in_full(self, channel: Channel, answer: Answer) -> None:
        negotiable = (
            len(answer.body) >= channel.gzip_min_bytes
            and not is_bodiless(answer.status)
            and not any(name.lower() == "content-encoding" for name, _ in answer.headers)
        )
        if negotiable:
            answer = answer._replace(headers=(*answer.headers, _VARY))
        if not negotiable or not accepts_gzip(self.head.headers.get_list("accept-encoding")):
            self._send(channel, answer)
        elif len(answer.body) <= channel.gzip_inline_bytes:
            self._send(channel, _gzipped(answer, compress(answer.body)))
        else:
            self.answered = True
            channel.compress_later(answer.body, lambda body: self._send(channel, _gzipped(answer, body)))

    def _send(self, channel: Channel, answer: Answer) -> None:
        if channel.is_last(self):
            self.keep = False
        payload = channel.renderer.answer(
            answer.status,
            answer.body,
            answer.content_type,
            self._headers(answer.headers),
            connection_line(self.head.http_version, keep=self.keep),
            head_only=self.head.method == "HEAD",
        )
        self.answered = True
        if self.channel is not None:
            self.channel = None
            if self.plain and self.keep and len(payload) == 1:
                channel.deliver_plain(self, payload[0])
            else:
                channel.deliver(self, payload)

    def _headers(self, headers: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
        """The headers of a response, with those that the application adds to every response to this request."""
        head = self.head
        if head.answer_headers:
            headers = (*headers, *head.answer_headers)
        return headers if head.allow_origin is None else for_origin(head.allow_origin, headers)

    def start_stream(self, status: int, headers: Sequence[tuple[str, str]], *, chunked: bool = False) -> Stream:
        """Begins an answer without a known end; the handler gives its Content-Type among the headers.

        Not chunked, the bytes go out as they are, so that one encoded message can be shared by many streams, and the
        end of the stream is the end of the connection. Chunked, each write is framed and the connection lives on.
        """
        channel = self.channel
        if channel is None or self.answered:
            self._drop_answer()
            return Stream.lost()
        chunked = chunked and self.head.http_version == "1.1"
        if not chunked or channel.is_last(self):
            self.keep = False
        if self.head.counter is not None:
            self.head.counter.count(self, status)
        stream = Stream(chunked=chunked, muted=self.head.method == "HEAD")
        line = connection_line(self.head.http_version, keep=self.keep)
        payload = channel.renderer.stream_head(status, self._headers(headers), line, chunked=chunked)
        self.answered = True
        self.gone_callback = None
        channel.open_stream(self, payload, stream)
        return stream

    def upgrade(self) -> Upgrade:
        """Takes the connection over for another protocol; HTTP has nothing to do with it any more.

        Only for a request whose head says `upgrade`. Nothing is sent: the new owner writes the 101 itself.
        """
        channel = self.channel
        if channel is None or self.answered or not self.head.upgrade:
            raise RuntimeError("this exchange cannot be upgraded")
        if self.head.counter is not None:
            self.head.counter.count(self, 101)
        self.answered = True
        self.channel = None
        self.gone_callback = None
        return channel.hand_over(self)

    def on_gone(self, callback: Callable[[], None]) -> None:
        """`callback` is called once, if the client goes away before it is answered."""
        if self.channel is not None:
            self.gone_callback = callback
        elif not self.answered:
            callback()

    def lose(self) -> None:
        """Tells that the client is gone. Called by the connection, any number of times.

        What it asked for is done nevertheless, once it was taken: its body may not be read yet."""
        self.channel = None
        self.payload = None
        self.large_body = None
        if self.stream is not None:
            self.stream.lose()
        callback, self.gone_callback = self.gone_callback, None
        if callback is not None and not self.answered:
            try:
                callback()
            except Exception:
                _logger.exception("the handler failed to notice that its client is gone")

    def _drop_answer(self) -> None:
        """An answer that cannot be sent: quietly dropped for a client that is gone, a mistake of ours otherwise."""
        if self.answered:
            raise RuntimeError(f"{self.head.method} {self.head.path} is answered twice")
        self.answered = True


def request_task(
    exchange: Exchange, task: Task, monotonic: Callable[[], float], done: Callable[[], None] | None = None
) -> Task:
    """A task on a request as its connection schedules it: it ends when the client is gone, and a failure is answered.
    `done` is called in the end."""
    try:
        if not exchange.gone:
            for pause in in_slices(task, monotonic):
                yield pause
                if exchange.gone:
                    break
    except Exception:
        # The task answers what is wrong with the request; this is a mistake of ours.
        _logger.exception("work on a request failed", extra={"path": exchange.head.path})
        if not exchange.answered:
            exchange.respond(500)
    task.close()
    exchange.large_body = None
    if done is not None:
        done()


def respond_each(exchanges: Sequence[Exchange], bodies: Sequence[bytes]) -> None:
    """Answers many requests of one route, each with its JSON object and status 200, in fewer steps than `respond`
    takes for one. They are counted together, and those that came together are answered so.

    One that cannot be answered does not keep the answers of the others.
    """
    counter, head, told, others = exchanges[0].head.counter, b"", -1, 0
    each = counter if counter is not None and not counter.mask else None
    run: list[Exchange] = []
    answers: list[bytes] = []
    channel: Channel | None = None
    for exchange, body in zip(exchanges, bodies, strict=True):
        before, channel, nbytes = channel, exchange.channel, len(body)
        if channel is not before and before is not None and run:
            _deliver(before, run, answers)
            run, answers = [], []
        try:
            if channel is None or exchange.answered or not exchange.plain or nbytes >= channel.small_bytes:
                others += 1
                exchange.respond(200, body)
                continue
            if nbytes != told:
                # Most are as long as the one before.
                head, told = channel.renderer.prefix(200, "application/json") + LENGTH_LINES[nbytes], nbytes
            if each is not None:
                each.count(exchange, 200)
            exchange.answered = True
            exchange.channel = None
            run.append(exchange)
            answers.append(head + body)
        except Exception:
            _logger.exception("an answer could not be given", extra={"path": exchange.head.path})
    if channel is not None and run:
        _deliver(channel, run, answers)
    if counter is not None and each is None:
        counter.count_many(exchanges[-1], 200, len(exchanges) - others)


def _deliver(channel: Channel, run: list[Exchange], answers: list[bytes]) -> None:
    try:
        if len(run) == 1:
            channel.deliver_plain(run[0], answers[0])
        else:
            channel.deliver_run(run, answers)
    except Exception:
        _logger.exception("an answer could not be given", extra={"path": run[0].head.path})


def respond_bodiless(
    exchanges: Sequence[Exchange], status: int, lines: Sequence[bytes], otherwise: Callable[[Exchange, int], None]
) -> None:
    """The same for answers without a body, each with its header lines and the empty one behind them. `otherwise`
    answers one that takes more than that; it is told its number."""
    counter, prefix, others = exchanges[0].head.counter, b"", 0
    each = counter if counter is not None and not counter.mask else None
    for number, exchange in enumerate(exchanges):
        channel = exchange.channel
        try:
            if channel is None or exchange.answered or not exchange.plain:
                others += 1
                otherwise(exchange, number)
                continue
            prefix = prefix or channel.renderer.prefix(status, "")
            if each is not None:
                each.count(exchange, status)
            exchange.answered = True
            exchange.channel = None
            channel.deliver_plain(exchange, prefix + lines[number])
        except Exception:
            _logger.exception("an answer could not be given", extra={"path": exchange.head.path})
    if counter is not None and each is None:
        counter.count_many(exchanges[-1], status, len(exchanges) - others)


def for_origin(origin: str, headers: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """The headers of an answer that a page of this origin may read, and no other; empty is none at all."""
    others = [pair for pair in headers if pair[0].lower() not in _READERS]
    if not origin:
        return others
    # Answers never depend on cookies, so that a wildcard may stand for all headers.
    told = (("access-control-allow-origin", origin), ("access-control-expose-headers", "*"))
    return [*others, *told] if origin == "*" else [*others, *told, ("vary", "origin")]


def _gzipped(answer: Answer, compressed: bytes) -> Answer:
    if len(compressed) >= len(answer.body):
        return answer
    return answer._replace(body=compressed, headers=(*answer.headers, _GZIPPED))


# The interface of an application. All of it is called on the event loop and must not block.


class OneRequest(int):
    """A limit that holds for one request, and says nothing of the next one with the same head."""


Gather = Callable[[Sequence[Exchange], int], bool]
"""See `Application.gatherer`."""


class Application(Protocol):
    """The product, seen from HTTP."""

    @property
    def admission(self) -> object:
        """Stands for everything that `admit` decides by besides the head. Another object takes its place whenever any
        of that changes; until then a head that was admitted is, without being asked about again. Where a decision
        depends on more than that, on the time for instance, `admit` gives the limit as `OneRequest`."""
        ...

    def admit(self, head: RequestHead) -> int | Refusal:
        """Decides on a request by its head alone, before its body: how many bytes the body may have once decoded, or
        the answer at once. Nothing is buffered for a request that is refused here.

        One head may come for many requests: what it says may be kept in its `context`. What was decided holds until
        `admission` is another object."""
        ...

    def handle(self, exchange: Exchange) -> None:
        """Takes a complete request. It may be answered before this returns or at any time later."""
        ...

    def gatherer(self, head: RequestHead) -> Gather | None:
        """What takes requests with this head, which is admitted, in fewer steps than `handle`; None where nothing does.
        It is given some that came together, with the length that their bodies have, and takes all of them or none,
        which are then for `handle`. It holds for as long as the head is admitted."""
        ...

    def refuse(self, error: HttpError, path: str) -> Refusal:
        """Gives a refusal of the HTTP layer the product's shape. The path is what was asked for, empty where the head
        of the request was not understood."""
        ...
