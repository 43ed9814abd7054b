"""Archive plan: the work that follows from the catalog and the archive state. Pure functions without I/O.

| found | work |
|---|---|
| a sealed segment with seqs that are not covered | copied, unless its topic is quarantined |
| a delete of records in files | masked at once, without a job |
| a topic that the catalog no longer has | hidden: deleting a topic deletes its records |
| files older than the archive's retention | retired |
| a file of which a fifth is deleted, or many small files of one day and bucket | rewritten (compaction) |
| a file with a deleted record whose erasure deadline has passed | rewritten |
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from topics.log.catalog import CatalogTopic
from topics.model.seq_ranges import Ranges, SeqRange, covers, difference, intersection, union
from topics.spark.archive.archive_state import (
    ArchivedTopic,
    ArchiveState,
    Dropped,
    Event,
    Expired,
    Masked,
    Removed,
    Uncovered,
)
from topics.spark.archive.data_files import ArchiveFile, Mask, Run, folder_of
from topics.spark.segment_reader import SEQ_MAX, SegmentRef, has_elapsed

FILE_BYTES = 128 * 1024 * 1024
FIRST_TIER_BYTES = 1024 * 1024
TIER_FILES = 8
"""The fan-out of size-tiered compaction: more files of one tier than this are merged."""
DELETED_SHARE = 0.2
ERASE_MS = 86_400_000


class ArchiveRules(msgspec.Struct, frozen=True, kw_only=True):
    retention_ms: int = 0
    keep_snapshots_ms: int = 600_000
    """The retention of a replaced snapshot of the table."""
    retire_ms: int = 600_000
    """The time for which a retired file stays, for its readers."""
    erase_ms: int = ERASE_MS
    """The maximum time for which a deleted record may stay in a file."""
    deleted_share: float = DELETED_SHARE
    """A file with a larger deleted share is rewritten; 0 erases all deleted records."""
    file_bytes: int = FILE_BYTES
    """The target size of merged files."""


class SourceRun(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one topic in a file to be rewritten."""

    topic_id: int
    topic: str
    epoch: int
    first_seq: int
    first_row: int
    rows: int
    hidden: bytes
    """A packed `Mask` of the seqs to omit; all of them for a dropped topic."""


class Source(msgspec.Struct, frozen=True, array_like=True):
    path: str
    runs: list[SourceRun]
    bytes: int = 0
    tail: int = 0


class Rewrite(msgspec.Struct, frozen=True, array_like=True):
    """Files of one day and bucket to be merged into one, without deleted records."""

    day: int
    bucket: int
    sources: list[Source]
    bytes: int

    @property
    def subject(self) -> str:
        """The name that is quarantined when it fails."""
        return folder_of(self.day, self.bucket)


def reconcile(
    dropped: Collection[int],
    changed: Iterable[CatalogTopic],
    number: int,
    state: ArchiveState,
    rules: ArchiveRules,
    now_ms: int,
    pinned: Collection[str] = (),
) -> list[Event]:
    """The events that follow from a catalog and the time without a job: drops, masks, expiry, removals.

    `dropped` are archived topics that the catalog no longer has. `pinned` are retired files that a tag or branch of the
    table names: they stay.
    """
    events: list[Event] = []
    if dropped:
        events.append(Dropped(sorted(dropped)))
    for topic in changed:
        known = state.topics.get(topic.topic_id)
        if known is None or not topic.removals:
            continue
        fresh = _fresh_deletes(topic, known, state)
        if len(fresh):
            events.append(Masked(topic.topic_id, fresh.packed(), number))
    if rules.retention_ms:
        before = now_ms - rules.retention_ms
        old = [path for path, file in state.files.items() if file.last_ts < before]
        if old:
            events.append(Expired(old))
    gone = [path for path in elapsed(state, rules, now_ms) if path not in pinned]
    if gone:
        events.append(Removed(gone))
    return events


def _fresh_deletes(topic: CatalogTopic, known: ArchivedTopic, state: ArchiveState) -> Mask:
    """Deletes of the catalog that files still hold and that are not masked yet."""
    reported = removals(topic, known.catalog)
    if not reported:
        return Mask.of(())
    return Mask.of(reported).intersection(Mask.of(state.spans_of(topic.topic_id))).minus(known.deleted)


def removals(topic: CatalogTopic, since: int) -> list[tuple[int, int]]:
    """The seqs whose deletes are first listed by a catalog after `since`."""
    return union(*(removal.ranges for removal in topic.removals if removal.number > since))


def newest_delete(topics: Iterable[CatalogTopic]) -> int:
    """The newest catalog that first lists a delete of these topics; 0 if none does."""
    return max([removal.number for topic in topics for removal in topic.removals], default=0)


