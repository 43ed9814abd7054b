"""`python -m bench.dataframe_writes`: the archive and typed tables written by tasks, beside Iceberg's DataFrame writes.

A stream with a schema is sealed. Then three steps are done in two ways, in turns and in one Spark session, each turn in
fresh folders:

| step | by the pipeline's tasks | by DataFrames |
|---|---|---|
| archive | rounds of the pipeline | the segments as a DataFrame, appended to a table partitioned alike |
| typed | a further run with `archive_typed` | `from_json` over the archive's table, sorted by seq, into a table |
| erase | a delete of one record in ten, and a run that writes it out | `DELETE FROM`, which copies the files on write |

Reports the processor time of the whole tree of processes, Java with it, and the elapsed time; of several turns the
least. Iceberg's runtime, which Spark gets from Maven, is for Spark 4.1, so that version is used: run
`make setup-versions` first.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import StaticTable

from bench.spark_load import serving
from topics.log.catalog_files import read_catalog
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings
from topics.spark.connector.source import TopicsDataSource
from topics.spark.pipeline.executors import SparkExecutor
from topics.spark.pipeline.pipeline_worker import make_pipeline
from topics.spark.session import SparkOptions, open_session
from topics.system.clock import SystemClock
from topics_client import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_BATCH = 1000
_DELETED = "t3"
_MEMBERS = {"id": "integer", "customer": "string", "total": "number", "note": "string"}
_COLUMNS = "id bigint, customer string, total double, note string"
_SPEC = "PARTITIONED BY (days(ts), bucket(16, topic))"
_TICKS = os.sysconf("SC_CLK_TCK")
_PATIENCE_S = 3000


def tree_s(pid: int) -> float:
    """The processor time of a process and its descendants, ended ones included."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [task.read_text().split() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return 0.0
    return sum(map(int, stat[11:15])) / _TICKS + sum(tree_s(int(child)) for some in children for child in some)


def fill(folder: Path, entries: int) -> None:
    """A stream `orders` with a schema and so many entries of about 200 bytes, one in ten of which is deleted later."""
    os.environ |= {"TOPICS_SEGMENT_MAX_AGE_MS": "500", "TOPICS_SNAPSHOT_INTERVAL_MS": "300"}
    with serving(folder) as server:
        kinds = {name: {"type": kind} for name, kind in _MEMBERS.items()}
        schema = {"type": "object", "required": list(_MEMBERS), "properties": kinds}
        _post(server.url, "", "PUT")
        _post(server.url, "/_schema", "POST", json.dumps({"schema": schema}))
        for first in range(0, entries, _BATCH):
            orders = [
                {"id": n, "customer": f"customer-{n % 5000}", "total": n % 997 + 0.25, "note": "x" * 110}
                for n in range(first, first + _BATCH)
            ]
            _post(server.url, "", "POST", json.dumps(orders), {"stream-key": f"t{first // _BATCH % 10}"})
        give_up = time.monotonic() + _PATIENCE_S
        while _sealed(folder / "data") < entries:
            assert time.monotonic() < give_up
            time.sleep(0.2)


def _sealed(data: Path) -> int:
    catalog = read_catalog(PosixFileSystem(), Layout(str(data)))
    topic = catalog.by_name().get("orders") if catalog is not None else None
    return topic.segments[-1].last_seq if topic is not None and topic.segments else 0


def _post(url: str, path: str, method: str, body: str = "", headers: dict[str, str] | None = None) -> None:
    request = urllib.request.Request(
        f"{url}/v1/stream/orders{path}", body.encode() or None, {"content-type": "application/json", **(headers or {})},
        method=method,
    )  # fmt: skip
    with urllib.request.urlopen(request) as answer:
        answer.read()


class ByTasks:
    """The steps as the pipeline does them."""

    def __init__(self, spark: "SparkSession", folder: Path, data: Path) -> None:
        self._folder = folder
        shutil.copytree(data, folder / "data")
        self._executor = SparkExecutor(spark)
        self._settings = Settings(data_dir=str(folder / "data"), archive="1")

    def archive(self) -> None:
        self._run()

    def typed(self) -> None:
        self._settings = msgspec.structs.replace(self._settings, archive_typed="orders")
        self._run()

    def before_erase(self) -> None:
        with serving(self._folder) as server, Client(server.url) as client:
            client.delete("orders", match=_DELETED)

    def erase(self) -> None:
        self._run(compact=True)

    def _run(self, compact: bool = False) -> None:
        pipeline = make_pipeline(self._settings, PosixFileSystem(), self._executor, SystemClock(), compact)
        while pipeline.round():
            assert not pipeline.status.quarantined

    def rows(self) -> tuple[int, int]:
        root = Path(self._settings.data_dir) / "archive"
        [typed] = (root / "typed").iterdir()
        records = StaticTable.from_metadata(str(root)).scan("topic = 'orders'")
        return records.count(), StaticTable.from_metadata(str(typed)).scan(AlwaysTrue()).count()


