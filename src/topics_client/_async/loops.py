"""Loops that wait for more: over a topic, over the events of a connection, over the pages of a stream."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from topics_client._async.net import Interruption
from topics_client._async.pool import AsyncBody
from topics_client.consuming import Consuming
from topics_client.errors import ClientClosed, ClientError, ConnectionFailed, ConsumerNotFound, TopicRecreated
from topics_client.follow import Following, Item
from topics_client.inbox import LiveItem
from topics_client.requests import Request
from topics_client.retry import Backoff, response_error
from topics_client.streams.contents import StreamPage
from topics_client.streams.tailing import StreamTail
from topics_client.transport.http1 import Response
from topics_client.watch import Watching

if TYPE_CHECKING:
    from topics_client._async.client import AsyncClient

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class AsyncFollower(AsyncIterator[Item]):
    """A loop over a topic that waits for more. Closing it, or leaving its `with` block, ends it."""

    def __init__(self, client: "AsyncClient", state: Following) -> None:
        self._client = client
        self._state = state
        self._closed = False
        self._reading = Interruption()

    @property
    def cursor(self) -> int:
        """How far the loop got: `from_seq` of a follower that goes on behind the last item handed out."""
        return self._state.cursor

    @property
    def epoch(self) -> int | None:
        """Which topic of the name `cursor` is of: `epoch` of a follower that goes on from there. None before the first
        answer."""
        return self._state.epoch

    async def __anext__(self) -> Item:
        while not self._closed:
            item = self._state.next_item()
            if item is not None:
                return item
            if self._state.ended or self._client.closed:
                break
            try:
                async with self._reading:
                    retry = self._client._session.patient(self._state.deadline_s)
                    self._state.take(await self._client._send(self._state.request(), retry, self._is_over))
            except ClientClosed:
                break
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the loop. A task that waits in it ends at once, a thread when the read under way is answered."""
        self._closed = True
        self._reading.trigger()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _is_over(self) -> bool:
        return self._closed or self._client.closed


class AsyncConsumer(AsyncIterator[Item]):
    """A loop over a topic whose cursor the server stores. Closing it, or leaving its `with` block, ends it."""

    def __init__(self, client: "AsyncClient", state: Consuming) -> None:
        self._client = client
        self._state = state
        self._closed = False
        self._reading = Interruption()

    @property
    def cursor(self) -> int:
        """The cursor after the last processed item, which `commit` commits."""
        return self._state.cursor

    @property
    def committed(self) -> int:
        """The last cursor that this loop committed, or began with; -1 before it has begun."""
        return self._state.committed

    async def __anext__(self) -> Item:
        state = self._state
        while not self._closed:
            if not state.began:
                state.start(await self._send(state.begin))
            elif state.is_due(waiting=False):
                await self.commit()
            item = state.next_item()
            if item is not None:
                return item
            if state.is_due(waiting=True):
                await self.commit()
            if state.following.ended or self._client.closed:
                break
            try:
                async with self._reading:
                    state.following.take(await self._send(state.following.request()))
            except ClientClosed:
                break
        raise StopAsyncIteration

    async def commit(self, seq: int | None = None) -> None:
        """Commits everything that was handed out, or everything up to `seq`."""
        state = self._state
        if not state.began:
            return
        seq = state.cursor if seq is None else seq
        try:
            try:
                await self._send(state.commit(seq))
            except ConsumerNotFound:
                await self._send(state.recreate())
                await self._send(state.commit(seq))
        except TopicRecreated:
            # The next read reports it, by a gap, and goes on in the new topic.
            pass
        state.was_committed(seq)

    async def aclose(self) -> None:
        """Ends the loop without a commit; items since the last commit are delivered again."""
        self._closed = True
        self._reading.trigger()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, error: object, *_: object) -> None:
        if error is None and self._state.began and self._state.is_due(waiting=True) and not self._client.closed:
            await self.commit()
        await self.aclose()

    async def _send(self, request: Request[T]) -> T:
        retry = self._client._session.patient(self._state.deadline_s)
        return await self._client._send(request, retry, self._is_over)

    def _is_over(self) -> bool:
        return self._closed or self._client.closed


