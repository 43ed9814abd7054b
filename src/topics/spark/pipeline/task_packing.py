"""Task packing: the missing segments of every product, kept from round to round and packed into tasks by cost.

Only changed topics are updated. A round takes as much as the cluster can process; topics that products put into the
same files are neighbours, so that few tasks write files of one bucket. A task has about the same cost as the others, so
that a job does not wait for one of them: the cost of a segment is that of reading it and of each product that needs it,
by bytes and records. Memory limits the bytes of a task, whatever they cost.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import msgspec

from topics.log.catalog import CatalogSegment, CatalogTopic
from topics.spark.pipeline.products import ARCHIVED, CatalogView, Cost, QuarantinedSubjects, SegmentRequest
from topics.spark.pipeline.segment_scan import ChoreWork, Piece, SegmentWork
from topics.spark.segment_reader import GROUP_BYTES, Backlog, bucket_of

T = TypeVar("T")

ROUND_BYTES = 1024 * 1024 * 1024
COMMIT_BYTES = 256 * 1024 * 1024
TASK_COST_MIN = 4 * 1024 * 1024
"""A task with less than this is not worth its overhead and its files."""
OPEN_BYTES = 16 * 1024
"""The memory of an open segment or a chore beside its text."""
OPEN_COST = 96 * 1024
"""The cost of opening a segment or starting a chore. Costs are in bytes of text that are archived meanwhile."""


NO_COSTS: Mapping[str, Cost] = MappingProxyType({})
"""Every product costs as much as the archive."""


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


class _Missing(msgspec.Struct, frozen=True, gc=False):
    """How much of a topic a product is missing. The segments are listed for a round alone: there may be millions."""

    segments: int
    bytes: int
    records: int
    oldest_ts: int
    order: tuple[int, str]
    """The bucket and the name of the topic."""


class TaskPacking:
    """The missing segments by product and topic."""

    def __init__(self) -> None:
        self._missing: dict[str, dict[int, _Missing]] = {}

    def note(self, product: str, topic: CatalogTopic, requests: list[SegmentRequest]) -> None:
        missing = self._missing.setdefault(product, {})
        if not requests:
            missing.pop(topic.topic_id, None)
            return
        # A segment is requested several times where a file was lost and its neighbours were not.
        sizes = {request.ref.first_seq: (request.ref.text_bytes, request.ref.count) for request in requests}
        missing[topic.topic_id] = _Missing(
            len(sizes), sum([size for size, _ in sizes.values()]), sum([count for _, count in sizes.values()]),
            _first_ts(topic, requests[0].ref.first_seq), (bucket_of(topic.name), topic.name),
        )  # fmt: skip

    def drop(self, view: CatalogView) -> None:
        """Forgets topics that were dropped."""
        for missing in self._missing.values():
            for topic_id in view.dropped(missing.keys()):
                del missing[topic_id]

    def backlog(self, product: str | None = None) -> Backlog:
        """The backlog of one product, or of all together: of a topic that of the product that is furthest behind."""
        chosen = [self._missing.get(product, {})] if product is not None else list(self._missing.values())
        most: dict[int, _Missing] = {}
        for missing in chosen:
            for topic_id, entry in missing.items():
                known = most.get(topic_id)
                most[topic_id] = entry if known is None or known.segments < entry.segments else known
        oldest = min([entry.oldest_ts for missing in chosen for entry in missing.values()], default=None)
        return Backlog(
            sum([one.segments for one in most.values()]), sum([one.bytes for one in most.values()]), oldest,
            sum([one.records for one in most.values()]),
        )  # fmt: skip

    def has_any(self, quarantined: Mapping[str, QuarantinedSubjects]) -> bool:
        """Whether any segment is missing that is not quarantined."""
        return any(
            topic_id not in out.topics
            for product, out in quarantined.items()
            for topic_id in self._missing.get(product, {})
        )

    def works(
        self,
        quarantined: Mapping[str, QuarantinedSubjects],
        topics: Mapping[int, CatalogTopic],
        missing_of: Mapping[str, Callable[[CatalogTopic], list[SegmentRequest]]],
        round_bytes: int,
    ) -> list[SegmentWork]:
        """The segments to read in a round, each once, ordered by bucket, topic and seq.

        `quarantined` has an entry for every active product, `missing_of` what lists the segments of a topic for it.
        """
        order: dict[int, tuple[int, str]] = {}
        for product, out in quarantined.items():
            missing = self._missing.get(product, {})
            order.update({topic_id: entry.order for topic_id, entry in missing.items() if topic_id not in out.topics})
        works: list[SegmentWork] = []
        size = 0
        for topic_id in sorted(order, key=lambda topic_id: (order[topic_id], topic_id)):
            by_segment: dict[int, list[tuple[str, SegmentRequest]]] = {}
            for product, out in quarantined.items():
                if topic_id in self._missing.get(product, {}) and topic_id not in out.topics:
                    for request in missing_of[product](topics[topic_id]):
                        by_segment.setdefault(request.ref.first_seq, []).append((product, request))
            works += [SegmentWork(by_segment[first]) for first in sorted(by_segment)]
            size += sum([requests[0][1].ref.text_bytes + OPEN_BYTES for requests in by_segment.values()])
            if size > round_bytes:
                break
        return first_of(works, round_bytes)


def first_of(works: Sequence[SegmentWork], round_bytes: int) -> list[SegmentWork]:
    chosen: list[SegmentWork] = []
    size = 0
    for work in works:
        size += work.text_bytes + OPEN_BYTES
        if chosen and size > round_bytes:
            break
        chosen.append(work)
    return chosen


def packed(
    works: Sequence[SegmentWork],
    chores: Sequence[ChoreWork],
    blank: Piece,
    group_bytes: int,
    tasks_min: int,
    costs: Mapping[str, Cost] = NO_COSTS,
) -> list[Piece]:
    """Packs tasks by cost: enough for all cores where there is enough work, and of similar length."""
    read = [(work, work.text_bytes, segment_cost(work, costs)) for work in works]
    other = [(work, work.chore.bytes, OPEN_COST + work.chore.cost) for work in chores]
    total = sum([cost for _, _, cost in read]) + sum([cost for _, _, cost in other])
    target = max(-(-total // max(tasks_min, 1)), TASK_COST_MIN)
    pieces = [msgspec.structs.replace(blank, segments=group) for group in _groups(read, group_bytes, target)]
    pieces += [msgspec.structs.replace(blank, chores=group) for group in _groups(other, group_bytes, target)]
    return [msgspec.structs.replace(piece, task_contexts=_task_contexts(piece)) for piece in pieces]


def segment_cost(work: SegmentWork, costs: Mapping[str, Cost]) -> int:
    """The cost of a segment for all products that need it."""
    size, count, cost = work.text_bytes, work.requests[0][1].ref.count, float(OPEN_COST)
    for name, _ in work.requests:
        product = costs.get(name, ARCHIVED)
        cost += product.a_byte * size + product.a_record * count
    return int(cost)


def longest_first(pieces: Sequence[Piece], cores: int) -> list[Piece]:
    """The order in which tasks start. A merge cannot be split: started last it would keep one core busy while the
    others are idle. So the most expensive chores start first, on at most half of the cores, as new segments wait as
    well."""
    reading = [piece for piece in pieces if piece.segments]
    chores = sorted([piece for piece in pieces if not piece.segments], key=_chore_cost, reverse=True)
    return [*chores[: cores // 2], *reading, *chores[cores // 2 :]]


def _chore_cost(piece: Piece) -> int:
    return sum([one.chore.cost for one in piece.chores])


def weight(piece: Piece) -> int:
    return sum([work.text_bytes for work in piece.segments]) + sum([one.chore.bytes for one in piece.chores])


def _groups(things: Iterable[tuple[T, int, int]], group_bytes: int, target: int) -> list[list[T]]:
    """Consecutive things, with their bytes and costs, in groups of about the target cost."""
    groups: list[list[T]] = []
    size = cost = 0
    for thing, its_size, its_cost in things:
        # A group ends where that is nearer to the target than with one more.
        if not groups or size >= group_bytes or cost + its_cost // 2 > target:
            groups.append([])
            size = cost = 0
        groups[-1].append(thing)
        size += its_size + OPEN_BYTES
        cost += its_cost
    return groups


def _task_contexts(piece: Piece) -> dict[str, bytes]:
    """The contexts of the products that a piece has work for."""
    names = {name for work in piece.segments for name, _ in work.requests} | {one.product for one in piece.chores}
    return {name: context for name, context in piece.task_contexts.items() if name in names}


def _first_ts(topic: CatalogTopic, first_seq: int) -> int:
    place = bisect_left(topic.segments, first_seq, key=_first_seq)
    return topic.segments[min(place, len(topic.segments) - 1)].first_ts


def _first_seq(segment: CatalogSegment) -> int:
    return segment.first_seq
