"""Archive data files: Parquet files with the records of one day and bucket.

    data/day=<YYYY-MM-DD>/topic_bucket=<number>/<run>-<random>.parquet

A file has records of one day (UTC) and of all topics of one bucket (`bucket_of`), sorted by topic, epoch and seq, so
that a thousand small topics are a handful of files. The rows of a topic are contiguous: one *run* or several in a row.
No two live runs of a topic span the same seqs, in whatever files they are.

Compression is zstd. Every row group has statistics of topic, epoch, seq, ts and tag, every page an index of them, and
tags have a bloom filter for point lookups. Columns have the field ids of the Iceberg table. File names are never
reused.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from topics.log.fs import File, FileSystem
from topics.log.object_store.tiered_fs import open_ranged
from topics.spark.archive.delete_masks import Mask
from topics.spark.arrow_slices import FIELD_IDS, RECORD_SCHEMA

ARCHIVE_SCHEMA = pa.schema([field for field in RECORD_SCHEMA if field.name != "deleted"])
"""The columns of the files."""

_WRITTEN_SCHEMA = pa.schema(
    [field.with_metadata({b"PARQUET:field_id": b"%d" % FIELD_IDS[field.name]}) for field in ARCHIVE_SCHEMA]
)
_ORDER = [pq.SortingColumn(ARCHIVE_SCHEMA.get_field_index(name)) for name in ("topic", "epoch", "seq")]
_ROW_GROUP_ROWS = 128 * 1024
_ROW_GROUP_BYTES = 16 * 1024 * 1024
_DAY_US = 86_400_000_000
_FIRST_DAY = date(1970, 1, 1)


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Contiguous rows of one topic in a file, in seq order."""

    topic_id: int
    epoch: int
    topic: str
    first_seq: int
    last_seq: int
    rows: int
    first_ts: int
    last_ts: int


class ArchiveFile(msgspec.Struct, frozen=True, array_like=True):
    path: str
    """Below the archive's folder."""
    day: int
    """Since 1970-01-01."""
    bucket: int
    bytes: int
    runs: tuple[Run, ...]
    """In the order in which they stand in the file."""
    hidden_ms: int = 0
    """Since when it has hidden rows; 0 when it has none."""

    @property
    def rows(self) -> int:
        return sum([run.rows for run in self.runs])

    @property
    def first_ts(self) -> int:
        return min([run.first_ts for run in self.runs])

    @property
    def last_ts(self) -> int:
        return max([run.last_ts for run in self.runs])

    def starts(self) -> Iterator[tuple[int, Run]]:
        """Every run with the number of its first row."""
        row = 0
        for run in self.runs:
            yield row, run
            row += run.rows


def folder_of(day: int, bucket: int) -> str:
    """The folder of a day and bucket, relative to the archive."""
    return f"data/day={(_FIRST_DAY + timedelta(days=day)).isoformat()}/topic_bucket={bucket}"


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Splits a batch by day. Times never decrease within a topic."""
    if not batch.num_rows:
        return
    days = batch["ts"].cast(pa.int64()).to_numpy() // _DAY_US
    cuts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), batch.num_rows]
    for begin, end in pairwise(cuts):
        yield int(days[begin]), batch.slice(begin, end - begin)


def run_of(topic_id: int, batches: Sequence[pa.RecordBatch]) -> Run:
    """The run of non-empty, ordered batches of one topic."""
    first, last = batches[0], batches[-1]
    return Run(
        topic_id,
        first["epoch"][0].as_py(),
        first["topic"][0].as_py(),
        first["seq"][0].as_py(),
        last["seq"][-1].as_py(),
        sum(batch.num_rows for batch in batches),
        first["ts"][0].value // 1000,
        last["ts"][-1].value // 1000,
    )


class ParquetBytes:
    """Writes a Parquet file in memory: batches arrive in file order and are written as row groups."""

    def __init__(self, tagged: bool) -> None:
        self._target = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._target,
            _WRITTEN_SCHEMA,
            compression="zstd",
            compression_level=1,
            use_dictionary=["topic", "node", "tag", "content_type"],
            write_statistics=["topic", "epoch", "seq", "ts", "tag"],
            write_page_index=True,
            sorting_columns=_ORDER,
            bloom_filter_options={"tag": True} if tagged else None,
        )
        self._pending: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        while batch.num_rows:
            fitting = batch.slice(0, _ROW_GROUP_ROWS - self._rows)
            self._pending.append(fitting)
            self._rows += fitting.num_rows
            self._bytes += fitting.nbytes
            batch = batch.slice(fitting.num_rows)
            if self._rows >= _ROW_GROUP_ROWS or self._bytes >= _ROW_GROUP_BYTES:
                self._flush()

    def finish(self) -> memoryview:
        self._flush()
        self._writer.close()
        return self._target.getbuffer()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(as_written(self._pending), row_group_size=_ROW_GROUP_ROWS)
        self._pending, self._rows, self._bytes = [], 0, 0


def as_written(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    columns = [batch.select(ARCHIVE_SCHEMA.names) for batch in batches]
    return pa.Table.from_batches(
        [pa.RecordBatch.from_arrays(batch.columns, schema=_WRITTEN_SCHEMA) for batch in columns], _WRITTEN_SCHEMA
    )


def is_tagged(batches: Iterable[pa.RecordBatch]) -> bool:
    """Whether any record has a tag, so that a bloom filter is useful."""
    return any(batch["tag"].null_count < batch.num_rows for batch in batches)


class TableFile(msgspec.Struct, frozen=True):
    """A data file as shown in an Iceberg table. A plain value, because tasks on a cluster have no pyiceberg."""

    path: str
    """The full path or URL. It is never reused for other bytes."""
    file: ArchiveFile
    hidden: tuple[Mask, ...] = ()
    """The deleted seqs of each run; empty where nothing is deleted."""
    seq_column: str = "seq"


def read_column(fs: FileSystem, path: str, name: str) -> pa.ChunkedArray:
    """Reads one column of a Parquet file, without fetching the rest."""
    file = open_ranged(fs, path)
    try:
        return pq.read_table(pa.PythonFile(_Cursor(file), mode="r"), columns=[name], partitioning=None)[name]
    finally:
        file.close()


class _Cursor:
    """A file object with a position, as Arrow needs it."""

    closed = False

    def __init__(self, file: File) -> None:
        self._file = file
        self._place = 0

    def read(self, length: int = -1) -> bytes:
        left = self._file.size() - self._place
        data = self._file.read_at(self._place, left if length < 0 else min(length, left))
        self._place += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = offset + (0, self._place, self._file.size())[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def close(self) -> None:
        """The caller closes the file."""
