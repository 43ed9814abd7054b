"""WebSocket connections after the handshake: messages, backpressure, keep-alive pings and closing.

The library's protocol reads frames and knows the closing handshake. This module adds:

- Fair scheduling: a connection has a slice of time, and a number of messages, for its input. The rest is a task of the
  fair scheduler (`system.fair_scheduler`), and no more is read until it is done.
- Backpressure: bytes are read in small pieces, and not at all while the peer does not read its output or the receiver
  has paused. At most one piece waits.
- A message has the size limit of a body, and counts in the budget of bodies while it is received. A refused message is
  reported to the receiver, and the connection continues.
- Output is written directly to the transport, as frames that are encoded once for all clients.
- A peer that closes is answered after the receiver has finished what the peer sent before it.
- Instead of timers, the sweep of the HTTP server checks the state of every connection and its age:

| the connection | timeout | then |
|---|---|---|
| is quiet | `ping_interval_s` | it is sent a ping |
| stays quiet | `ping_timeout_s` | it is cut off: the peer disappeared without closing |
| does not take its output | `write_idle_timeout_s` | it is cut off |
| is closing | `linger_timeout_s` | it is cut off |
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from websockets.frames import CloseCode
from websockets.protocol import State

from topics.http.exchange import Exchange
from topics.http.messages import KIB, HttpError
from topics.http.output_backpressure import MUCH_BYTES, Account
from topics.http.request_body import LargeBody
from topics.http.server_state import end_sending
from topics.http.websocket.message_reader import Handshake, Message, MessageReader
from topics.system.fair_scheduler import GREEDY_S, SLICE_S, Task

# Answers collected while a piece is read are sent at this size, so that a full transport is noticed.
_BUFFERED_BYTES_MAX = 64 * KIB

# The maximum number of messages, or runs of messages, delivered in a slice.
_STEPS_MAX = 64

# A value that no number of bytes has.
_QUIET = -1
_CLOSING = -2

_logger = logging.getLogger(__name__)

_Said = TypeVar("_Said")


class Receiver(Protocol):
    """The receiver of messages. All of it is called on the loop's thread, one call at a time."""

    def on_text(self, text: bytes) -> None:
        """A text message. It is valid UTF-8."""
        ...

    def on_texts(self, texts: Sequence[bytes]) -> int:
        """Receives several messages that arrived together.

        Returns how many of the first were handled; with 0 each is passed to `on_text`.
        """
        ...

    def on_large_text(self, text: LargeBody) -> None:
        """Receives a text message that is too long to be read at once. The receiver releases it."""
        ...

    def on_binary(self, data: bytes) -> None:
        """Receives a binary message; a long one without its content."""
        ...

    def on_refused(self, beginning: bytes, error: HttpError) -> None:
        """Called for a message that was refused and dropped, such as for its length.

        `beginning` has its first bytes.
        """
        ...

    def on_drain(self) -> None:
        """Called when the peer has read its output after a pause."""
        ...

    def on_closing(self) -> None:
        """Called when the peer sends no more. The receiver calls `WebSocket.finish` after its last answer."""
        ...

    def on_disconnect(self) -> None:
        """Called once after the end of the connection for any reason. No more output is possible."""
        ...


class Stage(enum.Enum):
    OPEN = enum.auto()
    # The peer has closed or violated the protocol: it is answered after the receiver has finished.
    FINISHING = enum.auto()
    # The server has closed, and waits for the close frame of the peer.
    CLOSING = enum.auto()
    # Both sides have closed. The server waits for the end of the connection, so that a reset does not destroy its last
    # frames.
    ENDING = enum.auto()
    GONE = enum.auto()


