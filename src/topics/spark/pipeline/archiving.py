"""The archive as a product of the pipeline."""

from collections.abc import Collection

import msgspec

from topics.formats.catalog import Catalog
from topics.spark.archive.manifest import Manifest, rewritten, with_files
from topics.spark.archive.planning import ArchivePlan, ArchiveRules, Copy, Rewrite, backlog_of, next_due, plan_archive
from topics.spark.archive.showing import Follower
from topics.spark.archive.store import ArchiveStore
from topics.spark.archive.tasks import ArchiveTask, Outcome, TopicOutcome
from topics.spark.backlog import Backlog
from topics.spark.pipeline.products import Gain
from topics.spark.segments import SegmentRef
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout
from topics.storage.replaced import read_whole, replace_file
from topics.system.dice import Dice

NAME = "archive"


class CatalogWentBackError(Exception):
    """The catalog is older than one whose deletes were applied: a folder was put back from a copy."""


class _Work(msgspec.Struct, frozen=True):
    root: str
    cold_root: str | None
    archive: str
    run: str
    task: Copy | Rewrite


def perform(fs: FileSystem, work: bytes) -> bytes:
    """Runs in a task."""
    piece = msgspec.msgpack.decode(work, type=_Work)
    task = ArchiveTask(fs, Layout(piece.root, piece.cold_root), piece.archive, piece.run)
    return msgspec.msgpack.encode(task.perform(piece.task))


class ArchiveProduct:
    name = NAME

    def __init__(
        self,
        fs: FileSystem,
        layout: Layout,
        root: str,
        rules: ArchiveRules,
        dice: Dice,
        table: Follower | None = None,
    ) -> None:
        self._fs = fs
        self._layout = layout
        self._store = ArchiveStore(fs, root)
        self._rules = rules
        self._dice = dice
        self._table = table
        self._manifests: dict[int, Manifest] = {}
        self._catalog: Catalog | None = None
        self._seen: int | None = None
        self._loaded = self._swept = False
        self._shut_out: Collection[int] = ()

    def plan(self, catalog: Catalog, now_ms: int, shut_out: Collection[int]) -> list[bytes]:
        self._check_forward(catalog)
        self._load()
        plan = plan_archive(catalog, self._manifests, self._rules, now_ms, shut_out)
        self._settle(plan, now_ms)
        self._catalog, self._shut_out = catalog, shut_out
        run = self._dice.token(8).hex()
        tasks: list[Copy | Rewrite] = [*plan.copies, *plan.rewrites]
        place = (self._layout.root, self._layout.cold_root, self._store.root, run)
        return [msgspec.msgpack.encode(_Work(*place, task)) for task in tasks]

    def split(self, work: bytes) -> list[tuple[int, str, bytes]]:
        piece = msgspec.msgpack.decode(work, type=_Work)
        if isinstance(piece.task, Rewrite):
            return [(piece.task.topic_id, piece.task.topic, work)]
        by_topic: dict[int, list[SegmentRef]] = {}
        for ref in piece.task.refs:
            by_topic.setdefault(ref.topic_id, []).append(ref)
        return [
            (topic_id, refs[0].topic, msgspec.msgpack.encode(msgspec.structs.replace(piece, task=Copy(refs))))
            for topic_id, refs in by_topic.items()
        ]

    def commit(self, outcomes: list[bytes], now_ms: int) -> Gain:
        gain = Gain()
        by_topic: dict[int, list[TopicOutcome]] = {}
        for encoded in outcomes:
            outcome = msgspec.msgpack.decode(encoded, type=Outcome)
            gain.failures += outcome.failures
            for made in outcome.topics:
                by_topic.setdefault(made.topic_id, []).append(made)
        for topic_id, made_of_it in by_topic.items():
            manifest = self._with(topic_id, made_of_it, now_ms)
            if manifest is not self._manifests.get(topic_id):
                self._store.save(manifest)
                self._manifests[topic_id] = manifest
            for made in made_of_it:
                gain.records += made.rows
                gain.bytes += made.text_bytes
                gain.segments += made.segments
        if self._table is not None:
            self._table.follow(self._manifests, now_ms)
        return gain

    def backlog(self) -> Backlog:
        return Backlog() if self._catalog is None else backlog_of(self._catalog, self._manifests)

    def due_ms(self) -> int | None:
        return next_due(self._manifests, self._rules, self._shut_out)

    def finish(self, catalog: Catalog) -> None:
        """Confirms the deletes of this catalog; the engine forgets them then."""
        if self._seen is None or catalog.head.number > self._seen:
            self._fs.make_dirs(self._layout.pipeline)
            replace_file(self._fs, self._layout.pipeline_seen, b"%d" % catalog.head.number)
            self._seen = catalog.head.number

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
        if self._loaded:
            return
        found = {topic_id: self._store.load(topic_id) for topic_id in self._store.topic_ids()}
        self._manifests = {topic_id: manifest for topic_id, manifest in found.items() if manifest is not None}
        self._loaded = True

    def _sweep(self) -> None:
        """Once a process: what killed runs left goes, but not before the table has stopped naming it."""
        if self._swept:
            return
        for topic_id in self._store.topic_ids():
            self._store.sweep(topic_id, self._manifests.get(topic_id))
        self._swept = True

    def _settle(self, plan: ArchivePlan, now_ms: int) -> None:
        """Manifests first, then the table that follows them, and only then files that neither names."""
        for topic_id in plan.dropped:
            self._store.remove_manifest(topic_id)
            del self._manifests[topic_id]
        for manifest in plan.changed:
            self._store.save(manifest)
            self._manifests[manifest.topic_id] = manifest
        if self._table is not None:
            self._table.follow(self._manifests, now_ms)
            if plan.superfluous or plan.dropped:
                self._table.expire(now_ms, at_once=bool(plan.dropped))
        self._sweep()
        for topic_id in plan.dropped:
            self._store.remove_topic(topic_id)
        for topic_id, paths in plan.superfluous.items():
            self._store.remove_files(topic_id, paths)

    def _check_forward(self, catalog: Catalog) -> None:
        if self._seen is None:
            data = read_whole(self._fs, self._layout.pipeline_seen) or b""
            self._seen = int(data) if data.isdigit() else 0
        if catalog.head.number < self._seen:
            raise CatalogWentBackError(
                f"the catalog has number {catalog.head.number}, and {self._seen} was applied to the archive already: "
                "the data folder was put back from an older copy. Move the archive and the folder pipeline away to "
                "begin again"
            )
