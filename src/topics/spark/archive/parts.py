"""Archived files as the work of tasks: small values that travel, and what is read where they arrive."""

from collections.abc import Callable, Iterable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from topics.spark.archive.files import ARCHIVE_SCHEMA, Run
from topics.spark.archive.masks import Mask
from topics.spark.archive.state import ArchiveState
from topics.spark.archive.store import ArchiveStore
from topics.spark.archive.writing import RowReader
from topics.storage.fs import FileSystem

_ALL = 2**63 - 1


class PartRun(msgspec.Struct, frozen=True):
    """Rows of one topic in a file, and what of them is to be shown."""

    first_row: int
    rows: int
    deleted: bytes
    """A `Mask` of what must not be shown."""


class FilePart(msgspec.Struct, frozen=True):
    """One archived file, and which rows of it are wanted."""

    path: str
    size: int
    runs: list[PartRun]
    below: int = _ALL
    """Only records with lower seqs are wanted."""


def parts_of(
    store: ArchiveStore,
    state: ArchiveState,
    topic_id: int | None = None,
    below: int = _ALL,
    wanted: Callable[[Run], bool] = lambda _: True,
) -> list[FilePart]:
    """The files of a topic, or of all, each with the runs that are wanted and their part of the deletes."""
    files = list(state.files.values()) if topic_id is None else state.files_of(topic_id)
    parts = []
    for file in files:
        found = file.starts() if topic_id is None else state.runs_in(file.path, topic_id)
        runs = [(row, run) for row, run in found if run.topic_id in state.topics and wanted(run)]
        if runs:
            size = file.bytes * sum(run.rows for _, run in runs) // file.rows
            chosen = [PartRun(row, run.rows, state.hidden_in(run).to_bytes()) for row, run in runs]
            parts.append(FilePart(store.path_of(file.path), size, chosen, below))
    return parts


def pack_parts(parts: Iterable[FilePart], most_bytes: int) -> list[list[FilePart]]:
    """Neither a task for each small file nor one for everything."""
    groups: list[list[FilePart]] = []
    size = most_bytes
    for part in parts:
        if size + part.size > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.size
    return groups


def read_part(fs: FileSystem, part: FilePart) -> pa.Table:
    """The records of a file that are to be shown. Row groups without any of them are not read."""
    tables = [ARCHIVE_SCHEMA.empty_table()]
    with RowReader(fs, part.path) as reader:
        for run in part.runs:
            tables.append(Mask.from_bytes(run.deleted).shown(reader.rows(run.first_row, run.rows)))
    table = pa.concat_tables(tables)
    return table.filter(pc.less(table["seq"], part.below)) if part.below < _ALL else table
