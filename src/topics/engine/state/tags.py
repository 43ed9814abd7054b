"""Finding records by tag without reading the log.

Sealed segments carry their tags sorted on disk. The tail is indexed here, and only for topics whose records are ever
deleted by tag: the first such delete indexes the tail, later ones only what came since. Tags are compared as their
JSON strings: the encoding is one to one and keeps prefixes, so nothing is decoded.
"""

from collections.abc import Iterable

import msgspec

from topics.core.rows import TRAIT_TAGS
from topics.core.selectors import TagMatch
from topics.engine.state.runs import Block, Segment
from topics.engine.topic import Topic
from topics.storage.segments import SegmentKey, SegmentStore
from topics.wire.cuts import tag_texts

SeqRange = tuple[int, int]
"""First and last seq, both included."""

_encode = msgspec.json.Encoder().encode


def match_text(match: TagMatch) -> bytes:
    """What a tag's JSON string must be, or begin with."""
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
