"""The same jobs on a cluster: a master and a worker in their own processes, started from the pip package."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.http.live import LiveServer
from tests.s3 import S3Server
from tests.spark.daemons import Daemon, last_words
from tests.spark.indexed import check_indexed, fill_indexed
from tests.spark.waiting_for import all_cold, of_diff, sealed_to, wait_until
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings
from topics.spark.archive.archive_reader import read_archive, topics_named
from topics.spark.archive.ledger import ArchiveStore
from topics.spark.java import java_home
from topics.spark.pipeline.pipeline_settings import files_of
from topics_client import Client, NewRecord

pytestmark = pytest.mark.slow

_MASTER = re.compile(r"Starting Spark master at (spark://[\d.]+:\d+)")
_REGISTERED = re.compile(r"Registering worker|Registered worker")


@contextmanager
def started(tmp_path: Path, within: Sequence[str] = ()) -> Iterator[str]:
    """The address of a cluster of one worker with two cores; `within` is a command that runs the worker."""
    deploy = "org.apache.spark.deploy"
    with ExitStack() as daemons:
        master = daemons.enter_context(
            Daemon(
                tmp_path,
                "master",
                "spark-class",
                f"{deploy}.master.Master",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--webui-port",
                "0",
            )
        )
        address = master.reported(_MASTER)[1]
        daemons.enter_context(
            Daemon(
                tmp_path, "worker", "spark-class", f"{deploy}.worker.Worker", address, "--host", "127.0.0.1",
                "--cores", "2", "--memory", "1g", "--webui-port", "0", "--work-dir", str(tmp_path / "work"),
                within=within,
            )
        )  # fmt: skip
        master.reported(_REGISTERED)
        yield address


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    with started(tmp_path) as address:
        yield address


def run(code: str, tmp_path: Path, cluster: str, *arguments: str, **env: str) -> str:
    """Runs a driver in its own process."""
    done = driven(code, tmp_path, cluster, *arguments, **env)
    assert done.returncode == 0, last_words(done.stderr)
    return done.stdout


def driven(code: str, tmp_path: Path, cluster: str, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    conf = tmp_path / "spark.conf"
    conf.write_text(
        "spark.driver.host 127.0.0.1\nspark.driver.memory 512m\nspark.executor.memory 512m\n"
        "spark.ui.enabled false\nspark.sql.shuffle.partitions=2\n"
    )
    chosen = {"TOPICS_SPARK_MASTER": cluster, "TOPICS_SPARK_CONF": str(conf), "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **chosen, **env},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


_CLI = "import sys; from topics.cli import main; sys.exit(main(sys.argv[1:]))"

_COPY = """
import os, sys
from topics.model.settings import Settings
from topics.spark.connector.source import TopicsDataSource
from topics.spark.session import SparkOptions, open_session

