"""Webhooks: an idle subscription with new entries calls its webhook, or writes to its wake stream, with retries."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from topics.model.errors import TopicsError
from topics.streams.append import Appended, AppendRequest
from topics.streams.streams import Streams
from topics.streams.subscriptions.subscription import Claim, Later, Leases, Owner, Subscription
from topics.streams.subscriptions.subscription_store import Links, SubscriptionTable, generation_change

# Limits of concurrent webhook calls. Every call is a connection, and descriptors are limited: otherwise an append that
# ten thousand subscriptions wait for would leave none for the log.

CALLS_MAX = 256
"""A quarter of the descriptors reserved for connections other than those of clients (`system.process`)."""
CALLS_OF_ONE_MAX = 64
"""For keys with the same prefixes: receivers that do not answer delay others for a while at most."""


class CallLine:
    """Limits concurrent webhook calls, and queues the others.

    A waiting subscription has no lease yet: the lease starts with the call, so it has its full length.
    """

    def __init__(self) -> None:
        self._calls: Counter[Owner] = Counter()
        self._waiting: dict[Owner, dict[str, Subscription]] = {}
        """In the order of arrival; the first owner is next."""

    def admit(self, subscription: Subscription) -> bool:
        """Returns whether the webhook may be called now; otherwise queues it."""
        owner = subscription.owner or ()
        if self._has_room(owner):
            self._calls[owner] += 1
            return True
        self._waiting.setdefault(owner, {})[subscription.id] = subscription
        return False

    def end(self, subscription: Subscription) -> None:
        """Releases the slot of a finished call."""
        owner = subscription.owner or ()
        self._calls[owner] -= 1
        if not self._calls[owner]:
            del self._calls[owner]

    def ready(self) -> Iterator[Subscription]:
        """Returns the subscriptions to call next, round-robin by owner, while there are free slots."""
        while (owner := next(filter(self._has_room, self._waiting), None)) is not None:
            waiting = self._waiting.pop(owner)
            found = waiting.pop(next(iter(waiting)))
            if waiting:
                self._waiting[owner] = waiting
            yield found

    def _has_room(self, owner: Owner) -> bool:
        # An owner without prefixes is the operator, and the only owner on a server without keys.
        most = CALLS_OF_ONE_MAX if owner else CALLS_MAX
        return self._calls.total() < CALLS_MAX and self._calls[owner] < most


_RETRY_S = 1.0
_RETRY_S_MAX = 300.0
_encode = msgspec.json.Encoder().encode


class NotTaken(msgspec.Struct, frozen=True):
    """A failed webhook call, with its reason."""

    reason: str


class Deliver(Protocol):
    """Calls a webhook and reports the result on the loop: its JSON, or NotTaken."""

    def __call__(self, url: str, body: bytes, signature: str, done: Callable[[Any], None]) -> None: ...


class Wakes:
    def __init__(self, streams: Streams, table: SubscriptionTable, deliver: Deliver, later: Later) -> None:
        self._streams = streams
        self._engine = streams.engine
        self._table = table
        self._deliver = deliver
        self._later = later
        self.leases = Leases(self._engine.entropy, later, table.mark, self.consider)
        self.links = Links(streams, table, self.consider)
        self._line = CallLine()
        self.finished: Callable[[Subscription, Claim], None] = lambda subscription, claim: None
        """Called when a webhook acknowledges everything reported to it."""

    def consider(self, subscription: Subscription) -> None:
        """Sends wake-ups for subscriptions with pending entries and without a holder."""
        is_webhook = subscription.request.type == "webhook"
        # A failed write to a wake stream is retried after a delay or with the next entry, whichever is first.
        rests = is_webhook and subscription.resting is not None
        busy = subscription.claim is not None or subscription.calling or rests
        over = self._engine.is_closed or self._table.all.get(subscription.id) is not subscription
        if busy or over or not subscription.pending:
            return
        if is_webhook:
            if self._line.admit(subscription):
                self._call(subscription)
        elif not subscription.notified:
            subscription.notified = True
            self._notify_wake_stream(subscription)

    def begin(self, subscription: Subscription, holder: str) -> Claim:
        """Leases a subscription, with all new entries of its streams."""
        snapshot = {name: self.links.tail(name) for name in subscription.pending}
        return self.leases.begin(subscription, holder, snapshot)

    def forget(self, subscription: Subscription) -> None:
        """Handles the deletion of a subscription."""
        self.leases.end(subscription)
        if subscription.resting is not None:
            subscription.resting()
        for name in list(subscription.links):
            self.links.cut(subscription, name)

    def _call(self, subscription: Subscription) -> None:
        claim = self.begin(subscription, "webhook")
        subscription.calling = True
        assert subscription.request.webhook is not None
        url = subscription.request.webhook.url
        body = _encode(
            {
                "type": "wake", "subscription_id": subscription.id, "wake_id": claim.wake_id,
                "generation": claim.generation, "callback_url": f"{subscription.url}/callback",
                "callback_token": claim.token, "lease_ttl_ms": subscription.request.lease_ttl_ms,
                "streams": [one for one in self.links.describe(subscription) if one["has_pending"]],
            }
        )  # fmt: skip

        def written(error: TopicsError | None) -> None:
            if error is not None:
                self._answered(subscription, claim, NotTaken(error.message))
                return
            signature = self._table.signer.header(body, self._engine.wall() // 1000)
            self._deliver(url, body, signature, lambda answer: self._answered(subscription, claim, answer))

        self.keep(subscription, written)

    def keep(self, subscription: Subscription, done: Callable[[TopicsError | None], None]) -> None:
        """A generation is persisted before it is used, so that no restart uses it again."""
        try:
            self._table.write([generation_change(subscription)], done)
        except TopicsError as error:
            done(error)

    def _answered(self, subscription: Subscription, claim: Claim, answer: Any) -> None:
        subscription.calling = False
        self._line.end(subscription)
        # In a separate turn, because a call may end before it has begun.
        self._engine.defer(self._call_waiting)
        holds = subscription.claim is claim
        if isinstance(answer, NotTaken):
            # A worker that used the callback has accepted the call, regardless of its answer.
            if holds or claim.expired:
                self.leases.end(subscription)
                self._rest(subscription, answer.reason)
        else:
            subscription.failures, subscription.last_error = 0, ""
            if holds and isinstance(answer, dict) and answer.get("done") is True:
                self.finished(subscription, claim)
        # Entries that arrived during the call could not start another one.
        self.consider(subscription)

    def _call_waiting(self) -> None:
        for subscription in self._line.ready():
            self.consider(subscription)

    def _rest(self, subscription: Subscription, reason: str) -> None:
        """Schedules a retry with exponential backoff."""
        if self._table.all.get(subscription.id) is not subscription or subscription.resting is not None:
            return
        subscription.failures += 1
        subscription.last_error = reason

        def again() -> None:
            subscription.resting = None
            self.consider(subscription)

        wait = min(_RETRY_S * 2 ** min(subscription.failures - 1, 16), _RETRY_S_MAX)
        subscription.resting = self._later(wait, again)

    def _notify_wake_stream(self, subscription: Subscription) -> None:
        event = {
            "type": "wake", "subscription_id": subscription.id, "generation": subscription.generation + 1,
            "streams": sorted(subscription.pending),
        }  # fmt: skip

        def reported(outcome: Appended | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                # The stream does not exist, or refuses appends. A worker can still claim.
                subscription.notified = False
                self._rest(subscription, outcome.message)
            else:
                subscription.failures, subscription.last_error = 0, ""

        request = AppendRequest(body=_encode([event]), content_type="application/json")
        try:
            self._streams.append(subscription.request.wake_stream or "", request, reported)
        except TopicsError as error:
            reported(error)
