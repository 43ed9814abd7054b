"""Iceberg table of the archive, derived from the archive's ledger.

The ledger is the source of truth. `follow` receives the desired files, compares them with the current version, and
commits the difference as one snapshot. It is idempotent, so it may be interrupted and repeated at any moment. A table
that is missing, has another layout or location, or cannot be read is rebuilt, without opening any data file.

    <archive>/metadata/…                versions, lists and manifests
    <archive>/deletes/<hash>-….parquet  position deletes, one file for each data file
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import TableUpdate

from topics.log.fs import FileSystem
from topics.spark.archive.archive_state import ArchiveState, Copied, Dropped, Event, Masked, Owned, Removed, Rewritten
from topics.spark.archive.data_files import ArchiveFile, Ints, Mask, TableFile, in_parallel, problem_of
from topics.spark.iceberg.catalogs import Pointer, TableDamagedError, Version, misplaced
from topics.spark.iceberg.manifests import (
    PATH_ID,
    RECORDS,
    ManifestMaker,
    Shape,
    TableIO,
    data_entry,
    delete_entry,
    encoded_positions,
    hash_of,
    hidden_positions,
    live_files,
    manifests_at,
    properties,
    write_synced,
)
from topics.spark.iceberg.named_snapshots import with_named_snapshots
from topics.spark.iceberg.snapshots import (
    History,
    expire_updates,
    outdated,
    pinned_snapshots,
    require_current,
    schema_updates,
    snapshot_of,
    snapshot_updates,
    summary_matches,
    summary_of,
)
from topics.system.entropy import Entropy

FILE_BYTES = 128 * 1024 * 1024

_log = logging.getLogger(__name__)


# Table diff: compares the files of the current Iceberg snapshot with the desired files.


class _TableEntry(msgspec.Struct):
    """A live data file and its delete file, each with its manifest."""

    manifest: str
    deletes: str = ""
    deletes_manifest: str = ""
    deletes_bytes: int = 0
    unusable: bool = False
    """Whether the delete file is lost or damaged, so that it is written again."""

    @property
    def hash(self) -> str:
        return "" if self.unusable else self.deletes.rpartition("/")[2].partition("-")[0]


class Change(msgspec.Struct):
    data: list[DataFile] = []
    deletes: list[DataFile] = []
    removed: set[str] = set()
    """Paths of data files and delete files."""

    @property
    def empty(self) -> bool:
        return not (self.data or self.deletes or self.removed)


class TableContents:
    """The files of the current snapshot, by path."""

    def __init__(self) -> None:
        self._entries: dict[str, _TableEntry] = {}
        self._of_deletes: dict[str, _TableEntry] = {}

    def paths(self) -> list[str]:
        return list(self._entries)

    def delete_files(self) -> dict[str, int]:
        """The delete files with their lengths."""
        return {path: entry.deletes_bytes for path, entry in self._of_deletes.items()}

    def deletes_of(self, path: str) -> str | None:
        """The hash of a data file's deletes, empty for none; None where the file is not shown."""
        entry = self._entries.get(path)
        return None if entry is None else entry.hash

    def mark_unusable(self, delete_file: str) -> None:
        self._of_deletes[delete_file].unusable = True

    def manifests_of(self, paths: set[str]) -> set[str]:
        """The manifests of some data and delete files."""
        found = set()
        for path in paths:
            entry = self._entries.get(path)
            found.add(entry.manifest if entry is not None else self._of_deletes[path].deletes_manifest)
        return found

    def remove(self, paths: set[str]) -> None:
        for path in paths:
            self._entries.pop(path, None)
            entry = self._of_deletes.pop(path, None)
            if entry is not None:
                entry.deletes = entry.deletes_manifest = ""

    def put(self, files: Mapping[str, list[DataFile]]) -> None:
        """Adds files by manifest. Data files come first, because delete files refer to them."""
        named = [(manifest, file) for manifest, found in files.items() for file in found]
        for manifest, file in named:
            if file.content == DataFileContent.DATA:
                self._entries.setdefault(file.file_path, _TableEntry("")).manifest = manifest
        for manifest, file in named:
            if file.content == DataFileContent.POSITION_DELETES:
                entry = self._entries[file.lower_bounds[PATH_ID].decode()]
                entry.deletes, entry.deletes_manifest = file.file_path, manifest
                entry.deletes_bytes, entry.unusable = file.file_size_in_bytes, False
                self._of_deletes[file.file_path] = entry

    def diff(
        self,
        fs: FileSystem,
        folder: str,
        entropy: Entropy,
        desired: Mapping[str, TableFile | None],
        shape: Shape = RECORDS,
    ) -> Change:
        """The change that leads to the desired files. Writes the new delete files into the folder."""
        change = Change()
        for path, one in desired.items():
            entry = self._entries.get(path)
            if one is None:
                _drop(path, entry, change)
            elif entry is None or entry.hash != hash_of(one):
                _show(fs, folder, entropy, one, entry, change, shape)
        return change


