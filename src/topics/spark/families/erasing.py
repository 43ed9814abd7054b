"""What was deleted leaves companions within a bound: a file that knows entries which are gone is made again in time.

How much of a range is gone is counted by the catalog, and noted for a file when it is made. The count only grows, so a
greater one says that something has gone since; it never says so too late, and may once too often.
"""

from collections.abc import Iterator

import msgspec

from topics.formats.catalog import CatalogSegment, CatalogTopic
from topics.spark.deadlines import is_over
from topics.spark.segments import SEQ_MAX, SegmentRef
from topics.storage.companions import CompanionFile, FamilyManifest

PIECE_BYTES = 64 << 20
"""So much text becomes one companion; ordinary merges put them together again."""


class Rewrite(msgspec.Struct, frozen=True, tag="rewrite"):
    """A file that is to be made again, of what is left of its segments."""

    topic_id: int
    topic: str
    epoch: int
    generation: str
    contract: bytes
    file: CompanionFile
    refs: tuple[SegmentRef, ...]

    @property
    def bytes(self) -> int:
        return sum(ref.text_bytes for ref in self.refs)


def gone_of(topic: CatalogTopic, first: int, last: int) -> int:
    """How many entries of a range are gone. Where the first live entry lies in a segment with deletes some are counted
    twice, which only makes the count greater."""
    left = 0
    for segment in within(topic, first, last):
        left += segment.last_seq - max(segment.first_seq, topic.earliest) + 1 - segment.marked
    return last - first + 1 - left


def within(topic: CatalogTopic, first: int, last: int) -> Iterator[CatalogSegment]:
    """The segments that have live entries of a range."""
    for segment in topic.segments:
        if segment.first_seq <= last and segment.last_seq >= max(first, topic.earliest):
            yield segment


def known_gone(file: CompanionFile) -> int:
    """How much was gone when a file was made. Those of an earlier version have only what they do not hold."""
    return file.last - file.first + 1 - file.rows if file.gone is None else file.gone


def noted(manifest: FamilyManifest, topic: CatalogTopic, now_ms: int) -> tuple[CompanionFile, ...]:
    """The files, each with the moment since when it is known to hold what is gone."""
    return tuple(_noted(file, topic, now_ms) for file in manifest.files)


def _noted(file: CompanionFile, topic: CatalogTopic, now_ms: int) -> CompanionFile:
    if file.spoiled_ms is not None or gone_of(topic, file.first, file.last) <= known_gone(file):
        return file
    return msgspec.structs.replace(file, spoiled_ms=now_ms)


def due_ms(manifest: FamilyManifest, erase_ms: int) -> int | None:
    """When the first file of a stream has to be made again; None where none holds anything that is gone."""
    moments = [file.spoiled_ms + erase_ms for file in manifest.of(manifest.generation) if file.spoiled_ms is not None]
    return min(moments, default=None)


def rewrites(manifest: FamilyManifest, topic: CatalogTopic, erase_ms: int, now_ms: int) -> Iterator[Rewrite]:
    for file in manifest.of(manifest.generation):
        if file.spoiled_ms is not None and is_over(file.spoiled_ms, erase_ms, now_ms):
            refs = tuple(ref_of(topic, segment) for segment in within(topic, file.first, file.last))
            yield Rewrite(
                manifest.topic_id, manifest.topic, manifest.epoch, manifest.generation, topic.contract, file, refs
            )


def ref_of(topic: CatalogTopic, segment: CatalogSegment) -> SegmentRef:
    return SegmentRef(
        topic.name, topic.topic_id, topic.epoch, segment.first_seq, segment.count, segment.text_bytes, segment.cold,
        max(segment.first_seq, topic.earliest), segment.last_seq, 0, SEQ_MAX,
    )  # fmt: skip


def pieces(refs: tuple[SegmentRef, ...]) -> Iterator[tuple[SegmentRef, ...]]:
    """Segments in groups that fit into memory."""
    group: list[SegmentRef] = []
    for ref in refs:
        if group and sum(one.text_bytes for one in group) + ref.text_bytes > PIECE_BYTES:
            yield tuple(group)
            group = []
        group.append(ref)
    if group:
        yield tuple(group)
