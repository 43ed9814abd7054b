"""Typed files: Parquet files with the entries of one stream in columns, one for each file of the archive.

    <archive>/typed/<stream>/data/<hash of the archive's file>-<generation>.parquet

A typed file is a function of the archive file and of the schema versions: it has the rows of the file's runs in the
same order, deleted or not. So its name determines its content, and a retried task writes the same bytes. Each attempt
writes under its own temporary name and renames the complete file.
"""

import io
import re
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_hexdigest

from topics.log.fs import FileSystem, read_whole, replace_beside_others
from topics.schema.contract import decode_contract
from topics.schema.registry import Registry
from topics.schema.typed_columns import DECIMAL_DIGITS, Column, ColumnKind, Columns, columns_of, fill
from topics.spark.archive.archive_state import ArchiveState
from topics.spark.archive.archive_writer import RowReader
from topics.spark.archive.data_files import ArchiveFile, Ints, Mask, Run, TableFile, TimeBounds, read_column
from topics.spark.arrow_slices import JSON_TYPE
from topics.system.entropy import SystemEntropy

TIME = pa.timestamp("us", tz="UTC")
BASE = (
    pa.field("_seq", pa.int64(), nullable=False),
    pa.field("_ts", TIME, nullable=False),
    pa.field("_node", pa.string()),
    pa.field("_tag", pa.string()),
    pa.field("_meta", pa.string()),
    pa.field("_rest", pa.string()),
)
"""The common columns, with field ids from 1. Column names of a schema never begin with `_`."""

_PLAIN_TYPES: dict[ColumnKind, pa.DataType] = {
    "long": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(), "timestamp": TIME, "string": pa.string(),
    "json": pa.string(),
}  # fmt: skip
_NAME_KEY = b"topics.file"
_ROWS = 16_384
_ROW_GROUP_ROWS = 128 * 1024
_PLAIN = re.compile(r"[A-Za-z0-9._-]")
_NAME_CHARS_MAX = 180


class Subject(NamedTuple):
    """The schema registry of a stream and its columns."""

    registry: Registry
    columns: Columns


def subject_of(contract: bytes) -> Subject | None:
    """None if the stream has no schema."""
    if not contract:
        return None
    try:
        registry = decode_contract(contract).registry
    except ValueError:
        return None
    return Subject(registry, columns_of(registry)) if registry.versions else None


def folder_of(stream: str) -> str:
    """The folder of a stream's table relative to the archive, with unsafe characters escaped."""
    plain = "".join(char if _PLAIN.fullmatch(char) else f"~{char.encode().hex()}" for char in stream)
    if plain in (".", ".."):
        # `..` would be the archive itself.
        plain = plain.replace(".", "~2e")
    if len(plain) > _NAME_CHARS_MAX:
        plain = f"{plain[:_NAME_CHARS_MAX]}~~{xxh3_64_hexdigest(stream.encode())}"
    return f"typed/{plain}"


def typed_name(table: str, folder: str) -> str:
    """The catalog name of a stream's table: in the namespace of the archive's table, with portable characters."""
    name = folder.removeprefix("typed/")
    plain = re.sub(r"[^A-Za-z0-9]", lambda found: "__" if found[0] == "_" else f"_{ord(found[0]):x}_", name)
    return f"{table.rpartition('.')[0]}.typed_{plain}"


def typed_file_path(path: str, generation: str) -> str:
    """The path of the typed file of an archive file, relative to the table's folder."""
    return f"data/{xxh3_64_hexdigest(path.encode())}-{generation}.parquet"


def generation_of(typed_file: str) -> str:
    return typed_file.rpartition("-")[2].removesuffix(".parquet")


def name_in(target: str) -> str:
    """The name that a typed file has in its footer: its table's folder and its own name."""
    return "/".join(target.split("/")[-3:])


def foreign_file(fs: FileSystem, path: str) -> str | None:
    """The reason why a typed file is not that of its path; None if it does, or if an earlier release wrote no name."""
    try:
        footer = pq.read_metadata(io.BytesIO(read_whole(fs, path) or b"")).metadata or {}
    except (OSError, pa.ArrowException) as error:
        return f"{path} cannot be read: {error}"
    name = footer.get(_NAME_KEY, b"").decode(errors="replace")
    return f"{path} is the file {name}" if name and name != name_in(path) else None


class TypedFileTask(msgspec.Struct, frozen=True, array_like=True):
    """A typed file to be built."""

    source: str
    target: str
    runs: tuple[tuple[int, int], ...]
    """The first row and the number of rows of each run of the stream in the file."""
    contract: bytes
    bytes: int = 0
    tail: int = 0
    """The length of the source and the checksum of its end, by the ledger."""


class TypedFileResult(msgspec.Struct, frozen=True, array_like=True):
    stream: str
    target: str
    bytes: int
    bounds: TimeBounds = ()


