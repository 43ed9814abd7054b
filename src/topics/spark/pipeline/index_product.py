"""Index product (`families` in the status): builds, merges, erases and moves the index files of streams."""

import logging
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from topics.log.catalog import CatalogTopic
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.log.object_store.store import StoreUnavailable
from topics.search.file_index.manifest import IndexFileEntry, IndexManifest, IndexStore, Retired
from topics.spark.archive.data_files import problem_of
from topics.spark.index_builds.index_plan import (
    IndexRules,
    Merge,
    Move,
    Rewrite,
    count_removed,
    due_ms,
    emptied,
    known_removed,
    merges,
    moves,
    over,
    reconciled,
    rewrites,
    subject_of,
    uncovered,
    with_announced_moves,
    with_files,
    with_moved,
    without_retired,
)
from topics.spark.index_builds.index_tasks import (
    IndexBuilder,
    IndexMade,
    IndexOutcome,
    merge_files,
    move_file,
    rewrite_file,
)
from topics.spark.pipeline.products import (
    CatalogView,
    Chore,
    CommitResult,
    Cost,
    OutputMissingError,
    QuarantinedSubjects,
    SegmentRequest,
)
from topics.spark.pipeline.status import INDEX_PRODUCT
from topics.system.entropy import Entropy

COLD_RETRY_MS = 60_000

_log = logging.getLogger(__name__)


class _TaskContext(msgspec.Struct, frozen=True):
    run: str
    now_ms: int


class IndexTasks:
    """The part of the product that runs in Spark tasks."""

    def begin(self, fs: FileSystem, layout: Layout, context: bytes) -> "_IndexTransform":
        found = msgspec.msgpack.decode(context, type=_TaskContext)
        return _IndexTransform(IndexBuilder(IndexStore(fs, layout), found.run, found.now_ms))

    def chore(self, fs: FileSystem, layout: Layout, context: bytes, work: bytes) -> bytes:
        found = msgspec.msgpack.decode(context, type=_TaskContext)
        asked = msgspec.msgpack.decode(work, type=Merge | Rewrite | Move)
        if isinstance(asked, Rewrite):
            made = rewrite_file(fs, layout, found.run, found.now_ms, asked)
        elif isinstance(asked, Move):
            made = move_file(IndexStore(fs, layout), found.run, asked)
        else:
            made = merge_files(IndexStore(fs, layout), found.run, found.now_ms, asked)
        return msgspec.msgpack.encode(IndexOutcome([made]))


class _IndexTransform:
    def __init__(self, builder: IndexBuilder) -> None:
        self._builder = builder

    def take(self, request: SegmentRequest, batches: Sequence[pa.RecordBatch]) -> None:
        self._builder.take(request.ref, request.spec, batches)

    def finish(self) -> bytes:
        return msgspec.msgpack.encode(self._builder.finish())


