"""A very small HTTP/1.1 server for health probes.

It answers GET and HEAD through one function that is called inline. Request bodies are read and ignored. The limits
close a connection early: a probe has no reason to be large, and the port is open before the server can serve.
"""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

import httptools
import msgspec

Answer = tuple[int, bytes]
Handler = Callable[[str, str], Answer]

HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 64 * 1024

_logger = logging.getLogger(__name__)


def error_answer(status: int, code: str, message: str, detail: dict[str, object] | None = None) -> Answer:
    """The error envelope that every refusal has."""
    error: dict[str, object] = {"code": code, "message": message}
    if detail is not None:
        error["detail"] = detail
    return status, msgspec.json.encode({"error": error})


class ProbeProtocol(asyncio.Protocol):
    """One connection. Requests are answered in the order in which they end, hence in the order in which they came."""

    def __init__(self, handler: Handler, connections: set["ProbeProtocol"]) -> None:
        self._handler = handler
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._head_bytes = 0
        self._body_bytes = 0
        # What came since the last answer: the parser hands over no part of a header line that never ends.
        self._unanswered_bytes = 0

    def close(self) -> None:
        """Ends the connection once what was answered is sent."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast and no check: the transports of uvloop do not derive from asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connections.discard(self)

    def pause_writing(self) -> None:
        # A client that asks and does not read must not fill our memory with answers.
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._unanswered_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.close()
        except httptools.HttpParserError:
            self._refuse(400, "invalid_request", "this is not HTTP/1.1")
        if self._unanswered_bytes > HEAD_BYTES_MAX + BODY_BYTES_MAX:
            self._refuse(431, "invalid_request", "the request head is too large")

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._url = b""
        self._head_bytes = 0
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > BODY_BYTES_MAX:
            self._refuse(413, "payload_too_large", f"the body exceeds {BODY_BYTES_MAX} bytes")

    def on_message_complete(self) -> None:
        self._unanswered_bytes = 0
        method = self._parser.get_method().decode("ascii")
        path = self._url.partition(b"?")[0].decode("ascii", "replace")
        self._send(self._answer(method, path), with_body=method != "HEAD", keep=self._parser.should_keep_alive())

    def _answer(self, method: str, path: str) -> Answer:
        if method not in ("GET", "HEAD"):
            return error_answer(405, "method_not_allowed", f"{method} is not allowed here")
        try:
            return self._handler(method, path)
        except Exception:
            # The parser would swallow the exception and take the connection down without a word.
            _logger.exception("probe failed", extra={"path": path})
            return error_answer(500, "internal", "the server failed to answer")

    def _count_head(self, nbytes: int) -> None:
        self._head_bytes += nbytes
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(431, "invalid_request", f"the request head exceeds {HEAD_BYTES_MAX} bytes")

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._send(error_answer(status, code, message), with_body=True, keep=False)

    def _send(self, answer: Answer, *, with_body: bool, keep: bool) -> None:
        if self._transport is None:  # Refused already; what else the parser finds in the same bytes is not answered.
            return
        status, body = answer
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\ncache-control: no-store\r\n"
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            head += "retry-after: 1\r\n"
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            head += "allow: GET, HEAD\r\n"
        if not keep:
            head += "connection: close\r\n"
        self._transport.write(head.encode("ascii") + b"\r\n" + (body if with_body else b""))
        if not keep:
            self.close()
