"""Topics to files and back, through the connector. Imports pyspark.

Parquet files hold the columns of the connector. A line of JSON is one record, with its payload as it was written:

    {"seq":7,"ts":1748470000123,"node":"a","tag":"t","meta":{"k":1},"data":{"order":7}}

On the way back `data` is needed and `tag`, `node` and `meta` are taken; seqs and times are given anew, in the order of
`seq` where it is there and in the order of the files where not.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

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
    """A line of a file is no record."""


def export_topic(spark: SparkSession, topic: str, target: str, form: Format, access: dict[str, str]) -> int:
    """Writes a topic's records into a folder, sorted by seq; how many there were. The folder must not be there yet."""
    spark.dataSource.register(TopicsDataSource)
    frame = spark.read.format("topics").options(topic=topic, **access).load().drop("deleted")
    frame = frame.orderBy("seq").persist()
    count = frame.count()
    if form == "parquet":
        frame.write.parquet(target)
    else:
        frame.mapInArrow(_as_lines, "value string").write.text(target)
    frame.unpersist()
    return count


def import_topic(spark: SparkSession, topic: str, source: str, form: Format, access: dict[str, str]) -> int:
    """Appends the records of files to a topic, in order; how many there were."""
    spark.dataSource.register(TopicsDataSource)
    if form == "parquet":
        frame = _with_parts(spark.read.parquet(source))
    else:
        frame = spark.read.text(source).mapInArrow(_from_lines, _LINE_DDL)
        # Without seqs the order of the lines is all there is, and sorting by equal seqs would not keep it.
        frame = frame.orderBy("seq") if frame.where("seq > 0").limit(1).count() else frame
    frame = frame.select(*[name for name in _PARTS if name in frame.columns]).coalesce(1).persist()
    count = frame.count()
    frame.write.format("topics").options(topic=topic, **access).mode("append").save()
    frame.unpersist()
    return count


def _with_parts(frame: DataFrame) -> DataFrame:
    if "data" not in frame.columns:
        raise BadLineError("the files have no column data")
    return frame.orderBy("seq") if "seq" in frame.columns else frame


def _as_lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        times = batch["ts"].cast(pa.int64()).to_pylist()
        columns = [batch[name].to_pylist() for name in ("seq", "node", "tag", "meta", "data")]
        lines = [
            msgspec.json.encode(
                _Line(seq, ts // 1000, node, tag, _NONE if meta is None else msgspec.Raw(meta), msgspec.Raw(data))
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
                    raise BadLineError(f"this line is no record ({error}): {line[:200]}") from error
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