def _drop(path: str, entry: _TableEntry | None, change: Change) -> None:
    if entry is not None:
        change.removed |= {path, entry.deletes} - {""}


def _show(
    fs: FileSystem,
    folder: str,
    entropy: Entropy,
    desired: TableFile,
    entry: _TableEntry | None,
    change: Change,
    shape: Shape,
) -> None:
    positions = _positions(fs, desired)
    if len(positions) == desired.file.rows:
        # All of its rows are deleted, so the file is left out.
        _drop(desired.path, entry, change)
        return
    if entry is None:
        change.data.append(data_entry(desired, shape))
    elif entry.deletes:
        change.removed.add(entry.deletes)
    if len(positions):
        path = f"{folder}/{hash_of(desired)}-{entropy.token(8).hex()}.parquet"
        change.deletes.append(_write_deletes(fs, path, desired, positions, shape))


def _positions(fs: FileSystem, desired: TableFile) -> Ints:
    try:
        return hidden_positions(fs, desired)
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        # Which of its rows are deleted is unknown, so all are hidden; other files are shown.
        _log.error("a file of the archive cannot be read", extra={"path": desired.path, "error": str(error)})
        return np.arange(desired.file.rows)


def _write_deletes(fs: FileSystem, path: str, desired: TableFile, positions: Ints, shape: Shape) -> DataFile:
    data = encoded_positions(desired.path, positions)
    fs.make_dirs(path.rpartition("/")[0])
    write_synced(fs, path, data)
    return delete_entry(desired, path, len(positions), len(data), shape)


