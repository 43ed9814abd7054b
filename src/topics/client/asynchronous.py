"""The client for asyncio. Tasks of one event loop may share it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Self

import httpx

from topics.client import following, hands, pushing, queue_requests, requests, talking, watching
from topics.client.answers import RouterSummary, TopicPage, TopicSummary
from topics.client.async_socket import AsyncSocket
from topics.client.async_stream import AsyncStreamLoop
from topics.client.async_watch import AsyncWatcher
from topics.client.async_worker import AsyncWorker
from topics.client.attempts import connection_errors
from topics.client.errors import ClientError
from topics.client.following import Following, Item
from topics.client.hands import Plan
from topics.client.jobs import Job
from topics.client.methods import as_method
from topics.client.options import DEFAULT_URL, ClientOptions, RetryPolicy
from topics.client.pushing import Pushing
from topics.client.requests import A, Request
from topics.client.session import Session
from topics.client.talking import Talk
from topics.client.watching import Watching
from topics.system.clock import Clock
from topics.system.dice import Dice

P = ParamSpec("P")


class AsyncFollower(AsyncIterator[Item]):
    """An `async for` loop over a topic that waits for more. `aclose`, leaving its `async with` block or cancelling the
    task ends it at once.
    """

    def __init__(self, client: "AsyncClient", state: Following) -> None:
        self._client = client
        self._state = state
        self._closed = False
        self._reading: asyncio.Timeout | None = None

    @property
    def cursor(self) -> int:
        """How far the loop got: `from_seq` of a follower that goes on behind the last item handed out."""
        return self._state.cursor

    async def __anext__(self) -> Item:
        while not self._closed:
            item = self._state.next_item()
            if item is not None:
                return item
            if self._state.ended or self._client.closed:
                break
            await self._read()
        raise StopAsyncIteration

    async def _read(self) -> None:
        retry = self._client._follower_retry(self._state.deadline_s)
        try:
            # A timeout without a time: what `aclose` in another task needs to end this read and nothing else.
            async with asyncio.timeout(None) as self._reading:
                self._state.take(await self._client._send(self._state.request(), retry))
        except TimeoutError:
            if not self._closed:
                raise
        finally:
            self._reading = None

    async def aclose(self) -> None:
        """Ends the loop, also while another task waits in it."""
        self._closed = True
        if self._reading is not None and not self._reading.expired():
            self._reading.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _call(build: Callable[P, Request[A]]) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, A]]:
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> A:
        return await self.send(build(*args, **kwargs))

    as_method(method, build)
    return method


def _follow(build: Callable[P, Following]) -> Callable[Concatenate["AsyncClient", P], AsyncFollower]:
    def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncFollower:
        return AsyncFollower(self, build(*args, **kwargs))

    as_method(method, build, returns=AsyncFollower)
    return method


def _work(build: Callable[P, Plan]) -> Callable[Concatenate["AsyncClient", P], AsyncWorker]:
    def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncWorker:
        return AsyncWorker(self, build(*args, **kwargs))

    as_method(method, build, returns=AsyncWorker)
    return method


def _watch(build: Callable[P, Watching]) -> Callable[Concatenate["AsyncClient", P], AsyncWatcher]:
    def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncWatcher:
        return AsyncWatcher(self, build(*args, **kwargs))

    as_method(method, build, returns=AsyncWatcher)
    return method


def _ws(build: Callable[P, Talk]) -> Callable[Concatenate["AsyncClient", P], AsyncSocket]:
    def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncSocket:
        return AsyncSocket(self, build(*args, **kwargs))

    as_method(method, build, returns=AsyncSocket)
    return method


def _push(build: Callable[P, Pushing]) -> Callable[Concatenate["AsyncClient", P], AsyncStreamLoop[Job]]:
    def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncStreamLoop[Job]:
        return AsyncStreamLoop(self, build(*args, **kwargs))

    as_method(method, build, returns=AsyncStreamLoop)
    return method


class AsyncClient(Session):
    """Talks to a server. Use it in an `async with` block, or close it."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        options: ClientOptions | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
        dice: Dice | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(url, api_key=api_key, options=options, clock=clock, dice=dice)
        self._sleep = sleep
        self._http = httpx.AsyncClient(**self._http_settings(), transport=transport)

    put_topic = _call(requests.put_topic)
    get_topic = _call(requests.get_topic)
    list_topics = _call(requests.list_topics)
    delete_topic = _call(requests.delete_topic)
    append = _call(requests.append)
    append_many = _call(requests.append_many)
    diff = _call(requests.diff)
    delete = _call(requests.delete)
    put_router = _call(requests.put_router)
    get_router = _call(requests.get_router)
    list_routers = _call(requests.list_routers)
    delete_router = _call(requests.delete_router)
    claim = _call(queue_requests.claim)
    ack = _call(queue_requests.ack)
    nack = _call(queue_requests.nack)
    extend = _call(queue_requests.extend)
    redrive = _call(queue_requests.redrive)
    list_leases = _call(queue_requests.list_leases)
    work = _push(pushing.work)
    worker = _work(hands.worker)
    health = _call(requests.health)
    ready = _call(requests.ready)
    metrics = _call(requests.metrics)
    follow = _follow(following.follow)
    watch = _watch(watching.watch)
    ws = _ws(talking.ws)

    async def topic_pages(self, prefix: str = "", *, page_size: int | None = None) -> AsyncIterator[TopicPage]:
        """Every page of topics, one request each."""
        cursor: str | None = None
        while True:
            page = await self.list_topics(prefix, page_size=page_size, cursor=cursor)
            yield page
            cursor = page.next_cursor
            if not cursor:
                return

    async def all_topics(self, prefix: str = "", *, page_size: int | None = None) -> AsyncIterator[TopicSummary]:
        """Every topic, in the order of the names."""
        async for page in self.topic_pages(prefix, page_size=page_size):
            for topic in page.topics:
                yield topic

    async def all_routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None, page_size: int | None = None
    ) -> AsyncIterator[RouterSummary]:
        """Every router, in the order of the names."""
        cursor: str | None = None
        while True:
            page = await self.list_routers(prefix, source=source, dest=dest, page_size=page_size, cursor=cursor)
            for router in page.routers:
                yield router
            cursor = page.next_cursor
            if not cursor:
                return

    async def send(self, request: Request[A]) -> A:
        """Sends a request made by `topics.client.requests` and returns its answer; every call comes through here."""
        return await self._send(request, None)

    async def _send(self, request: Request[A], retry: RetryPolicy | None) -> A:
        attempts = self._attempts(request, retry)
        while True:
            try:
                with connection_errors():
                    response = await self._http.send(attempts.build(self._http))
                return attempts.read(response)
            except ClientError as error:
                delay = attempts.delay_after(error)
                if delay is None:
                    raise
            await self._sleep(delay)

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._http.is_closed

    async def aclose(self) -> None:
        """Closes every connection."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
