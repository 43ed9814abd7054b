"""`make bench-spark`: what the Spark side does on this machine, in this run.

One embedded session measures everything, each number on its second try so that none pays for Spark's start. The folders
are fresh and below the system's temporary folder. `--quick` uses a tenth of the volume, `--write` puts the tables into
docs/benchmarks.md between its markers.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.console import Console
from rich.table import Table

from bench.engine import _machine as machine
from topics.client import Client
from topics.config.settings import Settings
from topics.core.records import Record
from topics.engine import Batch, Engine, EngineOptions
from topics.spark.connector.source import TopicsDataSource
from topics.spark.pipeline.executors import SparkExecutor
from topics.spark.pipeline.worker import make_pipeline
from topics.spark.session import SparkOptions, open_session
from topics.storage.posix import PosixFileSystem
from topics.system.clock import SystemClock
from topics.system.dice import SystemDice
from topics.system.machine import boot_id

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "docs" / "benchmarks.md"
_BEGIN, _END = "<!-- bench:spark -->", "<!-- /bench:spark -->"
_BATCH = 1000
_PATIENCE_S = 60.0


def fill(folder: Path, total: int) -> None:
    """Sealed records of about 200 bytes, by the engine itself."""
    options = EngineOptions(data_dir=str(folder), wal_shards=1)
    engine = Engine.recover(PosixFileSystem(), options, SystemClock(), SystemDice(), boot_id=boot_id())
    for first in range(0, total, _BATCH):
        records = [
            Record.of(
                {"id": n, "customer": f"customer-{n % 5000}", "total": n % 997 / 7, "note": "x" * 110}, tag=f"t{n % 50}"
            )
            for n in range(first, first + _BATCH)
        ]
        engine.append("orders", Batch(records=records), lambda result: None)
    topic = engine.core.by_name["orders"]
    engine.core.before_change(topic)
    engine.sealer.cut(topic)
    engine.close_inline()


class Bench:
    def __init__(self, quick: bool) -> None:
        self._total = 100_000 if quick else 1_000_000
        self._growth = (100_000, 300_000, 1_000_000) if quick else (1_000_000, 3_000_000, 10_000_000)
        self._folder = Path(tempfile.mkdtemp(prefix="topics-bench-spark-"))
        self._console = Console()
        self._markdown: list[str] = []
        self.spark: SparkSession = open_session(SparkOptions(app_name="bench"))
        self.spark.dataSource.register(TopicsDataSource)

    def run(self) -> str:
        self._markdown.append(f"Measured with `make bench-spark` on {machine()}.\n")
        try:
            self._sources()
            self._growing()
            self._connector()
            self._latency()
        finally:
            self.spark.stop()
            shutil.rmtree(self._folder, ignore_errors=True)
        return "\n".join(self._markdown)

    # Bulk reading and the archive

    def _sources(self) -> None:
        data = self._folder / "source"
        fill(data, self._total)
        segments = self._segments(data)
        as_json, as_parquet = str(self._folder / "json"), str(self._folder / "parquet")
        segments.drop("deleted").write.json(as_json)
        segments.drop("deleted").write.parquet(as_parquet)
        size = sum(path.stat().st_size for path in data.rglob("seg-*")) / 1e6
        schema = segments.drop("deleted").schema
        frames: list[tuple[str, Callable[[], DataFrame]]] = [
            ("segment source", lambda: self._segments(data)),
            ("spark.read.json", lambda: self.spark.read.schema(schema).json(as_json)),
            ("spark.read.parquet", lambda: self.spark.read.parquet(as_parquet)),
        ]
        rows = []
        for name, frame in frames:
            whole = _second(lambda frame=frame: frame().write.format("noop").mode("overwrite").save())  # type: ignore[misc]
            summed = _second(lambda frame=frame: frame().agg(f.sum(f.length("data")), f.max("seq")).collect())  # type: ignore[misc]
            rows.append([name, _rate(self._total / whole), f"{size / whole:.0f}", _rate(self._total / summed)])
        head = ["reading", "records a second", "MB a second", "with an aggregate"]
        self._show(f"{self._total:,} sealed records, {size:.0f} MB", head, rows)

    def _segments(self, data: Path) -> DataFrame:
        return self.spark.read.format("topics").options(mode="segments", path=str(data), topic="orders").load()

    def _archive(self, data: Path) -> float:
        settings = Settings(data_dir=str(data), archive="1")
        pipeline = make_pipeline(settings, PosixFileSystem(), SparkExecutor(self.spark), SystemClock())
        begun = time.perf_counter()
        while pipeline.round():
            pass
        return time.perf_counter() - begun

    def _growing(self) -> None:
        rows = []
        for total in self._growth:
            data = self._folder / f"grow-{total}"
            fill(data, total)
            read = _second(lambda data=data: self._segments(data).write.format("noop").mode("overwrite").save())  # type: ignore[misc]
            archived = self._archive(data)
            rows.append(
                [f"{total:,}", f"{read:.1f} s", _rate(total / read), f"{archived:.1f} s", _rate(total / archived)]
            )
            shutil.rmtree(data)
        head = ["records", "read in", "a second", "archived in", "a second"]
        self._show("How time grows: the segment source and the archive job", head, rows)

    # The connector

    def _connector(self) -> None:
        count = self._total // 5
        with _server(self._folder / "connector") as url:
            rows_in = self.spark.range(0, count, 1, 2).select(
                f.to_json(f.struct("id", f.repeat(f.lit("x"), 180).alias("text"))).alias("data")
            )
            written = _second(
                lambda: rows_in.write.format("topics").options(url=url, topic="orders").mode("append").save()
            )
            reader = self.spark.read.format("topics").options(url=url, topic="orders", minPartitions="2")
            read = _second(lambda: reader.load().write.format("noop").mode("overwrite").save())
            costs = self._micro_batches(url)
        rows = [
            ["write over HTTP", _rate(count / written)],
            ["read over HTTP", _rate(2 * count / read)],
            ["a micro-batch of 100 records, median", f"{statistics.median(costs):.0f} ms"],
        ]
        self._show("The connector", ["", ""], rows)

    def _micro_batches(self, url: str) -> list[float]:
        with Client(url) as client:
            for _ in range(30):
                client.append_many("small", range(100))
        query = (
            self.spark.readStream.format("topics")
            .options(url=url, topic="small", startingOffsets="earliest", maxRecordsPerTrigger="100")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [float(progress["batchDuration"]) for progress in query.recentProgress[5:]]

    # What a job costs the server

    def _latency(self) -> None:
        folder = self._folder / "latency"
        fill(folder / "data", self._growth[0])
        with _server(folder) as url:
            _latencies(url, 3.0)
            quiet = _latencies(url, 10.0)
            job = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "import os, sys; os.nice(10); from topics.cli import main; sys.exit(main(['pipeline', 'run']))",
                ],
                env={**os.environ, "TOPICS_DATA_DIR": str(folder / "data")},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                busy = []
                while job.poll() is None:
                    busy += _latencies(url, 1.0)
            finally:
                job.kill()
                job.wait()
        if job.returncode:
            raise SystemExit("the archive job failed")
        rows = [
            [name, *(f"{1000 * _percentile(found, part):.2f} ms" for part in (0.5, 0.99)), f"{len(found):,}"]
            for name, found in (("without a job", quiet), ("while an archive job runs", busy))
        ]
        self._show("Appends of one record by one writer, class disk", ["", "p50", "p99", "appends"], rows)

    def _show(self, title: str, head: list[str], rows: list[list[str]]) -> None:
        table = Table(title=title, title_justify="left")
        for place, name in enumerate(head):
            table.add_column(name, justify="left" if place == 0 else "right")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)
        self._markdown += [f"### {title}\n", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        self._markdown += ["| " + " | ".join(row) + " |" for row in rows]
        self._markdown.append("")


class _server:
    """A server in a process of its own, without a pipeline."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> str:
        port_file = self._folder / "port"
        env = {
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(port_file),
            "TOPICS_DATA_DIR": str(self._folder / "data"),
            # It keeps deletes for an archive, and leaves the pipeline to the benchmark.
            "TOPICS_ARCHIVE": "1",
            "TOPICS_PIPELINE": "off",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from topics.cli import main; main(['serve'])"],
            env={**os.environ, **env},
            stderr=subprocess.DEVNULL,
        )
        give_up = time.monotonic() + _PATIENCE_S
        while not port_file.exists() or not port_file.read_text():
            if time.monotonic() > give_up or self._process.poll() is not None:
                raise SystemExit("the server did not start")
            time.sleep(0.05)
        url = f"http://{port_file.read_text()}"
        with Client(url) as client:
            client.list_topics()
        return url

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def _latencies(url: str, seconds: float) -> list[float]:
    body = msgspec.json.encode({"records": [{"data": {"id": 1, "text": "x" * 180}}]})
    found = []
    with httpx.Client(headers={"content-type": "application/json"}) as client:
        end = time.perf_counter() + seconds
        while (begun := time.perf_counter()) < end:
            client.post(url + "/v0/topics/appended", content=body).raise_for_status()
            found.append(time.perf_counter() - begun)
            time.sleep(0.002)
    return found


def _percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


def _second(do: Callable[[], object]) -> float:
    """How long it takes the second time."""
    do()
    begun = time.perf_counter()
    do()
    return time.perf_counter() - begun


def _rate(value: float) -> str:
    return f"{value:,.0f}"


def write_page(text: str) -> None:
    page = _PAGE.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(_BEGIN) + ".*" + re.escape(_END), re.DOTALL)
    _PAGE.write_text(pattern.sub(lambda _: f"{_BEGIN}\n{text}\n{_END}", page), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the volume")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    arguments = parser.parse_args()
    text = Bench(arguments.quick).run()
    if arguments.write:
        write_page(text)


if __name__ == "__main__":
    main()
