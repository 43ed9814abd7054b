"""Typed files: each is the *twin* of a file of the archive, with the entries of one stream in columns.

    <archive>/typed/<stream>/data/<hash of the archive's file>-<generation>.parquet

A twin follows from the bytes of its file and from the versions of the schema alone: its rows are those of the file's
runs, one for one and in their order, whether they are deleted or not. So its name says what is in it, a task that is
tried again writes the same, and what has its name is whole: it is put in its place in one step, by each attempt from a
name of its own.
"""

import io
import re
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_hexdigest

from topics.schema.columns import Column, ColumnKind, Columns, columns_of, fill
from topics.schema.contract import decode_contract
from topics.schema.registry import Registry
from topics.spark.archive.writing import RowReader
from topics.spark.columns import JSON_TYPE
from topics.storage.fs import FileSystem
from topics.storage.replaced import replace_beside_others
from topics.system.dice import SystemDice

TIME = pa.timestamp("us", tz="UTC")
BASE = (
    pa.field("_seq", pa.int64(), nullable=False),
    pa.field("_ts", TIME, nullable=False),
    pa.field("_node", pa.string()),
    pa.field("_tag", pa.string()),
    pa.field("_meta", pa.string()),
    pa.field("_rest", pa.string()),
)
"""What every such table has, numbered from 1: no name of a column of a schema begins with `_`."""

_TYPES: dict[ColumnKind, pa.DataType] = {
    "long": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(), "timestamp": TIME, "string": pa.string(),
    "json": pa.string(),
}  # fmt: skip
_ROWS = 16_384
_ROW_GROUP_ROWS = 128 * 1024
_PLAIN = re.compile(r"[A-Za-z0-9._-]")
_NAME_CHARS_MAX = 180


class Subject(NamedTuple):
    """What a stream's entries are in columns."""

    registry: Registry
    columns: Columns


def subject_of(contract: bytes) -> Subject | None:
    """None where the stream has no schema."""
    if not contract:
        return None
    try:
        registry = decode_contract(contract).registry
    except ValueError:
        return None
    return Subject(registry, columns_of(registry)) if registry.versions else None


def folder_of(stream: str) -> str:
    """The folder of a stream's table below the archive: its name, where a path can have it."""
    plain = "".join(char if _PLAIN.fullmatch(char) else f"~{char.encode().hex()}" for char in stream)
    if plain in (".", ".."):
        # These mean something else in a path: the table of the second would be the archive itself.
        plain = plain.replace(".", "~2e")
    if len(plain) > _NAME_CHARS_MAX:
        plain = f"{plain[:_NAME_CHARS_MAX]}~~{xxh3_64_hexdigest(stream.encode())}"
    return f"typed/{plain}"


def typed_name(table: str, folder: str) -> str:
    """What the table of a stream is called in a catalog: beside the archive's own, in letters that all of them take."""
    name = folder.removeprefix("typed/")
    plain = re.sub(r"[^A-Za-z0-9]", lambda found: "__" if found[0] == "_" else f"_{ord(found[0]):x}_", name)
    return f"{table.rpartition('.')[0]}.typed_{plain}"


def twin_of(path: str, generation: str) -> str:
    """The twin of a file of the archive, below the folder of the table."""
    return f"data/{xxh3_64_hexdigest(path.encode())}-{generation}.parquet"


def generation_of(twin: str) -> str:
    return twin.rpartition("-")[2].removesuffix(".parquet")


class TwinWork(msgspec.Struct, frozen=True, array_like=True):
    """A twin that is to be made."""

    source: str
    target: str
    runs: tuple[tuple[int, int], ...]
    """First row and number of rows of each run of the stream in the file."""
    contract: bytes


class TwinMade(msgspec.Struct, frozen=True, array_like=True):
    stream: str
    target: str
    bytes: int


def make_twin(fs: FileSystem, work: TwinWork) -> int:
    """Makes a twin; its length in bytes. Raises what reading its file raises."""
    subject = subject_of(work.contract)
    assert subject is not None
    schema = written_schema(subject.columns.columns)
    target = io.BytesIO()
    with RowReader(fs, work.source) as reader, pq.ParquetWriter(
        target, schema, compression="zstd", compression_level=1, write_page_index=True,
        sorting_columns=[pq.SortingColumn(0)],
    ) as writer:  # fmt: skip
        waiting: list[pa.RecordBatch] = []
        for first, count in work.runs:
            for begin in range(0, count, _ROWS):
                table = reader.rows(first + begin, min(_ROWS, count - begin))
                waiting.append(typed_rows(table, subject, schema))
                if sum(batch.num_rows for batch in waiting) >= _ROW_GROUP_ROWS:
                    writer.write_table(pa.Table.from_batches(waiting, schema), _ROW_GROUP_ROWS)
                    waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema), _ROW_GROUP_ROWS)
    fs.make_dirs(work.target.rpartition("/")[0])
    data = target.getvalue()
    replace_beside_others(fs, work.target, data, SystemDice().token(4).hex())
    return len(data)


def written_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """The columns of a twin with the numbers that Iceberg knows them by."""
    numbered = [(number, field) for number, field in enumerate(BASE, 1)]
    numbered += [(column.column_id, pa.field(column.name, _TYPES[column.kind])) for column in columns]
    return pa.schema([field.with_metadata({b"PARQUET:field_id": b"%d" % number}) for number, field in numbered])


def typed_rows(table: pa.Table, subject: Subject, schema: pa.Schema) -> pa.RecordBatch:
    """Records of the stream as rows of its table: promoted, and a member a column."""
    seqs, texts, kinds = (table[name].to_pylist() for name in ("seq", "data", "content_type"))
    promoter = subject.registry.promoter
    shown = [
        # An entry is counted from 0, and a seq from 1.
        promoter.promote(seq - 1, text.encode()) if kind == JSON_TYPE else text.encode()
        for seq, text, kind in zip(seqs, texts, kinds, strict=True)
    ]
    filled = fill(subject.columns.columns, shown)
    base = [table[name].combine_chunks() for name in ("seq", "ts", "node", "tag", "meta")]
    arrays = [*base, pa.array(filled.rest, pa.string())]
    arrays += [
        pa.array(values, _TYPES[column.kind])
        for column, values in zip(subject.columns.columns, filled.values, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
