"""Waiting for a server that went away while something of it was followed."""

import time

from topics.cli.shared.output import note
from topics.client import Client, ConnectionFailed, RetryLater

TOLD_AFTER_S = 1.0
"""How long a server may be away before it is worth a word."""
_LOOK_AGAIN_S = 0.2


def wait_for(client: Client, error: Exception) -> None:
    """Says that it is away and why, waits until it is ready, and says so."""
    note(f"the server is away ({error}); waiting for it")
    while True:
        try:
            client.ready()
            break
        except (ConnectionFailed, RetryLater):
            time.sleep(_LOOK_AGAIN_S)
    note("the server is back")
