"""What a query may not hide: each read is driven as Spark drives it, and without a Spark."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.http.live import LiveServer
from tests.spark.looking import checkpointed
from topics.client import Client
from topics.spark.connector.loss import DataLossError
from topics.spark.connector.source import TopicsDataSource, TopicsReader, TopicsStreamReader

SCHEMA = StructType([StructField("topic", StringType(), False), StructField("seq", LongType(), False)])
ROWS = list[tuple[str, int]]


def reader(**options: str) -> TopicsReader:
    found = TopicsDataSource(options).reader(SCHEMA)
    assert isinstance(found, TopicsReader)
    return found


def stream(**options: str) -> TopicsStreamReader:
    found = TopicsDataSource(options).streamReader(SCHEMA)
    assert isinstance(found, TopicsStreamReader)
    return found


def rows(source: TopicsReader | TopicsStreamReader, pieces: object) -> ROWS:
    """What the tasks of these pieces give."""

    def each() -> Iterator[tuple[str, int]]:
        for piece in pieces:  # type: ignore[attr-defined]
            for batch in source.read(piece):
                yield from zip(batch["topic"].to_pylist(), batch["seq"].to_pylist(), strict=True)

    return sorted(each())


# A topic that was made again


@pytest.fixture(params=["http", "auto"])
def access(request: pytest.FixtureRequest, server: LiveServer, tmp_path: Path) -> dict[str, str]:
    given = {"mode": request.param, "url": server.url}
    return given if request.param == "http" else {**given, "path": str(tmp_path / "data")}


def make_again(client: Client, folder: Path, name: str, count: int) -> None:
    client.delete_topic(name)
    client.append_many(name, range(count))
    checkpointed(client, folder / "data")


def test_a_batch_never_returns_records_of_a_later_topic(access: dict[str, str], client: Client, tmp_path: Path) -> None:
    client.append_many("orders", range(60))
    checkpointed(client, tmp_path / "data")
    planned = reader(**access, topic="orders")
    lenient = reader(**access, topic="orders", failOnDataLoss="false")
    pieces, others = planned.partitions(), lenient.partitions()
    make_again(client, tmp_path, "orders", 60)
    with pytest.raises(DataLossError, match="recreated"):
        rows(planned, pieces)
    assert rows(lenient, others) == []


def test_a_replayed_batch_of_a_stream_never_returns_records_of_a_later_topic(
    access: dict[str, str], client: Client, tmp_path: Path
) -> None:
    client.append_many("orders", range(60))
    checkpointed(client, tmp_path / "data")
    options = {**access, "topic": "orders", "startingOffsets": "earliest"}
    first = stream(**options)
    start = first.initialOffset()
    end = first.latestOffset(start, first.getDefaultReadLimit())
    make_again(client, tmp_path, "orders", 60)
    # The driver was killed before it committed: the batch is run again with the offsets of its log.
    with pytest.raises(DataLossError, match="recreated"):
        again = stream(**options)
        rows(again, again.partitions(start, end))
    lenient = stream(**options, failOnDataLoss="false")
    assert rows(lenient, lenient.partitions(start, end)) == []
    # The next batch has the new topic, once.
    after = lenient.latestOffset(end, lenient.getDefaultReadLimit())
    assert rows(lenient, lenient.partitions(end, after)) == [("orders", seq) for seq in range(1, 61)]
