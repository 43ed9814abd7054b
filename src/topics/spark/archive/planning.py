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
from topics.formats.catalog import CatalogTopic
from topics.spark.archive.manifest import (
    ArchivedFile,
    Manifest,
    expired,
    hidden_since,
    masked,
    without_retired,
)
from topics.spark.archive.masks import Mask
from topics.spark.segments import SEQ_MAX, SegmentRef

SMALL_FILE_BYTES = 4 * 1024 * 1024
SMALL_FILES_MAX = 8
DELETED_SHARE = 0.2
ERASE_MS = 86_400_000
REWRITE_BYTES = 64 * 1024 * 1024


class ArchiveRules(msgspec.Struct, frozen=True, kw_only=True):
    retention_ms: int = 0
    retire_ms: int = 600_000
    """How long a file that no longer counts stays for those who read it."""
    erase_ms: int = ERASE_MS
    """How long a deleted record may stay in files."""
    deleted_share: float = DELETED_SHARE
    """A file of which more than this is deleted is written again; 0 takes everything out that is deleted."""


class Rewrite(msgspec.Struct, frozen=True):
    """Files of one day of one topic to be written again without what is deleted."""

    topic_id: int
    topic: str
    date: str
    paths: list[str]
    deleted: list[tuple[int, int]]
    bytes: int


class Settled(msgspec.Struct):
    changed: list[Manifest] = []
    """Manifests that change without any file being written: to be saved first."""
    superfluous: dict[int, list[str]] = {}
    """Files that may be removed once the changed manifests are saved."""
    dropped: list[int] = []


def settle(
    topics: Mapping[int, CatalogTopic], number: int, manifests: Mapping[int, Manifest], rules: ArchiveRules, now_ms: int
) -> Settled:
    """What a catalog and the time ask for that needs no job."""
    settled = Settled()
    for topic_id, manifest in sorted(manifests.items()):
        topic = topics.get(topic_id)
        if topic is None:
            settled.dropped.append(topic_id)
        else:
            _settle(manifest, topic, number, rules, now_ms, settled)
    return settled


def rewrites(
    manifests: Mapping[int, Manifest], rules: ArchiveRules, now_ms: int, shut_out: Collection[int]
) -> list[Rewrite]:
    """Files to be written again; topics that are shut out are left alone."""
    found = []
    for topic_id, manifest in manifests.items():
        if topic_id not in shut_out:
            late = manifest.deleted and now_ms - hidden_since(manifest) >= rules.erase_ms
            found += _rewrites(manifest, 0.0 if late else rules.deleted_share)
    return found


def next_due(manifests: Mapping[int, Manifest], rules: ArchiveRules, shut_out: Collection[int]) -> int | None:
    """When there is something to do though nothing changes: a file to be removed, a deadline of an erasure."""
    moments = [file.since_ms + rules.retire_ms for one in manifests.values() for file in one.retired[:1]]
    moments += [
        hidden_since(one) + rules.erase_ms for key, one in manifests.items() if one.deleted and key not in shut_out
    ]
    return min(moments, default=None)


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
    manifest: Manifest, topic: CatalogTopic, catalog: int, rules: ArchiveRules, now_ms: int, settled: Settled
) -> None:
    changed = masked(manifest, removals(topic, manifest.catalog), catalog, now_ms)
    if rules.retention_ms:
        changed = expired(changed, now_ms - rules.retention_ms, now_ms)
    changed, gone = without_retired(changed, now_ms - rules.retire_ms)
    if changed is not manifest:
        settled.changed.append(changed)
    if gone:
        settled.superfluous[manifest.topic_id] = gone


def _rewrites(manifest: Manifest, deleted_share: float) -> list[Rewrite]:
    """Only neighbours are written into one file, so that no two files ever span the same seqs."""
    found = []
    mask = Mask.of(manifest.deleted)
    for run in _neighbours(manifest.files):
        spoiled = any(mask.within(file.first_seq, file.last_seq).count() > deleted_share * file.rows for file in run)
        if spoiled or len(run) > SMALL_FILES_MAX:
            hidden = mask.within(run[0].first_seq, run[-1].last_seq).ranges()
            paths = [file.path for file in run]
            size = sum(file.bytes for file in run)
            found.append(Rewrite(manifest.topic_id, manifest.topic, run[0].date, paths, hidden, size))
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
