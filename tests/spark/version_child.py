"""Everything that the connector and the pipeline do with Spark, once, in whichever version is found first.

    python version_child.py URL DATA_FOLDER

Prints what came of it as JSON. The server has a topic `orders` whose records are sealed but for the last.
"""

import json
import sys
import tempfile

import pyspark
from pyspark.sql import functions as f

from topics.config.settings import Settings
from topics.spark.archive.reading import archived_records
from topics.spark.connector.source import TopicsDataSource
from topics.spark.pipeline.executors import SparkExecutor
from topics.spark.pipeline.worker import make_pipeline
from topics.spark.session import SparkOptions, open_session
from topics.storage.posix import PosixFileSystem
from topics.system.clock import SystemClock


def main(url: str, data: str) -> None:
    spark = open_session(SparkOptions(app_name="version", memory="512m"))
    spark.dataSource.register(TopicsDataSource)
    told: dict[str, object] = {"version": pyspark.__version__}
    for mode in ("http", "auto", "segments"):
        rows = spark.read.format("topics").options(url=url, topic="orders", path=data, mode=mode).load()
        told[mode] = sorted(row.seq for row in rows.select("seq").collect())
    pipeline = make_pipeline(
        Settings(data_dir=data, archive="1"), PosixFileSystem(), SparkExecutor(spark), SystemClock()
    )
    while pipeline.round():
        pass
    told["quarantined"] = [one.reason for one in pipeline.status.quarantined]
    told["archived"] = sorted(row.seq for row in archived_records(spark, f"{data}/archive", "orders").collect())
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
    frame = spark.createDataFrame([("1",), ("2",)], "data string")
    frame.write.format("topics").options(url=url, topic="written").mode("append").save()
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
