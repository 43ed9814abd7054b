"""Exchanges: one request and its response, and the interface that an application implements.

Response encoding: heads and bodies as bytes, and gzip.

    HTTP/1.1 200 OK
    date: Thu, 01 Jan 1970 00:00:00 GMT        cached; the sweep updates it
    content-type: application/json
    <headers of the handler>
    connection: close | keep-alive             only where it differs from the version's default
    content-length: 123

Everything up to the content type is equal for all responses of a second with the same status and type, so it is built
once a second for each pair and cached in `prefixes`.
"""

import asyncio
import functools
import logging
import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol

import msgspec

from topics.http.messages import Answer, HttpError, Refusal, RequestHead
from topics.http.output_backpressure import FLOOR_BYTES, Account
from topics.http.request_body import LargeBody
from topics.http.streaming import Stream, Upgrade
from topics.system.fair_scheduler import Task, in_slices

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

# From this size on head and body are passed to the transport as two pieces, because joining them would copy the body.
JOINED_BYTES_MAX = 32 * 1024

# The last header lines of small answers, built once.
LENGTH_LINES = tuple(b"content-length: %d\r\n\r\n" % length for length in range(1024))

_BODILESS = frozenset((HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED))


def is_bodiless(status: int) -> bool:
    """Statuses whose answers have no body, even if the handler returned one."""
    return status in _BODILESS or status < HTTPStatus.OK


class Renderer:
    """Encodes answers; one instance for each server."""

    __slots__ = ("_bare", "_date", "_second", "prefixes")

    def __init__(self) -> None:
        self._second = -1
        self._date = b""
        # Statuses without a body are never in this dict: a caller that finds a prefix may add a length and a body.
        self.prefixes: dict[tuple[int, str], bytes] = {}
        self._bare: dict[int, bytes] = {}
        """Prefixes without a content type: for answers without a body, and to build the other prefixes."""
        self.set_time(0)

    def set_time(self, now_ms: int) -> None:
        second = now_ms // 1000
        if second != self._second:
            self._second = second
            self._date = formatdate(second, usegmt=True).encode("ascii")
            self.prefixes = {}
            self._bare = {}

    def prefix(self, status: int, content_type: str) -> bytes:
        """Returns status line, date and content type; an empty content type adds no line."""
        found = self.prefixes.get((status, content_type))
        if found is None:
            found = self._bare.get(status)
            if found is None:
                found = b"HTTP/1.1 %d %b\r\ndate: %b\r\n" % (status, _phrase(status), self._date)
                self._bare[status] = found
            if content_type and not is_bodiless(status):
                found += header_lines([("content-type", content_type)])
                self.prefixes[status, content_type] = found
        return found

    def answer(
        self,
        status: int,
        body: bytes,
        content_type: str,
        headers: Iterable[tuple[str, str]],
        connection: bytes,
        *,
        head_only: bool = False,
    ) -> tuple[bytes, ...]:
        """Returns the pieces of a whole answer.

        `head_only` is for HEAD: the length is included and the body is not sent.
        """
        head = self.prefix(status, content_type) + header_lines(headers) + connection
        if is_bodiless(status):
            return (head + b"\r\n",)
        head += b"content-length: %d\r\n\r\n" % len(body)
        if head_only:
            return (head,)
        return (head + body,) if len(body) <= JOINED_BYTES_MAX else (head, body)

    def stream_head(
        self, status: int, headers: Iterable[tuple[str, str]], connection: bytes, *, chunked: bool
    ) -> tuple[bytes, ...]:
        framing = b"transfer-encoding: chunked\r\n\r\n" if chunked else b"\r\n"
        return (self.prefix(status, "") + header_lines(headers) + connection + framing,)


def connection_line(http_version: str, *, keep: bool) -> bytes:
    """The Connection header, if needed: each version has a different default."""
    if http_version == "1.1":
        return b"" if keep else b"connection: close\r\n"
    return b"connection: keep-alive\r\n" if keep else b"connection: close\r\n"


