"""How a request becomes a WebSocket, or why it does not.

The library checks the request and computes the answer. No extension is ever agreed on, above all not the compression
of messages (permessage-deflate): it costs a connection a third of a megabyte and every message its CPU twice, it makes
the bytes of a message differ from client to client, so that one encoded frame could no longer be shared by all of
them, and compressing what others wrote together with secrets lets the length give them away.
"""

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import NamedTuple

from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake, InvalidHeader, InvalidUpgrade
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from topics.http.messages import RequestHead

_VERSION = "sec-websocket-version"
# The library tells of the connections it closes, which would be a line for every client that leaves.
_quiet = logging.getLogger(f"{__name__}.library")
_quiet.setLevel(logging.WARNING)


class HandshakeError(Exception):
    """The request cannot become a WebSocket."""

    def __init__(self, status: int, message: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


class Handshake(NamedTuple):
    """A request that may become a WebSocket, and what is needed for it."""

    protocol: ServerProtocol
    answer: bytes
    """The head of the answer that makes it one."""


def read_handshake(head: RequestHead) -> Handshake:
    """Raises `HandshakeError` for what is no handshake, or one that this server does not understand."""
    protocol = ServerProtocol(state=State.OPEN, logger=_quiet)
    request = Request(head.target.decode("latin-1"), _headers(head), head.method, f"HTTP/{head.http_version}")
    if head.http_version not in ("1.1", "1.0"):
        raise _not_a_websocket("it begins with a request of HTTP/1.1, on a connection of its own")
    if not head.upgrade:
        raise _not_a_websocket("the request does not ask for one")
    try:
        accept, _, _ = protocol.process_request(request)
    except InvalidUpgrade as error:
        raise _not_a_websocket(str(error)) from error
    except InvalidHandshake as error:
        if isinstance(error, InvalidHeader) and error.name.lower() == _VERSION:
            raise HandshakeError(HTTPStatus.UPGRADE_REQUIRED, str(error), ((_VERSION, "13"),)) from error
        raise HandshakeError(HTTPStatus.BAD_REQUEST, f"not a valid WebSocket handshake: {error}") from error
    return Handshake(protocol, _answer(accept))


def _headers(head: RequestHead) -> Headers:
    headers = Headers()
    for name, value in head.headers:
        headers[name] = value
    return headers


def _answer(accept: str) -> bytes:
    lines = (
        "HTTP/1.1 101 Switching Protocols",
        "upgrade: websocket",
        "connection: Upgrade",
        f"sec-websocket-accept: {accept}",
    )
    return "\r\n".join((*lines, "", "")).encode("ascii")


def _not_a_websocket(why: str) -> HandshakeError:
    message = f"this path speaks WebSocket only: {why}"
    return HandshakeError(HTTPStatus.UPGRADE_REQUIRED, message, (("upgrade", "websocket"), ("connection", "Upgrade")))
