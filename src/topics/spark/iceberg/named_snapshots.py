"""Tags and branches of a table that is rebuilt from the ledger: they keep their snapshots.

The ledger has no Iceberg snapshots, but the files of a tagged one are still in the archive, because expiry and the
removal of replaced files respect tags. So a rebuilt table begins with the tagged snapshots of the version that cannot
be used, or of the newest one that can be read where a metadata file or a catalog's entry is lost. A tag that was
changed in a lost version has its previous state then. A snapshot with a lost list, manifest or file is not kept.
"""

import logging
import re

from pyiceberg.exceptions import ValidationError
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from topics.log.fs import FileSystem, read_whole
from topics.spark.archive.data_files import in_parallel, problem_of
from topics.spark.iceberg.manifests import Shape, TableIO, live_files, manifests_at

_VERSION = re.compile(r"v?(\d+)(-[^.]*)?\.metadata\.json")
_VERSIONS_MAX = 64
"""The metadata files, newest first, in which the newest readable one is searched."""

_log = logging.getLogger(__name__)


def with_named_snapshots(
    fs: FileSystem, root: str, shape: Shape, fresh: TableMetadata, unusable: TableMetadata | None
) -> TableMetadata:
    """The metadata of a rebuilt table with the tags and branches that the table had. `fresh` where it had none."""
    before = unusable if unusable is not None else newest_version(fs, root)
    if before is None or before.location != root:
        return fresh
    refs = {name: ref for name, ref in before.refs.items() if name != MAIN_BRANCH}
    if refs and not shape.fits(before):
        _log.warning("a tag of the archive's table is lost", extra={"tags": sorted(refs), "why": "the table's layout"})
        return fresh
    known = {one.snapshot_id: one for one in before.snapshots}
    kept: dict[int, Snapshot] = {}
    for name, ref in list(refs.items()):
        snapshot = known.get(ref.snapshot_id)
        why = _problem(fs, root, snapshot) if ref.snapshot_id not in kept else None
        if why is None and snapshot is not None:
            kept[ref.snapshot_id] = snapshot
        else:
            del refs[name]
            _log.warning("a tag of the archive's table is lost", extra={"tags": [name], "why": why})
    if not refs:
        return fresh
    found = {
        "refs": refs, "snapshots": sorted(kept.values(), key=lambda one: one.sequence_number or 0),
        "schemas": before.schemas, "current_schema_id": before.current_schema_id,
        "last_column_id": before.last_column_id, "last_sequence_number": before.next_sequence_number() - 1,
        "last_updated_ms": before.last_updated_ms,
    }  # fmt: skip
    return fresh.model_copy(update=found)


def newest_version(fs: FileSystem, root: str) -> TableMetadata | None:
    """The newest metadata file of a table's folder that can be read and is of this place."""
    try:
        names = fs.list_dir(f"{root}/metadata")
    except FileNotFoundError:
        return None
    numbered = [(int(match[1]), name) for name in names if (match := _VERSION.fullmatch(name)) is not None]
    found: list[TableMetadata] = []
    for _, name in sorted(numbered, reverse=True)[:_VERSIONS_MAX]:
        try:
            metadata = TableMetadataUtil.parse_raw((read_whole(fs, f"{root}/metadata/{name}") or b"").decode())
        except (ValueError, ValidationError):
            continue
        found += [metadata] if metadata.location == root else []
    # A catalog numbers a rebuilt table from zero.
    return max(found, key=lambda one: (one.last_updated_ms, one.next_sequence_number()), default=None)


def _problem(fs: FileSystem, root: str, snapshot: Snapshot | None) -> str | None:
    """Why a snapshot cannot be read; None where it can."""
    if snapshot is None:
        return "the snapshot is not there"
    io = TableIO(fs)
    try:
        files = [one for part in live_files(io, manifests_at(io, snapshot.manifest_list)).values() for one in part]
    except Exception as error:
        # The Avro decoder raises arbitrary exceptions for damaged bytes.
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise
        return f"{type(error).__name__}: {error}"
    found = in_parallel(lambda one: problem_of(fs, one.file_path, one.file_size_in_bytes), files, root)
    return next((problem for problem in found if problem is not None), None)
