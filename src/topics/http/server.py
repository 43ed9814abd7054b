"""HTTP server: the listening socket, the periodic sweep for idle connections, and graceful shutdown (draining)."""

import asyncio
import logging
import math
from collections.abc import Callable
from importlib import import_module

from topics.http.exchange import Application
from topics.http.h1.connection import Connection
from topics.http.messages import HttpLimits
from topics.http.server_state import Certificate, Counters, Served, ServerState, TlsListener
from topics.system.clock import Clock, SystemClock

# The backlog of the listening socket; the system limits it further.
_BACKLOG = 1024

# The number of connections swept at once; ten thousand would block the loop for about ten milliseconds.
_SWEPT_AT_ONCE = 500

_logger = logging.getLogger(__name__)


class HttpServer:
    """Serves an application on the running loop: call `start`, and at the end `drain`."""

    def __init__(self, application: Application, limits: HttpLimits | None = None, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._server_state = ServerState(application, limits or HttpLimits(), self._clock)
        self._listener: asyncio.Server | TlsListener | None = None
        self._timer: asyncio.TimerHandle | None = None
        # The connections left in the current sweep.
        self._unswept: list[Served] = []

    @property
    def counters(self) -> Counters:
        return self._server_state.counters

    @property
    def connections_max(self) -> int:
        return self._server_state.limits.connections_max

    @property
    def connections(self) -> frozenset[Served]:
        return frozenset(self._server_state.connections)

    def sleep_while(self, busy: Callable[[], bool]) -> None:
        """While `busy` returns true, another thread or process works on a request, and the loop does not poll."""
        self._server_state.spin.busy.append(busy)

    @property
    def unread_bytes(self) -> int:
        """The unread bytes of all clients."""
        return self._server_state.output_backpressure.held_bytes

    @property
    def held_body_bytes(self) -> int:
        """The memory of all large request bodies being received."""
        return self._server_state.budget.held_bytes

    def connection(self) -> Connection:
        """Returns the protocol of another connection, for callers with a transport."""
        return Connection(self._server_state)

    async def start(self, host: str, port: int, certificate: Certificate | None = None) -> list[tuple[str, int]]:
        """Listens, and returns the bound addresses: a name such as localhost may have several. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        if certificate is None:
            server = self._listener = await loop.create_server(self.connection, host, port, backlog=_BACKLOG)
            addresses = [listening.getsockname()[:2] for listening in server.sockets]
        else:
            if self._server_state.limits.http2:
                # Imported now, because browsers use it and the first one should not wait for the import.
                import_module("topics.http.h2.connection")
            secure = self._listener = TlsListener(self._server_state, certificate, self.connection)
            addresses = await secure.start(host, port, _BACKLOG)
        self._timer = loop.call_later(self._server_state.limits.sweep_s, self._tick, loop)
        return addresses

    async def drain(self, timeout_s: float) -> bool:
        """Stops the server.

        Requests in progress are answered, new ones refused, also on new connections; then everything is closed.

        Requests that are unfinished after `timeout_s` are aborted. Returns whether none was.
        """
        server_state = self._server_state
        server_state.draining = True
        for connection in server_state.connections:
            connection.expect_end()
        try:
            async with asyncio.timeout(timeout_s):
                await self._until_quiet()
        except TimeoutError:
            _logger.warning("connections closed at shutdown", extra={"count": len(server_state.connections)})
            await self._cut_off()
            return False
        finally:
            self._close_listener()
            if self._timer is not None:
                self._timer.cancel()
        return True

    async def finish_uploads(self, timeout_s: float) -> None:
        """Waits for the requests whose bodies are being received, and their answers. Health is still answered."""
        server_state = self._server_state
        uploading = [connection for connection in server_state.connections if connection.uploading]
        for connection in uploading:
            connection.expect_end()
        try:
            async with asyncio.timeout(timeout_s):
                while uploading := [
                    connection
                    for connection in uploading
                    if connection in server_state.connections and (connection.uploading or connection.owes)
                ]:
                    await self._change()
        except TimeoutError:
            _logger.warning("uploads cut off", extra={"count": len(uploading)})

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _until_quiet(self) -> None:
        connections = self._server_state.connections
        owing = tuple(connections)
        while owing := tuple(connection for connection in owing if connection in connections and connection.owes):
            await self._change()
        self._close_listener()
        for connection in tuple(connections):
            connection.close()
        while connections:
            await self._change()

    async def _cut_off(self) -> None:
        for connection in tuple(self._server_state.connections):
            connection.abort()
        while self._server_state.connections:
            await self._change()

    async def _change(self) -> None:
        """Waits until a connection is closed or has no pending answer."""
        self._server_state.changed.clear()
        await self._server_state.changed.wait()

    def sweep(self) -> None:
        """Ends connections without progress for too long, and updates the Date header."""
        self._unswept = list(self._server_state.connections)
        while self._unswept:
            self._sweep_some()

    def _sweep_some(self) -> None:
        self._server_state.renderer.set_time(self._clock.now_ms())
        now = self._clock.monotonic()
        some, self._unswept = self._unswept[:_SWEPT_AT_ONCE], self._unswept[_SWEPT_AT_ONCE:]
        for connection in some:
            connection.sweep(now)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._unswept:
            self._unswept = list(self._server_state.connections)
        ticks = math.ceil(len(self._server_state.connections) / _SWEPT_AT_ONCE)
        self._timer = loop.call_later(self._server_state.limits.sweep_s / max(1, ticks), self._tick, loop)
        self._sweep_some()
