"""`spark.readStream.format("topics")`: a query that is stopped and started again loses and repeats nothing."""

import time
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.http.live import LiveServer
from tests.spark.waiting_for import checkpointed, of_diff, wait_until
from topics.spark.connector.progress import source_lags
from topics_client import Client


def read(spark: SparkSession, server: LiveServer, **options: object) -> DataFrame:
    given = {"url": server.url, "topic": "orders", "startingOffsets": "earliest", **options}
    return spark.readStream.format("topics").options(**given).load()  # type: ignore[arg-type]


def run_once(frame: DataFrame, folder: Path) -> list[int]:
    """Runs a query until it has read everything that is there now; returns the content of its sink, in order."""
    query = (
        frame.select("topic", "seq", "data")
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    found = frame.sparkSession.read.parquet(str(folder / "out")).collect()
    return sorted(row.seq for row in found)


def test_a_restart_from_the_checkpoint_loses_and_repeats_nothing(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    client.append_many("orders", range(70))
    options = {"path": str(tmp_path / "data"), "maxRecordsPerTrigger": 30, "minPartitions": 2}
    assert run_once(read(spark, server, **options), tmp_path) == list(range(1, 71))
    client.append_many("orders", range(70))
    client.delete("orders", before_seq=80)
    checkpointed(client, tmp_path / "data")
    server.stop()
    server.start()
    assert run_once(read(spark, server, **options), tmp_path) == [*range(1, 71), *range(80, 141)]


def test_a_rate_limit_bounds_every_micro_batch(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    client.append_many("orders", range(25))
    client.append_many("other", range(5))
    sizes: list[int] = []
    options = {"url": server.url, "topics": "orders,other", "startingOffsets": "earliest", "maxRecordsPerTrigger": "10"}
    frame = spark.readStream.format("topics").options(**options).load()
    query = (
        frame.writeStream.foreachBatch(lambda batch, number: sizes.append(batch.count()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert sizes == [10, 10, 10]


def test_a_loss_stops_the_query_unless_it_was_asked_to_go_on(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    client.put_topic("orders", {"cap_records": 10})
    client.append_many("orders", range(10))
    assert run_once(read(spark, server), tmp_path) == list(range(1, 11))
    client.append_many("orders", range(30))
    with pytest.raises(StreamingQueryException, match="records 11 to 30 are gone"):
        run_once(read(spark, server), tmp_path)
    assert run_once(read(spark, server, failOnDataLoss="false"), tmp_path) == [*range(1, 11), *range(31, 41)]


def test_a_topic_that_was_made_again_is_a_loss(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    client.append_many("orders", range(10))
    assert run_once(read(spark, server), tmp_path) == list(range(1, 11))
    client.delete_topic("orders")
    client.append_many("orders", range(12))
    with pytest.raises(StreamingQueryException, match="deleted and made again"):
        run_once(read(spark, server), tmp_path)
    assert run_once(read(spark, server, failOnDataLoss="false"), tmp_path) == sorted([*range(1, 11), *range(1, 13)])


def test_a_stream_begins_at_a_moment(spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path) -> None:
    client.append_many("orders", range(5))
    time.sleep(0.01)
    client.append_many("orders", range(5))
    moment = of_diff(client, "orders")[5][1]
    options = {"url": server.url, "topic": "orders", "startingTimestamp": str(moment)}
    frame = spark.readStream.format("topics").options(**options).load()
    assert run_once(frame, tmp_path) == list(range(6, 11))


def test_small_micro_batches_wait_and_progress_has_the_lag(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    client.append_many("orders", range(25))
    sizes: list[int] = []
    frame = read(spark, server, minRecordsPerTrigger=10, maxRecordsPerTrigger=20)
    query = (
        frame.writeStream.foreachBatch(lambda batch, number: sizes.append(batch.count()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        wait_until(lambda: len(sizes) == 1 and query.lastProgress is not None, "the first micro-batch is read")
        # Five records wait for five more.
        [lag] = source_lags(query.recentProgress[0])
        assert (lag.records, lag.topics) == (5, {"orders": 5})
        client.append_many("orders", range(6))
        wait_until(lambda: len(sizes) == 2, "the second micro-batch is read")
    finally:
        query.stop()
    assert sizes == [20, 11]


def test_a_consumer_shows_what_a_query_has_processed(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    client.append_many("orders", range(70))
    options = {"consumer": "warehouse", "maxRecordsPerTrigger": 30}
    assert run_once(read(spark, server, **options), tmp_path) == list(range(1, 71))
    first = client.get_consumer("orders", "warehouse")
    assert first.seq == 70
    client.append_many("orders", range(30))
    client.commit_consumer("orders", "warehouse", 5, force=True)
    assert run_once(read(spark, server, **options), tmp_path) == list(range(1, 101)), "it begins at the checkpoint"
    assert client.get_consumer("orders", "warehouse").lag == 0
