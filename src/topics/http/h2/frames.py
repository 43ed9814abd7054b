"""From the bytes of a connection to whole frames, before anything is made of them.

    length 24 | type 8 | flags 8 | reserved 1, stream 31 | payload

The library reads frames too, and takes whatever lies in its buffer in one go. Here they are cut apart first, so that
one frame is one step of a connection's turn, and so that what is too long is refused by its first nine bytes: a frame
above the size that was announced, and a block of headers (HEADERS and its CONTINUATIONs) above the size of any head. At
most one frame that is not complete is kept.
"""

import struct
from typing import NamedTuple

from h2.errors import ErrorCodes

from topics.http.h2.errors import ConnectionFault

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4

FRAME_BYTES_MAX = 16 * 1024
"""The payload of a frame, in both directions: what every side must take, and short enough to take turns by."""
LAST_STREAM = 2**31 - 1
_HEAD_BYTES = 9
_head = struct.Struct(">HBBBL")


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    length: int
    data: bytes
    """All of it, with the nine bytes before its payload."""


class FrameReader:
    """Cuts what comes into frames. `block_bytes_max` is how long a block of headers may be as it is sent."""

    __slots__ = ("_at", "_block_bytes", "_block_bytes_max", "_data", "_first")

    def __init__(self, block_bytes_max: int) -> None:
        self._block_bytes_max = block_bytes_max
        self._data = b""
        self._at = 0
        self._first = True
        # Of the block of headers that is not complete.
        self._block_bytes = 0

    def add(self, data: bytes) -> None:
        left = self._data[self._at :]
        self._data = left + data if left else data
        self._at = 0

    def next(self) -> Frame | None:
        """The next whole frame, if there is one. Raises `ConnectionFault`."""
        at = self._at
        if len(self._data) - at < _HEAD_BYTES:
            return None
        high, low, kind, flags, stream_id = _head.unpack_from(self._data, at)
        length = high << 8 | low
        if length > FRAME_BYTES_MAX:
            raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
        if kind in (HEADERS, CONTINUATION) and self._block_bytes + length > self._block_bytes_max:
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, "the headers are too long")
        if self._first and (kind != SETTINGS or flags & ACK):
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        end = at + _HEAD_BYTES + length
        if len(self._data) < end:
            return None
        self._first = False
        if kind in (HEADERS, CONTINUATION):
            self._block_bytes = 0 if flags & END_HEADERS else self._block_bytes + length
        self._at = end
        return Frame(kind, flags, stream_id & LAST_STREAM, length, self._data[at:end])


def goaway(last_stream: int, code: int = ErrorCodes.NO_ERROR) -> bytes:
    """The frame that says which streams are still answered.

    Made here, as the library sends nothing more once it has sent one: a server that stops has answers to give.
    """
    return _head.pack(0, 8, GOAWAY, 0, 0) + struct.pack(">LL", last_stream, code)
