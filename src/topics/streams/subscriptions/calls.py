"""How many webhooks are called at once. Every call is a connection, and a process has only so many: without a bound, an
append that ten thousand subscriptions wait for would leave none for the log."""

from collections import Counter
from collections.abc import Iterator

from topics.streams.subscriptions.model import Owner, Subscription

CALLS_MAX = 256
"""A quarter of the descriptors that are kept for what is no client's connection (`system.descriptors`)."""
CALLS_OF_ONE_MAX = 64
"""Of keys with the same prefixes: receivers that do not answer hold up those of others for a while at most."""


class CallLine:
    """Who is called, and who has to wait. Nothing of a subscription that waits has begun: its lease, which is given out
    with the call, is as long as it should be."""

    def __init__(self) -> None:
        self._calls: Counter[Owner] = Counter()
        self._waiting: dict[Owner, dict[str, Subscription]] = {}
        """In the order in which they came; of the owners, the one whose turn is next is the first."""

    def admit(self, subscription: Subscription) -> bool:
        """Whether it may be called now; else it waits."""
        owner = subscription.owner or ()
        if self._has_room(owner):
            self._calls[owner] += 1
            return True
        self._waiting.setdefault(owner, {})[subscription.id] = subscription
        return False

    def end(self, subscription: Subscription) -> None:
        """A call is over."""
        owner = subscription.owner or ()
        self._calls[owner] -= 1
        if not self._calls[owner]:
            del self._calls[owner]

    def ready(self) -> Iterator[Subscription]:
        """Those whose turn it is, one of each owner after the other, for as long as there is room."""
        while (owner := next(filter(self._has_room, self._waiting), None)) is not None:
            waiting = self._waiting.pop(owner)
            found = waiting.pop(next(iter(waiting)))
            if waiting:
                self._waiting[owner] = waiting
            yield found

    def _has_room(self, owner: Owner) -> bool:
        # Who is held to no prefixes is the operator, and alone on a server without keys.
        most = CALLS_OF_ONE_MAX if owner else CALLS_MAX
        return self._calls.total() < CALLS_MAX and self._calls[owner] < most
