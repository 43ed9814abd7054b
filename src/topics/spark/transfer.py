"""Export and import: topics to Parquet or JSON lines files and back, through the connector. Imports pyspark.

Parquet files have the columns of the connector. A line of JSON is one record, with its payload as written, except for
line breaks:

    {"seq":7,"ts":1748470000123,"node":"a","tag":"t","meta":{"k":1},"data":{"order":7}}

An import needs `data` and uses `tag`, `node` and `meta`; seqs and times are assigned again, in the order of `seq` where
it is present and in the order of the files otherwise.
"""

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from topics.model.records import in_one_line
from topics.spark.connector.source import TopicsDataSource

Format = Literal["parquet", "jsonl"]

_LINE_DDL = "seq bigint, data string, tag string, node string, meta string"
_PARTS = ("data", "tag", "node", "meta")
_NONE = msgspec.Raw()


class _Line(msgspec.Struct, omit_defaults=True):
    seq: int
    ts: int
    node: str | None = None
    tag: str | None = None
    meta: msgspec.Raw = _NONE
    data: msgspec.Raw = _NONE


class _Given(msgspec.Struct):
    data: msgspec.Raw
    seq: int = 0
    node: str | None = None
    tag: str | None = None
    meta: msgspec.Raw = _NONE


class BadLineError(ValueError):
    """A line of a file is not a record."""


def export_topic(spark: SparkSession, topic: str, target: str, form: Format, access: dict[str, str]) -> int:
    """Writes a topic's records into a new folder, in seq order; returns their number.

    The folder must not exist. Nothing is sorted: the partitions of a topic are in order, and each becomes a file.
    """
    spark.dataSource.register(TopicsDataSource)
    frame = spark.read.format("topics").options(topic=topic, **access).load().drop("deleted")
    counted, rows = _counted(frame)
    if form == "parquet":
        counted.write.parquet(target)
    else:
        counted.mapInArrow(_as_lines, "value string").write.text(target)
    return rows()


def import_topic(spark: SparkSession, topic: str, source: str, form: Format, access: dict[str, str]) -> int:
    """Appends the records of files to a topic, in order; returns their number. One task keeps the order."""
    spark.dataSource.register(TopicsDataSource)
    if form == "parquet":
        frame = _in_file_order(spark.read.parquet(source), "*")
        if "data" not in frame.columns:
            raise BadLineError("the files have no column data")
    else:
        frame = _in_file_order(spark.read.text(source), "value").mapInArrow(_from_lines, _LINE_DDL)
    if "seq" in frame.columns:
        # Records without a seq keep the order of the lines, because the sort alone is not stable.
        frame = frame.withColumn("row", f.monotonically_increasing_id()).sortWithinPartitions("seq", "row")
    counted, rows = _counted(frame.select(*[name for name in _PARTS if name in frame.columns]))
    counted.write.format("topics").options(topic=topic, **access).mode("append").save()
    return rows()


def _in_file_order(frame: DataFrame, columns: str) -> DataFrame:
    """All rows in one partition, ordered by file name; Spark itself starts with large files."""
    placed = frame.select(
        columns,
        f.col("_metadata.file_path").alias("_path"),
        f.col("_metadata.file_block_start").alias("_block"),
        f.monotonically_increasing_id().alias("_row"),
    )
    order = ("_path", "_block", "_row")
    return placed.coalesce(1).sortWithinPartitions(*order).drop(*order)


def _counted(frame: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    """Returns the frame, and a function that returns its number of rows after it was consumed, without a second
    read."""
    seen = Observation()
    return frame.observe(seen, f.count(f.lit(1)).alias("rows")), lambda: int(seen.get["rows"])


def _as_lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        times = batch["ts"].cast(pa.int64()).to_pylist()
        columns = [batch[name].to_pylist() for name in ("seq", "node", "tag", "meta", "data")]
        lines = [
            in_one_line(
                msgspec.json.encode(
                    _Line(seq, ts // 1000, node, tag, _NONE if meta is None else msgspec.Raw(meta), msgspec.Raw(data))
                )
            ).decode()
            for ts, (seq, node, tag, meta, data) in zip(times, zip(*columns, strict=True), strict=True)
        ]
        yield pa.RecordBatch.from_pydict({"value": pa.array(lines, pa.string())})


def _from_lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    decode = msgspec.json.Decoder(_Given).decode
    for batch in batches:
        given = []
        for line in batch["value"].to_pylist():
            if line and not line.isspace():
                try:
                    given.append(decode(line))
                except msgspec.DecodeError as error:
                    raise BadLineError(f"this line is not a record ({error}): {line[:200]}") from error
        yield pa.RecordBatch.from_pydict(
            {
                "seq": pa.array([one.seq for one in given], pa.int64()),
                "data": pa.array([bytes(one.data).decode() for one in given], pa.string()),
                "tag": pa.array([one.tag for one in given], pa.string()),
                "node": pa.array([one.node for one in given], pa.string()),
                "meta": pa.array([_text(one.meta) for one in given], pa.string()),
            }
        )


def _text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw).decode()
    return text if text and text != "null" else None
