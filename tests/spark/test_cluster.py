"""The same jobs on a cluster: a master and a worker in their own processes, started from the pip package."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyspark
import pytest
from pyiceberg.table import StaticTable

from tests.http.live import LiveServer
from tests.readers import INSTALL_EXTENSIONS, run_reading
from tests.s3 import S3Server
from tests.spark.daemons import Daemon, last_words
from tests.spark.iceberg_runtime import begin_with, environment_of
from tests.spark.indexed import check_indexed, fill_indexed
from tests.spark.waiting_for import all_cold, of_diff, sealed_to, wait_until
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings
from topics.spark.archive.archive_reader import read_archive, topics_named
from topics.spark.archive.ledger import ArchiveStore
from topics.spark.java import java_home
from topics.spark.pipeline.pipeline_settings import files_of
from topics.spark.pipeline.status import load_progress
from topics_client import Client, NewRecord

pytestmark = pytest.mark.slow

_MASTER = re.compile(r"Starting Spark master at (spark://[\d.]+:\d+)")
_REGISTERED = re.compile(r"Registering worker|Registered worker")


@contextmanager
def started(tmp_path: Path, within: Sequence[str] = (), workers: int = 1) -> Iterator[str]:
    """The address of a cluster of workers with two cores each; `within` is a command that runs a worker."""
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
        for number in range(workers):
            daemons.enter_context(
                Daemon(
                    tmp_path, f"worker{number or ''}", "spark-class", f"{deploy}.worker.Worker", address,
                    "--host", "127.0.0.1", "--cores", "2", "--memory", "1g", "--webui-port", "0",
                    "--work-dir", str(tmp_path / f"work{number or ''}"), within=within,
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
        # Tasks that are a little slower than the others run twice.
        "spark.speculation true\nspark.speculation.quantile 0.1\nspark.speculation.multiplier 1.01\n"
        "spark.speculation.minTaskRuntime 20ms\nspark.speculation.interval 20ms\n"
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
        # The checkpoint of a clean stop makes it visible to Spark.
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
    assert re.search(r"0 records to go in 0 segments, .* \d{3} records archived in all", done.stdout)


def executors(tmp_path: Path) -> list[int]:
    """The processes of executors that the workers of a cluster have started."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes():
                found += [int(entry.name)] if str((entry / "cwd").readlink()).startswith(str(tmp_path)) else []
    return found


