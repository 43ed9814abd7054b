"""What a task of the archive does: segments in, Parquet files out; or old files in, fewer and cleaner ones out.

A file is written whole under its final name, synced with its folder, and means nothing until a manifest names it. The
run is part of the name, so a task that is tried again, or a run after a killed one, never writes into another's file.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from topics.core.ranges import SeqRange
from topics.spark.archive.manifest import ArchivedFile
from topics.spark.archive.masks import Mask
from topics.spark.archive.planning import Rewrite
from topics.spark.archive.store import ArchiveStore
from topics.spark.columns import RECORD_SCHEMA
from topics.spark.segments import SegmentRef
from topics.storage.fs import FileSystem

ARCHIVE_SCHEMA = pa.schema([field for field in RECORD_SCHEMA if field.name != "deleted"])
"""The columns of the files; the date is in the path."""

_ROW_GROUP_ROWS = 128 * 1024
_DAY_MS = 86_400_000


class TopicOutcome(msgspec.Struct):
    """What a task made for one topic."""

    topic_id: int
    epoch: int
    topic: str
    files: list[ArchivedFile] = []
    covered: list[SeqRange] = []
    replaced: list[str] = []
    applied: list[SeqRange] = []
    rows: int = 0
    text_bytes: int = 0
    segments: int = 0


class Outcome(msgspec.Struct):
    topics: list[TopicOutcome] = []


class Copying:
    """Segments on their way into files, in one task."""

    def __init__(self, fs: FileSystem, root: str, run: str) -> None:
        self._files = _Files(fs, root, run)
        self._made: dict[int, TopicOutcome] = {}
        self._batches: dict[int, list[pa.RecordBatch]] = {}

    def take(self, ref: SegmentRef, batches: Sequence[pa.RecordBatch]) -> None:
        made = self._made.setdefault(ref.topic_id, TopicOutcome(ref.topic_id, ref.epoch, ref.topic))
        self._batches.setdefault(ref.topic_id, []).extend(batches)
        first = ref.settled_from or max(ref.from_seq, ref.first_seq)
        made.covered.append((first, min(ref.to_seq, ref.first_seq + ref.count - 1)))
        made.text_bytes += ref.text_bytes
        made.segments += 1

    def finish(self) -> Outcome:
        for topic_id, made in self._made.items():
            made.files = list(self._files.write_days(topic_id, self._batches.pop(topic_id)))
            made.rows = sum(file.rows for file in made.files)
        return Outcome(list(self._made.values()))


def rewrite(fs: FileSystem, root: str, run: str, work: Rewrite) -> TopicOutcome:
    """Some files of a topic as fewer ones, without what is deleted."""
    folder = ArchiveStore(fs, root).topic_folder(work.topic_id)
    tables = [_read_file(fs, f"{folder}/{path}", work.deleted) for path in work.paths]
    whole = pa.concat_tables(tables).sort_by("seq")
    epoch = whole["epoch"][0].as_py() if whole.num_rows else 0
    made = TopicOutcome(work.topic_id, epoch, work.topic, replaced=work.paths, applied=work.deleted)
    batches = whole.to_batches(max_chunksize=_ROW_GROUP_ROWS)
    made.files = list(_Files(fs, root, run).write_days(work.topic_id, batches))
    made.rows = whole.num_rows
    return made


def _read_file(fs: FileSystem, path: str, deleted: list[SeqRange]) -> pa.Table:
    file = fs.open(path)
    try:
        table = pq.read_table(pa.BufferReader(file.map()), schema=ARCHIVE_SCHEMA, partitioning=None)
    finally:
        file.close()
    return Mask.of(deleted).shown(table)


class _Files:
    """Writes the files of topics."""

    def __init__(self, fs: FileSystem, root: str, run: str) -> None:
        self._fs = fs
        self._store = ArchiveStore(fs, root)
        self._run = run

    def write_days(self, topic_id: int, batches: Iterable[pa.RecordBatch]) -> Iterator[ArchivedFile]:
        """Records in the order of their seqs, hence of their times, become one file a day."""
        day: int | None = None
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            for one_day, part in _by_day(batch):
                if day is not None and one_day != day and waiting:
                    yield self._write(topic_id, day, waiting)
                    waiting = []
                day = one_day
                waiting.append(part)
        if day is not None and waiting:
            yield self._write(topic_id, day, waiting)

    def _write(self, topic_id: int, day: int, batches: list[pa.RecordBatch]) -> ArchivedFile:
        table = pa.Table.from_batches([batch.select(ARCHIVE_SCHEMA.names) for batch in batches], ARCHIVE_SCHEMA)
        date = datetime.fromtimestamp(day * _DAY_MS / 1000, UTC).strftime("%Y-%m-%d")
        first, last = table["seq"][0].as_py(), table["seq"][-1].as_py()
        times = table["ts"].cast(pa.int64())
        name = f"date={date}/{first:020d}-{last:020d}-{self._run}.parquet"
        data = as_parquet(table)
        self._put(topic_id, f"date={date}", name, data)
        return ArchivedFile(
            name, date, first, last, table.num_rows, len(data), times[0].as_py() // 1000, times[-1].as_py() // 1000
        )

    def _put(self, topic_id: int, day: str, name: str, data: memoryview) -> None:
        folder = self._store.topic_folder(topic_id)
        self._fs.make_dirs(f"{folder}/{day}")
        file = self._fs.open(f"{folder}/{name}", create=True)
        try:
            file.truncate(0)
            file.write_at(0, data)
            file.sync()
        finally:
            file.close()
        self._fs.sync_dir(f"{folder}/{day}")


def as_parquet(table: pa.Table) -> memoryview:
    """zstd, statistics for seq and ts, and a bloom filter for tags, by which people look for single things."""
    target = io.BytesIO()
    tagged = table["tag"].null_count < table.num_rows
    pq.write_table(
        table,
        target,
        compression="zstd",
        compression_level=1,
        row_group_size=_ROW_GROUP_ROWS,
        use_dictionary=["topic", "node", "tag", "content_type"],
        write_statistics=["epoch", "seq", "ts", "tag"],
        sorting_columns=[pq.SortingColumn(ARCHIVE_SCHEMA.get_field_index("seq"))],
        bloom_filter_options={"tag": True} if tagged else None,
    )
    return target.getbuffer()


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    days = batch["ts"].cast(pa.int64()).to_numpy() // (_DAY_MS * 1000)
    cuts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), batch.num_rows]
    for begin, end in pairwise(cuts):
        yield int(days[begin]), batch.slice(begin, end - begin)
