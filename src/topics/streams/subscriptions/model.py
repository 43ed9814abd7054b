"""A subscription's state: what it asks for, how far each of its streams is acknowledged, who holds it now."""

from collections.abc import Callable

import msgspec

from topics.core.errors import InvalidRequestError
from topics.streams.offsets import START
from topics.streams.subscriptions.patterns import check_pattern, literal_prefix, matcher

LEASE_MS = 30_000
LEASE_MS_MIN = 100
LEASE_MS_MAX = 3_600_000
STREAMS_MAX = 10_000


class Webhook(msgspec.Struct, frozen=True):
    url: str


class SubscriptionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a PUT says, and what is stored of it."""

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
    """A wake-up that somebody works on."""

    __slots__ = ("cancel", "expired", "generation", "holder", "snapshot", "token", "wake_id")

    def __init__(self, wake_id: str, generation: int, token: str, holder: str, snapshot: dict[str, str]) -> None:
        self.wake_id = wake_id
        self.generation = generation
        self.token = token
        self.holder = holder
        self.snapshot = snapshot
        """The end of each stream when it began."""
        self.cancel: Callable[[], None] | None = None
        """Takes back the end of its lease."""
        self.expired = False
        """Whether its lease ended without a word."""


Owner = tuple[str, ...]
"""Whose a subscription is: the prefixes of names that its creator was held to, none for one who may do everything. Not
the key itself, so that whoever replaces a key by another with the same rights still has what the first one made."""


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
        """Where the creator found the server: callbacks come the same way."""
        self.created_ms = created_ms
        self.generation = 0
        self.links: dict[str, Link] = {}
        self.left_out: dict[str, int] = {}
        """Streams that somebody took out, with their epochs: another stream of the name that the pattern fits is in."""
        self.pending: set[str] = set()
        """Linked streams with something behind what is acknowledged."""
        self.claim: Claim | None = None
        self.calling = False
        """Whether its webhook is being called. It is never called twice at once, however short its lease is."""
        self.failures = 0
        """Calls in a row that were not taken."""
        self.last_error = ""
        """Why the last of them was not; empty when there was none."""
        self.resting: Callable[[], None] | None = None
        """Takes back the next try after failures."""
        self.notified = False
        """Whether the wake stream has been told and nobody has come yet."""
        self.matches = matcher(request.pattern) if request.pattern else lambda name: False

    def is_within(self, prefixes: Owner) -> bool:
        """Whether somebody held to these prefixes may have to do with it: its owner is held to them, too, and so is
        everything that it follows and tells by now. One of before there were owners is judged by that alone."""
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
