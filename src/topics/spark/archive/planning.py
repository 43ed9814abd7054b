"""What the archive still has to do: the difference between the catalog and the manifests. Nothing here touches a disk.

| seen | done |
|---|---|
| a sealed segment with seqs that no manifest covers | copied, if nothing keeps its topic out |
| a delete that a manifest's files hold | masked in the manifest at once, without any job |
| a topic that the catalog no longer has | everything of it is removed: to delete a topic is to delete its records |
| files older than the archive's retention | they no longer count |
| a file of which a fifth is deleted, or many small files of one day | rewritten |
| a delete that has been hidden for as long as it may be | every file that holds anything deleted is rewritten |
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from topics.core.ranges import SeqRange, covers, difference, union
from topics.formats.catalog import Catalog, CatalogSegment, CatalogTopic
from topics.spark.archive.manifest import (
    ArchivedFile,
    Manifest,
    expired,
    hidden_since,
    masked,
    without_retired,
)
from topics.spark.archive.masks import Mask
from topics.spark.backlog import Backlog
from topics.spark.segments import GROUP_BYTES, SEQ_MAX, SegmentRef, pack

SMALL_FILE_BYTES = 4 * 1024 * 1024
SMALL_FILES_MAX = 8
DELETED_SHARE = 0.2
ERASE_MS = 86_400_000
REWRITE_BYTES = 64 * 1024 * 1024
ROUND_BYTES = 1024 * 1024 * 1024


class ArchiveRules(msgspec.Struct, frozen=True, kw_only=True):
    retention_ms: int = 0
    retire_ms: int = 600_000
    """How long a file that no longer counts stays for those who read it."""
    group_bytes: int = GROUP_BYTES
    round_bytes: int = ROUND_BYTES
    """Segments beyond this wait for the next round, so that a long backlog is committed piece by piece."""
    groups_min: int = 2
    erase_ms: int = ERASE_MS
    """How long a deleted record may stay in files."""
    deleted_share: float = DELETED_SHARE
    """A file of which more than this is deleted is written again; 0 takes everything out that is deleted."""


class Copy(msgspec.Struct, frozen=True, tag=True):
    """Segments to be archived."""

    refs: list[SegmentRef]


class Rewrite(msgspec.Struct, frozen=True, tag=True):
    """Files of one day of one topic to be written again without what is deleted."""

    topic_id: int
    topic: str
    date: str
    paths: list[str]
    deleted: list[tuple[int, int]]


class ArchivePlan(msgspec.Struct):
    copies: list[Copy] = []
    rewrites: list[Rewrite] = []
    changed: list[Manifest] = []
    """Manifests that change without any file being written: to be saved first."""
    superfluous: dict[int, list[str]] = {}
    """Files that may be removed once the changed manifests are saved."""
    dropped: list[int] = []


def plan_archive(
    catalog: Catalog,
    manifests: Mapping[int, Manifest],
    rules: ArchiveRules,
    now_ms: int,
    shut_out: Collection[int] = (),
) -> ArchivePlan:
    """`shut_out` are topics whose segments are left alone for now; their deletes are applied all the same."""
    topics = catalog.by_id()
    plan = ArchivePlan()
    plan.dropped = [topic_id for topic_id in sorted(manifests) if topic_id not in topics]
    settled = {
        topic_id: _settle(manifest, topics[topic_id], catalog.head.number, rules, now_ms, plan)
        for topic_id, manifest in manifests.items()
        if topic_id in topics
    }
    waiting = [ref for topic in catalog.topics for ref in uncovered(topic, settled.get(topic.topic_id))]
    ready = _first([ref for ref in waiting if ref.topic_id not in shut_out], rules.round_bytes)
    plan.copies = [Copy(group) for group in pack(ready, rules.group_bytes, rules.groups_min)]
    for topic_id, manifest in settled.items():
        if topic_id not in shut_out:
            late = manifest.deleted and now_ms - hidden_since(manifest) >= rules.erase_ms
            plan.rewrites += _rewrites(manifest, 0.0 if late else rules.deleted_share)
    return plan


def next_due(manifests: Mapping[int, Manifest], rules: ArchiveRules, shut_out: Collection[int]) -> int | None:
    """When there is something to do though nothing changes: a file to be removed, a deadline of an erasure."""
    moments = [file.since_ms + rules.retire_ms for one in manifests.values() for file in one.retired[:1]]
    moments += [
        hidden_since(one) + rules.erase_ms for key, one in manifests.items() if one.deleted and key not in shut_out
    ]
    return min(moments, default=None)


def backlog_of(catalog: Catalog, manifests: Mapping[int, Manifest]) -> Backlog:
    """How far the archive is behind a catalog."""
    segments = size = 0
    oldest: int | None = None
    for topic in catalog.topics:
        waiting = uncovered(topic, manifests.get(topic.topic_id))
        if not waiting:
            continue
        segments += len(waiting)
        size += sum([ref.text_bytes for ref in waiting])
        # Both are in the order of the seqs, and so of the times: the first that waits is the oldest.
        place = bisect_left(topic.segments, waiting[0].first_seq, key=_first_seq)
        first_ts = topic.segments[place].first_ts
        oldest = first_ts if oldest is None else min(oldest, first_ts)
    return Backlog(segments, size, oldest)


def _first_seq(segment: CatalogSegment) -> int:
    return segment.first_seq


def uncovered(topic: CatalogTopic, manifest: Manifest | None) -> list[SegmentRef]:
    """The segments of a topic that are not archived yet. What expired but was not evicted yet is still archived."""
    known = manifest.covered if manifest is not None else ()
    refs = []
    before = 0
    for segment in topic.segments:
        first = max(segment.first_seq, topic.earliest)
        if first <= segment.last_seq and not covers(known, first, segment.last_seq):
            missing = difference([(first, segment.last_seq)], known)
            refs.append(
                SegmentRef(
                    topic.name, topic.topic_id, topic.epoch, segment.first_seq, segment.count, segment.text_bytes,
                    segment.cold, missing[0][0], missing[-1][1], 0, SEQ_MAX,
                    settled_from=_settled_from(topic, missing[0][0], known, before),
                )
            )  # fmt: skip
        before = segment.last_seq
    return refs


def _settled_from(topic: CatalogTopic, first: int, known: Sequence[SeqRange], before: int) -> int:
    """Where the seqs in front of `first` begin that were deleted on purpose before anybody could archive them.

    They reach back to what is archived, or to the segment before; whatever was lost ends them. So the covered ranges
    have a hole exactly where records were lost, and a reader of the archive can be told.
    """
    behind = bisect_left(known, first, key=lambda part: part[0])
    edge = max(before, known[behind - 1][1] if behind else 0)
    if not edge:
        return first
    lost = max([last for _, last in topic.lost if last < first], default=0)
    return min(max(edge, topic.evict_floor - 1, lost) + 1, first)


def removals(topic: CatalogTopic, since: int) -> list[tuple[int, int]]:
    """Everything that was deleted on purpose and first told by a later catalog."""
    return union(*(removal.ranges for removal in topic.removals if removal.number > since))


def _settle(
    manifest: Manifest, topic: CatalogTopic, catalog: int, rules: ArchiveRules, now_ms: int, plan: ArchivePlan
) -> Manifest:
    """Applies what needs no job."""
    changed = masked(manifest, removals(topic, manifest.catalog), catalog, now_ms)
    if rules.retention_ms:
        changed = expired(changed, now_ms - rules.retention_ms, now_ms)
    changed, gone = without_retired(changed, now_ms - rules.retire_ms)
    if changed is not manifest:
        plan.changed.append(changed)
    if gone:
        plan.superfluous[manifest.topic_id] = gone
    return changed


def _rewrites(manifest: Manifest, deleted_share: float) -> list[Rewrite]:
    """Only neighbours are written into one file, so that no two files ever span the same seqs."""
    found = []
    mask = Mask.of(manifest.deleted)
    for run in _neighbours(manifest.files):
        spoiled = any(mask.within(file.first_seq, file.last_seq).count() > deleted_share * file.rows for file in run)
        if spoiled or len(run) > SMALL_FILES_MAX:
            hidden = mask.within(run[0].first_seq, run[-1].last_seq).ranges()
            paths = [file.path for file in run]
            found.append(Rewrite(manifest.topic_id, manifest.topic, run[0].date, paths, hidden))
    return found


def _neighbours(files: Iterable[ArchivedFile]) -> list[list[ArchivedFile]]:
    """Runs of small files of one day that follow each other; a large one is a run of its own."""
    runs: list[list[ArchivedFile]] = []
    for file in sorted(files, key=lambda file: file.first_seq):
        small = file.bytes < SMALL_FILE_BYTES
        last = runs[-1] if runs else []
        joins = bool(last) and small and last[-1].date == file.date and last[-1].bytes < SMALL_FILE_BYTES
        if joins and sum(known.bytes for known in last) < REWRITE_BYTES:
            last.append(file)
        else:
            runs.append([file])
    return runs


def _first(refs: list[SegmentRef], round_bytes: int) -> list[SegmentRef]:
    chosen: list[SegmentRef] = []
    size = 0
    for ref in refs:
        if chosen and size + ref.text_bytes > round_bytes:
            break
        chosen.append(ref)
        size += ref.text_bytes
    return chosen
