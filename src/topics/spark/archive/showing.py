"""What else shows the archive's records and has to be told when they change. Tasks import it, so it needs nothing."""

from typing import Protocol

from topics.spark.archive.state import ArchiveState


class Follower(Protocol):
    def follow(self, state: ArchiveState, now_ms: int) -> bool:
        """Shows what the state says, and nothing else, from its end on; whether anything was to be changed."""
        ...

    def expire(self, now_ms: int, at_once: bool = False) -> None:
        """Lets go of files that are about to be removed; with `at_once` of all that do not count now."""
        ...
