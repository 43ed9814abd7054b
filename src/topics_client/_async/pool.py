"""Requests over connections that are kept: each carries one at a time, and is closed when anything about it is odd."""

import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from topics_client._async.net import Connection, Slots, connect
from topics_client.errors import ClientClosed, ConnectionFailed
from topics_client.options import ClientOptions
from topics_client.transport.http1 import HttpRequest, ProtocolError, Response, ResponseParser, render
from topics_client.transport.route import Route

if TYPE_CHECKING:
    import ssl


class AsyncBody(Protocol):
    """An answer whose body comes bit by bit."""

    response: Response

    async def read(self) -> bytes:
        """The received bytes of the body; empty at its end."""
        ...

    def abort(self) -> None:
        """Ends it for its reader, which then closes it."""
        ...

    async def aclose(self) -> None: ...


class AsyncTransport(Protocol):
    """Sends requests: over connections, or by a function in a test. It raises `ConnectionFailed` and nothing else."""

    closed: bool

    async def send(self, request: HttpRequest) -> Response:
        """The answer, with all of its body."""
        ...

    async def open(self, request: HttpRequest) -> AsyncBody:
        """The answer as soon as its head is there."""
        ...

    async def aclose(self) -> None: ...


class AsyncPool:
    """The connections of one client to its server. `where` is that server; when it is another one, all are closed."""

    def __init__(self, where: Callable[[], Route], options: ClientOptions) -> None:
        self.closed = False
        self._where = where
        self._route = where()
        self._pid = os.getpid()
        self._timeout_s = options.timeout_s
        self._connect_timeout_s = options.connect_timeout_s
        self._ssl_context = options.ssl_context
        self._connections_max = options.max_connections
        self._slots = Slots(options.max_connections)
        self._idle: deque[Connection] = deque()
        self._busy: dict[Connection, Route] = {}

    async def send(self, request: HttpRequest) -> Response:
        connection, parser = await self._begin(request)
        parts: list[bytes] = []
        try:
            while not parser.done:
                parser.feed(await connection.read(request.read_timeout_s))
                parts.append(parser.take_body())
        except (OSError, ProtocolError) as error:
            raise self._failure(error, maybe_done=True) from error
        finally:
            self.release(connection, parser.done and parser.keep_alive)
        assert parser.response is not None
        parser.response.content = parts[0] if len(parts) == 1 else b"".join(parts)
        return parser.response

    async def open(self, request: HttpRequest) -> AsyncBody:
        connection, parser = await self._begin(request)
        try:
            while parser.response is None:
                parser.feed(await connection.read(request.read_timeout_s))
        except BaseException as error:
            self.release(connection, False)
            if isinstance(error, OSError | ProtocolError):
                raise self._failure(error, maybe_done=True) from error
            raise
        return _Body(self, connection, parser, request.read_timeout_s)

    async def aclose(self) -> None:
        self.closed = True
        self._close_idle()
        for connection in list(self._busy):
            connection.shutdown()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def release(self, connection: Connection, is_good: bool) -> None:
        """Returns a connection to the pool; an unusable one is closed."""
        made_for = self._busy.pop(connection, None)
        if is_good and made_for is self._route:
            self._idle.append(connection)
        else:
            connection.close()
        if self.closed:
            self._close_idle()
        self._slots.release()

    def _failure(self, error: Exception, *, maybe_done: bool) -> ConnectionFailed:
        if self.closed:
            return ClientClosed(maybe_done=maybe_done)
        return ConnectionFailed(f"{self._route.url}: {str(error) or type(error).__name__}", maybe_done=maybe_done)

    async def _begin(self, request: HttpRequest) -> tuple[Connection, ResponseParser]:
        """Sends a request over a connection of the pool, or over a new one."""
        if self.closed:
            raise ClientClosed
        if self._pid != os.getpid():
            # A fork has the connections of its parent: each would read the answers of the other.
            self._pid, self._slots = os.getpid(), Slots(self._connections_max)
            self._idle.clear()
            self._busy.clear()
        try:
            await self._slots.acquire(self._timeout_s)
        except OSError as error:
            raise self._failure(error, maybe_done=False) from error
        connection: Connection | None = None
        route = self._where()
        if route is not self._route:
            self._route = route
            self._close_idle()
        data = render(request, route.prefix, route.host_line)
        try:
            connection = self._take_idle() or await self._connect(route)
            self._busy[connection] = route
            try:
                await connection.write(data, self._timeout_s)
            except OSError as error:
                if isinstance(error, TimeoutError):
                    raise self._failure(error, maybe_done=True) from error
                # A server that refuses a large body answers before it has read all of it: that answer is worth more.
        except BaseException:
            if connection is None:
                self._slots.release()
            else:
                self.release(connection, False)
            raise
        return connection, ResponseParser(request.method)

    def _take_idle(self) -> Connection | None:
        """The connection that was used last, if the server still keeps one open."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.is_usable:
                return connection
            connection.close()

    async def _connect(self, route: Route) -> Connection:
        timeout_s = self._connect_timeout_s
        connection: Connection | None = None
        try:
            connection = await connect(route.host, route.port, timeout_s)
            if route.tunnel is not None:
                await self._dig(connection, route.tunnel)
            if route.tls_name is not None:
                await connection.start_tls(self._trusted(), route.tls_name, timeout_s)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, OSError | ProtocolError):
                raise self._failure(error, maybe_done=False) from error
            raise
        return connection

    async def _dig(self, connection: Connection, tunnel: bytes) -> None:
        """Has a proxy open the way to the server."""
        await connection.write(tunnel, self._connect_timeout_s)
        # As to HEAD: an answer to CONNECT has no body; the following bytes belong to the tunnel.
        parser = ResponseParser("HEAD")
        while not parser.done:
            parser.feed(await connection.read(self._timeout_s))
        assert parser.response is not None
        if not parser.response.is_success:
            raise ProtocolError(f"the proxy refused: {parser.response.status} {parser.response.reason}")

    def _trusted(self) -> "ssl.SSLContext":
        if self._ssl_context is None:
            import ssl  # noqa: PLC0415 - loading the certificates of the world takes longer than most calls

            self._ssl_context = ssl.create_default_context()
        return self._ssl_context


class _Body:
    """The body of an answer of a pool. Its connection is used for nothing else afterwards."""

    def __init__(self, pool: AsyncPool, connection: Connection, parser: ResponseParser, timeout_s: float) -> None:
        assert parser.response is not None
        self.response = parser.response
        self._pool = pool
        self._connection: Connection | None = connection
        self._parser = parser
        self._timeout_s = timeout_s

    async def read(self) -> bytes:
        connection = self._connection
        while True:
            data = self._parser.take_body()
            if data or self._parser.done or connection is None:
                return data
            try:
                self._parser.feed(await connection.read(self._timeout_s))
            except (OSError, ProtocolError) as error:
                raise self._pool._failure(error, maybe_done=True) from error

    def abort(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.shutdown()

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.release(connection, False)