def elapsed(state: ArchiveState, rules: ArchiveRules, now_ms: int) -> list[str]:
    """The retired files whose retention has ended."""
    return [path for path, since_ms in state.retired.items() if has_elapsed(since_ms, rules.retire_ms, now_ms)]


def next_due(
    state: ArchiveState, rules: ArchiveRules, quarantined: Collection[str], pinned: Collection[str] = ()
) -> int | None:
    """Returns the next time at which there is work without a new catalog: a file to remove, or an erasure deadline.

    None for never.
    """
    moments = [since_ms + rules.retire_ms for path, since_ms in state.retired.items() if path not in pinned]
    moments += [
        file.hidden_ms + rules.erase_ms
        for file in state.with_hidden_rows()
        if folder_of(file.day, file.bucket) not in quarantined
    ]
    return min(moments, default=None)


def uncovered(topic: CatalogTopic, known: Sequence[SeqRange]) -> list[SegmentRef]:
    """The segments of a topic that are not covered yet. Expired records are archived until they are evicted."""
    refs: list[SegmentRef] = []
    if topic.segments:
        begin, end = max(topic.segments[0].first_seq, topic.earliest), topic.segments[-1].last_seq
        if begin > end or covers(known, begin, end):
            return refs  # The usual case: a topic without new segments, among a million.
    before = 0
    for segment in topic.segments:
        first = max(segment.first_seq, topic.earliest)
        if first <= segment.last_seq and not covers(known, first, segment.last_seq):
            # Several ranges if a file was lost and its neighbours were not.
            refs += [
                SegmentRef(
                    topic.name, topic.topic_id, topic.epoch, segment.first_seq, segment.count, segment.text_bytes,
                    segment.cold, begin, end, 0, SEQ_MAX, deleted_from=_deleted_from(topic, begin, known, before),
                )
                for begin, end in difference([(first, segment.last_seq)], known)
            ]  # fmt: skip
        before = segment.last_seq
    return refs


def _deleted_from(topic: CatalogTopic, first: int, known: Sequence[SeqRange], before: int) -> int:
    """The first of the seqs directly before `first` that were deleted before they could be archived.

    The range ends at archived seqs, at the previous segment, or at lost records. So the covered ranges have a gap
    exactly where records were lost, and readers of the archive can report it.
    """
    behind = bisect_left(known, first, key=lambda part: part[0])
    edge = max(before, known[behind - 1][1] if behind else 0)
    if not edge:
        return first
    lost = max([last for _, last in topic.lost if last < first], default=0)
    return min(max(edge, topic.evict_floor - 1, lost) + 1, first)


class MissingFiles(msgspec.Struct, frozen=True):
    """Live files that are missing in the archive."""

    rebuilt: list[str]
    """Files whose records the log still has, so they are copied again."""
    lost: list[str]
    """Files with records that the log no longer has. They stay in the ledger, so that they can be put back."""
    events: list[Event]

    def __str__(self) -> str:
        files = [*self.rebuilt, *self.lost]
        reported = f"{len(files)} file(s) of the archive are missing, such as {files[0]}"
        if self.rebuilt:
            reported += f"; {len(self.rebuilt)} are rebuilt from the log"
        if self.lost:
            reported += (
                f"; {len(self.lost)} have records that the log no longer has: put them back from a copy, or accept the "
                "loss with `topics archive repair`"
            )
        return reported


def missing_files(
    paths: Iterable[str], state: ArchiveState, topics: Mapping[int, CatalogTopic], give_up: bool = False
) -> MissingFiles:
    """The action for each missing file. With `give_up` the archive also forgets files that the log cannot rebuild."""
    rebuilt: list[str] = []
    lost: list[str] = []
    again: dict[int, list[SeqRange]] = {}
    for path in sorted(paths):
        file = state.files[path]
        whole = all(not _gone_from_log(run, state, topics) for run in file.runs)
        (rebuilt if whole else lost).append(path)
        if whole or give_up:
            for run in file.runs:
                if run.topic_id in state.topics:
                    again.setdefault(run.topic_id, []).append((run.first_seq, run.last_seq))
    gone = [*rebuilt, *(lost if give_up else ())]
    events: list[Event] = [Uncovered(topic_id, union(ranges)) for topic_id, ranges in again.items()]
    return MissingFiles(rebuilt, lost, [Expired(gone), *events] if gone else [])