url, folder = sys.argv[1:]
spark = open_session(SparkOptions.of(Settings.from_env(os.environ)))
spark.dataSource.register(TopicsDataSource)
assert spark.sparkContext.master.startswith("spark://")
bulk = spark.read.format("topics").options(url=url, path=folder, topic="orders", minPartitions="4").load()
print(bulk.count(), bulk.groupBy("topic").count().collect()[0]["count"])
query = (
    spark.readStream.format("topics")
    .options(url=url, topic="orders", startingOffsets="earliest", maxRecordsPerTrigger="60", minPartitions="2")
    .load()
    .select("data", "tag")
    .writeStream.format("topics")
    .options(url=url, topic="copy")
    .option("checkpointLocation", folder + "/../checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.stop()
"""


_COUNT = """
import json, os, sys
from topics.model.settings import Settings
from topics.spark.connector.source import TopicsDataSource
from topics.spark.session import SparkOptions, open_session

told = json.loads(sys.argv[1])
spark = open_session(SparkOptions.of(Settings.from_env(os.environ)))
spark.dataSource.register(TopicsDataSource)
assert spark.sparkContext.master.startswith("spark://")
read = spark.read.format("topics").option("topic", "orders")
sealed = read.options(path=told["path"], coldDir=told["cold"], mode="segments").load()
whole = spark.read.format("topics").options(url=told["url"], topic="orders", archive=told["archive"]).load()
print(sealed.count(), whole.count())
spark.stop()
"""


def test_the_pipeline_and_the_connector_run_on_a_cluster(cluster: str, tmp_path: Path) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    settings = {"segment_max_events": "50", "snapshot_interval_ms": "200", "archive": "1", "pipeline": "off"}
    with LiveServer(folder, **settings) as server, Client(server.url) as client:
        for first in range(0, 200, 50):
            client.append_many("orders", [{"n": n} for n in range(first, first + 50)])
        wait_until(lambda: sealed_to(folder / "data", "orders") == 200, "everything is sealed")
        rows = {seq: data for seq, *_, data in of_diff(client, "orders")}
        fill_indexed(server.url, folder / "data")

        reported = run(_CLI, tmp_path, cluster, "pipeline", "run", "--data-dir", str(folder / "data"))
        assert re.search(r"\d+ records archived", reported)
        check_indexed(server.url, folder / "data")
        store = ArchiveStore(PosixFileSystem(), str(folder / "data" / "archive"))
        state = store.load()
        [topic] = topics_named(state, "orders")
        table = read_archive(PosixFileSystem(), store, state, topic.topic_id)
        assert dict(zip(table["seq"].to_pylist(), table["data"].to_pylist(), strict=True)) == rows

        assert run(_COPY, tmp_path, cluster, server.url, str(folder / "data")).split() == ["200", "200"]
        assert sorted(data for *_, data in of_diff(client, "copy")) == sorted(rows.values())
        server.stop()


def test_worker_without_the_shared_archive_fails_the_run_and_loses_no_row(tmp_path: Path) -> None:
    """The worker has an empty folder where the driver has the archive, as a machine without the mount."""
    folder = tmp_path / "served"
    archive = folder / "data" / "archive"
    archive.mkdir(parents=True)
    hide = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{archive}" && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*hide, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow mount namespaces")
    settings = {"segment_max_events": "50", "snapshot_interval_ms": "200", "archive": "1", "pipeline": "off"}
    with LiveServer(folder, **settings) as server, Client(server.url) as client:
        for first in range(0, 200, 50):
            client.append_many("orders", [{"n": n} for n in range(first, first + 50)])
        wait_until(lambda: sealed_to(folder / "data", "orders") == 200, "everything is sealed")
        store = ArchiveStore(PosixFileSystem(), str(archive))
        command = ("pipeline", "run", "--data-dir", str(folder / "data"))
        with started(tmp_path, hide) as cluster:
            done = driven(_CLI, tmp_path, cluster, *command, TOPICS_SEARCH_FAMILIES="off")
        assert done.returncode == 1, last_words(done.stderr)
        assert f"does not see the same {archive} as the driver" in done.stderr
        assert "Traceback" not in done.stderr
        assert not store.load().files
        assert "200 records archived" in run(_CLI, tmp_path, "local[2]", *command, TOPICS_SEARCH_FAMILIES="off")
        server.stop()


def test_the_tasks_of_a_cluster_read_and_write_in_an_object_store(s3: S3Server, cluster: str, tmp_path: Path) -> None:
    """Segments and the archive are both there, and deletes reach it with the next round."""
    folder, bucket = tmp_path / "served", s3.make_bucket("cluster")
    folder.mkdir()
    data, cold, archive = str(folder / "data"), f"{bucket}/cold", f"{bucket}/kept/archive"
    settings = {"segment_max_events": "50", "snapshot_interval_ms": "200", "hot_retain_segments": "0", "archive": "1"}
    with (
        LiveServer(folder, **settings, cold_dir=cold, archive_dir=archive, pipeline="off") as server,
        Client(server.url) as client,
    ):
        for first in range(0, 200, 50):
            client.append_many("orders", [NewRecord({"n": n}, f"t{n % 3}") for n in range(first, first + 50)])
        wait_until(lambda: all_cold(client, folder, 4), "every segment is in the store")

        def archived() -> list[tuple[int, str]]:
            run(
                _CLI, tmp_path, cluster, "pipeline", "run", "--data-dir", data,
                TOPICS_COLD_DIR=cold, TOPICS_ARCHIVE="1", TOPICS_ARCHIVE_DIR=archive,
            )  # fmt: skip
            files = files_of(Settings(data_dir=data, cold_dir=cold, archive="1", archive_dir=archive))
            store = ArchiveStore(files, archive)
            state = store.load()
            [topic] = topics_named(state, "orders")
            table = read_archive(files, store, state, topic.topic_id)
            return sorted(zip(table["seq"].to_pylist(), table["data"].to_pylist(), strict=True))

        assert archived() == [(n + 1, f'{{"n":{n}}}') for n in range(200)]
        client.delete("orders", match="t1")
        # The checkpoint of a clean stop tells Spark of it.
        server.stop()
        server.start()
        assert archived() == [(n + 1, f'{{"n":{n}}}') for n in range(200) if n % 3 != 1]
        options = {"url": server.url, "path": data, "cold": cold, "archive": archive}
        assert run(_COUNT, tmp_path, cluster, json.dumps(options)).split() == ["133", "133"]
        server.stop()
    assert not list(tmp_path.rglob("s3:"))


def test_spark_submit_runs_the_pipeline(cluster: str, tmp_path: Path) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    with LiveServer(folder, segment_max_events="50", snapshot_interval_ms="200", archive="1", pipeline="off") as server:
        with Client(server.url) as client:
            client.append_many("orders", range(100))
            wait_until(lambda: sealed_to(folder / "data", "orders") == 100, "everything is sealed")
        fill_indexed(server.url, folder / "data")
        server.stop()
        submit(cluster, tmp_path, folder / "data")
        server.start()
        check_indexed(server.url, folder / "data")
        server.stop()


def submit(cluster: str, tmp_path: Path, data: Path) -> None:
    from topics.spark.package_zip import package_zip
    from topics.spark.pipeline import submit as script

    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", cluster,
        "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m",
        "--conf", "spark.ui.enabled=false",
        "--py-files", package_zip(tmp_path), str(script.__file__),
    ]  # fmt: skip
    env = {
        **os.environ,
        "JAVA_HOME": str(java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "TOPICS_DATA_DIR": str(data),
    }
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, last_words(done.stderr)
    assert re.search(r"\d{3} records archived so far, 0 segments behind", done.stdout)
