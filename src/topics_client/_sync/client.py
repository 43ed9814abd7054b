# Generated from topics_client._async by tools/sync_client.py; change the source instead.
"""The client, and its calls."""

from collections.abc import Iterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar

from topics_client import follow, requests, watch, work_stream, worker_state, ws_session
from topics_client._sync.loops import Follower, StreamLoop, Tail, Watcher
from topics_client._sync.net import sleep as net_sleep
from topics_client._sync.pool import Pool, Transport
from topics_client._sync.producer import Producer
from topics_client._sync.seeking import cursor_of_last, cursor_since
from topics_client._sync.transaction import Transaction
from topics_client._sync.worker import Worker
from topics_client.answers import RouterSummary, TopicPage, TopicSummary
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
    from topics_client._sync.websocket import Socket

P = ParamSpec("P")
S = TypeVar("S")
L = TypeVar("L")


def _call(build: Callable[P, Request[A]]) -> Callable[Concatenate["Client", P], A]:
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> A:
        return self.send(build(*args, **kwargs))

    as_method(method, build)
    return method


def _opens(
    build: Callable[P, S], made: Callable[["Client", S], L], returns: object
) -> Callable[Concatenate["Client", P], L]:
    """A method that gives an object at once, which waits when it is used."""

    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> L:
        return made(self, build(*args, **kwargs))

    as_method(method, build, returns)
    return method


def _socket(client: "Client", options: ws_session.WsOptions) -> "Socket":
    # Few need it, and its library takes longer to import than everything else together.
    from topics_client._sync.websocket import Socket  # noqa: PLC0415

    return Socket(client, options)


def _pushed(client: "Client", state: work_stream.WorkStream) -> StreamLoop[Job]:
    return StreamLoop(client, state)


