"""What every product still lacks of the sealed segments, kept from round to round, and how it becomes tasks.

Only topics that changed are looked at. A round takes as much as is sensible for the cluster it runs on; topics that
products put into the same files come next to each other, so that as few tasks as possible write into one of them.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from topics.log.catalog import CatalogSegment, CatalogTopic
from topics.spark.pipeline.products import ShutOut, Want
from topics.spark.pipeline.segment_scan import ChoreWork, Piece, SegmentWork
from topics.spark.segment_reader import GROUP_BYTES, Backlog, bucket_of

T = TypeVar("T")

ROUND_BYTES = 1024 * 1024 * 1024
COMMIT_BYTES = 256 * 1024 * 1024
TASK_BYTES_MIN = 1024 * 1024
"""Less than this is not worth a task of its own, nor files of its own."""
OPEN_BYTES = 16 * 1024
"""What it costs to open a segment or to begin a chore, in bytes that could be read meanwhile."""


class FrameRules(msgspec.Struct, frozen=True, kw_only=True):
    group_bytes: int = GROUP_BYTES
    """How much one task reads, about."""
    round_bytes: int = ROUND_BYTES
    """Segments beyond this wait for the next round, which sees a newer catalog. Large clusters take more."""
    commit_bytes: int = COMMIT_BYTES
    """A round with more than this publishes what it has each time that so much is done, while its job goes on."""

    def scaled(self, parallelism: int) -> "FrameRules":
        """For a cluster that does so many tasks at a time: each core has several of them between two commits."""
        return FrameRules(
            group_bytes=self.group_bytes,
            round_bytes=max(self.round_bytes, 8 * parallelism * self.group_bytes),
            commit_bytes=max(self.commit_bytes, 2 * parallelism * self.group_bytes),
        )


class _Lack(msgspec.Struct, frozen=True):
    wants: list[Want]
    oldest_ts: int


class TaskPacking:
    """By product and topic."""

    def __init__(self) -> None:
        self._lacks: dict[str, dict[int, _Lack]] = {}

    def note(self, product: str, topic: CatalogTopic, wants: list[Want]) -> None:
        lacks = self._lacks.setdefault(product, {})
        if wants:
            lacks[topic.topic_id] = _Lack(wants, _first_ts(topic, wants[0].ref.first_seq))
        else:
            lacks.pop(topic.topic_id, None)

    def keep(self, topics: Mapping[int, CatalogTopic]) -> None:
        """Forgets topics that were dropped."""
        for product, lacks in self._lacks.items():
            if not lacks.keys() <= topics.keys():
                self._lacks[product] = {key: lack for key, lack in lacks.items() if key in topics}

    def backlog(self, product: str | None = None) -> Backlog:
        """How far a product is behind, or all of them together: a segment counts once."""
        chosen = [self._lacks.get(product, {})] if product is not None else list(self._lacks.values())
        sizes = {
            (topic_id, want.ref.first_seq): want.ref.text_bytes
            for lacks in chosen
            for topic_id, lack in lacks.items()
            for want in lack.wants
        }
        oldest = min([lack.oldest_ts for lacks in chosen for lack in lacks.values()], default=None)
        return Backlog(len(sizes), sum(sizes.values()), oldest)

    def has_any(self, shut_out: Mapping[str, ShutOut]) -> bool:
        """Whether there is anything to be read, without a look at all of it."""
        return any(
            topic_id not in out.topics for product, out in shut_out.items() for topic_id in self._lacks.get(product, {})
        )

    def works(self, shut_out: Mapping[str, ShutOut], round_bytes: int) -> list[SegmentWork]:
        """What is to be read in a round, each segment once, ordered by where products put topics, then by seq.

        `shut_out` has an entry for every product that takes part.
        """
        by_segment: dict[tuple[int, str, int, int], list[tuple[str, Want]]] = {}
        for product, out in shut_out.items():
            for topic_id, lack in self._lacks.get(product, {}).items():
                if topic_id in out.topics:
                    continue
                name = lack.wants[0].ref.topic
                bucket = bucket_of(name)
                for want in lack.wants:
                    by_segment.setdefault((bucket, name, topic_id, want.ref.first_seq), []).append((product, want))
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
    """Tasks by bytes: enough for all cores where there is enough to do, none much longer than the others."""
    total = sum(_cost(work.text_bytes) for work in works) + sum(_cost(one.chore.bytes) for one in chores)
    target = min(group_bytes, max(-(-total // max(tasks_min, 1)), TASK_BYTES_MIN))
    pieces = [
        msgspec.structs.replace(blank, segments=group) for group in _groups(works, lambda work: work.text_bytes, target)
    ]
    pieces += [
        msgspec.structs.replace(blank, chores=group) for group in _groups(chores, lambda one: one.chore.bytes, target)
    ]
    return [msgspec.structs.replace(piece, charges=_charges(piece)) for piece in pieces]


def longest_first(pieces: Sequence[Piece], cores: int) -> list[Piece]:
    """The order in which tasks begin. A merge cannot be cut: one that began last would keep one core busy while all
    others wait. So the largest chores begin first, but on no more than half of the cores, as what is new waits, too."""
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


def _charges(piece: Piece) -> dict[str, bytes]:
    """Only those of products that the piece is for."""
    names = {name for work in piece.segments for name, _ in work.wants} | {one.product for one in piece.chores}
    return {name: charge for name, charge in piece.charges.items() if name in names}


def _cost(size: int) -> int:
    return size + OPEN_BYTES


def _first_ts(topic: CatalogTopic, first_seq: int) -> int:
    place = bisect_left(topic.segments, first_seq, key=_first_seq)
    return topic.segments[min(place, len(topic.segments) - 1)].first_ts


def _first_seq(segment: CatalogSegment) -> int:
    return segment.first_seq
