"""What the manifests of the archive mean for the table: their files, each with what is deleted in it."""

from collections.abc import Iterator, Mapping
from datetime import date

from topics.spark.archive.manifest import ArchivedFile, Manifest
from topics.spark.archive.masks import Mask
from topics.spark.archive.store import ArchiveStore
from topics.spark.table.buckets import bucket_of
from topics.spark.table.files import Run, TableFile, Wanted
from topics.spark.table.table import ArchiveTable

_EPOCH = date(1970, 1, 1)


class TableFollower:
    """Tells the table what changed. Manifests are never changed in place, so another object is another state."""

    def __init__(self, table: ArchiveTable, store: ArchiveStore) -> None:
        self._table = table
        self._store = store
        self._told: dict[int, Manifest] | None = None

    def follow(self, manifests: Mapping[int, Manifest], now_ms: int) -> bool:
        """Makes the table show what the manifests say; whether anything was to be changed. The first time says all."""
        told, self._told = self._told, None
        known = told or {}
        changed: dict[str, Wanted | None] = {}
        for topic_id in known.keys() - manifests.keys():
            changed |= {path: None for path in self._paths(known[topic_id])}
        for topic_id, manifest in manifests.items():
            before = known.get(topic_id)
            if manifest is not before:
                changed |= self._difference(before, manifest)
        done = self._table.follow(changed, now_ms, whole=told is None) if changed or told is None else False
        # Only now: whatever failed on the way is told again, and all of it.
        self._told = dict(manifests)
        return done

    def expire(self, now_ms: int, at_once: bool = False) -> None:
        """Forgets snapshots that name files which are about to be removed."""
        self._table.expire(now_ms, at_once)

    def _difference(self, before: Manifest | None, after: Manifest) -> dict[str, Wanted | None]:
        old = before.files if before is not None else ()
        masks = before is not None and before.deleted is not after.deleted
        known = {} if masks else {file.path: file for file in old}
        mask = Mask.of(after.deleted)
        changed: dict[str, Wanted | None] = dict.fromkeys(self._paths(before) if before is not None else ())
        for file in after.files:
            path = self._path(after, file)
            if known.get(file.path) is file:
                del changed[path]
            else:
                changed[path] = self._wanted(after, file, mask)
        return changed

    def _wanted(self, manifest: Manifest, file: ArchivedFile, mask: Mask) -> Wanted:
        run = Run(manifest.topic, manifest.epoch, file.first_seq, file.last_seq, file.rows)
        day = (date.fromisoformat(file.date) - _EPOCH).days
        shown = TableFile(
            self._path(manifest, file), day, bucket_of(manifest.topic), file.rows, file.bytes, file.first_ts,
            file.last_ts, (run,),
        )  # fmt: skip
        hidden = mask.within(file.first_seq, file.last_seq)
        return Wanted(shown, {manifest.epoch: hidden} if len(hidden) else {})

    def _paths(self, manifest: Manifest) -> Iterator[str]:
        return (self._path(manifest, file) for file in manifest.files)

    def _path(self, manifest: Manifest, file: ArchivedFile) -> str:
        return f"{self._store.topic_folder(manifest.topic_id)}/{file.path}"
