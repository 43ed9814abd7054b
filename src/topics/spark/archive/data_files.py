"""Archive data files: Parquet files with the records of one day and bucket.

    data/day=<YYYY-MM-DD>/topic_bucket=<number>/<run>-<random>.parquet

A file has records of one day (UTC) and of all topics of one bucket (`bucket_of`), sorted by topic, epoch and seq, so
that a thousand small topics are a handful of files. The rows of a topic are contiguous: one *run* or several in a row.
Live runs of a topic never overlap in seqs, even in different files.

Compression is zstd. Every row group has statistics of topic, epoch, seq, ts and tag, every page an index of them, and
tags have a bloom filter for point lookups. Columns have the field ids of the Iceberg table. File names are never
reused.

Delete masks: the hidden seqs of archived files, as two numpy columns of range starts and ends.

An archive may have millions of scattered deletes. A mask is applied to all records of a file at once, and is restricted
to a file before it is sent to the task that reads it.
"""

import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from itertools import pairwise
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_intdigest

from topics.log.fs import File, FileSystem
from topics.log.layout import is_object_store
from topics.log.object_store.tiered_fs import open_ranged
from topics.model.seq_ranges import SeqRange
from topics.spark.arrow_slices import FIELD_IDS, RECORD_SCHEMA

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

WORDS_A_CHUNK = 64
SEQS_A_CHUNK = 64 * WORDS_A_CHUNK


