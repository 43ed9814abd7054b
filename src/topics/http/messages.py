"""What a request says before its body, and what a refusal says."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from topics.http.headers import Headers
from topics.http.tallies import Tally


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
    # What the application found in the head when it admitted the request, for when it handles it and for the next
    # request with the same head.
    context: object = None
    # Which page in a browser may read the answer, as the application decided; empty is none, None that nobody asked.
    allow_origin: str | None = None
    # What every answer says besides, as the application decided; the head is then of one request only.
    answer_headers: tuple[tuple[str, str], ...] = ()
    # The client's address, host:port, where somebody asks for it before there is an exchange.
    peer: str = ""
    # Whether the application takes a long body as a `LargeBody`, as it decided.
    takes_large: bool = False
    # Where the application wants the answer counted.
    tally: Tally | None = None


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
    nobody could tell the next request from the body."""
    return length is not None and length <= most and head.keep_alive and "expect" not in head.headers
