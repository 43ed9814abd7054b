"""Is there room? For a batch, which is taken whole or refused, and for copies, of which as many are taken as fit.

What is on its way counts as if it were there, so that two writers cannot both get the last place.
"""

from collections.abc import Sequence

from topics.core.errors import RecordTooLargeError, ThrottledError, TopicFullError, TopicsError
from topics.engine.topic import Topic


def check_room(topic: Topic, count: int, size: int, quota: int, used: int) -> None:
    """Refuses what does not fit into a topic that rejects, or into the server's quota (0: there is none)."""
    if topic.rules.rejects:
        config = topic.staged_config
        if (config.cap_records and count > config.cap_records) or (config.cap_bytes and size > config.cap_bytes):
            raise RecordTooLargeError(
                "the batch alone is larger than the topic's cap",
                topic=topic.name, cap_records=config.cap_records, cap_bytes=config.cap_bytes,
            )  # fmt: skip
        records, room = _room(topic)
        if count > records or size > room:
            raise _full(topic)
    if quota and used + size > quota:
        raise over_quota(quota)


def fitting(topic: Topic, sizes: Sequence[int], quota: int, used: int) -> tuple[int, TopicsError | None]:
    """How many of the first records fit, and what is in the way of the others."""
    count, room = len(sizes), float("inf")
    reason: TopicsError | None = None
    if topic.rules.rejects:
        records, room = _room(topic)
        count = max(int(min(count, records)), 0)
        reason = _full(topic)
    if quota and quota - used < room:
        room = quota - used
        reason = over_quota(quota) if count else reason
    taken = 0
    for size in sizes[:count]:
        if size > room:
            break
        room -= size
        taken += 1
    return taken, None if taken == len(sizes) else reason


def over_quota(quota: int) -> ThrottledError:
    return ThrottledError.over_cap("max_total_bytes", quota)


def _room(topic: Topic) -> tuple[float, float]:
    """How many records and bytes a topic that rejects still takes."""
    config, unbounded = topic.staged_config, float("inf")
    records = config.cap_records - topic.live_count - topic.staged_count if config.cap_records else unbounded
    size = config.cap_bytes - topic.live_bytes - topic.staged_bytes if config.cap_bytes else unbounded
    return records, size


def _full(topic: Topic) -> TopicFullError:
    config = topic.staged_config
    return TopicFullError(
        topic.name,
        cap_records=config.cap_records,
        cap_bytes=config.cap_bytes,
        head_seq=topic.head,
        earliest_seq=topic.earliest,
    )
