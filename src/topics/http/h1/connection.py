"""HTTP/1.1 connections: reading requests with backpressure, and ending a connection without losing responses.

Three conditions pause the reading of requests, but not the answers to requests already read: a full pipeline, a client
that does not read its responses, and an upgrade request, after which the bytes may not be HTTP. Requests that are
already parsed wait in the pipeline; the other bytes stay in `_unparsed` and in the socket.

Only `go_on` starts handlers and feeds the parser, and it is never reentered: handlers respond inline, a response makes
room, and room starts the next request, which must be a loop and not a recursion. This holds across connections: code
that responds to a request of another connection may be in the middle of a decision, which the next requests of that
connection must not change. So a response from other code starts them in the next turn of the loop.

Fair scheduling: a connection has a slice of time for its input. The rest is a task of the fair scheduler
(`system.fair_scheduler`), and no more is read until it is done. Short requests are served immediately, regardless of
the load of other connections.
"""

import asyncio
import logging
from typing import cast

from topics.http.exchange import Exchange
from topics.http.h1.pipeline import Pipeline
from topics.http.h1.request_framing import RequestFramer
from topics.http.h1.request_reader import PIECE_BYTES, Http2Preface, InputOver, RequestReader, Upgraded
from topics.http.messages import UNREAD_HEAD, Fault, HttpError, RequestHead, can_drop_body
from topics.http.output_backpressure import Phase, Progress, limit_s
from topics.http.request_body import LargeBody
from topics.http.server_state import ServerState, end_sending
from topics.http.streaming import Upgrade
from topics.system.fair_scheduler import GREEDY_S, SLICE_S, Task

