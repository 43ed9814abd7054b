"""A WebSocket on a connection that HTTP gave away: messages in order, and an end that loses nothing.

The library's protocol reads the frames and knows the rules of the peers' handshake; here is what it leaves open:

- Bytes are read in small pieces, and not at all while the peer does not read what it is sent or the receiver asked for
  a pause. What was read before waits, at most a piece of it.
- A message may be as long as a body of HTTP and counts in the same budget while it is on its way.
- What is written goes straight to the transport, as frames that are made once for all who get them.
- A peer that closes is answered after the receiver has finished what the peer sent before it.
- Nobody has a timer. The sweep of the HTTP server asks every connection what it waits for, and since when:

| the connection | has | and then |
|---|---|---|
| is quiet | `ping_interval_s` | it is sent a ping |
| stays quiet | `ping_timeout_s` | it is cut off: the peer is gone and nobody told us |
| does not take what it is sent | `write_idle_timeout_s` | it is cut off |
| is closing | `linger_timeout_s` | it is cut off |
"""

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Event, State

from topics.http.errors import HttpError
from topics.http.exchange import Exchange
from topics.http.limits import KIB
from topics.http.websocket_handshake import Handshake

# A piece of this size holds some thousand of the smallest frames, which is the most that waits when reading stops.
_PIECE_BYTES = 16 * KIB
# Answers gathered while a piece is read are sent when they are this many bytes, so that a full transport is noticed.
_GATHERED_BYTES_MAX = 64 * KIB
# Unfinished messages up to this size are not counted in the budget of bodies.
_UNCOUNTED_BYTES = 64 * KIB

# What stands still, where it is no number of bytes.
_QUIET = -1
_CLOSING = -2

_logger = logging.getLogger(__name__)


class Receiver(Protocol):
    """Who gets the messages. All of it is called on the loop's thread, one call at a time."""

    def on_text(self, text: bytes) -> None:
        """A text message. It is valid UTF-8."""
        ...

    def on_binary(self, data: bytes) -> None: ...

    def on_drain(self) -> None:
        """The peer did not keep up, and does again."""
        ...

    def on_closing(self) -> None:
        """The peer sends no more. `WebSocket.finish` says that it was answered everything it is going to be."""
        ...

    def on_gone(self) -> None:
        """The connection is over, called once whatever ended it. Nothing can be sent any more."""
        ...


class Stage(enum.Enum):
    OPEN = enum.auto()
    # The peer closed, or broke the rules: it is answered once the receiver has finished.
    FINISHING = enum.auto()
    # We closed, and wait for the peer to say so, too.
    CLOSING = enum.auto()
    # Both said it, or nobody needs to. We wait for the end of the connection, lest a reset takes our last words.
    ENDING = enum.auto()
    GONE = enum.auto()


