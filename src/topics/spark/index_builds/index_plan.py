"""Index build plan: missing index files, rewrites, merges and moves, from the catalog and the index manifests.

An index file is also known as a companion in the settings and on disk.
"""

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

# Erasure: an index file with deleted entries is rewritten before a deadline.
#
# The catalog counts the deleted entries of a range, and the count is stored for a file when it is built. The count only
# grows, so a greater count means that entries were deleted since; the check is never late and may trigger once too
# often.

PIECE_BYTES = 64 << 20
"""The text bytes of one rewritten index file; merges join them again."""


class Rewrite(msgspec.Struct, frozen=True, tag="rewrite"):
    """An index file to be rebuilt from the remaining entries of its segments."""

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


def count_removed(topic: CatalogTopic, first: int, last: int) -> int:
    """The number of deleted entries of a range. Where the first live entry is in a segment with deletes some are
    counted twice, which only makes the count greater."""
    left = 0
    for segment in within(topic, first, last):
        left += segment.last_seq - max(segment.first_seq, topic.earliest) + 1 - segment.marked
    return last - first + 1 - left


def within(topic: CatalogTopic, first: int, last: int) -> Iterator[CatalogSegment]:
    """The segments that have live entries of a range."""
    for segment in topic.segments:
        if segment.first_seq <= last and segment.last_seq >= max(first, topic.earliest):
            yield segment


def known_removed(file: IndexFileEntry) -> int:
    """The deleted entries when a file was built. Files of an earlier version only have their missing rows."""
    return file.last - file.first + 1 - file.rows if file.gone is None else file.gone


def noted(manifest: IndexManifest, topic: CatalogTopic, now_ms: int) -> tuple[IndexFileEntry, ...]:
    """The files, each with the time since which it is known to have deleted entries."""
    return tuple(_noted(file, topic, now_ms) for file in manifest.files)


def _noted(file: IndexFileEntry, topic: CatalogTopic, now_ms: int) -> IndexFileEntry:
    if file.spoiled_ms is not None or count_removed(topic, file.first, file.last) <= known_removed(file):
        return file
    return msgspec.structs.replace(file, spoiled_ms=now_ms)


def due_ms(manifest: IndexManifest, erase_ms: int) -> int | None:
    """The time at which the first file of a stream must be rewritten; None if none has deleted entries."""
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
    """Groups of segments that fit into memory."""
    group: list[SegmentRef] = []
    for ref in refs:
        if group and sum(one.text_bytes for one in group) + ref.text_bytes > PIECE_BYTES:
            yield tuple(group)
            group = []
        group.append(ref)
    if group:
        yield tuple(group)


RETIRE_MS = 600_000
"""The time for which a retired file stays for its readers."""

ERASE_MS = 86_400_000


class Subject(NamedTuple):
    """The index plan of a stream."""

    registry: Registry
    plan: IndexPlan
    generation: str


@lru_cache(maxsize=4096)
def subject_of(contract: bytes) -> Subject | None:
    """The index plan of a contract; None where it has no index. Cached: thousands of streams share few contracts."""
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
    """The number of adjacent files of one level that are merged into one of the next."""
    merged_bytes: int = 2 << 30
    """The maximum size of a merged index file."""
    retire_ms: int = RETIRE_MS
    erase_ms: int = ERASE_MS
    """The time between a detected delete and the rewrite of its index file."""


def uncovered(topic: CatalogTopic, manifest: IndexManifest | None) -> list[SegmentRef]:
    """The segments of a stream without an index file of the current plan."""
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
    """The manifest reconciled with the catalog; the same object where nothing changes."""
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
    """Whether other files cover the remaining segments of a file."""
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
    """The manifest with new files in place of old ones."""
    gone = [file for file in manifest.files if file.name in replaced]
    manifest = _without(manifest, gone, now_ms)
    files = sorted((*manifest.files, *made), key=lambda file: (file.generation, file.first))
    return _changed(manifest, now_ms, files=tuple(files))