class LoopState(Protocol[T_co]):
    """The state that a loop over a stream drives. Nothing of it waits."""

    # The name in logs, how long an unreachable server is asked again, and whether nothing more will come.
    @property
    def what(self) -> str: ...
    @property
    def deadline_s(self) -> float: ...
    @property
    def ended(self) -> bool: ...

    # The next item; None when more has to be read.
    def next_item(self) -> T_co | None: ...

    # The request to make before the stream can be opened, if any, and its answer.
    def request(self) -> Request[Any] | None: ...
    def made(self, answer: Any) -> None: ...

    # The target of the stream, its headers and the longest silence; None when the answer was all there is.
    def open(self) -> tuple[str, dict[str, str], float] | None: ...
    def opened(self, response: Response) -> None: ...

    # Queues received items, and returns whether there were any. Raises `ClientError` when the server ends it.
    def feed(self, chunk: bytes) -> bool: ...

    # Handles a lost or failed connection. Returns the error to handle, or None to continue.
    def broke(self, error: ClientError) -> ClientError | None: ...


class AsyncStreamLoop(AsyncIterator[T]):
    """A loop over pushed items. Closing it, or leaving its `with` block, ends it and its connection."""

    def __init__(self, client: "AsyncClient", state: LoopState[T]) -> None:
        self._client = client
        self._state = state
        self._retry = client._session.patient(state.deadline_s)
        self._backoff = Backoff(self._retry, client._session, state.what)
        self._body: AsyncBody | None = None
        self._pause_s = 0.0
        self._closed = False
        self._reading = Interruption()

    async def __anext__(self) -> T:
        try:
            while not self._is_over():
                item = self._state.next_item()
                if item is not None:
                    return item
                if self._state.ended:
                    break
                async with self._reading:
                    await self._go_on()
        except ClientError:
            await self._disconnect()
            raise
        await self.aclose()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the loop, even while another thread or task waits in it."""
        self._closed = True
        if not self._reading.trigger():
            await self._disconnect()
        elif self._body is not None:
            # The abort wakes the reader, which closes it.
            self._body.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _is_over(self) -> bool:
        return self._closed or self._client.closed

    async def _go_on(self) -> None:
        """One step towards the next item."""
        if self._pause_s:
            pause_s, self._pause_s = self._pause_s, 0.0
            await self._client._sleep(pause_s)
            return
        try:
            if self._body is None:
                await self._connect()
                return
            chunk = await self._body.read()
            if not chunk:
                raise ConnectionFailed("the stream ended", maybe_done=False)
            if self._state.feed(chunk):
                self._backoff.succeeded()
        except ClientError as error:
            await self._disconnect()
            trouble = None if self._is_over() else self._state.broke(error)
            if trouble is not None:
                delay = self._backoff.delay_after(trouble)
                if delay is None:
                    raise trouble from error.__cause__
                self._pause_s = delay

    async def _connect(self) -> None:
        request = self._state.request()
        if request is not None:
            self._state.made(await self._client._send(request, self._retry, self._is_over))
        asked = None if self._state.ended else self._state.open()
        if asked is None:
            return
        session = self._client._session
        body = self._body = await self._client._transport.open(session.stream_request(*asked))
        session.reached = True
        if not body.response.is_success:
            while chunk := await body.read():
                body.response.content += chunk
            raise response_error(body.response, session.clock)
        self._state.opened(body.response)

    async def _disconnect(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            await body.aclose()


class AsyncWatcher(AsyncStreamLoop[LiveItem]):
    """A loop over topics that waits for more. Closing it, or leaving its `with` block, ends it and its connection."""

    def __init__(self, client: "AsyncClient", state: Watching) -> None:
        super().__init__(client, state)
        self._inbox = state.inbox

    @property
    def cursors(self) -> dict[str, int]:
        """The cursor of each topic after the last item: another watcher accepts it as `topics` to continue there."""
        return dict(self._inbox.cursors)


class AsyncTail(AsyncStreamLoop[StreamPage]):
    """A loop over a stream that waits for more. Closing it, or leaving its `with` block, ends it and its connection."""

    def __init__(self, client: "AsyncClient", state: StreamTail) -> None:
        super().__init__(client, state)
        self._tail = state

    @property
    def offset(self) -> str:
        """How far the loop got: where another one goes on behind the last page that was handed out."""
        return self._tail.offset