class ArchiveTable:
    """`keep_ms` is how long a snapshot is kept after it was replaced."""

    def __init__(
        self, fs: FileSystem, root: str, pointer: Pointer, entropy: Entropy, keep_ms: int, file_bytes: int = FILE_BYTES,
        shape: Shape = RECORDS,
    ) -> None:  # fmt: skip
        self.shape = shape
        """May be changed between two calls: the next commit evolves the columns."""
        self._fs = fs
        self._root = root
        self._pointer = pointer
        self._entropy = entropy
        self._keep_ms = keep_ms
        self._file_bytes = file_bytes
        self._io = TableIO(fs)
        self._history = History(self._io)
        self._shown = TableContents()
        self._version: Version | None = None
        self._unusable = False
        """Whether there is a table that has to be replaced, even by an empty one."""
        self._is_new = False
        """Whether the table was created, and files of an earlier one may be there."""

    def follow(
        self, changed: Mapping[str, TableFile | None], now_ms: int, whole: bool = False, same_rows: bool = False
    ) -> bool:
        """Shows the desired files, and removes those mapped to None; whether anything changed.

        With `whole` all other files are removed too: the first call of a process has everything. `same_rows` marks a
        change that does not change the visible rows.
        """
        version = self._open(make=any(desired is not None for desired in changed.values()))
        if version is None:
            return False
        if whole:
            for path, _ in self._lost_of(self._shown.delete_files()):
                _log.warning("a delete file of the archive's table is made again", extra={"path": path})
                self._shown.mark_unusable(path)
            if not self._is_new:
                self._sweep(version, now_ms)
            changed = {**dict.fromkeys(self._shown.paths()), **changed}
        change = self._shown.diff(self._fs, f"{self._root}/deletes", self._entropy, changed, self.shape)
        needed = not change.empty or self._unusable or bool(schema_updates(version.metadata, self.shape.schema))
        if needed:
            self._commit(version, change, now_ms, same_rows)
        if whole and self._is_new and self._version is not None:
            # Only now, as until the first commit of a rebuilt table its tags are in the files of the old one alone.
            self._sweep(self._version, now_ms)
            self._is_new = False
        return needed

    def expire(self, now_ms: int) -> None:
        """Expires old snapshots, and removes files that only they needed."""
        version = self._open(make=False)
        if version is None:
            return
        old = self._outdated(version, now_ms)
        if old:
            self._version = None
            version = self._swapped(version, [expire_updates(old)], now_ms)
            self._clean(version, old, now_ms)
            self._version = version

    def entries(self) -> list[DataFile]:
        """The data files of the current snapshot."""
        version = self._open(make=False)
        if version is None:
            return []
        found = live_files(self._io, self._history.manifests(version.metadata.current_snapshot()))
        return [file for files in found.values() for file in files if file.content == DataFileContent.DATA]

    def problems(self, desired: Mapping[str, TableFile] | None) -> list[tuple[str, str]]:
        """Where the table cannot be read, and where it differs from the desired files; `follow` puts it right.

        Without desired files, the lengths of its data files are checked instead. A swapped file of metadata is found
        by the paths, totals and version that it has. Nothing is written.
        """
        try:
            version = self._pointer.load()
            if version is None:
                return [(self._root, "there is no table")] if desired else []
            if version.metadata.location != self._root:
                return [(version.location, "the table is of another place")]
            self._history, self._shown, self._version = History(self._io), TableContents(), None
            self._load(version.metadata)
            snapshot = version.metadata.current_snapshot()
            shown = live_files(self._io, self._history.manifests(snapshot))
        except Exception as error:
            # Readers of a damaged manifest raise what they find in it.
            return [(self._root, f"the table cannot be read: {error}")]
        listed = [file for files in shown.values() for file in files if file.content == DataFileContent.DATA]
        foreign = [file.file_path for file in listed if not file.file_path.startswith(f"{self._root}/")]
        if foreign:
            return [(self._root, f"the table names {foreign[0]}, a file of another table")]
        if misplaced(version) or (snapshot is not None and not summary_matches(snapshot, listed)):
            return [(version.location, "the metadata is not that of the newest version of the table")]
        sizes = {file.file_path: file.file_size_in_bytes for file in listed}
        return self._lost_of(self._shown.delete_files()) + (
            self._lost_of(sizes) if desired is None else self._differences(desired)
        )

    def _differences(self, desired: Mapping[str, TableFile]) -> list[tuple[str, str]]:
        found = [
            (path, "the table names a file that does not count") for path in self._shown.paths() if path not in desired
        ]
        for path, one in desired.items():
            deletes = self._shown.deletes_of(path)
            if deletes is None and len(_positions(self._fs, one)) < one.file.rows:
                found.append((path, "the table does not name the file"))
            elif deletes is not None and deletes != hash_of(one):
                found.append((path, "the table hides other records of the file than are deleted"))
        return found

    def _lost_of(self, files: Mapping[str, int]) -> list[tuple[str, str]]:
        """The files that are lost or differ in length from the table's metadata, each with its problem."""
        found = in_parallel(lambda path: (path, problem_of(self._fs, path, files[path])), list(files), self._root)
        return [(path, problem) for path, problem in found if problem is not None]

    @property
    def schema(self) -> Schema | None:
        """The current columns; None where there is no table, or it was not opened."""
        return self._version.metadata.schema() if self._version is not None else None

    @property
    def rows(self) -> int | None:
        """The rows that the table shows; None where it was not opened."""
        if self._version is None:
            return None
        current = self._version.metadata.current_snapshot()
        totals = current.summary.additional_properties if current is not None and current.summary is not None else {}
        return int(totals.get("total-records", "0")) - int(totals.get("total-position-deletes", "0"))

    @property
    def updated_ms(self) -> int:
        """When it was last changed; 0 where that is unknown."""
        return self._version.metadata.last_updated_ms if self._version is not None else 0

    def drop(self) -> None:
        """Drops the table; its files stay."""
        self._pointer.drop()
        self._version = None

    # Opening

    def _open(self, make: bool) -> Version | None:
        """The current version; with `make` a new one where there is none."""
        if self._version is not None and self.shape.fits(self._version.metadata):
            return self._version
        self._history, self._shown, self._is_new = History(self._io), TableContents(), False
        found: Version | None = None
        try:
            found = self._pointer.load()
            version = self._usable(found)
            if version is not None:
                self._load(version.metadata)
        except TableDamagedError as error:
            _log.warning("the archive's table cannot be read and is made again", extra={"error": str(error)})
            version, self._history, self._shown, self._unusable = None, History(self._io), TableContents(), True
        if version is None and (make or self._unusable):
            version = self._created(found)
        self._version = version
        return version

    def _created(self, unusable: Version | None) -> Version:
        """A new table, with the tags of the one that cannot be used."""
        fresh, self._is_new = self._fresh(), True
        kept = with_named_snapshots(
            self._fs, self._root, self.shape, fresh, unusable.metadata if unusable is not None else None
        )
        if kept is fresh:
            return self._pointer.create(fresh)
        version = self._pointer.restore(kept)
        self._history.load(version.metadata)
        return version

    def _usable(self, version: Version | None) -> Version | None:
        if version is None:
            return None
        metadata = version.metadata
        same = metadata.location == self._root and self.shape.fits(metadata)
        self._unusable = not same
        if self._unusable:
            _log.warning("the archive's table is of another layout or place and is made again")
        return version if same else None

    def _fresh(self) -> TableMetadata:
        shape = self.shape
        words = properties(self._file_bytes, shape.created)
        made = new_table_metadata(shape.created, shape.spec, shape.order, self._root, words)
        # The first commit sets its time.
        return made.model_copy(update={"last_updated_ms": 0})

    def _load(self, metadata: TableMetadata) -> None:
        try:
            self._history.load(metadata)
            self._shown.put(live_files(self._io, self._history.manifests(metadata.current_snapshot())))
        except FileNotFoundError as error:
            raise TableDamagedError(str(error)) from error
        except OSError:
            raise
        except Exception as error:
            # The Avro decoder raises arbitrary exceptions for damaged bytes.
            raise TableDamagedError(f"{type(error).__name__}: {error}") from error

    # Committing

    def _commit(self, version: Version, change: Change, now_ms: int, same_rows: bool) -> None:
        # After any failure from here on, the current version is loaded again.
        self._version = None
        metadata, token = version.metadata, self._entropy.token(16)
        parent = metadata.current_snapshot()
        snapshot_id = int.from_bytes(token[:8], "big") >> 1
        names = (f"{self._root}/metadata/{token.hex()}-{number}.avro" for number in range(1 << 30))
        self._fs.make_dirs(f"{self._root}/metadata")
        maker = ManifestMaker(self._io, snapshot_id, names.__next__, self.shape)
        manifests, gone = self._manifests(maker, parent, change)
        sequence = metadata.next_sequence_number()
        listed = maker.listed(manifests, parent.snapshot_id if parent is not None else None, sequence)
        summary = summary_of([*change.data, *change.deletes], gone, parent, same_rows)
        evolution = schema_updates(metadata, self.shape.schema)
        snapshot = snapshot_of(metadata, snapshot_id, sequence, listed, summary, now_ms, evolution)
        # File names must be durable before the version that needs them is committed.
        for folder in ("deletes", "metadata") if change.deletes else ("metadata",):
            self._fs.sync_dir(f"{self._root}/{folder}")
        old = self._outdated(version, now_ms)
        version = self._swapped(
            version, [*([expire_updates(old)] if old else []), *evolution, *snapshot_updates(snapshot)], now_ms
        )
        self._shown.remove(change.removed)
        self._shown.put(maker.made)
        self._history.add(snapshot, manifests_at(self._io, snapshot.manifest_list))
        if old:
            self._clean(version, old, now_ms)
        self._version = version

    def _manifests(
        self, maker: ManifestMaker, parent: Snapshot | None, change: Change
    ) -> tuple[list[ManifestFile], list[DataFile]]:
        """The manifests of a snapshot, and the files that it removes."""
        found: list[ManifestFile] = []
        gone: list[DataFile] = []
        touched = self._shown.manifests_of(change.removed)
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

    def _swapped(self, version: Version, updates: list[TableUpdate], now_ms: int) -> Version:
        done = self._pointer.commit(version, (require_current(version.metadata),), tuple(updates), now_ms)
        self._unusable = False
        return done

    # Cleaning up

    def _outdated(self, version: Version, now_ms: int) -> list[int]:
        old = outdated(version.metadata, self._keep_ms, now_ms)
        # Somebody may have tagged one since the version was read.
        current = self._pointer.load() if old else None
        pinned = pinned_snapshots(current.metadata, now_ms) if current is not None else ()
        return [one for one in old if one not in pinned]

    def pinned(self, now_ms: int) -> set[str]:
        """The data files that tags and branches name."""
        try:
            version = self._pointer.load()
        except TableDamagedError:
            return set()  # It is rebuilt before a file is removed.
        pinned = pinned_snapshots(version.metadata, now_ms) if version is not None else ()
        if version is None or not pinned:
            return set()
        history = History(self._io)
        history.load(version.metadata)
        found: set[str] = set()
        for snapshot in version.metadata.snapshots:
            if snapshot.snapshot_id in pinned:
                files = live_files(self._io, history.manifests(snapshot))
                found |= {one.file_path for part in files.values() for one in part}
        return found

    def _clean(self, version: Version, old: list[int], now_ms: int) -> None:
        self._history.forget(old)
        self._sweep(version, now_ms)

    def _sweep(self, version: Version, now_ms: int) -> None:
        """Removes files that no snapshot needs: those of expired snapshots and of killed runs."""
        named = self._history.named(version.metadata)
        for folder in ("metadata", "deletes"):
            names = self._names(folder)
            ours = [name for name in names if name.endswith((".avro", ".parquet"))]
            gone = [name for name in ours if f"{self._root}/{folder}/{name}" not in named]
            if folder == "metadata":
                gone += self._pointer.superfluous(names, version, now_ms - self._keep_ms)
            for name in gone:
                self._fs.remove(f"{self._root}/{folder}/{name}")

    def _names(self, folder: str) -> list[str]:
        try:
            return self._fs.list_dir(f"{self._root}/{folder}")
        except FileNotFoundError:
            return []