@contextmanager
def begun(tmp_path: Path, cluster: str, data: str, **env: str) -> Iterator["subprocess.Popen[str]"]:
    """A driver whose job runs."""
    conf = {"TOPICS_SPARK_MASTER": cluster, "TOPICS_SPARK_CONF": str(tmp_path / "spark.conf")}
    command = [sys.executable, "-c", _CLI, "pipeline", "run", "--data-dir", data]
    own = {**os.environ, **conf, "SPARK_LOCAL_IP": "127.0.0.1", **env}
    with subprocess.Popen(
        command, env=own, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:

        def works() -> bool:
            progress = load_progress(PosixFileSystem(), Layout(data))
            mine = progress is not None and progress.by.endswith(f"process {process.pid}")
            running = mine and progress is not None and progress.job is not None
            return process.poll() is not None or (running and bool(executors(tmp_path)))

        try:
            wait_until(works, "the job runs")
            assert process.poll() is None, process.communicate()
            yield process
        finally:
            process.kill()


def checksum(rows: Iterable[tuple[int, str]]) -> tuple[int, int]:
    """The number of rows, and a sum over them that does not depend on their order."""
    sums = [zlib.crc32(f"{seq} {data}".encode()) for seq, data in rows]
    return len(sums), sum(sums)


_READERS = """
import json, polars, zlib
duckdb.sql("LOAD httpfs; LOAD iceberg")
duckdb.sql(
    "CREATE SECRET (TYPE s3, KEY_ID 'someone', SECRET 'a-secret', REGION 'us-east-1', ENDPOINT '{port}', "
    "URL_STYLE 'path', USE_SSL false)"
)
duckdb.sql("SET unsafe_enable_version_guessing = true")
one = duckdb.sql("SELECT seq, data FROM iceberg_scan('{archive}') WHERE topic = 'orders'").fetchall()
selected = polars.scan_iceberg("{archive}", storage_options={lake}).filter(polars.col("topic") == "orders")
other = list(selected.select("seq", "data").collect().iter_rows())
sums = [[zlib.crc32(f"{{seq}} {{data}}".encode()) for seq, data in rows] for rows in (one, other)]
print(json.dumps([[len(each), sum(each)] for each in sums]))
"""


_SPARK_READER = """
import json
from pyspark.sql import SparkSession, functions as f

iceberg = "org.apache.iceberg:iceberg-{{}}:1.12.0"
jars = [iceberg.format("spark-runtime-4.1_2.13"), iceberg.format("aws-bundle"), "org.xerial:sqlite-jdbc:3.50.3.0"]
catalog = {{
    "": "org.apache.iceberg.spark.SparkCatalog", ".type": "jdbc", ".uri": "jdbc:sqlite:lake.db",
    ".warehouse": "{archive}", ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO", ".s3.endpoint": "{endpoint}",
    ".s3.path-style-access": "true",
}}
conf = {{"spark.sql.catalog.lake" + name: value for name, value in catalog.items()}}
spark = SparkSession.builder.config(map={{"spark.jars.packages": ",".join(jars), **conf}}).getOrCreate()
spark.sql("CREATE NAMESPACE lake.topics")
spark.sql("CALL lake.system.register_table('topics.records', '{metadata}')")
digest = f.crc32(f.encode(f.concat_ws(" ", "seq", "data"), "utf-8"))
orders = spark.table("lake.topics.records").where("topic = 'orders'")
print(json.dumps(list(orders.select(f.count("seq"), f.sum(digest)).first())))
"""


def test_cluster_that_shares_only_the_store_and_the_server_runs_the_whole_pipeline(
    s3: S3Server, tmp_path: Path, spark_home: Path
) -> None:
    """Archive, typed table and index files, after a driver was killed, and with an executor killed on the way.

    `TOPICS_TEST_CLUSTER_RECORDS` sets the number of records, for example 2000000.
    """
    folder, bucket = tmp_path / "served", s3.make_bucket("nothing")
    records = int(os.environ.get("TOPICS_TEST_CLUSTER_RECORDS", "20000"))
    data, archive = str(folder / "data"), f"{bucket}/archive"
    (folder / "data").mkdir(parents=True)
    hide = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{data}" && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*hide, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow mount namespaces")
    settings = {"segment_max_age_ms": "1000", "snapshot_interval_ms": "200", "pipeline": "off"}
    archived = {"archive": "1", "archive_dir": archive, "archive_typed": "searched"}
    with LiveServer(folder, **settings, **archived) as server, Client(server.url) as client:
        for first in range(0, records, 1000):
            client.append_many("orders", [NewRecord({"n": n}, f"t{n % 7}") for n in range(first, first + 1000)])
        fill_indexed(server.url, folder / "data")
        wait_until(lambda: sealed_to(folder / "data", "orders") == records, "everything is sealed")
        # The first run records them.
        place = {"TOPICS_ARCHIVE_DIR": archive, "TOPICS_ARCHIVE_TYPED": "searched"}
        env = {"TOPICS_PIPELINE_URL": server.url}
        command = ("pipeline", "run", "--data-dir", data)
        with started(tmp_path, hide, workers=2) as cluster:
            refused = driven(_CLI, tmp_path, cluster, *command, **place)
            assert refused.returncode == 1
            assert "set pipeline_url" in refused.stderr
            with begun(tmp_path, cluster, data, **env) as driver:
                driver.kill()
            wait_until(lambda: not executors(tmp_path), "its executors are gone")
            with begun(tmp_path, cluster, data, **env) as driver:
                os.kill(executors(tmp_path)[0], signal.SIGKILL)
                out, err = driver.communicate(timeout=500)
                assert driver.returncode == 0, err
        assert re.search(r"\d+ rows in the table", out)
        check_indexed(server.url, folder / "data")
        lake = {
            "s3.endpoint": s3.environment["AWS_ENDPOINT_URL"], "s3.region": "us-east-1",
            "s3.access-key-id": "someone", "s3.secret-access-key": "a-secret",
        }  # fmt: skip
        current = StaticTable.from_metadata(archive, properties=lake)
        table = current.scan("topic = 'orders'").to_arrow()
        expected = checksum((seq, text) for seq, *_, text in of_diff(client, "orders"))
        assert expected[0] == records
        assert checksum(zip(table["seq"].to_pylist(), table["data"].to_pylist(), strict=True)) == expected
        readers = INSTALL_EXTENSIONS + _READERS.format(archive=archive, lake=lake, port=lake["s3.endpoint"][7:])
        found = json.loads(run_reading(readers, tmp_path, environment=s3.environment, patience_s=300).splitlines()[-1])
        assert [tuple(one) for one in found] == [expected, expected]
        reader = _SPARK_READER.format(archive=archive, endpoint=lake["s3.endpoint"], metadata=current.metadata_location)
        own = environment_of(spark_home, tmp_path, "local[2]", **{"spark.driver.memory": "1g"})
        reader = begin_with(spark_home) + reader
        counted = run_reading(reader, tmp_path, environment={**s3.environment, **own}, patience_s=900)
        assert tuple(json.loads(counted.splitlines()[-1])) == expected
        assert StaticTable.from_metadata(f"{archive}/typed/searched", properties=lake).scan().to_arrow().num_rows == 100
        server.stop()
