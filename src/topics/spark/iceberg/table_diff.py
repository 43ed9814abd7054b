"""What the table shows, and how that differs from what is wanted."""

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


class _Held(msgspec.Struct):
    """A data file that is shown, and the file that hides some of its rows; each with the manifest that names it."""

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
    """Paths of both kinds of files."""

    @property
    def empty(self) -> bool:
        return not (self.data or self.deletes or self.removed)


class Shown:
    """The files of the snapshot that counts, by their paths."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._of_deletes: dict[str, _Held] = {}

    def paths(self) -> list[str]:
        return list(self._held)

    def manifests_of(self, paths: set[str]) -> set[str]:
        """The manifests that name some files of either kind."""
        found = set()
        for path in paths:
            held = self._held.get(path)
            found.add(held.manifest if held is not None else self._of_deletes[path].deletes_manifest)
        return found

    def remove(self, paths: set[str]) -> None:
        for path in paths:
            self._held.pop(path, None)
            held = self._of_deletes.pop(path, None)
            if held is not None:
                held.deletes = held.deletes_manifest = ""

    def put(self, files: Mapping[str, list[DataFile]]) -> None:
        """Files by their manifests. Those of data come first, because those of deletes belong to them."""
        named = [(manifest, file) for manifest, found in files.items() for file in found]
        for manifest, file in named:
            if file.content == DataFileContent.DATA:
                self._held.setdefault(file.file_path, _Held("")).manifest = manifest
        for manifest, file in named:
            if file.content == DataFileContent.POSITION_DELETES:
                held = self._held[file.lower_bounds[PATH_ID].decode()]
                held.deletes, held.deletes_manifest = file.file_path, manifest
                self._of_deletes[file.file_path] = held

    def compared(
        self,
        fs: FileSystem,
        folder: str,
        entropy: Entropy,
        wanted: Mapping[str, TableFile | None],
        shape: Shape = RECORDS,
    ) -> Change:
        """What has to be changed. Files of deletes are written into the folder as they are found to be needed."""
        change = Change()
        for path, one in wanted.items():
            held = self._held.get(path)
            if one is None:
                _drop(path, held, change)
            elif held is None or held.hash != hash_of(one):
                _show(fs, folder, entropy, one, held, change, shape)
        return change


def _drop(path: str, held: _Held | None, change: Change) -> None:
    if held is not None:
        change.removed |= {path, held.deletes} - {""}


def _show(
    fs: FileSystem, folder: str, entropy: Entropy, wanted: TableFile, held: _Held | None, change: Change, shape: Shape
) -> None:
    positions = _positions(fs, wanted)
    if len(positions) == wanted.file.rows:
        # Nothing of it is left to be shown, and a file that is not there costs no reader anything.
        _drop(wanted.path, held, change)
        return
    if held is None:
        change.data.append(data_entry(wanted, shape))
    elif held.deletes:
        change.removed.add(held.deletes)
    if len(positions):
        path = f"{folder}/{hash_of(wanted)}-{entropy.token(8).hex()}.parquet"
        change.deletes.append(_write_deletes(fs, path, wanted, positions, shape))


def _positions(fs: FileSystem, wanted: TableFile) -> Ints:
    try:
        return hidden_positions(fs, wanted)
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        # Nobody knows which of its rows are deleted, so none is shown; the other files are.
        _log.error("a file of the archive cannot be read", extra={"path": wanted.path, "error": str(error)})
        return np.arange(wanted.file.rows)


def _write_deletes(fs: FileSystem, path: str, wanted: TableFile, positions: Ints, shape: Shape) -> DataFile:
    data = encoded_positions(wanted.path, positions)
    fs.make_dirs(path.rpartition("/")[0])
    write_synced(fs, path, data)
    return delete_entry(wanted, path, len(positions), len(data), shape)
