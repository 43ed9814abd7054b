"""Streams as lists tell of them: what a page needs to say, and no more, since it says it a hundred times.

Beyond `awake_topics` most streams of a page sleep. A list wakes nobody, and makes no topic of what it finds in the
snapshot either: of a stream that sleeps it reads four values, and everything else is as it must be for one to sleep.
"""

import msgspec

from topics.engine.streams.state import stream_of
from topics.engine.topic import Topic
from topics.formats.snapshot import TopicGlance
from topics.streams.contracts import contract_of


class ListedInfo(msgspec.Struct, frozen=True, gc=False):
    name: str
    created_ms: int
    deadline_ms: int | None
    epoch: int
    head: int
    sealed_through: int
    """The last entry, counted from 0, that is in a sealed segment; -1 when none is."""
    profile: str = "generic"


def listed_awake(topic: Topic) -> ListedInfo:
    state, sealed = stream_of(topic), sealed_through(topic)
    if state is None:
        return ListedInfo(topic.name, topic.created_ts, None, topic.epoch, topic.head, sealed)
    return ListedInfo(
        topic.name, topic.created_ts, state.deadline(topic), topic.epoch, topic.head, sealed,
        contract_of(topic).profile.kind,
    )  # fmt: skip


def listed_asleep(glance: TopicGlance) -> ListedInfo:
    """The same of one that sleeps: it has no segments (`Sleepers.entry`), no end and no profile (`may_sleep`)."""
    return ListedInfo(glance.name, glance.created_ts, None, glance.epoch, glance.head, -1)


def sealed_through(topic: Topic) -> int:
    segments = topic.segments
    return segments[-1].last_seq - 1 if segments else -1
