"""HTTP/1.1 request parsing: from bytes to requests, with limits on what may be buffered, and the framing rules.

The parser is llhttp in its strict mode, which rejects bare line ends, folded headers, a repeated or invalid
Content-Length, and Transfer-Encoding beside Content-Length. Other violations of HTTP/1.1 are rejected here. A request
with an ambiguous end of its body is refused and the connection closed (request smuggling): a proxy may have interpreted
it differently, and would take the next request for a part of this body, or the reverse.
"""

from typing import Protocol

import httptools

from topics.http.messages import Fault, Headers, HttpError, HttpLimits, RequestHead, split_target
from topics.http.request_body import Body, Budget, GzipBody, LargeBody, open_body

# Bytes are fed in pieces of at most this size, except within a body of known length. The parser cannot be stopped in
# the middle of a piece, so this bounds how many pipelined requests it can find after it should have stopped.
PIECE_BYTES = 4096

# Bodies of a known length up to this are collected without a `Body`.
_SMALL_BYTES = 16 * 1024

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_PREFACE_FOUND = "Pause on PRI/Upgrade"
_VERSION_UNKNOWN = "Invalid HTTP version"
"""The parser's message for a pause."""

# The parser returns the method as new bytes each time.
_METHODS = {
    name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT")
}


class Upgraded(Exception):
    """The request asks for another protocol, so the following `rest` may not be HTTP."""

    def __init__(self, rest: bytes) -> None:
        super().__init__(rest)
        self.rest = rest


class Http2Preface(Exception):
    """A connection begins with the HTTP/2 preface; `rest` follows it."""

    def __init__(self, rest: bytes) -> None:
        super().__init__(rest)
        self.rest = rest


class InputOver(Exception):
    """Raised by a sink to stop the parser immediately: further input is not a request."""


class RequestSink(Protocol):
    """Receives the events of the reader. Each method may raise `HttpError` or `InputOver`."""

    def on_head(self, head: RequestHead, length: int | None) -> int | None:
        """Called when a head is complete; `length` is the length of its body, None if chunked.

        Returns the limit of the body, or None to drop the request with its body.
        """
        ...

    def on_continue(self) -> None:
        """Called if the client expects 100 Continue before it sends the body."""
        ...

    def on_request(self, body: bytes | LargeBody) -> None:
        """Called when the request is complete."""
        ...