class Client:
    """Talks to a server. Use it in a `with` block, or close it.

    Without a URL the server is the one of `TOPICS_URL`, or else the one on this machine; without either a URL or a key,
    the key is that of `TOPICS_API_KEY`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        options: ClientOptions | None = None,
        transport: Transport | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        sleep: Callable[[float], None] = net_sleep,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._session = Session(url, api_key, options, clock, entropy, env)
        self._transport = transport or Pool(self._session.route, self._session.options)
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
    diff = _call(requests.diff)
    delete = _call(requests.delete)
    put_router = _call(requests.put_router)
    get_router = _call(requests.get_router)
    list_routers = _call(requests.list_routers)
    delete_router = _call(requests.delete_router)
    claim = _call(requests.claim)
    ack = _call(requests.ack)
    nack = _call(requests.nack)
    extend = _call(requests.extend)
    redrive = _call(requests.redrive)
    list_leases = _call(requests.list_leases)
    begin_transaction = _call(requests.begin_transaction)
    get_transaction = _call(requests.get_transaction)
    stage = _call(requests.stage)
    commit_transaction = _call(requests.commit_transaction)
    abort_transaction = _call(requests.abort_transaction)
    transaction = _opens(requests.transaction, Transaction, Transaction)
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
    tail_stream = _opens(tailing.tail_stream, Tail, Tail)
    work = _opens(work_stream.work, _pushed, StreamLoop)
    worker = _opens(worker_state.worker, Worker, Worker)
    health = _call(requests.health)
    ready = _call(requests.ready)
    metrics = _call(requests.metrics)
    pipeline = _call(requests.pipeline)
    create_backup = _call(requests.create_backup)
    backups = _call(requests.backups)
    openapi = _call(requests.openapi)
    whoami = _call(requests.whoami)
    create_token = _call(requests.create_token)
    follow = _opens(follow.follow, Follower, Follower)
    watch = _opens(watch.watch, Watcher, Watcher)
    ws = _opens(ws_session.ws, _socket, "Socket")

    def topic_pages(self, prefix: str = "", *, page_size: int | None = None) -> Iterator[TopicPage]:
        """Every page of topics, one request each."""
        cursor: str | None = None
        while True:
            page = self.list_topics(prefix, page_size=page_size, cursor=cursor)
            yield page
            cursor = page.next_cursor
            if not cursor:
                return

    def all_topics(self, prefix: str = "", *, page_size: int | None = None) -> Iterator[TopicSummary]:
        """Every topic, in the order of the names."""
        for page in self.topic_pages(prefix, page_size=page_size):
            for topic in page.topics:
                yield topic

    def all_routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None, page_size: int | None = None
    ) -> Iterator[RouterSummary]:
        """Every router, in the order of the names."""
        cursor: str | None = None
        while True:
            page = self.list_routers(prefix, source=source, dest=dest, page_size=page_size, cursor=cursor)
            for router in page.routers:
                yield router
            cursor = page.next_cursor
            if not cursor:
                return

    def all_streams(self, prefix: str = "", *, page_size: int = 1000) -> Iterator[StreamSummary]:
        """Every stream, in the order of the names."""
        after = ""
        while page := self.list_streams(prefix, after=after, limit=page_size):
            for stream in page:
                yield stream
            after = page[-1].name

    def all_routing_keys(self, name: str, *, page_size: int = 500) -> Iterator[str]:
        """Every routing key that a live entry of a stream has, in their order."""
        after: str | None = None
        while True:
            page = self.list_routing_keys(name, after=after, limit=page_size)
            for key in page.keys:
                yield key
            after = page.next_after
            if after is None:
                return

    def search_pages(
        self,
        name: str,
        q: str = "",
        *,
        sort: Sequence[str] | str = (),
        page_size: int = 500,
        source: bool = True,
        fields: Sequence[str] | None = None,
        rank: Literal["bm25"] | None = None,
    ) -> Iterator[SearchPage]:
        """Every page of what a search finds, one request each, without gap or repeat whatever is appended meanwhile.

        Each says in its `coverage` whether it looked at everything; the one that is `timed_out` may be the last.
        """
        place: list[Any] | None = None
        while True:
            page = self.search(
                name, q, sort=sort, size=page_size, search_after=place, source=source, fields=fields, rank=rank
            )
            yield page
            place = page.next_search_after
            if place is None:
                return

    def seek(
        self,
        topic: str,
        *,
        since: datetime | None = None,
        last: int | None = None,
        matches: Callable[[Record], bool] | None = None,
        filter: str | None = None,
    ) -> int:
        """The cursor behind which a topic's records are from a time on, or the last so many of those that match.

        `diff` and `follow` take it as `from_seq`. A time is found by one request, however long the topic is. The last
        are those of which `matches` says so, and of those that match the `filter` of `diff`.
        """
        if (since is None) == (last is None):
            raise TypeError("seek takes since or last, one of them")
        if last is not None:
            return cursor_of_last(self, topic, last, matches, filter)
        assert since is not None
        return cursor_since(self, topic, since)

    def producer(self, name: str, id: str | None = None, *, epoch: int = 0) -> Producer:
        """A producer of a stream, which appends exactly once. Another one of the same `id` takes over with a higher
        `epoch`; without an id it is a new one.
        """
        return Producer(self, name, id, epoch)

    def send(self, request: Request[A]) -> A:
        """Sends a request made by `topics_client.requests` and returns its answer; every call comes through here."""
        return self._send(request)

    def _send(
        self, request: Request[A], retry: RetryPolicy | None = None, is_over: Callable[[], bool] | None = None
    ) -> A:
        session = self._session
        attempts = Attempts(request, session)
        began = session.clock.monotonic()
        backoff: Backoff | None = None
        while True:
            try:
                return attempts.read(self._transport.send(attempts.http))
            except ClientError as error:
                attempts.failed(error)
                if not request.patient:
                    raise
                if backoff is None:
                    what = f"{request.method} {request.target}"
                    backoff = Backoff(retry or session.options.retry, session, what, began)
                delay = backoff.delay_after(error, repeatable=attempts.repeatable)
                if delay is None:
                    raise
            self._sleep(delay)
            if is_over is not None and is_over():
                raise ClientClosed

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._transport.closed

    def close(self) -> None:
        """Closes every connection."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        # Without the key: a repr ends up in logs.
        return f"{type(self).__name__}({self._session.address.url!r})"
