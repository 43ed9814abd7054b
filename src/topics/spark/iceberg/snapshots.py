"""Iceberg snapshots: a change of the table as one snapshot with its summary, and the expiry of old snapshots."""

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

from topics.spark.iceberg.manifests import TableIO, live_files, manifests_at
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
    """The snapshot after the current one. Times never decrease, because readers refuse a table in which they do.

    So snapshots after one that was made while the clock was ahead have its time. The actual time is in the summary.
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
    """The time of a snapshot by the clock at that time."""
    reported = snapshot.summary.additional_properties.get(_MADE, "") if snapshot.summary is not None else ""
    return int(reported) if reported.isdigit() else snapshot.timestamp_ms


def schema_updates(metadata: TableMetadata, schema: Schema) -> tuple[TableUpdate, ...]:
    """The updates that change the columns to those of a schema; empty if they are equal."""
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
    """The updates that add a snapshot and make it current."""
    ref = {"ref-name": MAIN_BRANCH, "type": "branch", "snapshot-id": snapshot.snapshot_id}
    return AddSnapshotUpdate(snapshot=snapshot), SetSnapshotRefUpdate.model_validate(ref)


def expire_updates(snapshot_ids: Sequence[int]) -> TableUpdate:
    return RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(snapshot_ids)})


def require_current(metadata: TableMetadata) -> TableRequirement:
    """The requirement that the table has not changed since it was read."""
    return AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": metadata.current_snapshot_id})


def summary_matches(snapshot: Snapshot, listed: Sequence[DataFile]) -> bool:
    """Whether the data files are those that the summary of a snapshot counts; true if it counts none."""
    counted: Mapping[str, str] = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    found = {"total-data-files": len(listed), "total-records": sum([file.record_count for file in listed])}
    return all(int(counted.get(name, number)) == number for name, number in found.items())


def summary_of(
    added: Iterable[DataFile], removed: Iterable[DataFile], before: Snapshot | None, same_rows: bool = False
) -> Summary:
    """The snapshot summary, from which engines answer `count(*)` without opening a file."""
    came, went = _counts(added), _counts(removed)
    known: Mapping[str, str] = before.summary.additional_properties if before is not None and before.summary else {}
    reported: dict[str, str] = {}
    for total, (plus, minus) in _TOTALS.items():
        reported[total] = str(int(known.get(total, "0")) + came.get(total, 0) - went.get(total, 0))
        reported |= {name: str(one[total]) for name, one in ((plus, came), (minus, went)) if one.get(total)}
    return Summary(_operation(came, went, same_rows), **reported)


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
    """The operation of a snapshot. Streaming readers skip `replace`, which adds no rows."""
    rows = came.get("total-records", 0)
    if same_rows and went:
        return Operation.REPLACE
    if rows and not went and "total-delete-files" not in came:
        return Operation.APPEND
    return Operation.OVERWRITE if rows else Operation.DELETE


# Snapshot retention: the kept snapshots, the files that each needs, and the files that none needs.
#
# Snapshots are kept as long as retired files, for their readers. Deleted records must be gone from disk by a deadline,
# so there is no time travel beyond that, and tags do not keep a snapshot either.


class History:
    def __init__(self, io: TableIO) -> None:
        self._io = io
        self._manifests: dict[int, list[ManifestFile]] = {}
        self._deletes: dict[str, list[str]] = {}
        """The delete files of each delete manifest."""

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
        """Every manifest list, manifest and delete file that a snapshot needs."""
        found = {snapshot.manifest_list for snapshot in metadata.snapshots}
        found |= {one.manifest_path for manifests in self._manifests.values() for one in manifests}
        found |= {path for files in self._deletes.values() for path in files}
        return found


def in_order(metadata: TableMetadata) -> list[Snapshot]:
    return sorted(metadata.snapshots, key=lambda one: one.sequence_number or 0)


def pinned_snapshots(metadata: TableMetadata, now_ms: int) -> set[int]:
    """The snapshots that tags and branches name, except for expired references."""
    made = {one.snapshot_id: one.timestamp_ms for one in metadata.snapshots}
    return {
        ref.snapshot_id
        for name, ref in metadata.refs.items()
        if name != MAIN_BRANCH
        and (ref.max_ref_age_ms is None or now_ms - made.get(ref.snapshot_id, now_ms) < ref.max_ref_age_ms)
    }


def outdated(metadata: TableMetadata, keep_ms: int, now_ms: int) -> list[int]:
    """The snapshots that were replaced at least `keep_ms` ago, and that no tag or branch names."""
    snapshots, pinned = in_order(metadata), pinned_snapshots(metadata, now_ms)
    return [
        one.snapshot_id
        for one, after in pairwise(snapshots)
        if has_elapsed(made_ms(after), keep_ms, now_ms)
        and one.snapshot_id not in {metadata.current_snapshot_id, *pinned}
    ]
