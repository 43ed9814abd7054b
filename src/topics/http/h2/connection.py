"""HTTP/2 connections: frames are read, requests started and responses sent in slices of time.

A connection is taken over from HTTP/1.1 if its first bytes are the HTTP/2 preface (`http.h1.request_reader`): with
prior knowledge, or after negotiation by TLS (ALPN).

In a slice each step reads one frame, starts one request and sends one frame, so a connection with a hundred streams
gets the same share as any other; the rest is a task of the fair scheduler (`system.fair_scheduler`). Nothing is sent
from within a handler: the output of one turn of the loop is one write.

Backpressure: nothing is read while the client does not read. A request received nevertheless waits, and its body counts
as being received. Bytes delayed by flow control count as unread output of their account.
"""

import asyncio
import logging
from collections.abc import Hashable

from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from topics.http.exchange import Exchange, request_task
from topics.http.h1.pipeline import address_of
from topics.http.h2.frames import GOAWAY, LAST_STREAM, ConnectionFault, FrameReader, Session, goaway
from topics.http.h2.requests import Requests
from topics.http.h2.stream import Fields, Http2Stream, Outbox
from topics.http.output_backpressure import MUCH_BYTES, Account, Meter, Phase, Progress
from topics.http.server_state import end_sending
from topics.http.streaming import Upgrade
from topics.system.fair_scheduler import GREEDY_S, SLICE_S, Task

# The maximum number of steps in a slice.
_STEPS_MAX = 64
# Maximum bytes joined into one write.
_BUFFERED_BYTES_MAX = 64 * 1024
# The fraction of the budget for unread output that one connection may use before no more of its requests are started.
_HELD_PART = 16

# The time that a client has to end a connection after a graceful close.
_CLOSE_S = 0.25

_logger = logging.getLogger(__name__)