def outdated(manifest: IndexManifest, now_ms: int) -> IndexManifest:
    """The manifest with all files outdated. They answer searches until they are rebuilt."""
    name = f"{manifest.generation}~{manifest.number}"
    files = tuple(
        msgspec.structs.replace(file, generation=name) if file.generation == manifest.generation else file
        for file in manifest.files
    )
    plans = {**manifest.plans, name: manifest.plans[manifest.generation]}
    return _changed(manifest, now_ms, files=files, plans=plans)


def over(manifest: IndexManifest, now_ms: int, rules: IndexRules) -> list[Retired]:
    """The retired files that may be removed."""
    return [one for one in manifest.retired if has_elapsed(one.since_ms, rules.retire_ms, now_ms)]


class Merge(msgspec.Struct, frozen=True, tag="merge"):
    """Adjacent files to be merged into one."""

    topic_id: int
    topic: str
    epoch: int
    files: tuple[IndexFileEntry, ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def merges(manifest: IndexManifest, topic: CatalogTopic, rules: IndexRules) -> Iterator[Merge]:
    """Groups of `fan_out` adjacent files of one level."""
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
    """Whether no segment lies between two files."""
    if one.last + 1 == other.first:
        return True
    return not any(one.last < segment.last_seq and segment.first_seq < other.first for segment in topic.segments)


# Tiering: index files follow their segments into the cold tier.
#
# The manifest lists a cold file as retired before a task writes it, and until the copy is published. So the files of a
# killed run are removed like other retired files, and the store never has to be listed.


class Move(msgspec.Struct, frozen=True, tag="move"):
    """A file to be copied into the cold tier."""

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
    """Moves of files whose segments are all in the cold tier, without files that are about to be replaced."""
    for file in manifest.of(manifest.generation):
        if not file.cold and file.name not in busy and _is_relocated(file, topic):
            yield Move(manifest.topic_id, manifest.topic, manifest.epoch, manifest.generation, file)


def _is_relocated(file: IndexFileEntry, topic: CatalogTopic) -> bool:
    segments = list(within(topic, file.first, file.last))
    return bool(segments) and all(segment.cold for segment in segments)


def with_announced_moves(manifest: IndexManifest, names: Collection[str], now_ms: int) -> IndexManifest:
    """The manifest with the planned moves listed as retired cold files."""
    others = tuple(one for one in manifest.retired if not (one.cold and one.name in names))
    retired = (*others, *(Retired(name, now_ms, cold=True) for name in names))
    return msgspec.structs.replace(manifest, number=manifest.number + 1, updated_ms=now_ms, retired=retired)


def with_moved(manifest: IndexManifest, moved: Sequence[Moved], now_ms: int) -> IndexManifest:
    """The manifest with files moved to the cold tier. The local copies are retired for their readers."""
    digests = {one.name: one.digest for one in moved}
    known = {file.name for file in manifest.files if file.name in digests and not file.cold}
    files = tuple(
        msgspec.structs.replace(file, cold=True, digest=digests[file.name]) if file.name in known else file
        for file in manifest.files
    )
    others = tuple(one for one in manifest.retired if not (one.cold and one.name in known))
    retired = (*others, *(Retired(name, now_ms) for name in sorted(known)))
    return msgspec.structs.replace(
        manifest, number=manifest.number + 1, updated_ms=now_ms, files=files, retired=retired,
        uploads=manifest.uploads + len(known),
    )  # fmt: skip


def without_retired(manifest: IndexManifest, over: Iterable[Retired], now_ms: int) -> IndexManifest:
    """The manifest without removed files; the same object where there are none."""
    gone = set(over)
    if not gone:
        return manifest
    left = tuple(one for one in manifest.retired if one not in gone)
    return msgspec.structs.replace(manifest, number=manifest.number + 1, updated_ms=now_ms, retired=left)


def emptied(manifest: IndexManifest, now_ms: int) -> IndexManifest:
    """The manifest of a deleted stream: all files retired, without waiting for readers."""
    retired = tuple(Retired(file.name, 0, file.cold) for file in manifest.files)
    retired += tuple(Retired(one.name, 0, one.cold) for one in manifest.retired)
    return msgspec.structs.replace(manifest, number=manifest.number + 1, updated_ms=now_ms, files=(), retired=retired)
