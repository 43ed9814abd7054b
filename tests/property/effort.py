"""The number of examples of the property tests.

Each test states how many examples it is worth. The random profile tries all of them, the thorough one many times as
many, and the fixed one, in which they are the same each time, a quarter.
"""

from hypothesis import HealthCheck, settings

_DEFAULT_EXAMPLES = 100
_FIXED_SHARE = 0.25


def effort(examples: int, steps: int | None = None) -> settings:
    """Settings for a test worth so many examples, and for a state machine so many steps each."""
    profile = settings()
    share = profile.max_examples / _DEFAULT_EXAMPLES * (_FIXED_SHARE if profile.derandomize else 1)
    chosen = settings(
        max_examples=max(1, round(examples * share)),
        # Examples of whole histories are large by nature, and making them is most of the work.
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    return chosen if steps is None else settings(chosen, stateful_step_count=steps)
