"""The archive as a product of the pipeline."""

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from topics.formats.catalog import CatalogTopic
from topics.spark.archive.manifest import Manifest, rewritten, with_files
from topics.spark.archive.planning import ArchiveRules, Rewrite, Settled, next_due, rewrites, settle, uncovered
from topics.spark.archive.store import ArchiveStore
from topics.spark.archive.tasks import Copying, Outcome, TopicOutcome, rewrite
from topics.spark.pipeline.products import Chore, Gain, ShutOut, View, Want
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout
from topics.system.dice import Dice

NAME = "archive"


class _Charge(msgspec.Struct, frozen=True):
    archive: str
    run: str


class ArchiveTasks:
    """The half that runs in tasks."""

    def begin(self, fs: FileSystem, layout: Layout, charge: bytes) -> "_ArchiveTransform":
        found = msgspec.msgpack.decode(charge, type=_Charge)
        return _ArchiveTransform(Copying(fs, found.archive, found.run))

    def chore(self, fs: FileSystem, layout: Layout, charge: bytes, work: bytes) -> bytes:
        found = msgspec.msgpack.decode(charge, type=_Charge)
        made = rewrite(fs, found.archive, found.run, msgspec.msgpack.decode(work, type=Rewrite))
        return msgspec.msgpack.encode(Outcome([made]))


class _ArchiveTransform:
    def __init__(self, copying: Copying) -> None:
        self._copying = copying

    def take(self, want: Want, batches: Sequence[pa.RecordBatch]) -> None:
        self._copying.take(want.ref, batches)

    def finish(self) -> bytes:
        return msgspec.msgpack.encode(self._copying.finish())


class ArchiveProduct:
    name = NAME

    def __init__(self, fs: FileSystem, root: str, rules: ArchiveRules, dice: Dice) -> None:
        self._store = ArchiveStore(fs, root)
        self._rules = rules
        self._dice = dice
        self._manifests: dict[int, Manifest] = {}
        self._swept = False
        self._shut_out = ShutOut()

    def settle(self, view: View, now_ms: int, shut_out: ShutOut) -> None:
        self._load()
        self._shut_out = shut_out
        self._save(settle(view.topics, view.number, self._manifests, self._rules, now_ms))

    def wants(self, topic: CatalogTopic) -> list[Want]:
        return [Want(ref) for ref in uncovered(topic, self._manifests.get(topic.topic_id))]

    def chores(self, now_ms: int, shut_out: ShutOut) -> list[Chore]:
        found = rewrites(self._manifests, self._rules, now_ms, shut_out.topics)
        return [Chore(one.topic, one.topic_id, msgspec.msgpack.encode(one), one.bytes) for one in found]

    def charge(self) -> bytes:
        return msgspec.msgpack.encode(_Charge(self._store.root, self._dice.token(8).hex()))

    def commit(self, outcomes: Sequence[bytes], now_ms: int) -> Gain:
        gain = Gain()
        by_topic: dict[int, list[TopicOutcome]] = {}
        for encoded in outcomes:
            for made in msgspec.msgpack.decode(encoded, type=Outcome).topics:
                by_topic.setdefault(made.topic_id, []).append(made)
        for topic_id, made_of_it in by_topic.items():
            manifest = self._with(topic_id, made_of_it, now_ms)
            if manifest is not self._manifests.get(topic_id):
                self._store.save(manifest)
                self._manifests[topic_id] = manifest
            gain.topics.add(topic_id)
            for made in made_of_it:
                gain.records += made.rows
                gain.bytes += made.text_bytes
                gain.segments += made.segments
        return gain

    def due_ms(self) -> int | None:
        return next_due(self._manifests, self._rules, self._shut_out.topics)

    def confirmed(self, number: int) -> int:
        """Deletes are masked before anything else is done in a round."""
        return number

    def _with(self, topic_id: int, made_of_it: list[TopicOutcome], now_ms: int) -> Manifest:
        first = made_of_it[0]
        manifest = self._manifests.get(topic_id)
        if manifest is None:
            manifest = Manifest(topic_id=topic_id, epoch=first.epoch, topic=first.topic)
        for made in made_of_it:
            if made.replaced:
                manifest = rewritten(manifest, made.replaced, made.files, made.applied, now_ms)
            elif made.covered:
                manifest = with_files(manifest, made.files, made.covered, now_ms)
        return manifest

    def _load(self) -> None:
        """Reads the manifests once: this process holds the pipeline, so nobody else changes them."""
        if self._swept:
            return
        for topic_id in self._store.topic_ids():
            manifest = self._store.load(topic_id)
            self._store.sweep(topic_id, manifest)
            if manifest is not None:
                self._manifests[topic_id] = manifest
        self._swept = True

    def _save(self, settled: Settled) -> None:
        for topic_id in settled.dropped:
            self._store.remove_topic(topic_id)
            del self._manifests[topic_id]
        for manifest in settled.changed:
            self._store.save(manifest)
            self._manifests[manifest.topic_id] = manifest
        for topic_id, paths in settled.superfluous.items():
            self._store.remove_files(topic_id, paths)
