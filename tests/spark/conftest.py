"""Tests on a real Spark, embedded in the test process. Starting one takes seconds, so every test shares it."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.http.live import LiveServer
from tests.s3 import S3Server
from tests.spark.iceberg_runtime import bring_spark
from topics.spark.connector.source import TopicsDataSource
from topics.spark.session import SparkOptions, open_session
from topics_client import Client


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process runs all of these, so that no second Spark is started beside the first."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))
            # pyspark leaves sockets to the collector when a stream or its gateway ends.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"))


@pytest.fixture(scope="session")
def spark_home() -> Path:
    """A Spark of the version that the runtime of Iceberg is for."""
    return bring_spark()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An object store that this process, the servers and the tasks of Spark all find through their environment."""
    with S3Server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="session")
def spark(s3: S3Server) -> Iterator[SparkSession]:
    # The workers of Spark have the environment that it was started with, so the store comes first.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = open_session(SparkOptions(master="local[2]", memory="1g", app_name="tests"))
    session.dataSource.register(TopicsDataSource)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    yield session
    session.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    """A server that seals and checkpoints soon, and leaves the pipeline to the tests."""
    with LiveServer(tmp_path, segment_max_events="50", snapshot_interval_ms="200", pipeline="off") as live:
        yield live


@pytest.fixture
def client(server: LiveServer) -> Iterator[Client]:
    with Client(server.url) as found:
        yield found
