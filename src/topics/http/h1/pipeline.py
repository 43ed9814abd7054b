"""HTTP pipelining: the requests of one connection are answered in the order in which they came.

    [answered, not its turn] [running] [running] [waiting] [receiving]
            ^ first                                             ^ last

A request enters when its head is complete and leaves when its response is sent. Only the first may send; a response
that is ready earlier stays with its exchange until all before it are gone. The output of one turn of the loop goes out
in one write: while `corked`, responses are only collected, and the code that set it flushes in the end.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from topics.http.exchange import (
    CONTINUE,
    JOINED_BYTES_MAX,
    LENGTH_LINES,
    BatchHandler,
    Exchange,
    compress_later,
    request_task,
)
from topics.http.messages import RequestHead
from topics.http.output_backpressure import MUCH_BYTES, NOBODY, Account
from topics.http.server_state import ServerState
from topics.http.streaming import Stream, Upgrade
from topics.system.fair_scheduler import Task

# Small answers of one turn are sent together, up to this many; a large one is sent at once.
_PIECES_MAX = 16


class Owner(Protocol):
    """The interface of the connection for its pipeline."""

    def go_on(self) -> None:
        """Notes that an answer was sent, so there may be room for more requests."""
        ...

    def after_answer(self) -> None:
        """Called after an answer from other code: the next requests start in the next turn of the loop."""
        ...

    def finish(self) -> None:
        """The last answer of the connection is sent."""
        ...

    def end_input(self) -> None:
        """No request after the ones that are here will be answered."""
        ...

    def hand_over(self) -> Upgrade:
        """The connection is no longer HTTP."""
        ...


class Pipeline:
    """The exchanges of one connection."""

    __slots__ = (
        "_account", "_counted", "_counters", "_going_on", "_held_bytes", "_owner", "_pieces", "_released",
        "_server_state", "_tight", "_transport", "corked", "exchanges", "gzip_inline_bytes", "gzip_min_bytes",
        "occupied", "peer", "receiving", "renderer", "small_bytes", "upgrading", "waiting", "write_paused",
    )  # fmt: skip

    def __init__(self, owner: Owner, server_state: ServerState, transport: asyncio.Transport) -> None:
        self._owner = owner
        self._server_state = server_state
        self._counters = server_state.counters
        self._transport = transport
        self._pieces: list[bytes] = []
        # Whether the connection goes on in the next turn of the loop, where nothing makes it do so before.
        self._going_on = False
        # The account of the unread bytes, the number counted, and how many of them wait for an earlier response.
        self._account = NOBODY
        self._counted = 0
        self._held_bytes = 0
        self._released = self._tight = False
        self.renderer = server_state.renderer
        self.gzip_min_bytes = server_state.limits.gzip_min_bytes
        self.gzip_inline_bytes = server_state.limits.gzip_inline_bytes
        self.small_bytes = min(len(LENGTH_LINES), self.gzip_min_bytes)
        self.peer = address_of(transport.get_extra_info("peername"))
        self.corked = False
        # Whether the client has left so much unread that the transport asked for no more.
        self.write_paused = False
        # Whether a request runs in steps: later requests wait until its end.
        self.occupied = False

        self.exchanges: deque[Exchange] = deque()
        # Complete requests that wait for room before they are passed to the application.
        self.waiting: deque[Exchange] = deque()
        # The last request, while its body is being received.
        self.receiving: Exchange | None = None
        # The upgrade request. It is always the last: the following bytes may not be HTTP.
        self.upgrading: Exchange | None = None

    def enter(self, head: RequestHead) -> Exchange:
        """Queues a request whose head is complete."""
        keep = head.keep_alive
        plain = keep and head.http_version == "1.1" and head.method != "HEAD" and not head.upgrade
        exchange = Exchange(head, self, self._server_state.monotonic(), plain, keep)
        self.exchanges.append(exchange)
        return exchange

    @property
    def room_left(self) -> int:
        """The number of further requests that may be in progress."""
        return self._server_state.limits.pipeline_depth - len(self.exchanges)

    def start_run(self, head: RequestHead, bodies: Sequence[bytes], now: float, batch_handler: BatchHandler) -> bool:
        """Starts requests with one head and bodies of equal length, all of them or none."""
        exchanges = [Exchange(head, self, now, True, True, body) for body in bodies]
        self.exchanges += exchanges
        taken = batch_handler(exchanges, len(bodies[0]))
        for _ in () if taken else exchanges:
            self.exchanges.pop()
        return taken

    def is_full(self) -> bool:
        """Returns whether reading of requests is paused."""
        if self.write_paused or self.upgrading is not None or self.occupied:
            return True
        if self._counted and self._server_state.output_backpressure.exhausted:
            return True
        # A request whose body is being received must be read to its end, because otherwise it would never make room.
        return len(self.exchanges) - (self.receiving is not None) >= self._server_state.limits.pipeline_depth

    def may_start(self, exchange: Exchange, before: int) -> bool:
        """Returns whether an exchange with `before` earlier ones can be passed to the application now."""
        # A protocol upgrade may take the whole connection, so nothing else may be in progress on it.
        return self._has_room(before) and (before == 0 or exchange is not self.upgrading)

    def takes_more(self) -> bool:
        """Returns whether an ordinary request that is read now can be passed to the application immediately."""
        return not self.waiting and self.upgrading is None and self._has_room(len(self.exchanges))

    def _has_room(self, before: int) -> bool:
        if self.write_paused or self.occupied or before >= self._server_state.limits.pipeline_depth:
            return False
        if self._counted and (
            self._server_state.output_backpressure.exhausted
            or self._held_bytes > self._server_state.limits.write_buffer_bytes
        ):
            # Unread output comes first; waiting responses must not grow without bound.
            return before == 0 and not self._server_state.output_backpressure.exhausted
        return True

    def next_waiting(self) -> Exchange | None:
        """Returns the next waiting exchange, if it can be started now."""
        if not self.waiting:
            return None
        # Later requests may have their responses already, such as refusals. They do not count, because they wait for
        # this one.
        before = self.exchanges.index(self.waiting[0])
        return self.waiting.popleft() if self.may_start(self.waiting[0], before) else None

    # Called by exchanges.

    def deliver_plain(self, exchange: Exchange, answer: bytes) -> None:
        exchanges = self.exchanges
        if len(exchanges) != 1 or self.corked:
            if self._is_followed(exchange):
                exchanges.popleft()
                self._pieces.append(answer)
            else:
                self.deliver(exchange, (answer,))
            return
        # A fast path for the usual case: the last request of its connection, answered later.
        exchanges.popleft()
        if self._pieces:
            # Earlier responses have waited for it.
            self._pieces.append(answer)
            self.flush()
        else:
            self._counters.bytes_out += len(answer)
            self._transport.write(answer)
        self._owner.after_answer()

    def deliver_run(self, exchanges: Sequence[Exchange], answers: Sequence[bytes]) -> None:
        if len(exchanges) != len(self.exchanges) or self.corked or self._pieces:
            for exchange, answer in zip(exchanges, answers, strict=True):
                self.deliver_plain(exchange, answer)
            return
        # All that are due, together.
        self.exchanges.clear()
        self._pieces += answers
        self.flush()
        self._owner.after_answer()

    def _is_followed(self, exchange: Exchange) -> bool:
        """Returns whether the next answer waits for later ones, so that requests that were sent together are answered
        together. It does not wait for requests that arrive after this turn of the loop."""
        exchanges = self.exchanges
        if self.corked or len(exchanges) < 2 or exchanges[0] is not exchange or len(self._pieces) > _PIECES_MAX:
            return False
        behind = exchanges[1]
        if behind.payload is not None or behind.expects_continue:
            return False
        if not self._going_on:
            self._going_on = True
            self._server_state.call_soon(self._go_on)
        return True

    def _go_on(self) -> None:
        self._going_on = False
        # Otherwise the last answer has sent the delayed ones.
        if self._pieces and not self._released:
            self._owner.go_on()

    def deliver(self, exchange: Exchange, payload: tuple[bytes, ...]) -> None:
        exchange.payload = payload
        if self.exchanges[0] is exchange:
            self._advance()
            if not self.corked:
                self.flush()
                self._owner.after_answer()
        else:
            exchange.held_bytes = sum(map(len, payload))
            self._held_bytes += exchange.held_bytes
            self.recount()

    def _let_go(self, exchange: Exchange) -> None:
        """Sends or drops an answer that waited for earlier ones."""
        self._held_bytes -= exchange.held_bytes
        exchange.held_bytes = 0
        self._server_state.recount_soon(self)

    def room(self, account: Account) -> int:
        if account is not self._account:
            self._server_state.output_backpressure.change(self._account, -self._counted)
            self._server_state.output_backpressure.change(account, self._counted)
            self._account = account
        return self._server_state.output_backpressure.room(account)

    def recount(self) -> None:
        """Updates the count of unread bytes."""
        if self._released:
            return
        unread = self._transport.get_write_buffer_size() + self._held_bytes
        if unread != self._counted:
            self._server_state.output_backpressure.change(self._account, unread - self._counted)
            self._counted = unread
        tight = self._server_state.output_backpressure.tight
        if tight is not self._tight:
            self._tight = tight
            self._transport.set_write_buffer_limits(high=0 if tight else self._server_state.limits.write_buffer_bytes)

    def is_last(self, exchange: Exchange) -> bool:
        return self._server_state.draining and self.exchanges[-1] is exchange

    def open_stream(self, exchange: Exchange, payload: tuple[bytes, ...], stream: Stream) -> None:
        exchange.stream = stream
        exchange.plain = False
        if not exchange.keep:
            self._owner.end_input()
        self.deliver(exchange, payload)

    def hand_over(self, exchange: Exchange) -> Upgrade:
        self.exchanges.clear()
        return self._owner.hand_over()

    def compress_later(self, body: bytes, done: Callable[[bytes], None]) -> None:
        compress_later(body, done)

    def run(self, exchange: Exchange, task: Task, owner: Hashable | None) -> None:
        self.occupied = True
        server_state = self._server_state
        task = request_task(exchange, task, server_state.monotonic, self._task_done)
        server_state.scheduler.run(task, owner or self)

    def _task_done(self) -> None:
        self.occupied = False
        if not self._released:
            self._owner.go_on()

    # Called by streams.

    def write(self, data: bytes) -> bool:
        nbytes = len(data)
        self._counters.bytes_out += nbytes
        self._transport.write(data)
        if nbytes > MUCH_BYTES:
            self.recount()
            self._server_state.recount_soon(self)
        return not self.write_paused

    @property
    def buffered_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def end_stream(self, *, last: bool) -> None:
        exchange = self.exchanges.popleft()
        exchange.channel = None
        if last:
            exchange.keep = False
        self._after(exchange)
        self._advance()
        if not self.corked:
            self.flush()
            self._owner.after_answer()

    # Called by the connection.

    def send_continue(self, exchange: Exchange) -> None:
        """Instructs the client to send its body, after all earlier requests are answered."""
        if self.exchanges[0] is exchange:
            self._pieces.append(CONTINUE)
        else:
            exchange.expects_continue = True

    def flush(self) -> bool:
        """Sends gathered output. Returns whether there was any."""
        pieces = self._pieces
        if not pieces:
            return False
        self._pieces = []
        if len(pieces) == 1:
            nbytes = len(pieces[0])
            self._transport.write(pieces[0])
        else:
            nbytes = sum(map(len, pieces))
            if nbytes <= JOINED_BYTES_MAX:
                self._transport.write(b"".join(pieces))
            else:
                self._transport.writelines(pieces)
        self._counters.bytes_out += nbytes
        if nbytes > MUCH_BYTES:
            self.recount()
            self._server_state.recount_soon(self)
        return True

    def drained(self) -> None:
        """Called when the client has read its output."""
        self.write_paused = False
        self.recount()
        if self.exchanges and self.exchanges[0].stream is not None:
            self.exchanges[0].stream.drained()

    @property
    def streaming(self) -> bool:
        return bool(self.exchanges) and self.exchanges[0].stream is not None

    def drop_unread(self) -> None:
        """Handles the end of the client's input: drops incomplete requests, and exchanges that treat the client as
        gone, with all after them. The last remaining answer ends the connection."""
        if self.receiving is not None:
            self.lose_from(len(self.exchanges) - 1)
        for index, exchange in enumerate(self.exchanges):
            if exchange.stream is not None or (exchange.disconnect_callback is not None and not exchange.answered):
                self.lose_from(index)
                break
        if self.exchanges:
            last = self.exchanges[-1]
            last.keep = last.plain = False

    def lose_from(self, index: int) -> None:
        """Drops the exchanges from `index` on: their answers will not be read."""
        if len(self.exchanges) <= index:
            return
        every = list(self.exchanges)
        kept, lost = every[:index], every[index:]
        self.exchanges = deque(kept)
        self.waiting = deque(exchange for exchange in self.waiting if exchange in kept)
        self.receiving = self.upgrading = None
        for exchange in lost:
            if exchange.held_bytes:
                self._let_go(exchange)
            exchange.lose()

    def release(self) -> None:
        """Called when the connection is lost: nothing will be sent any more."""
        self.lose_from(0)
        self._server_state.output_backpressure.change(self._account, -self._counted)
        self._counted = self._held_bytes = 0
        self._released = True
        # Reference cycles are broken, so that a lost connection need not wait for the garbage collector.
        del self._owner

    def _advance(self) -> None:
        """Collects the answers whose turn it is."""
        exchanges = self.exchanges
        while exchanges:
            exchange = exchanges[0]
            payload = exchange.payload
            if payload is None:
                if exchange.expects_continue:
                    exchange.expects_continue = False
                    self._pieces.append(CONTINUE)
                return
            exchange.payload = None
            if exchange.held_bytes:
                self._let_go(exchange)
            self._pieces += payload
            if len(payload) > 1 or len(self._pieces) > _PIECES_MAX:
                self.flush()
            if exchange.stream is not None:
                self.flush()
                exchange.stream.begin(self)
                return
            exchanges.popleft()
            if not exchange.plain:
                self._after(exchange)
                exchanges = self.exchanges

    def _after(self, exchange: Exchange) -> None:
        """Handle the consequences of an unusual response."""
        if exchange is self.upgrading:
            self.upgrading = None
        if not exchange.keep:
            self._owner.finish()
        if not self.exchanges:
            self._server_state.changed.set()


def address_of(peername: object) -> str:
    """Returns host:port of the client; for a socket without one, such as a local socket, its description."""
    match peername:
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case _:
            return str(peername or "")
