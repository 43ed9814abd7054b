"""`make bench-spark`: the Spark side on this machine, in this run.

One folder grows from one size to the next, so that nothing is written twice. The folders are fresh and below the
system's temporary folder. `--quick` uses a tenth of the volume, `--write` puts the report into bench/results/spark.md
between its markers.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.console import Console

from bench.report import machine, write_results
from bench.spark_load import Latencies, Writer, archiving, fill, forget_archive, sealed_bytes, serving
from bench.spark_many import many_archived, many_deletes, many_sealed, many_topics, seconds, total
from bench.spark_report import JSON, PARQUET, SOURCE, Growth, Reader, SparkReport, SparkResults
from bench.spark_table import table_costs
from bench.spark_versions import version_costs
from bench.spark_worker import worker_costs
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings
from topics.spark.connector.source import TopicsDataSource
from topics.spark.java import java_home, java_version
from topics.spark.pipeline.executors import SparkExecutor
from topics.spark.pipeline.pipeline_worker import make_pipeline
from topics.spark.session import SparkOptions, open_session
from topics.system.clock import SystemClock
from topics_client import Client

SIZES = (1_000_000, 3_000_000, 10_000_000)
_TRIES = 5
_GROWTH_TRIES = 3
_WINDOWS = 4
_QUIET_S = 8.0
_MICRO_BATCHES = 30


class Bench:
    def __init__(self, sizes: tuple[int, ...], folder: Path) -> None:
        self._sizes = sizes
        self._folder = folder
        self._data = folder / "data"
        self._progress = Console(stderr=True)
        self._session: SparkSession | None = None
        self.results = SparkResults(_TRIES, _GROWTH_TRIES, sizes[0])

    @property
    def spark(self) -> SparkSession:
        if self._session is None:
            self._session = open_session(SparkOptions(app_name="bench"))
            self._session.dataSource.register(TopicsDataSource)
        return self._session

    def run(self) -> None:
        """The first size is read in every way and kept for the server; then it grows."""
        self._part("filling", lambda: fill(self._data, 0, self._sizes[0]))
        shutil.copytree(self._data, self._folder / "served" / "data")
        self._part("readers", self.readers)
        self._part("connector", self.connector)
        self._grown(0)
        for place in range(1, len(self._sizes)):
            before, size = self._sizes[place - 1 : place + 1]
            self._part("filling", lambda before=before, size=size: fill(self._data, before, size))  # type: ignore[misc]
            self._grown(place)
        self._part("many deletes", self.deletes)
        self._part("many topics", self.topics)
        self._part("table", self.table)
        self.stop()
        # Pending writes of the earlier parts must not count as costs of the job.
        shutil.rmtree(self._data)
        self._part("versions", self.versions)
        self._part("worker", self.worker)
        os.sync()
        self._part("latency", self.latency)

    def stop(self) -> None:
        """Ends Spark: where latency is measured, nothing but the server, its writer and the job may run."""
        if self._session is not None:
            self._session.stop()
            self._session = None

    def _part(self, name: str, do: Callable[[], None]) -> None:
        self.results.others.append(_used_by_others())
        self._progress.print(f"{name}: {seconds(do):.0f} s", highlight=False)

    # Bulk reading and the archive

    def readers(self) -> None:
        segments = self._segments()
        as_json, as_parquet = str(self._folder / "json"), str(self._folder / "parquet")
        segments.drop("deleted").write.json(as_json)
        segments.drop("deleted").write.parquet(as_parquet)
        schema = segments.drop("deleted").schema
        frames: dict[str, Callable[[], DataFrame]] = {
            SOURCE: self._segments,
            JSON: lambda: self.spark.read.schema(schema).json(as_json),
            PARQUET: lambda: self.spark.read.parquet(as_parquet),
        }
        self.results.sealed_bytes = sealed_bytes(self._data)
        self.results.readers = {name: Reader() for name in frames}
        for number in range(_TRIES + 1):
            for name, frame in frames.items():
                whole, summed = seconds(lambda: drop(frame())), seconds(lambda: total(frame()))  # noqa: B023
                if number:
                    self.results.readers[name].whole.append(whole)
                    self.results.readers[name].summed.append(summed)

    def _segments(self) -> DataFrame:
        return self.spark.read.format("topics").options(mode="segments", path=str(self._data), topic="orders").load()

    def _grown(self, place: int) -> None:
        size = self._sizes[place]
        read: list[float] = []
        archived: list[float] = []
        self._part("growth", lambda: self._grow(read, archived))
        self.results.growth.append(Growth(size, read, archived))

    def _grow(self, read: list[float], archived: list[float]) -> None:
        self._archive()
        for _ in range(_GROWTH_TRIES):
            read.append(seconds(lambda: drop(self._segments())))
            archived.append(self._archive())
        forget_archive(self._data)

    def _archive(self) -> float:
        forget_archive(self._data)
        settings = Settings(data_dir=str(self._data), archive="1")
        pipeline = make_pipeline(settings, PosixFileSystem(), SparkExecutor(self.spark), SystemClock())
        begun = time.perf_counter()
        while pipeline.round():
            pass
        return time.perf_counter() - begun

    # The connector

    def connector(self) -> None:
        count = self._sizes[0] // 5
        found = self.results
        found.connector_records = count
        with serving(self._folder / "connector") as served:
            url = served.url
            rows = self.spark.range(0, count, 1, 2).select(
                f.to_json(f.struct("id", f.repeat(f.lit("x"), 180).alias("text"))).alias("data")
            )
            for number in range(_GROWTH_TRIES + 1):
                topic = f"orders-{number}"
                writer = rows.write.format("topics").options(url=url, topic=topic).mode("append")
                reader = self.spark.read.format("topics").options(url=url, topic=topic, minPartitions="2")
                written, read = seconds(writer.save), seconds(lambda: drop(reader.load()))  # noqa: B023
                if number:
                    found.written.append(written)
                    found.read_back.append(read)
            found.micro_batches_ms = self._micro_batches(url)

    def _micro_batches(self, url: str) -> list[float]:
        with Client(url) as client:
            for _ in range(_MICRO_BATCHES):
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

    # Numbers of things

    def deletes(self) -> None:
        self._archive()
        self.results.deletes = many_deletes(self.spark, str(self._data / "archive"), _TRIES)
        forget_archive(self._data)

    def topics(self) -> None:
        with serving(self._folder / "many") as served:
            self.results.topics = many_topics(served.url, self._sizes[0] // 100, _TRIES)
        small = self._folder / "small"
        self.results.archived = many_archived(self.spark, small / "data", self._sizes[0] // 100, _GROWTH_TRIES)
        self.results.deletes_of_many = many_deletes(self.spark, str(small / "data" / "archive"), _TRIES)
        self.results.sealed = many_sealed(small, _TRIES)
        shutil.rmtree(small)

    def table(self) -> None:
        self.results.table = table_costs(self._folder, tuple(size // 100 for size in self._sizes))

    def versions(self) -> None:
        self.results.versions = version_costs(self._folder / "served" / "data")

    def worker(self) -> None:
        self.results.worker = list(worker_costs(self._folder / "served" / "data"))

    # Costs of a job for the writers

    def latency(self) -> None:
        folder = self._folder / "served"
        with serving(folder) as served:
            writer = Writer(served)
            writer.window(lambda so_far: so_far < 2.0)
            for _ in range(_WINDOWS):
                self.results.quiet.append(writer.window(lambda so_far: so_far < _QUIET_S))
                self.results.busy.append(self._beside_a_job(writer, folder / "data"))
            writer.close()

    def _beside_a_job(self, writer: Writer, data: Path) -> Latencies:
        with archiving(data) as job:
            found = writer.window(lambda so_far: job.poll() is None)
        quiet = self.results.quiet[-1]
        self._progress.print(
            f"  without and with a job: p99 {quiet.p99_ms:.2f} and {found.p99_ms:.2f} ms, longest "
            f"{quiet.longest_ms:.0f} and {found.longest_ms:.0f}, waits {quiet.waited_ms:.0f} and {found.waited_ms:.0f}"
        )
        return found


def drop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _used_by_others() -> float:
    """Cores in use while this process is idle: the processes of Spark cannot be separated from other programs."""

    def busy() -> int:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return sum(ticks[:3]) + sum(ticks[5:8])

    before = busy()
    time.sleep(1.0)
    return (busy() - before) / os.sysconf("SC_CLK_TCK")


def _versions() -> dict[str, str]:
    return {"Spark": pyspark.__version__, "Java": str(java_version(java_home()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the volume")
    parser.add_argument("--write", action="store_true", help="write the report into bench/results/spark.md")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"bench-spark: ended by signal {number}"))
    folder = Path(tempfile.mkdtemp(prefix="topics-bench-spark-"))
    bench = Bench(tuple(size // 10 for size in SIZES) if arguments.quick else SIZES, folder)
    try:
        bench.run()
    finally:
        bench.stop()
        shutil.rmtree(folder, ignore_errors=True)
    text = SparkReport(bench.results, Console()).make(machine(_versions()))
    if arguments.write:
        write_results(text, "spark", "Spark")


if __name__ == "__main__":
    main()
