"""What else shows the archive's records and has to be told when they change. Tasks import it, so it needs nothing."""

from collections.abc import Sequence
from typing import Protocol

from topics.spark.archive.events import Event
from topics.spark.archive.state import ArchiveState


class Follower(Protocol):
    def follow(self, state: ArchiveState, events: Sequence[Event], now_ms: int) -> bool:
        """Shows what the state says, and nothing else, from its end on; whether anything was to be changed.

        The events are those of the commit that led to the state, or none. The first call of a process, one after a call
        that failed, and one that has missed a commit look at everything, whatever the events.
        """
        ...

    def expire(self, now_ms: int) -> None:
        """Lets go of files that stopped counting a while ago, because they are about to be removed."""
        ...