# The maximum number of pieces and waiting requests in a slice.
_STEPS_MAX = 16
_logger = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """The protocol of one connection, for asyncio and uvloop."""

    __slots__ = (
        "_discarded_bytes", "_eof", "_framer", "_input_over", "_lingering", "_modest_from", "_must_linger", "_pipeline",
        "_progress", "_queued", "_reader", "_reading", "_requests", "_scheduled", "_server_state", "_slice_end",
        "_transport", "_unparsed",
    )  # fmt: skip

    _pipeline: Pipeline

    def __init__(self, server_state: ServerState) -> None:
        self._server_state = server_state
        self._transport: asyncio.Transport | None = None
        self._reader = RequestReader(self, server_state.limits, server_state.budget)
        self._progress = Progress()
        self._requests = 0
        # The end of the current slice, and whether the connection is queued for another one.
        self._slice_end = 0.0
        self._queued = False
        # Whether it continues in the next turn of the loop, because an answer made room.
        self._scheduled = False
        # The time from which it is served immediately again, after it exceeded a slice.
        self._modest_from = 0.0
        self._reading = True
        self._unparsed: bytes | memoryview = b""
        self._framer = RequestFramer(server_state.limits.body_bytes)
        # Whether further input is dropped: the connection ends after the pending answers.
        self._input_over = False
        self._discarded_bytes = 0
        # Whether the client has ended its input.
        self._eof = False
        # Whether the client may still be sending when the connection ends. A plain close would then answer its bytes
        # with a reset, which can destroy the last response: so the server announces the end and keeps reading for a
        # while.
        self._must_linger = False
        self._lingering = False

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server_state = self._server_state
        # A cast and no check: the transports of uvloop do not derive from asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=server_state.limits.write_buffer_bytes)
        self._pipeline = Pipeline(self, server_state, self._transport)
        server_state.adopt(self)
        server_state.counters.connections_total += 1
        if len(server_state.connections) > server_state.limits.connections_max and not server_state.make_room():
            # No lingering: a client that opens too many connections must not keep them open.
            self._refuse(HttpError(Fault.TOO_MANY_CONNECTIONS, most=server_state.limits.connections_max), linger=False)
            return
        server_state.silent[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._forget()
            self._pipeline.release()

    def data_received(self, data: bytes) -> None:
        nbytes, server_state = len(data), self._server_state
        server_state.counters.bytes_in += nbytes
        if not server_state.spin.polling:
            server_state.spin.rouse()
        if self._input_over:
            self._discard(nbytes)
            return
        pipeline, framer = self._pipeline, self._framer
        between = framer.since_bytes == framer.due_bytes
        at_rest, several = not pipeline.exchanges and not self._unparsed, False
        if between and at_rest:
            body = data.removeprefix(framer.lead) if framer.nbytes == nbytes else data
            if body is data:
                # Without a prefix it is the same object.
                body = framer.find(data, nbytes)
            several = body is data
            if not several and (
                framer.admission is server_state.application.admission or framer.are_admitted(server_state.application)
            ):
                # A plain local: called as an attribute, the interpreter would look for a method each time.
                monotonic = server_state.monotonic
                pipeline.corked = True
                self._start_known(framer.head, body, monotonic())
                pipeline.corked = False
                if not pipeline.exchanges:
                    pipeline.flush()
                return
        if between and not self._unparsed:
            framer.begin(data)
        framer.since_bytes += nbytes
        now = server_state.monotonic()
        modest = now >= self._modest_from
        if at_rest and modest and (nbytes <= PIECE_BYTES or several):
            # The usual case, a connection at rest, in fewer steps than `go_on` would take.
            self._slice_end = now + SLICE_S
            pipeline.corked = True
            if several:
                data = self._start_several(data)
            if len(data) > PIECE_BYTES or pipeline.is_full():
                self._unparsed = data
            elif data:
                self._feed(data)
            pipeline.corked = False
            pipeline.flush()
            if not self._unparsed and not pipeline.waiting:
                return
        else:
            self._unparsed = data if not self._unparsed else bytes(self._unparsed) + data
        if modest or self._queued:
            self.go_on()
        else:
            self._enqueue()

    def eof_received(self) -> bool:
        """Handles the end of the client's input; the client may be gone entirely. `Exchange` describes which requests
        are still answered."""
        self._input_over = self._eof = True
        self._pipeline.drop_unread()
        one_sided = self._transport is not None and self._transport.can_write_eof()
        return one_sided and bool(self._pipeline.exchanges) and not self._lingering

    def pause_writing(self) -> None:
        self._pipeline.write_paused = True
        self._server_state.recount_soon(self._pipeline)
        self._throttle()

    def resume_writing(self) -> None:
        self._pipeline.drained()
        self.go_on()

    # Called by the reader.

    def on_head(self, head: RequestHead, length: int | None) -> int | None:
        if self._input_over:
            raise InputOver
        server_state = self._server_state
        server_state.counters.requests += 1
        if not self._requests:
            server_state.silent.pop(self, None)
        self._requests += 1
        candidate = self._framer.candidate(head, length)
        exchange = self._pipeline.receiving = self._pipeline.enter(head)
        head.peer = self._pipeline.peer
        verdict = server_state.admit(head)
        if head.allow_origin is not None or head.answer_headers:
            # The answer has additional headers, such as the allowed origin, so no prepared answer fits.
            exchange.plain = False
        if isinstance(verdict, int):
            if candidate and exchange.plain:
                self._framer.remember(candidate, head, length, verdict)
            return verdict
        server_state.counters.refused += 1
        self._pipeline.receiving = None
        if length != 0 and not can_drop_body(head, length, server_state.limits.discard_bytes):
            exchange.keep = exchange.plain = False
            self._input_over = self._must_linger = True
        exchange.respond(*verdict)
        if self._input_over:
            raise InputOver
        return None

    def on_continue(self) -> None:
        if self._pipeline.receiving is not None:
            self._pipeline.send_continue(self._pipeline.receiving)

    def on_request(self, body: bytes | LargeBody) -> None:
        pipeline = self._pipeline
        exchange = pipeline.receiving
        assert exchange is not None
        pipeline.receiving = None
        if isinstance(body, bytes):
            exchange.body = body
        else:
            exchange.large_body = body
        if not exchange.plain:
            if not exchange.head.keep_alive:
                self._input_over = True
            if exchange.head.upgrade:
                pipeline.upgrading = exchange
                # Not started here: the bytes after the request are known only after the parser has returned.
                pipeline.waiting.append(exchange)
                return
        # The time when its head was complete is accurate enough and costs no clock read.
        late = exchange.started >= self._slice_end
        if pipeline.waiting or late or not pipeline.may_start(exchange, len(pipeline.exchanges) - 1):
            pipeline.waiting.append(exchange)
        else:
            self._server_state.handle(exchange)

    # Called by the pipeline.

    def go_on(self) -> None:
        """Runs all possible work: starts waiting requests, reads more, sends gathered output."""
        if self._pipeline.corked:
            return
        if self._queued:
            # The scheduler continues it; until then only finished answers are sent.
            self._pipeline.flush()
        elif self._serve_slice():
            self._enqueue()
        else:
            self._throttle()

    def _serve_slice(self) -> bool:
        """Runs possible work for a slice of time; returns whether any is left."""
        pipeline, monotonic = self._pipeline, self._server_state.monotonic
        end = self._slice_end = monotonic() + SLICE_S
        pipeline.corked = True
        steps, left = 0, False
        while not left and self._step():
            steps += 1
            left = steps == _STEPS_MAX or monotonic() >= end
        if left:
            pipeline.flush()
            self._modest_from = end + GREEDY_S
        pipeline.corked = False
        return left

    def _enqueue(self) -> None:
        """Queues the remaining work on the scheduler."""
        self._queued = True
        self._server_state.scheduler.run(self._serve_rest(), self)
        self._throttle()

    def _serve_rest(self) -> Task:
        while self._serve_slice():
            yield None
        self._queued = False
        self._throttle()

    def after_answer(self) -> None:
        """Called after an answer: continues waiting work, but not before the answering caller has returned."""
        waited = self._unparsed or self._pipeline.waiting or not self._reading or self._input_over
        if waited and not self._scheduled:
            self._scheduled = True
            self._server_state.call_soon(self._go_on_soon)

    def _go_on_soon(self) -> None:
        self._scheduled = False
        if self._transport is not None:
            self.go_on()

    def finish(self) -> None:
        """Ends the connection after the last answer, without losing the answer."""
        transport = self._transport
        if transport is None:
            return
        self._must_linger |= bool(self._unparsed or self._discarded_bytes)
        self.end_input()
        self._pipeline.lose_from(0)
        self._pipeline.flush()
        if self._eof or not self._must_linger:
            transport.close()
            return
        self._lingering = True
        end_sending(transport)

    def end_input(self) -> None:
        self._input_over = True
        self._unparsed = b""

    def hand_over(self) -> Upgrade:
        transport, leftover = self._transport, bytes(self._unparsed)
        assert transport is not None
        self._pipeline.flush()
        self.end_input()
        self._forget()
        if not self._reading:
            transport.resume_reading()
        return Upgrade(transport, leftover, self._server_state)

    # Called by the server.

    @property
    def owes(self) -> bool:
        """Returns whether a request waits for its answer."""
        return bool(self._pipeline.exchanges)

    @property
    def uploading(self) -> bool:
        """Whether the body of an admitted request is being received."""
        return self._reader.in_body and not self._lingering and self._transport is not None

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes that the client has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def sweep(self, now: float) -> None:
        """Ends the connection if it has been in one state for too long."""
        transport = self._transport
        if transport is None:
            return
        self._pipeline.recount()
        phase, progress = self._phase(transport)
        step = self._server_state.limits.body_step_bytes if phase is Phase.BODY else 1
        stuck_s = self._progress.look(phase, progress, now, step)
        if phase is Phase.ANSWERING or stuck_s < limit_s(phase, self._server_state.limits, bool(self._requests)):
            if not self._reading or self._pipeline.waiting:
                # It may only have been blocked by other connections' unread output.
                self.go_on()
            return
        if phase in (Phase.CLOSING, Phase.WRITING):
            transport.abort()
        elif phase is Phase.IDLE:
            transport.close()
        elif phase is Phase.BODY and self._pipeline.receiving is None:
            # The rest of a refused request, which is already answered.
            transport.close()
        else:
            self._refuse(HttpError(Fault.TIMEOUT))

    def expect_end(self) -> None:
        """Called when the server stops: later answers may have to announce the end of the connection."""
        self._framer.close()
        for exchange in self._pipeline.exchanges:
            exchange.plain = False

    def close(self) -> None:
        """Ends the connection once all answers are sent."""
        if self._transport is not None:
            self.end_input()
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._server_state.silent.pop(self, None)
            self._transport.abort()

    # Reading on.

    def _step(self) -> bool:
        pipeline = self._pipeline
        if self._transport is None:
            return False
        exchange = pipeline.next_waiting()
        if exchange is not None:
            self._server_state.handle(exchange)
        elif self._unparsed and not self._input_over and not pipeline.is_full():
            self._read_on()
        elif not pipeline.flush():
            return False
        return True

    def _read_on(self) -> None:
        """Starts requests with known heads, or feeds the next piece to the parser."""
        unparsed = self._unparsed
        left = self._framer.left_of_request(len(unparsed))
        if not left and len(self._framer):
            whole = bytes(unparsed)
            self._unparsed = self._start_several(whole)
            if len(self._unparsed) < len(whole):
                return
        size = self._reader.piece_bytes
        if left > 0:
            size = min(size, left)
        rest = memoryview(self._unparsed)
        self._unparsed = rest[size:]
        self._feed(rest[:size])

    def _feed(self, piece: bytes | memoryview) -> None:
        try:
            self._reader.feed(piece)
        except HttpError as error:
            self._refuse(error)
        except Upgraded as upgraded:
            self._unparsed = upgraded.rest + bytes(self._unparsed)
        except InputOver:
            self._reader.release()
        except Http2Preface as preface:
            self._speak_http2(preface.rest)
        except Exception:
            _logger.exception("request parsing failed")
            self._refuse(HttpError(Fault.INTERNAL))

    def _speak_http2(self, rest: bytes) -> None:
        """Hands the connection over to the HTTP/2 protocol; the client speaks it from the first byte on."""
        # Imported for the first such client, so that servers without HTTP/2 clients do not pay for it.
        from topics.http.h2.connection import Http2Connection  # noqa: PLC0415

        self._unparsed = rest + bytes(self._unparsed)
        pipeline = self._pipeline
        connection = Http2Connection(self.hand_over())
        pipeline.release()
        connection.begin()

    def _start_known(self, head: RequestHead, body: bytes, now: float) -> None:
        """Starts a complete request with a known and admitted head."""
        server_state, pipeline, batch_handler = self._server_state, self._pipeline, self._framer.batch_handler
        server_state.counters.requests += 1
        self._requests += 1
        exchange = Exchange(head, pipeline, now, True, True, body)
        pipeline.exchanges.append(exchange)
        if batch_handler is not None and batch_handler((exchange,), len(body)):
            return
        try:
            server_state.application.handle(exchange)
        except Exception:
            server_state.failed(exchange)

    def _start_several(self, data: bytes) -> bytes:
        """Starts the requests at the beginning of a piece, while their heads are known and there is time and room;
        returns the rest of the piece. Only valid while the parser is between two requests."""
        server_state, pipeline, framer, at = self._server_state, self._pipeline, self._framer, 0
        application, monotonic = server_state.application, server_state.monotonic
        if framer.batch_handler is not None and framer.admission is application.admission and pipeline.takes_more():
            # Requests with the same head and length are extracted together, without work for each of them.
            bodies = framer.cut_run(data, pipeline.room_left)
            if bodies and pipeline.start_run(framer.head, bodies, monotonic(), framer.batch_handler):
                at = len(bodies) * framer.cut_bytes
                server_state.counters.requests += len(bodies)
                self._requests += len(bodies)
        end = len(data)
        while at < end and not self._input_over and pipeline.takes_more() and (cut := framer.cut(data, at)) is not None:
            if framer.admission is not application.admission and not framer.are_admitted(application):
                break
            now = monotonic()
            if now >= self._slice_end:
                break
            begin, at = cut
            self._start_known(framer.head, data[begin:at], now)
        data = data[at:]
        framer.begin(data, len(data))
        return data

    def _throttle(self) -> None:
        """Pauses or resumes reading of the transport."""
        if self._transport is None:
            return
        if self._input_over:
            # A disconnected client is detected only while reading.
            requested = self._lingering or self._discarded_bytes <= self._server_state.limits.linger_bytes
        else:
            # A connection without room keeps reading until more arrives: most clients wait after so many requests.
            requested = not self._unparsed and not self._queued and not self._pipeline.write_paused
        if requested == self._reading or self._eof:
            return
        self._reading = requested
        if requested:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _discard(self, nbytes: int) -> None:
        self._discarded_bytes += nbytes
        if self._transport is None or self._discarded_bytes <= self._server_state.limits.linger_bytes:
            return
        if self._lingering or self._pipeline.streaming:
            self._transport.abort()
        else:
            self._throttle()

    # Ending.

    def _refuse(self, error: HttpError, *, linger: bool = True) -> None:
        """Refuses the request being received and ends the connection, after the earlier answers."""
        if self._input_over or self._transport is None:
            return
        self._server_state.counters.refused += 1
        self.end_input()
        self._reader.release()
        exchange, self._pipeline.receiving = self._pipeline.receiving, None
        if exchange is None:
            exchange = self._pipeline.enter(UNREAD_HEAD)
        exchange.keep = exchange.plain = False
        self._must_linger = linger
        exchange.respond(*self._server_state.refusal(error, exchange.head.path))

    def _forget(self) -> None:
        """Removes the connection from the server's state."""
        self._transport = None
        self._reader.release()
        self._server_state.abandon(self)

    def _phase(self, transport: asyncio.Transport) -> tuple[Phase, int]:
        if self._lingering or transport.is_closing():
            return Phase.CLOSING, transport.get_write_buffer_size()
        if self._pipeline.write_paused:
            return Phase.WRITING, transport.get_write_buffer_size()
        if self._input_over or self._pipeline.is_full():
            return Phase.ANSWERING, 0
        if self._reader.in_body:
            return Phase.BODY, self._reader.progress
        if self._reader.in_head:
            return Phase.HEAD, self._requests
        return (Phase.ANSWERING, 0) if self._pipeline.exchanges else (Phase.IDLE, self._requests)
