"""Table diff: compares the files of the current Iceberg snapshot with the desired files."""

import logging
from collections.abc import Mapping

import msgspec
import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile, DataFileContent

from topics.log.fs import FileSystem
from topics.spark.archive.data_files import TableFile
from topics.spark.archive.delete_masks import Ints
from topics.spark.iceberg.file_io import write_synced
from topics.spark.iceberg.manifests import (
    PATH_ID,
    data_entry,
    delete_entry,
    encoded_positions,
    hash_of,
    hidden_positions,
)
from topics.spark.iceberg.table_schema import RECORDS, Shape
from topics.system.entropy import Entropy

_log = logging.getLogger(__name__)


class _TableEntry(msgspec.Struct):
    """A live data file and its delete file, each with its manifest."""

    manifest: str
    deletes: str = ""
    deletes_manifest: str = ""

    @property
    def hash(self) -> str:
        return self.deletes.rpartition("/")[2].partition("-")[0]


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
