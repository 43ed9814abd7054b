"""The client for code that waits. Threads may share it."""

import time
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, Self

import httpx

from topics.client import following, hands, pushing, queue_requests, requests, talking, watching
from topics.client.answers import RouterSummary, TopicPage, TopicSummary
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
from topics.client.sync_socket import Socket
from topics.client.sync_stream import StreamLoop
from topics.client.sync_watch import Watcher
from topics.client.talking import Talk
from topics.client.watching import Watching
from topics.client.worker import Worker
from topics.system.clock import Clock
from topics.system.dice import Dice

P = ParamSpec("P")


class Follower(Iterator[Item]):
    """A `for` loop over a topic that waits for more. `close` or leaving its `with` block ends it."""

    def __init__(self, client: "Client", state: Following) -> None:
        self._client = client
        self._state = state
        self._closed = False

    @property
    def cursor(self) -> int:
        """How far the loop got: `from_seq` of a follower that goes on behind the last item handed out."""
        return self._state.cursor

    def __next__(self) -> Item:
        while not self._closed:
            item = self._state.next_item()
            if item is not None:
                return item
            if self._state.ended or self._client.closed:
                break
            retry = self._client._follower_retry(self._state.deadline_s)
            self._state.take(self._client._send(self._state.request(), retry, self._sleep))
        raise StopIteration

    def close(self) -> None:
        """Ends the loop. Where another thread is in it, it ends when the read under way is answered."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sleep(self, seconds: float) -> None:
        self._client._sleep(seconds)
        if self._closed or self._client.closed:
            raise StopIteration


def _call(build: Callable[P, Request[A]]) -> Callable[Concatenate["Client", P], A]:
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> A:
        return self.send(build(*args, **kwargs))

    as_method(method, build)
    return method


def _follow(build: Callable[P, Following]) -> Callable[Concatenate["Client", P], Follower]:
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Follower:
        return Follower(self, build(*args, **kwargs))

    as_method(method, build, returns=Follower)
    return method


def _work(build: Callable[P, Plan]) -> Callable[Concatenate["Client", P], Worker]:
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Worker:
        return Worker(self, build(*args, **kwargs))

    as_method(method, build, returns=Worker)
    return method


def _watch(build: Callable[P, Watching]) -> Callable[Concatenate["Client", P], Watcher]:
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Watcher:
        return Watcher(self, build(*args, **kwargs))

    as_method(method, build, returns=Watcher)
    return method


def _ws(build: Callable[P, Talk]) -> Callable[Concatenate["Client", P], Socket]:
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Socket:
        return Socket(self, build(*args, **kwargs))

    as_method(method, build, returns=Socket)
    return method


def _push(build: Callable[P, Pushing]) -> Callable[Concatenate["Client", P], StreamLoop[Job]]:
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> StreamLoop[Job]:
        return StreamLoop(self, build(*args, **kwargs))

    as_method(method, build, returns=StreamLoop)
    return method


class Client(Session):
    """Talks to a server. Use it in a `with` block, or close it."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        options: ClientOptions | None = None,
        transport: httpx.BaseTransport | None = None,
        clock: Clock | None = None,
        dice: Dice | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(url, api_key=api_key, options=options, clock=clock, dice=dice)
        self._sleep = sleep
        self._http = httpx.Client(**self._http_settings(), transport=transport)

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
            yield from page.topics

    def all_routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None, page_size: int | None = None
    ) -> Iterator[RouterSummary]:
        """Every router, in the order of the names."""
        cursor: str | None = None
        while True:
            page = self.list_routers(prefix, source=source, dest=dest, page_size=page_size, cursor=cursor)
            yield from page.routers
            cursor = page.next_cursor
            if not cursor:
                return

    def send(self, request: Request[A]) -> A:
        """Sends a request made by `topics.client.requests` and returns its answer; every call comes through here."""
        return self._send(request, None, self._sleep)

    def _send(self, request: Request[A], retry: RetryPolicy | None, sleep: Callable[[float], None]) -> A:
        attempts = self._attempts(request, retry)
        while True:
            try:
                with connection_errors():
                    response = self._http.send(attempts.build(self._http))
                return attempts.read(response)
            except ClientError as error:
                delay = attempts.delay_after(error)
                if delay is None:
                    raise
            sleep(delay)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._http.is_closed

    def close(self) -> None:
        """Closes every connection."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
