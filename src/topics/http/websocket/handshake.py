"""WebSocket handshake, and frames that are encoded once for all clients.

The library checks the request and computes the response. No extension is ever negotiated, above all not compression of
messages (permessage-deflate): it costs a connection a third of a megabyte and every message its CPU twice, it makes the
bytes of a message differ from client to client, so that one encoded frame could no longer be shared by all of them, and
compressing text of others together with secrets leaks them through the length.
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


# Text frames, encoded without the library.
#
# A frame of a server is not masked, so the bytes of a message are the same for every client that gets it: they are made
# once and written to as many transports as there are. A frame with a text is its header in front of the text:
#
#     81            the only frame of a message, text
#     00..7d        the length, if it is below 126
#     7e nnnn       the length in two bytes, if it fits
#     7f nnnnnnnnnnnnnnnn                      otherwise in eight
#
# `Frame.serialize` of the library gives the same bytes in five times the time (1.1 against 0.2 microseconds), which
# every answer to every command would pay.

_TEXT = 0x81
_SHORT_MAX = 125
_TWO_BYTES_MAX = 0xFFFF


def text_frame(text: bytes) -> bytes:
    """A whole message as one frame. `text` has to be UTF-8; what makes it is trusted with that."""
    return _head(len(text)) + text


def text_frames(texts: Sequence[bytes]) -> bytes:
    """Several of them, one behind the other."""
    if len(texts) == 1:
        return text_frame(texts[0])
    sizes = set(map(len, texts))
    if len(sizes) == 1:
        # As most are that are said at once.
        head = _head(sizes.pop())
        return head + head.join(texts)
    return b"".join(map(text_frame, texts))


def _head(nbytes: int) -> bytes:
    if nbytes <= _SHORT_MAX:
        return bytes((_TEXT, nbytes))
    if nbytes <= _TWO_BYTES_MAX:
        return b"\x81\x7e" + nbytes.to_bytes(2, "big")
    return b"\x81\x7f" + nbytes.to_bytes(8, "big")
