"""HTTP message types: headers, request heads, faults, limits and request counters."""

import enum
import functools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

import msgspec

if TYPE_CHECKING:
    from topics.http.exchange import Exchange


# The headers of a request, as they came.


@functools.lru_cache(maxsize=256)
def _key(name: str) -> bytes:
    # The names asked for are literals of the program, so the cache holds all of them.
    return name.lower().encode("latin-1")


class Headers(msgspec.Struct, eq=False, gc=False):
    """Names, which have no case and are kept in small letters, with their values; duplicates are kept too.

    Values stay bytes until they are read: most headers of most requests never are. Nearly every name occurs once, so a
    mapping holds the first value of each, and a list the few that repeat a name.
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
        """The first value of `name`, without the blanks around it."""
        value = self.first.get(_key(name))
        return default if value is None else _text(value)

    def get_all(self, name: str) -> list[str]:
        """Every value of `name`, in order."""
        key = _key(name)
        if key not in self.first:
            return []
        return [_text(self.first[key]), *(_text(value) for given, value in self.repeated if given == key)]

    def get_list(self, name: str) -> str:
        """All values of a header that is a list, as the one value they mean; empty when there is none."""
        return ", ".join(self.get_all(name))

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """All of them, as bytes: in the order in which each name first came, those that repeat one at the end."""
        yield from self.first.items()
        yield from self.repeated

    def __contains__(self, name: str) -> bool:
        return _key(name) in self.first

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((name.decode("latin-1"), _text(value)) for name, value in self.pairs())

    def __len__(self) -> int:
        return len(self.first) + len(self.repeated)


def _text(value: bytes) -> str:
    # The parser cuts blanks before a value and leaves those after it.
    return value.decode("latin-1").rstrip(" \t")


# Refusals by the HTTP layer itself. The application turns each into its own response format (`Application.refuse`);
# this is only the status, an error code and a sentence.


class Fault(enum.Enum):
    """Every refusal of the HTTP layer: its status and its sentence. The member's name is the word for programs."""

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
    """A refusal. `headers` belong into the answer whatever shape the application gives it; `most` is the bound that
    was met, where it is a setting."""

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
    """Times are in seconds and are kept by one coarse sweep, so each may run over by one period of it."""

    # The head of a request: request line and headers.
    head_bytes: int = 16 * KIB
    headers_count: int = 100
    # From the first byte of a head to its end, however steadily the bytes drip in.
    head_timeout_s: float = 60.0

    # The largest body whatever the application allows; the application chooses a limit up to it for each request.
    body_bytes: int = 64 * MIB
    # All bodies that are being received at this moment. It is what makes many large uploads at once bounded. A body is
    # there twice while it is made whole, and a few times while it is logged, so memory grows by about twice as much.
    bodies_bytes: int = 256 * MIB
    # The longest time for so many bytes of a body, or for its end: a slow upload must not hold its place indefinitely.
    body_idle_timeout_s: float = 30.0
    body_step_bytes: int = KIB
    # A compressed body may grow by this factor; up to `inflate_free_bytes` by any factor, as small texts compress well.
    inflate_ratio: int = 200
    inflate_free_bytes: int = MIB

    # How long the loop looks for the next request before it sleeps, while they come that densely
    # (`http.server_state`).
    awake_s: float = 0.0

    # The handshake of TLS, where there is one.
    handshake_timeout_s: float = 10.0

    # A connection between two requests.
    keep_alive_s: float = 75.0
    connections_max: int = 20_000
    # Requests of one connection that may be under way at once; the next ones stay in the socket.
    pipeline_depth: int = 16

    # HTTP/2, from a client that begins with it. Its connections have all the limits above, and each of its streams
    # those of a request; what a connection may do that HTTP/1.1 has no words for is bounded by these.
    http2: bool = True
    # Streams of one connection that may be open at once; the next ones are refused.
    http2_streams: int = 100
    # Bytes of one body, and of all bodies of a connection, that a client may send before they are acknowledged.
    http2_stream_window_bytes: int = MIB
    http2_window_bytes: int = 4 * MIB
    # How many frames of a kind that makes work without content may come at once, and how many more a second: resets,
    # and everything else that is not a request, body or answer (`http.h2.frames`).
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
    # How much longer than a body a message of a WebSocket may be to be read, dropped and refused. A longer one closes
    # the connection (1009).
    refused_message_bytes: int = 256 * MIB
    # The frames that one message of a WebSocket may consist of, besides one for each KiB of it, and how many pings and
    # pongs may come at once and how many more a second. Beyond that the connection is closed (1008).
    message_fragments: int = 4096
    websocket_control_frames: int = 1000
    websocket_control_frames_per_s: int = 100
    # A WebSocket that is quiet for the first time is sent a ping, and cut off when it stays quiet for the second.
    ping_interval_s: float = 20.0
    ping_timeout_s: float = 20.0
    # Answers from this size on are compressed for clients that accept it; larger ones than the second on a thread.
    gzip_min_bytes: int = KIB
    gzip_inline_bytes: int = 128 * KIB

    # The rest of a refused request: up to this size it is read and dropped and the connection lives on.
    discard_bytes: int = 64 * KIB
    # When the connection ends instead, how much and how long is read on, so that the answer is not lost to a reset.
    linger_bytes: int = 8 * MIB
    linger_timeout_s: float = 5.0

    @property
    def sweep_s(self) -> float:
        """The period of the sweep: a quarter of the shortest time, and at most a second for the Date header."""
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


