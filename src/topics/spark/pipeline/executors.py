"""Where pieces of work are done: here and now, or in the tasks of one Spark job. Imports pyspark only where needed."""

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
from topics.spark.package_zip import is_remote
from topics.spark.pipeline import archive_product, index_product, typed_product
from topics.spark.pipeline.jobs import JobFailedError, WorkersUnavailableError
from topics.spark.pipeline.products import TaskHalf
from topics.spark.pipeline.segment_scan import perform
from topics.spark.pipeline.status import FAMILIES, WorkerStatus
from topics.system.process import tree_bytes

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext
    from pyspark.sql import DataFrame, SparkSession


HALVES: dict[str, TaskHalf] = {
    archive_product.NAME: archive_product.ArchiveTasks(),
    FAMILIES: index_product.IndexTasks(),
    typed_product.NAME: typed_product.TypedTasks(),
}
"""The task half of every product."""

_MANY = 1_000_000
"""More rows than any cluster has cores."""

_NO_WORKER = re.compile(
    r"Python worker (failed to connect back|did not (connect|start)|could not be started)"
    r"|Cannot run program|error=11, |Resource temporarily unavailable|Timed out while waiting for the Python worker"
)
"""How Spark says that a process for a task did not come up in time: the machine is busy, and the task never began."""
_OUTCOME_SCHEMA = pa.schema([("place", pa.int64()), ("outcome", pa.binary())])


def failure_of(error: Exception) -> JobFailedError:
    """What a failed job says about its work: nothing, where no process came up to do it."""
    kind = WorkersUnavailableError if _NO_WORKER.search(str(error)) else JobFailedError
    return kind(_first_line(error))


def job_errors() -> tuple[type[Exception], ...]:
    """What a job raises that failed on a Spark that is well. Where Java has died others are raised: nothing can be run
    then, and nothing be learned about the work."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - the other executor runs without Spark
    from pyspark.errors import PySparkException  # noqa: PLC0415

    # What pyspark has no class of its own for, such as a task whose process was killed, comes as py4j found it.
    return PySparkException, Py4JJavaError


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    # Where py4j begins by telling which of its objects was called, Java's own words come next.
    told = [line.removeprefix(": ") for line in lines if not line.startswith("An error occurred while calling ")]
    return (told or lines)[0]


class InlineExecutor:
    """One piece after the other on the caller's stack: for tests, and for a look at what a task does."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def parallelism(self) -> int:
        return 1

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        for place, work in enumerate(works):
            yield place, perform(self._fs, HALVES, work)

    def footprint(self) -> WorkerStatus | None:
        return None

    def probe(self) -> None:
        """Whoever asks runs."""


class SparkExecutor:
    """All pieces as one job, a task each."""

    def __init__(self, spark: "SparkSession", *places: str | None, start_ms: int = 0) -> None:
        self._spark = spark
        self._start_ms = start_ms
        self._places = places
        """The cold tier and the archive; what a task needs to get in comes from its own environment."""
        self._parallelism = 0
        self._channel: ResultChannel | None = None

    def close(self) -> None:
        """Lets a server of Spark Connect forget the session and the code that came with it."""
        from pyspark.errors import PySparkException  # noqa: PLC0415

        if is_remote(self._spark):
            with suppress(PySparkException):  # A server that is gone has forgotten it.
                self._spark.stop()

    def parallelism(self) -> int:
        if is_remote(self._spark):
            # Nobody tells it to a client, but a range that is cut as Spark likes has so many partitions.
            if not self._parallelism:
                self._parallelism = max(_partitions_of_a_range(self._spark), 1)
            return self._parallelism
        # Executors come and go: it is asked anew.
        return self._spark.sparkContext.defaultParallelism

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        """One job, which is known as `about` in Spark's pages. Outcomes come as tasks end."""
        try:
            yield from self._streamed(works, about) if is_remote(self._spark) else self._delivered(works, about)
        except job_errors() as error:
            raise failure_of(error) from error

    def footprint(self) -> WorkerStatus | None:
        if is_remote(self._spark) or not str(self._spark.sparkContext.master).startswith("local"):
            return None
        return WorkerStatus(self._start_ms, tree_bytes())

    def _streamed(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        """A server of Spark Connect sends the rows of a partition when those before it are sent, all of one job."""
        self._spark.addTag(about.replace(",", ""))
        try:
            for row in self._job(works).toLocalIterator():
                yield row.place, bytes(row.outcome)
        finally:
            self._spark.removeTag(about.replace(",", ""))

    def _delivered(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        """Any other Spark hands over the rows of a job when it is over: tasks tell themselves what they have done."""
        channel = self._opened()
        number, delivered = channel.begin(), set()
        with ThreadPoolExecutor(1, "topics-job") as pool:
            rows = pool.submit(self._collected, self._job(works, channel.results, number), about)
            rows.add_done_callback(lambda _: channel.end(number))
            while (result := channel.take()) is not None:
                delivered.add(result[0])
                yield result
        # Spark only warns of an update of an accumulator that it could not make. The rows have everything.
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
        # Every task is sent the work of all, in which names and descriptions of streams come again and again.
        packed = [zlib.compress(work, 1) for work in works]

        def do(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for place in batch.column(0).to_pylist():
                    outcome = perform(guest_files(*places), HALVES, zlib.decompress(packed[place]))
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


# What tasks have done, known to the driver while their job goes on. Imports pyspark.
#
# A job hands over its rows when its last task has ended. But what a task has added to an accumulator Spark brings to
# the driver as soon as this one task has succeeded, once for each task of an action, whatever was tried twice. So the
# outcome of a piece comes with the end of its task, and a round that is one job is published as it goes all the same.

Result = tuple[int, int, bytes]
"""The number of the job, the place of the piece in it, and its outcome."""
_END = -1


class _Delivering(AccumulatorParam[list[Result]]):
    """Adds up to a list in a task. On the driver it hands over what comes, and keeps nothing of it."""

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
    """One for all jobs of a session, as Spark never forgets an accumulator."""

    def __init__(self, context: "SparkContext") -> None:
        self._queue: SimpleQueue[Result] = SimpleQueue()
        self.results: Accumulator[list[Result]] = context.accumulator([], _Delivering(self._queue.put))
        """What tasks add their results to."""
        self._job = 0

    def begin(self) -> int:
        """The number of the next job. What still comes of those before it is dropped."""
        self._job += 1
        return self._job

    def end(self, job: int) -> None:
        """A job has ended, well or not. What its tasks had done by then has come before."""
        self._queue.put((job, _END, b""))

    def take(self) -> tuple[int, bytes] | None:
        """The next place and outcome; None when the job has ended. Waits."""
        while True:
            job, place, outcome = self._queue.get()
            if job == self._job:
                return None if place == _END else (place, outcome)
