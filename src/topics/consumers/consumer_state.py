"""State of named consumers: the cursors that readers of a topic committed under a name, also known as offsets.

A consumer is a name within a topic and the seq up to which it has processed the records. The cursor of a read stays
with its client unless the client commits it here. Records do not refer to consumers: a commit is one small frame of the
topic, and a read is an ordinary read that begins after the committed seq.

    CONSUMER   msgpack of `ConsumerMark`: the whole state of one consumer, or that it was deleted

A mark is absolute, so applying it again changes nothing. A crash leaves the old or the new mark. The consumers of a
topic are in its snapshot under the name `consumers`, as the msgpack of a list of marks. They are deleted with their
topic: a later topic of the same name has none, by which a client detects that its topic was recreated.
"""

from collections.abc import Iterator, Mapping

import msgspec

from topics.engine.apply import Applier
from topics.engine.features import Rebuild
from topics.engine.quotas import SortedNames
from topics.engine.topic import Topic
from topics.log.frame import Frame, FrameKind

PART_NAME = "consumers"
CONSUMER_BYTES = 600
"""Memory of a consumer besides its names: the mark, its numbers, and its entries in dicts."""


class ConsumerMark(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A consumer in the form of the log."""

    name: str
    seq: int
    """The committed cursor: everything up to it is processed."""
    created_ms: int
    committed_ms: int = 0
    """The time of the last commit; 0 before the first one."""
    committed_by: str = ""
    """The name of the key that committed."""
    deleted: bool = False


encode_mark = msgspec.msgpack.Encoder().encode
decode_mark = msgspec.msgpack.Decoder(ConsumerMark).decode
decode_part = msgspec.msgpack.Decoder(list[ConsumerMark]).decode


class TopicConsumers:
    """The consumers of one topic."""

    __slots__ = ("_lowest", "gave_up", "marks", "memory_bytes", "staged")

    def __init__(self) -> None:
        self.marks: dict[str, ConsumerMark] = {}
        """The published state, by name."""
        self.staged: dict[str, ConsumerMark] = {}
        """The newest mark in flight, by name: later decisions build on it."""
        self.memory_bytes = 0
        """Counted by `engine.quotas.KeptMemory`."""
        self.gave_up = False
        """Whether retention evicts records that a consumer has not committed (`retain_for_consumers`)."""
        self._lowest: int | None = None

    def newest(self, name: str) -> ConsumerMark | None:
        """Returns a consumer after all operations in flight; None if it does not exist."""
        mark = self.staged.get(name) or self.marks.get(name)
        return None if mark is None or mark.deleted else mark

    def count(self) -> int:
        """The number of consumers after all operations in flight."""
        if not self.staged:
            return len(self.marks)
        return len(self.marks.keys() | self.staged.keys()) - sum([mark.deleted for mark in self.staged.values()])

    def apply(self, mark: ConsumerMark) -> None:
        self._lowest = None
        before = self.marks.pop(mark.name, None)
        if before is not None:
            self.memory_bytes -= _size_of(before)
        if not mark.deleted:
            self.marks[mark.name] = mark
            self.memory_bytes += _size_of(mark)

    def lowest(self) -> int | None:
        """The lowest committed cursor; None without consumers."""
        if self._lowest is None:
            self._lowest = min([mark.seq for mark in self.marks.values()], default=None)
        return self._lowest


def _size_of(mark: ConsumerMark) -> int:
    return CONSUMER_BYTES + len(mark.name) + len(mark.committed_by)


def consumers_of(topic: Topic) -> TopicConsumers | None:
    """The consumers of a topic, if it ever had one."""
    return topic.parts.get(PART_NAME) if topic.parts is not None else None  # type: ignore[return-value]


class ConsumerFeature:
    """Implements `engine.features.Feature` for consumers, and has the index of topics with consumers."""

    name = PART_NAME
    kinds = frozenset((FrameKind.CONSUMER,))

    def __init__(self, topics: Mapping[int, Topic], applier: Applier) -> None:
        self._topics = topics
        self._applier = applier
        self._indexed: dict[str, Topic] = {}
        self._names = SortedNames()
        self.count = 0
        """Consumers of all topics."""
        self.recovered = False
        """Whether recovery has ended, so that changes are reported."""

    def replay(self, topic: Topic, frame: Frame, rebuild: Rebuild) -> None:
        if self.recovered:
            self.apply(topic, decode_mark(frame.body))
            return
        self.of(topic).apply(decode_mark(frame.body))
        self._release(topic)

    def save(self, topic: Topic) -> bytes:
        consumers = consumers_of(topic)
        return encode_mark(list(consumers.marks.values())) if consumers is not None and consumers.marks else b""

    def load(self, topic: Topic, part: bytes) -> None:
        for mark in decode_part(part):
            self.of(topic).apply(mark)

    def reconcile(self) -> None:
        """Indexes the topics after recovery."""
        self.recovered = True
        for topic in self._topics.values():
            consumers = consumers_of(topic)
            if consumers is not None:
                self._index(topic, len(consumers.marks), len(consumers.marks))

    def may_page_out(self, topic: Topic) -> bool:
        """Lists over all topics examine every consumer."""
        consumers = consumers_of(topic)
        return consumers is None or not (consumers.marks or consumers.staged)

    def of(self, topic: Topic) -> TopicConsumers:
        """Returns the consumers of a topic; created with the first one."""
        consumers = consumers_of(topic)
        if consumers is None:
            consumers = TopicConsumers()
            if topic.parts is None:
                topic.parts = {}
            topic.parts[PART_NAME] = consumers
        return consumers

    def apply(self, topic: Topic, mark: ConsumerMark) -> None:
        """Applies a mark to a topic that exists."""
        consumers = self.of(topic)
        before = len(consumers.marks)
        consumers.apply(mark)
        lowest = consumers.lowest()
        if consumers.gave_up and (lowest is None or lowest + 1 >= topic.earliest):
            consumers.gave_up = False
        self._index(topic, len(consumers.marks), len(consumers.marks) - before)
        self._release(topic)

    def _release(self, topic: Topic) -> None:
        """Evicts records that were retained for consumers only and are committed."""
        if topic.config.retain_for_consumers:
            self._applier.enforce_caps(topic)

    def forget(self, topic: Topic) -> None:
        """Called when the topic was deleted."""
        consumers = consumers_of(topic)
        if consumers is not None and self._indexed.get(topic.name) is topic:
            self._index(topic, 0, -len(consumers.marks))

    def topics_from(self, prefix: str, after: str = "") -> Iterator[Topic]:
        """Yields the topics with consumers and this prefix, by name, from `after` on."""
        for name in self._names.from_(max(prefix, after)):
            if not name.startswith(prefix):
                return
            yield self._indexed[name]

    def _index(self, topic: Topic, count: int, change: int) -> None:
        self.count += change
        if count:
            if topic.name not in self._indexed:
                self._names.add(topic.name)
            self._indexed[topic.name] = topic
        elif self._indexed.get(topic.name) is topic:
            del self._indexed[topic.name]
            self._names.discard(topic.name)
