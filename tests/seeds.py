"""The seed of every random test.

It is the same each time, so that a failure depends on the code and not on luck; `make slow` draws a new one. Tests take
it as the fixture `seed`.
"""

import os
import shlex

SEED = int(os.environ.get("TOPICS_TEST_SEED", "1"))


def run_again(test: str) -> str:
    """The command that repeats one test with the seeds of this run."""
    chosen = {"TOPICS_TEST_SEED": str(SEED)}
    chosen |= {name: os.environ[name] for name in ("HYPOTHESIS_PROFILE", "PYTHONHASHSEED") if name in os.environ}
    settings = " ".join(f"{name}={value}" for name, value in chosen.items())
    return f"{settings} .venv/bin/pytest -m '' -n 0 --hypothesis-seed={SEED} {shlex.quote(test)}"
