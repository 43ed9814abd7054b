"""A loop over an event stream for asyncio: what it is made of is its state's to say."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self, TypeVar

import httpx

from topics.client.attempts import connection_errors, response_error
from topics.client.backoff import Backoff
from topics.client.errors import ClientError, ConnectionFailed
from topics.client.streaming import StreamState

if TYPE_CHECKING:
    from topics.client.asynchronous import AsyncClient


T = TypeVar("T")


class AsyncStreamLoop(AsyncIterator[T]):
    """An `async for` loop that waits for more. `aclose`, leaving its `async with` block or cancelling the
    task ends it at once; only the first two close its connection.
    """

    def __init__(self, client: "AsyncClient", state: StreamState[T]) -> None:
        self._client = client
        self._state = state
        self._retry = client._follower_retry(state.deadline_s)
        self._backoff = Backoff(self._retry, client._clock, client._dice)
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self._pause_s = 0.0
        self._closed = False
        self._waiting: asyncio.Timeout | None = None

    async def __anext__(self) -> T:
        try:
            while not self._closed and not self._client.closed:
                item = self._state.next_item()
                if item is not None:
                    return item
                if self._state.ended:
                    break
                await self._step()
        except ClientError:
            await self._disconnect()
            raise
        await self.aclose()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the loop, also while another task waits in it."""
        self._closed = True
        if self._waiting is not None:
            if not self._waiting.expired():
                self._waiting.reschedule(asyncio.get_running_loop().time())
        else:
            await self._disconnect()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _step(self) -> None:
        try:
            # A timeout without a time: what `aclose` in another task needs to end this wait and nothing else.
            async with asyncio.timeout(None) as self._waiting:
                await self._go_on()
        except TimeoutError:
            if not self._closed:
                raise
        finally:
            self._waiting = None

    async def _go_on(self) -> None:
        """One step towards the next item."""
        if self._pause_s:
            pause_s, self._pause_s = self._pause_s, 0.0
            await self._client._sleep(pause_s)
            return
        try:
            if self._chunks is None:
                await self._connect()
                return
            with connection_errors():
                chunk = await anext(self._chunks, None)
            if chunk is None:
                raise ConnectionFailed("the stream ended", maybe_done=False)
            if self._state.feed(chunk):
                self._backoff.succeeded()
        except ClientError as error:
            await self._disconnect()
            trouble = self._state.broke(error)
            if trouble is not None:
                delay = self._backoff.delay_after(trouble)
                if delay is None:
                    raise trouble from error.__cause__
                self._pause_s = delay

    async def _connect(self) -> None:
        request = self._state.request()
        if request is not None:
            self._state.made(await self._client._send(request, self._retry))
        if self._state.ended:
            return
        http = self._client._http
        with connection_errors():
            response = await http.send(self._state.open(http, self._client.options), stream=True)
            if not response.is_success:
                await response.aread()
        if not response.is_success:
            await response.aclose()
            raise response_error(response, self._client._clock)
        self._response = response
        self._chunks = response.aiter_bytes()

    async def _disconnect(self) -> None:
        response, self._response = self._response, None
        self._chunks = None
        if response is not None:
            await response.aclose()
