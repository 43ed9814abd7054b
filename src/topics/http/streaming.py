"""Streaming responses without a known length, such as server-sent events, and protocol upgrades."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from topics.http.output_backpressure import FLOOR_BYTES, Account

if TYPE_CHECKING:
    from topics.http.server_state import ServerState

_logger = logging.getLogger(__name__)


class Upgrade(NamedTuple):
    """A connection that is no longer HTTP. `leftover` are bytes after the request, for the new protocol.

    The new owner registers with `server_state`, so that it is swept and stopped together with the other connections.
    """

    transport: asyncio.Transport
    leftover: bytes
    server_state: "ServerState"


class StreamChannel(Protocol):
    """The interface of a connection for a streaming response."""

    @property
    def write_paused(self) -> bool: ...

    def write(self, data: bytes) -> bool:
        """Sends bytes. Returns whether the client can take more immediately."""
        ...

    def end_stream(self, *, last: bool) -> None:
        """Ends the stream; later answers of the connection may continue, unless it was the last."""
        ...

    @property
    def buffered_bytes(self) -> int: ...

    def room(self, account: Account) -> int: ...


class Stream:
    """The sending side of a streaming response.

    `write` never refuses. False states that the client reads too slowly, and further writes fill the memory. `on_drain`
    is called each time the output was read. Earlier answers of the connection are sent first; until then the stream
    counts as full. All methods are called on the loop's thread.
    """

    __slots__ = ("_channel", "_chunked", "_closed", "_drained", "_held", "_last", "_lost", "_muted", "_on_disconnect")

    def __init__(self, *, chunked: bool, muted: bool) -> None:
        self._channel: StreamChannel | None = None
        self._chunked = chunked
        # A response to HEAD: it has the same head and no body.
        self._muted = muted
        self._held: list[bytes] = []
        self._closed = False
        self._last = False
        self._lost = False
        self._drained: Callable[[], None] | None = None
        self._on_disconnect: Callable[[], None] | None = None

    @classmethod
    def lost(cls) -> "Stream":
        """Returns a stream to a disconnected client."""
        stream = cls(chunked=False, muted=True)
        stream._lost = stream._closed = True
        return stream

    def write(self, data: bytes) -> bool:
        """Sends `data`, or drops it if the client has disconnected.

        Returns whether the client can take more immediately.
        """
        if self._closed or self._muted or not data:
            return not self._lost
        return self._send(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def write_pieces(self, pieces: list[bytes]) -> bool:
        """Like `write`, for data in pieces, which are copied once, into one chunk."""
        if self._closed or self._muted or not pieces:
            return not self._lost
        if self._chunked:
            pieces = [b"%x\r\n" % sum(map(len, pieces)), *pieces, b"\r\n"]
        return self._send(b"".join(pieces))

    def _send(self, data: bytes) -> bool:
        channel = self._channel
        if channel is None:
            self._held.append(data)
            return False
        return channel.write(data)

    def write_chunk(self, chunk: bytes) -> bool:
        """Like `write`, for an encoded HTTP chunk that is shared by many chunked streams."""
        if self._closed or self._muted:
            return not self._lost
        return self._send(chunk)

    @property
    def chunk_writer(self) -> Callable[[bytes], bool] | None:
        """Returns a direct `write_chunk` while the stream is open and is the current response: for writers to thousands
        of streams, which stop when `on_disconnect` is called."""
        channel = self._channel
        return None if channel is None or self._closed or self._muted or not self._chunked else channel.write

    def close(self, *, last: bool = False) -> None:
        """Ends the response, and with `last` the connection too. Everything written before is still sent."""
        if self._closed:
            return
        self._closed = True
        self._last = last
        if self._chunked and not self._muted:
            self._held.append(b"0\r\n\r\n")
        if self._channel is not None:
            self._end(self._channel)

    def on_drain(self, callback: Callable[[], None]) -> None:
        """`callback` is called whenever a full stream can take more."""
        self._drained = callback

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """`callback` is called once, if the client disconnects before `close`."""
        if self._lost:
            callback()
        else:
            self._on_disconnect = callback

    @property
    def chunked(self) -> bool:
        """Whether it uses chunks: a client of HTTP/1.0 gets plain bytes."""
        return self._chunked

    @property
    def writable(self) -> bool:
        """Whether a write would be sent immediately, to a client without unread output."""
        channel = self._channel
        return channel is not None and not self._closed and not channel.write_paused

    @property
    def buffered_bytes(self) -> int:
        """The number of written bytes not yet accepted by the connection."""
        held = sum(map(len, self._held))
        return held if self._channel is None else held + self._channel.buffered_bytes

    def room(self, account: Account) -> int:
        """The number of bytes that may be written at once; it shrinks with the unread bytes of its account and of all
        clients."""
        return FLOOR_BYTES if self._channel is None else self._channel.room(account)

    # Called by the connection.

    def begin(self, channel: StreamChannel) -> None:
        """Called at this response's turn, after its head was sent."""
        self._channel = channel
        if self._closed:
            self._end(channel)
            return
        held, self._held = b"".join(self._held), []
        if held:
            channel.write(held)
        if not channel.write_paused:
            self.drained()

    def drained(self) -> None:
        if self._drained is not None and not self._closed:
            _call(self._drained)

    def lose(self) -> None:
        """Called when the client has disconnected. May be called more than once."""
        self._channel = None
        self._held = []
        self._drained = None
        callback, self._on_disconnect = self._on_disconnect, None
        self._lost = True
        if callback is not None and not self._closed:
            self._closed = True
            _call(callback)
        self._closed = True

    def _end(self, channel: StreamChannel) -> None:
        held, self._held = b"".join(self._held), []
        if held:
            channel.write(held)
        self._channel = self._drained = self._on_disconnect = None
        channel.end_stream(last=self._last)


def _call(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:
        _logger.exception("stream handler failed")
