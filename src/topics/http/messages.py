"""HTTP message types: headers, request heads, faults, limits and request counters."""

import enum
import functools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

import msgspec

if TYPE_CHECKING:
    from topics.http.exchange import Exchange


# The headers of a request, as received.


@functools.lru_cache(maxsize=256)
def _key(name: str) -> bytes:
    # The requested names are literals of the program, so the cache contains all of them.
    return name.lower().encode("latin-1")


class Headers(msgspec.Struct, eq=False, gc=False):
    """Header names in lower case, with their values, including duplicates.

    Values stay bytes until they are read, because most are never read. Nearly every name occurs once, so a mapping has
    the first value of each, and a list the few repeated ones.
    """

    first: dict[bytes, bytes]
    repeated: list[tuple[bytes, bytes]]

    @staticmethod
    def of(pairs: Iterable[tuple[bytes, bytes]]) -> "Headers":
        headers = Headers({}, [])
        for name, value in pairs:
            headers.add(name, value)
        return headers

    def add(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in self.first:
            self.repeated.append((name, value))
        else:
            self.first[name] = value

    @overload
    def get(self, name: str) -> str | None: ...
    @overload
    def get(self, name: str, default: str) -> str: ...
    def get(self, name: str, default: str | None = None) -> str | None:
        """Returns the first value of `name`, stripped."""
        value = self.first.get(_key(name))
        return default if value is None else _text(value)

    def get_all(self, name: str) -> list[str]:
        """Returns every value of `name`, in order."""
        key = _key(name)
        if key not in self.first:
            return []
        return [_text(self.first[key]), *(_text(value) for given, value in self.repeated if given == key)]

    def get_list(self, name: str) -> str:
        """Returns all values of a list header, joined to one value; empty if there is none."""
        return ", ".join(self.get_all(name))

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Returns all headers as bytes, in the order of first occurrence, repeated ones at the end."""
        yield from self.first.items()
        yield from self.repeated

    def __contains__(self, name: str) -> bool:
        return _key(name) in self.first

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((name.decode("latin-1"), _text(value)) for name, value in self.pairs())

    def __len__(self) -> int:
        return len(self.first) + len(self.repeated)


def _text(value: bytes) -> str:
    # The parser strips blanks before a value but not after it.
    return value.decode("latin-1").rstrip(" \t")


# Refusals by the HTTP layer itself. The application converts each to its response format (`Application.refuse`); this
# is only the status, an error code and a sentence.


class Fault(enum.Enum):
    """Every refusal of the HTTP layer, with its status and its sentence. The member's name is the error code."""

    MALFORMED = 400, "this is not a valid HTTP/1.1 request"
    BAD_FRAMING = 400, "the length of the body is not clear"
    BAD_HOST = 400, "an HTTP/1.1 request has exactly one Host header"
    BAD_ENCODING = 400, "the body is not valid gzip"
    TIMEOUT = 408, "the request did not arrive in time"
    BODY_TOO_LARGE = 413, "the body is too large"
    UNSUPPORTED_ENCODING = 415, "Content-Encoding may be gzip or identity"
    EXPECTATION_FAILED = 417, "the only expectation known is 100-continue"
    HEAD_TOO_LARGE = 431, "the request head is too large"
    INTERNAL = 500, "the server failed to answer"
    UNSUPPORTED_TRANSFER_ENCODING = 501, "the only transfer encoding known is chunked"
    UNSUPPORTED_METHOD = 501, "CONNECT is not implemented"
    SHUTTING_DOWN = 503, "the server is shutting down"
    TOO_MANY_CONNECTIONS = 503, "the server has too many connections"
    TOO_MANY_BODIES = 503, "the server is receiving too much at once"
    UNSUPPORTED_VERSION = 505, "the server speaks HTTP/1.1 and HTTP/1.0"


class HttpError(Exception):
    """A refusal.

    `headers` must be part of the answer in any format; `most` is the exceeded limit, if it is a setting.
    """

    def __init__(
        self, fault: Fault, message: str = "", headers: Sequence[tuple[str, str]] = (), *, most: int = 0
    ) -> None:
        super().__init__(message or fault.value[1])
        self.fault = fault
        self.headers = headers
        self.most = most

    @property
    def status(self) -> int:
        return self.fault.value[0]

    @property
    def code(self) -> str:
        return self.fault.name.lower()

    @property
    def message(self) -> str:
        return str(self.args[0])


# Limits of the HTTP layer, by connection and in total.

KIB = 1024
MIB = 1024 * KIB


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in seconds and are checked by a periodic sweep, so each may be exceeded by one period."""

    # The head of a request: request line and headers.
    head_bytes: int = 16 * KIB
    headers_count: int = 100
    # From the first byte of a head to its end, even if bytes arrive steadily.
    head_timeout_s: float = 60.0

    # The largest body whatever the application allows; the application chooses a limit up to it for each request.
    body_bytes: int = 64 * MIB
    # The bytes of all bodies being received, which bounds concurrent large uploads. A body is in memory twice while it
    # is joined, and a few times while it is logged, so memory grows by about twice as much.
    bodies_bytes: int = 256 * MIB
    # The maximum time for this many bytes of a body, or for its end: a slow upload must not block its budget
    # indefinitely.
    body_idle_timeout_s: float = 30.0
    body_step_bytes: int = KIB
    # A compressed body may grow by this factor; up to `inflate_free_bytes` by any factor, as small texts compress well.
    inflate_ratio: int = 200
    inflate_free_bytes: int = MIB

    # The time for which the loop polls for the next request before it sleeps (busy polling, `http.server_state`).
    awake_s: float = 0.0

    # The TLS handshake, if used.
    handshake_timeout_s: float = 10.0

    # A connection between two requests.
    keep_alive_s: float = 75.0
    connections_max: int = 20_000
    # Requests of one connection that may be in progress at once; further ones stay in the socket.
    pipeline_depth: int = 16

    # HTTP/2. Its connections have all the limits above, and each of its streams the limits of a request; the following
    # ones apply to features that HTTP/1.1 does not have.
    http2: bool = True
    # Streams of one connection that may be open at once; further ones are refused.
    http2_streams: int = 100
    # Bytes of one body, and of all bodies of a connection, that a client may send before they are acknowledged.
    http2_stream_window_bytes: int = MIB
    http2_window_bytes: int = 4 * MIB
    # Token buckets for frames that cost work without content: the burst, and the rate per second, of resets and of all
    # other frames that are not a request, body or answer (`http.h2.frames`).
    http2_resets: int = 200
    http2_resets_per_s: int = 20
    http2_idle_frames: int = 1000
    http2_idle_frames_per_s: int = 100

    # Maximum unread bytes of all clients: the fuller it is, the shorter are the responses.
    unread_bytes: int = 256 * MIB
    # Bytes a client may leave unread before no more of its requests are read.
    write_buffer_bytes: int = 256 * KIB
    # The longest time in which a client with a full buffer may read nothing.
    write_idle_timeout_s: float = 60.0
    # The excess over the maximum body size up to which a WebSocket message is read, dropped and refused. A longer one
    # closes the connection (1009).
    refused_message_bytes: int = 256 * MIB
    # The maximum number of frames of a WebSocket message, besides one for each KiB, and the burst and rate of pings and
    # pongs. Beyond that the connection is closed (1008).
    message_fragments: int = 4096
    websocket_control_frames: int = 1000
    websocket_control_frames_per_s: int = 100
    # A WebSocket that is idle for the first time gets a ping, and is closed if it stays idle for the second.
    ping_interval_s: float = 20.0
    ping_timeout_s: float = 20.0
    # Answers from this size on are compressed for clients that accept it; above the second size on a thread.
    gzip_min_bytes: int = KIB
    gzip_inline_bytes: int = 128 * KIB

    # The rest of a refused request: up to this size it is read and dropped, and the connection stays open.
    discard_bytes: int = 64 * KIB
    # If the connection ends instead: the bytes and the time for which input is still read, so that a reset does not
    # destroy the answer.
    linger_bytes: int = 8 * MIB
    linger_timeout_s: float = 5.0

    @property
    def sweep_s(self) -> float:
        """Returns the period of the sweep: a quarter of the shortest timeout, and at most a second for the Date
        header."""
        shortest = min(
            self.head_timeout_s,
            self.body_idle_timeout_s,
            self.keep_alive_s,
            self.write_idle_timeout_s,
            self.linger_timeout_s,
            self.ping_interval_s,
            self.ping_timeout_s,
        )
        return min(1.0, shortest / 4)


# Request counters. The application sets the counter of each request's route.
#
# Every answer is counted by its status. Latency is measured for each of the first 1024 answers of a counter, and from
# then on for one in sixteen: measuring each would cost a small request more than 1 percent of its time, and which
# answers are sampled does not depend on how long they take.

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_EACH = 1024
_ONE_IN = 16
_STATUSES = 600

ResponseListener = Callable[["Exchange", int, float], None]
"""Called for a sampled answer with its exchange, its status, and its duration in seconds."""


class RequestCounter:
    """The answers of one route."""

    __slots__ = ("_listener", "_seconds", "buckets", "by_status", "looked", "mask", "spent_s")

    def __init__(self, seconds: Callable[[], float], listener: ResponseListener | None = None) -> None:
        """`listener` is called for every answer, which disables sampling."""
        self._seconds = seconds
        self._listener = listener
        self.by_status = [0] * _STATUSES
        self.mask = 0
        """An answer is sampled if its number has none of these bits."""
        self.looked = 0
        self.spent_s = 0.0
        self.buckets = [0] * (len(BOUNDS_S) + 1)

    def count(self, exchange: "Exchange", status: int) -> None:
        """Counts one answer. `Exchange.respond` inlines this."""
        number = self.by_status[status] = self.by_status[status] + 1
        if not number & self.mask:
            self.look(exchange, status)

    def count_many(self, exchange: "Exchange", status: int, answers: int) -> None:
        """Counts answers that were sent together, of which this is the last."""
        before = self.by_status[status]
        self.by_status[status] = before + answers
        if (before + answers) // _ONE_IN != before // _ONE_IN:
            self.look(exchange, status)

    def look(self, exchange: "Exchange", status: int) -> None:
        spent_s = max(0.0, self._seconds() - exchange.started)
        self.looked += 1
        self.spent_s += spent_s
        self.buckets[bisect_left(BOUNDS_S, spent_s)] += 1
        if self._listener is not None:
            self._listener(exchange, status, spent_s)
        elif self.looked == _EACH:
            self.mask = _ONE_IN - 1

    def answers(self) -> list[tuple[int, int]]:
        """Returns the number of answers by status."""
        return [(status, count) for status, count in enumerate(self.by_status) if count]


class RequestHead(msgspec.Struct, eq=False, gc=False):
    """The head of a request. `target` is as received; `path` and `query` are its parts, still percent-encoded."""

    method: str
    target: bytes
    path: str
    query: str
    headers: Headers
    http_version: str
    # Whether the client wants to keep the connection alive.
    keep_alive: bool
    # Whether the client asks for another protocol. It may be answered like any other request.
    upgrade: bool = False
    # The application's value for this head, made at admission, for handling it and later requests with the same head.
    context: object = None
    # The browser origin that may read the answer, set by the application; empty for none, None if not checked.
    allow_origin: str | None = None
    # Additional headers of each response, set by the application; the head then belongs to one request only.
    answer_headers: tuple[tuple[str, str], ...] = ()
    # The client's address, host:port, if needed before there is an exchange.
    peer: str = ""
    # Whether the application accepts a long body as a `LargeBody`.
    takes_large: bool = False
    # The counter for the answer.
    counter: RequestCounter | None = None


class Answer(NamedTuple):
    """A whole answer of the application."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Sequence[tuple[str, str]] = ()


# An answer given instead of handling the request.
Refusal = Answer

# A placeholder for a head that could not be parsed, so that its refusal keeps its position in the pipeline.
UNREAD_HEAD = RequestHead("", b"", "", "", Headers({}, []), "1.1", False)


def split_target(target: bytes) -> tuple[str, str]:
    """Returns path and query of a request target: `/p?q`, `*`, or the absolute form used with proxies."""
    text = target.decode("latin-1")
    if text[0] != "/" and text != "*":
        text = _without_authority(text)
    path, _, query = text.partition("?")
    return path, query


def _without_authority(target: str) -> str:
    """Returns `/p?q` of `http://host/p?q`. The parser has verified scheme and authority."""
    rest = target.partition("://")[2]
    cut = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
    return rest[cut:] if rest[cut : cut + 1] == "/" else "/" + rest[cut:]


def can_drop_body(head: RequestHead, length: int | None, most: int) -> bool:
    """Returns whether the body of a refused request is skipped.

    Not if the client may decide not to send it: the next request could then not be distinguished from the body.
    """
    return length is not None and length <= most and head.keep_alive and "expect" not in head.headers


class Tokens:
    """A token bucket for one kind of frame that costs work and transports nothing (flood protection)."""

    __slots__ = ("_left", "_max", "_per_s", "_since")

    def __init__(self, tokens_max: int, per_s: int, now: float) -> None:
        self._max = tokens_max
        self._per_s = per_s
        self._left = float(tokens_max)
        self._since = now

    def take(self, now: float) -> bool:
        if self._left < 1.0:
            self.earn((now - self._since) * self._per_s)
            self._since = now
        self._left -= 1.0
        return self._left >= 0.0

    def earn(self, tokens: float) -> None:
        self._left = min(self._left + tokens, self._max)
