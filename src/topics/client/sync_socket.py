"""The WebSocket for code that waits. Threads may share it: one may follow while others publish.

A thread of its own reads the connection, so that acknowledgements and records find their way whoever waits for which.
It stops reading while many items wait and no acknowledgement does, which is how a slow loop slows the server down.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

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
    from topics.client.sync import Client

P = ParamSpec("P")

_ITEMS_MAX = 10_000


def _publish(build: Callable[P, Publishing]) -> Callable[Concatenate["Socket", P], Appended]:
    def method(self: "Socket", /, *args: P.args, **kwargs: P.kwargs) -> Appended:
        return self._publish(build(*args, **kwargs))

    as_method(method, build, returns=Appended)
    return method


def _publish_soon(build: Callable[P, Publishing]) -> Callable[Concatenate["Socket", P], "Future[Appended]"]:
    def method(self: "Socket", /, *args: P.args, **kwargs: P.kwargs) -> "Future[Appended]":
        publishing = build(*args, **kwargs)
        return self._say(lambda done: self._talk.publish(publishing, done))

    as_method(method, build, returns=Future)
    return method


class Socket(Iterator[LiveItem]):
    """One connection to publish over, and a `for` loop over what is followed. Use it in a `with` block, or close it."""

    def __init__(self, client: "Client", talk: Talk) -> None:
        self._client = client
        self._backoff = Backoff(client._follower_retry(talk.deadline_s), client._clock, client._dice)
        self._talk = Conversation(
            client._dice, idempotent=client.options.idempotent_appends, raise_on_gap=talk.raise_on_gap
        )
        self._connection: ClientConnection | None = None
        self._reader: threading.Thread | None = None
        self._closing = threading.Event()
        self._failure: ClientError | None = None
        # Guards everything above. Whoever wants both locks takes the one for sending first.
        self._changed = threading.Condition()
        self._sending = threading.Lock()

    publish = _publish(talking.publish)
    publish_many = _publish(talking.publish_many)
    publish_soon = _publish_soon(talking.publish_soon)

    def subscribe(
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
        self._ask(lambda done: self._talk.subscribe(topics, options, done))

    def unsubscribe(self, *topics: str) -> None:
        """Follows topics no longer. Nothing of them is handed out any more, also not what has arrived."""
        self._ask(lambda done: self._talk.unsubscribe(topics, done))

    def ping(self) -> None:
        """Waits for an answer of the server."""
        self._ask(self._talk.ping)

    @property
    def cursors(self) -> dict[str, int]:
        """How far the loop got in each topic: what another socket takes as `topics` to go on behind the last item."""
        with self._changed:
            return dict(self._talk.inbox.cursors)

    def __next__(self) -> LiveItem:
        with self._changed:
            while True:
                item = self._talk.inbox.next_item()
                if item is not None:
                    self._changed.notify_all()
                    return item
                if self._closing.is_set():
                    raise StopIteration
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()

    def close(self) -> None:
        """Closes the connection and ends the loop. What is not answered by then fails."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
            connection, reader = self._connection, self._reader
        if connection is not None:
            connection.close()
        if reader is not None and reader is not threading.current_thread():
            reader.join()
        with self._changed:
            self._talk.give_up(ConnectionFailed("the socket was closed", maybe_done=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Commands.

    def _publish(self, publishing: Publishing) -> Appended:
        """Publishes, again and again while the server cannot take it now, as an append does."""
        backoff = Backoff(self._client.options.retry, self._client._clock, self._client._dice)
        while True:
            try:
                answer: Appended = self._ask(lambda done: self._talk.publish(publishing, done))
                return answer
            except RetryLater as error:
                self._pause(error, backoff)

    def _ask(self, make: Callable[[Callable[[Any], None]], str]) -> Any:
        future = self._say(make)
        try:
            return future.result(self._client._answer_timeout_s)
        except FutureTimeout:
            raise ConnectionFailed("no answer came in time", maybe_done=True) from None

    def _say(self, make: Callable[[Callable[[Any], None]], str]) -> "Future[Any]":
        future: Future[Any] = Future()

        def done(outcome: object) -> None:
            if future.done():
                return
            if isinstance(outcome, ClientError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        with self._sending:
            with self._changed:
                self._check_open()
                if self._reader is None:
                    self._start()
                text = make(done)
                connection = self._connection
            if connection is not None:
                self._send(connection, text)
        return future

    def _check_open(self) -> None:
        if self._closing.is_set() or self._client.closed:
            raise ConnectionFailed("the socket is closed", maybe_done=False)
        if self._failure is not None:
            raise self._failure

    def _send(self, connection: ClientConnection, text: str) -> None:
        try:
            connection.send(text)
        except ConnectionClosed:
            # The reader finds out as well, and sends it again on the next connection.
            pass

    # The connection.

    def _start(self) -> None:
        """Connects for the first time, so that a refusal is told to the caller."""
        backoff = Backoff(self._client.options.retry, self._client._clock, self._client._dice)
        self._connection = self._connect(backoff)
        self._reader = threading.Thread(target=self._read, name="topics-socket", daemon=True)
        self._reader.start()

    def _connect(self, backoff: Backoff) -> ClientConnection:
        address = self._client._address
        while True:
            try:
                with dial_errors(self._client._clock):
                    # The flag asks for the connection itself, and not for a context manager around it.
                    return connect(dial_url(address), legacy=True, **dial_settings(address, self._client.options))
            except ClientError as error:
                self._pause(error, backoff)

    def _pause(self, error: ClientError, backoff: Backoff) -> None:
        """Waits before the next try, or raises `error` when there is to be none."""
        delay = backoff.delay_after(error)
        if delay is None:
            raise error
        if self._closing.wait(delay):
            raise ConnectionFailed("the socket was closed", maybe_done=False)

    def _read(self) -> None:
        try:
            self._read_all(self._connection)
        except Exception as error:
            # A bug, or an interpreter that is shutting down: whoever waits must not wait for ever.
            self._fail(ConnectionFailed(f"the socket failed: {error!r}", maybe_done=True))
            raise

    def _read_all(self, connection: ClientConnection | None) -> None:
        while connection is not None:
            try:
                text = connection.recv(decode=False)
                with self._changed:
                    if self._talk.take(text):
                        self._backoff.succeeded()
                    self._changed.notify_all()
                    while self._is_crowded:
                        self._changed.wait()
            except (ConnectionClosed, ConnectionFailed) as error:
                connection.close()
                connection = None if self._closing.is_set() else self._reconnect(error)

    @property
    def _is_crowded(self) -> bool:
        talk = self._talk
        return len(talk.inbox) > _ITEMS_MAX and not talk.owed and not self._closing.is_set()

    def _reconnect(self, cause: Exception) -> ClientConnection | None:
        with self._changed:
            self._connection = None
            self._talk.broke()
        try:
            self._pause(ConnectionFailed(f"the connection broke: {cause}", maybe_done=True), self._backoff)
            connection = self._connect(self._backoff)
        except ClientError as error:
            self._fail(error)
            return None
        # Held until everything is sent again. That is left to another thread: the server may wait for us to read.
        self._sending.acquire()
        with self._changed:
            self._connection = connection
            texts = self._talk.resume()
        threading.Thread(target=self._resend, args=(connection, texts), daemon=True).start()
        return connection

    def _fail(self, error: ClientError) -> None:
        with self._changed:
            self._failure = error
            self._talk.give_up(error)
            self._changed.notify_all()

    def _resend(self, connection: ClientConnection, texts: list[str]) -> None:
        try:
            for text in texts:
                self._send(connection, text)
        finally:
            self._sending.release()
