"""State that all connections of one server share: limits, counters, backpressure, fair scheduling and busy polling.

TLS: the server's certificate, and the handshake of a connection.

A connection counts from its acceptance, before its handshake: clients that connect and send nothing use descriptors as
well. After the handshake it is an ordinary connection on another transport.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Protocol

from topics.http.exchange import Application, Exchange, Renderer
from topics.http.messages import Fault, HttpError, HttpLimits, Refusal, RequestHead
from topics.http.output_backpressure import OutputBackpressure, Sender
from topics.http.request_body import Budget
from topics.system.clock import Clock
from topics.system.fair_scheduler import FairScheduler

# Busy polling (adaptive spin): the loop does not sleep while requests arrive in quick succession.
#
# A loop without work sleeps in the kernel, and waking it can take longer than a response: some fifty microseconds on a
# virtual machine, with cold caches afterwards. If the next request is likely within that time, polling for it is
# faster, for the client and in total.
#
# The likelihood is learned: a request soon after the last one counts for polling, whether the loop slept or not, and a
# later one counts twice against it. So an idle server sleeps, and so does one whose clients need the processor to send
# their next request. While a thread or process of the server works on responses and no client sends, the loop sleeps as
# well, because it would take the processor from it.

_CREDIT_MAX = 8
_CREDIT_NEEDED = 4
_LOSS = 2
_WORK_S = 0.00002
"""A longer turn did some work; an empty one takes a tenth of this."""

Run = Callable[[], None]
Defer = Callable[[Run], object]


class AdaptiveSpin:
    """`defer` runs a function in the loop's next turn, which then does not sleep; `said` counts the input of clients,
    in any unit; `window_s` of 0 disables polling."""

    __slots__ = ("_credit", "_defer", "_heard", "_last", "_looked", "_said", "_seconds", "_window_s", "busy", "polling")

    def __init__(self, defer: Defer, seconds: Callable[[], float], said: Callable[[], int], window_s: float) -> None:
        self._defer = defer
        self._seconds = seconds
        self._said = said
        self._window_s = window_s
        self._credit = 0
        self._last = 0.0
        """The time of the last input of a client, or of the end of its processing."""
        self._looked = 0.0
        # Without a window it counts as always awake and never requests a turn.
        self.polling = window_s <= 0
        self._heard = 0
        self.busy: list[Callable[[], bool]] = []
        """Functions that return whether another thread or process works on requests."""

    def rouse(self) -> None:
        """Called for input while the loop is not polling. Connections check this themselves."""
        now = self._seconds()
        soon, self._last = now - self._last < self._window_s, now
        self._learn(soon)
        if self._credit >= _CREDIT_NEEDED:
            self.polling = True
            self._looked = now
            self._heard = self._said()
            self._defer(self._look)
        else:
            self._defer(self._work)

    def _work(self) -> None:
        """Called when a request was read. Its work is done by the end of the next turn."""
        self._defer(self._worked)

    def _worked(self) -> None:
        # A client that waits for its answer sends nothing until here.
        self._last = self._seconds()

    def _look(self) -> None:
        now = self._seconds()
        turn_s, self._looked = now - self._looked, now
        said = self._said()
        if said != self._heard:
            # The usual turn of a busy server. Input of clients is served first.
            self._heard = said
            self._last = now
            if self._credit < _CREDIT_MAX:
                self._credit += 1
            self._defer(self._look)
            return
        if turn_s > _WORK_S:
            # The loop's own processing time does not count as silence of clients.
            self._last = now
        elif now - self._last >= self._window_s:
            self.polling = False
            self._learn(False)
            return
        if any([busy() for busy in self.busy]):
            self.polling = False
        else:
            self._defer(self._look)

    def _learn(self, soon: bool) -> None:
        if soon:
            self._credit = min(self._credit + 1, _CREDIT_MAX)
        else:
            self._credit = max(self._credit - _LOSS, 0)


_logger = logging.getLogger(__name__)


class Counters:
    """Counters since the start, for metrics.

    A plain class, because three of them change with every request and its attributes are fast.
    """

    __slots__ = (
        "bytes_in", "bytes_out", "connections_open", "connections_total", "http2_connections_open",
        "http2_connections_total", "messages", "refused", "requests",
    )  # fmt: skip

    def __init__(self) -> None:
        self.connections_open = 0
        self.connections_total = 0
        # Open connections that speak HTTP/2.
        self.http2_connections_open = 0
        self.http2_connections_total = 0
        self.requests = 0
        """The number of parsed heads, regardless of the outcome of the request."""
        self.refused = 0
        """Requests answered by a refusal of the HTTP layer, or of the application before their body."""
        self.messages = 0
        """The number of reads with input on WebSocket connections."""
        self.bytes_in = 0
        self.bytes_out = 0

    @property
    def heard(self) -> int:
        """The number of requests of any kind."""
        return self.requests + self.messages


class Served(Protocol):
    """The interface of a connection for the server: HTTP, or the protocol that has taken it over."""

    @property
    def owes(self) -> bool:
        """Whether a graceful stop must wait for it."""
        ...

    @property
    def uploading(self) -> bool:
        """Whether the body of an admitted request is being received."""
        ...

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes that the client has not read."""
        ...

    def sweep(self, now: float) -> None:
        """Ends the connection after too long without progress."""
        ...

    def expect_end(self) -> None:
        """The server stops."""
        ...

    def close(self) -> None:
        """Ends the connection after everything is sent."""
        ...

    def abort(self) -> None: ...


