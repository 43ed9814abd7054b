"""How threads share the interpreter."""

import sys

_SWITCH_S = 0.0005


def tune_threads() -> None:
    """Lets the event loop have the interpreter back sooner.

    A thread that computes keeps it for five milliseconds unless told otherwise, and every request would wait that long
    whenever a segment is put together in the background.
    """
    sys.setswitchinterval(_SWITCH_S)