def header_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Raises `ValueError` for text with a line break: a client's text must not inject another header."""
    lines = [f"{name}: {value}\r\n" for name, value in headers]
    text = "".join(lines)
    # Checked together, because some answers have thirty.
    if text.count("\r") != len(lines) or text.count("\n") != len(lines) or "\0" in text:
        line = next(line for line in lines if "\0" in line or "\r" in line[:-2] or "\n" in line[:-2])
        raise ValueError(f"a header of an answer holds a line end: {line.partition(':')[0]!r}")
    return text.encode("latin-1")


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode("ascii")
    except ValueError:
        return b"-"


# Compression: gzip for clients that accept it.

# The lowest level: on JSON it has most of the saving in a third of the time of the default level.
_LEVEL = 1
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


def compress(body: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    return compressor.compress(body) + compressor.flush()


def compress_later(body: bytes, done: Callable[[bytes], None]) -> None:
    """Compresses on a thread and calls `done` on the loop."""

    def compressed(future: asyncio.Future[bytes]) -> None:
        if not future.cancelled():
            # If the thread fails, such as for lack of memory, the body stays uncompressed.
            done(body if future.exception() else future.result())

    asyncio.get_running_loop().run_in_executor(None, compress, body).add_done_callback(compressed)


@functools.lru_cache(maxsize=256)
def accepts_gzip(accept_encoding: str) -> bool:
    """Returns whether an Accept-Encoding value prefers gzip to the plain body, or accepts both equally.

    Cached because a client sends the same value with every request.
    """
    qualities: dict[str, float] = {}
    for item in accept_encoding.lower().split(","):
        coding, _, parameters = item.partition(";")
        qualities[coding.strip()] = _quality(parameters)
    anything = qualities.get("*", 0.0)
    gzip = max(qualities.get("gzip", anything), qualities.get("x-gzip", 0.0))
    return gzip > 0 and gzip >= qualities.get("identity", 0.0)


def _quality(parameters: str) -> float:
    """Returns the weight of a coding: by default 1; 0 for a value that is not a number from 0 to 1."""
    name, _, value = parameters.partition("=")
    if not name.strip():
        return 1.0
    try:
        quality = float(value)
    except ValueError:
        return 0.0
    return quality if name.strip() == "q" and 0.0 <= quality <= 1.0 else 0.0


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
    """Shorter bodies are never compressed, and the line with their length is cached."""

    def deliver_plain(self, exchange: "Exchange", answer: bytes) -> None:
        """Sends a small answer in the usual form at the exchange's turn."""
        ...

    def deliver_run(self, exchanges: Sequence["Exchange"], answers: Sequence[bytes]) -> None:
        """Sends several such answers, to consecutive requests."""
        ...

    def deliver(self, exchange: "Exchange", payload: tuple[bytes, ...]) -> None:
        """Sends the answer at the exchange's turn."""
        ...

    def is_last(self, exchange: "Exchange") -> bool:
        """Returns whether the server closes the connection after this answer."""
        ...

    def open_stream(self, exchange: "Exchange", payload: tuple[bytes, ...], stream: Stream) -> None: ...

    def hand_over(self, exchange: "Exchange") -> Upgrade: ...

    def room(self, account: Account) -> int:
        """Returns the number of bytes that the answer may have."""
        ...

    def compress_later(self, body: bytes, done: Callable[[bytes], None]) -> None:
        """Compresses on a thread and calls `done` on the loop."""
        ...

    def run(self, exchange: "Exchange", task: Task, owner: Hashable | None) -> None:
        """Runs a long task of a request under fair scheduling; see `Exchange.run`."""
        ...


class Exchange(msgspec.Struct, eq=False):
    """A complete request that needs one answer: `respond`, `start_stream` or `upgrade`, once, on the loop's thread.

    If the client disconnects first, `on_disconnect` is called, and a later answer is dropped silently. A client that
    only closes its sending side counts as disconnected for requests with `on_disconnect`, because the two cannot be
    distinguished; it still gets the answers of other requests.
    """

    head: RequestHead
    # The connection; None after the last output.
    channel: Channel | None
    # The monotonic time in seconds when the head was complete.
    started: float
    # Whether the answer has the usual form: HTTP/1.1, kept alive, with a body.
    plain: bool
    # Whether the connection may continue after the answer.
    keep: bool
    body: bytes = b""
    # The body instead, if it is long and the application accepts a `LargeBody`.
    large_body: LargeBody | None = None
    # The bytes of the answer while earlier exchanges of the connection still wait for theirs.
    payload: tuple[bytes, ...] | None = None
    # Its length while it waits.
    held_bytes: int = 0
    answered: bool = False
    expects_continue: bool = False
    stream: Stream | None = None
    disconnect_callback: Callable[[], None] | None = None

    @property
    def peer(self) -> str:
        """The client's address, host:port; empty after it has disconnected."""
        return "" if self.channel is None else self.channel.peer

    def room(self, account: Account) -> int:
        """The number of bytes that the answer may have; it shrinks with the unread bytes of its account and of all
        clients."""
        return FLOOR_BYTES if self.channel is None else self.channel.room(account)

    def run(self, task: Task, owner: Hashable | None = None) -> None:
        """Runs a long task of this request under fair scheduling (`system.fair_scheduler`), until it ends or the client
        disconnects. Later requests of the connection start after it, so that their order is kept. Tasks of one `owner`,
        by default the connection, run one after the other."""
        if self.channel is not None:
            self.channel.run(self, task, owner)

    @property
    def gone(self) -> bool:
        """Whether an answer would be dropped."""
        return self.channel is None and not self.answered

    def respond(
        self,
        status: int,
        body: bytes = b"",
        content_type: str = "application/json",
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Sends the whole answer. Raises `RuntimeError` if there is one already, `ValueError` for a bad header."""
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
        """Returns the last header lines of a large uncompressed answer; otherwise none."""
        if nbytes > JOINED_BYTES_MAX or b"accept-encoding" in self.head.headers.first:
            return b""
        # Also if the body stays plain: a cache must not return this answer to a client that accepts gzip.
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
        """Returns the headers of a response, including headers that the application adds to every response of this
        request."""
        head = self.head
        if head.answer_headers:
            headers = (*headers, *head.answer_headers)
        return headers if head.allow_origin is None else for_origin(head.allow_origin, headers)

    def start_stream(self, status: int, headers: Sequence[tuple[str, str]], *, chunked: bool = False) -> Stream:
        """Starts an answer of unknown length; the handler passes its Content-Type in the headers.

        Without chunks the bytes are sent unchanged, so one encoded message can be shared by many streams, and the end
        of the stream closes the connection. With chunks each write is framed and the connection stays open.
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
        self.disconnect_callback = None
        channel.open_stream(self, payload, stream)
        return stream

    def upgrade(self) -> Upgrade:
        """Hands the connection over to another protocol.

        Only for a request whose head contains `upgrade`. Nothing is sent: the new owner writes the 101 itself.
        """
        channel = self.channel
        if channel is None or self.answered or not self.head.upgrade:
            raise RuntimeError("this exchange cannot be upgraded")
        if self.head.counter is not None:
            self.head.counter.count(self, 101)
        self.answered = True
        self.channel = None
        self.disconnect_callback = None
        return channel.hand_over(self)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """`callback` is called once, if the client disconnects before it is answered."""
        if self.channel is not None:
            self.disconnect_callback = callback
        elif not self.answered:
            callback()

    def lose(self) -> None:
        """Reports that the client has disconnected. Called by the connection, any number of times.

        A request that was accepted is executed nevertheless; its body may not be read yet.
        """
        self.channel = None
        self.payload = None
        self.large_body = None
        if self.stream is not None:
            self.stream.lose()
        callback, self.disconnect_callback = self.disconnect_callback, None
        if callback is not None and not self.answered:
            try:
                callback()
            except Exception:
                _logger.exception("disconnect handler failed")

    def _drop_answer(self) -> None:
        """Handles an answer that cannot be sent: dropped silently for a disconnected client, otherwise an internal
        error."""
        if self.answered:
            raise RuntimeError(f"{self.head.method} {self.head.path} is answered twice")
        self.answered = True


def request_task(
    exchange: Exchange, task: Task, monotonic: Callable[[], float], done: Callable[[], None] | None = None
) -> Task:
    """Wraps a task of a request for the scheduler: it ends when the client disconnects, and a failure is answered.

    `done` is called at the end.
    """
    try:
        if not exchange.gone:
            for pause in in_slices(task, monotonic):
                yield pause
                if exchange.gone:
                    break
    except Exception:
        # The task itself answers errors of the request; this is an internal error.
        _logger.exception("request task failed", extra={"path": exchange.head.path})
        if not exchange.answered:
            exchange.respond(500)
    task.close()
    exchange.large_body = None
    if done is not None:
        done()


def respond_each(exchanges: Sequence[Exchange], bodies: Sequence[bytes]) -> None:
    """Answers many requests of one route, each with a JSON object and status 200, with less work than `respond` for
    each. They are counted together, and requests that arrived together are answered together.

    An exchange that cannot be answered does not delay the others.
    """
    counter, head, reported, others = exchanges[0].head.counter, b"", -1, 0
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
            if nbytes != reported:
                # Most have the length of the previous one.
                head, reported = channel.renderer.prefix(200, "application/json") + LENGTH_LINES[nbytes], nbytes
            if each is not None:
                each.count(exchange, 200)
            exchange.answered = True
            exchange.channel = None
            run.append(exchange)
            answers.append(head + body)
        except Exception:
            _logger.exception("answer failed", extra={"path": exchange.head.path})
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
        _logger.exception("answer failed", extra={"path": run[0].head.path})


def respond_bodiless(
    exchanges: Sequence[Exchange], status: int, lines: Sequence[bytes], otherwise: Callable[[Exchange, int], None]
) -> None:
    """Like `respond_all`, for answers without a body.

    Each item has its header lines and the final empty line. `otherwise` gets the index of an answer that needs more.
    """
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
            _logger.exception("answer failed", extra={"path": exchange.head.path})
    if counter is not None and each is None:
        counter.count_many(exchanges[-1], status, len(exchanges) - others)


def for_origin(origin: str, headers: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """Returns the headers of an answer that only pages of this origin may read; empty for none."""
    others = [pair for pair in headers if pair[0].lower() not in _READERS]
    if not origin:
        return others
    # Answers never depend on cookies, so a wildcard may represent all headers.
    reported = (("access-control-allow-origin", origin), ("access-control-expose-headers", "*"))
    return [*others, *reported] if origin == "*" else [*others, *reported, ("vary", "origin")]


def _gzipped(answer: Answer, compressed: bytes) -> Answer:
    if len(compressed) >= len(answer.body):
        return answer
    return answer._replace(body=compressed, headers=(*answer.headers, _GZIPPED))


# The interface of an application. All of it is called on the event loop and must not block.


class OneRequest(int):
    """A limit for one request only; the next request with the same head is checked again."""


BatchHandler = Callable[[Sequence[Exchange], int], bool]
"""See `Application.batch_handler`."""


class Application(Protocol):
    """The interface of the application for the HTTP layer."""

    @property
    def admission(self) -> object:
        """Represents all inputs of `admit` besides the head.

        It is replaced whenever one of them changes; until then an admitted head stays admitted without another check.
        If a decision depends on other inputs, such as the time, `admit` returns the limit as `OneRequest`.
        """
        ...

    def admit(self, head: RequestHead) -> int | Refusal:
        """Decides on a request by its head, before its body: returns the maximum size of the decoded body, or a
        refusal. Nothing is buffered for a refused request.

        One head may be used for many requests: results may be stored in its `context`. The decision is valid until
        `admission` is replaced.
        """
        ...

    def handle(self, exchange: Exchange) -> None:
        """Handles a complete request. It may be answered before this returns or at any time later."""
        ...

    def batch_handler(self, head: RequestHead) -> BatchHandler | None:
        """Returns the batch handler of an admitted head, or None.

        A batch handler gets several requests with this head that arrived together, with the length of their bodies, and
        handles all of them or none; if none, they are passed to `handle`. The result is valid while the head is
        admitted.
        """
        ...

    def refuse(self, error: HttpError, path: str) -> Refusal:
        """Formats a refusal of the HTTP layer as the product's error. The path is that of the request, empty if its
        head could not be parsed."""
        ...
