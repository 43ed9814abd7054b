"""Which topic is served first when not all can be: a number computed on demand and never stored.

    effective = manual, or else recency     + age
    manual    = priority, clamped to -1000 .. 1000
    recency   = 500 * 2 ** -(ms since the topic was last consumed / 30,000), and 0 from five minutes on
    age       = 100 for every second that something has waited to be served, 1000 at most

A priority set by hand replaces recency, so an operator's word is not blurred by who happened to read last. Age is
added in every case: after ten seconds even the lowest topic has climbed by the whole positive half of the range.

The three terms weigh the same. Everything is integer arithmetic, with 2 ** -x from a table: this runs for every
waiting topic on every aging tick.
"""

from itertools import pairwise
from typing import Final

from topics.core.limits import MAX_PRIORITY, MIN_PRIORITY

AUTO_MAX: Final = 500
"""A topic that was just read counts as much as one set to 500 by hand, which leaves room above for operators."""
HALF_LIFE_MS: Final = 30_000
AUTO_FLOOR_MS: Final = 300_000
"""Ten half-lives, after which the exact value rounds to 0 anyway and the arithmetic is skipped."""
AGE_PER_SECOND: Final = 100
AGE_CAP_MS: Final = 10_000

_STEPS: Final = 64
_FRACTION_BITS: Final = 16


def _decay_table() -> tuple[tuple[int, int], ...]:
    """For each 64th of a half-life: 2 ** -x in fixed point, and by how much it falls until the next step."""
    values = [round(2 ** (_FRACTION_BITS - step / _STEPS)) for step in range(_STEPS + 1)]
    return tuple((value, value - following) for value, following in pairwise(values))


_DECAY: Final = _decay_table()


def effective_priority(
    config_priority: int | None,
    auto_priority: bool,
    last_consumed_ms: int | None,
    enqueued_ms: int | None,
    now_ms: int,
) -> int:
    """The priority at `now_ms`; None stands for a topic that was never read, and for one where nothing waits."""
    if config_priority is not None:
        base = min(max(config_priority, MIN_PRIORITY), MAX_PRIORITY)
    elif auto_priority and last_consumed_ms is not None:
        base = _recency(now_ms - last_consumed_ms)
    else:
        base = 0
    return base if enqueued_ms is None else base + _age_boost(now_ms - enqueued_ms)


def _recency(elapsed_ms: int) -> int:
    if elapsed_ms >= AUTO_FLOOR_MS:
        return 0
    # A clock that was set back must not lift a topic above the maximum.
    halvings, rest_ms = divmod(max(elapsed_ms, 0), HALF_LIFE_MS)
    step, within = divmod(rest_ms * _STEPS, HALF_LIFE_MS)
    value, fall = _DECAY[step]
    exact = AUTO_MAX * (value - fall * within // HALF_LIFE_MS)
    # Adding half of the last kept bit before the shift rounds to the nearest.
    shift = _FRACTION_BITS + halvings
    return (exact + (1 << (shift - 1))) >> shift


def _age_boost(waited_ms: int) -> int:
    return min(max(waited_ms, 0), AGE_CAP_MS) * AGE_PER_SECOND // 1000