class WebSocket(asyncio.Protocol):
    """One connection, after its handshake."""

    __slots__ = (
        "_discarded_bytes",
        "_frames",
        "_gathered",
        "_gathered_bytes",
        "_gathering",
        "_heard",
        "_held",
        "_hub",
        "_message",
        "_message_is_text",
        "_pinged",
        "_protocol",
        "_reading",
        "_receiver",
        "_since",
        "_stage",
        "_stuck_at",
        "_taken_bytes",
        "_transport",
        "_unread",
        "_write_paused",
    )

    _receiver: Receiver

    def __init__(self, exchange: Exchange, handshake: Handshake) -> None:
        """Takes the connection of `exchange` over and answers the handshake. `begin` starts the reading."""
        transport, leftover, hub = exchange.upgrade()
        self._transport = transport
        self._hub = hub
        self._protocol = handshake.protocol
        self._protocol.max_message_size = hub.limits.body_bytes
        self._stage = Stage.OPEN
        self._unread: bytes | memoryview = leftover
        # Frames that are read and not yet given out.
        self._frames: deque[Event] = deque()
        # The parts of a message that came so far, when it comes in several frames.
        self._message = bytearray()
        self._message_is_text = False
        # What unfinished messages hold of the budget.
        self._taken_bytes = 0
        self._discarded_bytes = 0

        # Whether the transport reads.
        self._reading = True
        # Whether the receiver wants no messages for now.
        self._held = False
        self._write_paused = transport.get_write_buffer_size() > hub.limits.write_buffer_bytes
        # While frames are given out, what is written is gathered for one write.
        self._gathering = False
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0

        # For the sweep: whether the peer was heard since the last one, and since when nothing moved.
        self._heard = True
        self._pinged = False
        self._since = 0.0
        self._stuck_at = _QUIET

        transport.set_protocol(self)
        hub.adopt(self)
        self._send(handshake.answer)

    def begin(self, receiver: Receiver) -> None:
        """Gives messages to `receiver` from now on."""
        self._receiver = receiver
        self._read_on()

    # What the receiver calls.

    def write(self, frame: bytes) -> bool:
        """Sends bytes that are whole frames, see `text_frame`, or drops them when the connection is ending. Returns
        whether the peer can take more at once; whoever writes on regardless fills the memory."""
        if self._stage not in (Stage.OPEN, Stage.FINISHING):
            return False
        if not self._gathering:
            self._send(frame)
        else:
            self._gathered.append(frame)
            self._gathered_bytes += len(frame)
            if self._gathered_bytes > _GATHERED_BYTES_MAX:
                self._flush()
        return not self._write_paused

    @property
    def writable(self) -> bool:
        """Whether a write would go straight to a peer that keeps up."""
        return not self._write_paused and self._stage in (Stage.OPEN, Stage.FINISHING)

    @property
    def open(self) -> bool:
        """Whether neither side has begun to close."""
        return self._stage is Stage.OPEN

    @property
    def buffered_bytes(self) -> int:
        """What is written and not yet taken by the peer's side of the connection."""
        if self._stage is Stage.GONE:
            return 0
        return self._transport.get_write_buffer_size() + self._gathered_bytes

    def hold(self) -> None:
        """No messages for now: the receiver has enough. More than one call needs only one `release`."""
        self._held = True
        if not self._gathering:
            self._throttle()

    def release(self) -> None:
        """Messages again. Those that wait are given out in the next turn of the loop."""
        if self._held:
            self._held = False
            if not self._gathering:
                self._hub.call_soon(self._read_on)

    def finish(self) -> None:
        """Everything is sent that the peer will get: completes the closing that the peer began."""
        if self._stage is Stage.FINISHING:
            self._complete()

    def close(self, code: int = CloseCode.GOING_AWAY, reason: str = "the server is shutting down") -> None:
        """Begins to close. What was written before is still sent; what the peer still sends is dropped."""
        if self._stage is Stage.FINISHING or (self._stage is Stage.OPEN and self._protocol.state is not State.OPEN):
            # The peer was first, or broke a rule: its reason counts.
            self._complete()
        elif self._stage is Stage.OPEN:
            self._flush()
            self._stage = Stage.CLOSING
            # Only messages: the bytes behind them may begin in the middle of a frame and end with the peer's answer.
            self._drop_messages()
            self._protocol.send_close(code, reason)
            self._send_control()
            if not self._gathering:
                self._hub.call_soon(self._read_on)

    def abort(self) -> None:
        """Ends it at once."""
        if self._stage is not Stage.GONE:
            self._transport.abort()

    # What the server calls, besides `close` and `abort`.

    @property
    def owes(self) -> bool:
        """Whether the end has not come yet: closing takes an answer of the peer."""
        return self._stage is not Stage.GONE

    def expect_end(self) -> None:
        """The server stops."""
        self.close()

    def sweep(self, now: float) -> None:
        """See the table above."""
        if self._stage is Stage.GONE:
            return
        limits = self._hub.limits
        if self._stage is not Stage.OPEN:
            if self._stuck_s(now, _CLOSING) >= limits.linger_timeout_s:
                self._transport.abort()
        elif self._write_paused:
            if self._stuck_s(now, self._transport.get_write_buffer_size()) >= limits.write_idle_timeout_s:
                self._transport.abort()
        elif self._heard or not self._reading:
            self._heard = self._pinged = False
            self._since, self._stuck_at = now, _QUIET
        elif now - self._since >= (limits.ping_timeout_s if self._pinged else limits.ping_interval_s):
            self._ping_or_give_up(now)

    # What the event loop calls.

    def data_received(self, data: bytes) -> None:
        self._hub.counters.bytes_in += len(data)
        self._heard = True
        if self._stage in (Stage.FINISHING, Stage.ENDING):
            self._discarded_bytes += len(data)
            if self._discarded_bytes > self._hub.limits.linger_bytes:
                self._transport.abort()
            return
        self._unread = bytes(self._unread) + data if self._unread else data
        self._read_on()

    def eof_received(self) -> None:
        """The peer sends no more. Without a word of closing before, it is gone; the transport closes itself."""

    def pause_writing(self) -> None:
        self._write_paused = True
        self._throttle()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._stage in (Stage.OPEN, Stage.FINISHING):
            self._call(self._receiver.on_drain)
        self._read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stage is Stage.GONE:
            return
        self._stage = Stage.GONE
        self._drop_input()
        self._gathered = []
        # The parser is a generator that holds the protocol that holds it: this should not wait for a collection.
        self._protocol.parser.close()
        self._hub.abandon(self)
        if hasattr(self, "_receiver"):
            self._call(self._receiver.on_gone)
            del self._receiver

    # Reading.

    def _read_on(self) -> None:
        """Gives out what can be given out now. Never entered twice: a receiver may answer, and so make room, inside."""
        if self._gathering or not hasattr(self, "_receiver"):
            return
        self._gathering = True
        try:
            while self._stage is not Stage.GONE and not self._is_held_back:
                if self._frames:
                    self._give_out(self._frames.popleft())
                elif self._protocol.state is not State.OPEN and self._stage is Stage.OPEN:
                    self._stage = Stage.FINISHING
                    self._call(self._receiver.on_closing)
                elif not self._read_piece():
                    break
        finally:
            self._gathering = False
        self._flush()
        self._throttle()

    @property
    def _is_held_back(self) -> bool:
        # While closing nothing is given out, and the peer's last word is still to be read.
        return self._stage is Stage.OPEN and (self._held or self._write_paused)

    def _read_piece(self) -> bool:
        """Reads some of the bytes that came. Returns whether there were any."""
        if not self._unread or self._stage in (Stage.FINISHING, Stage.ENDING):
            return False
        piece: bytes | memoryview = self._unread
        if len(piece) > _PIECE_BYTES:
            rest = memoryview(piece)
            piece, self._unread = bytes(rest[:_PIECE_BYTES]), rest[_PIECE_BYTES:]
        else:
            self._unread = b""
        self._protocol.receive_data(bytes(piece))
        frames = self._protocol.events_received()
        self._count_message()
        if self._stage is Stage.CLOSING:
            if self._protocol.eof_sent:
                self._complete()
        elif self._stage is Stage.OPEN:
            self._frames.extend(frames)
            if self._protocol.state is State.OPEN:
                self._send_control()
        return True

    def _give_out(self, frame: Event) -> None:
        assert isinstance(frame, Frame)
        match frame.opcode:
            case Opcode.TEXT | Opcode.BINARY if frame.fin:
                self._give_message(bytes(frame.data), frame.opcode is Opcode.TEXT)
            case Opcode.TEXT | Opcode.BINARY:
                self._message_is_text = frame.opcode is Opcode.TEXT
                self._message += frame.data
                self._count_message()
            case Opcode.CONT if frame.fin:
                whole, self._message = bytes(self._message + frame.data), bytearray()
                self._count_message()
                self._give_message(whole, self._message_is_text)
            case Opcode.CONT:
                self._message += frame.data
                self._count_message()
            case _:
                # The library answers pings and closes; that the peer lives is known from its bytes.
                pass

    def _give_message(self, message: bytes, is_text: bool) -> None:
        if not is_text:
            self._call(self._receiver.on_binary, message)
            return
        try:
            if not message.isascii():
                message.decode()
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA, "a text message is not valid UTF-8")
            return
        self._call(self._receiver.on_text, message)

    def _count_message(self) -> None:
        """Settles with the budget what is held of messages that are not complete."""
        nbytes = len(self._protocol.reader.buffer) + len(self._message)
        if nbytes <= _UNCOUNTED_BYTES and not self._taken_bytes:
            return
        wanted = nbytes if nbytes > _UNCOUNTED_BYTES else 0
        budget = self._hub.budget
        try:
            if wanted > self._taken_bytes:
                budget.take(wanted - self._taken_bytes)
            else:
                budget.held_bytes -= self._taken_bytes - wanted
            self._taken_bytes = wanted
        except HttpError as error:
            self._fail(CloseCode.TRY_AGAIN_LATER, error.message)

    def _fail(self, code: CloseCode, reason: str) -> None:
        """The peer broke a rule: everything it sent before counts, nothing after it."""
        self._drop_input()
        if self._stage is Stage.CLOSING:
            self._complete()
        elif self._protocol.state is State.OPEN:
            self._protocol.fail(code, reason)

    def _drop_messages(self) -> None:
        self._frames.clear()
        self._message = bytearray()
        self._count_message()

    def _drop_input(self) -> None:
        self._unread = b""
        self._protocol.reader.discard()
        self._drop_messages()

    def _throttle(self) -> None:
        """Tells the transport whether to read."""
        if self._stage is Stage.GONE or self._transport.is_closing():
            return
        wanted = not self._is_held_back and not (self._unread and self._stage is Stage.OPEN)
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # Writing.

    def _send(self, data: bytes) -> None:
        self._hub.counters.bytes_out += len(data)
        self._transport.write(data)

    def _flush(self) -> None:
        gathered = self._gathered
        if gathered and self._stage is not Stage.GONE:
            self._gathered = []
            self._gathered_bytes = 0
            self._send(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    def _send_control(self) -> None:
        """Sends what the library has to say. That it wants to end the connection is empty bytes, and seen elsewhere."""
        said = b"".join(self._protocol.data_to_send())
        if said:
            self._flush()
            self._send(said)

    # Ending.

    def _complete(self) -> None:
        """Says the last word, and waits for the peer to end the connection."""
        self._flush()
        self._drop_input()
        self._stage = Stage.ENDING
        self._since, self._stuck_at = self._hub.monotonic(), _CLOSING
        self._send_control()
        try:
            self._transport.write_eof()
        except OSError:
            self._transport.abort()
        self._throttle()

    def _ping_or_give_up(self, now: float) -> None:
        if self._pinged:
            self._transport.abort()
            return
        self._pinged = True
        self._since = now
        self._protocol.send_ping(b"")
        self._send_control()

    def _stuck_s(self, now: float, place: int) -> float:
        """The seconds for which it has been in this place."""
        if place != self._stuck_at:
            self._stuck_at, self._since = place, now
        return now - self._since

    def _call(self, callback: Callable[..., None], *args: bytes) -> None:
        try:
            callback(*args)
        except Exception:
            _logger.exception("the receiver of a WebSocket failed")
            if self._stage is not Stage.GONE:
                self.close(CloseCode.INTERNAL_ERROR, "the server made a mistake; it is in its log")
