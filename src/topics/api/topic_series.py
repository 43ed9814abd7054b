"""The metrics that have a series for each topic: the only ones of which there may be thousands.

They are put together here. The library makes an object of each sample and sorts and escapes the labels of each, which
for a thousand queues stops the event loop for 30 ms; what it would write is written, some topics at a time
(`topics.api.scrapes`).
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from topics.api.v0.pages import allowed_prefixes
from topics.core.config import TopicType
from topics.engine.engine import Engine
from topics.engine.topic import Topic

TOPIC_SERIES_MAX = 1000
_TOPICS_A_PIECE = 250
_encode = msgspec.json.Encoder().encode
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class TopicSeries(NamedTuple):
    """A gauge with a value for each of some topics."""

    name: str
    text: str
    topics: Sequence[str]
    values: Sequence[int]

    def text_pieces(self) -> Iterator[bytes]:
        """The lines of Prometheus's text format."""
        name = self.name
        yield f"# HELP {name} {self.text}\n# TYPE {name} gauge\n".encode()
        for topics, values in self._some():
            yield "".join(
                [
                    f'{name}{{topic="{topic.translate(_ESCAPED)}"}} {float(value)!r}\n'
                    for topic, value in zip(topics, values, strict=True)
                ]
            ).encode()

    def json_pieces(self) -> Iterator[bytes]:
        """The samples as the elements of a list, as the library would have them."""
        comma, name = b"", self.name
        for topics, values in self._some():
            samples = [
                {"name": name, "labels": {"topic": topic}, "value": value}
                for topic, value in zip(topics, values, strict=True)
            ]
            yield comma + _encode(samples)[1:-1]
            comma = b","

    def _some(self) -> Iterator[tuple[Sequence[str], Sequence[int]]]:
        for first in range(0, len(self.topics), _TOPICS_A_PIECE):
            yield self.topics[first : first + _TOPICS_A_PIECE], self.values[first : first + _TOPICS_A_PIECE]


def are_truncated(engine: Engine, prefixes: tuple[str, ...] = ()) -> bool:
    """Whether there are more topics than get series, of those that a key with these prefixes may see."""
    return len(_first(engine, prefixes, TOPIC_SERIES_MAX + 1)) > TOPIC_SERIES_MAX


def _first(engine: Engine, prefixes: tuple[str, ...], count: int) -> list[Topic]:
    """The first topics by name, at the cost of those that are found. The server's own topics are nobody's to see."""
    core = engine.core
    names = chain.from_iterable(core.names_from(prefix, "") for prefix in allowed_prefixes("", prefixes))
    topics = (core.sleepers.look(name) for name in names)
    return list(islice((one for one in topics if one.guard is None or not one.guard.hides(one)), count))


def series_of(engine: Engine, prefixes: tuple[str, ...] = ()) -> list[TopicSeries]:
    """The series of the first topics, by name, that a key with these prefixes may see."""
    topics = _first(engine, prefixes, TOPIC_SERIES_MAX)
    names = [topic.name for topic in topics]
    queues = [topic for topic in topics if topic.config.type is TopicType.QUEUE]
    queue_names = [topic.name for topic in queues]
    jobs = [engine.queues.counters_of(topic) for topic in queues]
    dead = "Jobs moved to the dead letter topic."
    return [
        TopicSeries("topics_topic_head_seq", "Highest assigned seq.", names, [t.head for t in topics]),
        TopicSeries("topics_topic_earliest_seq", "First live seq.", names, [t.earliest for t in topics]),
        TopicSeries("topics_topic_records_live", "Live records.", names, [t.live_count for t in topics]),
        TopicSeries("topics_topic_bytes_live", "Live payload bytes.", names, [t.live_bytes for t in topics]),
        TopicSeries("topics_topic_queue_ready", "Jobs that can be claimed.", queue_names, [j.ready for j in jobs]),
        TopicSeries("topics_topic_queue_in_flight", "Jobs held by workers.", queue_names, [j.in_flight for j in jobs]),
        TopicSeries("topics_topic_queue_delayed", "Jobs held back for now.", queue_names, [j.delayed for j in jobs]),
        TopicSeries("topics_topic_queue_dead_lettered", dead, queue_names, [j.dead_lettered for j in jobs]),
    ]


def as_text(series: Sequence[TopicSeries]) -> Iterator[bytes]:
    """The lines of Prometheus's text format, piece by piece."""
    return chain.from_iterable(one.text_pieces() for one in series)