def write_typed_file(fs: FileSystem, work: TypedFileTask) -> tuple[int, TimeBounds]:
    """Builds a typed file; returns its length in bytes and the bounds of its times. Raises the errors of reading the
    archive file."""
    subject = subject_of(work.contract)
    assert subject is not None
    schema = written_schema(subject.columns.columns)
    target = io.BytesIO()
    named = schema.with_metadata({_NAME_KEY: name_in(work.target).encode()})
    with RowReader(fs, work.source, work.bytes, work.tail) as reader, pq.ParquetWriter(
        target, named, compression="zstd", compression_level=1, write_page_index=True,
        sorting_columns=[pq.SortingColumn(0)],
    ) as writer:  # fmt: skip
        pending: list[pa.RecordBatch] = []
        for first, count in work.runs:
            for begin in range(0, count, _ROWS):
                table = reader.rows(first + begin, min(_ROWS, count - begin))
                pending.append(typed_rows(table, subject, schema))
                if sum(batch.num_rows for batch in pending) >= _ROW_GROUP_ROWS:
                    writer.write_table(pa.Table.from_batches(pending, schema), _ROW_GROUP_ROWS)
                    pending = []
        if pending:
            writer.write_table(pa.Table.from_batches(pending, schema), _ROW_GROUP_ROWS)
    fs.make_dirs(work.target.rpartition("/")[0])
    data = target.getvalue()
    replace_beside_others(fs, work.target, data, SystemEntropy().token(4).hex())
    return len(data), bounds_in(pq.read_metadata(io.BytesIO(data)))


def bounds_in(footer: pq.FileMetaData) -> TimeBounds:
    """The bounds of the columns with times, by the statistics of a typed file. A column without values has none."""
    leaves = {footer.schema.column(leaf).path: leaf for leaf in range(footer.num_columns)}
    found = []
    for field in list(footer.schema.to_arrow_schema())[len(BASE) :]:
        if field.type == TIME:
            groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
            bounds = [_bounds_of(group, leaves[field.name]) for group in groups]
            times = pa.array([time for pair in bounds for time in pair or ()], TIME).cast(pa.int64()).to_pylist()
            if times and None not in bounds:
                found.append((int(field.metadata[b"PARQUET:field_id"]), min(times), max(times)))
    return tuple(found)


def _bounds_of(group: pq.RowGroupMetaData, leaf: int) -> tuple[datetime, ...] | None:
    """The least and the greatest value, neither where all are null; None if they are unknown."""
    statistics = group.column(leaf).statistics
    if statistics is None:
        return None
    if not statistics.has_min_max:
        return () if statistics.null_count == group.num_rows else None
    return statistics.min, statistics.max


def written_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """The columns of a typed file with their Iceberg field ids."""
    base = [field.with_metadata({b"PARQUET:field_id": b"%d" % number}) for number, field in enumerate(BASE, 1)]
    return pa.schema([*base, *map(_field, columns)])


def _field(column: Column) -> pa.Field:
    return pa.field(column.name, _type_of(column), metadata={b"PARQUET:field_id": b"%d" % column.column_id})


def _type_of(column: Column) -> pa.DataType:
    if column.kind == "struct":
        return pa.struct(list(map(_field, column.parts)))
    if column.kind == "list":
        return pa.list_(_field(column.parts[0]))
    if column.kind == "decimal":
        return pa.decimal128(DECIMAL_DIGITS, column.scale)
    return _PLAIN_TYPES[column.kind]


