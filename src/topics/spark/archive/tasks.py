"""What a task of the archive does: segments in, Parquet files out; or old files in, fewer and cleaner ones out.

A file is written whole under its final name, synced with its folder, and means nothing until a manifest names it. The
run is part of the name, so a task that is tried again, or a run after a killed one, never writes into another's file.
"""

import io
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from topics.core.ranges import SeqRange
from topics.spark.archive.manifest import ArchivedFile
from topics.spark.archive.masks import Mask
from topics.spark.archive.planning import Copy, Rewrite
from topics.spark.archive.store import ArchiveStore
from topics.spark.columns import FIELD_IDS, RECORD_SCHEMA
from topics.spark.segments import SegmentGoneError, SegmentRef, read_segment
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout

ARCHIVE_SCHEMA = pa.schema([field for field in RECORD_SCHEMA if field.name != "deleted"])
"""The columns of the files; the date is in the path."""

_WRITTEN = pa.schema(
    [field.with_metadata({b"PARQUET:field_id": b"%d" % FIELD_IDS[field.name]}) for field in ARCHIVE_SCHEMA]
)
"""The same with the numbers by which tables know columns."""

_ROW_GROUP_ROWS = 128 * 1024
_DAY_MS = 86_400_000


class Failure(msgspec.Struct, frozen=True):
    """A topic whose records could not be archived, and why."""

    topic_id: int
    topic: str
    reason: str


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
    failures: list[Failure] = []


class ArchiveTask:
    """Does one piece of work. A topic that fails is told and costs no other topic anything."""

    def __init__(self, fs: FileSystem, layout: Layout, root: str, run: str) -> None:
        self._fs = fs
        self._layout = layout
        self._store = ArchiveStore(fs, root)
        self._run = run

    def perform(self, work: Copy | Rewrite) -> Outcome:
        outcome = Outcome()
        if isinstance(work, Rewrite):
            self._attempt(work.topic_id, work.topic, lambda: self._rewrite(work), outcome)
            return outcome
        by_topic: dict[int, list[SegmentRef]] = {}
        for ref in work.refs:
            by_topic.setdefault(ref.topic_id, []).append(ref)
        for refs in by_topic.values():
            self._attempt(refs[0].topic_id, refs[0].topic, partial(self._copy, refs), outcome)
        return outcome

    def _attempt(self, topic_id: int, topic: str, do: Callable[[], TopicOutcome], outcome: Outcome) -> None:
        try:
            outcome.topics.append(do())
        except Exception as error:
            outcome.failures.append(Failure(topic_id, topic, f"{type(error).__name__}: {error}"))

    def _copy(self, refs: list[SegmentRef]) -> TopicOutcome:
        made = TopicOutcome(refs[0].topic_id, refs[0].epoch, refs[0].topic)
        made.files = list(self._write_days(refs[0].topic_id, self._read(refs, made)))
        made.rows = sum(file.rows for file in made.files)
        return made

    def _read(self, refs: list[SegmentRef], made: TopicOutcome) -> Iterator[pa.RecordBatch]:
        for ref in refs:
            try:
                yield from read_segment(self._fs, self._layout, ref)
            except SegmentGoneError:
                # Evicted or deleted since it was planned: there is nothing to archive, and nothing is covered.
                continue
            first = ref.settled_from or max(ref.from_seq, ref.first_seq)
            made.covered.append((first, min(ref.to_seq, ref.first_seq + ref.count - 1)))
            made.text_bytes += ref.text_bytes
            made.segments += 1

    def _rewrite(self, work: Rewrite) -> TopicOutcome:
        folder = self._store.topic_folder(work.topic_id)
        tables = [self._read_file(f"{folder}/{path}", work.deleted) for path in work.paths]
        whole = pa.concat_tables(tables).sort_by("seq")
        epoch = whole["epoch"][0].as_py() if whole.num_rows else 0
        made = TopicOutcome(work.topic_id, epoch, work.topic, replaced=work.paths, applied=work.deleted)
        made.files = list(self._write_days(work.topic_id, whole.to_batches(max_chunksize=_ROW_GROUP_ROWS)))
        made.rows = whole.num_rows
        return made

    def _read_file(self, path: str, deleted: list[SeqRange]) -> pa.Table:
        file = self._fs.open(path)
        try:
            table = pq.read_table(pa.BufferReader(file.map()), schema=ARCHIVE_SCHEMA, partitioning=None)
        finally:
            file.close()
        return Mask.of(deleted).shown(table)

    def _write_days(self, topic_id: int, batches: Iterable[pa.RecordBatch]) -> Iterator[ArchivedFile]:
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
        pa.Table.from_arrays(table.columns, schema=_WRITTEN),
        target,
        compression="zstd",
        compression_level=1,
        row_group_size=_ROW_GROUP_ROWS,
        use_dictionary=["topic", "node", "tag", "content_type"],
        write_statistics=["topic", "epoch", "seq", "ts", "tag"],
        write_page_index=True,
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
