"""Sorted topic names and totals, for a million topics.

A sorted list in parts of bounded length: a change moves one part. One plain list would be moved by half its length for
every name that comes or goes, which at a million names costs more than all the rest of creating a topic.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from sortedcontainers import SortedList

from topics.engine.topic import Topic
from topics.model.topic_config import Durability, TopicConfig, TopicType
from topics.queues.leases import InFlight

_LAST = 0x10FFFF


class SortedNames(Collection[str]):
    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = SortedList(names)

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._names

    def add(self, name: str) -> None:
        """Adds a name that is not there yet."""
        self._names.add(name)

    def discard(self, name: str) -> None:
        """Removes a name, if it is there."""
        self._names.discard(name)

    def count(self, prefix: str) -> int:
        """How many begin so."""
        if not prefix:
            return len(self._names)
        # The first text behind all that begin so; there is none behind the last character there is.
        last = ord(prefix[-1])
        end = len(self._names) if last == _LAST else self._names.bisect_left(prefix[:-1] + chr(last + 1))
        found: int = end - self._names.bisect_left(prefix)
        return found

    def at(self, place: int) -> Iterator[str]:
        """The names from the one at a place on, counted from 0."""
        found: Iterator[str] = self._names.islice(place)
        return found

    def from_(self, name: str) -> Iterator[str]:
        """The names from this one on, or from where it would be."""
        found: Iterator[str] = self._names.irange(name)
        return found

    def behind(self, name: str) -> Iterator[str]:
        """The names behind this one, or behind where it would be."""
        found: Iterator[str] = self._names.irange(name, inclusive=(False, True))
        return found


# Totals over all topics, updated on every change, so that reading them costs the same with a million topics.
#
# An operator's gauges are read every few seconds for as long as a server runs. To add them up over all topics would
# stop the event loop for as long as that takes, each time. So whoever makes a topic come, go or change also says so
# here, and what changes a topic's number of live records adds the same difference to the sum: once for a batch, never
# for a record.
#
# Recovery puts topics together in its own ways and counts once, at its end.


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
        """Jobs leased to workers; the lease tables maintain it."""

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
