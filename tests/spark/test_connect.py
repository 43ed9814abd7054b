"""The same jobs through Spark Connect: a server in a separate process without this package.

The client is its own process, too, because a process with an embedded Spark cannot be a client of another one.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.live import LiveServer
from tests.spark.daemons import Daemon, install, last_words
from tests.spark.indexed import check_indexed, fill_indexed
from tests.spark.waiting_for import of_diff, sealed_to, wait_until
from topics.log.posix import PosixFileSystem
from topics.spark.archive.archive_reader import read_archive, topics_named
from topics.spark.archive.ledger import ArchiveStore
from topics_client import Client

_STARTED = re.compile(r"Spark Connect server started at: (127\.0\.0\.1:\d+)")


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[str]:
    """The address of a server of Spark Connect."""
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": "2",
    }
    given = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    with Daemon(
        tmp_path, "connect", "spark-submit", "--master", "local[2]", "--driver-memory", "1g", *given,
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
    ) as server:  # fmt: skip
        yield f"sc://{server.reported(_STARTED)[1]}"


_JOBS = """
import os, sys
from topics.cli import main
from topics.model.settings import Settings
from topics.spark.archive.archive_reader import archived_records
from topics.spark.connector.source import TopicsDataSource
from topics.spark.session import SparkOptions, open_session

url, folder, target = sys.argv[1:]
assert main(["pipeline", "run", "--data-dir", folder]) == 0
assert main(["export", "orders", target, "--spark", "--url", url]) == 0

spark = open_session(SparkOptions.of(Settings.from_env(os.environ)))
assert type(spark).__module__.startswith("pyspark.sql.connect")
spark.dataSource.register(TopicsDataSource)
bulk = spark.read.format("topics").options(url=url, path=folder, topic="orders", minPartitions="2").load()
assert bulk.count() == 120
assert archived_records(spark, folder + "/archive", "orders").count() == 100
bulk.select("data", "tag").write.format("topics").options(url=url, topic="written").mode("append").save()
spark.stop()
"""

_MORE_JOBS = """
import os, sys
from topics.cli import main
from topics.model.settings import Settings
from topics.spark.connector.source import TopicsDataSource
from topics.spark.session import SparkOptions, open_session

url, folder, target = sys.argv[1:]
for form in ("jsonl", "parquet"):
    assert main(["export", "orders", f"{target}-{form}", "--format", form, "--data-dir", folder]) == 0
    assert main(["import", f"back-{form}", f"{target}-{form}", "--spark", "--format", form, "--url", url]) == 0
spark = open_session(SparkOptions.of(Settings.from_env(os.environ)))
spark.dataSource.register(TopicsDataSource)
query = (
    spark.readStream.format("topics")
    .options(url=url, topic="orders", startingOffsets="earliest", maxRecordsPerTrigger="70", minPartitions="2")
    .load()
    .select("data", "tag")
    .writeStream.format("topics")
    .options(url=url, topic="streamed")
    .option("checkpointLocation", target + "-checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.stop()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    settings = {"segment_max_events": "50", "snapshot_interval_ms": "200", "archive": "1", "pipeline": "off"}
    folder = tmp_path / "served"
    folder.mkdir()
    with LiveServer(folder, **settings) as live:
        with Client(live.url) as client:
            for first in range(0, 120, 10):
                client.append_many("orders", [{"n": n, "text": 'ä "x"'} for n in range(first, first + 10)])
        wait_until(lambda: sealed_to(folder / "data", "orders") == 100, "everything but the tail is sealed")
        yield live


def run(code: str, server: LiveServer, connect: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, server.url, str(folder / "served" / "data"), str(folder / "out")],
        env={**os.environ, "TOPICS_SPARK_REMOTE": connect},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, last_words(done.stderr)
    return done.stdout


def test_the_pipeline_the_connector_and_an_export_run_through_spark_connect(
    connect: str, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    rows = [data for *_, data in of_diff(client, "orders")]
    fill_indexed(server.url, tmp_path / "served" / "data")
    assert re.search(r"\d+ records archived", run(_JOBS, server, connect, tmp_path))
    check_indexed(server.url, tmp_path / "served" / "data")
    store = ArchiveStore(PosixFileSystem(), str(tmp_path / "served" / "data" / "archive"))
    state = store.load()
    [topic] = topics_named(state, "orders")
    assert read_archive(PosixFileSystem(), store, state, topic.topic_id)["data"].to_pylist() == rows[:100]
    lines = "".join(path.read_text() for path in sorted((tmp_path / "out").glob("part-*"))).splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(1, 121))
    assert sorted(data for *_, data in of_diff(client, "written")) == sorted(rows)


@pytest.mark.slow
def test_streams_and_imports_run_through_spark_connect(
    connect: str, server: LiveServer, client: Client, tmp_path: Path
) -> None:
    """For streams the package must be installed beside the server: Spark looks for their source nowhere else."""
    install(tmp_path)
    rows = [data for *_, data in of_diff(client, "orders")]
    run(_MORE_JOBS, server, connect, tmp_path)
    for copy in ("back-jsonl", "back-parquet"):
        assert [data for *_, data in of_diff(client, copy)] == rows[:100]
    assert sorted(data for *_, data in of_diff(client, "streamed")) == sorted(rows)
