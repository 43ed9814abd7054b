"""The archive as one Iceberg table: it follows what the archive's manifests say.

The manifests are what is true; the table is made of them. `follow` is told how files are to be seen, compares that with
the version that counts, and commits the difference as one snapshot. So it may be stopped at any moment and told again:
what is there is not added twice, and what is gone is not removed twice. A table that is missing, is of another layout,
lies in another place or cannot be read is made anew, which needs no data file to be opened.

    <archive>/metadata/…                versions, lists and manifests
    <archive>/deletes/<hash>-….parquet  the places of deleted rows in one data file each
"""

import logging
from collections.abc import Iterable, Mapping

import msgspec
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

from topics.spark.table.entries import data_entry, delete_entry
from topics.spark.table.files import TableFile, Wanted
from topics.spark.table.history import History, in_order, outdated
from topics.spark.table.io import TableIO, write_synced
from topics.spark.table.manifests import ManifestMaker, live_files, manifests_at
from topics.spark.table.pointers import Pointer, TableDamagedError, Version
from topics.spark.table.positions import PATH_ID, encoded_positions, hash_of, hidden_positions
from topics.spark.table.schema import ORDER, SCHEMA, SPEC, properties
from topics.spark.table.snapshots import summary_of
from topics.storage.fs import FileSystem
from topics.system.dice import Dice

FILE_BYTES = 128 * 1024 * 1024

_log = logging.getLogger(__name__)


class _Held(msgspec.Struct):
    """A data file that the table shows, and what it hides of it."""

    manifest: str
    deletes: str = ""
    deletes_manifest: str = ""

    @property
    def hash(self) -> str:
        return self.deletes.rpartition("/")[2].partition("-")[0]


class _Change(msgspec.Struct):
    data: list[DataFile] = []
    deletes: list[DataFile] = []
    removed: set[str] = set()
    """Paths of both kinds of files."""

    @property
    def empty(self) -> bool:
        return not (self.data or self.deletes or self.removed)


