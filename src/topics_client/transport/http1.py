"""HTTP/1.1 as bytes: the head of a request, and the parsing of an answer. No function here waits.

llhttp reads the answers, which is twice as fast as a parser in Python and strict about lengths. This module adds the
rules that depend on the request: HEAD has no body, and no bytes may follow an answer.
"""

import zlib
from collections.abc import Mapping

import httptools
import msgspec

from topics_client.errors import Unsendable

_HEAD_BYTES_MAX = 64 * 1024
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class ProtocolError(Exception):
    """The answer is not HTTP, or ends in the middle."""


class HttpRequest(msgspec.Struct, frozen=True, gc=False):
    """A request, ready to be sent."""

    method: str
    target: str
    """Path and query."""
    headers: bytes
    """Lines of them, each with its end; who is meant and how long the body is are added on the way."""
    body: bytes | None
    read_timeout_s: float
    """The longest silence that does not count as a failure."""


class Response:
    """An answer: all of it, or its head while the body is still to come."""

    __slots__ = ("content", "headers", "reason", "status")

    def __init__(self, status: int, reason: str, headers: Mapping[str, str], content: bytes = b"") -> None:
        self.status = status
        self.reason = reason
        self.headers = headers
        """By their names in small letters."""
        self.content = content

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Encodes headers. Raises `Unsendable` for a header that would not be parsed back unchanged."""
    lines = []
    for name, value in headers.items():
        if not name or not _TOKEN.issuperset(name):
            raise Unsendable(f"{name!r} is not the name of a header")
        if not value.isprintable():
            # Without the value, which may be a secret.
            raise Unsendable(f"the header {name} has characters that a header cannot carry")
        lines.append(f"{name}: {value.strip(' ')}\r\n")
    return "".join(lines).encode()


def render(request: HttpRequest, prefix: str, host_line: bytes) -> bytes:
    """A request as it is sent, to a server whose paths begin with `prefix`."""
    first = f"{request.method} {prefix}{request.target} HTTP/1.1\r\n".encode()
    if request.body is None:
        return b"%b%b%b\r\n" % (first, host_line, request.headers)
    return b"%b%b%bcontent-length: %d\r\n\r\n%b" % (first, host_line, request.headers, len(request.body), request.body)


class ResponseParser:
    """Reads one answer; `take_body` receives its body piece by piece."""

    __slots__ = (
        "_body", "_head_bytes", "_head_only", "_headers", "_parser", "_reason", "_unzip", "done", "keep_alive",
        "response",
    )  # fmt: skip

    def __init__(self, method: str) -> None:
        self.response: Response | None = None
        """The head, once it is read."""
        self.done = False
        self.keep_alive = False
        """Whether the connection can take another request; only valid when done."""
        self._head_only = method == "HEAD"
        self._head_bytes = 0
        self._headers: dict[str, str] = {}
        self._reason = b""
        self._body: list[bytes] = []
        self._unzip: zlib._Decompress | None = None
        # Each knows the other; taken apart when the answer is there, so that no garbage waits for a collector.
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Feeds received bytes; empty bytes are the end of the connection."""
        if not data:
            self._end()
            return
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__ if isinstance(error.__context__, ProtocolError) else error
            if not self.done:
                raise ProtocolError(f"the answer is not HTTP/1.1: {cause}") from error
            self.keep_alive = False
        if self.done:
            self._parser = None
        elif self.response is None:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES_MAX:
                raise ProtocolError("the head of the answer is too long")

    def take_body(self) -> bytes:
        """Returns the bytes of the body received since the last call."""
        if not self._body:
            return b""
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        return body

    def _end(self) -> None:
        if self.response is None:
            raise ProtocolError("the server closed the connection without an answer")
        headers = self.response.headers
        if "content-length" in headers or "transfer-encoding" in headers or (self._unzip and not self._unzip.eof):
            raise ProtocolError("the answer ended before its end")
        self.done = True

    # Callbacks of llhttp.

    def on_message_begin(self) -> None:
        if self.done:
            # Unrequested bytes: the next answer on this connection would belong to another request.
            self.keep_alive = False

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.done:
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").rstrip(" \t")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if self.done:
            return
        if status < 200:
            # An interim answer: the real one is still to come.
            self._headers, self._reason = {}, b""
            return
        self.response = Response(status, self._reason.decode("latin-1"), self._headers)
        self.keep_alive = self._parser.should_keep_alive()
        if self._headers.get("content-encoding", "").lower() in ("gzip", "x-gzip"):
            self._unzip = zlib.decompressobj(wbits=31)
        if self._head_only:
            self.done = True

    def on_body(self, data: bytes) -> None:
        if self.done:
            self.keep_alive = False
        elif self._unzip is None:
            self._body.append(data)
        else:
            try:
                self._body.append(self._unzip.decompress(data))
            except zlib.error as error:
                raise ProtocolError(f"what was compressed is damaged: {error}") from error

    def on_message_complete(self) -> None:
        if self.response is not None and not self.done:
            if self._unzip is not None and not self._unzip.eof:
                raise ProtocolError("what was compressed ended before its end")
            self.done = True
