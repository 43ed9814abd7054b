"""Subscription state: config, acknowledged offset of each stream, and the lease of its current worker."""

import re
from base64 import urlsafe_b64encode
from collections.abc import Callable
from hmac import compare_digest
from typing import Protocol

import msgspec

from topics.model.errors import InvalidRequestError, TopicsError, TopicStateError, quoted
from topics.streams.stream_state import START
from topics.system.entropy import Entropy

# Errors, with the codes of the protocol.


class SubscriptionNotFoundError(TopicStateError):
    code = "SUBSCRIPTION_NOT_FOUND"

    def __init__(self, subscription_id: str) -> None:
        super().__init__(f"subscription {quoted(subscription_id)} does not exist")


class SubscriptionConflictError(TopicStateError):
    """The subscription exists with another config."""

    code = "SUBSCRIPTION_CONFLICT"

    def __init__(self, subscription_id: str) -> None:
        super().__init__(f"subscription {quoted(subscription_id)} exists with other settings")


class SubscriptionTakenError(TopicsError):
    """The subscription exists and belongs to another owner."""

    code = "forbidden"

    def __init__(self, subscription_id: str) -> None:
        super().__init__(f"the id {quoted(subscription_id)} is not free", name=subscription_id)


class WebhookRejectedError(InvalidRequestError):
    """A webhook address that the server does not call."""

    code = "WEBHOOK_URL_REJECTED"


class FencedError(TopicStateError):
    """Fenced: the wake-up has ended or was replaced by another."""

    code = "FENCED"

    def __init__(self, generation: int) -> None:
        super().__init__("this wake-up is over; a later one may have taken its place", current_generation=generation)


class AlreadyClaimedError(TopicStateError):
    code = "ALREADY_CLAIMED"

    def __init__(self, holder: str, generation: int) -> None:
        super().__init__("another worker holds the lease", current_holder=holder, generation=generation)


class NoPendingWorkError(TopicStateError):
    code = "NO_PENDING_WORK"

    def __init__(self) -> None:
        super().__init__("none of the subscription's streams has anything new")


class BadTokenError(TopicsError):
    code = "INVALID_TOKEN"

    def __init__(self) -> None:
        super().__init__("the bearer token does not belong to this subscription")


# Patterns of stream names: `*` stands for a part of one segment, `**` for any number of segments.
#
# A pattern comes from a client and is compared with every new name, so no pattern may take long on any name. A pattern
# with a single wildcard is a prefix and a suffix. Others are first checked by the texts between their wildcards, and
# then run along the name once as a nondeterministic automaton, whose states are the bits of one number.

_TOKEN = re.compile(r"\*\*/?|\*|[^*]+")
DEEP_MAX = 2
PATTERN_CHARS_MAX = 1024


def check_pattern(pattern: str) -> None:
    deep = sum(token.startswith("**") for token in _tokens(pattern))
    if len(pattern) > PATTERN_CHARS_MAX or deep > DEEP_MAX:
        raise InvalidRequestError(
            f"pattern: at most {PATTERN_CHARS_MAX} characters and {DEEP_MAX} times `**` are allowed", field="pattern"
        )


def _tokens(pattern: str) -> list[str]:
    # More than two stars in a row are equivalent to two.
    return _TOKEN.findall(re.sub(r"\*{3,}", "**", pattern))


def matcher(pattern: str) -> Callable[[str], bool]:
    tokens = _tokens(pattern)
    wild = [token for token in tokens if token.startswith("*")]
    if not wild:
        return pattern.__eq__
    begin = tokens[0] if tokens[0] != wild[0] else ""
    end = tokens[-1] if tokens[-1] != wild[-1] else ""
    if len(wild) == 1:
        return _single(begin, wild[0], end)
    texts = [token for token in tokens if not token.startswith("*")]
    walk = _walker(tokens)

    def fits(name: str) -> bool:
        if not (name.startswith(begin) and name.endswith(end)):
            return False
        return all(text in name for text in texts) and walk(name)

    return fits


def _single(begin: str, wildcard: str, end: str) -> Callable[[str], bool]:
    first, least = len(begin), len(begin) + len(end)

    def fits(name: str) -> bool:
        if len(name) < least or not (name.startswith(begin) and name.endswith(end)):
            return False
        if wildcard == "**":
            return True
        between = name[first : len(name) - len(end)]
        return "/" not in between if wildcard == "*" else not between or between.endswith("/")

    return fits


