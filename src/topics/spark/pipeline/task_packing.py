"""Task packing: the missing segments of every product, kept from round to round and packed into tasks by bytes.

Only changed topics are updated. A round takes as much as the cluster can process; topics that products put into the
same files are neighbours, so that few tasks write files of one bucket.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from topics.log.catalog import CatalogSegment, CatalogTopic
from topics.spark.pipeline.products import QuarantinedSubjects, SegmentRequest
from topics.spark.pipeline.segment_scan import ChoreWork, Piece, SegmentWork
from topics.spark.segment_reader import GROUP_BYTES, Backlog, bucket_of

T = TypeVar("T")

ROUND_BYTES = 1024 * 1024 * 1024
COMMIT_BYTES = 256 * 1024 * 1024
TASK_BYTES_MIN = 1024 * 1024
"""A task with less than this is not worth its overhead and its files."""
OPEN_BYTES = 16 * 1024
"""The cost of opening a segment or starting a chore, in bytes that could be read meanwhile."""


class FrameRules(msgspec.Struct, frozen=True, kw_only=True):
    group_bytes: int = GROUP_BYTES
    """The approximate bytes that one task reads."""
    round_bytes: int = ROUND_BYTES
    """The bytes of a round; the rest waits for the next round, which sees a newer catalog. Large clusters take more."""
    commit_bytes: int = COMMIT_BYTES
    """A larger round publishes each time that so much is done, while its job runs."""

    def scaled(self, parallelism: int) -> "FrameRules":
        """The rules for a cluster with this parallelism: each core has several tasks between two commits."""
        return FrameRules(
            group_bytes=self.group_bytes,
            round_bytes=max(self.round_bytes, 8 * parallelism * self.group_bytes),
            commit_bytes=max(self.commit_bytes, 2 * parallelism * self.group_bytes),
        )


class _Missing(msgspec.Struct, frozen=True):
    requests: list[SegmentRequest]
    oldest_ts: int


class TaskPacking:
    """The missing segments by product and topic."""

    def __init__(self) -> None:
        self._missing: dict[str, dict[int, _Missing]] = {}

    def note(self, product: str, topic: CatalogTopic, requests: list[SegmentRequest]) -> None:
        missing = self._missing.setdefault(product, {})
        if requests:
            missing[topic.topic_id] = _Missing(requests, _first_ts(topic, requests[0].ref.first_seq))
        else:
            missing.pop(topic.topic_id, None)

    def retain(self, topics: Mapping[int, CatalogTopic]) -> None:
        """Forgets topics that were dropped."""
        for product, missing in self._missing.items():
            if not missing.keys() <= topics.keys():
                self._missing[product] = {key: entry for key, entry in missing.items() if key in topics}

    def backlog(self, product: str | None = None) -> Backlog:
        """The backlog of one product, or of all together: a segment counts once."""
        chosen = [self._missing.get(product, {})] if product is not None else list(self._missing.values())
        sizes = {
            (topic_id, request.ref.first_seq): (request.ref.text_bytes, request.ref.count)
            for missing in chosen
            for topic_id, entry in missing.items()
            for request in entry.requests
        }
        oldest = min([entry.oldest_ts for missing in chosen for entry in missing.values()], default=None)
        size, records = sum([size for size, _ in sizes.values()]), sum([count for _, count in sizes.values()])
        return Backlog(len(sizes), size, oldest, records)

    def has_any(self, quarantined: Mapping[str, QuarantinedSubjects]) -> bool:
        """Whether any segment is missing that is not quarantined."""
        return any(
            topic_id not in out.topics
            for product, out in quarantined.items()
            for topic_id in self._missing.get(product, {})
        )

    def works(self, quarantined: Mapping[str, QuarantinedSubjects], round_bytes: int) -> list[SegmentWork]:
        """The segments to read in a round, each once, ordered by bucket, topic and seq.

        `quarantined` has an entry for every active product.
        """
        by_segment: dict[tuple[int, str, int, int], list[tuple[str, SegmentRequest]]] = {}
        for product, out in quarantined.items():
            for topic_id, entry in self._missing.get(product, {}).items():
                if topic_id in out.topics:
                    continue
                name = entry.requests[0].ref.topic
                bucket = bucket_of(name)
                for request in entry.requests:
                    by_segment.setdefault((bucket, name, topic_id, request.ref.first_seq), []).append(
                        (product, request)
                    )
        works = [SegmentWork(by_segment[key]) for key in sorted(by_segment)]
        return first_of(works, round_bytes)


def first_of(works: Sequence[SegmentWork], round_bytes: int) -> list[SegmentWork]:
    chosen: list[SegmentWork] = []
    size = 0
    for work in works:
        size += _cost(work.text_bytes)
        if chosen and size > round_bytes:
            break
        chosen.append(work)
    return chosen


def packed(
    works: Sequence[SegmentWork], chores: Sequence[ChoreWork], blank: Piece, group_bytes: int, tasks_min: int
) -> list[Piece]:
    """Packs tasks by bytes: enough for all cores where there is enough work, and of similar length."""
    total = sum(_cost(work.text_bytes) for work in works) + sum(_cost(one.chore.bytes) for one in chores)
    target = min(group_bytes, max(-(-total // max(tasks_min, 1)), TASK_BYTES_MIN))
    pieces = [
        msgspec.structs.replace(blank, segments=group) for group in _groups(works, lambda work: work.text_bytes, target)
    ]
    pieces += [
        msgspec.structs.replace(blank, chores=group) for group in _groups(chores, lambda one: one.chore.bytes, target)
    ]
    return [msgspec.structs.replace(piece, task_contexts=_task_contexts(piece)) for piece in pieces]


def longest_first(pieces: Sequence[Piece], cores: int) -> list[Piece]:
    """The order in which tasks start. A merge cannot be split: started last it would keep one core busy while the
    others are idle. So the largest chores start first, on at most half of the cores, as new segments wait as well."""
    reading = [piece for piece in pieces if piece.segments]
    chores = sorted([piece for piece in pieces if not piece.segments], key=weight, reverse=True)
    return [*chores[: cores // 2], *reading, *chores[cores // 2 :]]


def weight(piece: Piece) -> int:
    return sum([work.text_bytes for work in piece.segments]) + sum([one.chore.bytes for one in piece.chores])


def _groups(things: Iterable[T], size_of: Callable[[T], int], target: int) -> list[list[T]]:
    groups: list[list[T]] = []
    size = 0
    for thing in things:
        if not groups or size >= target:
            groups.append([])
            size = 0
        groups[-1].append(thing)
        size += _cost(size_of(thing))
    return groups


def _task_contexts(piece: Piece) -> dict[str, bytes]:
    """The contexts of the products that a piece has work for."""
    names = {name for work in piece.segments for name, _ in work.requests} | {one.product for one in piece.chores}
    return {name: context for name, context in piece.task_contexts.items() if name in names}


def _cost(size: int) -> int:
    return size + OPEN_BYTES


def _first_ts(topic: CatalogTopic, first_seq: int) -> int:
    place = bisect_left(topic.segments, first_seq, key=_first_seq)
    return topic.segments[min(place, len(topic.segments) - 1)].first_ts


def _first_seq(segment: CatalogSegment) -> int:
    return segment.first_seq
