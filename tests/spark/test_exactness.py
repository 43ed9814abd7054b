"""Losses that a query must report: each read is driven as Spark drives it, and without a Spark."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.http.live import LiveServer
from tests.spark.waiting_for import checkpointed, wait_until
from topics.log.catalog_files import read_catalog
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.spark.connector.options import DataLossError, OptionError
from topics.spark.connector.source import TopicsDataSource, TopicsReader, TopicsStreamReader
from topics_client import Client

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
    """Returns the rows of the tasks for these pieces."""

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


# Topics that are not there, and streams with their own names


def test_a_topic_that_is_not_there_is_an_error_unless_it_may_be_missing(access: dict[str, str], client: Client) -> None:
    client.append_many("orders", range(3))
    with pytest.raises(OptionError, match="there is no topic other"):
        reader(**access, topics="orders,other").partitions()
    with pytest.raises(OptionError, match="failOnMissingTopic"):
        stream(**access, topic="other").initialOffset()
    lenient = reader(**access, topics="orders,other", failOnMissingTopic="false")
    assert rows(lenient, lenient.partitions()) == [("orders", 1), ("orders", 2), ("orders", 3)]
    # A stream takes a topic up once it is there, from its beginning.
    patient = stream(**access, topic="other", failOnMissingTopic="false")
    start = patient.initialOffset()
    client.append_many("other", range(2))
    end = patient.latestOffset(start, patient.getDefaultReadLimit())
    assert rows(patient, patient.partitions(start, end)) == [("other", 1), ("other", 2)]


def test_streams_whose_names_topics_cannot_have_are_read_and_followed(
    server: LiveServer, client: Client, tmp_path: Path
) -> None:
    for name in ("chat/42", "chat/43", "räume, alle"):
        client.put_stream(name, content_type="application/json")
        for number in range(60):
            client.append_stream(name, [{"n": number}])
    client.put_stream("chat/bytes", b"hello", content_type="text/plain")
    checkpointed(client, tmp_path / "data")
    server.stop()
    server.start()
    http, path = {"url": server.url}, {"path": str(tmp_path / "data")}
    ways = {"http": http, "auto": {**http, **path}, "segments": path}
    whole = [("chat/42", seq) for seq in range(1, 61)]
    for mode, given in ways.items():
        sealed = 50 if mode == "segments" else 60
        alone = reader(mode=mode, **given, topic="chat/42")
        assert rows(alone, alone.partitions()) == whole[:sealed]
        odd = reader(mode=mode, **given, topic="räume, alle")
        assert len(rows(odd, odd.partitions())) == sealed
        both = reader(mode=mode, **given, topicPattern="chat/4*")
        assert {name for name, _ in rows(both, both.partitions())} == {"chat/42", "chat/43"}
        following = stream(mode=mode, **given, topic="chat/42", startingOffsets="earliest")
        start = following.initialOffset()
        end = following.latestOffset(start, following.getDefaultReadLimit())
        assert rows(following, following.partitions(start, end)) == whole[:sealed]
    bytes_ = reader(**http, topic="chat/bytes")
    assert rows(bytes_, bytes_.partitions()) == [("chat/bytes", 1)]


def test_a_query_that_only_looks_makes_no_topic_look_used(access: dict[str, str], client: Client) -> None:
    client.append_many("orders", range(3))
    before = client.get_topic("orders", touch=False).last_read_ts
    following = stream(**access, topic="orders", startingOffsets="earliest")
    start = following.initialOffset()
    end = following.latestOffset(start, following.getDefaultReadLimit())
    following.reportLatestOffset()
    following.partitions(start, end)
    reader(**access, topic="orders").partitions()
    reader(**access, topicPattern="ord*").partitions()
    assert client.get_topic("orders", touch=False).last_read_ts == before


def test_many_named_topics_are_looked_up_in_pages(server: LiveServer, client: Client) -> None:
    names = [f"shop-{number}" for number in range(70)]
    for name in names:
        client.append(name, 1)
    client.append("shop-other", 1)
    found = reader(url=server.url, mode="http", topics=",".join(names))
    pieces = found.partitions()
    assert len(pieces) == 1
    assert rows(found, pieces) == sorted((name, 1) for name in names)


# Times, and the cold tier


def test_what_is_later_than_wanted_is_not_read(access: dict[str, str], client: Client, tmp_path: Path) -> None:
    client.append_many("orders", range(60))
    client.put_topic("barrier", {})
    moment = client.get_topic("orders", touch=False).last_write_ts
    assert moment is not None
    while client.append("later", 1) and client.get_topic("later", touch=False).last_write_ts == moment:
        pass
    client.append_many("orders", range(60))
    checkpointed(client, tmp_path / "data")
    bounded = reader(**access, topic="orders", endingTimestamp=str(moment + 1))
    pieces = bounded.partitions()
    assert [(one.after, one.to) for piece in pieces for one in piece.spans] == [(0, 60)]  # type: ignore[attr-defined]
    assert rows(bounded, pieces) == [("orders", seq) for seq in range(1, 61)]


def test_without_the_place_of_the_cold_tier_the_server_is_asked(tmp_path: Path) -> None:
    settings = {
        "segment_max_events": "50",
        "snapshot_interval_ms": "200",
        "hot_retain_segments": "0",
        "pipeline": "off",
    }
    with LiveServer(tmp_path, **settings, cold_dir=str(tmp_path / "cold")) as server, Client(server.url) as client:
        client.append_many("orders", range(120))

        def is_cold() -> bool:
            client.append("busy", 1)
            catalog = read_catalog(PosixFileSystem(), Layout(str(tmp_path / "data")))
            known = catalog.by_name().get("orders") if catalog is not None else None
            return known is not None and len(known.segments) > 0 and all(one.cold for one in known.segments)

        wait_until(is_cold, "every segment is in the cold folder")
        found = reader(url=server.url, path=str(tmp_path / "data"), topic="orders")
        assert rows(found, found.partitions()) == [("orders", seq) for seq in range(1, 121)]