def typed_rows(table: pa.Table, subject: Subject, schema: pa.Schema) -> pa.RecordBatch:
    """Records of the stream as rows of its table: promoted to the current version, one column for each member."""
    seqs, texts, kinds = (table[name].to_pylist() for name in ("seq", "data", "content_type"))
    promoter = subject.registry.promoter
    shown = [
        # Entries are numbered from 0, seqs from 1.
        promoter.promote(seq - 1, text.encode()) if kind == JSON_TYPE else text.encode()
        for seq, text, kind in zip(seqs, texts, kinds, strict=True)
    ]
    filled = fill(subject.columns.columns, shown)
    base = [table[name].combine_chunks() for name in ("seq", "ts", "node", "tag", "meta")]
    arrays = [*base, pa.array(filled.rest, pa.string())]
    arrays += [
        pa.array(values, _type_of(column))
        for column, values in zip(subject.columns.columns, filled.values, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# Selection of the typed files that a table shows, from the archive state and the existing files. Nothing here writes.
#
# All shown files are of one generation, which is one version of the schema. While the files of another generation are
# built, the old ones stay, and so do those whose archive file was rewritten and whose new typed file is not built yet.
# Rows of such a file that the new archive files no longer have, or hide, are hidden. So every row is shown once, and no
# deleted row is shown at any moment.

TypedFiles = Mapping[str, ArchiveFile]
"""Typed files by their paths relative to the table's folder, each with its runs."""


class TypedFileSelection(NamedTuple):
    desired: dict[str, TableFile]
    unbuilt: list[ArchiveFile]
    """Archive files whose typed file is not built yet."""
    expected: frozenset[str] = frozenset()
    """The typed files of all archive files in the current generation, built or not."""
    current: bool = True
    """Whether the shown files are of that generation."""
    generation: str = ""


class TypedFileSelector:
    """Selects the typed files of a table. `root` is the archive's folder, `folder` the table's."""

    def __init__(self, fs: FileSystem, root: str, folder: str, state: ArchiveState, topic_id: int) -> None:
        self._fs = fs
        self._root = root
        self._folder = folder
        self._state = state
        self._topic_id = topic_id

    def choose(self, generation: str, made: Mapping[str, int], shown: TypedFiles) -> TypedFileSelection:
        """`made` has all existing files with their lengths. The desired files have no bounds of times yet."""
        known = self._topic_id in self._state.topics
        files = self._state.files_of(self._topic_id) if known else []
        unbuilt = [file for file in files if typed_file_path(file.path, generation) not in made]
        current = not unbuilt or all(generation_of(path) == generation for path in shown)
        ready: dict[str, ArchiveFile] = {}
        missing = []
        for file in files:
            typed_file = typed_file_path(file.path, generation) if current else self._shown_typed_file(file, shown)
            if typed_file in made:
                ready[typed_file] = file
            else:
                missing.append(file)
        desired = {typed_file: self._whole(typed_file, file, made[typed_file]) for typed_file, file in ready.items()}
        desired |= {path: self._kept(path, old, missing) for path, old in shown.items() if path not in ready}
        expected = frozenset(typed_file_path(file.path, generation) for file in files)
        return TypedFileSelection(desired, unbuilt, expected, current, generation)

    def _shown_typed_file(self, file: ArchiveFile, shown: TypedFiles) -> str:
        generations = {generation_of(path) for path in shown}
        return next(
            (
                typed_file
                for typed_file in (typed_file_path(file.path, one) for one in generations)
                if typed_file in shown
            ),
            "",
        )

    def _runs(self, file: ArchiveFile) -> list[tuple[int, Run]]:
        return self._state.runs_in(file.path, self._topic_id)

    def _whole(self, typed_file: str, file: ArchiveFile, size: int) -> TableFile:
        runs = tuple(run for _, run in self._runs(file))
        hidden = tuple(self._state.hidden_in(run) for run in runs)
        shown = ArchiveFile(typed_file, file.day, file.bucket, size, runs)
        return TableFile(self._path(typed_file), shown, hidden if any(map(len, hidden)) else (), "_seq")

    def _kept(self, path: str, old: ArchiveFile, missing: list[ArchiveFile]) -> TableFile:
        """A typed file of a retired archive file, restricted to rows of archive files without a typed file."""
        run = as_one(old.runs)
        seqs = self._seqs(self._path(path), "_seq", 0, run)
        visible = [self._visible(file, run) for file in missing]
        gone = seqs[~np.isin(seqs, np.concatenate([np.empty(0, np.int64), *visible]))]
        file = ArchiveFile(path, old.day, old.bucket, old.bytes, (run,))
        return TableFile(self._path(path), file, (_mask_of(gone),) if len(gone) else (), "_seq")

    def _visible(self, file: ArchiveFile, within: Run) -> Ints:
        found = [np.empty(0, np.int64)]
        for row, run in self._runs(file):
            if run.first_seq <= within.last_seq and within.first_seq <= run.last_seq:
                seqs = self._seqs(f"{self._root}/{file.path}", "seq", row, run)
                found.append(seqs[~self._state.hidden_in(run).hides(seqs)])
        return np.concatenate(found)

    def _seqs(self, path: str, column: str, row: int, run: Run) -> Ints:
        if run.rows == run.last_seq - run.first_seq + 1:
            return np.arange(run.first_seq, run.last_seq + 1)
        seqs: Ints = read_column(self._fs, path, column).to_numpy()[row : row + run.rows]
        return seqs

    def _path(self, typed_file: str) -> str:
        return f"{self._folder}/{typed_file}"


def as_one(runs: tuple[Run, ...]) -> Run:
    """Consecutive runs of one topic as one run with gaps."""
    first, last = runs[0], runs[-1]
    return Run(
        first.topic_id, first.epoch, first.topic, first.first_seq, last.last_seq, sum(run.rows for run in runs),
        first.first_ts, last.last_ts,
    )  # fmt: skip


def _mask_of(seqs: Ints) -> Mask:
    begins = np.flatnonzero(np.diff(seqs, prepend=seqs[0] - 2) > 1)
    ends = np.append(begins[1:] - 1, len(seqs) - 1)
    return Mask(seqs[begins], seqs[ends])
