"""HTTP/2 framing: cuts bytes into frames, limits floods of cheap frames, and sets up the session of the `h2` library.

    length 24 | type 8 | flags 8 | reserved 1, stream 31 | payload

The library parses frames too, but processes its whole buffer at once. Here they are separated first, so that one frame
is one step of a slice, and oversized input is refused by its first nine bytes: a frame above the announced size, and a
block of headers (HEADERS and its CONTINUATIONs) above the maximum size of a head. At most one incomplete frame is
buffered.
"""

import struct
from typing import NamedTuple

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings

from topics.http.h1.request_reader import HTTP2_PREFACE
from topics.http.messages import HttpLimits, Tokens


class ConnectionFault(Exception):
    """The connection must end with this error."""

    def __init__(self, code: ErrorCodes, message: str) -> None:
        super().__init__(message)
        self.code = code


class StreamFault(Exception):
    """One stream must be reset; the others of its connection continue."""


DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4

FRAME_BYTES_MAX = 16 * 1024
"""The maximum payload of a frame, in both directions: every peer must accept it, and it is short enough for one step of
a slice."""
LAST_STREAM = 2**31 - 1
_HEAD_BYTES = 9
_head = struct.Struct(">HBBBL")


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    length: int
    data: bytes
    """The whole frame, with the nine bytes before its payload."""


class FrameReader:
    """Splits input into frames. `block_bytes_max` is the maximum encoded length of a block of headers."""

    __slots__ = ("_at", "_block_bytes", "_block_bytes_max", "_data", "_first")

    def __init__(self, block_bytes_max: int) -> None:
        self._block_bytes_max = block_bytes_max
        self._data = b""
        self._at = 0
        self._first = True
        # The length of the incomplete block of headers.
        self._block_bytes = 0

    def add(self, data: bytes) -> None:
        left = self._data[self._at :]
        self._data = left + data if left else data
        self._at = 0

    def next(self) -> Frame | None:
        """Returns the next whole frame, if there is one. Raises `ConnectionFault`."""
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
    """Returns the GOAWAY frame, which names the last stream that is still answered.

    Encoded here, because the library sends nothing more after a GOAWAY, but a stopping server still has answers to
    send.
    """
    return _head.pack(0, 8, GOAWAY, 0, 0) + struct.pack(">LL", last_stream, code)


# Flood protection: a token bucket for each kind of frame that costs work and transports nothing.
#
# A bucket has a maximum number of tokens, is refilled each second, and gets more by real traffic. Without a token the
# connection ends with ENHANCE_YOUR_CALM.
#
# | frames | tokens | earned by |
# |---|---|---|
# | RST_STREAM, and what is reset for the client's fault | `http2_resets` | nothing: it was work for nothing |
# | PING, SETTINGS, PRIORITY, unknown ones, CONTINUATION, DATA without a byte | `http2_idle_frames` | requests, bodies |
# | WINDOW_UPDATE | as many | what it is sent: a frame may be acknowledged on its stream and on the connection |
#
# HEADERS are requests, and use the slices of their connection like requests of HTTP/1.1.

_EARNED_BY_REQUEST = 4
_EARNED_BY_FRAME_SENT = 2


class Floods:
    """Counts the cheap frames that the client of one connection sent (flood protection)."""

    __slots__ = ("_idle", "_resets", "_updates")

    def __init__(self, limits: HttpLimits, now: float) -> None:
        self._resets = Tokens(limits.http2_resets, limits.http2_resets_per_s, now)
        self._idle = Tokens(limits.http2_idle_frames, limits.http2_idle_frames_per_s, now)
        self._updates = Tokens(limits.http2_idle_frames, limits.http2_idle_frames_per_s, now)

    def check(self, frame: Frame, now: float) -> None:
        """Counts a received frame. Raises `ConnectionFault` if there are too many."""
        if frame.kind == HEADERS:
            self._idle.earn(_EARNED_BY_REQUEST)
        elif frame.kind == DATA and frame.length:
            self._idle.earn(1)
        elif frame.kind == RST_STREAM:
            self.reset(now)
        elif frame.kind == WINDOW_UPDATE:
            _spend(self._updates, "WINDOW_UPDATE", now)
        elif frame.kind != DATA or not frame.flags & END_STREAM:
            _spend(self._idle, "frames that say nothing", now)

    def reset(self, now: float) -> None:
        """Counts a stream that the client ended before it was answered."""
        _spend(self._resets, "resets", now)

    def sent(self) -> None:
        """Notes that a part of an answer was sent."""
        self._updates.earn(_EARNED_BY_FRAME_SENT)


def _spend(tokens: Tokens, what: str, now: float) -> None:
    if not tokens.take(now):
        raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, f"too many {what}")


# The session of the `h2` library, with limits for a server.

_TABLE_BYTES_MAX = 4096
"""The size of the encoder's table for headers that answers share.

A client may offer a table of any size, which would use memory here as well.
"""
_FIELD_BYTES = 32
"""Overhead of a header field besides its characters (RFC 9113, 6.5.2)."""

_CONFIGURATION = H2Configuration(
    client_side=False, validate_inbound_headers=False, normalize_inbound_headers=False,
    validate_outbound_headers=False, normalize_outbound_headers=False,
)  # fmt: skip
"""Headers are checked by `http.h2.stream`: the library would end the connection, with every stream, for a bad one."""


class Session(H2Connection):
    """The session: takes frames, returns events, and has the bytes to send."""

    # The number of ended streams that are remembered. The library's default takes megabytes for each connection.
    MAX_CLOSED_STREAMS = 512

    def __init__(self, limits: HttpLimits) -> None:
        super().__init__(_CONFIGURATION)
        streams = limits.http2_streams
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: streams,
                SettingCodes.INITIAL_WINDOW_SIZE: limits.http2_stream_window_bytes,
                SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES_MAX,
                SettingCodes.MAX_HEADER_LIST_SIZE: limits.head_bytes,
            },
        )
        self.initiate_connection()
        self.increment_flow_control_window(limits.http2_window_bytes - self.inbound_flow_control_window)
        # A stream above the limit is refused alone, because a client may have sent it before it received the limit. The
        # library would end the connection. A client that continues runs out of tokens for resets.
        self.local_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 2 * streams + 1
        self.local_settings.acknowledge()
        # Between the two limits a head is refused with a status; beyond the second its decoding stops, as protection
        # against compression bombs.
        self.decoder.max_header_list_size = 2 * (limits.head_bytes + _FIELD_BYTES * limits.headers_count)
        self.receive_data(HTTP2_PREFACE)

    def keep_table_small(self) -> None:
        """Must be called whenever the client has changed its settings."""
        if self.encoder.header_table_size > _TABLE_BYTES_MAX:
            self.encoder.header_table_size = _TABLE_BYTES_MAX
