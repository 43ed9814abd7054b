"""Heads that a client sends again and again.

Nearly every client sends the same head with each request of a kind, byte for byte. A request that comes whole, while
nothing else is under way on its connection, and whose head is known, needs no parser: the same bytes mean the same
head, and the application has admitted it before. This takes a third of the work out of a small request.

A connection knows only what itself has sent. So nobody can find out by trying whether another's head, with the key in
it, is known; and a connection that sends ever new heads forgets the old ones and costs bounded memory.
"""

from typing import NamedTuple

from topics.http.messages import RequestHead

HEAD_END = b"\r\n\r\n"

_KNOWN_MAX = 8
_HEAD_BYTES_MAX = 2048
# A larger body hardly ever comes in one piece, and its memory is to be counted (`http.bodies`).
_BODY_BYTES_MAX = 128 * 1024
# With one of these the head alone does not say how the request is read.
_SPECIAL = (b"expect", b"content-encoding", b"transfer-encoding")


class Repeat(NamedTuple):
    head: RequestHead
    lead: bytes
    """Everything before the body."""
    nbytes: int
    """Of the whole request."""


def remember(
    known: dict[bytes, Repeat], candidate: bytes, head: RequestHead, length: int | None, body_bytes_max: int
) -> None:
    """Makes a head known that was admitted, unless requests with it need a closer look each time."""
    first = head.headers.first
    if length is None or length > min(body_bytes_max, _BODY_BYTES_MAX) or len(candidate) > _HEAD_BYTES_MAX:
        return
    for name in _SPECIAL:
        if name in first:
            return
    if len(known) >= _KNOWN_MAX:
        known.clear()
    lead = candidate + HEAD_END
    known[candidate] = Repeat(head, lead, len(lead) + length)