class ServerState:
    """The state of a server, shared by its connections."""

    __slots__ = (
        "application", "budget", "call_soon", "changed", "connections", "counters", "draining", "limits", "monotonic",
        "output_backpressure", "renderer", "scheduler", "silent", "spin",
    )  # fmt: skip

    def __init__(self, application: Application, limits: HttpLimits, clock: Clock, defer: Defer | None = None) -> None:
        """`defer` calls a function in the next turn of the loop, by default the running one."""
        self.call_soon = defer or _next_turns()
        self.application = application
        self.limits = limits
        self.monotonic = clock.monotonic
        self.renderer = Renderer()
        self.renderer.set_time(clock.now_ms())
        self.budget = Budget(limits.bodies_bytes)
        counters = self.counters = Counters()
        self.connections: set[Served] = set()
        # Connections without a complete request head, oldest first: they are closed when there is no room for more.
        self.silent: dict[Served, None] = {}
        self.spin = AdaptiveSpin(self.call_soon, clock.monotonic, lambda: counters.bytes_in, limits.awake_s)
        self.scheduler = FairScheduler(clock.monotonic, self.call_soon)
        self.output_backpressure = OutputBackpressure(limits.unread_bytes)
        self.draining = False
        # While draining: set whenever a connection is closed or has no pending answer.
        self.changed = asyncio.Event()

    def adopt(self, connection: Served) -> None:
        """Serves a connection from now on."""
        self.connections.add(connection)
        self.counters.connections_open += 1

    def abandon(self, connection: Served) -> None:
        """Removes a lost connection, or one that another protocol has taken over."""
        self.connections.discard(connection)
        self.silent.pop(connection, None)
        self.counters.connections_open -= 1
        self.changed.set()

    def recount_soon(self, sender: Sender) -> None:
        """Notes a connection with much new output; its unread bytes are known after this turn of the loop."""
        self.output_backpressure.uncertain.append(sender)
        if len(self.output_backpressure.uncertain) == 1:
            self.call_soon(self._recount)

    def _recount(self) -> None:
        uncertain, self.output_backpressure.uncertain = self.output_backpressure.uncertain, []
        for sender in uncertain:
            sender.recount()

    def make_room(self) -> bool:
        """Ends the connection that has sent nothing for the longest time, if there is one."""
        for connection in self.silent:
            connection.abort()
            return True
        return False

    def admit(self, head: RequestHead) -> int | Refusal:
        """Returns the application's decision about a request head.

        Raises `HttpError` if the head is refused before, or if the application fails.
        """
        if self.draining:
            raise HttpError(Fault.SHUTTING_DOWN)
        try:
            return self.application.admit(head)
        except Exception:
            _logger.exception("request admission failed", extra={"path": head.path})
            raise HttpError(Fault.INTERNAL) from None

    def handle(self, exchange: Exchange) -> None:
        """Passes a complete request to the application."""
        try:
            self.application.handle(exchange)
        except Exception:
            self.failed(exchange)

    def failed(self, exchange: Exchange) -> None:
        """Records an unexpected exception of a handler. Call it from the except block."""
        _logger.exception("handler failed", extra={"method": exchange.head.method, "path": exchange.head.path})
        if not exchange.answered:
            exchange.respond(*self.refusal(HttpError(Fault.INTERNAL), exchange.head.path))

    def refusal(self, error: HttpError, path: str) -> Refusal:
        """Returns a refusal in the application's format, or a bare one if that fails."""
        try:
            refusal = self.application.refuse(error, path)
        except Exception:
            _logger.exception("error rendering failed")
            refusal = Refusal(error.status)
        if error.headers:
            refusal = refusal._replace(headers=(*refusal.headers, *error.headers))
        return refusal


