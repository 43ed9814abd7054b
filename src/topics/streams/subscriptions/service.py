"""What can be asked of subscriptions, and the wake-ups they cause.

A subscription is held by at most one worker at a time. Each time it is handed out its generation goes up, is kept, and
everything the worker says must name it: whoever lost the lease meanwhile is fenced. Work that nobody acknowledges is
handed out again when the lease ends. Offsets are acknowledged for each stream and only move forward.
"""

from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Callable
from hmac import compare_digest
from typing import Any, Protocol

import msgspec

from topics.core.errors import InvalidRequestError, TopicsError
from topics.engine.topic import Topic
from topics.streams.appending import Appended, AppendRequest
from topics.streams.offsets import START, decode_offset, read_offset, tail_offset
from topics.streams.service import Streams
from topics.streams.subscriptions.errors import (
    AlreadyClaimedError,
    BadTokenError,
    FencedError,
    NoPendingWorkError,
    SubscriptionConflictError,
    SubscriptionNotFoundError,
)
from topics.streams.subscriptions.model import Claim, Link, Subscription, SubscriptionRequest
from topics.streams.subscriptions.signing import SEED_BYTES, Signer
from topics.streams.subscriptions.store import NAME, Store
from topics.streams.subscriptions.targets import check_url

_TOKEN_BYTES = 24
_RETRY_S = 1.0
_RETRY_S_MAX = 300.0
_REWRITE_AT = 1000
_encode = msgspec.json.Encoder().encode

Outcome = Callable[[TopicsError | None], None]


class Deliver(Protocol):
    """Calls a webhook and tells, on the loop, what came back: its JSON, or None when it did not take the call."""

    def __call__(self, url: str, body: bytes, signature: str, done: Callable[[Any], None]) -> None: ...


class Later(Protocol):
    """Runs a function after some seconds; what it returns takes that back."""

    def __call__(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]: ...