class IndexProduct:
    name = INDEX_PRODUCT
    cost = Cost(4.0, 600.0)

    def __init__(self, fs: FileSystem, layout: Layout, rules: IndexRules, entropy: Entropy) -> None:
        self._fs = fs
        self._store = IndexStore(fs, layout)
        self._rules = rules
        self._entropy = entropy
        self._manifests: dict[int, IndexManifest] = {}
        self._topics: Mapping[int, CatalogTopic] = {}
        self._loaded = False
        self._was_reset = False
        """Whether index files of another log history were removed."""
        self._now_ms = 0
        self._run = ""
        """The run name of this round: its tasks may still be writing files under it."""
        self._quarantined = QuarantinedSubjects()
        self._cold_after_ms = 0
        """When an unavailable cold tier is tried again."""
        self._look_at: set[int] = set()
        """The streams whose manifests this round, or the next one, must look at: they have changed, or work is due. A
        million others are left alone."""
        self._due: dict[int, int] = {}
        """When there is work about a stream whose catalog entry does not change."""
        self._was_away = False
        """Whether work in the cold tier was put off in the last round."""

    def reconcile(self, view: CatalogView, now_ms: int, quarantined: QuarantinedSubjects) -> None:
        self._load()
        self._topics, self._now_ms, self._quarantined = view.topics, now_ms, quarantined
        reset = view.history.takes_over and not self._was_reset
        if reset and self._store.has_cold:
            self._remove_foreign_cold_files()
        self._was_reset |= reset
        away = now_ms < self._cold_after_ms
        if reset or view.gone is None or away or self._was_away:
            self._look_at = set(self._manifests)
        else:
            self._look_at |= {topic.topic_id for topic in view.changed} | view.dropped(self._manifests.keys())
            self._look_at |= {topic_id for topic_id, due in self._due.items() if due <= now_ms}
            self._look_at &= self._manifests.keys()
        self._was_away = away
        for topic_id in sorted(self._look_at):
            manifest, topic = self._manifests[topic_id], view.topics.get(topic_id)
            if topic is None or topic.epoch != manifest.epoch or reset:
                self._drop(manifest, now_ms)
            else:
                self._reconcile(manifest, topic, now_ms)

    def _drop(self, manifest: IndexManifest, now_ms: int) -> None:
        """Removes all index files of a stream. While the cold tier is unavailable, an empty manifest stays."""
        topic_id = manifest.topic_id
        if manifest.named(cold=True) and self._store.has_cold:
            if manifest.files:
                manifest = emptied(manifest, now_ms)
                self._save(manifest)
            if not self._remove_cold(topic_id, manifest.named(cold=True), now_ms):
                return
        self._store.remove_topic(topic_id)
        del self._manifests[topic_id]
        self._due.pop(topic_id, None)

    def _reconcile(self, manifest: IndexManifest, topic: CatalogTopic, now_ms: int) -> None:
        changed = reconciled(manifest, topic, now_ms)
        if changed is not manifest:
            self._save(changed)
        past = over(changed, now_ms, self._rules)
        self._store.remove_files(changed.topic_id, [one.name for one in past if not one.cold])
        cold = {one.name for one in past if one.cold}
        if cold and not self._remove_cold(changed.topic_id, cold, now_ms):
            past = [one for one in past if not one.cold]
        if past:
            self._save(without_retired(changed, past, now_ms))

    def _remove_cold(self, topic_id: int, names: set[str], now_ms: int) -> bool:
        """Removes files from the cold tier; whether they are gone. An unavailable cold tier is not tried again for a
        minute, and fails no round: new files are in the data folder."""
        if not self._store.has_cold or now_ms < self._cold_after_ms:
            return False
        try:
            self._store.remove_cold(topic_id, names)
        except StoreUnavailable as error:
            self._back_off_cold_tier(error.why, now_ms)
            return False
        return True

    def _back_off_cold_tier(self, why: str, now_ms: int) -> None:
        if now_ms >= self._cold_after_ms:
            _log.warning("the cold tier of companions is left alone for a minute", extra={"why": why})
        self._cold_after_ms = now_ms + COLD_RETRY_MS

    def _remove_foreign_cold_files(self) -> None:
        """Removes index files from the cold tier that belong to the folder this one has replaced."""
        for topic_id in self._store.topic_ids(cold=True):
            if topic_id not in self._manifests:
                self._store.remove_cold(topic_id, self._store.files(topic_id, cold=True))

    def missing_segments(self, topic: CatalogTopic) -> list[SegmentRequest]:
        return [SegmentRequest(ref, topic.contract) for ref in uncovered(topic, self._manifests.get(topic.topic_id))]

    def chores(self, now_ms: int, quarantined: QuarantinedSubjects) -> list[Chore]:
        found: list[Chore] = []
        # Until a look finds nothing to do, the next round looks again: chores may fail, and quarantines end.
        for topic_id in sorted(self._look_at):
            manifest, topic = self._manifests.get(topic_id), self._topics.get(topic_id)
            if manifest is None or topic is None:
                self._forget(topic_id)
            elif topic_id not in quarantined.topics:
                works = list(self._chores_of(manifest, topic, now_ms))
                found += [Chore(one.topic, topic_id, msgspec.msgpack.encode(one), one.bytes) for one in works]
                if not works:
                    self._look_at.discard(topic_id)
                    self._note_due(self._manifests[topic_id])
        return found

    def _forget(self, topic_id: int) -> None:
        self._look_at.discard(topic_id)
        self._due.pop(topic_id, None)

    def _note_due(self, manifest: IndexManifest) -> None:
        moments = [self._due_ms(one) for one in manifest.retired if self._store.has_cold or not one.cold]
        erased_ms = due_ms(manifest, self._rules.erase_ms)
        moments += [] if erased_ms is None else [erased_ms]
        if moments:
            self._due[manifest.topic_id] = min(moments)
        else:
            self._due.pop(manifest.topic_id, None)

    def _chores_of(self, manifest: IndexManifest, topic: CatalogTopic, now_ms: int) -> Iterator[Merge | Rewrite | Move]:
        """Rewrites come first and are not merged in the same round; files to be merged are not moved before."""
        again = list(rewrites(manifest, topic, self._rules.erase_ms, now_ms))
        yield from again
        names = {one.file.name for one in again}
        away = now_ms < self._cold_after_ms
        for one in merges(manifest, topic, self._rules):
            merged = {file.name for file in one.files}
            if not names & merged and not (away and any(file.cold for file in one.files)):
                yield one
            names |= merged
        if self._store.has_cold and not away:
            yield from self._announce_moves(manifest, list(moves(manifest, topic, names)), now_ms)

    def _announce_moves(self, manifest: IndexManifest, found: list[Move], now_ms: int) -> list[Move]:
        if found:
            self._save(with_announced_moves(manifest, [one.file.name for one in found], now_ms))
        return found

    def task_context(self) -> bytes:
        self._run = self._entropy.token(8).hex()
        return msgspec.msgpack.encode(_TaskContext(self._run, self._now_ms))

    def commit(self, outcomes: Sequence[bytes], now_ms: int) -> CommitResult:
        result = CommitResult()
        by_topic: dict[int, list[IndexMade]] = {}
        for encoded in outcomes:
            for made in msgspec.msgpack.decode(encoded, type=IndexOutcome).made:
                if made.cold_problem:
                    self._back_off_cold_tier(made.cold_problem, now_ms)
                else:
                    by_topic.setdefault(made.topic_id, []).append(made)
        try:
            self._publish_all(by_topic, now_ms)
        except Exception:
            # Without the manifest the new files are orphans, and on a full disk their space is needed.
            for topic_id, made_of_it in by_topic.items():
                self._store.discard(topic_id, [file.name for made in made_of_it for file in made.files])
            raise
        for topic_id, made_of_it in by_topic.items():
            result.topics.add(topic_id)
            for made in made_of_it:
                if not made.replaced:
                    result.records += made.rows
                    result.bytes += made.text_bytes
                    result.segments += made.segments
        return result

    def _publish_all(self, by_topic: Mapping[int, Sequence[IndexMade]], now_ms: int) -> None:
        for topic_id, made_of_it in by_topic.items():
            self._publish(topic_id, made_of_it, now_ms)
            # Orphans of a job that failed in an earlier round.
            self._store.sweep(topic_id, self._manifests.get(topic_id), but_of=self._run)

    def _publish(self, topic_id: int, made_of_it: Sequence[IndexMade], now_ms: int) -> None:
        topic = self._topics.get(topic_id)
        subject = None if topic is None else subject_of(topic.contract)
        if topic is None or subject is None:
            return
        manifest = self._manifests.get(topic_id)
        if manifest is None:
            manifest = IndexManifest(
                topic_id=topic_id, epoch=topic.epoch, topic=topic.name, generation=subject.generation,
                plans={subject.generation: subject.plan},
            )  # fmt: skip
        for file in (file for made in made_of_it for file in made.files):
            problem = problem_of(self._fs, self._store.path(topic_id, file.name), file.bytes)
            if problem is not None:
                raise OutputMissingError(problem)
        for made in made_of_it:
            if made.generation == manifest.generation and made.epoch == manifest.epoch:
                if made.moved:
                    manifest = with_moved(manifest, made.moved, now_ms)
                else:
                    manifest = with_files(manifest, _with_removed_counts(made, manifest, topic), made.replaced, now_ms)
        self._save(reconciled(manifest, topic, now_ms))

    def due_ms(self) -> int | None:
        # Postponed work, such as a move, is planned again then.
        moments = [self._cold_after_ms] if self._cold_after_ms > self._now_ms else []
        moments += [due for topic_id, due in self._due.items() if topic_id not in self._quarantined.topics]
        return min(moments, default=None)

    def _due_ms(self, one: Retired) -> int:
        due = one.since_ms + self._rules.retire_ms
        return max(due, self._cold_after_ms) if one.cold else due

    def job_failed(self) -> None:
        """Orphans of a topic are swept when the topic is next published or loaded."""

    def rows(self) -> int | None:
        return None

    def deletes_applied(self, number: int) -> int:
        """`number`: searches look deletes up themselves."""
        return number

    def _save(self, manifest: IndexManifest) -> None:
        self._store.save(manifest)
        self._manifests[manifest.topic_id] = manifest
        self._look_at.add(manifest.topic_id)
        self._note_due(manifest)

    def _load(self) -> None:
        """Reads the manifests once: the pipeline lock keeps other processes from changing them."""
        if self._loaded:
            return
        for topic_id in self._store.topic_ids():
            manifest = self._store.load(topic_id)
            self._store.sweep(topic_id, manifest)
            if manifest is None:
                if self._store.has_cold:
                    self._store.remove_cold(topic_id, self._store.files(topic_id, cold=True))
                self._store.remove_topic(topic_id)
            else:
                self._manifests[topic_id] = manifest
        self._loaded = True


def _with_removed_counts(made: IndexMade, manifest: IndexManifest, topic: CatalogTopic) -> list[IndexFileEntry]:
    """New files with their counts of deleted entries: for a merged file the sum of its sources, for a file built from
    segments the count of the catalog it was planned by."""
    if not made.is_merged:
        return [msgspec.structs.replace(file, gone=count_removed(topic, file.first, file.last)) for file in made.files]
    before = [file for file in manifest.files if file.name in made.replaced]
    spoiled = [file.spoiled_ms for file in before if file.spoiled_ms is not None]
    gone = sum(known_removed(file) for file in before)
    return [
        msgspec.structs.replace(
            file,
            gone=gone + _between(before, file),
            spoiled_ms=min(spoiled, default=None),
        )
        for file in made.files
    ]


def _between(before: Sequence[IndexFileEntry], whole: IndexFileEntry) -> int:
    """How many seqs of a merged file none of its sources had."""
    return whole.last - whole.first + 1 - sum(file.last - file.first + 1 for file in before)
