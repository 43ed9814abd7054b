"""Where pieces of work are done: here and now, or in the tasks of one Spark job. Imports pyspark only where needed."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from topics.spark.pipeline import archiving, indexing, typed
from topics.spark.pipeline.culprits import JobFailedError, WorkersUnavailableError
from topics.spark.pipeline.products import TaskHalf
from topics.spark.pipeline.scanning import perform
from topics.spark.pipeline.status import FAMILIES, WorkerStatus
from topics.spark.shipping import is_remote
from topics.storage.fs import FileSystem
from topics.storage.objects.tiers import guest_files
from topics.system.machine import tree_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import StageInfo

HALVES: dict[str, TaskHalf] = {
    archiving.NAME: archiving.ArchiveTasks(),
    FAMILIES: indexing.FamilyTasks(),
    typed.NAME: typed.TypedTasks(),
}
"""The task half of every product."""

_JOBS_AT_A_TIME = 2
_MANY = 1_000_000
"""More rows than any cluster has cores."""

_PROGRESS_S = 0.3
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

    def run(self, works: Sequence[bytes], on_done: Callable[[int], None]) -> list[bytes]:
        outcomes = []
        for place, work in enumerate(works, 1):
            outcomes.append(perform(self._fs, HALVES, work))
            on_done(place)
        return outcomes

    def run_jobs(
        self, jobs: Sequence[Sequence[bytes]], on_done: Callable[[int], None]
    ) -> Iterator[list[bytes] | JobFailedError]:
        return one_after_the_other(self.run, jobs, on_done)

    def footprint(self) -> WorkerStatus | None:
        return None

    def probe(self) -> None:
        """Whoever asks runs."""


def one_after_the_other(
    run: Callable[[Sequence[bytes], Callable[[int], None]], list[bytes]],
    jobs: Sequence[Sequence[bytes]],
    on_done: Callable[[int], None],
) -> Iterator[list[bytes] | JobFailedError]:
    """Jobs of an executor that has one at a time."""
    before = 0
    for works in jobs:
        try:
            yield run(works, lambda done: on_done(before + done))  # noqa: B023 - it is called within this turn
        except JobFailedError as error:
            yield error
        before += len(works)


class SparkExecutor:
    """All pieces as one job, a task each."""

    def __init__(self, spark: "SparkSession", *places: str | None, start_ms: int = 0) -> None:
        self._spark = spark
        self._start_ms = start_ms
        self._places = places
        """The cold tier and the archive; what a task needs to get in comes from its own environment."""
        self._told = 0
        self._parallelism = 0
        if is_remote(spark):
            # A client of Spark Connect has no status to ask for: it is told.
            spark.registerProgressHandler(self._on_told)  # type: ignore[arg-type]

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

    def run(self, works: Sequence[bytes], on_done: Callable[[int], None]) -> list[bytes]:
        [outcomes] = self.run_jobs([works], on_done)
        if isinstance(outcomes, JobFailedError):
            raise outcomes
        return outcomes

    def run_jobs(
        self, jobs: Sequence[Sequence[bytes]], on_done: Callable[[int], None]
    ) -> Iterator[list[bytes] | JobFailedError]:
        """Two jobs at a time, so that no core waits while a job has its last tasks, or while its work is published."""
        finished = 0
        with ThreadPoolExecutor(_JOBS_AT_A_TIME, "topics-job") as pool:
            running = deque(pool.submit(self._job, works) for works in jobs[:_JOBS_AT_A_TIME])
            following = iter(jobs[_JOBS_AT_A_TIME:])
            for works in jobs:
                outcomes = self._awaited(running.popleft(), finished, on_done)
                for more in following:
                    running.append(pool.submit(self._job, more))
                    break
                finished += len(works)
                on_done(finished)
                yield outcomes

    def footprint(self) -> WorkerStatus | None:
        if is_remote(self._spark) or not str(self._spark.sparkContext.master).startswith("local"):
            return None
        return WorkerStatus(self._start_ms, tree_bytes())

    def _awaited(
        self, future: Future[list[bytes]], finished: int, on_done: Callable[[int], None]
    ) -> list[bytes] | JobFailedError:
        """Waits, and tells meanwhile how many tasks are finished."""
        failed = job_errors()
        while True:
            try:
                return future.result(timeout=_PROGRESS_S)
            except FutureTimeoutError:
                on_done(finished + self._finished_tasks())
            except failed as error:
                return failure_of(error)

    def _job(self, works: Sequence[bytes]) -> list[bytes]:
        count = len(works)
        work, places = list(works), self._places

        def do(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for place in batch.column(0).to_pylist():
                    outcome = perform(guest_files(*places), HALVES, work[place])
                    yield pa.RecordBatch.from_pydict({"place": [place], "outcome": [outcome]}, _OUTCOME_SCHEMA)

        # A range of as many partitions as numbers has one number a partition: exactly one piece a task.
        rows = self._spark.range(0, count, 1, count).mapInArrow(do, "place bigint, outcome binary")
        outcomes = [b""] * count
        for row in rows.collect():
            outcomes[row.place] = bytes(row.outcome)
        return outcomes

    def probe(self) -> None:
        def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from batches

        try:
            self._spark.range(0, 1, 1, 1).mapInArrow(nothing, "id bigint").collect()
        except job_errors() as error:
            raise WorkersUnavailableError(_first_line(error)) from error

    def _on_told(self, stages: "Iterable[StageInfo] | None", **_: object) -> None:
        self._told = sum(stage.num_completed_tasks for stage in stages or ())

    def _finished_tasks(self) -> int:
        if is_remote(self._spark):
            return self._told
        tracker = self._spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return sum(stage.numCompletedTasks for stage in stages if stage is not None)


def _partitions_of_a_range(spark: "SparkSession") -> int:
    from pyspark.sql import functions as f  # noqa: PLC0415

    found = spark.range(_MANY).select(f.spark_partition_id().alias("place")).distinct().collect()
    return len(found)
