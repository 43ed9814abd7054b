"""`spark.read.format("topics")`: the rows equal the records of diff, wherever they come from."""

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.http.live import LiveServer
from tests.spark.waiting_for import checkpointed, of_diff, of_frame, sealed_to, wait_until
from topics.spark.arrow_slices import RECORD_DDL
from topics_client import Client, NewRecord


def load(spark: SparkSession, server: LiveServer, folder: Path, mode: str, **options: object) -> DataFrame:
    reader = spark.read.format("topics").option("mode", mode)
    if mode != "segments":
        reader = reader.option("url", server.url)
    if mode != "http":
        reader = reader.option("path", str(folder / "data"))
    return reader.options(**{"topic": "orders", **options}).load()  # type: ignore[arg-type]


def fill(client: Client, folder: Path, count: int = 120, topic: str = "orders") -> None:
    """Two sealed segments and a tail, with every kind of part."""
    for first in range(1, count + 1, 10):
        records = [
            NewRecord(
                {"order": n},
                f"t{n % 3}" if n % 2 else None,
                "n" if n % 5 == 0 else None,
                {"k": n} if n % 7 == 0 else None,
            )
            for n in range(first, first + 10)
        ]
        client.append_many(topic, records)
    wait_until(lambda: sealed_to(folder / "data", topic) == count - count % 50, "everything but the tail is sealed")


@pytest.mark.parametrize("mode", ["http", "auto"])
def test_all_records_are_read_as_diff_gives_them(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path, mode: str
) -> None:
    fill(client, tmp_path)
    client.delete("orders", match="t1")
    client.delete("orders", before_seq=4)
    checkpointed(client, tmp_path / "data")
    frame = load(spark, server, tmp_path, mode, minPartitions=3)
    assert of_frame(frame) == of_diff(client, "orders")


def test_sealed_records_are_read_without_a_server(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    fill(client, tmp_path)
    client.delete("orders", match="t1")
    client.delete("orders", before_seq=4)
    server.stop()
    server.start()
    expected = [row for row in of_diff(client, "orders") if row[0] <= 100]
    server.kill()
    frame = load(spark, server, tmp_path, "segments", minPartitions=2)
    assert of_frame(frame) == expected
    assert frame.rdd.getNumPartitions() == 2
    pruned = load(spark, server, tmp_path, "segments", tagPrefix="t2")
    assert {row.tag for row in pruned.collect()} == {"t2"}


def test_after_caps_ttl_and_a_new_beginning_it_is_still_what_diff_states(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    client.put_topic("orders", {"cap_records": 70})
    fill(client, tmp_path)
    fill(client, tmp_path, topic="aged")
    client.put_topic("aged", {"ttl_ms": 1})
    fill(client, tmp_path, topic="again")
    checkpointed(client, tmp_path / "data")
    client.delete_topic("again")
    client.append_many("again", range(3))
    expected = [row for topic in ("aged", "again", "orders") for row in of_diff(client, topic)]
    for access in ({}, {"path": str(tmp_path / "data")}):
        reader = spark.read.format("topics").options(url=server.url, topics="orders,aged,again", **access)
        assert of_frame(reader.load()) == expected


def test_the_schema_is_pinned_and_a_part_of_it_can_be_asked_for(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    client.append("orders", {"order": 1})
    frame = load(spark, server, tmp_path, "http")
    assert frame.schema == spark.createDataFrame([], RECORD_DDL).schema
    [row] = frame.collect()
    assert (row.topic, row.seq, row.data, row.content_type, row.deleted) == (
        "orders", 1, '{"order":1}', "application/json", False,
    )  # fmt: skip
    assert row.epoch == client.get_topic("orders").epoch
    part = spark.read.format("topics").schema("data string, seq bigint").options(url=server.url, topic="orders").load()
    assert [tuple(row) for row in part.collect()] == [('{"order":1}', 1)]


def test_offsets_and_moments_bound_a_read(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    fill(client, tmp_path, 60)
    client.append_many("other", range(5))

    def seqs(mode: str, **options: object) -> list[int]:
        return [row.seq for row in load(spark, server, tmp_path, mode, **options).orderBy("seq").collect()]

    moment = of_diff(client, "orders")[30][1]
    for mode in ("http", "auto", "segments"):
        assert seqs(mode, startingOffsets='{"orders": 10}', endingOffsets='{"orders": 13}') == [11, 12, 13]
        at = seqs(mode, startingTimestamp=moment)
        assert at[0] == min(seq for seq, ts, *_ in of_diff(client, "orders") if ts >= moment)
    assert seqs("http", startingOffsets="latest") == []
    for choice in ({"topics": "orders,other"}, {"topicPattern": "o*"}):
        both = spark.read.format("topics").options(url=server.url, endingOffsets='{"orders": 1}', **choice).load()
        assert sorted((row.topic, row.seq) for row in both.collect()) == [
            ("orders", 1), *(("other", seq) for seq in range(1, 6)),
        ]  # fmt: skip


def test_a_frame_used_twice_gives_the_same_rows(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    fill(client, tmp_path, 60)
    frame = load(spark, server, tmp_path, "auto")
    assert frame.where("seq = 2").count() == 1
    assert frame.count() == 60
    assert frame.union(frame).where("seq <= 2").count() == 4


def test_a_loss_fails_the_read_or_is_passed_over(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    client.put_topic("orders", {"cap_records": 10})
    client.append_many("orders", range(30))
    with pytest.raises(PySparkException, match="records 1 to 20 are gone"):
        load(spark, server, tmp_path, "http", startingOffsets='{"orders": 0}').collect()
    rest = load(spark, server, tmp_path, "http", startingOffsets='{"orders": 0}', failOnDataLoss="false")
    assert [row.seq for row in rest.orderBy("seq").collect()] == list(range(21, 31))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": ""}, "exactly one of the options"),
        ({"topci": "x"}, "there is no option 'topci'"),
        ({"mode": "fast"}, "accepted is one of auto, http, segments"),
        ({"startingOffsets": "first"}, "accepted is earliest, latest or JSON"),
        ({"minPartitions": "0"}, "a whole number of at least 1"),
        ({"startingOffsets": '{"none": 1}', "failOnMissingTopic": "false"}, "no such topic is read"),
        ({"topic": "none"}, "there is no topic none"),
    ],
)
def test_a_wrong_option_is_reported(
    spark: SparkSession, server: LiveServer, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        spark.read.format("topics").options(**{"url": server.url, "topic": "orders", **options}).load().collect()


@pytest.mark.parametrize("mode", ["http", "segments"])
def test_chosen_columns_and_headers_as_a_map(
    spark: SparkSession, server: LiveServer, client: Client, tmp_path: Path, mode: str
) -> None:
    fill(client, tmp_path, 100)
    whole = load(spark, server, tmp_path, mode)
    frame = load(spark, server, tmp_path, mode, columns="seq,meta", metaAs="map")
    assert frame.dtypes == [("seq", "bigint"), ("meta", "map<string,string>")]
    found = {row.seq: row.meta for row in frame.collect()}
    assert len(found) == 100
    for row in whole.select("seq", "meta").collect():
        wanted = None if row.meta is None else json.loads(row.meta)
        assert found[row.seq] == (wanted and {name: str(value) for name, value in wanted.items()})
