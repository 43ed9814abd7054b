"""How far a product of the pipeline is behind the sealed segments."""

import msgspec


class Backlog(msgspec.Struct, frozen=True):
    segments: int = 0
    bytes: int = 0
    oldest_ts: int | None = None
    """When the oldest record was committed that waits; None when none does."""
