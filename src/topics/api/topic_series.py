"""The metrics that have a series for each topic: the only ones of which there may be thousands.

As text they are put together here. The library makes an object of each sample and sorts and escapes the labels of each,
which for a thousand queues stops the event loop for 30 ms; what it would write is written, line by line.
"""

from collections.abc import Sequence
from itertools import chain, islice
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from topics.api.v0.pages import allowed_prefixes
from topics.core.config import TopicType
from topics.engine import Engine
from topics.engine.topic import Topic

TOPIC_SERIES_MAX = 1000
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class TopicSeries(NamedTuple):
    """A gauge with a value for each of some topics."""

    name: str
    text: str
    topics: Sequence[str]
    values: Sequence[int]

    def metric(self) -> Metric:
        family = GaugeMetricFamily(self.name, self.text, labels=["topic"])
        for topic, value in zip(self.topics, self.values, strict=True):
            family.add_metric([topic], value)
        return family

    def lines(self, labels: dict[str, str]) -> str:
        """The series as Prometheus's text; `labels` has each topic's name as it is written there."""
        name = self.name
        samples = [
            f'{name}{{topic="{labels[topic]}"}} {float(value)!r}\n'
            for topic, value in zip(self.topics, self.values, strict=True)
        ]
        return f"# HELP {name} {self.text}\n# TYPE {name} gauge\n" + "".join(samples)


def are_truncated(engine: Engine, prefixes: tuple[str, ...] = ()) -> bool:
    """Whether there are more topics than get series, of those that a key with these prefixes may see."""
    return len(_first(engine, prefixes, TOPIC_SERIES_MAX + 1)) > TOPIC_SERIES_MAX


def _first(engine: Engine, prefixes: tuple[str, ...], count: int) -> list[Topic]:
    """The first topics by name, at the cost of those that are found. The server's own topics are nobody's to see."""
    core = engine.core
    names = chain.from_iterable(core.names_from(prefix, "") for prefix in allowed_prefixes("", prefixes))
    topics = (core.by_name[name] for name in names)
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


def as_text(series: Sequence[TopicSeries]) -> bytes:
    """The lines of Prometheus's text format."""
    labels = {topic: topic.translate(_ESCAPED) for one in series for topic in one.topics}
    return "".join([one.lines(labels) for one in series]).encode()