class Acks(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says about a wake-up."""

    wake_id: str
    generation: int
    acks: list[dict[str, str]] = []
    done: bool = False


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    wake_id: str
    generation: int
    token: str
    lease_ttl_ms: int
    streams: list[dict[str, object]]


class Subscriptions:
    def __init__(self, streams: Streams, deliver: Deliver, later: Later, allow_loopback: bool) -> None:
        self._streams = streams
        self._core = streams.engine.core
        self._deliver = deliver
        self._later = later
        self._allow_loopback = allow_loopback
        self._store = Store(streams.engine)
        self._all: dict[str, Subscription] = {}
        self._signer: Signer | None = None
        self._seed = b""
        for change in self._store.load():
            self._replay(change)
        for subscription in self._all.values():
            for name in self._core.names if subscription.request.pattern else ():
                if subscription.matches(name) and name != NAME:
                    subscription.links.setdefault(name, Link(explicit=False))
        self._core.added.append(self._added)

    def start(self) -> None:
        """Begins to watch; what piled up meanwhile wakes at once."""
        for subscription in list(self._all.values()):
            for name in list(subscription.links):
                self._look(subscription, name)

    # Keeping them

    def _replay(self, change: dict[str, Any]) -> None:
        op = change["op"]
        if op == "key":
            self._use(b64decode(change["seed"]))
        elif op == "put":
            request = msgspec.convert(change["request"], SubscriptionRequest)
            made = Subscription(change["id"], request, change["base_url"], change["created_ms"])
            made.generation = change.get("generation", 0)
            made.links = {name: Link(explicit=True) for name in request.streams}
            self._all[made.id] = made
        elif op == "drop":
            self._all.pop(change["id"], None)
        elif (known := self._all.get(change["id"])) is not None:
            if op == "generation":
                known.generation = change["generation"]
            elif op == "ack":
                known.links.setdefault(change["path"], Link(explicit=False)).acked = change["offset"]
            elif op == "link":
                for path in change["paths"]:
                    known.links.setdefault(path, Link(explicit=True)).explicit = True
            elif op == "unlink":
                known.links.pop(change["path"], None)

    def _write(self, changes: list[object], done: Outcome) -> None:
        self._store.write(changes, done)
        live = len(self._all) + sum(len(one.links) for one in self._all.values())
        if self._store.size > _REWRITE_AT + 4 * live:
            self._store.rewrite(self._state())

    def _state(self) -> list[object]:
        state: list[object] = [{"op": "key", "seed": b64encode(self._seed).decode()}]
        for one in self._all.values():
            state.append({**_put(one), "generation": one.generation})
            state.append({"op": "link", "id": one.id, "paths": [n for n, link in one.links.items() if link.explicit]})
            state += [_ack(one, name, link.acked) for name, link in one.links.items() if link.acked != START]
        return state

    def _use(self, seed: bytes) -> Signer:
        self._seed = seed
        self._signer = Signer(seed)
        return self._signer

    @property
    def signer(self) -> Signer:
        """The key that signs. It is made when it is first needed, and kept with the first subscription."""
        return self._signer or self._use(self._core.dice.token(SEED_BYTES))

    # What can be asked

    def put(
        self, subscription_id: str, request: SubscriptionRequest, base_url: str,
        done: Callable[[Subscription, bool], None], failed: Callable[[TopicsError], None],
    ) -> None:  # fmt: skip
        request.check()
        if request.webhook is not None:
            check_url(request.webhook.url, self._allow_loopback)
        known = self._all.get(subscription_id)
        if known is not None:
            if known.request != request:
                raise SubscriptionConflictError(subscription_id)
            done(known, False)
            return
        made = Subscription(subscription_id, request, base_url, self._core.now())
        changes: list[object] = [] if self._seed else [{"op": "key", "seed": b64encode(self.signer_seed()).decode()}]
        changes.append(_put(made))
        for name in request.streams:
            made.links[name] = Link(explicit=True)
        for name in self._existing(made):
            link = made.links.setdefault(name, Link(explicit=False))
            topic = self._core.by_name.get(name)
            if topic is not None and topic.created:
                link.acked = tail_offset(topic)
                changes.append(_ack(made, name, link.acked))

        def written(error: TopicsError | None) -> None:
            if error is not None:
                failed(error)
                return
            self._all[subscription_id] = made
            done(made, True)
            for name in list(made.links):
                self._look(made, name)

        self._write(changes, written)

    def signer_seed(self) -> bytes:
        assert self.signer is not None
        return self._seed

    def _existing(self, subscription: Subscription) -> list[str]:
        """The streams it concerns that are there already: for them it begins at their end."""
        named = list(subscription.links)
        if subscription.request.pattern:
            named += [name for name in self._core.names if subscription.matches(name) and name != NAME]
        return named

    def get(self, subscription_id: str) -> Subscription:
        found = self._all.get(subscription_id)
        if found is None:
            raise SubscriptionNotFoundError(subscription_id)
        return found

    def drop(self, subscription_id: str, done: Outcome) -> None:
        found = self.get(subscription_id)

        def written(error: TopicsError | None) -> None:
            if error is None and self._all.get(subscription_id) is found:
                del self._all[subscription_id]
                self._forget(found)
            done(error)

        self._write([{"op": "drop", "id": subscription_id}], written)

    def link(self, subscription_id: str, names: list[str], done: Outcome) -> None:
        found = self.get(subscription_id)
        changes: list[object] = [{"op": "link", "id": subscription_id, "paths": names}]
        fresh = {}
        for name in names:
            topic = self._core.by_name.get(name)
            if name not in found.links:
                fresh[name] = tail_offset(topic) if topic is not None and topic.created else START
                changes += [_ack(found, name, fresh[name])] if fresh[name] != START else []

        def written(error: TopicsError | None) -> None:
            if error is None:
                for name in names:
                    found.links.setdefault(name, Link(True, fresh.get(name, START))).explicit = True
                    self._look(found, name)
            done(error)

        self._write(changes, written)

    def unlink(self, subscription_id: str, name: str, done: Outcome) -> None:
        found = self.get(subscription_id)

        def written(error: TopicsError | None) -> None:
            if error is None:
                self._cut(found, name)
            done(error)

        self._write([{"op": "unlink", "id": subscription_id, "path": name}], written)

    def claim(self, subscription_id: str, worker: str, done: Callable[[Granted | TopicsError], None]) -> None:
        found = self.get(subscription_id)
        if found.request.type != "pull-wake":
            raise InvalidRequestError("a webhook subscription is not claimed: the server calls")
        if found.claim is not None:
            raise AlreadyClaimedError(found.claim.holder, found.claim.generation)
        if not found.pending:
            raise NoPendingWorkError()
        claim = self._begin(found, worker)

        def written(error: TopicsError | None) -> None:
            if error is not None:
                self._end(found)
                done(error)
                return
            done(
                Granted(
                    wake_id=claim.wake_id, generation=claim.generation, token=claim.token,
                    lease_ttl_ms=found.request.lease_ttl_ms, streams=self.describe_streams(found),
                )
            )  # fmt: skip

        self._write([_generation(found)], written)

    def ack(self, subscription_id: str, token: str, said: Acks, done: Callable[[bool | TopicsError], None]) -> None:
        """Takes acknowledgements; tells whether there is more to do at once."""
        found = self.get(subscription_id)
        claim = self._held(found, token, said.wake_id, said.generation)
        moved = {}
        for entry in said.acks:
            name, offset = entry.get("stream") or entry.get("path") or "", entry.get("offset", "")
            if name not in found.links:
                raise InvalidRequestError("acks: a stream that is not part of the subscription", field="acks")
            decode_offset(offset)
            if offset > found.links[name].acked:
                moved[name] = offset

        def written(error: TopicsError | None) -> None:
            if error is not None:
                done(error)
                return
            self._moved(found, moved)
            if said.done and found.claim is claim:
                self._end(found)
            elif found.claim is claim:
                self._hold(found, claim)
            done(said.done and bool(found.pending))
            self._consider(found)

        if moved:
            self._write([_ack(found, name, offset) for name, offset in moved.items()], written)
        else:
            written(None)

    def release(self, subscription_id: str, token: str, wake_id: str, generation: int) -> None:
        """Gives a claim back without an acknowledgement."""
        found = self.get(subscription_id)
        self._held(found, token, wake_id, generation)
        self._end(found)
        self._consider(found)

    def describe_streams(self, subscription: Subscription) -> list[dict[str, object]]:
        """Its streams, as answers and wake-ups tell of them."""
        return [
            {
                "path": name, "link_type": "explicit" if link.explicit else "pattern", "acked_offset": link.acked,
                "tail_offset": self._tail(name), "has_pending": name in subscription.pending,
            }
            for name, link in subscription.links.items()
        ]  # fmt: skip

    # Leases

    def _begin(self, subscription: Subscription, holder: str) -> Claim:
        subscription.generation += 1
        snapshot = {name: self._tail(name) for name in subscription.pending}
        token, wake_id = (urlsafe_b64encode(self._core.dice.token(_TOKEN_BYTES)).decode() for _ in range(2))
        claim = subscription.claim = Claim(f"wake_{wake_id}", subscription.generation, token, holder, snapshot)
        subscription.notified = False
        self._hold(subscription, claim)
        return claim

    def _hold(self, subscription: Subscription, claim: Claim) -> None:
        """The lease begins, or begins again."""
        if claim.cancel is not None:
            claim.cancel()

        def over() -> None:
            if subscription.claim is claim:
                claim.cancel = None
                self._end(subscription)
                self._consider(subscription)

        claim.cancel = self._later(subscription.request.lease_ttl_ms / 1000, over)

    def _end(self, subscription: Subscription) -> None:
        claim, subscription.claim = subscription.claim, None
        if claim is not None:
            subscription.last_token = claim.token
            if claim.cancel is not None:
                claim.cancel()

    def _held(self, subscription: Subscription, token: str, wake_id: str, generation: int) -> Claim:
        claim = subscription.claim
        if claim is None or not compare_digest(token.encode(), claim.token.encode()):
            if subscription.last_token and compare_digest(token.encode(), subscription.last_token.encode()):
                raise FencedError(subscription.generation)
            raise (
                BadTokenError()
                if claim is not None or not subscription.last_token
                else FencedError(subscription.generation)
            )
        if (wake_id, generation) != (claim.wake_id, claim.generation):
            raise FencedError(subscription.generation)
        return claim

    # Wake-ups

    def _consider(self, subscription: Subscription) -> None:
        """Wakes whoever should be, when there is something to do and nobody is at it."""
        idle = subscription.claim is None and subscription.resting is None
        if (
            not idle
            or not subscription.pending
            or self._core.closed
            or self._all.get(subscription.id) is not subscription
        ):
            return
        if subscription.request.type == "webhook":
            self._call(subscription)
        elif not subscription.notified:
            subscription.notified = True
            self._tell_wake_stream(subscription)

    def _call(self, subscription: Subscription) -> None:
        claim = self._begin(subscription, "webhook")
        assert subscription.request.webhook is not None
        url = subscription.request.webhook.url
        body = _encode(
            {
                "type": "wake", "subscription_id": subscription.id, "wake_id": claim.wake_id,
                "generation": claim.generation, "callback_url": f"{subscription.url}/callback",
                "callback_token": claim.token, "lease_ttl_ms": subscription.request.lease_ttl_ms,
                "streams": [one for one in self.describe_streams(subscription) if one["has_pending"]],
            }
        )  # fmt: skip

        def written(error: TopicsError | None) -> None:
            if error is not None:
                self._rest(subscription, claim)
                return
            signature = self.signer.header(body, self._core.now() // 1000)
            self._deliver(url, body, signature, lambda answer: self._answered(subscription, claim, answer))

        self._write([_generation(subscription)], written)

    def _answered(self, subscription: Subscription, claim: Claim, answer: Any) -> None:
        if answer is None:
            self._rest(subscription, claim)
            return
        subscription.failures = 0
        if isinstance(answer, dict) and answer.get("done") is True and subscription.claim is claim:
            said = Acks(
                wake_id=claim.wake_id, generation=claim.generation, done=True,
                acks=[{"stream": name, "offset": offset} for name, offset in claim.snapshot.items()],
            )  # fmt: skip
            self.ack(subscription.id, claim.token, said, lambda outcome: None)

    def _rest(self, subscription: Subscription, claim: Claim) -> None:
        """A call failed: the next one waits a while, longer each time."""
        if subscription.claim is not claim:
            return
        self._end(subscription)
        subscription.failures += 1

        def again() -> None:
            subscription.resting = None
            self._consider(subscription)

        wait = min(_RETRY_S * 2 ** (subscription.failures - 1), _RETRY_S_MAX)
        subscription.resting = self._later(wait, again)

    def _tell_wake_stream(self, subscription: Subscription) -> None:
        event = {
            "type": "wake", "subscription_id": subscription.id, "generation": subscription.generation + 1,
            "streams": sorted(subscription.pending),
        }  # fmt: skip

        def told(outcome: Appended | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                subscription.notified = False

        request = AppendRequest(body=_encode([event]), content_type="application/json")
        try:
            self._streams.append(subscription.request.wake_stream or "", request, told)
        except TopicsError:
            # There is no such stream, or it takes nothing: whoever asks can still claim.
            subscription.notified = False

    # Streams

    def _added(self, topic: Topic) -> None:
        if topic.name == NAME:
            return
        for subscription in list(self._all.values()):
            if topic.name in subscription.links or subscription.matches(topic.name):
                subscription.links.setdefault(topic.name, Link(explicit=False)).acked = START
                # When the tick is over: the topic is just coming to be, and may bring its first records along.
                self._core.defer(lambda one=subscription: self._look(one, topic.name))  # type: ignore[misc]

    def _look(self, subscription: Subscription, name: str) -> None:
        """Finds out whether a stream has something new, and watches it."""
        link = subscription.links.get(name)
        if link is None or self._all.get(subscription.id) is not subscription:
            return
        if link.unwatch is None:

            def woken() -> None:
                link.unwatch = None
                self._look(subscription, name)

            try:
                link.unwatch = self._streams.engine.watch(name, woken)
            except TopicsError:
                # It is not there, or no longer: what was acknowledged meant another stream.
                subscription.pending.discard(name)
                if not link.explicit:
                    del subscription.links[name]
                return
        if self._is_pending(name, link):
            subscription.pending.add(name)
            self._consider(subscription)
        else:
            subscription.pending.discard(name)

    def _is_pending(self, name: str, link: Link) -> bool:
        topic = self._core.by_name.get(name)
        if topic is None or not topic.created:
            return False
        try:
            return read_offset(topic, link.acked).counter < topic.head
        except TopicsError:
            return topic.head > 0

    def _tail(self, name: str) -> str:
        topic = self._core.by_name.get(name)
        return tail_offset(topic) if topic is not None and topic.created else START

    def _moved(self, subscription: Subscription, moved: dict[str, str]) -> None:
        for name, offset in moved.items():
            link = subscription.links.get(name)
            if link is not None:
                link.acked = offset
                if not self._is_pending(name, link):
                    subscription.pending.discard(name)

    def _cut(self, subscription: Subscription, name: str) -> None:
        link = subscription.links.pop(name, None)
        subscription.pending.discard(name)
        if link is not None and link.unwatch is not None:
            link.unwatch()

    def _forget(self, subscription: Subscription) -> None:
        self._end(subscription)
        if subscription.resting is not None:
            subscription.resting()
        for name in list(subscription.links):
            self._cut(subscription, name)


def _put(subscription: Subscription) -> dict[str, object]:
    return {
        "op": "put", "id": subscription.id, "base_url": subscription.base_url, "created_ms": subscription.created_ms,
        "request": subscription.request,
    }  # fmt: skip


def _ack(subscription: Subscription, name: str, offset: str) -> dict[str, object]:
    return {"op": "ack", "id": subscription.id, "path": name, "offset": offset}


def _generation(subscription: Subscription) -> dict[str, object]:
    return {"op": "generation", "id": subscription.id, "generation": subscription.generation}