class WebSocket(asyncio.Protocol):
    """One connection, after its handshake."""

    __slots__ = (
        "_account", "_buffered", "_buffered_bytes", "_corked", "_counted", "_discarded_bytes", "_heard", "_held",
        "_messages", "_modest_from", "_pinged", "_protocol", "_queued", "_reading", "_receiver", "_server_state",
        "_since", "_stage", "_stuck_at", "_tight", "_transport", "_write_paused",
    )  # fmt: skip

    _receiver: Receiver

    def __init__(self, exchange: Exchange, handshake: Handshake, account: Account | None = None) -> None:
        """Takes over the connection of `exchange` and answers the handshake.

        `begin` starts reading. Unread output is counted for `account`.
        """
        transport, leftover, server_state = exchange.upgrade()
        self._account = account or Account()
        self._counted = 0
        self._tight = False
        self._transport = transport
        self._server_state = server_state
        self._protocol = handshake.protocol
        self._messages = MessageReader(
            self._protocol, server_state.budget, leftover, server_state.limits, server_state.monotonic
        )
        self._stage = Stage.OPEN
        self._discarded_bytes = 0

        # Whether the transport reads.
        self._reading = True
        # Whether the receiver has paused messages.
        self._held = False
        self._write_paused = transport.get_write_buffer_size() > server_state.limits.write_buffer_bytes
        # Whether the scheduler delivers the rest, and the time until which it is used for all input.
        self._queued = False
        self._modest_from = 0.0
        # While messages are delivered, output is collected for one write.
        self._corked = False
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0

        # For the sweep: whether there was input since the last sweep, and the time of the last progress.
        self._heard = True
        self._pinged = False
        self._since = 0.0
        self._stuck_at = _QUIET

        transport.set_protocol(self)
        server_state.adopt(self)
        self._send(handshake.answer)

    def begin(self, receiver: Receiver) -> None:
        """Delivers messages to `receiver` from now on."""
        self._receiver = receiver
        self._read_on()

    # Methods for the receiver.

    def write(self, frame: bytes) -> bool:
        """Sends whole frames, see `text_frame`, or drops them if the connection is ending.

        Returns whether the peer can take more immediately; further writes fill the memory.
        """
        if self._stage is not Stage.OPEN and self._stage is not Stage.FINISHING:
            return False
        if not self._corked:
            nbytes = len(frame)
            self._server_state.counters.bytes_out += nbytes
            self._transport.write(frame)
            if nbytes > MUCH_BYTES:
                self.recount()
                self._server_state.recount_soon(self)
        else:
            self._buffered.append(frame)
            self._buffered_bytes += len(frame)
            if self._buffered_bytes > _BUFFERED_BYTES_MAX:
                self._flush()
        return not self._write_paused

    @property
    def writable(self) -> bool:
        """Whether a write would be sent immediately, to a peer without unread output."""
        return not self._write_paused and self._stage in (Stage.OPEN, Stage.FINISHING)

    @property
    def open(self) -> bool:
        """Whether neither side has begun to close."""
        return self._stage is Stage.OPEN

    @property
    def buffered_bytes(self) -> int:
        """The number of written bytes not yet accepted by the connection."""
        if self._stage is Stage.GONE:
            return 0
        return self._transport.get_write_buffer_size() + self._buffered_bytes

    def room(self) -> int:
        """The number of bytes that may be written at once; it shrinks with the unread bytes of its account and of all
        clients."""
        return self._server_state.output_backpressure.room(self._account)

    def recount(self) -> None:
        """Updates the count of unread bytes."""
        if self._stage is Stage.GONE:
            return
        unread = self.buffered_bytes
        self._server_state.output_backpressure.change(self._account, unread - self._counted)
        self._counted = unread
        tight = self._server_state.output_backpressure.tight
        if tight is not self._tight:
            self._tight = tight
            self._transport.set_write_buffer_limits(high=0 if tight else self._server_state.limits.write_buffer_bytes)

    def hold(self) -> None:
        """Pauses messages. Several calls need only one `release`."""
        self._held = True
        if not self._corked:
            self._throttle()

    def release(self) -> None:
        """Resumes messages. Waiting messages are delivered in the next turn of the loop."""
        if self._held:
            self._held = False
            if not self._corked:
                self._server_state.call_soon(self._read_on)

    def run(self, task: Task) -> None:
        """Runs long work of the receiver under fair scheduling, in turns with the messages of this connection."""
        self._server_state.scheduler.run(task, self)

    def finish(self) -> None:
        """Completes the closing handshake that the peer began. Call it after the last output."""
        if self._stage is Stage.FINISHING:
            self._complete()

    def close(self, code: int = CloseCode.GOING_AWAY, reason: str = "the server is shutting down") -> None:
        """Begins to close. Earlier output is still sent; further input of the peer is dropped."""
        if self._stage is Stage.FINISHING or (self._stage is Stage.OPEN and self._protocol.state is not State.OPEN):
            # The peer was first, or violated the protocol: its close reason is used.
            self._complete()
        elif self._stage is Stage.OPEN:
            self._flush()
            self._stage = Stage.CLOSING
            self._messages.drop_messages()
            self._protocol.send_close(code, reason)
            self._send_control()
            if not self._corked:
                self._server_state.call_soon(self._read_on)

    def abort(self) -> None:
        """Aborts the connection."""
        if self._stage is not Stage.GONE:
            self._transport.abort()

    # Methods for the server, besides `close` and `abort`.

    @property
    def owes(self) -> bool:
        """Whether the connection is still open or closing: closing needs an answer of the peer."""
        return self._stage is not Stage.GONE

    @property
    def uploading(self) -> bool:
        """Messages are not uploads: their sender is notified before the socket closes."""
        return False

    def expect_end(self) -> None:
        """The server stops."""
        self.close()

    def sweep(self, now: float) -> None:
        """Applies the timeouts of the table above."""
        if self._stage is Stage.GONE:
            return
        self.recount()
        limits = self._server_state.limits
        self._messages.refuse_stalled(now, self._reading)
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

    # Callbacks of the event loop.

    def data_received(self, data: bytes) -> None:
        self._server_state.counters.bytes_in += len(data)
        self._server_state.counters.messages += 1
        if not self._server_state.spin.polling:
            self._server_state.spin.rouse()
        self._heard = True
        if self._stage is Stage.FINISHING or self._stage is Stage.ENDING:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > self._server_state.limits.linger_bytes:
                self._transport.abort()
            return
        self._messages.feed(data)
        self._read_on()

    def eof_received(self) -> None:
        """Called when the peer sends no more.

        Without a close frame before, it has disconnected; the transport closes itself.
        """

    def pause_writing(self) -> None:
        self._write_paused = True
        self._server_state.recount_soon(self)
        self._throttle()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.recount()
        if self._stage in (Stage.OPEN, Stage.FINISHING):
            self._call(self._receiver.on_drain)
        self._read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stage is Stage.GONE:
            return
        self._stage = Stage.GONE
        self._server_state.output_backpressure.change(self._account, -self._counted)
        self._buffered = []
        self._messages.release()
        self._server_state.abandon(self)
        if hasattr(self, "_receiver"):
            self._call(self._receiver.on_disconnect)
            del self._receiver

    # Reading.

    def _read_on(self) -> None:
        """Delivers received messages for a slice of time; the scheduler does the rest."""
        if self._corked or self._queued or not hasattr(self, "_receiver"):
            return
        now = self._server_state.monotonic()
        if now < self._modest_from or self._serve_slice(now):
            self._queued = True
            self._server_state.scheduler.run(self._serve_rest(), self)
        self._throttle()

    def _serve_rest(self) -> Task:
        while self._serve_slice(self._server_state.monotonic()):
            yield None
        self._queued = False
        self._throttle()

    def _serve_slice(self, now: float) -> bool:
        """Returns whether any input is left. Not reentrant: a receiver may answer inside, and so make room."""
        if self._stage is Stage.GONE:
            return False
        monotonic = self._server_state.monotonic
        end, steps, left = now + SLICE_S, 0, False
        self._corked = True
        try:
            while not left and self._step():
                steps += 1
                left = steps == _STEPS_MAX or monotonic() >= end
        finally:
            self._corked = False
        if left:
            self._modest_from = end + GREEDY_S
        self._flush()
        return left

    def _step(self) -> bool:
        """Reads a piece, or delivers a message or several that came together. Returns whether there may be more."""
        messages = self._messages
        if self._stage is Stage.CLOSING:
            if messages.skip():
                return True
            if self._protocol.eof_sent:
                self._complete()
            return False
        if self._stage is not Stage.OPEN or self._is_held_back:
            return False
        if not messages.has_more and self._protocol.state is State.OPEN:
            return False
        receiver = self._receiver
        if messages.read_on() and self._protocol.state is State.OPEN:
            # Only pongs are sent. The end of the connection waits until the receiver has finished.
            self._send_control()
        if messages.together > 1 and (texts := messages.texts()):
            messages.took(self._call(receiver.on_texts, texts) or 0)
        elif (message := messages.next_message()) is not None:
            self._give(message)
        elif messages.is_over:
            self._stage = Stage.FINISHING
            self._call(receiver.on_closing)
        return messages.has_more or self._protocol.state is not State.OPEN

    def _give(self, message: Message) -> None:
        """Delivers a message to the receiver."""
        receiver, data = self._receiver, message.data
        if isinstance(data, LargeBody):
            if message.is_text:
                self._call(receiver.on_large_text, data)
            else:
                data.release()
                self._call(receiver.on_binary, b"")
        elif message.error is not None:
            self._call(receiver.on_refused, data, message.error)
        else:
            self._call(receiver.on_text if message.is_text else receiver.on_binary, data)

    @property
    def _is_held_back(self) -> bool:
        # While closing nothing is delivered, and the peer's close frame must still be read.
        return self._stage is Stage.OPEN and (self._held or self._write_paused)

    def _throttle(self) -> None:
        """Instructs the transport whether to read."""
        if self._stage is Stage.GONE or self._transport.is_closing():
            return
        requested = not self._is_held_back and not (self._stage is Stage.OPEN and self._messages.has_more)
        if requested != self._reading:
            self._reading = requested
            if requested:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # Writing.

    def _send(self, data: bytes) -> None:
        self._server_state.counters.bytes_out += len(data)
        self._transport.write(data)
        if len(data) > MUCH_BYTES:
            self.recount()
            self._server_state.recount_soon(self)

    def _flush(self) -> None:
        buffered = self._buffered
        if buffered and self._stage is not Stage.GONE:
            self._buffered = []
            self._buffered_bytes = 0
            self._send(buffered[0] if len(buffered) == 1 else b"".join(buffered))

    def _send_control(self) -> None:
        """Sends the pending output of the library.

        Empty bytes mean that it wants to end the connection, which is handled elsewhere.
        """
        if not self._protocol.writes:
            return
        said = b"".join(self._protocol.data_to_send())
        if said:
            self._flush()
            self._send(said)

    # Ending.

    def _complete(self) -> None:
        """Sends the close frame, and waits for the peer to end the connection."""
        self._flush()
        self._messages.drop()
        self._stage = Stage.ENDING
        self._since, self._stuck_at = self._server_state.monotonic(), _CLOSING
        self._send_control()
        end_sending(self._transport)
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
        """Returns the seconds for which it has been in this state."""
        if place != self._stuck_at:
            self._stuck_at, self._since = place, now
        return now - self._since

    def _call(self, callback: Callable[..., _Said], *args: object) -> _Said | None:
        try:
            return callback(*args)
        except Exception:
            _logger.exception("WebSocket receiver failed")
            if self._stage is not Stage.GONE:
                self.close(CloseCode.INTERNAL_ERROR, "the server made a mistake; it is in its log")
            return None
