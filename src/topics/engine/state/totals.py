"""What there is of everything, counted where it changes, so that looking at it costs the same with a million topics.

An operator's gauges are read every few seconds for as long as a server runs. To add them up over all topics would stop
the event loop for as long as that takes, each time. So whoever makes a topic come, go or change also says so here, and
what changes a topic's number of live records adds the same difference to the sum: once for a batch, never for a record.

Recovery puts topics together in its own ways and counts once, at its end.
"""

from collections.abc import Collection, Mapping

from topics.core.config import TopicConfig, TopicType
from topics.core.durability import Durability
from topics.core.leases import InFlight
from topics.engine.topic import Topic


class Totals:
    __slots__ = (
        "appended", "appended_bytes", "by_class", "dead_letters_refused", "in_flight", "queues", "reads", "records",
    )  # fmt: skip

    def __init__(self) -> None:
        self.by_class = dict.fromkeys(Durability, 0)
        """Topics of each class."""
        self.queues = 0
        """Topics that are queues."""
        self.records = 0
        """Live records; whatever changes `Topic.live_count` changes this by as much."""
        self.appended = 0
        """Records that were published since this process started, and their payload; once for a batch."""
        self.appended_bytes = 0
        self.reads = 0
        """Reads since this process started; one that many who follow a topic share counts once."""
        self.dead_letters_refused = 0
        """Jobs that could not be moved to their dead letter topic, since this process started; each attempt counts."""
        self.in_flight = InFlight()
        """Jobs leased to workers; the books of leases keep it."""

    def came(self, topic: Topic) -> None:
        self._count(topic.config, 1)
        self.records += topic.live_count

    def went(self, topic: Topic) -> None:
        self._count(topic.config, -1)
        self.records -= topic.live_count

    def reconfigured(self, before: TopicConfig, after: TopicConfig) -> None:
        self._count(before, -1)
        self._count(after, 1)

    def begin(self, topics: Collection[Topic]) -> None:
        """Counts from nothing: these are all the topics there are."""
        configs = [topic.config for topic in topics]
        classes = [config.durability for config in configs]
        # Lists count several times as fast as a loop would, and a start may have a million topics to count.
        self.by_class = {durability: classes.count(durability) for durability in Durability}
        self.queues = [config.type for config in configs].count(TopicType.QUEUE)
        self.records = sum([topic.live_count for topic in topics])
        self.appended = self.appended_bytes = 0

    def add(self, by_class: Mapping[Durability, int], records: int) -> None:
        """More topics, none of them a queue, that were counted elsewhere."""
        for durability, count in by_class.items():
            self.by_class[durability] += count
        self.records += records

    def _count(self, config: TopicConfig, change: int) -> None:
        self.by_class[config.durability] += change
        if config.type is TopicType.QUEUE:
            self.queues += change
