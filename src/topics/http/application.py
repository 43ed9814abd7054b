"""What the HTTP layer asks of the application it serves. All of it is called on the event loop and must not block."""

from typing import Protocol

from topics.http.errors import HttpError
from topics.http.exchange import Exchange
from topics.http.messages import Refusal, RequestHead


class Application(Protocol):
    """The product, seen from HTTP."""

    def admit(self, head: RequestHead) -> int | Refusal:
        """Decides on a request by its head alone, before its body: how many bytes the body may have once decoded, or
        the answer at once. Nothing is buffered for a request that is refused here.

        It is asked for every request. One head may come for many of them: what the head says may be kept in its
        `context`, while what was decided holds for one request."""
        ...

    def handle(self, exchange: Exchange) -> None:
        """Takes a complete request. It may be answered before this returns or at any time later."""
        ...

    def refuse(self, error: HttpError, path: str) -> Refusal:
        """Gives a refusal of the HTTP layer the product's shape. The path is what was asked for, empty where the head
        of the request was not understood."""
        ...