class Mask:
    """A set of seqs as ascending ranges that do not touch."""

    def __init__(self, firsts: Ints, lasts: Ints) -> None:
        self.firsts = firsts
        self.lasts = lasts

    @classmethod
    def of(cls, ranges: Sequence[SeqRange]) -> "Mask":
        if not ranges:
            return _EMPTY
        pairs = np.array(ranges, dtype=np.int64).reshape(-1, 2)
        return cls(np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Mask":
        pairs = np.frombuffer(data, dtype=np.int64).reshape(2, -1)
        return cls(pairs[0], pairs[1])

    @classmethod
    def unpacked(cls, data: bytes) -> "Mask":
        """The inverse of `packed`. Raises ValueError for other bytes."""
        if data == _EMPTY_PACKED:
            return _EMPTY
        try:
            steps = np.frombuffer(zlib.decompress(data), dtype="<i8")
        except zlib.error as error:
            raise ValueError(f"the packed deletes cannot be read: {error}") from error
        ends = np.cumsum(steps).reshape(-1, 2)
        return cls(np.ascontiguousarray(ends[:, 0]), np.ascontiguousarray(ends[:, 1]))

    def packed(self) -> bytes:
        """The range ends delta-encoded and compressed: a byte or two for a range."""
        if not len(self):
            return _EMPTY_PACKED
        ends = np.stack([self.firsts, self.lasts], axis=1).reshape(-1)
        return zlib.compress(np.diff(ends, prepend=0).astype("<i8").tobytes(), 1)

    def union(self, other: "Mask") -> "Mask":
        """The seqs in either mask."""
        if not len(self) or not len(other):
            return self if len(self) else other
        return self._combined(other, lambda mine, others: mine | others)

    def minus(self, other: "Mask") -> "Mask":
        """The seqs in this mask and not in the other."""
        return self._combined(other, lambda mine, others: mine & ~others) if len(self) and len(other) else self

    def intersection(self, other: "Mask") -> "Mask":
        """The seqs in both masks."""
        if not len(self) or not len(other):
            return Mask.of(())
        return self._combined(other, lambda mine, others: mine & others)

    def _combined(self, other: "Mask", combine: Callable[[Flags, Flags], Flags]) -> "Mask":
        """Combines two masks in one sweep over their edges; between two edges membership is constant."""
        edges = np.concatenate([self.firsts, self.lasts + 1, other.firsts, other.lasts + 1])
        steps = np.zeros((2, len(edges)), np.int64)
        mine, others = len(self.firsts), len(other.firsts)
        steps[0, :mine], steps[0, mine : 2 * mine] = 1, -1
        steps[1, 2 * mine : 2 * mine + others], steps[1, 2 * mine + others :] = 1, -1
        order = np.argsort(edges, kind="stable")
        edges, counts = edges[order], np.cumsum(steps[:, order], axis=1)
        last = np.flatnonzero(np.diff(edges, append=edges[-1] + 1))
        edges, kept = edges[last], combine(counts[0, last] > 0, counts[1, last] > 0)
        changes = np.diff(kept.astype(np.int8), prepend=0)
        return Mask(edges[changes == 1], edges[changes == -1] - 1)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Mask)
            and np.array_equal(self.firsts, other.firsts)
            and np.array_equal(self.lasts, other.lasts)
        )

    __hash__ = None  # type: ignore[assignment] # Not hashable.

    def __len__(self) -> int:
        return len(self.firsts)

    def to_bytes(self) -> bytes:
        return self.firsts.tobytes() + self.lasts.tobytes()

    def within(self, first: int, last: int) -> "Mask":
        """The mask restricted to `first` to `last`, both included."""
        begin, end = np.searchsorted(self.lasts, first), np.searchsorted(self.firsts, last, side="right")
        return Mask(np.maximum(self.firsts[begin:end], first), np.minimum(self.lasts[begin:end], last))

    def ranges(self) -> list[SeqRange]:
        return list(zip(self.firsts.tolist(), self.lasts.tolist(), strict=True))

    def count(self) -> int:
        """The number of seqs."""
        return int((self.lasts - self.firsts + 1).sum())

    def words(self) -> tuple[Ints, Ints]:
        """The mask as bitmap words of 64 seqs: the numbers of non-empty words, and the words."""
        first, last = self.firsts >> 6, self.lasts >> 6
        counts = last - first + 1
        if not len(counts):
            return first, first
        starts = np.cumsum(counts) - counts
        words = np.repeat(first - starts, counts) + np.arange(int(counts.sum()))
        low = np.where(words == np.repeat(first, counts), np.repeat(self.firsts & 63, counts), 0)
        high = np.where(words == np.repeat(last, counts), np.repeat(self.lasts & 63, counts), 63)
        full = np.uint64(0xFFFFFFFFFFFFFFFF)
        bits = (full >> (63 - high + low).astype(np.uint64)) << low.astype(np.uint64)
        # One range may end and the next begin in the same word.
        begins = np.flatnonzero(np.diff(words, prepend=words[0] - 1))
        return words[begins], np.bitwise_or.reduceat(bits, begins).view(np.int64)

    def chunks(self) -> tuple[Ints, Ints]:
        """The mask as bitmap chunks of 64 words (4096 seqs): the numbers of non-empty chunks, and their words."""
        words, bits = self.words()
        chunks = words // WORDS_A_CHUNK
        found, rows = np.unique(chunks, return_inverse=True)
        flags = np.zeros((len(found), WORDS_A_CHUNK), np.int64)
        flags[rows, words % WORDS_A_CHUNK] = bits
        return found, flags

    def hides(self, seqs: Ints) -> npt.NDArray[np.bool_]:
        """Whether each of the seqs is in the mask."""
        if not len(self.firsts):
            return np.zeros(len(seqs), dtype=np.bool_)
        place = np.searchsorted(self.lasts, seqs, side="left")
        hidden: npt.NDArray[np.bool_] = self.firsts[np.minimum(place, len(self.firsts) - 1)] <= seqs
        hidden &= place < len(self.firsts)
        return hidden

    def shown(self, table: pa.Table) -> pa.Table:
        """The records of a table that are not in the mask."""
        if not len(self.firsts) or not table.num_rows:
            return table
        hidden = self.hides(table["seq"].to_numpy())
        return table.filter(pa.array(~hidden)) if hidden.any() else table


_EMPTY = Mask(np.empty(0, np.int64), np.empty(0, np.int64))
"""Shared: most topics of an archive hide nothing."""
_EMPTY_PACKED = zlib.compress(b"", 1)


