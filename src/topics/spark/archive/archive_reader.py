"""Archive reader: archived records as DataFrames or Arrow tables, without deleted rows. Imports pyspark when called.

Reading the folder with `spark.read.parquet` alone would show deleted records, and files of unfinished runs.

In a folder Spark's own Parquet reader is used, and deletes are a join with a small table of bitmaps, 4096 seqs each:
one lookup a record, however many ranges there are. Files without deletes are read directly. Spark is not configured
for object stores, so there the tasks read the objects as the connector does.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from topics.log.fs import FileSystem
from topics.log.layout import check_place, is_object_store
from topics.log.object_store.tiered_fs import guest_files
from topics.spark.archive.archive_state import ArchivedTopic, ArchiveState
from topics.spark.archive.archive_writer import RowReader
from topics.spark.archive.data_files import (
    ARCHIVE_SCHEMA,
    WORDS_A_CHUNK,
    ArchiveFile,
    Mask,
    Run,
    chunks_of,
    problem_of,
)
from topics.spark.archive.ledger import ArchiveDamagedError, ArchiveStore
from topics.spark.promotion import Versions, promoted
from topics.spark.segment_reader import GROUP_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_ALL = 2**63 - 1


class PartRun(msgspec.Struct, frozen=True):
    """Rows of one topic in a file, and which of them are deleted."""

    first_row: int
    rows: int
    deleted: bytes
    """A `Mask` of the deleted seqs."""


class FilePart(msgspec.Struct, frozen=True):
    """The selected rows of one archived file: a small value that is sent to a task."""

    path: str
    size: int
    runs: list[PartRun]
    below: int = _ALL
    """Only records with lower seqs are selected."""
    bytes: int = 0
    tail: int = 0
    """The length of the file and the checksum of its end, by the ledger."""


def parts_of(
    store: ArchiveStore,
    state: ArchiveState,
    topic_id: int | None = None,
    below: int = _ALL,
    selects: Callable[[Run], bool] = lambda _: True,
) -> list[FilePart]:
    """The files of a topic, or of all topics, each with its selected runs and their deletes."""
    files = list(state.files.values()) if topic_id is None else state.files_of(topic_id)
    parts = []
    for file in files:
        found = file.starts() if topic_id is None else state.runs_in(file.path, topic_id)
        runs = [(row, run) for row, run in found if run.topic_id in state.topics and selects(run)]
        if runs:
            size = file.bytes * sum(run.rows for _, run in runs) // file.rows
            chosen = [PartRun(row, run.rows, state.hidden_in(run).to_bytes()) for row, run in runs]
            parts.append(FilePart(store.path_of(file.path), size, chosen, below, file.bytes, file.tail))
    return parts


def pack_parts(parts: Iterable[FilePart], most_bytes: int) -> list[list[FilePart]]:
    """Groups of files of about `most_bytes`, one for each task."""
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
    """The selected records of a file that are not deleted. Other row groups are not read."""
    tables = [ARCHIVE_SCHEMA.empty_table()]
    with RowReader(fs, part.path, part.bytes, part.tail) as reader:
        for run in part.runs:
            tables.append(Mask.from_bytes(run.deleted).shown(reader.rows(run.first_row, run.rows)))
    table = pa.concat_tables(tables)
    return table.filter(pc.less(table["seq"], part.below)) if part.below < _ALL else table


_INT_MAX = 2**31 - 1
_ROWS = 20_000


def topics_named(state: ArchiveState, topic: str | None = None) -> list[ArchivedTopic]:
    """The topics of a name, of whatever epoch; all of them without a name."""
    return [one for one in state.topics.values() if topic in (None, one.name)]


def read_archive(fs: FileSystem, store: ArchiveStore, state: ArchiveState, topic_id: int) -> pa.Table:
    """A topic's archived records in one table, for tests and small archives."""
    tables = [read_part(fs, part) for part in parts_of(store, state, topic_id)]
    return pa.concat_tables([ARCHIVE_SCHEMA.empty_table(), *tables]).sort_by("seq")


