"""The client, and its calls."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar

from topics_client import (
    consuming,
    follow,
    requests,
    scheduling,
    transaction_requests,
    watch,
    work_stream,
    worker_state,
    ws_session,
)
from topics_client._async.loops import AsyncConsumer, AsyncFollower, AsyncStreamLoop, AsyncTail, AsyncWatcher
from topics_client._async.net import sleep as net_sleep
from topics_client._async.pool import AsyncPool, AsyncTransport
from topics_client._async.producer import AsyncProducer
from topics_client._async.seeking import cursor_of_last, cursor_since
from topics_client._async.transaction import AsyncTransaction
from topics_client._async.worker import AsyncWorker
from topics_client.answers import ConsumerState, RouterSummary, ScheduleSummary, TopicPage, TopicSummary
from topics_client.errors import ClientClosed, ClientError
from topics_client.options import ClientOptions, RetryPolicy
from topics_client.requests import A, Request
from topics_client.retry import Attempts, Backoff
from topics_client.session import Session, as_method
from topics_client.streams import contents, contracts, inspection, searches, subscriptions, tailing, touches
from topics_client.streams.contents import StreamSummary
from topics_client.streams.searches import SearchPage
from topics_client.system import Clock, Entropy
from topics_protocol.records import Job, Record

if TYPE_CHECKING:
    from topics_client._async.websocket import AsyncSocket

P = ParamSpec("P")
S = TypeVar("S")
L = TypeVar("L")


def _call(build: Callable[P, Request[A]]) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, A]]:
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> A:
        return await self.send(build(*args, **kwargs))

    as_method(method, build)
    return method


def _opens(
    build: Callable[P, S], made: Callable[["AsyncClient", S], L], returns: object
) -> Callable[Concatenate["AsyncClient", P], L]:
    """A method that gives an object at once, which waits when it is used."""

    def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> L:
        return made(self, build(*args, **kwargs))

    as_method(method, build, returns)
    return method


def _socket(client: "AsyncClient", options: ws_session.WsOptions) -> "AsyncSocket":
    # Few need it, and its library takes longer to import than everything else together.
    from topics_client._async.websocket import AsyncSocket  # noqa: PLC0415

    return AsyncSocket(client, options)


def _pushed(client: "AsyncClient", state: work_stream.WorkStream) -> AsyncStreamLoop[Job]:
    return AsyncStreamLoop(client, state)


class AsyncClient:
    """Talks to a server. Use it in a `with` block, or close it.

    `url` may name several servers, with commas between them: the client finds the primary and follows it.
    Without a URL the server is the one of `TOPICS_URL`, or else the one on this machine; without either a URL or a key,
    the key is that of `TOPICS_API_KEY`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        options: ClientOptions | None = None,
        transport: AsyncTransport | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        sleep: Callable[[float], Awaitable[None]] = net_sleep,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._session = Session(url, api_key, options, clock, entropy, env)
        self._transport = transport or AsyncPool(lambda: self._session.route, self._session.options)
        self._sleep = sleep

    @classmethod
    def from_env(cls, env: Mapping[str, str], *, options: ClientOptions | None = None) -> Self:
        """A client for `TOPICS_URL` with the key `TOPICS_API_KEY`, both from `env` instead of the environment.

        A variable that is blank or missing means the default: the server on this machine, and no key.
        """
        return cls(options=options, env=env)

    @property
    def options(self) -> ClientOptions:
        """How the client behaves."""
        return self._session.options

    put_topic = _call(requests.put_topic)
    get_topic = _call(requests.get_topic)
    list_topics = _call(requests.list_topics)
    delete_topic = _call(requests.delete_topic)
    append = _call(requests.append)
    append_many = _call(requests.append_many)
    get_fence = _call(requests.get_fence)
    put_fence = _call(requests.put_fence)
    diff = _call(requests.diff)
    delete = _call(requests.delete)
    put_router = _call(requests.put_router)
    get_router = _call(requests.get_router)
    list_routers = _call(requests.list_routers)
    delete_router = _call(requests.delete_router)
    put_consumer = _call(consuming.put_consumer)
    get_consumer = _call(consuming.get_consumer)
    list_consumers = _call(consuming.list_consumers)
    delete_consumer = _call(consuming.delete_consumer)
    commit_consumer = _call(consuming.commit_consumer)
    read_consumer = _call(consuming.read_consumer)
    put_schedule = _call(scheduling.put_schedule)
    get_schedule = _call(scheduling.get_schedule)
    list_schedules = _call(scheduling.list_schedules)
    delete_schedule = _call(scheduling.delete_schedule)
    claim = _call(requests.claim)
    ack = _call(requests.ack)
    get_result = _call(requests.get_result)
    nack = _call(requests.nack)
    extend = _call(requests.extend)
    redrive = _call(requests.redrive)
    list_leases = _call(requests.list_leases)
    list_jobs = _call(requests.list_jobs)
    retry_job = _call(requests.retry_job)
    cancel_job = _call(requests.cancel_job)
    promote_job = _call(requests.promote_job)
    release_job = _call(requests.release_job)
    pause_queue = _call(requests.pause_queue)
    begin_transaction = _call(transaction_requests.begin_transaction)
    get_transaction = _call(transaction_requests.get_transaction)
    stage = _call(transaction_requests.stage)
    commit_transaction = _call(transaction_requests.commit_transaction)
    abort_transaction = _call(transaction_requests.abort_transaction)
    transaction = _opens(transaction_requests.transaction, AsyncTransaction, AsyncTransaction)
    put_stream = _call(contents.put_stream)
    fork_stream = _call(contents.fork_stream)
    append_stream = _call(contents.append_stream)
    close_stream = _call(contents.close_stream)
    get_stream = _call(contents.get_stream)
    read_stream = _call(contents.read_stream)
    delete_stream = _call(contents.delete_stream)
    list_streams = _call(contents.list_streams)
    get_schema = _call(contracts.get_schema)
    update_schema = _call(contracts.update_schema)
    infer_search = _call(contracts.infer_search)
    get_profile = _call(contracts.get_profile)
    set_profile = _call(contracts.set_profile)
    search = _call(searches.search)
    search_topic = _call(searches.search_topic)
    search_streams = _call(searches.search_streams)
    aggregate = _call(searches.aggregate)
    list_routing_keys = _call(searches.list_routing_keys)
    get_stream_details = _call(inspection.get_stream_details)
    get_index_status = _call(inspection.get_index_status)
    server_details = _call(inspection.server_details)
    server_memory = _call(inspection.server_memory)
    get_touch_state = _call(touches.get_touch_state)
    activate_templates = _call(touches.activate_templates)
    wait_for_touch = _call(touches.wait_for_touch)
    put_subscription = _call(subscriptions.put_subscription)
    get_subscription = _call(subscriptions.get_subscription)
    delete_subscription = _call(subscriptions.delete_subscription)
    link_streams = _call(subscriptions.link_streams)
    unlink_stream = _call(subscriptions.unlink_stream)
    claim_wake = _call(subscriptions.claim_wake)
    ack_wake = _call(subscriptions.ack_wake)
    release_wake = _call(subscriptions.release_wake)
    tail_stream = _opens(tailing.tail_stream, AsyncTail, AsyncTail)
    work = _opens(work_stream.work, _pushed, AsyncStreamLoop)
    worker = _opens(worker_state.worker, AsyncWorker, AsyncWorker)
    health = _call(requests.health)
    ready = _call(requests.ready)
    metrics = _call(requests.metrics)
    metrics_history = _call(requests.metrics_history)
    pipeline = _call(requests.pipeline)
    create_backup = _call(requests.create_backup)
    backups = _call(requests.backups)
    openapi = _call(requests.openapi)
    whoami = _call(requests.whoami)
    create_token = _call(requests.create_token)
    follow = _opens(follow.follow, AsyncFollower, AsyncFollower)
    consumer = _opens(consuming.consumer, AsyncConsumer, AsyncConsumer)
    watch = _opens(watch.watch, AsyncWatcher, AsyncWatcher)
    ws = _opens(ws_session.ws, _socket, "AsyncSocket")

    async def topic_pages(self, prefix: str = "", *, page_size: int | None = None) -> AsyncIterator[TopicPage]:
        """Iterates over all pages of topics, one request each."""
        cursor: str | None = None
        while True:
            page = await self.list_topics(prefix, page_size=page_size, cursor=cursor)
            yield page
            cursor = page.next_cursor
            if not cursor:
                return

    async def all_topics(self, prefix: str = "", *, page_size: int | None = None) -> AsyncIterator[TopicSummary]:
        """Iterates over all topics, by name."""
        async for page in self.topic_pages(prefix, page_size=page_size):
            for topic in page.topics:
                yield topic

    async def all_routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None, page_size: int | None = None
    ) -> AsyncIterator[RouterSummary]:
        """Iterates over all routers, by name."""
        cursor: str | None = None
        while True:
            page = await self.list_routers(prefix, source=source, dest=dest, page_size=page_size, cursor=cursor)
            for router in page.routers:
                yield router
            cursor = page.next_cursor
            if not cursor:
                return

    async def all_consumers(
        self, topic: str | None = None, *, prefix: str = "", page_size: int | None = None, streams: bool = False
    ) -> AsyncIterator[ConsumerState]:
        """Every consumer of a topic, or of all topics whose names begin with `prefix`."""
        cursor: str | None = None
        while True:
            page = await self.list_consumers(topic, prefix=prefix, page_size=page_size, cursor=cursor, streams=streams)
            for consumer in page.consumers:
                yield consumer
            cursor = page.next_cursor
            if not cursor:
                return

    async def all_schedules(
        self, prefix: str = "", *, topic: str | None = None, page_size: int | None = None
    ) -> AsyncIterator[ScheduleSummary]:
        """Iterates over all schedules, by name."""
        cursor: str | None = None
        while True:
            page = await self.list_schedules(prefix, topic=topic, page_size=page_size, cursor=cursor)
            for schedule in page.schedules:
                yield schedule
            cursor = page.next_cursor
            if not cursor:
                return

    async def all_streams(self, prefix: str = "", *, page_size: int = 1000) -> AsyncIterator[StreamSummary]:
        """Iterates over all streams, by name."""
        after = ""
        while page := await self.list_streams(prefix, after=after, limit=page_size):
            for stream in page:
                yield stream
            after = page[-1].name

    async def all_routing_keys(self, name: str, *, page_size: int = 500) -> AsyncIterator[str]:
        """Iterates over all routing keys of live entries, sorted."""
        after: str | None = None
        while True:
            page = await self.list_routing_keys(name, after=after, limit=page_size)
            for key in page.keys:
                yield key
            after = page.next_after
            if after is None:
                return

    async def search_pages(
        self,
        name: str,
        q: str = "",
        *,
        sort: Sequence[str] | str = (),
        page_size: int = 500,
        source: bool = True,
        fields: Sequence[str] | None = None,
        rank: Literal["bm25"] | None = None,
    ) -> AsyncIterator[SearchPage]:
        """Iterates over all pages of a search, one request each, without gap or repetition while entries are appended.

        The `coverage` of each page reports whether everything was searched. A page with `timed_out` may be the last.
        """
        place: list[Any] | None = None
        while True:
            page = await self.search(
                name, q, sort=sort, size=page_size, search_after=place, source=source, fields=fields, rank=rank
            )
            yield page
            place = page.next_search_after
            if place is None:
                return

    async def seek(
        self,
        topic: str,
        *,
        since: datetime | None = None,
        last: int | None = None,
        matches: Callable[[Record], bool] | None = None,
        filter: str | None = None,
    ) -> int:
        """Returns the cursor before the records from a time on, or before the last records that match.

        `diff` and `follow` accept it as `from_seq`. A time takes one request. Only records for which `matches` is true
        and that match the `filter` of `diff` count as last records.
        """
        if (since is None) == (last is None):
            raise TypeError("seek takes since or last, one of them")
        if last is not None:
            return await cursor_of_last(self, topic, last, matches, filter)
        assert since is not None
        return await cursor_since(self, topic, since)

    def producer(self, name: str, id: str | None = None, *, epoch: int = 0) -> AsyncProducer:
        """Returns a producer, which appends to a stream exactly once.

        A higher `epoch` of the same `id` fences it; the default id is random.
        """
        return AsyncProducer(self, name, id, epoch)

    async def send(self, request: Request[A]) -> A:
        """Sends a request made by `topics_client.requests` and returns its answer; every call comes through here."""
        return await self._send(request)

    async def _send(
        self, request: Request[A], retry: RetryPolicy | None = None, is_over: Callable[[], bool] | None = None
    ) -> A:
        session = self._session
        attempts = Attempts(request, session)
        began = session.clock.monotonic()
        backoff: Backoff | None = None
        while True:
            place = session.place
            try:
                return attempts.read(await self._transport.send(attempts.http))
            except ClientError as error:
                attempts.failed(error)
                if not request.patient:
                    raise
                if backoff is None:
                    what = f"{request.method} {request.target}"
                    backoff = Backoff(retry or session.options.retry, session, what, began, place)
                delay = backoff.delay_after(error, repeatable=attempts.repeatable)
                if delay is None:
                    raise
            await self._sleep(delay)
            if is_over is not None and is_over():
                raise ClientClosed

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._transport.closed

    async def aclose(self) -> None:
        """Closes every connection."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        # Without the key: a repr ends up in logs.
        return f"{type(self).__name__}({self._session.address.url!r})"
