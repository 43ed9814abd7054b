"""The archive's records for others: which files count and which of their rows are deleted. Imports pyspark late.

Reading the folder with `spark.read.parquet` alone would show deleted records, and files of a run that never finished.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from topics.core.ranges import SeqRange
from topics.spark.archive.manifest import Manifest
from topics.spark.archive.masks import Mask
from topics.spark.archive.store import ArchiveStore
from topics.spark.archive.tasks import ARCHIVE_SCHEMA
from topics.storage.fs import FileSystem
from topics.storage.posix import PosixFileSystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WHERE_MAX = 200
"""More ranges than this go into a table of their own instead of a condition."""


def manifests_of(store: ArchiveStore, topic: str | None = None) -> list[Manifest]:
    """The manifests of a topic's name, of whatever epoch; all of them without a name."""
    found = [store.load(topic_id) for topic_id in store.topic_ids()]
    return [one for one in found if one is not None and topic in (None, one.topic)]


def read_archive(fs: FileSystem, store: ArchiveStore, manifest: Manifest) -> pa.Table:
    """A topic's archived records in one table, for small things and for tests."""
    folder = store.topic_folder(manifest.topic_id)
    tables = [ARCHIVE_SCHEMA.empty_table()]
    for archived in manifest.files:
        file = fs.open(f"{folder}/{archived.path}")
        try:
            tables.append(pq.read_table(pa.BufferReader(file.map()), schema=ARCHIVE_SCHEMA, partitioning=None))
        finally:
            file.close()
    whole = pa.concat_tables(tables)
    return Mask.of(manifest.deleted).shown(whole).sort_by("seq")


def archived_records(spark: "SparkSession", root: str, topic: str | None = None) -> "DataFrame":
    """The archived records of a topic, or of all, as a DataFrame read by Spark's own Parquet reader."""
    store = ArchiveStore(PosixFileSystem(), root)
    frame = None
    for manifest in manifests_of(store, topic):
        folder = store.topic_folder(manifest.topic_id)
        paths = [f"{folder}/{file.path}" for file in manifest.files]
        if not paths:
            continue
        one = spark.read.parquet(*paths)
        one = _without(spark, one, manifest.deleted)
        frame = one if frame is None else frame.unionByName(one)
    if frame is None:
        return spark.createDataFrame([], _DDL)
    return frame


def _without(spark: "SparkSession", frame: "DataFrame", deleted: Iterable[SeqRange]) -> "DataFrame":
    from pyspark.sql import functions as f  # noqa: PLC0415 - the rest runs without Spark

    ranges = list(deleted)
    if len(ranges) <= _WHERE_MAX:
        for first, last in ranges:
            frame = frame.where(~f.col("seq").between(first, last))
        return frame
    hidden = spark.createDataFrame(ranges, "first bigint, last bigint")
    condition = (frame["seq"] >= hidden["first"]) & (frame["seq"] <= hidden["last"])
    return frame.join(f.broadcast(hidden), condition, "left_anti")


_DDL = (
    "topic string, epoch bigint, seq bigint, ts timestamp, node string, tag string, meta string, data string, "
    "content_type string"
)
