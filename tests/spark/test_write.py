"""`df.write` and `df.writeStream`: written rows are there as a whole and once, after every kind of retry."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.http.live import LiveServer
from tests.spark.waiting_for import of_diff, wait_until
from topics_client import Client, NewRecord, TopicNotFound

Options = Iterable[tuple[str, str]]


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
        ("select 'no json' as data", {"topic": "orders"}, "stage"),
    ],
)
def test_invalid_dataframes_are_refused(
    spark: SparkSession, server: LiveServer, frame: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        spark.sql(frame).write.format("topics").options(url=server.url, **options).mode("append").save()


def stream(
    spark: SparkSession, server: LiveServer, folder: Path, transform: object = None, sink: Options = (), **source: str
) -> None:
    """Copies a topic into another until it has everything."""
    given = {
        "url": server.url, "topic": "orders", "startingOffsets": "earliest", "maxRecordsPerTrigger": "20",
        "minPartitions": "2", **source,
    }  # fmt: skip
    frame = spark.readStream.format("topics").options(**given).load().select("data")
    if transform is not None:
        frame = frame.mapInArrow(transform, "data string")  # type: ignore[arg-type]
    query = (
        frame.writeStream.format("topics")
        .options(**{"url": server.url, "topic": "copy", "batchRecords": "4", **dict(sink)})
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(180)


def dying_once(marker: Path) -> object:
    """Kills its own Python worker in the middle of the second micro-batch, when it is there for the first time."""

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for begin in range(batch.num_rows):
                if begin == 6 and '{"id":26}' in batch["data"].to_pylist() and not marker.exists():
                    marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield batch.slice(begin, 1)

    return die_once


def test_a_batch_is_seen_as_a_whole_or_not_at_all(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    """The first run dies when tasks have staged a part of the second batch: no reader sees any of it."""
    client.append_many("orders", [{"id": n} for n in range(50)])
    marker = tmp_path / "killed"
    with pytest.raises(StreamingQueryException):
        stream(spark, server, tmp_path, dying_once(marker))
    assert marker.exists()
    assert ids(client, "copy") == expected(20)
    stream(spark, server, tmp_path, dying_once(marker))
    assert ids(client, "copy") == expected(50)


def test_a_batch_that_is_run_again_with_other_options_and_other_rows_is_there_once(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    """Between the attempt and its repetition rows are deleted from the source, and the rows are cut otherwise."""
    client.append_many("orders", [NewRecord({"id": n}, tag=f"t{n}") for n in range(50)])
    marker = tmp_path / "killed"
    with pytest.raises(StreamingQueryException):
        stream(spark, server, tmp_path, dying_once(marker))
    for gone in (3, 22, 27, 39, 45):
        assert client.delete("orders", match=f"t{gone}").deleted == 1
    other = {"batchRecords": "7"}.items()
    stream(spark, server, tmp_path, dying_once(marker), other, minPartitions="5", recordsPerPartition="3")
    # The first batch was committed, and its rows stay written.
    left = [n for n in range(50) if n not in (22, 27, 39, 45)]
    assert ids(client, "copy") == sorted(f'{{"id":{n}}}' for n in left)


def test_a_committed_batch_that_is_run_again_changes_nothing(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    """The driver was killed behind the commit, before Spark noted it: the last batch is run again, with fewer rows."""
    client.append_many("orders", [NewRecord({"id": n}, tag=f"t{n}") for n in range(50)])
    stream(spark, server, tmp_path)
    commits = tmp_path / "checkpoint" / "commits"
    last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    for path in (last, commits / f".{last.name}.crc"):
        path.unlink(missing_ok=True)
    client.delete("orders", before_seq=46)
    before = of_diff(client, "copy")
    stream(spark, server, tmp_path, None, {"batchRecords": "1"}.items(), recordsPerPartition="2")
    assert of_diff(client, "copy") == before
    assert ids(client, "copy") == expected(50)


def test_a_batch_over_several_topics_is_one_transaction(
    spark: SparkSession, server: LiveServer, client: Client
) -> None:
    client.put_topic("full", {"cap_records": 5, "discard": "reject"})
    rows = [(f"topic-{n % 3}", str(n)) for n in range(29)]
    frame = spark.createDataFrame(rows + [("full", str(n)) for n in range(9)], "topic string, data string")
    with pytest.raises(PySparkException, match="larger than the topic"):
        frame.repartition(3).write.format("topics").options(url=server.url).mode("append").save()
    for name in ("topic-0", "topic-1", "topic-2"):
        assert written(client, name) == 0
    frame.filter("topic != 'full'").write.format("topics").options(url=server.url).mode("append").save()
    assert [written(client, name) for name in ("topic-0", "topic-1", "topic-2")] == [10, 10, 9]


def test_a_batch_may_be_written_in_pieces(spark: SparkSession, server: LiveServer, client: Client) -> None:
    for _ in range(2):
        numbers(spark, 20).write.format("topics").options(
            url=server.url, topic="pieces", writeId="w", batchRecords="3", atomic="false"
        ).mode("append").save()
    assert ids(client, "pieces") == expected(20)


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
    """A driver in a separate process is killed in the middle of its work; another goes on from its checkpoint."""
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
    stream(spark, server, tmp_path, None, {"batchRecords": "9"}.items(), recordsPerPartition="3")
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


def written(client: Client, topic: str = "copy") -> int:
    try:
        return client.get_topic(topic).count
    except TopicNotFound:
        return 0
