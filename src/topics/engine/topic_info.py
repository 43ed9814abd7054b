"""A topic's state as people see it."""

import msgspec

from topics.core.config import TopicConfig, TopicType
from topics.engine.core import EngineCore
from topics.engine.queues.messages import QueueCounters
from topics.engine.queues.queues import Queues
from topics.engine.read import first_readable
from topics.engine.topic import Topic


class TopicInfo(msgspec.Struct, frozen=True):
    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    config: TopicConfig
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    queue: QueueCounters | None = None
    """What its jobs are doing; None for a topic that is no queue."""

    @property
    def next_seq(self) -> int:
        return self.head_seq + 1


def describe(core: EngineCore, queues: Queues, topic: Topic) -> TopicInfo:
    return TopicInfo(
        topic.name, topic.epoch, topic.head, first_readable(topic), topic.live_count, topic.live_bytes, topic.config,
        core.scheduler.priority(topic), topic.last_write_ts or None, topic.last_read_ts or None,
        queues.counters_of(topic) if topic.config.type is TopicType.QUEUE else None,
    )  # fmt: skip