class Http2Connection(asyncio.Protocol):
    """The protocol of one connection. Implements `server_state.Served`."""

    __slots__ = (
        "_buffered_bytes", "_closing", "_discarded_bytes", "_ending", "_frames", "_leaving", "_leftover", "_meter",
        "_modest_from", "_outbox", "_progress", "_queued", "_reading", "_requests", "_running", "_scheduled",
        "_server_state", "_session", "_tight", "_transport", "held_bytes", "peer", "write_paused",
    )  # fmt: skip

    def __init__(self, taken: Upgrade) -> None:
        transport, leftover, server_state = taken
        self._server_state = server_state
        self._transport: asyncio.Transport | None = transport
        self._leftover = leftover
        self.peer = address_of(transport.get_extra_info("peername"))
        # Compressed headers are usually shorter, and can be slightly longer.
        self._frames = FrameReader(2 * server_state.limits.head_bytes)
        self._session = Session(server_state.limits)
        self._outbox = Outbox(self._session)
        self._requests = Requests(self, server_state, self._session, self._outbox)
        self._progress = Progress()
        # Whether a turn is running, requested, or queued.
        self._running = self._scheduled = self._queued = False
        # The time from which it is served immediately again, after it exceeded a slice.
        self._modest_from = 0.0
        self._reading = True
        self._buffered_bytes = 0
        # Whether the transport has paused writing because of unread output.
        self.write_paused = transport.get_write_buffer_size() > server_state.limits.write_buffer_bytes
        self.held_bytes = 0
        self._meter = Meter(server_state.output_backpressure)
        self._tight = False
        # Whether the client must not open more streams.
        self._leaving = False
        # Whether all output is sent and further input is dropped.
        self._ending = False
        self._closing: asyncio.TimerHandle | None = None
        self._discarded_bytes = 0

        transport.set_protocol(self)
        server_state.adopt(self)
        server_state.silent[self] = None
        server_state.counters.http2_connections_open += 1
        server_state.counters.http2_connections_total += 1

    def begin(self) -> None:
        """Sends the settings, and reads the bytes after the preface."""
        if self._server_state.draining:
            self.expect_end()
        leftover, self._leftover = self._leftover, b""
        self._frames.add(leftover)
        self._serve()

    # Called by the event loop.

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return
        self._transport = None
        if self._closing is not None:
            self._closing.cancel()
        self._requests.lose_all()
        self._meter.set(0)
        self._server_state.counters.http2_connections_open -= 1
        self._server_state.abandon(self)

    def data_received(self, data: bytes) -> None:
        server_state = self._server_state
        server_state.counters.bytes_in += len(data)
        if not server_state.spin.polling:
            server_state.spin.rouse()
        if self._ending:
            self._discard(len(data))
            return
        self._frames.add(data)
        if self._queued:
            return
        if server_state.monotonic() >= self._modest_from:
            self._serve()
        else:
            self._enqueue()

    def eof_received(self) -> bool:
        """End the connection: a client that sends no more cannot even send window updates."""
        return False

    def pause_writing(self) -> None:
        self.write_paused = True
        self._server_state.recount_soon(self)

    def resume_writing(self) -> None:
        self.write_paused = False
        self.recount()
        for stream in tuple(self._requests.streams.values()):
            stream.drained()
        self._wake()

    # Turns.

    def _serve(self) -> None:
        """Runs possible work for a slice of time. The rest is left to the scheduler."""
        if self._serve_slice():
            self._enqueue()
        else:
            self._throttle()

    def _serve_slice(self) -> bool:
        """Runs possible work for a slice of time; returns whether any is left."""
        monotonic = self._server_state.monotonic
        self._running = True
        end = monotonic() + SLICE_S
        steps, left = 0, False
        while not left and self._step():
            steps += 1
            left = steps == _STEPS_MAX or monotonic() >= end
        if left:
            self._modest_from = end + GREEDY_S
        self._running = False
        self._flush()
        return left

    def _enqueue(self) -> None:
        self._queued = True
        self._server_state.scheduler.run(self._serve_rest(), self)
        self._throttle()

    def _serve_rest(self) -> Task:
        while self._serve_slice():
            yield None
        self._queued = False
        self._throttle()

    def _step(self) -> bool:
        if self._transport is None or self._ending:
            return False
        done = self._may_start() and self._requests.start_next()
        if not done and not self.write_paused:
            done = self._read_frame()
        return self._send_frame() or done

    def _may_start(self) -> bool:
        """Returns whether a request may be passed to the application."""
        backpressure = self._server_state.output_backpressure
        if self.write_paused or self.held_bytes > backpressure.max_bytes // _HELD_PART:
            return False
        return not (backpressure.exhausted and (self.held_bytes or self._meter.nbytes))

    def _read_frame(self) -> bool:
        try:
            frame = self._frames.next()
            if frame is None:
                return False
            if frame.kind == GOAWAY:
                # Not passed to the library, which would send no more answers after it.
                self._leaving = True
                self._leave_if_done()
            else:
                self._requests.receive(frame)
                if self._requests.count:
                    self._server_state.silent.pop(self, None)
        except ConnectionFault as fault:
            _logger.debug("HTTP/2 connection closed", extra={"peer": self.peer, "error": str(fault)})
            self._fail(fault.code)
        except ProtocolError:
            # The library's message describes the error.
            self._fail(None)
        except Exception:
            _logger.exception("HTTP/2 frame parsing failed")
            self._fail(ErrorCodes.INTERNAL_ERROR)
        return True

    def _send_frame(self) -> bool:
        if self.write_paused or self._transport is None or self._ending:
            return False
        nbytes = self._outbox.step()
        if not nbytes:
            return False
        self._requests.sent()
        self._buffered_bytes += nbytes
        if self._buffered_bytes >= _BUFFERED_BYTES_MAX:
            self._flush()
        return True

    def _wake(self) -> None:
        """Schedules a turn."""
        if not (self._running or self._scheduled or self._queued):
            self._scheduled = True
            self._server_state.call_soon(self._woken)

    def _woken(self) -> None:
        self._scheduled = False
        if not self._queued:
            self._serve()

    def _flush(self) -> None:
        """Sends gathered output."""
        self._buffered_bytes = 0
        data = self._session.data_to_send()
        if not data or self._transport is None:
            return
        self._server_state.counters.bytes_out += len(data)
        self._transport.write(data)
        if len(data) > MUCH_BYTES:
            self.recount()
            self._server_state.recount_soon(self)

    def _throttle(self) -> None:
        """Instructs the transport whether to read."""
        transport = self._transport
        requested = self._ending or not (self._queued or self.write_paused)
        if transport is None or requested == self._reading or transport.is_closing():
            return
        self._reading = requested
        if requested:
            transport.resume_reading()
        else:
            transport.pause_reading()

    # Called by streams.

    def send_head(self, stream: Http2Stream, fields: Fields, *, ended: bool) -> None:
        self._session.send_headers(stream.stream_id, fields, end_stream=ended)
        self._wake()

    def send_on(self, stream: Http2Stream) -> None:
        self._outbox.add(stream)
        self._wake()

    def finished(self, stream: Http2Stream) -> None:
        self._requests.finished(stream)
        self._leave_if_done()

    def charge(self, account: Account) -> None:
        if account is not self._meter.account:
            self._meter.charge(account)

    def run(self, exchange: Exchange, task: Task, owner: Hashable | None) -> None:
        """Long requests have a separate, common place in the queue: frames are read meanwhile."""
        task = request_task(exchange, task, self._server_state.monotonic)
        self._server_state.scheduler.run(task, owner or self._requests)

    # Called by the server.

    @property
    def owes(self) -> bool:
        return bool(self._requests.streams)

    @property
    def uploading(self) -> bool:
        return self._requests.uploading

    @property
    def buffered_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size() + self.held_bytes

    def recount(self) -> None:
        """Counts the bytes that the system has not accepted. Streams count their delayed output."""
        transport, backpressure = self._transport, self._server_state.output_backpressure
        if transport is None:
            return
        self._meter.set(transport.get_write_buffer_size())
        if backpressure.tight is not self._tight:
            self._tight = backpressure.tight
            transport.set_write_buffer_limits(high=0 if self._tight else self._server_state.limits.write_buffer_bytes)

    def sweep(self, now: float) -> None:
        """Ends the connection, or some of its streams, after too long without progress."""
        transport = self._transport
        if transport is None:
            return
        self.recount()
        if not self._ending and self._requests.sweep(now):
            self._wake()
        phase, progress, limit_s = self._phase(transport)
        if phase is Phase.ANSWERING or self._progress.look(phase, progress, now) < limit_s:
            return
        if phase is Phase.IDLE:
            self.close()
        else:
            transport.abort()

    def _phase(self, transport: asyncio.Transport) -> tuple[Phase, int, float]:
        limits, count = self._server_state.limits, self._requests.count
        if self._ending or transport.is_closing():
            return Phase.CLOSING, transport.get_write_buffer_size(), limits.linger_timeout_s
        if self.write_paused:
            return Phase.WRITING, transport.get_write_buffer_size(), limits.write_idle_timeout_s
        if self._requests.streams:
            return Phase.ANSWERING, 0, 0.0
        return Phase.IDLE, count, limits.keep_alive_s if count else limits.head_timeout_s

    def expect_end(self) -> None:
        """Announces the server's stop to the client; its earlier requests are answered or refused."""
        self._say_goodbye(LAST_STREAM, ErrorCodes.NO_ERROR)

    def close(self) -> None:
        """Ends the connection once everything answered is sent."""
        if self._transport is not None and not self._ending:
            self._end(ErrorCodes.NO_ERROR)
            self._closing = asyncio.get_running_loop().call_later(_CLOSE_S, self.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._server_state.silent.pop(self, None)
            self._transport.abort()

    # Ending.

    def _say_goodbye(self, last_stream: int, code: int) -> None:
        if self._transport is not None and not self._ending:
            self._flush()
            self._transport.write(goaway(last_stream, code))

    def _leave_if_done(self) -> None:
        """Ends the connection after the last answers, for a client that is closing."""
        if self._leaving and not self._requests.streams and not self._ending:
            self.close()

    def _fail(self, code: ErrorCodes | None) -> None:
        """Ends the connection after a protocol error of the client, with GOAWAY."""
        if self._transport is None or self._ending:
            return
        self._server_state.counters.refused += 1
        self._end(code)

    def _end(self, code: ErrorCodes | None) -> None:
        """Sends GOAWAY and keeps reading for a while: a plain close would answer further input, even an
        acknowledgement, with a reset, which can destroy our last frames."""
        transport = self._transport
        assert transport is not None
        if code is None:
            self._flush()
        else:
            self._say_goodbye(self._session.highest_inbound_stream_id, code)
        self._ending = True
        self._requests.lose_all()
        self._throttle()
        end_sending(transport)

    def _discard(self, nbytes: int) -> None:
        """Drops input after the end."""
        self._discarded_bytes += nbytes
        if self._discarded_bytes > self._server_state.limits.linger_bytes and self._transport is not None:
            self._transport.abort()
