"""A change of the table as one snapshot: what came, what went, and what it comes to."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from topics.spark.iceberg.file_io import TableIO
from topics.spark.iceberg.manifests import live_files, manifests_at
from topics.spark.segment_reader import has_elapsed

_MADE = "topics.made-ms"

_TOTALS = {
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}


def snapshot_of(
    metadata: TableMetadata, snapshot_id: int, sequence: int, manifest_list: str, summary: Summary, now_ms: int,
    evolution: Sequence[TableUpdate] = (),
) -> Snapshot:  # fmt: skip
    """What follows the snapshot that counts. Times never run back, because readers refuse a table in which they do.

    So behind one that was made while the clock was ahead, all say its time. When each was made stands in its summary.
    """
    summary[_MADE] = str(now_ms)
    fields = {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": metadata.current_snapshot_id,
        "sequence-number": sequence,
        "timestamp-ms": max(now_ms, metadata.last_updated_ms),
        "manifest-list": manifest_list,
        "summary": summary,
        "schema-id": _schema_id(metadata, evolution),
    }
    return Snapshot.model_validate(fields)


def made_ms(snapshot: Snapshot) -> int:
    """When a snapshot was made, by the clock of then."""
    told = snapshot.summary.additional_properties.get(_MADE, "") if snapshot.summary is not None else ""
    return int(told) if told.isdigit() else snapshot.timestamp_ms


def schema_updates(metadata: TableMetadata, schema: Schema) -> tuple[TableUpdate, ...]:
    """The columns become those of a schema; nothing where they are."""
    if metadata.schema() == schema:
        return ()
    for known in metadata.schemas:
        if known == schema:
            return (SetCurrentSchemaUpdate.model_validate({"schema-id": known.schema_id}),)
    number = 1 + max(known.schema_id for known in metadata.schemas)
    fresh = Schema(*schema.fields, schema_id=number)
    return AddSchemaUpdate(schema=fresh), SetCurrentSchemaUpdate.model_validate({"schema-id": number})


def _schema_id(metadata: TableMetadata, evolution: Sequence[TableUpdate]) -> int:
    for update in evolution:
        if isinstance(update, SetCurrentSchemaUpdate):
            return update.schema_id
    return metadata.current_schema_id


def snapshot_updates(snapshot: Snapshot) -> tuple[TableUpdate, ...]:
    """A snapshot joins, and counts."""
    ref = {"ref-name": MAIN_BRANCH, "type": "branch", "snapshot-id": snapshot.snapshot_id}
    return AddSnapshotUpdate(snapshot=snapshot), SetSnapshotRefUpdate.model_validate(ref)


def expire_updates(snapshot_ids: Sequence[int]) -> TableUpdate:
    return RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(snapshot_ids)})


def require_current(metadata: TableMetadata) -> TableRequirement:
    """That nobody else has changed the table since it was looked at."""
    return AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": metadata.current_snapshot_id})


def summary_of(
    added: Iterable[DataFile], removed: Iterable[DataFile], before: Snapshot | None, same_rows: bool = False
) -> Summary:
    """The counts that engines look at, such as those that answer `count(*)` without opening a file."""
    came, went = _counts(added), _counts(removed)
    known: Mapping[str, str] = before.summary.additional_properties if before is not None and before.summary else {}
    told: dict[str, str] = {}
    for total, (plus, minus) in _TOTALS.items():
        told[total] = str(int(known.get(total, "0")) + came.get(total, 0) - went.get(total, 0))
        told |= {name: str(one[total]) for name, one in ((plus, came), (minus, went)) if one.get(total)}
    return Summary(_operation(came, went, same_rows), **told)


def _counts(files: Iterable[DataFile]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for file in files:
        data = file.content == DataFileContent.DATA
        one = ("total-data-files", "total-records") if data else ("total-delete-files", "total-position-deletes")
        for name, value in zip(
            (*one, "total-files-size"), (1, file.record_count, file.file_size_in_bytes), strict=True
        ):
            counts[name] = counts.get(name, 0) + value
    return counts


def _operation(came: Mapping[str, int], went: Mapping[str, int], same_rows: bool) -> Operation:
    """By this word streams over the table know what to pass by: a rewrite brings nothing new."""
    rows = came.get("total-records", 0)
    if same_rows and went:
        return Operation.REPLACE
    if rows and not went and "total-delete-files" not in came:
        return Operation.APPEND
    return Operation.OVERWRITE if rows else Operation.DELETE


# The snapshots of the table that are kept, what each of them names, and which files nobody needs any longer.
#
# Snapshots are kept for as long as files are that no longer count, for those who read them. What is deleted must be
# gone from disk by a deadline, so there is no older history to travel to, and tags of others do not hold it either.


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
        if has_elapsed(made_ms(after), keep_ms, now_ms) and one.snapshot_id != metadata.current_snapshot_id
    ]
