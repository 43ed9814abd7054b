"""A change of the table as one snapshot: what came, what went, and what it comes to."""

from collections.abc import Iterable, Mapping, Sequence

from pyiceberg.manifest import DataFile, DataFileContent
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


def evolves(metadata: TableMetadata, schema: Schema) -> tuple[TableUpdate, ...]:
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


def shows(snapshot: Snapshot) -> tuple[TableUpdate, ...]:
    """A snapshot joins, and counts."""
    ref = {"ref-name": MAIN_BRANCH, "type": "branch", "snapshot-id": snapshot.snapshot_id}
    return AddSnapshotUpdate(snapshot=snapshot), SetSnapshotRefUpdate.model_validate(ref)


def forgets(snapshot_ids: Sequence[int]) -> TableUpdate:
    return RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(snapshot_ids)})


def current_is(metadata: TableMetadata) -> TableRequirement:
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
