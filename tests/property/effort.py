"""How hard the property tests try.

Each test says how many examples it is worth with the default profile, in which all of them together take well under a
minute; HYPOTHESIS_PROFILE=thorough multiplies all of them alike.
"""

from hypothesis import HealthCheck, settings

_DEFAULT_EXAMPLES = 100


def effort(examples: int, steps: int | None = None) -> settings:
    """Settings for a test worth so many examples, and for a state machine so many steps each."""
    chosen = settings(
        max_examples=max(1, examples * settings().max_examples // _DEFAULT_EXAMPLES),
        # Examples of whole histories are large by nature, and making them is most of the work.
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    return chosen if steps is None else settings(chosen, stateful_step_count=steps)
