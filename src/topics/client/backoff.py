"""How long to wait before trying again, and when to give up."""

import logging

from topics.client.errors import (
    ApiError,
    ClientError,
    ConnectionFailed,
    NotReady,
    ServerTrouble,
    ShuttingDown,
    Throttled,
    UnexpectedAnswer,
)
from topics.client.options import RetryPolicy
from topics.system.clock import Clock
from topics.system.dice import Dice

# What a proxy says when the server behind it is away. Nobody knows whether the server got the request.
_GATEWAY_STATUSES = (502, 503, 504)

_log = logging.getLogger(__name__)


class Backoff:
    """Counts the failures of a connection that is made again and again, as long as it takes."""

    def __init__(self, policy: RetryPolicy, clock: Clock, dice: Dice) -> None:
        self._policy = policy
        self._clock = clock
        self._dice = dice
        self._failures = 0
        self._deadline = 0.0

    def succeeded(self) -> None:
        self._failures = 0

    def delay_after(self, error: ClientError) -> float | None:
        """How many seconds to wait before the next try; None when that is in vain, or too late."""
        if not may_try_again(error, True):
            return None
        if not self._failures:
            self._deadline = self._clock.monotonic() + self._policy.deadline_s
        self._failures += 1
        asked_s = error.retry_after_s if isinstance(error, ApiError) else None
        delay = delay_before(self._policy, self._failures, asked_s, self._dice)
        if self._clock.monotonic() + delay > self._deadline:
            if self._failures > 1:
                error.add_note(f"gave up after {self._failures} tries")
            return None
        _log.info("a connection will be made again", extra={"failures": self._failures, "cause": str(error)})
        return delay


def delay_before(policy: RetryPolicy, failures: int, retry_after_s: float | None, dice: Dice) -> float:
    # The exponent is bounded because a follower may fail for days.
    backoff = min(policy.backoff_min_s * 2.0 ** min(failures - 1, 60), policy.backoff_max_s)
    luck = int.from_bytes(dice.token(4)) / 2**32
    if retry_after_s is None:
        return backoff * (1.0 - luck / 2)
    return retry_after_s + backoff * luck


def may_try_again(error: ClientError, repeatable: bool) -> bool:
    """Whether the same request could succeed later, and cannot do harm if it already did."""
    match error:
        case ConnectionFailed():
            return repeatable or not error.maybe_done
        case UnexpectedAnswer():
            return error.status == 429 or (repeatable and error.status in _GATEWAY_STATUSES)
        case ServerTrouble():
            return False
        case Throttled() | NotReady() | ShuttingDown():
            return True
        case ApiError():
            return error.status in (429, 503)
    return False
