"""One WebSocket that many share: one may follow while others publish.

A separate task reads the connection, so that acknowledgements and records reach their waiters. It stops reading while
many items and no acknowledgement are awaited, so a slow loop slows the server down.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self

from websockets.exceptions import ConnectionClosed

from topics_client._async.net import (
    Condition,
    Flag,
    Lock,
    Task,
    dial,
    join,
    new_future,
    outcome_of,
    resolve_future,
    spawn,
)
from topics_client.answers import Appended
from topics_client.errors import ClientError, ConnectionFailed, RetryLater
from topics_client.inbox import LiveItem
from topics_client.requests import Request, append, append_many
from topics_client.retry import Backoff
from topics_client.session import as_method
from topics_client.transport.dial import dial_errors, dial_settings
from topics_client.watch import Topics
from topics_client.ws_session import WsOptions, WsSession, subscription_options

if TYPE_CHECKING:
    from topics_client._async.client import AsyncClient
    from topics_client._async.net import Future, WebSocket

P = ParamSpec("P")

_ITEMS_MAX = 10_000


def _publish(
    build: Callable[P, Request[Appended]], name: str
) -> Callable[Concatenate["AsyncSocket", P], Coroutine[Any, Any, Appended]]:
    async def method(self: "AsyncSocket", /, *args: P.args, **kwargs: P.kwargs) -> Appended:
        return await self._publish(build(*args, **kwargs))

    as_method(method, build, name=name)
    return method


def _publish_soon(
    build: Callable[P, Request[Appended]],
) -> Callable[Concatenate["AsyncSocket", P], Coroutine[Any, Any, "Future[Appended]"]]:
    async def method(self: "AsyncSocket", /, *args: P.args, **kwargs: P.kwargs) -> "Future[Appended]":
        request = build(*args, **kwargs)
        return await self._say(lambda done: self._session.publish(request, done))

    as_method(method, build, returns="Future[Appended]", name="publish_soon")
    method.__doc__ = """Sends records and gives a future of the acknowledgement, so that many can be under way; they are
    carried out in the order in which they were sent. It takes what `append_many` takes.
    """
    return method


class AsyncSocket(AsyncIterator[LiveItem]):
    """One connection to publish over, and a loop over the followed topics. Use it in a `with` block, or close it."""

    def __init__(self, client: "AsyncClient", options: WsOptions) -> None:
        self._client = client
        self._backoff = Backoff(client._session.patient(options.deadline_s), client._session, "a WebSocket")
        self._session = WsSession(
            client._session.entropy, idempotent=client.options.idempotent_appends, raise_on_gap=options.raise_on_gap
        )
        self._connection: WebSocket | None = None
        self._reader: Task | None = None
        self._resending: Task | None = None
        self._closing = Flag()
        self._failure: ClientError | None = None
        # Guards the session and the connection. A caller that wants both locks takes the one for sending first.
        self._changed = Condition()
        self._sending = Lock()

    publish = _publish(append, "publish")
    publish_many = _publish(append_many, "publish_many")
    publish_soon = _publish_soon(append_many)

    async def subscribe(
        self,
        topics: Topics,
        *,
        node: str | Sequence[str] | None = None,
        limit: int | None = None,
        max_batch_bytes: int | None = None,
        include_tags: bool = False,
        include_meta: bool | None = None,
        include_data: bool = True,
    ) -> None:
        """Follows topics: the loop over the socket yields their items. `topics` is as in `watch`."""
        options = subscription_options(
            node=node, limit=limit, max_batch_bytes=max_batch_bytes, include_tags=include_tags,
            include_meta=include_meta, include_data=include_data,
        )  # fmt: skip
        await self._ask(lambda done: self._session.subscribe(topics, options, done))

    async def unsubscribe(self, *topics: str) -> None:
        """Stops following topics. Their received items are dropped as well."""
        await self._ask(lambda done: self._session.unsubscribe(topics, done))

    async def ping(self) -> None:
        """Waits for an answer of the server."""
        await self._ask(self._session.ping)

    @property
    def cursors(self) -> dict[str, int]:
        """The cursor of each topic after the last item: another socket accepts it as `topics` to continue there."""
        return dict(self._session.inbox.cursors)

    async def __anext__(self) -> LiveItem:
        async with self._changed:
            while True:
                item = self._session.inbox.next_item()
                if item is not None:
                    self._changed.notify_all()
                    return item
                if self._closing.is_set():
                    raise StopAsyncIteration
                if self._failure is not None:
                    raise self._failure
                await self._changed.wait()

    async def aclose(self) -> None:
        """Closes the connection and ends the loop. Unanswered calls fail."""
        self._closing.set()
        async with self._changed:
            self._changed.notify_all()
            connection = self._connection
        if connection is not None:
            await connection.close()
        await join(self._reader)
        await join(self._resending)
        async with self._changed:
            self._session.give_up(ConnectionFailed("the socket was closed", maybe_done=True))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Commands.

    async def _publish(self, request: Request[Appended]) -> Appended:
        """Publishes, again and again while the server cannot take it now, as an append does."""
        backoff = Backoff(self._client.options.retry, self._client._session, f"WS {request.target}")
        while True:
            try:
                answer: Appended = await self._ask(lambda done: self._session.publish(request, done))
                return answer
            except RetryLater as error:
                await self._pause(error, backoff)

    async def _ask(self, make: Callable[[Callable[[Any], None]], str]) -> Any:
        future = await self._say(make)
        try:
            return await outcome_of(future, self._client._session.answer_timeout_s)
        except TimeoutError:
            raise ConnectionFailed("no answer came in time", maybe_done=True) from None

    async def _say(self, make: Callable[[Callable[[Any], None]], str]) -> "Future[Any]":
        future = new_future()
        async with self._sending:
            self._check_open()
            if self._reader is None:
                await self._start()
            async with self._changed:
                text = make(lambda outcome: resolve_future(future, outcome))
                connection = self._connection
            if connection is not None:
                await self._send(connection, text)
        return future

    def _check_open(self) -> None:
        if self._closing.is_set() or self._client.closed:
            raise ConnectionFailed("the socket is closed", maybe_done=False)
        if self._failure is not None:
            raise self._failure

    async def _send(self, connection: "WebSocket", text: str) -> None:
        try:
            await connection.send(text)
        except ConnectionClosed:
            # The reader finds out as well, and sends it again on the next connection.
            pass

    # The connection.

    async def _start(self) -> None:
        """Connects for the first time, so that the caller gets a refusal."""
        backoff = Backoff(self._client.options.retry, self._client._session, "a WebSocket")
        self._connection = await self._connect(backoff)
        self._reader = spawn(self._read)

    async def _connect(self, backoff: Backoff) -> "WebSocket":
        session = self._client._session
        while True:
            try:
                with dial_errors(session):
                    connection = await dial(dial_settings(session))
            except ClientError as error:
                await self._pause(error, backoff)
                continue
            session.reached = True
            if self._closing.is_set():
                # A caller that closed the socket meanwhile found no connection to close.
                await connection.close()
                raise ConnectionFailed("the socket was closed", maybe_done=False)
            return connection

    async def _pause(self, error: ClientError, backoff: Backoff) -> None:
        """Waits before the next try, or raises `error` when there is to be none."""
        delay = backoff.delay_after(error)
        if delay is None:
            raise error
        if await self._closing.wait(delay):
            raise ConnectionFailed("the socket was closed", maybe_done=False)

    async def _read(self) -> None:
        try:
            await self._read_all(self._connection)
        except Exception as error:
            # A bug, or an interpreter that is shutting down: a caller that waits must not wait for ever.
            await self._fail(ConnectionFailed(f"the socket failed: {error!r}", maybe_done=True))
            raise

    async def _read_all(self, connection: "WebSocket | None") -> None:
        while connection is not None:
            try:
                text = await connection.recv(decode=False)
                async with self._changed:
                    if self._session.take(text):
                        self._backoff.succeeded()
                    self._changed.notify_all()
                    while self._is_crowded:
                        await self._changed.wait()
            except (ConnectionClosed, ConnectionFailed) as error:
                await connection.close()
                connection = None if self._closing.is_set() else await self._reconnect(error)

    @property
    def _is_crowded(self) -> bool:
        session = self._session
        return len(session.inbox) > _ITEMS_MAX and not session.owed and not self._closing.is_set()

    async def _reconnect(self, cause: Exception) -> "WebSocket | None":
        async with self._changed:
            self._connection = None
            self._session.broke()
        try:
            await self._pause(ConnectionFailed(f"the connection broke: {cause}", maybe_done=True), self._backoff)
            connection = await self._connect(self._backoff)
        except ClientError as error:
            await self._fail(error)
            return None
        # Held until everything is sent again. Another task sends: the server may wait for us to read.
        await self._sending.acquire()
        async with self._changed:
            self._connection = connection
            texts = self._session.resume()
        self._resending = spawn(self._resend, connection, texts)
        return connection

    async def _fail(self, error: ClientError) -> None:
        async with self._changed:
            self._failure = error
            self._session.give_up(error)
            self._changed.notify_all()

    async def _resend(self, connection: "WebSocket", texts: list[str]) -> None:
        try:
            for text in texts:
                await self._send(connection, text)
        finally:
            self._sending.release()
