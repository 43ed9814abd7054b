"""The index families as a product of the pipeline."""

import logging
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from topics.log.catalog import CatalogTopic
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.log.object_store.store import StoreUnavailable
from topics.search.file_index.manifest import IndexFileEntry, IndexManifest, IndexStore, Retired
from topics.spark.index_builds.index_plan import (
    IndexRules,
    Merge,
    Move,
    Rewrite,
    announced,
    due_ms,
    emptied,
    gone_of,
    known_gone,
    merges,
    moves,
    over,
    rewrites,
    settled,
    subject_of,
    uncovered,
    with_files,
    with_moved,
    without_retired,
)
from topics.spark.index_builds.index_tasks import (
    Indexing,
    IndexMade,
    IndexOutcome,
    merge_files,
    move_file,
    rewrite_file,
)
from topics.spark.pipeline.products import Chore, Gain, ShutOut, View, Want
from topics.spark.pipeline.status import FAMILIES
from topics.system.entropy import Entropy

COLD_RETRY_MS = 60_000

_log = logging.getLogger(__name__)


class _Charge(msgspec.Struct, frozen=True):
    run: str
    now_ms: int


class IndexTasks:
    """The half that runs in tasks."""

    def begin(self, fs: FileSystem, layout: Layout, charge: bytes) -> "_IndexTransform":
        found = msgspec.msgpack.decode(charge, type=_Charge)
        return _IndexTransform(Indexing(IndexStore(fs, layout), found.run, found.now_ms))

    def chore(self, fs: FileSystem, layout: Layout, charge: bytes, work: bytes) -> bytes:
        found = msgspec.msgpack.decode(charge, type=_Charge)
        asked = msgspec.msgpack.decode(work, type=Merge | Rewrite | Move)
        if isinstance(asked, Rewrite):
            made = rewrite_file(fs, layout, found.run, found.now_ms, asked)
        elif isinstance(asked, Move):
            made = move_file(IndexStore(fs, layout), found.run, asked)
        else:
            made = merge_files(IndexStore(fs, layout), found.run, found.now_ms, asked)
        return msgspec.msgpack.encode(IndexOutcome([made]))


class _IndexTransform:
    def __init__(self, indexing: Indexing) -> None:
        self._indexing = indexing

    def take(self, want: Want, batches: Sequence[pa.RecordBatch]) -> None:
        self._indexing.take(want.ref, want.spec, batches)

    def finish(self) -> bytes:
        return msgspec.msgpack.encode(self._indexing.finish())


