"""The parts of `make bench-spark` with large numbers: many topics, and many deletes.

`python -m bench.spark_many TOPICS RECORDS` measures these alone.
"""

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StructField, StructType

from bench.spark_load import fill, fill_many, forget_archive, serving
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings
from topics.spark.archive.archive_reader import archived_records
from topics.spark.archive.archive_state import Masked
from topics.spark.archive.data_files import Mask
from topics.spark.archive.ledger import ArchiveStore
from topics.spark.connector.source import TopicsDataSource, TopicsReader, TopicsStreamReader
from topics.spark.pipeline.executors import InlineExecutor, SparkExecutor
from topics.spark.pipeline.pipeline_worker import make_pipeline
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.session import SparkOptions, open_session
from topics.system.clock import SystemClock
from topics_client import Client

RECORDS_A_TOPIC = 50
RECORDS_A_DELETE = 10
"""One record in so many is deleted, each its own range."""

_COLUMNS = StructType([StructField("seq", LongType(), False)])


@dataclass
class ManyTopics:
    topics: int
    plan: list[float] = field(default_factory=list)
    offsets: list[float] = field(default_factory=list)
    offset_bytes: int = 0
    tasks: int = 0


@dataclass
class ManySealed:
    """Planning over topics that are completely sealed, in the modes that read the files directly."""

    segments: list[float] = field(default_factory=list)
    auto: list[float] = field(default_factory=list)
    tasks: int = 0


@dataclass
class ManyArchived:
    topics: int
    archived: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    jobs: int = 0
    files: int = 0


@dataclass
class ManyDeletes:
    records: int
    ranges: int
    topics: int = 1
    plain: list[float] = field(default_factory=list)
    masked: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return statistics.median(self.masked) / statistics.median(self.plain)


def many_topics(url: str, topics: int, tries: int) -> ManyTopics:
    """Plans a batch and asks for the offsets of a stream over so many topics, as Spark does and without a Spark."""
    with Client(url) as client:
        for number in range(topics):
            client.append_many(f"many.{number}", [{"n": n} for n in range(RECORDS_A_TOPIC)])
    given = {"url": url, "topicPattern": "many.*"}
    reader = TopicsDataSource(given).reader(_COLUMNS)
    stream = TopicsDataSource({**given, "startingOffsets": "earliest"}).streamReader(_COLUMNS)
    assert isinstance(reader, TopicsReader)
    assert isinstance(stream, TopicsStreamReader)
    start = stream.initialOffset()
    found = ManyTopics(topics, tasks=len(reader.partitions()))
    for _ in range(tries):
        found.plan.append(seconds(reader.partitions))
        found.offsets.append(seconds(lambda: stream.latestOffset(start, stream.getDefaultReadLimit())))
    found.offset_bytes = len(json.dumps(stream.latestOffset(start, stream.getDefaultReadLimit())))
    return found


def many_sealed(folder: Path, tries: int) -> ManySealed:
    """Plans a batch over the sealed topics of a server's folder, with and without answers of the server."""
    found = ManySealed()
    with serving(folder) as served:
        given = {"path": str(folder / "data"), "topicPattern": "many.*"}
        alone = TopicsDataSource({**given, "mode": "segments"}).reader(_COLUMNS)
        both = TopicsDataSource({**given, "mode": "auto", "url": served.url}).reader(_COLUMNS)
        assert isinstance(alone, TopicsReader)
        assert isinstance(both, TopicsReader)
        found.tasks = len(alone.partitions())
        assert found.tasks
        assert both.partitions()
        for _ in range(tries):
            found.segments.append(seconds(alone.partitions))
            found.auto.append(seconds(both.partitions))
    return found


def many_archived(spark: SparkSession, data: Path, topics: int, tries: int) -> ManyArchived:
    """Archives many small topics; each try starts from the beginning."""
    fill_many(data, topics, RECORDS_A_TOPIC)
    found = ManyArchived(topics)
    tracker = spark.sparkContext.statusTracker()
    for number in range(tries + 1):
        forget_archive(data)
        settings = Settings(data_dir=str(data), archive="1")
        pipeline = make_pipeline(settings, PosixFileSystem(), SparkExecutor(spark), SystemClock())
        before = len(tracker.getJobIdsForGroup(None))
        took = seconds(lambda: run_all(pipeline))  # noqa: B023
        found.jobs = len(tracker.getJobIdsForGroup(None)) - before
        found.idle.append(seconds(pipeline.round))
        if number:
            found.archived.append(took)
    found.files = sum(1 for _ in (data / "archive" / "data").rglob("*.parquet"))
    return found


def run_all(pipeline: Pipeline) -> None:
    while pipeline.round():
        pass


def many_deletes(spark: SparkSession, archive: str, tries: int) -> ManyDeletes:
    """Reads an archive with scattered deletes in each topic, with and without applying them, in turns.

    The deletes are written to the ledger directly.
    """
    store = ArchiveStore(PosixFileSystem(), archive)
    state = store.load()
    masked, count = [], 0
    for topic in state.topics.values():
        last = topic.covered[-1][1]
        ranges = [(seq, seq) for seq in range(RECORDS_A_DELETE // 2, last + 1, RECORDS_A_DELETE)]
        masked.append(Masked(topic.topic_id, Mask.of(ranges).packed(), topic.catalog))
        count += len(ranges)
    store.commit(state, masked, state.updated_ms)
    paths = [store.path_of(file) for file in state.files]
    found = ManyDeletes(sum(file.rows for file in state.files.values()), count, len(masked))
    for number in range(tries + 1):
        plain, shown = (
            seconds(lambda: total(spark.read.parquet(*paths))),
            seconds(lambda: total(archived_records(spark, archive))),
        )
        if number:
            found.plain.append(plain)
            found.masked.append(shown)
    return found


def total(frame: DataFrame) -> None:
    frame.agg(f.sum(f.length("data")), f.max("seq")).collect()


def seconds(do: Callable[[], object]) -> float:
    begun = time.perf_counter()
    do()
    return time.perf_counter() - begun


def main() -> None:
    topics, records = int(sys.argv[1]), int(sys.argv[2])
    folder = Path(tempfile.mkdtemp(prefix="topics-bench-spark-"))
    try:
        with serving(folder / "many") as served:
            print(many_topics(served.url, topics, 5))
        fill(folder / "data", 0, records)
        settings, files = Settings(data_dir=str(folder / "data"), archive="1"), PosixFileSystem()
        pipeline = make_pipeline(settings, files, InlineExecutor(files), SystemClock())
        run_all(pipeline)
        spark = open_session(SparkOptions(app_name="bench"))
        print(many_archived(spark, folder / "small" / "data", topics, 2))
        print(many_deletes(spark, str(folder / "small" / "data" / "archive"), 2))
        print(many_sealed(folder / "small", 5))
        found = many_deletes(spark, str(folder / "data" / "archive"), 5)
        print(found, f"ratio {found.ratio:.2f}")
        spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
