"""How far a topic may give out seqs before the disk knows of it.

Class `disk` shows a record before it is synced, and class `ephemeral` never logs one. If a crash then took the topic
back to the head that the disk knows, a seq that somebody has seen would be given to another record. So every seq that
is shown lies below a *ceiling*, and after a crash the topic goes on above it.

| what the disk holds | the ceiling that follows from it |
|---|---|
| the topic's creation, or a change of its config | its head then, and `reserve` seqs more |
| a snapshot with its head | that head, and as many more |
| a CEILING frame | what the frame says |

The first two cost nothing: whoever recovers adds the reserve himself (`engine.last_run` says how large it was). So a
topic always has room for what comes first, and nobody waits for it. A topic that uses its room up is given more by a
frame, in the background, when half of it is left; the faster it comes back for more, the more it gets. Only one that
outruns even that, by a burst of more records than the reserve within one sync of the disk, waits for the sync: a seq
given out twice would be worse.
"""

from topics.core.durability import Durability
from topics.engine.topic import Topic

_RESERVE_MAX = 1 << 20
_QUICK_MS = 1000


def needs_ceiling(durability: Durability) -> bool:
    return durability.reserves_seqs or not durability.logged


def grant(topic: Topic, reserve: int) -> None:
    """The disk knows the topic's head, or will before anything more is shown."""
    if needs_ceiling(topic.config.durability):
        topic.ceiling = max(topic.ceiling, topic.head + reserve)
        topic.ceiling_staged = max(topic.ceiling_staged, topic.ceiling)
        topic.reserve = max(topic.reserve, reserve)


def next_ceiling(topic: Topic, last: int, now: int, reserve: int) -> int:
    """Stages a higher ceiling. A quiet topic gets little, because a crash leaves the rest as a hole."""
    quick = now - topic.reserved_at < _QUICK_MS
    topic.reserve = max(min(topic.reserve * 2, _RESERVE_MAX) if quick else 0, reserve)
    topic.reserved_at = now
    topic.ceiling_staged = last + topic.reserve
    return topic.ceiling_staged
