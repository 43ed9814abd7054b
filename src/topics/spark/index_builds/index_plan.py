"""What is to be indexed of a stream, what is done, and what is left: decided from the catalog and the manifests."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from topics.log.catalog import CatalogSegment, CatalogTopic
from topics.model.seq_ranges import Ranges
from topics.schema.contract import decode_contract
from topics.schema.registry import Registry
from topics.search.file_index.file_format import IndexPlan, plan_of
from topics.search.file_index.manifest import IndexFileEntry, IndexManifest, Retired, left_uncovered
from topics.spark.segment_reader import SEQ_MAX, SegmentRef, has_elapsed

# What was deleted leaves companions within a bound: a file that knows entries which are gone is made again in time.
#
# How much of a range is gone is counted by the catalog, and noted for a file when it is made. The count only grows, so
# a greater one says that something has gone since; it never says so too late, and may once too often.

PIECE_BYTES = 64 << 20
"""So much text becomes one companion; ordinary merges put them together again."""


class Rewrite(msgspec.Struct, frozen=True, tag="rewrite"):
    """A file that is to be made again, of what is left of its segments."""

    topic_id: int
    topic: str
    epoch: int
    generation: str
    contract: bytes
    file: IndexFileEntry
    refs: tuple[SegmentRef, ...]

    @property
    def bytes(self) -> int:
        return sum(ref.text_bytes for ref in self.refs)


def count_gone(topic: CatalogTopic, first: int, last: int) -> int:
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


def known_gone(file: IndexFileEntry) -> int:
    """How much was gone when a file was made. Those of an earlier version have only what they do not hold."""
    return file.last - file.first + 1 - file.rows if file.gone is None else file.gone


def noted(manifest: IndexManifest, topic: CatalogTopic, now_ms: int) -> tuple[IndexFileEntry, ...]:
    """The files, each with the moment since when it is known to hold what is gone."""
    return tuple(_noted(file, topic, now_ms) for file in manifest.files)


def _noted(file: IndexFileEntry, topic: CatalogTopic, now_ms: int) -> IndexFileEntry:
    if file.spoiled_ms is not None or count_gone(topic, file.first, file.last) <= known_gone(file):
        return file
    return msgspec.structs.replace(file, spoiled_ms=now_ms)


def due_ms(manifest: IndexManifest, erase_ms: int) -> int | None:
    """When the first file of a stream has to be made again; None where none holds anything that is gone."""
    moments = [file.spoiled_ms + erase_ms for file in manifest.of(manifest.generation) if file.spoiled_ms is not None]
    return min(moments, default=None)


def rewrites(manifest: IndexManifest, topic: CatalogTopic, erase_ms: int, now_ms: int) -> Iterator[Rewrite]:
    for file in manifest.of(manifest.generation):
        if file.spoiled_ms is not None and has_elapsed(file.spoiled_ms, erase_ms, now_ms):
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


RETIRE_MS = 600_000
"""How long a file that no longer counts stays for those who have begun to read it."""

ERASE_MS = 86_400_000


class Subject(NamedTuple):
    """A stream that is to be indexed."""

    registry: Registry
    plan: IndexPlan
    generation: str


@lru_cache(maxsize=4096)
def subject_of(contract: bytes) -> Subject | None:
    """What a contract asks to be indexed; None where that is nothing. Streams by the thousand have few contracts."""
    if not contract:
        return None
    try:
        registry = decode_contract(contract).registry
    except ValueError:
        return None
    if registry.search_config is None and registry.routing_key is None:
        return None
    plan = plan_of(registry)
    return Subject(registry, plan, plan.generation)


class IndexRules(msgspec.Struct, frozen=True):
    fan_out: int = 8
    """So many neighbours of one level become one of the next."""
    merged_bytes: int = 2 << 30
    """Companions that would become larger than this together stay as they are."""
    retire_ms: int = RETIRE_MS
    erase_ms: int = ERASE_MS
    """So long after it is noticed that a file holds what was deleted, it is made again."""


def uncovered(topic: CatalogTopic, manifest: IndexManifest | None) -> list[SegmentRef]:
    """The segments of a stream that have no companion by the plan that holds now."""
    subject = subject_of(topic.contract)
    if subject is None:
        return []
    covered = manifest.covered(subject.generation) if manifest is not None else []
    found = []
    for segment in topic.segments:
        first = max(segment.first_seq, topic.earliest)
        if first <= segment.last_seq and left_uncovered(first, segment.last_seq, covered):
            found.append(ref_of(topic, segment))
    return found


def reconciled(manifest: IndexManifest, topic: CatalogTopic, now_ms: int) -> IndexManifest:
    """A manifest after what the catalog and the time ask for; the same one where that is nothing."""
    subject = subject_of(topic.contract)
    if subject is None:
        return _without(manifest, manifest.files, now_ms)
    if manifest.generation != subject.generation:
        manifest = _changed(
            manifest, now_ms, generation=subject.generation, generations=manifest.generations + 1,
            plans={**manifest.plans, subject.generation: subject.plan},
        )  # fmt: skip
    covered = manifest.covered(subject.generation)
    gone = [
        file
        for file in manifest.files
        if file.last < topic.earliest or (file.generation != subject.generation and _is_replaced(file, topic, covered))
    ]
    manifest = _without(manifest, gone, now_ms)
    files = noted(manifest, topic, now_ms)
    if files != manifest.files:
        manifest = _changed(manifest, now_ms, files=files)
    known = {subject.generation, *(file.generation for file in manifest.files)}
    if known != manifest.plans.keys():
        manifest = _changed(manifest, now_ms, plans={name: manifest.plans[name] for name in known})
    return manifest


def _is_replaced(file: IndexFileEntry, topic: CatalogTopic, covered: Ranges) -> bool:
    """Whether others cover what is left of the segments of a file: nothing is made for those that are gone."""
    here = [segment for segment in topic.segments if segment.first_seq <= file.last and segment.last_seq >= file.first]
    return not any(
        left_uncovered(max(segment.first_seq, topic.earliest, file.first), min(segment.last_seq, file.last), covered)
        for segment in here
        if segment.last_seq >= topic.earliest
    )


def _without(manifest: IndexManifest, gone: Sequence[IndexFileEntry], now_ms: int) -> IndexManifest:
    if not gone:
        return manifest
    names = {file.name for file in gone}
    retired = (*manifest.retired, *(Retired(file.name, now_ms, file.cold) for file in gone))
    left = tuple(file for file in manifest.files if file.name not in names)
    return _changed(manifest, now_ms, files=left, retired=retired)


def _changed(manifest: IndexManifest, now_ms: int, **fields: object) -> IndexManifest:
    return msgspec.structs.replace(manifest, number=manifest.number + 1, updated_ms=now_ms, **fields)


def with_files(
    manifest: IndexManifest, made: Sequence[IndexFileEntry], replaced: Sequence[str], now_ms: int
) -> IndexManifest:
    """A manifest with new files in the place of old ones."""
    gone = [file for file in manifest.files if file.name in replaced]
    manifest = _without(manifest, gone, now_ms)
    files = sorted((*manifest.files, *made), key=lambda file: (file.generation, file.first))
    return _changed(manifest, now_ms, files=tuple(files))


def outdated(manifest: IndexManifest, now_ms: int) -> IndexManifest:
    """A manifest by which everything is to be made again. What there is goes on answering until that is done."""
    name = f"{manifest.generation}~{manifest.number}"
    files = tuple(
        msgspec.structs.replace(file, generation=name) if file.generation == manifest.generation else file
        for file in manifest.files
    )
    plans = {**manifest.plans, name: manifest.plans[manifest.generation]}
    return _changed(manifest, now_ms, files=files, plans=plans)


def over(manifest: IndexManifest, now_ms: int, rules: IndexRules) -> list[Retired]:
    """The retired files whose time is over."""
    return [one for one in manifest.retired if has_elapsed(one.since_ms, rules.retire_ms, now_ms)]


class Merge(msgspec.Struct, frozen=True, tag="merge"):
    """Files that are to become one."""

    topic_id: int
    topic: str
    epoch: int
    files: tuple[IndexFileEntry, ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def merges(manifest: IndexManifest, topic: CatalogTopic, rules: IndexRules) -> Iterator[Merge]:
    """Neighbours of one level, as many as make one of the next."""
    run: list[IndexFileEntry] = []
    for file in manifest.of(manifest.generation):
        if run and (file.level != run[-1].level or not _are_neighbours(run[-1], file, topic)):
            run = []
        run.append(file)
        if len(run) == rules.fan_out:
            if sum(one.bytes for one in run) <= rules.merged_bytes:
                yield Merge(manifest.topic_id, manifest.topic, manifest.epoch, tuple(run))
            run = []


def _are_neighbours(one: IndexFileEntry, other: IndexFileEntry, topic: CatalogTopic) -> bool:
    """Whether nothing that a companion lacks lies between two."""
    if one.last + 1 == other.first:
        return True
    return not any(one.last < segment.last_seq and segment.first_seq < other.first for segment in topic.segments)


# Companions follow their segments into the cold tier: which of them, and what their manifest says meanwhile.
#
# A name of the cold tier is among the retired ones before a task writes under it, and until the file counts there. So
# whatever a run leaves that was killed is removed in time, like any file that is retired, and nobody has to list a
# store.


class Move(msgspec.Struct, frozen=True, tag="move"):
    """A file that is to be copied into the cold tier."""

    topic_id: int
    topic: str
    epoch: int
    generation: str
    file: IndexFileEntry

    @property
    def bytes(self) -> int:
        return self.file.bytes


class Moved(msgspec.Struct, frozen=True):
    name: str
    digest: int


def moves(manifest: IndexManifest, topic: CatalogTopic, busy: Collection[str]) -> Iterator[Move]:
    """The files whose segments are all in the cold tier, without those that are about to be replaced."""
    for file in manifest.of(manifest.generation):
        if not file.cold and file.name not in busy and _is_relocated(file, topic):
            yield Move(manifest.topic_id, manifest.topic, manifest.epoch, manifest.generation, file)


def _is_relocated(file: IndexFileEntry, topic: CatalogTopic) -> bool:
    segments = list(within(topic, file.first, file.last))
    return bool(segments) and all(segment.cold for segment in segments)


def with_announced_moves(manifest: IndexManifest, names: Collection[str], now_ms: int) -> IndexManifest:
    """A manifest that knows of files that may be in the cold tier soon."""
    others = tuple(one for one in manifest.retired if not (one.cold and one.name in names))
    retired = (*others, *(Retired(name, now_ms, cold=True) for name in names))
    return msgspec.structs.replace(manifest, number=manifest.number + 1, updated_ms=now_ms, retired=retired)


def with_moved(manifest: IndexManifest, moved: Sequence[Moved], now_ms: int) -> IndexManifest:
    """A manifest by which files are in the cold tier. Those in the data folder stay for whoever reads them."""
    digests = {one.name: one.digest for one in moved}
    known = {file.name for file in manifest.files if file.name in digests and not file.cold}
    files = tuple(
        msgspec.structs.replace(file, cold=True, digest=digests[file.name]) if file.name in known else file
        for file in manifest.files
    )
    others = tuple(one for one in manifest.retired if not (one.cold and one.name in known))
    retired = (*others, *(Retired(name, now_ms) for name in sorted(known)))
    return msgspec.structs.replace(
        manifest, number=manifest.number + 1, updated_ms=now_ms, files=files, retired=retired
    )


def without_retired(manifest: IndexManifest, over: Iterable[Retired], now_ms: int) -> IndexManifest:
    """A manifest without files that are removed; the same one where that is none."""
    gone = set(over)
    if not gone:
        return manifest
    left = tuple(one for one in manifest.retired if one not in gone)
    return msgspec.structs.replace(manifest, number=manifest.number + 1, updated_ms=now_ms, retired=left)


def emptied(manifest: IndexManifest, now_ms: int) -> IndexManifest:
    """A manifest of a stream that is gone: nothing of it counts, and nobody is waited for."""
    retired = tuple(Retired(file.name, 0, file.cold) for file in manifest.files)
    retired += tuple(Retired(one.name, 0, one.cold) for one in manifest.retired)
    return msgspec.structs.replace(manifest, number=manifest.number + 1, updated_ms=now_ms, files=(), retired=retired)
