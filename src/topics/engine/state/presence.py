"""What of a topic's seqs is still there, also of those that it inherits from another one."""

from topics.engine.state.runs import Segment
from topics.engine.topic import Topic
from topics.formats.segment import DELETED


def removed_count(topic: Topic) -> int:
    """How many seqs stand for nothing any more: deleted, acknowledged, taken by a cap or by time, or lost.

    It is 0 while nothing is gone, and never the same before and after something went. Of a source everything counts,
    whether it is inherited or not: this tells that something changed, not what.
    """
    gone, origin = topic.head - topic.live_count, topic.origin
    if origin is None:
        return gone
    gone += max(origin.below - 1, 0) - origin.upto
    return gone if origin.topic is None else gone + removed_count(origin.topic)


def is_whole(topic: Topic, first: int, last: int) -> bool:
    """Whether every record of a range is certainly there.

    Where that could only be told by reading flags from a file the answer is no.
    """
    origin = topic.origin
    if origin is not None and first <= origin.upto:
        upto = min(last, origin.upto)
        if origin.topic is None or first < origin.below or not is_whole(origin.topic, first, upto):
            return False
        first = upto + 1
    if first > last:
        return True
    if topic.origin is None and topic.head == topic.live_count:
        return last <= topic.head
    return topic.earliest <= first and _runs_are_whole(topic, first, last)


def _runs_are_whole(topic: Topic, first: int, last: int) -> bool:
    for run in topic.runs_from(first):
        if run.first_seq > first:
            return False
        if run.flags is not None:
            if run.flags.find(DELETED, first - run.first_seq, last + 1 - run.first_seq) >= 0:
                return False
        elif isinstance(run, Segment) and run.marked:
            return False
        first = run.last_seq + 1
        if first > last:
            return True
    return False
