"""Executors: run the pieces of a round inline, or as the tasks of one Spark job. Imports pyspark."""

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam

from topics.log.fs import FileSystem
from topics.log.object_store.tiered_fs import guest_files
from topics.model.errors import TopicsError
from topics.spark.package_zip import is_remote
from topics.spark.pipeline import archive_product, index_product, typed_product
from topics.spark.pipeline.jobs import JobFailedError, WorkersUnavailableError
from topics.spark.pipeline.products import ProductTasks
from topics.spark.pipeline.segment_scan import run_piece
from topics.spark.pipeline.status import INDEX_PRODUCT, WorkerStatus
from topics.system.process import tree_bytes

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext
    from pyspark.sql import DataFrame, SparkSession


PRODUCT_TASKS: dict[str, ProductTasks] = {
    archive_product.NAME: archive_product.ArchiveTasks(),
    INDEX_PRODUCT: index_product.IndexTasks(),
    typed_product.NAME: typed_product.TypedTasks(),
}
"""By product name."""

_MANY = 1_000_000
"""More rows than any cluster has cores."""

_NO_WORKER = re.compile(
    r"Python worker (failed to connect back|did not (connect|start)|could not be started)"
    r"|Cannot run program|error=11, |Resource temporarily unavailable|Timed out while waiting for the Python worker"
)
"""Spark's messages for a worker process that did not start in time: the machine is busy, and the task never began."""
_OUTCOME_SCHEMA = pa.schema([("place", pa.int64()), ("outcome", pa.binary())])


def failure_of(error: Exception) -> JobFailedError:
    """The error of a failed job: WorkersUnavailableError where no worker process started, JobFailedError otherwise."""
    kind = WorkersUnavailableError if _NO_WORKER.search(str(error)) else JobFailedError
    return kind(_first_line(error))


def job_errors() -> tuple[type[Exception], ...]:
    """The exceptions of a job that failed on a working Spark.

    A dead Java process raises others: then no job can run, and the failure proves nothing about the work.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - the other executor runs without Spark
    from pyspark.errors import PySparkException  # noqa: PLC0415

    # Errors without a pyspark class, such as a task whose process was killed, arrive as py4j errors.
    return PySparkException, Py4JJavaError


class JavaEndedError(TopicsError):
    """The Java process of Spark was killed or crashed. This proves nothing about the work."""


def java_errors() -> tuple[type[Exception], ...]:
    """The exceptions of a session whose Java process has ended."""
    from py4j.protocol import Py4JNetworkError  # noqa: PLC0415 - the other executor runs without Spark

    return Py4JNetworkError, ConnectionError, EOFError


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    # py4j first names the object that was called; Java's message follows.
    reported = [line.removeprefix(": ") for line in lines if not line.startswith("An error occurred while calling ")]
    return (reported or lines)[0]


class InlineExecutor:
    """Runs one piece after the other on the caller's stack, for tests and debugging."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def parallelism(self) -> int:
        return 1

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        for place, work in enumerate(works):
            yield place, run_piece(self._fs, PRODUCT_TASKS, work)

    def footprint(self) -> WorkerStatus | None:
        return None

    def probe(self) -> None:
        """Always succeeds, because there are no worker processes."""


