"""How long the log took, as those who are answered are told."""

from typing import NamedTuple


class CommitTiming(NamedTuple):
    """How long the commit spent writing and syncing, for the answer's `performance` block."""

    write_ms: float = 0.0
    sync_ms: float = 0.0


AT_ONCE = CommitTiming()
"""Of what needs no log."""
