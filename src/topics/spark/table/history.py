"""The snapshots of the table that are kept, what each of them names, and which files nobody needs any longer.

Snapshots are kept for as long as files are that no longer count, for those who read them. What is deleted must be gone
from disk by a deadline, so there is no older history to travel to, and tags of others do not hold it either.
"""

from collections.abc import Sequence
from itertools import pairwise

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from topics.spark.deadlines import is_over
from topics.spark.table.io import TableIO
from topics.spark.table.manifests import live_files, manifests_at
from topics.spark.table.snapshots import made_ms


class History:
    def __init__(self, io: TableIO) -> None:
        self._io = io
        self._manifests: dict[int, list[ManifestFile]] = {}
        self._deletes: dict[str, list[str]] = {}
        """The files of deletes that each manifest of deletes names."""

    def load(self, metadata: TableMetadata) -> None:
        for snapshot in metadata.snapshots:
            self.add(snapshot, manifests_at(self._io, snapshot.manifest_list))

    def add(self, snapshot: Snapshot, manifests: Sequence[ManifestFile]) -> None:
        self._manifests[snapshot.snapshot_id] = list(manifests)
        fresh = [
            one for one in manifests
            if one.content == ManifestContent.DELETES and one.manifest_path not in self._deletes
        ]  # fmt: skip
        for path, files in live_files(self._io, fresh).items():
            self._deletes[path] = [file.file_path for file in files]

    def manifests(self, snapshot: Snapshot | None) -> list[ManifestFile]:
        return self._manifests[snapshot.snapshot_id] if snapshot is not None else []

    def forget(self, snapshot_ids: Sequence[int]) -> None:
        for snapshot_id in snapshot_ids:
            self._manifests.pop(snapshot_id, None)
        used = {one.manifest_path for manifests in self._manifests.values() for one in manifests}
        self._deletes = {path: files for path, files in self._deletes.items() if path in used}

    def named(self, metadata: TableMetadata) -> set[str]:
        """Every list, manifest and file of deletes that some snapshot needs."""
        found = {snapshot.manifest_list for snapshot in metadata.snapshots}
        found |= {one.manifest_path for manifests in self._manifests.values() for one in manifests}
        found |= {path for files in self._deletes.values() for path in files}
        return found


def in_order(metadata: TableMetadata) -> list[Snapshot]:
    return sorted(metadata.snapshots, key=lambda one: one.sequence_number or 0)


def outdated(metadata: TableMetadata, keep_ms: int, now_ms: int) -> list[int]:
    """The snapshots in whose place another has stood for so long."""
    snapshots = in_order(metadata)
    return [
        one.snapshot_id
        for one, after in pairwise(snapshots)
        if is_over(made_ms(after), keep_ms, now_ms) and one.snapshot_id != metadata.current_snapshot_id
    ]
