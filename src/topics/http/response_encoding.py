"""Response encoding: heads and bodies as bytes, and gzip.

    HTTP/1.1 200 OK
    date: Thu, 01 Jan 1970 00:00:00 GMT        cached; the sweep updates it
    content-type: application/json
    <headers of the handler>
    connection: close | keep-alive             only where it differs from the version's default
    content-length: 123

Everything down to the content type is the same for all responses of a second with the same status and type, so it is
made once a second for each pair and kept in `prefixes`.
"""

import asyncio
import functools
import zlib
from collections.abc import Callable, Iterable
from email.utils import formatdate
from http import HTTPStatus

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

# From here on head and body are handed to the transport as two pieces, for joining them would copy the body.
JOINED_BYTES_MAX = 32 * 1024

# The last lines of small answers, made once.
LENGTH_LINES = tuple(b"content-length: %d\r\n\r\n" % length for length in range(1024))

_BODILESS = frozenset((HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED))


def is_bodiless(status: int) -> bool:
    """Statuses whose answers end with the head, whatever the handler gave as a body."""
    return status in _BODILESS or status < HTTPStatus.OK


class Renderer:
    """Makes the bytes of answers; one for a server."""

    __slots__ = ("_bare", "_date", "_second", "prefixes")

    def __init__(self) -> None:
        self._second = -1
        self._date = b""
        # Statuses without a body are never in here: whoever finds a prefix may add a length and a body.
        self.prefixes: dict[tuple[int, str], bytes] = {}
        self._bare: dict[int, bytes] = {}
        """Beginnings of answers without a content type: of those without a body, and what the others go on from."""
        self.set_time(0)

    def set_time(self, now_ms: int) -> None:
        second = now_ms // 1000
        if second != self._second:
            self._second = second
            self._date = formatdate(second, usegmt=True).encode("ascii")
            self.prefixes = {}
            self._bare = {}

    def prefix(self, status: int, content_type: str) -> bytes:
        """Status line, date and content type; an empty content type gives no such line."""
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
        """The pieces of a whole answer. `head_only` is for HEAD: the length is told and the body is not sent."""
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
    """The Connection header, where it must say something: each version has its own default."""
    if http_version == "1.1":
        return b"" if keep else b"connection: close\r\n"
    return b"connection: keep-alive\r\n" if keep else b"connection: close\r\n"


def header_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Raises `ValueError` for what would end a line early: a caller's text in a header must not forge another one."""
    lines = [f"{name}: {value}\r\n" for name, value in headers]
    text = "".join(lines)
    # Looked at together, because some answers have thirty.
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

# The lowest level: on JSON it gives most of the saving for a third of the time of the usual one.
_LEVEL = 1
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


def compress(body: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    return compressor.compress(body) + compressor.flush()


def compress_later(body: bytes, done: Callable[[bytes], None]) -> None:
    """Compresses on a thread and calls `done` on the loop."""

    def compressed(future: asyncio.Future[bytes]) -> None:
        if not future.cancelled():
            # A thread that fails, for want of memory, leaves the body as it is.
            done(body if future.exception() else future.result())

    asyncio.get_running_loop().run_in_executor(None, compress, body).add_done_callback(compressed)


@functools.lru_cache(maxsize=256)
def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding value prefers gzip to the plain body, or likes them alike.

    Cached because a client sends the same value with every request; the cache is small and old values leave it.
    """
    qualities: dict[str, float] = {}
    for item in accept_encoding.lower().split(","):
        coding, _, parameters = item.partition(";")
        qualities[coding.strip()] = _quality(parameters)
    anything = qualities.get("*", 0.0)
    gzip = max(qualities.get("gzip", anything), qualities.get("x-gzip", 0.0))
    return gzip > 0 and gzip >= qualities.get("identity", 0.0)


def _quality(parameters: str) -> float:
    """The weight of a coding: 1 unless it says otherwise, 0 for what is no number from 0 to 1."""
    name, _, value = parameters.partition("=")
    if not name.strip():
        return 1.0
    try:
        quality = float(value)
    except ValueError:
        return 0.0
    return quality if name.strip() == "q" and 0.0 <= quality <= 1.0 else 0.0