class RequestReader:
    """Reads the requests of a connection, one after the other."""

    __slots__ = (
        "_body", "_budget", "_dropping", "_head_slack", "_headers", "_idle_bytes", "_limits", "_parser", "_replay",
        "_sink", "_small", "_url", "body_left", "in_body", "progress",
    )  # fmt: skip

    def __init__(self, sink: RequestSink, limits: HttpLimits, budget: Budget) -> None:
        self._sink = sink
        self._limits = limits
        self._budget = budget
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers = Headers({}, [])
        self._body: Body | None = None
        # The body instead, if it is small, plain and of known length, so that no limits apply.
        self._small = b""
        self._dropping = False
        self._replay: bytes | None = None
        self.in_body = False
        # The number of bytes that certainly belong to the current body; 0 for a chunked one.
        self.body_left = 0
        # Incremented when a head ends, a body continues or a request ends. Bytes without such progress are counted:
        # they belong to a head, a trailer or a chunk extension, whose lengths are limited.
        self.progress = 0
        self._idle_bytes = 0
        self._head_slack = limits.head_bytes - PIECE_BYTES

    @property
    def piece_bytes(self) -> int:
        """Returns the number of bytes to feed at a time: all that certainly belong to a body, but only a few of a
        compressed one, because they may expand."""
        return PIECE_BYTES if isinstance(self._body, GzipBody) else max(PIECE_BYTES, self.body_left)

    @property
    def in_head(self) -> bool:
        return bool(self._url)

    def feed(self, data: bytes | memoryview) -> None:
        """Parses more bytes. Raises `HttpError` for a refusal, `Upgraded`, and exceptions of the sink."""
        parser = self._parser
        if parser is None:
            return
        before = self.progress
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._after_upgrade(bytes(data[upgrade.args[0] :]))
        except httptools.HttpParserCallbackError as error:
            # The parser wraps exceptions of the callbacks below.
            raise error.__context__ or error from None
        except httptools.HttpParserError as error:
            if str(error) == _PREFACE_FOUND and self._limits.http2 and not self.progress:
                # The parser stops at the end of the preface, whose beginning may have been in earlier pieces.
                raise Http2Preface(bytes(data[len(HTTP2_PREFACE) - self._idle_bytes :])) from None
            if str(error) == _VERSION_UNKNOWN:
                raise HttpError(Fault.UNSUPPORTED_VERSION) from None
            raise HttpError(Fault.MALFORMED, f"{Fault.MALFORMED.value[1]}: {error}") from None
        if self.progress != before:
            self._idle_bytes = 0
        else:
            self._idle_bytes += len(data)
            if self._idle_bytes > self._limits.head_bytes:
                raise _head_too_large(self._limits)

    def release(self) -> None:
        """Releases all state; no more input is read. Must not be called from within `feed`."""
        if self._parser is None:
            return
        # The parser and the sink reference this object: the cycle is broken, so that a lost connection need not wait
        # for the garbage collector.
        self._parser = None
        del self._sink
        self._headers = Headers({}, [])
        self._small = b""
        if self._body is not None:
            self._body.release()
            self._body = None

    # Callbacks of the parser. on_message_begin is not needed.

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        # `Headers.add`, inlined, because this is the hottest line of the layer.
        name = name.lower()
        headers = self._headers
        if name in headers.first:
            headers.repeated.append((name, value))
        else:
            headers.first[name] = value

    def on_headers_complete(self) -> None:
        headers, target = self._headers, self._url
        self._headers, self._url = Headers({}, []), b""
        self.progress += 1
        self.in_body = True
        first = headers.first
        if headers.repeated or len(first) > self._limits.headers_count or self._idle_bytes > self._head_slack:
            check_head_size(headers, target, self._limits)
        head = self._head(target, headers)
        length: int | None = 0
        if b"content-length" in first:
            length = int(first[b"content-length"])
        elif b"transfer-encoding" in first:
            _check_transfer_encoding(head)
            length = None
        self.body_left = length or 0
        if head.upgrade and length != 0:
            self._replay = _without_upgrade(head)
            return
        limit = self._sink.on_head(head, length)
        if limit is None:
            self._dropping = True
        elif length != 0:
            self._open_body(head, length, limit)

    def on_body(self, part: bytes) -> None:
        nbytes = len(part)
        self.progress += nbytes
        if self.body_left:
            self.body_left -= nbytes
        if self._body is not None:
            self._body.add(part)
        elif not self._dropping:
            self._small = self._small + part if self._small else part

    def on_message_complete(self) -> None:
        # A complete request counts as progress.
        self.progress += self._limits.body_step_bytes
        self.in_body = False
        if self._headers.first:
            # Trailers are ignored, and must not become headers of the next request.
            self._headers = Headers({}, [])
        if self._dropping or self._replay is not None:
            self._dropping = False
            return
        body = self._body
        if body is None:
            small = self._small
            self._small = b""
            self._sink.on_request(small)
        else:
            whole = body.finish()
            self._body = None
            self._sink.on_request(whole)

    # Helpers.

    def _head(self, target: bytes, headers: Headers) -> RequestHead:
        parser = self._parser
        assert parser is not None
        raw_method = parser.get_method()
        method = _METHODS.get(raw_method) or raw_method.decode("latin-1")
        first = headers.first
        keep_alive = parser.should_keep_alive()
        version = "1.1"
        # Reading the version is slow, and without a Connection header only 1.1 keeps a connection alive.
        if not keep_alive or b"connection" in first:
            version = parser.get_http_version()
            if version not in ("1.1", "1.0"):
                raise HttpError(Fault.UNSUPPORTED_VERSION)
        if b"host" not in first:
            if version == "1.1":
                raise HttpError(Fault.BAD_HOST)
        elif headers.repeated and len(headers.get_all("host")) > 1:
            raise HttpError(Fault.BAD_HOST)
        if method == "CONNECT":
            raise HttpError(Fault.UNSUPPORTED_METHOD)
        upgrade = b"upgrade" in first and parser.should_upgrade()
        path, query = split_target(target)
        return RequestHead(method, target, path, query, headers, version, keep_alive, upgrade)

    def _open_body(self, head: RequestHead, length: int | None, limit: int) -> None:
        first = head.headers.first
        limit = min(limit, self._limits.body_bytes)
        encoded = b"content-encoding" in first
        if length is None or encoded or length > _SMALL_BYTES or length > limit:
            encoding = head.headers.get_list("content-encoding") if encoded else ""
            self._body = open_body(encoding, length, limit, self._limits, self._budget, head.takes_large)
        if b"expect" in first and head.http_version == "1.1":
            if head.headers.get_list("expect").lower() != "100-continue":
                raise HttpError(Fault.EXPECTATION_FAILED)
            self._sink.on_continue()

    def _after_upgrade(self, rest: bytes) -> None:
        """Restarts the parser after a request that asked for another protocol.

        The parser treats every byte after such a head as the other protocol. That is right for a head without a body.
        With a body (Java's client requests h2c with every first POST) the upgrade is ignored, as a server may: the head
        is parsed again without it.
        """
        replay, self._replay = self._replay, None
        self._parser = httptools.HttpRequestParser(self)
        if replay is None:
            raise Upgraded(rest)
        self.feed(replay)
        if rest:
            self.feed(rest)


def check_head_size(headers: Headers, target: bytes, limits: HttpLimits) -> None:
    nbytes = len(target) + sum(len(name) + len(value) + 4 for name, value in headers.pairs())
    if len(headers) > limits.headers_count or nbytes > limits.head_bytes:
        raise _head_too_large(limits)


def _head_too_large(limits: HttpLimits) -> HttpError:
    return HttpError(
        Fault.HEAD_TOO_LARGE, f"the request head exceeds {limits.head_bytes} bytes or {limits.headers_count} headers"
    )


def _check_transfer_encoding(head: RequestHead) -> None:
    if head.http_version != "1.1":
        raise HttpError(Fault.BAD_FRAMING, "HTTP/1.0 has no Transfer-Encoding")
    if head.headers.get_list("transfer-encoding").lower() != "chunked":
        raise HttpError(Fault.UNSUPPORTED_TRANSFER_ENCODING)


def _without_upgrade(head: RequestHead) -> bytes:
    lines = [b"%b %b HTTP/%b" % (head.method.encode("latin-1"), head.target, head.http_version.encode("ascii"))]
    lines += [b"%b: %b" % pair for pair in head.headers.pairs() if pair[0] != b"upgrade"]
    return b"\r\n".join(lines) + b"\r\n\r\n"
