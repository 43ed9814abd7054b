"""Whose records were in a damaged place of the log: exactly, where that can be proven, or not at all.

A damaged frame's own word for its topic is not enough, since the damaged byte may be in just that word. But a block
also says its first seq and where its text begins in the topic's running coordinate, and both must continue the topic.
When exactly one topic of the shard fits, and it is the one that the frame names, one wrong byte cannot have led here.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from topics.formats.block import BASE_MAX
from topics.storage.damage.log_walk import Hole


class Books(Protocol):
    """As much of a topic as tells whether a block continues it."""

    head: int
    next_base: int


class LostRecords(NamedTuple):
    """Records of one topic that were in a damaged place."""

    topic_id: int
    from_seq: int
    to_seq: int
    next_base: int


def find_lost_records(hole: Hole, topics: Mapping[int, Books]) -> list[LostRecords] | None:
    """The records that were in a hole; None when nobody can tell. `topics` are those whose frames may be in it."""
    if hole.next_lsn == hole.first_lsn:
        return []  # No frame is missing: what was damaged is the unused rest of a file.
    if not hole.remains:
        return None
    found: list[LostRecords] = []
    heads: dict[int, tuple[int, int]] = {}
    for remains in hole.remains:
        if not remains.records:
            continue
        place = (remains.first_seq, remains.base)
        fitting = [
            topic_id
            for topic_id, topic in topics.items()
            if place == heads.get(topic_id, (topic.head + 1, _base(topic.next_base)))
        ]
        if fitting != [remains.topic_id]:
            return None
        next_base = remains.next_base
        last = remains.first_seq + remains.records - 1
        heads[remains.topic_id] = (last + 1, _base(next_base))
        found.append(LostRecords(remains.topic_id, remains.first_seq, last, next_base))
    return found


def _base(next_base: int) -> int:
    return next_base if next_base < BASE_MAX else 0