def chunks_of(masks: Mapping[int, Mask]) -> tuple[Ints, Ints, Ints]:
    """`Mask.chunks` of many non-empty masks: the key, the chunk number and the words of each chunk.

    The masks are concatenated on one axis and processed together: there may be tens of thousands of few ranges each.
    """
    if not masks:
        nothing = np.empty(0, np.int64)
        return nothing, nothing, nothing
    sizes = np.array([int(mask.lasts[-1]) // SEQS_A_CHUNK + 1 for mask in masks.values()])
    begins = np.cumsum(sizes) - sizes
    offsets = np.repeat(begins * SEQS_A_CHUNK, [len(mask) for mask in masks.values()])
    firsts, lasts = (
        np.concatenate(ends) + offsets
        for ends in ([mask.firsts for mask in masks.values()], [mask.lasts for mask in masks.values()])
    )
    chunks, flags = Mask(firsts, lasts).chunks()
    places = np.searchsorted(begins, chunks, side="right") - 1
    return np.array(list(masks))[places], chunks - begins[places], flags


T = TypeVar("T")
R = TypeVar("R")

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


TAIL_BYTES = 64 * 1024


def tail_of(data: bytes | memoryview) -> int:
    """The checksum of the end of a file."""
    return xxh3_64_intdigest(data[-TAIL_BYTES:])


def problem_of(fs: FileSystem, path: str, size: int, tail: int = 0) -> str | None:
    """Returns why a file is not the written one, by its length and its last bytes; None if it is."""
    try:
        file = open_ranged(fs, path)
    except FileNotFoundError:
        return f"{path} is missing"
    try:
        found = file.size()
        if found != size:
            return f"{path} has {found} bytes instead of {size}"
        if tail and tail_of(file.read_at(max(size - TAIL_BYTES, 0), min(size, TAIL_BYTES))) != tail:
            return f"{path} has another footer than the file that was written"
    finally:
        file.close()
    return None


_READERS = 16


def in_parallel(work: Callable[[T], R], items: Sequence[T], place: str) -> list[R]:
    """Yields results in order; with threads for object stores, because of their latency."""
    if not is_object_store(place) or len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(_READERS, "topics-files") as pool:
        return list(pool.map(work, items))


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Contiguous rows of one topic in a file, in seq order."""

    topic_id: int
    epoch: int
    topic: str
    first_seq: int
    last_seq: int
    rows: int
    first_ts: int
    last_ts: int


class ArchiveFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    path: str
    """Below the archive's folder."""
    day: int
    """Since 1970-01-01."""
    bucket: int
    bytes: int
    runs: tuple[Run, ...]
    """In the order of the file."""
    hidden_ms: int = 0
    """The time since which it has hidden rows; 0 if it has none."""
    tail: int = 0
    """XXH3-64 of its last `TAIL_BYTES`, which hold the Parquet footer; 0 for files of earlier versions."""

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


TimeBounds = tuple[tuple[int, int, int], ...]
"""The field id of each column with times, and its least and greatest value in microseconds."""


class TableFile(msgspec.Struct, frozen=True):
    """A data file as shown in an Iceberg table. A plain value, because tasks on a cluster have no pyiceberg."""

    path: str
    """The full path or URL. It is never reused for other bytes."""
    file: ArchiveFile
    hidden: tuple[Mask, ...] = ()
    """The deleted seqs of each run; empty if nothing is deleted."""
    seq_column: str = "seq"
    bounds: TimeBounds = ()
    """Of further columns with times, for readers that prune by them."""


def read_footer(fs: FileSystem, path: str) -> pq.FileMetaData:
    """Reads the metadata of a Parquet file, without fetching the rest."""
    file = open_ranged(fs, path)
    try:
        return pq.read_metadata(pa.PythonFile(_Cursor(file), mode="r"))
    finally:
        file.close()


def read_column(fs: FileSystem, path: str, name: str) -> pa.ChunkedArray:
    """Reads one column of a Parquet file, without fetching the rest."""
    file = open_ranged(fs, path)
    try:
        return pq.read_table(pa.PythonFile(_Cursor(file), mode="r"), columns=[name], partitioning=None)[name]
    finally:
        file.close()


class _Cursor:
    """A file object with a position, as required by Arrow."""

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
