"""What the loops over event streams ask of the state that they drive."""

from typing import Any, Protocol, TypeVar

import httpx

from topics.client.errors import ClientError
from topics.client.options import ClientOptions
from topics.client.requests import Request

T_co = TypeVar("T_co", covariant=True)


class StreamState(Protocol[T_co]):
    """What to ask, what came, and how to go on after a break. Nothing of it waits."""

    @property
    def deadline_s(self) -> float:
        """How long a server that cannot be reached is asked again."""
        ...

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        ...

    def next_item(self) -> T_co | None:
        """The next item; None when more has to be read."""
        ...

    def request(self) -> Request[Any] | None:
        """What has to be asked before the stream can be opened, if anything."""
        ...

    def made(self, answer: Any) -> None:
        """Takes the answer to that."""
        ...

    def open(self, http: httpx.Client | httpx.AsyncClient, options: ClientOptions) -> httpx.Request:
        """The request for the stream."""
        ...

    def feed(self, chunk: bytes) -> bool:
        """Lines up what came, and returns whether that was anything. Raises `ClientError` when the server ends it."""
        ...

    def broke(self, error: ClientError) -> ClientError | None:
        """The connection is over, or could not be made. Returns what is to be done about, or None for going on."""
        ...