def _next_turns() -> Defer:
    soon: Callable[[Callable[[], None]], object] | None = None

    def call_soon(callback: Callable[[], None]) -> None:
        nonlocal soon
        if soon is None:
            # Looked up once, because each lookup of the running loop makes the interpreter call getpid.
            soon = asyncio.get_running_loop().call_soon
        soon(callback)

    return call_soon


_ACCEPT_AGAIN_S = 0.1


class Certificate:
    """A certificate with its key, from files that can be reloaded."""

    def __init__(self, cert_file: str, key_file: str, *, http2: bool = True) -> None:
        """Raises `OSError`, including `ssl.SSLError`, for invalid files. `http2` enables the negotiation of HTTP/2."""
        self._files = cert_file, key_file
        self._protocols = ["h2", "http/1.1"] if http2 else ["http/1.1"]
        self.context = self._load()

    def reload(self) -> None:
        """Reloads the files for new connections. Raises `OSError` without a change."""
        # Into a separate context first: a certificate without its key would break every connection.
        self._load()
        self.context.load_cert_chain(*self._files)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Renegotiation only costs the server processor time.
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        # A client without a common protocol gets HTTP/1.1; its first bytes show its protocol.
        context.set_alpn_protocols(self._protocols)
        # A key with a password is refused, instead of a prompt at the terminal.
        context.load_cert_chain(*self._files, password=_no_password)
        return context


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted; a server needs one that is not")


class Handshaking:
    """A connection during its handshake (`server_state.Served`)."""

    owes = False
    uploading = False
    buffered_bytes = 0

    def __init__(self, server_state: ServerState, task: asyncio.Task[None]) -> None:
        self._server_state = server_state
        self._task = task
        server_state.adopt(self)
        server_state.silent[self] = None
        task.add_done_callback(self._leave)

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._server_state.abandon(self)

    # Called by the server.

    def sweep(self, now: float) -> None:
        """The handshake has its own timeout."""

    def expect_end(self) -> None:
        self.abort()

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        # Ends its timers and closes its socket.
        self._server_state.silent.pop(self, None)
        self._task.cancel()


class TlsListener:
    """Accepts connections itself, because the loop's connections are not visible before the end of their handshake."""

    def __init__(
        self, server_state: ServerState, certificate: Certificate, make: Callable[[], asyncio.Protocol]
    ) -> None:
        self._server_state = server_state
        self._certificate = certificate
        self._make = make
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []

    async def start(self, host: str, port: int, backlog: int) -> list[tuple[str, int]]:
        """Listens, and returns the bound addresses. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                self._sockets.append(_listen(socket.socket(family, kind, protocol), address, backlog))
        except OSError:
            self.close()
            raise
        self._accepting = [loop.create_task(self._accept(listening)) for listening in self._sockets]
        return [listening.getsockname()[:2] for listening in self._sockets]

    def close(self) -> None:
        for task in self._accepting:
            task.cancel()
        for listening in self._sockets:
            listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop, server_state = asyncio.get_running_loop(), self._server_state
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                # No descriptor is free, or the client has disconnected.
                _logger.debug("connection refused", extra={"error": str(error)})
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            if len(server_state.connections) >= server_state.limits.connections_max and not server_state.make_room():
                accepted.close()
                continue
            Handshaking(server_state, loop.create_task(self._shake_hands(accepted)))

    async def _shake_hands(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(
                self._make, accepted, ssl=self._certificate.context,
                ssl_handshake_timeout=self._server_state.limits.handshake_timeout_s,
            )  # fmt: skip
        except (OSError, TimeoutError) as error:
            # Connections without TLS are common on an open port and are not logged.
            _logger.debug("TLS handshake failed", extra={"error": str(error)})
            accepted.close()


def _listen(listening: socket.socket, address: Any, backlog: int) -> socket.socket:
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listening.family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(backlog)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def end_sending(transport: asyncio.Transport) -> None:
    """Announces the end of the output, and keeps reading for a while: over TLS both directions of a connection end
    together."""
    if not transport.can_write_eof():
        transport.close()
        return
    try:
        transport.write_eof()
    except OSError:
        transport.abort()
