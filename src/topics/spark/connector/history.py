"""Archived records that the log no longer has: what a batch that begins at the earliest reads first.

The log stands for everything from its first live record on, the archive for what lies below, so no record is read
twice and none that was deleted is shown.
"""

from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from topics.core.ranges import SeqRange
from topics.spark.archive.reading import manifests_of
from topics.spark.archive.store import ArchiveStore
from topics.spark.archive.tasks import ARCHIVE_SCHEMA, in_ranges
from topics.spark.columns import RECORD_SCHEMA
from topics.spark.connector.options import ReadOptions
from topics.spark.connector.origins import Position
from topics.spark.connector.reading import filtered
from topics.storage.posix import PosixFileSystem


class ArchivePart(msgspec.Struct, frozen=True):
    """One archived file, and the first seq of it that the log has."""

    path: str
    below: int
    deleted: list[SeqRange]


def plan_history(options: ReadOptions, positions: Mapping[str, Position]) -> list[ArchivePart]:
    """The archived files that hold anything older than the log."""
    if options.archive is None or options.starting.word != "earliest" or options.ending.word == "earliest":
        return []
    store = ArchiveStore(PosixFileSystem(), options.archive)
    parts = []
    for manifest in manifests_of(store):
        position = positions.get(manifest.topic)
        if position is None or position.epoch != manifest.epoch or manifest.topic in options.starting.by_topic:
            continue
        folder = store.topic_folder(manifest.topic_id)
        parts += [
            ArchivePart(f"{folder}/{file.path}", position.earliest, list(manifest.deleted))
            for file in manifest.files
            if file.first_seq < position.earliest and file.last_ts >= options.from_ts and file.first_ts < options.to_ts
        ]
    return parts


def read_history(part: ArchivePart, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records of a file that are neither deleted nor in the log."""
    file = PosixFileSystem().open(part.path)
    try:
        table = pq.read_table(pa.BufferReader(file.map()), schema=ARCHIVE_SCHEMA, partitioning=None)
    finally:
        file.close()
    table = table.filter(pc.less(table["seq"], part.below))
    if part.deleted:
        table = table.filter(pc.invert(in_ranges(table["seq"], part.deleted)))
    table = table.append_column(RECORD_SCHEMA.field("deleted"), pa.repeat(pa.scalar(False), table.num_rows))
    for batch in table.to_batches(max_chunksize=20_000):
        yield filtered(pa.RecordBatch.from_arrays(batch.columns, schema=RECORD_SCHEMA), options)
