"""The archive's table in independent readers: each sees the content of diff, after every kind of operation."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.http.live import LiveServer
from tests.readers import Row, read_by_all
from tests.s3 import S3Server
from tests.spark.iceberg_runtime import read_by_spark
from tests.spark.waiting_for import checkpointed, of_diff
from topics.log.catalog_files import read_catalog
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.pipeline_settings import files_of
from topics.spark.pipeline.pipeline_worker import make_pipeline
from topics.system.clock import SystemClock
from topics.testing import ManualClock
from topics_client import Client, NewRecord

TOPICS = ("orders", "events", "chat/42", "checkpointed")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    options = {"segment_max_events": "50", "snapshot_interval_ms": "200", "pipeline": "off", "archive": "1"}
    with LiveServer(tmp_path, **options) as live:
        yield live


def archive(settings: Settings, later_ms: int = 0, compact: bool = False) -> None:
    """Rounds until there is nothing to do, at a moment that may be later."""
    clock = ManualClock(SystemClock().now_ms() + later_ms)
    fs = files_of(settings)
    made = make_pipeline(settings, fs, InlineExecutor(fs), clock, compact)
    for _ in range(50):
        if not made.round():
            assert made.status.quarantined == ()
            return
    raise AssertionError("the pipeline never comes to an end")


def fill(server: LiveServer, client: Client) -> None:
    for first in range(0, 300, 10):
        client.append_many(
            "orders", [NewRecord({"n": n, "text": "ü\n"}, f"t{n % 6}") for n in range(first, first + 10)]
        )
    client.append_many("events", [{"n": n} for n in range(100)])
    stream = {"Content-Type": "application/octet-stream"}
    httpx.put(f"{server.url}/v1/stream/chat/42", headers=stream).raise_for_status()
    for value in range(60):
        httpx.post(f"{server.url}/v1/stream/chat/42", headers=stream, content=b"\x00%d" % value).raise_for_status()


def sealed(client: Client, data: Path) -> list[Row]:
    """Returns the content of diff for all that is sealed."""
    catalog = read_catalog(PosixFileSystem(), Layout(str(data)))
    assert catalog is not None
    found: list[Row] = []
    for name in TOPICS:
        topic = catalog.by_name().get(name)
        if topic is None or not topic.segments:
            continue
        last = topic.segments[-1].last_seq
        for seq, ts, node, tag, meta, text in of_diff(client, name):
            if seq <= last:
                kind = "application/json" if name != "chat/42" else "application/octet-stream"
                found.append((name, topic.epoch, seq, ts, node, tag, meta, text, kind))
    return sorted(found)


def test_every_reader_sees_what_diff_states(server: LiveServer, tmp_path: Path) -> None:
    live_through(server, tmp_path, lambda root: read_by_all(root, tmp_path))


@pytest.mark.slow
def test_spark_with_the_runtime_of_iceberg_sees_what_diff_states(
    server: LiveServer, tmp_path: Path, spark_home: Path
) -> None:
    live_through(server, tmp_path, lambda root: read_by_spark(root, tmp_path, spark_home))


def live_through(server: LiveServer, tmp_path: Path, read: Callable[[str], list[Row]]) -> None:
    """Everything that happens to a table, and the content for a reader after each step."""
    data, root = tmp_path / "data", str(tmp_path / "data" / "archive")
    settings = Settings(data_dir=str(data), archive="1")
    with Client(server.url) as client:
        fill(server, client)
        checkpointed(client, data)
        archive(settings)
        whole = sealed(client, data)
        assert {row[0] for row in whole} >= {"orders", "events", "chat/42"}
        assert of(read(root)) == of(whole)

        # Hidden in place: one of six, and the first ones of a topic.
        client.delete("orders", match="t1")
        client.delete("events", before_seq=7)
        checkpointed(client, data)
        archive(settings)
        after = of(read(root))
        assert after == of(sealed(client, data)) and 0 < len(after) < len(of(whole))
        assert list((data / "archive" / "deletes").iterdir())

        # Written out of the files, and the old files removed.
        archive(settings, compact=True)
        archive(settings, later_ms=700_000, compact=True)
        assert of(read(root)) == after
        assert not list((data / "archive" / "deletes").iterdir())

        # A cap takes nothing, a topic that is made again begins anew.
        client.put_topic("orders", {"cap_records": 20})
        client.delete_topic("events")
        client.append_many("events", [{"again": n} for n in range(60)])
        checkpointed(client, data)
        archive(settings)
        rows = of(read(root))
        assert [row for row in rows if row[0] == "orders"] == [row for row in after if row[0] == "orders"]
        assert [row for row in rows if row[0] != "orders"] == [
            row for row in of(sealed(client, data)) if row[0] != "orders"
        ]


def of(rows: list[Row]) -> list[Row]:
    """Without the records that the tests wrote to get a checkpoint."""
    return [row for row in rows if row[0] != "checkpointed"]


def test_every_reader_finds_the_table_in_an_object_store(server: LiveServer, tmp_path: Path, s3: S3Server) -> None:
    data, root = tmp_path / "data", s3.make_bucket("table") + "/kept/archive"
    settings = Settings(data_dir=str(data), archive="1", archive_dir=root)
    with Client(server.url) as client:
        fill(server, client)
        checkpointed(client, data)
        archive(settings)
        client.delete("orders", match="t2")
        checkpointed(client, data)
        archive(settings)
        assert of(read_by_all(root, tmp_path, s3.environment)) == of(sealed(client, data))