class ArchiveTable:
    def __init__(
        self, fs: FileSystem, root: str, pointer: Pointer, dice: Dice, keep_ms: int, file_bytes: int = FILE_BYTES
    ) -> None:
        self._fs = fs
        self._root = root
        self._pointer = pointer
        self._dice = dice
        self._keep_ms = keep_ms
        self._file_bytes = file_bytes
        self._io = TableIO(fs)
        self._history = History(self._io)
        self._version: Version | None = None
        self._held: dict[str, _Held] = {}

    def follow(self, changed: Mapping[str, Wanted | None], now_ms: int, whole: bool = False) -> bool:
        """Shows files as they are wanted, and no longer those that are not; whether anything was to be changed.

        With `whole` all others are not wanted either: the first call of a process says everything.
        """
        version = self._open(bool(changed))
        if version is None:
            return False
        if whole:
            self._sweep(now_ms - self._keep_ms)
            changed = {**{path: None for path in self._held if path not in changed}, **changed}
        change = self._compared(changed)
        if not change.empty:
            self._commit(version, change, now_ms)
        return not change.empty

    def expire(self, now_ms: int) -> int:
        """Forgets old snapshots and removes what only they named. Files that stopped counting up to the moment that is
        returned are named by no snapshot any longer."""
        before = now_ms - self._keep_ms
        version = self._open(False)
        if version is None:
            return before
        old = outdated(version.metadata, before)
        if old:
            self._swap(version, (RemoveSnapshotsUpdate(snapshot_ids=old),), now_ms)
            self._clean(old, before)
        return self._settled(before)

    # What the table is

    def _open(self, wanted: bool) -> Version | None:
        """The version that counts, a new one where there is none and one is wanted."""
        if self._version is not None:
            return self._version
        self._history, self._held = History(self._io), {}
        try:
            self._version = self._usable(self._pointer.load())
            if self._version is not None:
                self._load(self._version.metadata)
        except (TableDamagedError, FileNotFoundError, ValueError, EOFError) as error:
            _log.warning("the archive's table cannot be read and is made again", extra={"error": str(error)})
            self._version, self._history, self._held = None, History(self._io), {}
        if self._version is None and wanted:
            self._version = self._pointer.create(self._fresh())
        return self._version

    def _usable(self, version: Version | None) -> Version | None:
        if version is None:
            return None
        metadata = version.metadata
        same = metadata.schema() == SCHEMA and metadata.spec() == SPEC and metadata.location == self._root
        if not same:
            _log.warning("the archive's table is of another layout or place and is made again")
        return version if same else None

    def _fresh(self) -> TableMetadata:
        made = new_table_metadata(SCHEMA, SPEC, ORDER, self._root, properties(self._file_bytes))
        # Its time is that of the first commit.
        return made.model_copy(update={"last_updated_ms": 0})

    def _load(self, metadata: TableMetadata) -> None:
        self._history.load(metadata)
        self._hold(live_files(self._io, self._history.manifests(metadata.current_snapshot())))

    def _hold(self, files: Mapping[str, list[DataFile]]) -> None:
        """Notes what is shown; data files come first, because those of deletes belong to them."""
        named = [(manifest, file) for manifest, found in files.items() for file in found]
        for manifest, file in named:
            if file.content == DataFileContent.DATA:
                held = self._held.setdefault(file.file_path, _Held(manifest))
                held.manifest = manifest
        for manifest, file in named:
            if file.content == DataFileContent.POSITION_DELETES:
                held = self._held[file.lower_bounds[PATH_ID].decode()]
                held.deletes, held.deletes_manifest = file.file_path, manifest

    # What has to be changed

    def _compared(self, changed: Mapping[str, Wanted | None]) -> _Change:
        change = _Change()
        for path, wanted in changed.items():
            held = self._held.get(path)
            if wanted is None:
                self._drop(path, held, change)
            elif held is None or held.hash != hash_of(wanted):
                self._show(wanted, held, change)
        return change

    def _drop(self, path: str, held: _Held | None, change: _Change) -> None:
        if held is not None:
            change.removed |= {path, held.deletes} - {""}

    def _show(self, wanted: Wanted, held: _Held | None, change: _Change) -> None:
        file = wanted.file
        positions = hidden_positions(self._fs, wanted) if wanted.hidden else ()
        if len(positions) == file.rows:
            # Nothing of it is left to be shown, and a file that is not there costs no reader anything.
            self._drop(file.path, held, change)
            return
        if held is None:
            change.data.append(data_entry(file))
        elif held.deletes:
            change.removed.add(held.deletes)
        if len(positions):
            change.deletes.append(self._write_deletes(file, hash_of(wanted), encoded_positions(file.path, positions), len(positions)))

    def _write_deletes(self, file: TableFile, told: str, data: bytes, rows: int) -> DataFile:
        self._fs.make_dirs(f"{self._root}/deletes")
        path = f"{self._root}/deletes/{told}-{self._dice.token(8).hex()}.parquet"
        write_synced(self._fs, path, data)
        return delete_entry(file, path, rows, len(data))

    # How it is changed

    def _commit(self, version: Version, change: _Change, now_ms: int) -> None:
        metadata = version.metadata
        parent, token = metadata.current_snapshot(), self._dice.token(16)
        snapshot_id = int.from_bytes(token[:8], "big") >> 1
        names = (f"{self._root}/metadata/{token.hex()}-{number}.avro" for number in range(1 << 30))
        self._fs.make_dirs(f"{self._root}/metadata")
        maker = ManifestMaker(self._io, snapshot_id, names.__next__)
        manifests, gone = self._manifests(maker, parent, change)
        sequence = metadata.last_sequence_number + 1
        snapshot = Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent.snapshot_id if parent is not None else None,
            sequence_number=sequence,
            timestamp_ms=max(now_ms, metadata.last_updated_ms),
            manifest_list=maker.listed(manifests, parent.snapshot_id if parent is not None else None, sequence),
            summary=summary_of([*change.data, *change.deletes], gone, parent),
            schema_id=metadata.current_schema_id,
        )
        for folder in ("deletes", "metadata") if change.deletes else ("metadata",):
            # Names come before the version that needs them.
            self._fs.sync_dir(f"{self._root}/{folder}")
        old = outdated(metadata, now_ms - self._keep_ms)
        updates: list[TableUpdate] = [RemoveSnapshotsUpdate(snapshot_ids=old)] if old else []
        updates += [
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(
                ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id
            ),
        ]  # fmt: skip
        self._swap(version, tuple(updates), now_ms)
        self._note(snapshot, change, maker.made)
        if old:
            self._clean(old, now_ms - self._keep_ms)

    def _manifests(
        self, maker: ManifestMaker, parent: Snapshot | None, change: _Change
    ) -> tuple[list[ManifestFile], list[DataFile]]:
        """The manifests of a snapshot, and the files that it no longer shows."""
        found: list[ManifestFile] = []
        gone: list[DataFile] = []
        touched = self._touched(change.removed)
        for manifest in self._history.manifests(parent):
            if manifest.manifest_path in touched:
                left, went = maker.without(manifest, change.removed)
                found += left
                gone += went
            else:
                found.append(manifest)
        found += maker.added(ManifestContent.DATA, change.data)
        found += maker.added(ManifestContent.DELETES, change.deletes)
        return maker.merged(found), gone

    def _touched(self, removed: Iterable[str]) -> set[str]:
        found = set()
        by_deletes = {held.deletes: held for held in self._held.values() if held.deletes}
        for path in removed:
            held = self._held.get(path)
            found.add(held.manifest if held is not None else by_deletes[path].deletes_manifest)
        return found

    def _swap(self, version: Version, updates: tuple[TableUpdate, ...], now_ms: int) -> None:
        current = version.metadata.current_snapshot()
        requirement = AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=current.snapshot_id if current else None)
        # Whatever happens now, what counts has to be looked at again before anything else is done.
        self._version = None
        self._version = self._pointer.commit(version, (requirement,), updates, now_ms)

    def _note(self, snapshot: Snapshot, change: _Change, made: Mapping[str, list[DataFile]]) -> None:
        for path in change.removed:
            self._held.pop(path, None)
        for held in self._held.values():
            if held.deletes in change.removed:
                held.deletes = held.deletes_manifest = ""
        self._hold(made)
        self._history.add(snapshot, manifests_at(self._io, snapshot.manifest_list))

    # What is left behind

    def _clean(self, old: list[int], before_ms: int) -> None:
        self._history.forget(old)
        self._sweep(before_ms)

    def _sweep(self, before_ms: int) -> None:
        """Removes what no snapshot needs: that of old ones, and what a killed run left."""
        assert self._version is not None
        named = self._history.named(self._version.metadata)
        for folder in ("metadata", "deletes"):
            names = self._names(folder)
            gone = [name for name in names if name.endswith((".avro", ".parquet"))]
            gone = [name for name in gone if f"{self._root}/{folder}/{name}" not in named]
            if folder == "metadata":
                gone += self._pointer.superfluous(names, self._version, before_ms)
            for name in gone:
                self._fs.remove(f"{self._root}/{folder}/{name}")

    def _names(self, folder: str) -> list[str]:
        try:
            return self._fs.list_dir(f"{self._root}/{folder}")
        except FileNotFoundError:
            return []

    def _settled(self, before_ms: int) -> int:
        """Up to when files stopped counting that no snapshot names any longer."""
        snapshots = in_order(self._version.metadata) if self._version is not None else []
        return min(before_ms, snapshots[0].timestamp_ms) if snapshots else before_ms