def archived_records(
    spark: "SparkSession", root: str, topic: str | None = None, versions: Versions | None = None
) -> "DataFrame":
    """The archived records of a topic, or of all, as a DataFrame. `root` is a folder or the URL of an object store.

    The archive keeps records as they were written. With `versions`, from `topics.spark.promotion.ask_versions`, records
    of earlier schema versions are promoted to the current version.
    """
    written = _as_written(spark, root, topic)
    if not versions:
        return written

    def show(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return promoted(batches, versions)

    return written.mapInArrow(show, _DDL)


def _as_written(spark: "SparkSession", root: str, topic: str | None) -> "DataFrame":
    place = check_place(root, "the archive") or root
    store = ArchiveStore(guest_files(place), place)
    state = store.load()
    topics = topics_named(state, topic)
    if is_object_store(place):
        ids: list[int | None] = [None] if topic is None else [one.topic_id for one in topics]
        return _from_objects(spark, place, [part for one in ids for part in parts_of(store, state, one)])
    files = list(state.files.values())
    if topic is not None:
        files = list({file.path: file for one in topics for file in state.files_of(one.topic_id)}.values())
    _check_files(store, files)
    clean = [store.path_of(file.path) for file in files if not file.hidden_ms]
    masked = [file for file in files if file.hidden_ms]
    frames = [_parquet(spark, clean)] if clean or not masked else []
    if masked:
        frame = _parquet(spark, [store.path_of(file.path) for file in masked])
        frames.append(_without(frame, hidden_chunks(state, masked), spark))
    whole = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
    return whole if topic is None else _only(whole, topic, [one.epoch for one in topics])


def _check_files(store: ArchiveStore, files: list[ArchiveFile]) -> None:
    """Raises ArchiveDamagedError for a file in the place of another one: Spark would show its records."""
    fs = guest_files(store.root)
    for file in files:
        problem = problem_of(fs, store.path_of(file.path), file.bytes, file.tail)
        if problem is not None:
            raise ArchiveDamagedError(f"{problem}. Run `topics archive repair`")


def _only(frame: "DataFrame", topic: str, epochs: Collection[int]) -> "DataFrame":
    """Filters by topic. Files are sorted by topic and have statistics of it, so Spark skips row groups of others."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - the rest runs without Spark

    return frame.where((f.col("topic") == topic) & f.col("epoch").isin([int(epoch) for epoch in epochs]))


def hidden_chunks(state: ArchiveState, files: Iterable[ArchiveFile]) -> pa.Table:
    """The hidden seqs of some files as bitmaps, one row for each chunk of 4096 seqs: epoch, chunk, bits.

    Epoch and chunk are unique together, or a join would show records twice. Both are int32 where possible: Spark packs
    two ints into one long, which makes the lookup much faster. If topics in these files share an epoch, the name of
    the topic is a fourth column, unique together with both.
    """
    masks: dict[tuple[str, int], Mask] = {}
    for run in [run for file in files for run in file.runs]:
        one, hidden = (run.topic, run.epoch), state.hidden_in(run)
        masks[one] = masks[one].union(hidden) if one in masks else hidden
    named = list(masks)
    places, chunks, bits = chunks_of({place: masks[key] for place, key in enumerate(named) if len(masks[key])})
    epochs = np.array([epoch for _, epoch in named], np.int64)[places]
    is_shared = len({epoch for _, epoch in masks}) < len(masks)
    narrow = all(not len(one) or int(one.max()) <= _INT_MAX for one in (epochs, chunks))
    key = pa.int32() if narrow else pa.int64()
    ends = np.arange(len(epochs) + 1, dtype=np.int32) * WORDS_A_CHUNK
    lists = pa.ListArray.from_arrays(pa.array(ends), pa.array(bits.reshape(-1)))
    table = {"e": pa.array(epochs, key), "c": pa.array(chunks, key), "b": lists}
    if is_shared:
        table["t"] = pa.array([named[place][0] for place in places.tolist()], pa.string())
    return pa.table(table)


def _parquet(spark: "SparkSession", paths: list[str]) -> "DataFrame":
    if not paths:
        return spark.createDataFrame([], _DDL)
    return spark.read.schema(_DDL).parquet(*paths)


def _without(frame: "DataFrame", hidden: pa.Table, spark: "SparkSession") -> "DataFrame":
    from pyspark.sql import functions as f  # noqa: PLC0415 - the rest runs without Spark

    key = "int" if hidden.schema.field("e").type == pa.int32() else "bigint"
    rows = frame.withColumns(
        {"_e": f.expr(f"cast(epoch as {key})"), "_c": f.expr(f"cast(shiftright(seq, 12) as {key})")}
    )
    table = f.broadcast(spark.createDataFrame(hidden))
    same = (rows["_e"] == table["e"]) & (rows["_c"] == table["c"])
    if "t" in hidden.column_names:
        same &= rows["topic"] == table["t"]
    joined = rows.join(table, same, "left_outer")
    word = "b[cast(shiftright(seq, 6) & 63 as int)]"
    shown = joined.where(f"b is null or shiftright({word}, cast(seq & 63 as int)) & 1 = 0")
    return shown.select(*ARCHIVE_SCHEMA.names)


def _from_objects(spark: "SparkSession", place: str, parts: list[FilePart]) -> "DataFrame":
    groups = pack_parts(parts, GROUP_BYTES)
    if not groups:
        return spark.createDataFrame([], _DDL)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for part in groups[number]:
                    yield from read_part(guest_files(place), part).to_batches(max_chunksize=_ROWS)

    return spark.range(0, len(groups), 1, len(groups)).mapInArrow(read, _DDL)


_DDL = (
    "topic string, epoch bigint, seq bigint, ts timestamp, node string, tag string, meta string, data string, "
    "content_type string"
)