class IndexProduct:
    name = FAMILIES

    def __init__(self, fs: FileSystem, layout: Layout, rules: IndexRules, entropy: Entropy) -> None:
        self._store = IndexStore(fs, layout)
        self._rules = rules
        self._entropy = entropy
        self._manifests: dict[int, IndexManifest] = {}
        self._topics: Mapping[int, CatalogTopic] = {}
        self._loaded = False
        self._began_anew = False
        """Whether what was made of another history is gone."""
        self._now_ms = 0
        self._run = ""
        """The round's: files of its tasks may be on their way."""
        self._shut_out = ShutOut()
        self._cold_after_ms = 0
        """When the cold tier is tried again that was away."""

    def settle(self, view: View, now_ms: int, shut_out: ShutOut) -> None:
        self._load()
        self._topics, self._now_ms, self._shut_out = view.topics, now_ms, shut_out
        anew = view.history.takes_over and not self._began_anew
        if anew and self._store.has_cold:
            self._remove_strangers()
        self._began_anew |= anew
        for topic_id, manifest in list(self._manifests.items()):
            topic = view.topics.get(topic_id)
            if topic is None or topic.epoch != manifest.epoch or anew:
                self._drop(manifest, now_ms)
            else:
                self._settle(manifest, topic, now_ms)

    def _drop(self, manifest: IndexManifest, now_ms: int) -> None:
        """Removes everything of a stream. While its cold tier is away, a manifest stays of which nothing counts."""
        topic_id = manifest.topic_id
        if manifest.named(cold=True) and self._store.has_cold:
            if manifest.files:
                manifest = emptied(manifest, now_ms)
                self._save(manifest)
            if not self._remove_cold(topic_id, manifest.named(cold=True), now_ms):
                return
        self._store.remove_topic(topic_id)
        del self._manifests[topic_id]

    def _settle(self, manifest: IndexManifest, topic: CatalogTopic, now_ms: int) -> None:
        changed = settled(manifest, topic, now_ms)
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
        """Removes files from the cold tier; whether they are gone. One that is away is left alone for a while, and
        costs nobody a round: what is new is in the data folder."""
        if not self._store.has_cold or now_ms < self._cold_after_ms:
            return False
        try:
            self._store.remove_cold(topic_id, names)
        except StoreUnavailable as error:
            self._leave_alone(error.why, now_ms)
            return False
        return True

    def _leave_alone(self, why: str, now_ms: int) -> None:
        if now_ms >= self._cold_after_ms:
            _log.warning("the cold tier of companions is left alone for a minute", extra={"why": why})
        self._cold_after_ms = now_ms + COLD_RETRY_MS

    def _remove_strangers(self) -> None:
        """Removes from the cold tier what a folder had that this one has taken the place of."""
        for topic_id in self._store.topic_ids(cold=True):
            if topic_id not in self._manifests:
                self._store.remove_cold(topic_id, self._store.files(topic_id, cold=True))

    def wants(self, topic: CatalogTopic) -> list[Want]:
        return [Want(ref, topic.contract) for ref in uncovered(topic, self._manifests.get(topic.topic_id))]

    def chores(self, now_ms: int, shut_out: ShutOut) -> list[Chore]:
        return [
            Chore(one.topic, one.topic_id, msgspec.msgpack.encode(one), one.bytes)
            for topic_id, manifest in list(self._manifests.items())
            if topic_id not in shut_out.topics and topic_id in self._topics
            for one in self._chores_of(manifest, self._topics[topic_id], now_ms)
        ]

    def _chores_of(self, manifest: IndexManifest, topic: CatalogTopic, now_ms: int) -> Iterator[Merge | Rewrite | Move]:
        """What is to be erased comes first, and is not merged in the same round; what is merged is not moved before."""
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
            yield from self._announced(manifest, list(moves(manifest, topic, names)), now_ms)

    def _announced(self, manifest: IndexManifest, found: list[Move], now_ms: int) -> list[Move]:
        if found:
            self._save(announced(manifest, [one.file.name for one in found], now_ms))
        return found

    def charge(self) -> bytes:
        self._run = self._entropy.token(8).hex()
        return msgspec.msgpack.encode(_Charge(self._run, self._now_ms))

    def commit(self, outcomes: Sequence[bytes], now_ms: int) -> Gain:
        gain = Gain()
        by_topic: dict[int, list[IndexMade]] = {}
        for encoded in outcomes:
            for made in msgspec.msgpack.decode(encoded, type=IndexOutcome).made:
                if made.cold_problem:
                    self._leave_alone(made.cold_problem, now_ms)
                else:
                    by_topic.setdefault(made.topic_id, []).append(made)
        try:
            self._publish_all(by_topic, now_ms)
        except Exception:
            # Of a disk without room for a manifest it is no use to hold what only that would have made count.
            for topic_id, made_of_it in by_topic.items():
                self._store.discard(topic_id, [file.name for made in made_of_it for file in made.files])
            raise
        for topic_id, made_of_it in by_topic.items():
            gain.topics.add(topic_id)
            for made in made_of_it:
                if not made.replaced:
                    gain.records += made.rows
                    gain.bytes += made.text_bytes
                    gain.segments += made.segments
        return gain

    def _publish_all(self, by_topic: Mapping[int, Sequence[IndexMade]], now_ms: int) -> None:
        for topic_id, made_of_it in by_topic.items():
            self._publish(topic_id, made_of_it, now_ms)
            # What a job that failed in an earlier round has left.
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
        for made in made_of_it:
            if made.generation == manifest.generation and made.epoch == manifest.epoch:
                if made.moved:
                    manifest = with_moved(manifest, made.moved, now_ms)
                else:
                    manifest = with_files(manifest, _weighed(made, manifest, topic), made.replaced, now_ms)
        self._save(settled(manifest, topic, now_ms))

    def due_ms(self) -> int | None:
        # Whatever was put off, such as a move, is looked for again then.
        moments = [self._cold_after_ms] if self._cold_after_ms > self._now_ms else []
        for topic_id, kept in self._manifests.items():
            if topic_id in self._shut_out.topics:
                continue
            moments += [self._due_ms(one) for one in kept.retired if self._store.has_cold or not one.cold]
            erased_ms = due_ms(kept, self._rules.erase_ms)
            moments += [] if erased_ms is None else [erased_ms]
        return min(moments, default=None)

    def _due_ms(self, one: Retired) -> int:
        due = one.since_ms + self._rules.retire_ms
        return max(due, self._cold_after_ms) if one.cold else due

    def job_failed(self) -> None:
        """What its tasks have left of a topic goes when something of the topic is next published, or is loaded."""

    def confirmed(self, number: int) -> int:
        """What was deleted is looked up by whoever searches."""
        return number

    def _save(self, manifest: IndexManifest) -> None:
        self._store.save(manifest)
        self._manifests[manifest.topic_id] = manifest

    def _load(self) -> None:
        """Reads the manifests once: this process holds the pipeline, so nobody else changes them."""
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


def _weighed(made: IndexMade, manifest: IndexManifest, topic: CatalogTopic) -> list[IndexFileEntry]:
    """New files with what is known to be gone of each. One that was merged knows what those knew that it is made of;
    one that was made of segments, what the catalog knew that they were planned by."""
    if not made.is_merged:
        return [msgspec.structs.replace(file, gone=gone_of(topic, file.first, file.last)) for file in made.files]
    before = [file for file in manifest.files if file.name in made.replaced]
    spoiled = [file.spoiled_ms for file in before if file.spoiled_ms is not None]
    gone = sum(known_gone(file) for file in before)
    return [
        msgspec.structs.replace(
            file,
            gone=gone + _between(before, file),
            spoiled_ms=min(spoiled, default=None),
        )
        for file in made.files
    ]


def _between(before: Sequence[IndexFileEntry], whole: IndexFileEntry) -> int:
    """Seqs of a merged file that none of its parts had."""
    return whole.last - whole.first + 1 - sum(file.last - file.first + 1 for file in before)
