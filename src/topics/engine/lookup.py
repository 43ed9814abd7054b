"""Lookup of the seq to read from: by time, or a number of records before the end.

Times never fall within a topic, so a time is found by bisection: among segments, among the blocks of the tail, and in
the index of one segment.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter

import msgspec

from topics.engine.record_runs import Block, Run, RunReader, Segment, live_ranges
from topics.engine.topic import Topic
from topics.log.segment_files import SegmentKey, SegmentStore
from topics.model.records import TRAIT_TAGS
from topics.model.router_rules import TagMatch
from topics.wire.record_slicing import tag_texts

_last_ts = attrgetter("last_ts")
_ts = attrgetter("ts")


def seek_time(topic: Topic, reader: RunReader, since_ms: int) -> int:
    """The seq before the first record that is there and has this time or a later one; the head where there is none."""
    origin = topic.origin
    if origin is not None:
        hidden = origin.hidden_below()
        for holder, first, last in reversed(list(chain_of(topic))[1:]):
            found = max(_before_time(holder, reader, since_ms, first), hidden - 1)
            if found < last:
                return found
    return _before_time(topic, reader, since_ms, 1 if origin is None else origin.upto + 1)


def _before_time(topic: Topic, reader: RunReader, since_ms: int, first: int) -> int:
    """The seq before a topic's own first record of that time or later, but none below the one before `first`."""
    run = _first_run(topic, since_ms)
    if run is None:
        return topic.head
    return max(first - 1, run.first_seq + reader.before(topic.id, run, since_ms) - 1)


def chain_of(topic: Topic, first: int = 1, last: int | None = None) -> Iterator[tuple[Topic, int, int]]:
    """A topic and those it was forked from, the newest first, each with the first and last seq that is read of it:
    those that hold some of a range of seqs. Without a range, all that hold anything."""
    origin = topic.origin
    upto = topic.head if last is None else min(last, topic.head)
    if origin is None or origin.upto < upto or last is None:
        yield topic, origin.upto + 1 if origin is not None else 1, topic.head
    while origin is not None and first <= (upto := min(upto, origin.upto)):
        topic, end = origin.holder(upto)
        origin = topic.origin
        yield topic, origin.upto + 1 if origin is not None else 1, end


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
    hidden = topic.origin.hidden_below() if topic.origin is not None else 0
    for at, bottom, last in chain_of(topic):
        first = max(at.earliest, bottom, hidden if at is not topic else 0)
        for run in _backwards(at):
            low, high = max(first, run.first_seq), min(last, run.last_seq)
            if low > high:
                continue
            flags = reader.flags(at.id, run)
            for begin, end in reversed(live_ranges(flags, low - run.first_seq, high + 1 - run.first_seq)):
                if end - begin >= wanted:
                    return run.first_seq + end - wanted - 1
                wanted -= end - begin
    return None


def _backwards(topic: Topic) -> Iterator[Run]:
    yield from reversed(topic.tail)
    yield from reversed(topic.segments)


# Finding records by tag without reading the log.
#
# Sealed segments carry their tags sorted on disk. The tail is indexed here, and only for topics whose records are ever
# deleted by tag: the first such delete indexes the tail, later ones only what came since. Tags are compared as their
# JSON strings: the encoding is one to one and keeps prefixes, so nothing is decoded.

SeqRange = tuple[int, int]
"""First and last seq, both included."""

_encode = msgspec.json.Encoder().encode


def match_text(match: TagMatch) -> bytes:
    """The JSON string that a tag must equal or begin with."""
    text = _encode(match.pattern)
    return text[:-1] if match.prefix else text


class TailTags:
    """The tags of a topic's tail."""

    __slots__ = ("_by_tag", "_upto")

    def __init__(self) -> None:
        self._by_tag: dict[bytes, list[int]] = {}
        self._upto = 0

    def find(self, tail: list[Block], match: TagMatch) -> list[int]:
        for block in tail:
            if block.first_seq > self._upto:
                self._upto = block.last_seq
                collect_tags(block, block.first_seq, self._by_tag)
        return _lookup(self._by_tag, match)


def collect_tags(block: Block, first: int, into: dict[bytes, list[int]]) -> None:
    """Adds a block's tags to a map; its records are numbered from `first`."""
    if block.traits & TRAIT_TAGS:
        for index, text in tag_texts(block.view, 0, block.count):
            into.setdefault(text, []).append(first + index)


def _lookup(by_tag: dict[bytes, list[int]], match: TagMatch) -> list[int]:
    text = match_text(match)
    if not match.prefix:
        return by_tag.get(text, [])
    return [seq for tag, seqs in by_tag.items() if tag.startswith(text) for seq in seqs]


def find_in_memory(topic: Topic, match: TagMatch) -> list[int]:
    """Matching seqs in the tail and in segments whose files are not written yet."""
    if not isinstance(topic.tags, TailTags):
        topic.tags = TailTags()
    found = list(topic.tags.find(topic.tail, match))
    for segment in topic.segments:
        if segment.blocks is not None and segment.has_tags:
            by_tag: dict[bytes, list[int]] = {}
            for block in segment.blocks:
                collect_tags(block, block.first_seq, by_tag)
            found += _lookup(by_tag, match)
    return found


def find_on_disk(store: SegmentStore, topic_id: int, segments: Iterable[Segment], match: TagMatch) -> list[int]:
    """Matching seqs in sealed segments. Reads files only, so it may run on any thread."""
    text = match_text(match)
    found: list[int] = []
    for segment in segments:
        index = store.index(SegmentKey(topic_id, segment.first_seq, segment.cold))
        place = index.first_tag_from(text)
        while place < index.tag_count:
            tag = index.tag_at(place)
            if tag != text and not (match.prefix and tag.startswith(text)):
                break
            found += [segment.first_seq + posting for posting in index.postings_at(place)]
            place += 1
    return found


def as_ranges(seqs: Iterable[int], below: int) -> list[SeqRange]:
    """Seqs under a bound as ascending ranges, the form a delete is logged in."""
    ranges: list[SeqRange] = []
    first = last = -1
    for seq in sorted(seqs):
        if seq >= below:
            break
        if seq == last + 1 and first >= 0:
            last = seq
        elif seq != last:
            if first >= 0:
                ranges.append((first, last))
            first = last = seq
    if first >= 0:
        ranges.append((first, last))
    return ranges
