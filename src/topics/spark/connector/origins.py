"""Who is asked where topics stand: a server over HTTP, or the catalog beside the segments."""

import fnmatch
from typing import Protocol

import msgspec

from topics.client import Client, TopicNotFound
from topics.spark.connector.loss import Losses
from topics.spark.connector.options import Access, ReadOptions
from topics.spark.segments import load_catalog
from topics.storage.posix import PosixFileSystem


class Position(msgspec.Struct, frozen=True):
    """A topic's ends."""

    topic: str
    epoch: int
    earliest: int
    """The first live seq."""
    head: int
    """The last seq that can be read."""


class Origin(Protocol):
    def positions(self, options: ReadOptions) -> dict[str, Position]:
        """The topics that are wanted and there, by name."""
        ...

    def first_at(self, position: Position, ts: int) -> int:
        """A cursor behind which everything from a moment on lies; it may lie further back than it had to."""
        ...

    def report(self, topic: str, after: int, to: int, losses: Losses) -> None:
        """Tells what is already lost between two cursors."""
        ...


class HttpOrigin:
    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = url
        self._api_key = api_key

    def positions(self, options: ReadOptions) -> dict[str, Position]:
        with Client(self._url, api_key=self._api_key) as client:
            names = list(options.topics)
            if not names:
                prefix = options.pattern.split("*")[0].split("?")[0].split("[")[0]
                found = [summary.topic for summary in client.all_topics(prefix)]
                names = [name for name in found if fnmatch.fnmatchcase(name, options.pattern)]
            positions = {}
            for name in names:
                try:
                    state = client.get_topic(name)
                except TopicNotFound:
                    continue
                positions[name] = Position(name, state.epoch, state.earliest_seq, state.head_seq)
            return positions

    def first_at(self, position: Position, ts: int) -> int:
        """Halves the topic until the first record from `ts` on is found: times never go back along a topic."""
        low, high = position.earliest - 1, position.head
        with Client(self._url, api_key=self._api_key) as client:
            while low < high:
                middle = (low + high) // 2
                answer = client.diff(position.topic, middle, limit=1, include_meta=False)
                if answer.records and answer.records[0].ts < ts:
                    low = max(answer.records[0].seq, middle + 1)
                else:
                    high = middle
        return min(low, position.head)

    def report(self, topic: str, after: int, to: int, losses: Losses) -> None:
        with Client(self._url, api_key=self._api_key) as client:
            gap = client.diff(topic, after, limit=1, include_meta=False).tombstone
        if gap is not None and gap.gap_from <= to:
            losses.met(topic, gap.gap_from, min(gap.gap_to, to), gap.reason)


class SegmentOrigin:
    """Knows what is sealed and nothing else: the end of a topic is the end of its last segment."""

    def __init__(self, access: Access) -> None:
        layout = access.layout
        assert layout is not None
        self._layout = layout

    def positions(self, options: ReadOptions) -> dict[str, Position]:
        catalog = load_catalog(PosixFileSystem(), self._layout)
        return {
            topic.name: Position(
                topic.name, topic.epoch, topic.earliest, topic.segments[-1].last_seq if topic.segments else 0
            )
            for topic in catalog.topics
            if options.wants(topic.name)
        }

    def first_at(self, position: Position, ts: int) -> int:
        topic = load_catalog(PosixFileSystem(), self._layout).by_name().get(position.topic)
        for segment in topic.segments if topic is not None else ():
            if segment.last_ts >= ts:
                return max(segment.first_seq, position.earliest) - 1
        return position.head

    def report(self, topic: str, after: int, to: int, losses: Losses) -> None:
        known = load_catalog(PosixFileSystem(), self._layout).by_name().get(topic)
        if known is None:
            return
        if after + 1 < known.evict_floor:
            losses.met(topic, after + 1, min(known.evict_floor - 1, to), "cap or ttl")
        for first, last in known.lost:
            if first <= to and last > after:
                losses.met(topic, max(first, after + 1), min(last, to), "crash or corrupt")


def origin_of(access: Access) -> Origin:
    url = access.http
    return HttpOrigin(url, access.api_key) if url is not None else SegmentOrigin(access)