def _walker(tokens: list[str]) -> Callable[[str], bool]:
    """Bit n of a number is set if a match of the first n steps of the pattern ends here.

    A step is a character, or one of the two that `**/` takes: from its first one goes on at the next slash (a stay), or
    at once (a skip), to its second.
    """
    after: dict[str, int] = {}
    any_, within, stays, skips, place = 0, 0, 0, 0, 0
    for token in tokens:
        if token == "**":
            any_ |= 1 << place
        elif token == "*":
            within |= 1 << place
        elif token == "**/":
            skips |= 1 << place
            stays |= 1 << (place + 1)
            place += 2
        else:
            for character in token:
                place += 1
                after[character] = after.get(character, 0) | 1 << place
    last, kept = 1 << place, any_ | stays

    def closed(where: int) -> int:
        for _ in range(DEEP_MAX):
            where |= (where & skips) << 1 | (where & skips) << 2
        return where

    def walk(name: str) -> bool:
        where = closed(1)
        for character in name:
            onward = (where << 1) & after.get(character, 0) | where & kept
            onward |= (where & stays) << 1 if character == "/" else where & within
            where = closed(onward) if skips else onward
            if not where:
                return False
        return bool(where & last)

    return walk


def literal_prefix(pattern: str) -> str:
    """Returns the common prefix of all matching names."""
    return pattern.partition("*")[0]


LEASE_MS = 30_000
LEASE_MS_MIN = 100
LEASE_MS_MAX = 3_600_000
STREAMS_MAX = 10_000


class Webhook(msgspec.Struct, frozen=True):
    url: str


class SubscriptionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The config of a subscription, as sent by PUT and stored."""

    type: str
    pattern: str | None = None
    streams: list[str] = []
    webhook: Webhook | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int = LEASE_MS
    description: str | None = None

    def check(self) -> None:
        if self.type not in ("webhook", "pull-wake"):
            raise InvalidRequestError("type: must be webhook or pull-wake", field="type")
        if not self.pattern and not self.streams:
            raise InvalidRequestError("pattern: a subscription needs a pattern or streams", field="pattern")
        check_pattern(self.pattern or "")
        if (self.webhook is not None) != (self.type == "webhook"):
            raise InvalidRequestError("webhook: belongs to the type webhook, which needs it", field="webhook")
        if bool(self.wake_stream) != (self.type == "pull-wake"):
            raise InvalidRequestError("wake_stream: belongs to the type pull-wake, which needs it", field="wake_stream")
        if not LEASE_MS_MIN <= self.lease_ttl_ms <= LEASE_MS_MAX:
            raise InvalidRequestError(
                f"lease_ttl_ms: must be from {LEASE_MS_MIN} to {LEASE_MS_MAX}", field="lease_ttl_ms"
            )
        if len(self.streams) > STREAMS_MAX:
            raise InvalidRequestError(f"streams: at most {STREAMS_MAX} are allowed", field="streams")


class Link:
    """One stream of a subscription."""

    __slots__ = ("acked", "explicit", "unwatch")

    def __init__(self, explicit: bool, acked: str = START) -> None:
        self.explicit = explicit
        self.acked = acked
        self.unwatch: Callable[[], None] | None = None


class Claim:
    """A wake-up that a worker has claimed."""

    __slots__ = ("cancel", "expired", "generation", "holder", "snapshot", "token", "wake_id")

    def __init__(self, wake_id: str, generation: int, token: str, holder: str, snapshot: dict[str, str]) -> None:
        self.wake_id = wake_id
        self.generation = generation
        self.token = token
        self.holder = holder
        self.snapshot = snapshot
        """The end of each stream when the claim began."""
        self.cancel: Callable[[], None] | None = None
        """Cancels the lease timer."""
        self.expired = False
        """Whether its lease expired."""


Owner = tuple[str, ...]
"""The owner of a subscription: the prefixes of its creator's key, none for a key without limits. Not the key itself, so
that a key which replaces another with the same rights keeps its subscriptions."""


class Subscription:
    def __init__(
        self,
        subscription_id: str,
        request: SubscriptionRequest,
        base_url: str,
        created_ms: int,
        owner: Owner | None = (),
    ) -> None:
        self.id = subscription_id
        self.request = request
        self.owner = owner
        self.base_url = base_url
        """The base URL that the creator used; callback URLs use the same."""
        self.created_ms = created_ms
        self.generation = 0
        self.links: dict[str, Link] = {}
        self.left_out: dict[str, int] = {}
        """Removed streams, with their epochs: a new stream of the same matching name is included."""
        self.pending: set[str] = set()
        """Linked streams with entries after the acknowledged offset."""
        self.claim: Claim | None = None
        self.calling = False
        """Whether its webhook call is in progress. There is never more than one, however short the lease."""
        self.failures = 0
        """Consecutive failed calls."""
        self.last_error = ""
        """The last failure; empty if there was none."""
        self.resting: Callable[[], None] | None = None
        """Cancels the next retry."""
        self.notified = False
        """Whether a wake event was written and no worker has claimed it yet."""
        self.matches = matcher(request.pattern) if request.pattern else lambda name: False

    def is_within(self, prefixes: Owner) -> bool:
        """Whether a key with these prefixes may access the subscription: its owner's prefixes and every stream that it
        follows must lie within them. A subscription without an owner, from an earlier release, is judged by its streams
        only."""
        if not prefixes:
            return True
        if self.owner == ():
            return False
        named = [*(self.owner or ()), *self.request.streams, *self.links]
        if self.request.pattern:
            named.append(literal_prefix(self.request.pattern))
        if self.request.wake_stream:
            named.append(self.request.wake_stream)
        return all(name.startswith(prefixes) for name in named)

    @property
    def url(self) -> str:
        return f"{self.base_url}__ds/subscriptions/{self.id}"


# Leases of subscriptions.
#
# At most one worker holds a subscription. Each claim increments its generation, and every request of the worker must
# name it: a worker whose lease expired is fenced.
#
# The claim token authenticates the worker; no key is needed. It ends with a MAC of the id, the generation and the rest
# of the token. So a fenced worker can be distinguished from a client that never held the lease, which learns nothing,
# not even whether the subscription exists.

_TOKEN_BYTES = 18


class Later(Protocol):
    """Runs a function after some seconds; returns a function that cancels it."""

    def __call__(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]: ...


class Leases:
    def __init__(
        self, entropy: Entropy, later: Later, mark: Callable[[str], str], over: Callable[[Subscription], None]
    ) -> None:
        self._entropy = entropy
        self._mark = mark
        self._later = later
        self._over = over
        """Called with a subscription whose lease expired."""

    def begin(self, subscription: Subscription, holder: str, snapshot: dict[str, str]) -> Claim:
        subscription.generation += 1
        subscription.notified = False
        word, wake_id = (urlsafe_b64encode(self._entropy.token(_TOKEN_BYTES)).decode() for _ in range(2))
        token = f"{word}.{self._marked(subscription.id, subscription.generation, word)}"
        claim = subscription.claim = Claim(f"wake_{wake_id}", subscription.generation, token, holder, snapshot)
        self.hold(subscription, claim)
        return claim

    def hold(self, subscription: Subscription, claim: Claim) -> None:
        """Start or renew the lease."""
        if claim.cancel is not None:
            claim.cancel()

        def over() -> None:
            claim.cancel = None
            if subscription.claim is claim:
                claim.expired = True
                self.end(subscription)
                self._over(subscription)

        claim.cancel = self._later(subscription.request.lease_ttl_ms / 1000, over)

    def end(self, subscription: Subscription) -> None:
        claim, subscription.claim = subscription.claim, None
        if claim is not None and claim.cancel is not None:
            claim.cancel()

    def held(self, subscription: Subscription, token: str, wake_id: str, generation: int) -> Claim:
        """The claim of a worker, if it still holds it."""
        claim = subscription.claim
        current = claim is not None and compare_digest(token.encode(), claim.token.encode())
        if not current:
            self.check_token(subscription.id, token, generation)
        if claim is None or not current or (wake_id, generation) != (claim.wake_id, claim.generation):
            raise FencedError(subscription.generation)
        return claim

    def check_token(self, subscription_id: str, token: str, generation: int) -> None:
        """Raises BadTokenError unless the token was issued for this generation of a subscription of that id."""
        word, _, mark = token.partition(".")
        if not compare_digest(mark.encode(), self._marked(subscription_id, generation, word).encode()):
            raise BadTokenError()

    def _marked(self, subscription_id: str, generation: int, word: str) -> str:
        return self._mark(f"{generation} {word} {subscription_id}")