# Request counters. The application gives each request the counter of its route.
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
        """One answer. `Exchange.respond` has the same in fewer steps."""
        number = self.by_status[status] = self.by_status[status] + 1
        if not number & self.mask:
            self.look(exchange, status)

    def count_many(self, exchange: "Exchange", status: int, answers: int) -> None:
        """So many answers that were given together, of which this is the last; for when not each is looked at."""
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
        """The statuses that were answered, with how often."""
        return [(status, count) for status, count in enumerate(self.by_status) if count]


class RequestHead(msgspec.Struct, eq=False, gc=False):
    """The head of a request. `target` is as received; `path` and `query` are its parts, still percent-encoded."""

    method: str
    target: bytes
    path: str
    query: str
    headers: Headers
    http_version: str
    # Whether the client wants to use the connection again.
    keep_alive: bool
    # Whether the client asks for another protocol. It may be answered like any other request.
    upgrade: bool = False
    # The application's value for this head, made at admission, for handling it and later requests with the same head.
    context: object = None
    # Which page in a browser may read the answer, as the application decided; empty is none, None that nobody asked.
    allow_origin: str | None = None
    # Additional headers of each response, set by the application; the head then belongs to one request only.
    answer_headers: tuple[tuple[str, str], ...] = ()
    # The client's address, host:port, if needed before there is an exchange.
    peer: str = ""
    # Whether the application takes a long body as a `LargeBody`, as it decided.
    takes_large: bool = False
    # Where the application wants the answer counted.
    counter: RequestCounter | None = None


class Answer(NamedTuple):
    """A whole answer, as the application gives it."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Sequence[tuple[str, str]] = ()


# An answer given instead of handling the request.
Refusal = Answer

# Stands for the head of a request whose head was never understood, so that its refusal keeps its place in the order.
UNREAD_HEAD = RequestHead("", b"", "", "", Headers({}, []), "1.1", False)


def split_target(target: bytes) -> tuple[str, str]:
    """Path and query of a request target: `/p?q`, `*`, or the absolute form that proxies are sent."""
    text = target.decode("latin-1")
    if text[0] != "/" and text != "*":
        text = _without_authority(text)
    path, _, query = text.partition("?")
    return path, query


def _without_authority(target: str) -> str:
    """`/p?q` of `http://host/p?q`. The parser has checked that a scheme and an authority are there."""
    rest = target.partition("://")[2]
    cut = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
    return rest[cut:] if rest[cut : cut + 1] == "/" else "/" + rest[cut:]


def can_drop_body(head: RequestHead, length: int | None, most: int) -> bool:
    """Whether the body of a refused request is simply read over. Not when the client may decide not to send it: then
    nobody could distinguish the next request from the body."""
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
