"""Topic epochs: numbers that distinguish topics of the same name and grow with every recreation.

The epoch of a new topic is the second of its creation, counted from 2000, so that it reveals nothing about topics of
other keys. Offsets of /v1 hold 32 bits of it, which last until 2136. The order holds for each name, whatever the clock
does: epochs never fall below `floor`, the highest second seen, and a name that was deleted at or above the floor is
remembered until the floor has passed its epoch. Different names may have the same epoch.

Releases before counted all topics instead, so epochs below `FIRST_TIME` are the ids of their topics.
"""

from collections.abc import Mapping
from statistics import median_low

from xxhash import xxh3_64_intdigest

_BEGIN_MS = 946_684_800_000
"""2000-01-01 in UTC."""
FIRST_TIME = 1 << 28
"""Epochs from here on are times (July 2008); below they are counters."""
_REMEMBERED_MAX = 10_000
_SOURCE_ID_BITS = 53


class TopicEpochs:
    """Chooses the epochs of new topics."""

    __slots__ = ("deleted", "floor")

    def __init__(self) -> None:
        self.floor = 1
        """No epoch below it is used again."""
        self.deleted: dict[str, int] = {}
        """The epochs of deleted topics at or above the floor, by name."""

    def next(self, name: str, now_ms: int) -> int:
        """The epoch of a topic that is created now."""
        self._raise(epoch_at(now_ms))
        return max(self.floor, self.deleted.get(name, 0) + 1)

    def note_deleted(self, name: str, epoch: int) -> None:
        """Notes a deleted topic; a later one of its name gets a higher epoch."""
        if epoch < self.floor:
            return
        self.deleted[name] = max(epoch, self.deleted.get(name, 0))
        if len(self.deleted) > _REMEMBERED_MAX:
            # Many within a second, or a clock that was set back: half of them are dropped by raising the floor.
            self._raise(median_low(self.deleted.values()) + 1)

    def note_created(self, epoch: int, created_ms: int) -> None:
        """Notes a creation that was replayed from the log."""
        self._raise(min(epoch, epoch_at(created_ms)))

    def restore(self, floor: int, deleted: Mapping[str, int], next_topic_id: int) -> None:
        """The state of a snapshot. Snapshots of earlier releases have no floor: their epochs are ids."""
        self.floor, self.deleted = floor or next_topic_id, dict(deleted)

    def _raise(self, floor: int) -> None:
        if floor <= self.floor:
            return
        self.floor = floor
        if self.deleted:
            self.deleted = {name: epoch for name, epoch in self.deleted.items() if epoch >= floor}


def public_source_id(topic_id: int, name: str, epoch: int) -> int:
    """The number of a source in the provenance of copies: the same for all topics of a name.

    It is not the id, which counts the topics of other keys. Topics of earlier releases keep theirs, because it is part
    of the idempotency keys of their copies.
    """
    return topic_id if epoch < FIRST_TIME else xxh3_64_intdigest(name.encode()) >> 64 - _SOURCE_ID_BITS


def epoch_at(now_ms: int) -> int:
    """The epoch of topics that are created at a time, in milliseconds since 1970."""
    return (now_ms - _BEGIN_MS) // 1000