class ByDataFrames:
    """The same with Spark's own operators and Iceberg's writer."""

    def __init__(self, spark: "SparkSession", name: str, data: Path) -> None:
        self._spark, self._name, self._data = spark, f"lake.{name}", data
        spark.sql(f"CREATE NAMESPACE {self._name}")

    def archive(self) -> None:
        source = self._spark.read.format("topics").options(mode="segments", path=str(self._data), topic="orders").load()
        rows = source.drop("deleted")
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema)
        self._spark.sql(f"CREATE TABLE {self._name}.records ({columns}) USING iceberg {_SPEC}")
        self._spark.sql(f"ALTER TABLE {self._name}.records WRITE ORDERED BY topic, epoch, seq")
        rows.writeTo(f"{self._name}.records").append()

    def typed(self) -> None:
        self._spark.sql(f"CREATE TABLE {self._name}.typed (_seq bigint, _ts timestamp, {_COLUMNS}) USING iceberg")
        self._spark.sql(f"ALTER TABLE {self._name}.typed WRITE ORDERED BY _seq")
        records = self._spark.table(f"{self._name}.records").where("topic = 'orders'")
        shown = records.selectExpr("seq AS _seq", "ts AS _ts", f"from_json(data, '{_COLUMNS}') AS entry")
        shown.select("_seq", "_ts", "entry.*").writeTo(f"{self._name}.typed").append()

    def before_erase(self) -> None:
        """Nothing: the rows are deleted by their condition."""

    def erase(self) -> None:
        for table, seq in (("records", "seq"), ("typed", "_seq")):
            chosen = f"pmod(floor(({seq} - 1) / {_BATCH}), 10) = {_DELETED[1:]}"
            self._spark.sql(f"DELETE FROM {self._name}.{table} WHERE {chosen}")

    def rows(self) -> tuple[int, int]:
        return self._spark.table(f"{self._name}.records").count(), self._spark.table(f"{self._name}.typed").count()


def measure(entries: int, rounds: int) -> None:
    """Prints a line for each step and way."""
    folder = Path(tempfile.mkdtemp(prefix="topics-bench-dataframes-"))
    took: dict[tuple[str, str], list[tuple[float, float]]] = {}
    try:
        fill(folder / "source", entries)
        data = folder / "source" / "data"
        conf = folder / "spark.conf"
        lake = {
            "": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop", ".warehouse": str(folder / "warehouse"),
        }  # fmt: skip
        conf.write_text(
            f"spark.jars.packages {_RUNTIME}\nspark.jars.ivy {folder / 'ivy'}\nspark.sql.shuffle.partitions 4\n"
            "spark.sql.extensions org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions\n"
            + "".join(f"spark.sql.catalog.lake{name} {value}\n" for name, value in lake.items())
        )
        options = SparkOptions(master="local[2]", memory="2g", app_name="bench", conf_file=str(conf))
        spark = open_session(options)
        spark.dataSource.register(TopicsDataSource)
        for number in range(rounds + 1):
            ways: dict[str, ByTasks | ByDataFrames] = {
                "tasks": ByTasks(spark, folder / f"tasks{number}", data),
                "DataFrames": ByDataFrames(spark, f"turn{number}", data),
            }
            for name, way in ways.items():
                for step in (way.archive, way.typed, way.erase):
                    if step == way.erase:
                        way.before_erase()
                    used, begun = tree_s(os.getpid()), time.monotonic()
                    step()
                    cost = tree_s(os.getpid()) - used, time.monotonic() - begun
                    took.setdefault((step.__name__, name), []).append(cost)
            counts = {way.rows() for way in ways.values()}
            assert len(counts) == 1, counts
        spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(f"{entries:,} entries, rows behind the last step: {counts.pop()}\n")
    for (step_name, name), turns in took.items():
        # The first turn loads modules and caches.
        cpu, wall = (min(turn[place] for turn in turns[1:]) for place in (0, 1))
        rate = entries / wall
        sys.stdout.write(
            f"{step_name:<8} {name:<11} {cpu:6.1f} s of processor time {wall:6.1f} s {rate:11,.0f} rows/s\n"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        measure(arguments.entries, arguments.rounds)
        return
    overlay = next(iter(sorted((ROOT / ".venv").glob("spark-4.1*"))), None)
    if overlay is None:
        raise SystemExit("Spark 4.1 is missing: run `make setup-versions` first")
    path = os.pathsep.join(map(str, (overlay, ROOT / "src", ROOT)))
    env = {**os.environ, "PYTHONPATH": path, "SPARK_HOME": str(overlay / "pyspark")}
    command = [sys.executable, "-m", "bench.dataframe_writes", "--child"]
    sized = ["--entries", str(arguments.entries), "--rounds", str(arguments.rounds)]
    subprocess.run([*command, *sized], env=env, cwd=ROOT, check=True, timeout=_PATIENCE_S)


if __name__ == "__main__":
    main()
