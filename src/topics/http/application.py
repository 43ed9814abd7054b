"""What the HTTP layer asks of the application it serves. All of it is called on the event loop and must not block."""

from collections.abc import Callable, Sequence
from typing import Protocol

from topics.http.errors import HttpError
from topics.http.exchange import Exchange
from topics.http.messages import Refusal, RequestHead


class OneRequest(int):
    """A limit that holds for one request, and says nothing of the next one with the same head."""


Gather = Callable[[Sequence[Exchange], int], bool]
"""See `Application.gatherer`."""


class Application(Protocol):
    """The product, seen from HTTP."""

    @property
    def admission(self) -> object:
        """Stands for everything that `admit` decides by besides the head. Another object takes its place whenever any
        of that changes; until then a head that was admitted is, without being asked about again. Where a decision
        depends on more than that, on the time for instance, `admit` gives the limit as `OneRequest`."""
        ...

    def admit(self, head: RequestHead) -> int | Refusal:
        """Decides on a request by its head alone, before its body: how many bytes the body may have once decoded, or
        the answer at once. Nothing is buffered for a request that is refused here.

        One head may come for many requests: what it says may be kept in its `context`. What was decided holds until
        `admission` is another object."""
        ...

    def handle(self, exchange: Exchange) -> None:
        """Takes a complete request. It may be answered before this returns or at any time later."""
        ...

    def gatherer(self, head: RequestHead) -> Gather | None:
        """What takes requests with this head, which is admitted, in fewer steps than `handle`; None where nothing does.
        It is given some that came together, with the length that their bodies have, and takes all of them or none,
        which are then for `handle`. It holds for as long as the head is admitted."""
        ...

    def refuse(self, error: HttpError, path: str) -> Refusal:
        """Gives a refusal of the HTTP layer the product's shape. The path is what was asked for, empty where the head
        of the request was not understood."""
        ...
