"""Waiting for what copies depend on: a destination of class fsync shows nothing that a power cut could take back.

A forward by reference is worth as much as the frames it refers to. Those of the source, of the source's source and so
on may be in other shards, written and not yet synced where their class does not ask for it. So before a forward into a
destination of class fsync is logged, the shards of all of them are synced. Its own shard needs nothing: the sync of the
forward comes behind.
"""

from collections.abc import Callable

from topics.engine.core import EngineCore
from topics.engine.routing.registry import Registry, RouterPart
from topics.engine.topic import Topic


class Syncing:
    def __init__(self, core: EngineCore, registry: Registry, rouse: Callable[[Topic], None]) -> None:
        self._core = core
        self._registry = registry
        self._rouse = rouse

    def synced_upto(self, source: Topic, part: RouterPart, dest: Topic, cursor: int) -> int:
        """The last seq whose copy the destination may show; where that is the cursor, a sync is on its way."""
        if part.synced_head > cursor:
            return part.synced_head
        shards = self._unsynced(source, dest)
        if not shards:
            return source.head
        if not part.syncing:
            part.syncing = True
            self._sync(source, part, shards)
        # On the caller's stack the sync is over by now.
        return max(part.synced_head, cursor)

    def _unsynced(self, source: Topic, dest: Topic) -> list[int]:
        numbers = {
            topic.shard
            for topic in self._registry.upstream(source)
            if topic.config.durability.logged and not topic.config.durability.acks_after_sync
        }
        return [number for number in sorted(numbers - {dest.shard}) if not self._core.path.is_synced(number)]

    def _sync(self, source: Topic, part: RouterPart, shards: list[int]) -> None:
        head, waiting = source.head, len(shards)

        def synced() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                part.syncing = False
                part.synced_head = max(part.synced_head, head)
                self._rouse(source)

        for shard in shards:
            # A shard that cannot sync never answers and takes no more writes either; the copies then wait for the next
            # start.
            self._core.path.after_sync(shard, synced)
