"""What else shows the archive's records and has to be told when they change. Tasks import it, so it needs nothing."""

from collections.abc import Mapping
from typing import Protocol

from topics.spark.archive.manifest import Manifest


class Follower(Protocol):
    def follow(self, manifests: Mapping[int, Manifest], now_ms: int) -> bool:
        """Shows what the manifests say, and nothing else, from its end on; whether anything was to be changed."""
        ...

    def expire(self, now_ms: int, at_once: bool = False) -> None:
        """Lets go of files that are about to be removed; with `at_once` of all that do not count now."""
        ...
