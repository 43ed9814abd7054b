"""Finds where to begin to read: at a time, or so many records before the end.

Times never fall within a topic, so a time is found by bisection: among segments, among the blocks of the tail, and in
the index of one segment.
"""

from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter

from topics.engine.state.runs import Run, RunReader, live_ranges
from topics.engine.topic import Topic

_last_ts = attrgetter("last_ts")
_ts = attrgetter("ts")


def seek_time(topic: Topic, reader: RunReader, since_ms: int) -> int:
    """The seq before the first record that is there and has this time or a later one; the head where there is none."""
    origin = topic.origin
    if origin is not None and origin.topic is not None:
        found = max(seek_time(origin.topic, reader, since_ms), origin.below - 1)
        if found < origin.upto:
            return found
    run = _first_run(topic, since_ms)
    if run is None:
        return topic.head
    inherited = 0 if origin is None else origin.upto
    return max(inherited, run.first_seq + reader.before(topic.id, run, since_ms) - 1)


def _first_run(topic: Topic, since_ms: int) -> Run | None:
    """The first run with a record of that time or later."""
    segments, tail = topic.segments, topic.tail
    place = bisect_left(segments, since_ms, key=_last_ts)
    if place < len(segments):
        return segments[place]
    place = bisect_left(tail, since_ms, key=_ts)
    return tail[place] if place < len(tail) else None


def seek_last(topic: Topic, reader: RunReader, wanted: int) -> int | None:
    """The seq before the last so many live records; None where there are not so many."""
    last, at = topic.head, topic
    first = at.earliest
    while True:
        for run in _backwards(at):
            low, high = max(first, run.first_seq), min(last, run.last_seq)
            if low > high:
                continue
            flags = reader.flags(at.id, run)
            for begin, end in reversed(live_ranges(flags, low - run.first_seq, high + 1 - run.first_seq)):
                if end - begin >= wanted:
                    return run.first_seq + end - wanted - 1
                wanted -= end - begin
        origin = at.origin
        if origin is None or origin.topic is None:
            return None
        last, at = min(last, origin.upto), origin.topic
        first = max(at.earliest, origin.below)


def _backwards(topic: Topic) -> Iterator[Run]:
    yield from reversed(topic.tail)
    yield from reversed(topic.segments)
