"""The WebSocket for asyncio. Tasks of one event loop may share it: one may follow while others publish.

A task of its own reads the connection, so that acknowledgements and records find their way whoever waits for which. It
stops reading while many items wait and no acknowledgement does, which is how a slow loop slows the server down.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from topics.client import talking
from topics.client.answers import Appended
from topics.client.backoff import Backoff
from topics.client.dialing import dial_errors, dial_settings, dial_url
from topics.client.errors import ClientError, ConnectionFailed, RetryLater
from topics.client.events import LiveItem
from topics.client.methods import as_method
from topics.client.talking import Conversation, Publishing, Talk, subscription_options
from topics.client.watching import Topics

if TYPE_CHECKING:
    from topics.client.asynchronous import AsyncClient

P = ParamSpec("P")

_ITEMS_MAX = 10_000


def _publish(
    build: Callable[P, Publishing],
) -> Callable[Concatenate["AsyncSocket", P], Coroutine[Any, Any, Appended]]:
    async def method(self: "AsyncSocket", /, *args: P.args, **kwargs: P.kwargs) -> Appended:
        return await self._publish(build(*args, **kwargs))

    as_method(method, build, returns=Appended)
    return method


def _publish_soon(
    build: Callable[P, Publishing],
) -> Callable[Concatenate["AsyncSocket", P], Coroutine[Any, Any, "asyncio.Future[Appended]"]]:
    async def method(self: "AsyncSocket", /, *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[Appended]":
        publishing = build(*args, **kwargs)
        return await self._say(lambda done: self._talk.publish(publishing, done))

    as_method(method, build, returns=asyncio.Future)
    return method


class AsyncSocket(AsyncIterator[LiveItem]):
    """One connection to publish over, and an `async for` loop over what is followed. Use it in an `async with` block,
    or close it.
    """

    def __init__(self, client: "AsyncClient", talk: Talk) -> None:
        self._client = client
        self._backoff = Backoff(client._follower_retry(talk.deadline_s), client._clock, client._dice)
        self._talk = Conversation(
            client._dice, idempotent=client.options.idempotent_appends, raise_on_gap=talk.raise_on_gap
        )
        self._connection: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._resending: asyncio.Task[None] | None = None
        self._closed = False
        self._failure: ClientError | None = None
        self._changed = asyncio.Event()
        self._sending = asyncio.Lock()

    publish = _publish(talking.publish)
    publish_many = _publish(talking.publish_many)
    publish_soon = _publish_soon(talking.publish_soon)

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
        """Follows topics: what happens in them comes out of the loop over the socket. `topics` is as in `watch`."""
        options = subscription_options(
            node=node, limit=limit, max_batch_bytes=max_batch_bytes, include_tags=include_tags,
            include_meta=include_meta, include_data=include_data,
        )  # fmt: skip
        await self._ask(lambda done: self._talk.subscribe(topics, options, done))

    async def unsubscribe(self, *topics: str) -> None:
        """Follows topics no longer. Nothing of them is handed out any more, also not what has arrived."""
        await self._ask(lambda done: self._talk.unsubscribe(topics, done))

    async def ping(self) -> None:
        """Waits for an answer of the server."""
        await self._ask(self._talk.ping)

    @property
    def cursors(self) -> dict[str, int]:
        """How far the loop got in each topic: what another socket takes as `topics` to go on behind the last item."""
        return dict(self._talk.inbox.cursors)

    async def __anext__(self) -> LiveItem:
        while True:
            item = self._talk.inbox.next_item()
            if item is not None:
                self._changed.set()
                return item
            if self._closed:
                raise StopAsyncIteration
            if self._failure is not None:
                raise self._failure
            await self._change()

    async def aclose(self) -> None:
        """Closes the connection and ends the loop. What is not answered by then fails."""
        self._closed = True
        self._changed.set()
        reader, connection = self._reader, self._connection
        if connection is not None:
            await connection.close()
        if reader is not None and reader is not asyncio.current_task():
            reader.cancel()
            await asyncio.wait((reader,))
        if self._resending is not None:
            await asyncio.wait((self._resending,))
        self._talk.give_up(ConnectionFailed("the socket was closed", maybe_done=True))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Commands.

    async def _publish(self, publishing: Publishing) -> Appended:
        """Publishes, again and again while the server cannot take it now, as an append does."""
        backoff = Backoff(self._client.options.retry, self._client._clock, self._client._dice)
        while True:
            try:
                answer: Appended = await self._ask(lambda done: self._talk.publish(publishing, done))
                return answer
            except RetryLater as error:
                await self._pause(error, backoff)

    async def _ask(self, make: Callable[[Callable[[Any], None]], str]) -> Any:
        future = await self._say(make)
        try:
            async with asyncio.timeout(self._client._answer_timeout_s):
                return await future
        except TimeoutError:
            raise ConnectionFailed("no answer came in time", maybe_done=True) from None

    async def _say(self, make: Callable[[Callable[[Any], None]], str]) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(outcome: object) -> None:
            if future.done():
                return
            if isinstance(outcome, ClientError):
                future.set_exception(outcome)
                # Who never looks at it is not told twice.
                future.exception()
            else:
                future.set_result(outcome)

        async with self._sending:
            self._check_open()
            if self._reader is None:
                await self._start()
            text = make(done)
            if self._connection is not None:
                await self._send(self._connection, text)
        return future

    def _check_open(self) -> None:
        if self._closed or self._client.closed:
            raise ConnectionFailed("the socket is closed", maybe_done=False)
        if self._failure is not None:
            raise self._failure

    async def _send(self, connection: ClientConnection, text: str) -> None:
        try:
            await connection.send(text)
        except ConnectionClosed:
            # The reader finds out as well, and sends it again on the next connection.
            pass

    # The connection.

    async def _start(self) -> None:
        """Connects for the first time, so that a refusal is told to the caller."""
        backoff = Backoff(self._client.options.retry, self._client._clock, self._client._dice)
        self._connection = await self._connect(backoff)
        self._reader = asyncio.create_task(self._read(self._connection))

    async def _connect(self, backoff: Backoff) -> ClientConnection:
        address = self._client._address
        while True:
            try:
                with dial_errors(self._client._clock):
                    # No `async for` over it, nor `async with`: trying again is ours to decide.
                    return await connect(dial_url(address), **dial_settings(address, self._client.options))
            except ClientError as error:
                await self._pause(error, backoff)

    async def _pause(self, error: ClientError, backoff: Backoff) -> None:
        """Waits before the next try, or raises `error` when there is to be none."""
        delay = backoff.delay_after(error)
        if delay is None:
            raise error
        await self._client._sleep(delay)

    async def _read(self, connection: ClientConnection | None) -> None:
        try:
            await self._read_all(connection)
        except Exception as error:
            # A bug: whoever waits must not wait for ever.
            self._fail(ConnectionFailed(f"the socket failed: {error!r}", maybe_done=True))
            raise

    async def _read_all(self, connection: ClientConnection | None) -> None:
        while connection is not None:
            try:
                if self._talk.take(await connection.recv(decode=False)):
                    self._backoff.succeeded()
                self._changed.set()
                while self._is_crowded:
                    await self._change()
            except (ConnectionClosed, ConnectionFailed) as error:
                await connection.close()
                connection = None if self._closed else await self._reconnect(error)

    @property
    def _is_crowded(self) -> bool:
        return len(self._talk.inbox) > _ITEMS_MAX and not self._talk.owed and not self._closed

    async def _change(self) -> None:
        """Waits until something is different; everyone who waits looks for itself."""
        self._changed.clear()
        await self._changed.wait()

    async def _reconnect(self, cause: Exception) -> ClientConnection | None:
        self._connection = None
        self._talk.broke()
        try:
            await self._pause(ConnectionFailed(f"the connection broke: {cause}", maybe_done=True), self._backoff)
            connection = await self._connect(self._backoff)
        except ClientError as error:
            self._fail(error)
            return None
        # Held until everything is sent again. That is left to another task: the server may wait for us to read.
        await self._sending.acquire()
        self._connection = connection
        self._resending = asyncio.create_task(self._resend(connection, self._talk.resume()))
        return connection

    def _fail(self, error: ClientError) -> None:
        self._failure = error
        self._talk.give_up(error)
        self._changed.set()

    async def _resend(self, connection: ClientConnection, texts: list[str]) -> None:
        try:
            for text in texts:
                await self._send(connection, text)
        finally:
            self._sending.release()