def _gone_from_log(run: Run, state: ArchiveState, topics: Mapping[int, CatalogTopic]) -> Ranges:
    """The visible seqs of a run that the log has lost or evicted."""
    topic = topics.get(run.topic_id)
    if run.topic_id not in state.topics or topic is None:
        return []  # A dropped topic: nothing of it is shown.
    gone = union([(1, topic.evict_floor - 1)] if topic.evict_floor > 1 else [], topic.lost)
    shown = difference([(run.first_seq, run.last_seq)], state.hidden_in(run).ranges())
    return intersection(shown, gone)


def rewrites(state: ArchiveState, rules: ArchiveRules, now_ms: int, quarantined: Collection[str]) -> list[Rewrite]:
    """The rewrites that are due. Each file is in at most one of them."""
    partitions: dict[tuple[int, int], list[ArchiveFile]] = {}
    for file in state.files.values():
        partitions.setdefault((file.day, file.bucket), []).append(file)
    found = []
    for (day, bucket), files in sorted(partitions.items()):
        if folder_of(day, bucket) in quarantined:
            continue
        groups = _tiers(files, rules.file_bytes)
        taken = {file.path for group in groups for file in group}
        groups += [[file] for file in files if file.path not in taken and _needs_rewrite(file, state, rules, now_ms)]
        found += [_rewrite(day, bucket, group, state) for group in groups]
    return found


def _tiers(files: Sequence[ArchiveFile], file_bytes: int) -> list[list[ArchiveFile]]:
    """Groups of small files of one size tier that are worth merging (size-tiered compaction)."""
    tiers: dict[int, list[ArchiveFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        if file.bytes < file_bytes // 2:
            tiers.setdefault(_tier(file.bytes), []).append(file)
    groups = []
    for tier in sorted(tiers):
        group: list[ArchiveFile] = []
        for file in tiers[tier]:
            if group and sum(one.bytes for one in group) + file.bytes > file_bytes:
                groups.append(group)
                group = []
            group.append(file)
        groups.append(group)
    return [group for group in groups if len(group) > TIER_FILES or _fills(group, file_bytes)]


def _fills(group: Sequence[ArchiveFile], file_bytes: int) -> bool:
    return len(group) > 1 and sum(file.bytes for file in group) > file_bytes * 3 // 4


def _tier(size: int) -> int:
    tier = 0
    while size >= FIRST_TIER_BYTES:
        size //= TIER_FILES
        tier += 1
    return tier


def _needs_rewrite(file: ArchiveFile, state: ArchiveState, rules: ArchiveRules, now_ms: int) -> bool:
    if not file.hidden_ms:
        return False
    if has_elapsed(file.hidden_ms, rules.erase_ms, now_ms):
        return True
    hidden = sum(_hidden_rows(state.hidden_in(run), run.rows) for run in file.runs)
    return hidden > rules.deleted_share * file.rows


def _hidden_rows(hidden: Mask, rows: int) -> int:
    return min(hidden.count(), rows)


def _rewrite(day: int, bucket: int, files: Sequence[ArchiveFile], state: ArchiveState) -> Rewrite:
    sources = [
        Source(
            file.path,
            [
                SourceRun(
                    run.topic_id, run.topic, run.epoch, run.first_seq, row, run.rows, state.hidden_in(run).packed()
                )
                for row, run in file.starts()
            ],
            file.bytes,
            file.tail,
        )
        for file in files
    ]
    return Rewrite(day, bucket, sources, sum(file.bytes for file in files))


def joined(file: ArchiveFile, replaced: Iterable[str], state: ArchiveState) -> ArchiveFile:
    """A rewritten file in which adjacent runs of a topic are joined, if no other file has seqs between them."""
    gone = set(replaced)
    runs: list[Run] = []
    for run in file.runs:
        if runs and runs[-1].topic_id == run.topic_id and not _between(runs[-1], run, gone, state):
            runs[-1] = _both(runs[-1], run)
        else:
            runs.append(run)
    return msgspec.structs.replace(file, runs=tuple(runs))


def _between(before: Run, after: Run, gone: set[str], state: ArchiveState) -> bool:
    """Whether another live file has seqs of the topic between two runs."""
    if before.last_seq + 1 == after.first_seq:
        return False
    others = sorted(_firsts(before.topic_id, gone, state))
    place = bisect_left(others, before.last_seq)
    return place < len(others) and others[place] < after.first_seq


def _firsts(topic_id: int, gone: set[str], state: ArchiveState) -> Sequence[int]:
    return [
        run.first_seq
        for path in state.by_topic.get(topic_id, ())
        if path not in gone
        for _, run in state.runs_in(path, topic_id)
    ]


def _both(before: Run, after: Run) -> Run:
    return msgspec.structs.replace(
        before,
        last_seq=after.last_seq,
        rows=before.rows + after.rows,
        last_ts=max(before.last_ts, after.last_ts),
        first_ts=min(before.first_ts, after.first_ts),
    )