class SparkExecutor:
    """Runs all pieces as one Spark job, one task each."""

    def __init__(self, spark: "SparkSession", *places: str | None, start_ms: int = 0) -> None:
        self._spark = spark
        self._start_ms = start_ms
        self._places = places
        """The cold tier and the archive. Tasks take credentials from their own environment."""
        self._parallelism = 0
        self._channel: ResultChannel | None = None

    def close(self) -> None:
        """Ends a Spark Connect session, and with it the code that was uploaded."""
        from pyspark.errors import PySparkException  # noqa: PLC0415

        if is_remote(self._spark):
            with suppress(PySparkException):  # The server has stopped, and the session with it.
                self._spark.stop()

    def parallelism(self) -> int:
        if is_remote(self._spark):
            # A Connect client cannot request it, but the default partitioning of a range reveals it.
            if not self._parallelism:
                self._parallelism = max(_partitions_of_a_range(self._spark), 1)
            return self._parallelism
        # Executors come and go, so it is not cached.
        return self._spark.sparkContext.defaultParallelism

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        """Runs one job, shown as `about` in the Spark UI, and yields outcomes as tasks end."""
        try:
            yield from self._streamed(works, about) if is_remote(self._spark) else self._delivered(works, about)
        except job_errors() as error:
            raise failure_of(error) from error
        except java_errors() as error:
            raise JavaEndedError(
                f"Spark's Java process ended while a job ran ({error}). Often the machine ran out of memory: lower "
                "spark_memory, or run the pipeline elsewhere. Nothing is lost; the next run continues"
            ) from error

    def footprint(self) -> WorkerStatus | None:
        if is_remote(self._spark) or not str(self._spark.sparkContext.master).startswith("local"):
            return None
        return WorkerStatus(self._start_ms, tree_bytes())

    def _streamed(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        """Spark Connect streams the rows of a job, partition by partition in order."""
        self._spark.addTag(about.replace(",", ""))
        try:
            for row in self._job(works).toLocalIterator():
                yield row.place, bytes(row.outcome)
        finally:
            self._spark.removeTag(about.replace(",", ""))

    def _delivered(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        """Classic Spark returns rows when the job is over, so tasks report their outcomes through an accumulator."""
        channel = self._opened()
        number, delivered = channel.begin(), set()
        with ThreadPoolExecutor(1, "topics-job") as pool:
            rows = pool.submit(self._collected, self._job(works, channel.results, number), about)
            rows.add_done_callback(lambda _: channel.end(number))
            while (result := channel.take()) is not None:
                delivered.add(result[0])
                yield result
        # Spark only warns about a failed accumulator update. The collected rows are complete.
        yield from [(place, outcome) for place, outcome in rows.result() if place not in delivered]

    def _collected(self, job: "DataFrame", about: str) -> list[tuple[int, bytes]]:
        self._spark.sparkContext.setJobDescription(about)
        return [(row.place, bytes(row.outcome)) for row in job.collect()]

    def _opened(self) -> "ResultChannel":
        if self._channel is None:
            self._channel = ResultChannel(self._spark.sparkContext)
        return self._channel

    def _job(
        self, works: Sequence[bytes], results: "Accumulator[list[Result]] | None" = None, number: int = 0
    ) -> "DataFrame":
        count, places = len(works), self._places
        # Every task receives the work of all tasks, in which names and schemas of streams repeat.
        packed = [zlib.compress(work, 1) for work in works]

        def do(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for place in batch.column(0).to_pylist():
                    outcome = run_piece(guest_files(*places), PRODUCT_TASKS, zlib.decompress(packed[place]))
                    if results is not None:
                        results.add([(number, place, outcome)])
                    yield pa.RecordBatch.from_pydict({"place": [place], "outcome": [outcome]}, _OUTCOME_SCHEMA)

        # A range of as many partitions as numbers has one number a partition: exactly one piece a task.
        return self._spark.range(0, count, 1, count).mapInArrow(do, "place bigint, outcome binary")

    def probe(self) -> None:
        def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from batches

        try:
            self._spark.range(0, 1, 1, 1).mapInArrow(nothing, "id bigint").collect()
        except job_errors() as error:
            raise WorkersUnavailableError(_first_line(error)) from error


def _partitions_of_a_range(spark: "SparkSession") -> int:
    from pyspark.sql import functions as f  # noqa: PLC0415

    found = spark.range(_MANY).select(f.spark_partition_id().alias("place")).distinct().collect()
    return len(found)


# Result channel: outcomes of tasks reach the driver while their job runs.
#
# A job returns its rows when its last task has ended. An update of an accumulator reaches the driver as soon as its
# task has succeeded, exactly once for each task of an action, even after retries. So a round that is one job is
# published in parts.

Result = tuple[int, int, bytes]
"""The number of the job, the place of the piece in it, and its outcome."""
_END = -1


class _Delivering(AccumulatorParam[list[Result]]):
    """Collects a list in a task. On the driver it passes each result on and keeps none."""

    def __init__(self, deliver: Callable[[Result], None] | None = None) -> None:
        self._deliver = deliver

    def __reduce__(self) -> tuple[type["_Delivering"], tuple[()]]:
        return _Delivering, ()

    def zero(self, value: list[Result]) -> list[Result]:
        return []

    def addInPlace(self, value1: list[Result], value2: list[Result]) -> list[Result]:
        if self._deliver is None:
            return value1 + value2
        for result in value2:
            self._deliver(result)
        return []


class ResultChannel:
    """One channel for all jobs of a session, because Spark never releases an accumulator."""

    def __init__(self, context: "SparkContext") -> None:
        self._queue: SimpleQueue[Result] = SimpleQueue()
        self.results: Accumulator[list[Result]] = context.accumulator([], _Delivering(self._queue.put))
        """The accumulator for task results."""
        self._job = 0

    def begin(self) -> int:
        """Starts a job and returns its number. Late results of earlier jobs are dropped."""
        self._job += 1
        return self._job

    def end(self, job: int) -> None:
        """Marks the end of a job, successful or not. Results of its tasks were queued before."""
        self._queue.put((job, _END, b""))

    def take(self) -> tuple[int, bytes] | None:
        """Waits for and returns the next place and outcome; None when the job has ended."""
        while True:
            job, place, outcome = self._queue.get()
            if job == self._job:
                return None if place == _END else (place, outcome)
