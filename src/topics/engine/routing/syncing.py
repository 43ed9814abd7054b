"""Waiting for what copies depend on: a destination of class fsync shows nothing that a power cut could take back.

A forward by reference is worth as much as the frames it refers to. Those of the source, of the source's source and so
on may be in other shards, written and not yet synced where their class does not ask for it. So before a forward into a
destination of class fsync is logged, the shards of all of them are synced. Its own shard needs nothing: the sync of the
forward comes behind.
"""

from collections.abc import Callable

from topics.core.errors import TopicsError
from topics.engine.core import EngineCore
from topics.engine.routing.registry import Registry, RouterPart
from topics.engine.topic import Topic
from topics.storage.commit import CommitTiming, Shard, Submission


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

    def _unsynced(self, source: Topic, dest: Topic) -> list[Shard]:
        numbers = {
            topic.shard
            for topic in self._registry.upstream(source)
            if topic.config.durability.logged and not topic.config.durability.acks_after_sync
        }
        shards = [self._core.shards[number] for number in sorted(numbers - {dest.shard})]
        return [shard for shard in shards if shard.writer.synced_lsn < shard.next_lsn - 1]

    def _sync(self, source: Topic, part: RouterPart, shards: list[Shard]) -> None:
        head, waiting = source.head, len(shards)

        def synced(error: TopicsError | None) -> None:
            nonlocal waiting
            waiting -= 1
            if error is not None:
                # A shard that cannot sync takes no more writes either; the copies wait for the next start.
                waiting = -1
            if not waiting:
                part.syncing = False
                part.synced_head = max(part.synced_head, head)
                self._rouse(source)

        for shard in shards:
            shard.submit(_Sync(synced))


class _Sync(Submission):
    """Writes nothing; waits until everything before it is on disk."""

    __slots__ = ("_then",)

    def __init__(self, then: Callable[[TopicsError | None], None]) -> None:
        super().__init__([], needs_sync=True)
        self._then = then

    def committed(self, timing: CommitTiming) -> None:
        self._then(None)

    def failed(self, error: TopicsError) -> None:
        self._then(error)
