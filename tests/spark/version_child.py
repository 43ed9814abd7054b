"""Everything that the connector and the pipeline do with Spark, once, in whichever version is found first.

    python version_child.py URL DATA_FOLDER

Prints the outcome as JSON. The server has a topic `orders` whose records are sealed but for the last, and a stream
`described` with a schema.
"""

import json
import sys
import tempfile

import pyspark
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.spark.described_stream import change_the_schema
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings
from topics.spark.archive.archive_reader import archived_records
from topics.spark.connector.source import TopicsDataSource
from topics.spark.pipeline.executors import SparkExecutor
from topics.spark.pipeline.pipeline_worker import make_pipeline
from topics.spark.session import SparkOptions, open_session
from topics.system.clock import SystemClock


def main(url: str, data: str) -> None:
    spark = open_session(SparkOptions(app_name="version", memory="512m"))
    spark.dataSource.register(TopicsDataSource)
    reported: dict[str, object] = {"version": pyspark.__version__}
    for mode in ("http", "auto", "segments"):
        rows = spark.read.format("topics").options(url=url, topic="orders", path=data, mode=mode).load()
        reported[mode] = sorted(row.seq for row in rows.select("seq").collect())
    pipeline = make_pipeline(
        Settings(data_dir=data, archive="1"), PosixFileSystem(), SparkExecutor(spark), SystemClock()
    )
    while pipeline.round():
        pass
    reported["quarantined"] = [one.reason for one in pipeline.status.quarantined]
    reported["archived"] = sorted(row.seq for row in archived_records(spark, f"{data}/archive", "orders").collect())
    stream = spark.readStream.format("topics").options(url=url, topic="orders", startingOffsets="earliest").load()
    with tempfile.TemporaryDirectory() as checkpoint:
        for _ in range(2):
            # The second run finds everything done.
            copying = (
                stream.select(f.col("data"), f.lit(None).cast("string").alias("tag"), f.col("seq"))
                .writeStream.format("topics")
                .options(url=url, topic="copy")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
            )
            copying.start().awaitTermination()
    reported["typed"] = in_columns(spark, url, data)
    frame = spark.createDataFrame([("1",), ("2",)], "data string")
    frame.write.format("topics").options(url=url, topic="written").mode("append").save()
    print(json.dumps(reported))
    spark.stop()


def in_columns(spark: SparkSession, url: str, data: str) -> dict[str, object]:
    """The members of a stream's entries as columns: in each way to read, only the chosen ones, and through a change of
    the schema."""
    options = {"url": url, "topic": "described", "path": data, "typed": "true", "startingOffsets": "earliest"}
    reported: dict[str, object] = {}
    for mode in ("http", "auto", "segments"):
        reported[mode] = _rows(spark.read.format("topics").options(**options, mode=mode).load())
    chosen = spark.read.format("topics").schema("total double, id bigint").options(**options).load()
    reported["chosen"] = [[row.total, row.id] for row in chosen.orderBy("id").collect()]
    streamed: list[list[object]] = []
    with tempfile.TemporaryDirectory() as checkpoint:

        def copying() -> DataStreamWriter:
            frame = spark.readStream.format("topics").options(**options).load()
            return (
                frame.writeStream.foreachBatch(lambda batch, number: streamed.extend(_rows(batch)))
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
            )

        loaded = copying()
        for _ in range(2):
            loaded.start().awaitTermination()
        change_the_schema(url, "described")
        try:
            loaded.start().awaitTermination()
        except StreamingQueryException as error:
            reported["refused"] = str(error)
        copying().start().awaitTermination()
    reported["streamed"] = streamed
    return reported


def _rows(frame: DataFrame) -> list[list[object]]:
    moment = f.unix_millis("at").alias("at")
    return [list(row) for row in frame.orderBy("_seq").select("_seq", "id", "total", "paid", moment, "_rest").collect()]


if __name__ == "__main__":
    main(*sys.argv[1:])
