"""`df.write` and `df.writeStream`: records are written once, whatever is tried again."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.http.live import LiveServer
from tests.spark.looking import of_diff, wait_until
from topics.client import Client, TopicNotFound


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(f.to_json(f.struct("id")).alias("data"), "id")


def ids(client: Client, topic: str) -> list[str]:
    return sorted(data for *_, data in of_diff(client, topic))


def expected(count: int) -> list[str]:
    return sorted(f'{{"id":{n}}}' for n in range(count))


def test_a_frame_is_written_with_all_its_parts(spark: SparkSession, server: LiveServer, client: Client) -> None:
    frame = spark.createDataFrame(
        [("a", '{"x": 1}', "t", "n", '{"k":1}'), ("b", "2", None, None, None), ("a", "[3]", None, "n", None)],
        "topic string, data string, tag string, node string, meta string",
    ).coalesce(1)
    frame.write.format("topics").option("url", server.url).mode("append").save()
    assert [(seq, *rest) for seq, _, *rest in of_diff(client, "a")] == [
        (1, "n", "t", '{"k":1}', '{"x": 1}'),
        (2, "n", None, None, "[3]"),
    ]
    assert [data for *_, data in of_diff(client, "b")] == ["2"]


def test_a_write_with_an_id_is_done_once_and_without_one_each_time(
    spark: SparkSession, server: LiveServer, client: Client
) -> None:
    frame = numbers(spark, 20)
    for _ in range(2):
        frame.write.format("topics").options(url=server.url, topic="once", writeId="w", batchRecords="3").mode(
            "append"
        ).save()
        frame.write.format("topics").options(url=server.url, topic="twice").mode("append").save()
    assert ids(client, "once") == expected(20)
    assert ids(client, "twice") == sorted(expected(20) * 2)


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        ("select 1 as id", {"topic": "orders"}, "needs a column data"),
        ("select 1 as data", {"topic": "orders"}, "must be a string, not int"),
        ("select '1' as data", {}, "option topic or by a column topic"),
        ("select 'no json' as data", {"topic": "orders"}, "append"),
    ],
)
def test_what_cannot_be_written_is_refused(
    spark: SparkSession, server: LiveServer, frame: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        spark.sql(frame).write.format("topics").options(url=server.url, **options).mode("append").save()


def stream(spark: SparkSession, server: LiveServer, folder: Path, transform: object = None) -> None:
    """Copies a topic into another until it has everything."""
    frame = spark.readStream.format("topics").options(
        url=server.url, topic="orders", startingOffsets="earliest", maxRecordsPerTrigger="20", minPartitions="2"
    ).load().select("data")  # fmt: skip
    if transform is not None:
        frame = frame.mapInArrow(transform, "data string")  # type: ignore[arg-type]
    query = (
        frame.writeStream.format("topics")
        .options(url=server.url, topic="copy", batchRecords="4")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(180)


def test_a_killed_task_and_a_replayed_batch_write_nothing_twice(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    """The first run kills its own Python worker in the middle of a partition; the second goes on from the checkpoint.

    The batch is run again as a whole, and what its tasks had already appended must not come again.
    """
    client.append_many("orders", [{"id": n} for n in range(50)])
    marker = tmp_path / "killed"

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for begin in range(batch.num_rows):
                if begin == 6 and '{"id":26}' in batch["data"].to_pylist() and not marker.exists():
                    marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield batch.slice(begin, 1)

    with pytest.raises(StreamingQueryException):
        stream(spark, server, tmp_path, die_once)
    assert marker.exists()
    before = len(of_diff(client, "copy"))
    assert 20 <= before < 50
    stream(spark, server, tmp_path, die_once)
    assert ids(client, "copy") == expected(50)


_DRIVER = """
import sys
from topics.spark.connector.source import TopicsDataSource
from topics.spark.session import SparkOptions, open_session

url, checkpoint = sys.argv[1:]
spark = open_session(SparkOptions(master="local[2]", memory="512m"))
spark.dataSource.register(TopicsDataSource)
given = dict(url=url, topic="orders", startingOffsets="earliest", maxRecordsPerTrigger="20", minPartitions="2")
query = (
    spark.readStream.format("topics").options(**given).load().select("data")
    .writeStream.format("topics").options(url=url, topic="copy", batchRecords="4")
    .option("checkpointLocation", checkpoint).start()
)
query.awaitTermination()
"""


@pytest.mark.slow
def test_a_killed_driver_yields_no_duplicate(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    """A driver of its own process is killed in the middle of its work; another goes on from its checkpoint."""
    client.append_many("orders", [{"id": n} for n in range(80)])
    driver = subprocess.Popen(
        [sys.executable, "-c", _DRIVER, server.url, str(tmp_path / "checkpoint")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: written(client) >= 20 or driver.poll() is not None, "the driver has written something")
        assert driver.poll() is None
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    stream(spark, server, tmp_path)
    assert ids(client, "copy") == expected(80)


_RETRYING = """
import os, signal, sys
from topics.spark.connector.source import TopicsDataSource
from topics.spark.session import SparkOptions, open_session

url, marker = sys.argv[1:]
# Four attempts a task: what a cluster does and an embedded Spark otherwise does not.
spark = open_session(SparkOptions(master="local[2,4]", memory="512m"))
spark.dataSource.register(TopicsDataSource)

def die_once(batches):
    for batch in batches:
        for begin in range(batch.num_rows):
            if begin == 30 and not os.path.exists(marker):
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch.slice(begin, 1)

rows = spark.range(0, 100, 1, 2).selectExpr("to_json(struct(id)) as data").mapInArrow(die_once, "data string")
rows.write.format("topics").options(url=url, topic="copy", batchRecords="4").mode("append").save()
assert os.path.exists(marker)
spark.stop()
"""


@pytest.mark.slow
def test_a_task_that_is_killed_and_tried_again_by_spark_writes_nothing_twice(
    server: LiveServer, client: Client, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RETRYING, server.url, str(tmp_path / "killed")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert ids(client, "copy") == expected(100)


def written(client: Client) -> int:
    try:
        return client.get_topic("copy").count
    except TopicNotFound:
        return 0


def test_a_topic_that_forgets_keys_too_soon_is_refused(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    client.append("orders", {"id": 0})
    client.put_topic("copy", {"idempotency_window_ms": 1000})
    with pytest.raises(StreamingQueryException, match="raise the topic's idempotency_window_ms"):
        stream(spark, server, tmp_path)
