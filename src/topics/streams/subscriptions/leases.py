"""Who holds a subscription, and for how long.

At most one worker does. Each time it is handed out its generation goes up, and everything the worker says must name
it: whoever lost the lease meanwhile is fenced.

The token of a claim is what its worker is known by; nothing else is asked of it, not even a key. It ends with a mark
that the server makes of the id, the generation and the rest of the token. So a worker that was fenced can be told from
one that never held anything: the latter learns nothing, not even whether there is a subscription of that id.
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable
from hmac import compare_digest
from typing import Protocol

from topics.streams.subscriptions.errors import BadTokenError, FencedError
from topics.streams.subscriptions.model import Claim, Subscription
from topics.system.dice import Dice

_TOKEN_BYTES = 18


class Later(Protocol):
    """Runs a function after some seconds; what it returns takes that back."""

    def __call__(self, seconds: float, function: Callable[[], None]) -> Callable[[], None]: ...


class Leases:
    def __init__(
        self, dice: Dice, later: Later, mark: Callable[[str], str], over: Callable[[Subscription], None]
    ) -> None:
        self._dice = dice
        self._mark = mark
        self._later = later
        self._over = over
        """Told of a subscription whose lease ended without a word."""

    def begin(self, subscription: Subscription, holder: str, snapshot: dict[str, str]) -> Claim:
        subscription.generation += 1
        subscription.notified = False
        word, wake_id = (urlsafe_b64encode(self._dice.token(_TOKEN_BYTES)).decode() for _ in range(2))
        token = f"{word}.{self._marked(subscription.id, subscription.generation, word)}"
        claim = subscription.claim = Claim(f"wake_{wake_id}", subscription.generation, token, holder, snapshot)
        self.hold(subscription, claim)
        return claim

    def hold(self, subscription: Subscription, claim: Claim) -> None:
        """The lease begins, or begins again."""
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
        """The claim that a worker speaks of, if it still holds it."""
        claim = subscription.claim
        current = claim is not None and compare_digest(token.encode(), claim.token.encode())
        if not current:
            self.check_token(subscription.id, token, generation)
        if claim is None or not current or (wake_id, generation) != (claim.wake_id, claim.generation):
            raise FencedError(subscription.generation)
        return claim

    def check_token(self, subscription_id: str, token: str, generation: int) -> None:
        """Raises BadTokenError unless the token was given out for this generation of a subscription of that id."""
        word, _, mark = token.partition(".")
        if not compare_digest(mark.encode(), self._marked(subscription_id, generation, word).encode()):
            raise BadTokenError()

    def _marked(self, subscription_id: str, generation: int, word: str) -> str:
        return self._mark(f"{generation} {word} {subscription_id}")
