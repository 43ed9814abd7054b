"""What the connections of one server share."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from topics.http.adaptive_spin import AdaptiveSpin
from topics.http.application import Application
from topics.http.bodies import Budget
from topics.http.errors import Fault, HttpError
from topics.http.exchange import Exchange
from topics.http.limits import HttpLimits
from topics.http.messages import Refusal, RequestHead
from topics.http.render import Renderer
from topics.http.turns import Turns, Waiting
from topics.http.unread import Sender, Unread
from topics.system.clock import Clock

_logger = logging.getLogger(__name__)


class Counters:
    """What happened since the start, for metrics. Three of them change with every request, so it is a plain class: the
    interpreter knows where its fields are."""

    __slots__ = (
        "bytes_in", "bytes_out", "connections_open", "connections_total", "http2_connections_open",
        "http2_connections_total", "messages", "refused", "requests",
    )  # fmt: skip

    def __init__(self) -> None:
        self.connections_open = 0
        self.connections_total = 0
        # Those of them that speak HTTP/2.
        self.http2_connections_open = 0
        self.http2_connections_total = 0
        self.requests = 0
        """Heads understood, whatever became of the request."""
        self.refused = 0
        """Requests answered by a refusal of the HTTP layer, or of the application before their body."""
        self.messages = 0
        """How often something came on a connection that has become a WebSocket."""
        self.bytes_in = 0
        self.bytes_out = 0

    @property
    def heard(self) -> int:
        """How often a client has asked for something, in whatever way."""
        return self.requests + self.messages


class Served(Protocol):
    """A connection, as the server sees it: of HTTP, or of what HTTP gave it away to."""

    @property
    def owes(self) -> bool:
        """Whether a stop has to wait for it."""
        ...

    @property
    def buffered_bytes(self) -> int:
        """What the client has left unread."""
        ...

    def sweep(self, now: float) -> None:
        """Ends the connection if it has been in one place for too long."""
        ...

    def expect_end(self) -> None:
        """The server stops."""
        ...

    def close(self) -> None:
        """Ends the connection once everything is sent."""
        ...

    def abort(self) -> None: ...


class Hub:
    """The state of a server that its connections read and change; the server itself only starts and stops."""

    __slots__ = (
        "_soon",
        "application",
        "budget",
        "changed",
        "connections",
        "counters",
        "draining",
        "limits",
        "monotonic",
        "renderer",
        "silent",
        "spin",
        "turns",
        "unread",
    )

    def __init__(self, application: Application, limits: HttpLimits, clock: Clock) -> None:
        self._soon = _next_turns()
        self.application = application
        self.limits = limits
        self.monotonic = clock.monotonic
        self.renderer = Renderer()
        self.renderer.set_time(clock.now_ms())
        self.budget = Budget(limits.bodies_bytes)
        counters = self.counters = Counters()
        self.connections: set[Served] = set()
        # Those that have not sent a whole head yet, the oldest first: where there is no room for more, they go.
        self.silent: dict[Served, None] = {}
        self.spin = AdaptiveSpin(self._soon, clock.monotonic, lambda: counters.bytes_in, limits.awake_s)
        self.turns = Turns(clock.monotonic)
        self.unread = Unread(limits.unread_bytes)
        self.draining = False
        # While draining: set whenever a connection is closed or owes no answer any more.
        self.changed = asyncio.Event()

    def adopt(self, connection: Served) -> None:
        """Serves a connection from now on."""
        self.connections.add(connection)
        self.counters.connections_open += 1

    def abandon(self, connection: Served) -> None:
        """The connection is lost, or somebody else's."""
        self.connections.discard(connection)
        self.silent.pop(connection, None)
        self.counters.connections_open -= 1
        self.changed.set()

    def wait_in_line(self, connection: Waiting) -> None:
        """Gives a connection another turn when those before it had theirs."""
        if self.turns.add(connection):
            self.call_soon(self._serve_line)

    def _serve_line(self) -> None:
        if self.turns.serve():
            self.call_soon(self._serve_line)

    def recount_soon(self, sender: Sender) -> None:
        """A connection was given much to send: what the system took of it is known after this turn of the loop."""
        self.unread.uncertain.append(sender)
        if len(self.unread.uncertain) == 1:
            self.call_soon(self._recount)

    def _recount(self) -> None:
        uncertain, self.unread.uncertain = self.unread.uncertain, []
        for sender in uncertain:
            sender.recount()

    def make_room(self) -> bool:
        """Ends the connection that has said nothing for the longest time, if there is one."""
        for connection in self.silent:
            connection.abort()
            return True
        return False

    def admit(self, head: RequestHead) -> int | Refusal:
        """What the application decides by a head. Raises `HttpError` where it is not asked, or fails to answer."""
        if self.draining:
            raise HttpError(Fault.SHUTTING_DOWN)
        try:
            return self.application.admit(head)
        except Exception:
            _logger.exception("the application failed to admit a request", extra={"path": head.path})
            raise HttpError(Fault.INTERNAL) from None

    def handle(self, exchange: Exchange) -> None:
        """Gives a complete request to the application."""
        try:
            self.application.handle(exchange)
        except Exception:
            self.failed(exchange)

    def failed(self, exchange: Exchange) -> None:
        """A handler raised what it should not have. To be called where it is caught."""
        _logger.exception("a handler failed", extra={"method": exchange.head.method, "path": exchange.head.path})
        if not exchange.answered:
            exchange.respond(*self.refusal(HttpError(Fault.INTERNAL), exchange.head.path))

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Calls back in the next turn of the loop."""
        self._soon(callback)

    def refusal(self, error: HttpError, path: str) -> Refusal:
        """The application's form of a refusal, or a bare one if it fails even at that."""
        try:
            refusal = self.application.refuse(error, path)
        except Exception:
            _logger.exception("the application failed to put a refusal into words")
            refusal = Refusal(error.status)
        if error.headers:
            refusal = refusal._replace(headers=(*refusal.headers, *error.headers))
        return refusal


def _next_turns() -> Callable[[Callable[[], None]], None]:
    soon: Callable[[Callable[[], None]], object] | None = None

    def call_soon(callback: Callable[[], None]) -> None:
        nonlocal soon
        if soon is None:
            # Asked once: who asks each time which loop it is in makes the interpreter ask which process it is.
            soon = asyncio.get_running_loop().call_soon
        soon(callback)

    return call_soon
