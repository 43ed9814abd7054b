"""Subscription operations: create, delete, claim, acknowledge. Every change is durable before it is answered.

Also known as: consumer group. A consumer is woken, claims new entries, and acknowledges offsets."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from topics.model.errors import InvalidRequestError, ThrottledError, TopicsError
from topics.streams.stream_state import START
from topics.streams.streams import Streams
from topics.streams.subscriptions.subscription import (
    STREAMS_MAX,
    AlreadyClaimedError,
    Claim,
    Later,
    Link,
    NoPendingWorkError,
    Owner,
    Subscription,
    SubscriptionConflictError,
    SubscriptionNotFoundError,
    SubscriptionRequest,
    SubscriptionTakenError,
)
from topics.streams.subscriptions.subscription_store import (
    Outcome,
    SubscriptionTable,
    ack_changes,
    drop_change,
    link_change,
    put_change,
    unlink_change,
)
from topics.streams.subscriptions.webhook_security import Signer, check_url
from topics.streams.subscriptions.webhooks import Deliver, Wakes

_KEPT_AT_ONCE = 250
"""The number of streams added to a new subscription in one turn of the loop."""


class Ack(msgspec.Struct, frozen=True):
    stream: str
    offset: str


class Acks(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's acknowledgement of a wake-up."""

    wake_id: str
    generation: int
    acks: list[Ack] = []
    done: bool = False


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    wake_id: str
    generation: int
    token: str
    lease_ttl_ms: int
    streams: list[dict[str, object]]


class SubscriptionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum number of subscriptions; 0 means no limit. Keys with the same prefixes count as one."""

    max_subscriptions: int = 10_000
    max_subscriptions_per_key: int = 1_000


class Subscriptions:
    def __init__(
        self,
        streams: Streams,
        deliver: Deliver,
        later: Later,
        allow_loopback: bool,
        limits: SubscriptionLimits | None = None,
    ) -> None:
        self._engine = streams.engine
        self._limits = limits or SubscriptionLimits()
        self._allow_loopback = allow_loopback
        self._table = SubscriptionTable(streams.engine)
        self._wakes = Wakes(streams, self._table, deliver, later)
        self._links = self._wakes.links
        self._leases = self._wakes.leases
        self._wakes.finished = self._finished
        self._coming: dict[str, list[Callable[[], None]]] = {}
        """Subscriptions being stored, with the requests that wait for the outcome."""
        self._coming_of: Counter[Owner] = Counter()

    def start(self) -> None:
        """Starts watching; a backlog wakes immediately."""
        for subscription in list(self._table.all.values()):
            for name in list(subscription.links):
                self._links.look(subscription, name)

    @property
    def signer(self) -> Signer:
        return self._table.signer

    def put(
        self,
        subscription_id: str,
        request: SubscriptionRequest,
        base_url: str,
        done: Callable[[Subscription, bool], None],
        failed: Callable[[TopicsError], None],
        owner: Owner = (),
    ) -> None:
        """Creates a subscription, or confirms an equal one. Two requests for one id are handled one after the other."""
        request.check()
        if request.webhook is not None:
            check_url(request.webhook.url, self._allow_loopback)
        known = self._table.all.get(subscription_id)
        if known is not None:
            if not known.is_within(owner):
                raise SubscriptionTakenError(subscription_id)
            if known.request != request:
                raise SubscriptionConflictError(subscription_id)
            done(known, False)
            return
        if subscription_id in self._coming:
            again = partial(self.put, subscription_id, request, base_url, done, failed, owner)
            self._coming[subscription_id].append(lambda: _try(again, failed))
            return
        self._check_room(owner)
        made = Subscription(subscription_id, request, base_url, self._engine.wall(), owner)
        # Existing streams begin at their end.
        made.links = {name: Link(True, self._links.tail(name)) for name in request.streams}
        self._coming[subscription_id] = []
        self._coming_of[owner] += 1
        self._links.coming.append(made)

        def finish(error: TopicsError | None) -> None:
            self._links.coming.remove(made)
            if error is not None:
                failed(error)
            else:
                self._table.add(made)
                done(made, True)
                self._links.look_at(made, list(made.links))
            for waiting in self._come(subscription_id, owner):
                waiting()

        def matched(found: list[str] | TopicsError) -> None:
            try:
                if isinstance(found, TopicsError):
                    raise found
                self._keep(made, found, finish)
            except TopicsError as error:
                finish(error)

        self._links.match_all(made, matched)

    def _keep(self, made: Subscription, matching: list[str], done: Outcome) -> None:
        """Stores a new subscription with its streams.

        Streams that were created during the scan for matches are included, from their start.
        """
        for name in matching[:_KEPT_AT_ONCE]:
            if name not in made.links:
                made.links[name] = Link(False, self._links.tail(name))
        rest = matching[_KEPT_AT_ONCE:]
        if rest or (matching and len(made.links) > _KEPT_AT_ONCE):
            # Writing very many positions takes a separate turn.
            self._engine.defer(lambda: _try(lambda: self._keep(made, rest, done), done))
            return
        acked = {name: link.acked for name, link in made.links.items()}
        self._table.write([put_change(made), *ack_changes(made, acked)], done)

    def _come(self, subscription_id: str, owner: Owner) -> list[Callable[[], None]]:
        """Ends the creation of a subscription, kept or not, and returns the callers that waited for it."""
        self._coming_of[owner] -= 1
        return self._coming.pop(subscription_id)

    def _check_room(self, owner: Owner) -> None:
        limits = self._limits
        if limits.max_subscriptions and len(self._table.all) + len(self._coming) >= limits.max_subscriptions:
            raise ThrottledError.over_cap("max_subscriptions", limits.max_subscriptions)
        most = limits.max_subscriptions_per_key
        if most and self._table.count_of(owner) + self._coming_of[owner] >= most:
            raise ThrottledError.over_cap("max_subscriptions_per_key", most)

    def get(self, subscription_id: str, asking: Owner = ()) -> Subscription:
        """Returns the subscription for a key with these prefixes; a subscription outside of them counts as missing."""
        found = self._table.all.get(subscription_id)
        if found is None or not found.is_within(asking):
            raise SubscriptionNotFoundError(subscription_id)
        return found

    def describe_streams(
        self, subscription: Subscription, names: Iterable[str] | None = None
    ) -> list[dict[str, object]]:
        return self._links.describe(subscription, names)

    def drop(self, subscription_id: str, done: Outcome) -> None:
        found = self.get(subscription_id)

        def written(error: TopicsError | None) -> None:
            if error is None and self._table.all.get(subscription_id) is found:
                self._table.remove(found)
                self._wakes.forget(found)
            done(error)

        self._table.write([drop_change(found)], written)

    def link(self, subscription_id: str, names: list[str], done: Outcome) -> None:
        """Adds streams by name; existing streams begin at their end."""
        found = self.get(subscription_id)
        explicit = {name for name, link in found.links.items() if link.explicit}
        if len(explicit.union(names)) > STREAMS_MAX:
            raise InvalidRequestError(f"streams: at most {STREAMS_MAX} are allowed", field="streams", max=STREAMS_MAX)
        fresh = {name: self._links.tail(name) for name in names if name not in found.links}
        changes = [link_change(found, names), *ack_changes(found, fresh)]

        def written(error: TopicsError | None) -> None:
            for name in names if error is None else ():
                found.left_out.pop(name, None)
                found.links.setdefault(name, Link(True, fresh.get(name, START))).explicit = True
                self._links.look(found, name)
            done(error)

        self._table.write(changes, written)

    def unlink(self, subscription_id: str, name: str, done: Outcome) -> None:
        """Removes a stream; a matching stream stays removed until a new stream has the name."""
        found, epoch = self.get(subscription_id), self._links.epoch(name)

        def written(error: TopicsError | None) -> None:
            now = self._links.epoch(name)
            if error is None and now in (0, epoch):
                self._links.cut(found, name)
                if now:
                    found.left_out[name] = epoch
            done(error)

        self._table.write([unlink_change(found, name, epoch)], written)

    def claim(self, subscription_id: str, worker: str, done: Callable[[Granted | TopicsError], None]) -> None:
        """Leases the subscription to a worker."""
        found = self.get(subscription_id)
        if found.request.type != "pull-wake":
            raise InvalidRequestError("a webhook subscription is not claimed: the server calls")
        if found.claim is not None:
            raise AlreadyClaimedError(found.claim.holder, found.claim.generation)
        if not found.pending:
            # Recently appended entries may not have been delivered yet.
            for name in list(found.links):
                self._links.look(found, name)
        if not found.pending:
            raise NoPendingWorkError()
        self._engine.check_accepting()
        claim = self._wakes.begin(found, worker)

        def written(error: TopicsError | None) -> None:
            if error is not None:
                self._leases.end(found)
                done(error)
                # No worker holds it, and no other trigger may follow.
                self._wakes.consider(found)
                return
            granted = Granted(
                wake_id=claim.wake_id, generation=claim.generation, token=claim.token,
                lease_ttl_ms=found.request.lease_ttl_ms, streams=self._links.describe(found),
            )  # fmt: skip
            done(granted)

        self._wakes.keep(found, written)

    def ack(self, subscription_id: str, token: str, said: Acks, done: Callable[[bool | TopicsError], None]) -> None:
        """Processes acknowledgements, which only move forward. Returns whether more entries are pending."""
        found = self._held(subscription_id, token, said.generation)
        claim = self._leases.held(found, token, said.wake_id, said.generation)
        moved: dict[str, str] = {}
        for entry in said.acks:
            link = found.links.get(entry.stream)
            if link is None:
                raise InvalidRequestError("acks: a stream that is not part of the subscription", field="acks")
            offset = self._links.place(entry.stream, entry.offset)
            if offset > link.acked:
                moved[entry.stream] = offset
        self._finalize_claim(found, claim, moved, said.done, done)

    def release(self, subscription_id: str, token: str, wake_id: str, generation: int) -> None:
        """Releases a claim without an acknowledgement."""
        found = self._held(subscription_id, token, generation)
        self._leases.held(found, token, wake_id, generation)
        self._leases.end(found)
        self._wakes.consider(found)

    def _held(self, subscription_id: str, token: str, generation: int) -> Subscription:
        """The subscription of a worker's request. Its existence is revealed only to former holders."""
        if subscription_id not in self._table.all:
            self._leases.check_token(subscription_id, token, generation)
        return self.get(subscription_id)

    def _finished(self, subscription: Subscription, claim: Claim) -> None:
        """Handles a webhook's answer that everything reported in the call is processed."""
        links = subscription.links
        moved = {n: offset for n, offset in claim.snapshot.items() if n in links and offset > links[n].acked}
        try:
            self._finalize_claim(subscription, claim, moved, True, lambda outcome: None)
        except TopicsError:
            pass  # The lease expires, and it is called again.

    def _finalize_claim(
        self,
        subscription: Subscription,
        claim: Claim,
        moved: dict[str, str],
        finished: bool,
        done: Callable[[bool | TopicsError], None],
    ) -> None:
        def written(error: TopicsError | None) -> None:
            if error is not None:
                done(error)
                return
            self._links.moved(subscription, moved)
            if subscription.claim is claim:
                if finished:
                    self._leases.end(subscription)
                else:
                    self._leases.hold(subscription, claim)
            done(finished and bool(subscription.pending))
            self._wakes.consider(subscription)

        if moved:
            self._table.write(ack_changes(subscription, moved), written)
        else:
            written(None)


def _try(begin: Callable[[], None], failed: Callable[[TopicsError], None]) -> None:
    try:
        begin()
    except TopicsError as error:
        failed(error)