# Translation of the archive state into table files with their deletes.

_NOTHING = Mask.of(())


class TableFollower:
    """Passes the changes of each commit to the table, or the whole state where the changes are unknown."""

    def __init__(self, table: ArchiveTable, root: str) -> None:
        self._table = table
        self._root = root
        self._followed: int | None = None
        """The number of the commit that the table has followed; None when unknown."""

    def follow(self, state: ArchiveState, events: Sequence[Event], now_ms: int) -> bool:
        reported, self._followed = self._followed, None
        # The events are those of one commit. A failed commit may still be in the ledger.
        next_one = reported is not None and state.number == reported + bool(events)
        done = self._follow(state, events, now_ms) if next_one else self._follow_all(state, now_ms)
        # Set last: after a failure the whole state is passed again.
        self._followed = state.number
        return done

    def _follow_all(self, state: ArchiveState, now_ms: int) -> bool:
        return self._table.follow(self._changed(state, state.files), now_ms, whole=True)

    def _follow(self, state: ArchiveState, events: Sequence[Event], now_ms: int) -> bool:
        """Appends get their own snapshot, so that streaming readers can skip all others."""
        added = [event for event in events if isinstance(event, Copied)]
        others = [event for event in events if not isinstance(event, Copied)]
        done = False
        if added:
            fresh = [file.path for event in added for file in event.files]
            desired = {self._path(path): self._desired(state, state.files[path]) for path in fresh}
            done = self._table.follow(desired, now_ms)
        if others:
            # Erased rows were hidden before, so the visible rows stay the same.
            same_rows = all(isinstance(event, Rewritten | Removed | Owned) for event in others)
            changed = self._changed(state, touched(state, others))
            done |= self._table.follow(changed, now_ms, same_rows=same_rows)
        return done

    def rows(self) -> int | None:
        return self._table.rows

    def expire(self, now_ms: int) -> None:
        self._table.expire(now_ms)

    def pinned(self, now_ms: int) -> frozenset[str]:
        return frozenset(path.removeprefix(f"{self._root}/") for path in self._table.pinned(now_ms))

    def problems(self, state: ArchiveState) -> list[tuple[str, str]]:
        """Where and how the table differs from the archive."""
        return self._table.problems(
            {self._path(path): self._desired(state, file) for path, file in state.files.items()}
        )

    def _changed(self, state: ArchiveState, paths: Iterable[str]) -> dict[str, TableFile | None]:
        changed: dict[str, TableFile | None] = {self._path(path): None for path in state.retired}
        return changed | {
            self._path(path): self._desired(state, state.files[path]) for path in paths if path in state.files
        }

    def _desired(self, state: ArchiveState, file: ArchiveFile) -> TableFile:
        return TableFile(self._path(file.path), file, hidden_runs(state, file))

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"


def touched(state: ArchiveState, events: Iterable[Event]) -> set[str]:
    """The live files that events may have changed."""
    paths: set[str] = set()
    for event in events:
        match event:
            case Rewritten():
                paths.update(file.path for file in event.new)
            case Masked():
                paths.update(state.by_topic.get(event.topic_id, ()))
            case Dropped():
                for topic_id in event.topic_ids:
                    paths.update(state.by_topic.get(topic_id, ()))
            case _:
                pass
    return paths


def hidden_runs(state: ArchiveState, file: ArchiveFile) -> tuple[Mask, ...]:
    """The hidden seqs of each run of a file. Fast for the common case of runs without deletes."""
    if not file.hidden_ms:
        return ()
    topics = state.topics
    found = []
    for run in file.runs:
        topic = topics.get(run.topic_id)
        found.append(_NOTHING if topic is not None and not len(topic.deleted) else state.hidden_in(run))
    return tuple(found)
