"""A loop over an event stream for code that waits: what it is made of is its state's to say."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Self, TypeVar

import httpx

from topics.client.attempts import connection_errors, response_error
from topics.client.backoff import Backoff
from topics.client.errors import ClientError, ConnectionFailed
from topics.client.streaming import StreamState

if TYPE_CHECKING:
    from topics.client.sync import Client


T = TypeVar("T")


class StreamLoop(Iterator[T]):
    """A `for` loop that waits for more. `close` or leaving its `with` block ends it and its connection."""

    def __init__(self, client: "Client", state: StreamState[T]) -> None:
        self._client = client
        self._state = state
        self._retry = client._follower_retry(state.deadline_s)
        self._backoff = Backoff(self._retry, client._clock, client._dice)
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())
        self._pause_s = 0.0
        self._closed = False

    def __next__(self) -> T:
        try:
            while not self._closed and not self._client.closed:
                item = self._state.next_item()
                if item is not None:
                    return item
                if self._state.ended:
                    break
                self._go_on()
        except ClientError:
            self._disconnect()
            raise
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Ends the loop. Where another thread is in it, it ends with the next heartbeat."""
        self._closed = True
        self._disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _go_on(self) -> None:
        """One step towards the next item."""
        if self._pause_s:
            pause_s, self._pause_s = self._pause_s, 0.0
            self._client._sleep(pause_s)
            return
        try:
            if self._response is None:
                self._connect()
                return
            with connection_errors():
                chunk = next(self._chunks, None)
            if chunk is None:
                raise ConnectionFailed("the stream ended", maybe_done=False)
            if self._state.feed(chunk):
                self._backoff.succeeded()
        except ClientError as error:
            self._disconnect()
            trouble = self._state.broke(error)
            if trouble is not None:
                delay = self._backoff.delay_after(trouble)
                if delay is None:
                    raise trouble from error.__cause__
                self._pause_s = delay

    def _connect(self) -> None:
        request = self._state.request()
        if request is not None:
            self._state.made(self._client._send(request, self._retry, self._client._sleep))
        if self._state.ended:
            return
        http = self._client._http
        with connection_errors():
            response = http.send(self._state.open(http, self._client.options), stream=True)
            if not response.is_success:
                response.read()
        if not response.is_success:
            response.close()
            raise response_error(response, self._client._clock)
        self._response = response
        self._chunks = response.iter_bytes()

    def _disconnect(self) -> None:
        response, self._response = self._response, None
        self._chunks = iter(())
        if response is not None:
            response.close()
