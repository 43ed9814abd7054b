"""Where pieces of work are done: here and now, or in the tasks of one Spark job. Imports pyspark only where needed."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from topics.spark.pipeline import archiving
from topics.spark.pipeline.products import Perform, Piece
from topics.spark.pipeline.rounds import JobFailedError, WorkersUnavailableError
from topics.spark.shipping import is_remote
from topics.storage.fs import FileSystem
from topics.storage.objects.tiers import guest_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.connect.shell.progress import StageInfo

PERFORM: dict[str, Perform] = {archiving.NAME: archiving.perform}
"""The task half of every product."""

_PROGRESS_S = 0.3
_NO_WORKER = re.compile(
    r"Python worker (failed to connect back|did not (connect|start)|could not be started)"
    r"|Cannot run program|error=11, |Resource temporarily unavailable|Timed out while waiting for the Python worker"
)
"""How Spark says that a process for a task did not come up in time: the machine is busy, and the task never began."""
_OUTCOME_SCHEMA = pa.schema([("place", pa.int64()), ("outcome", pa.binary())])


def perform(fs: FileSystem, piece: Piece) -> bytes:
    return PERFORM[piece.product](fs, piece.work)


def failure_of(error: Exception) -> JobFailedError:
    """What a failed job says about its work: nothing, where no process came up to do it."""
    kind = WorkersUnavailableError if _NO_WORKER.search(str(error)) else JobFailedError
    return kind(_first_line(error))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


class InlineExecutor:
    """One piece after the other on the caller's stack: for tests, and for a look at what a task does."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def run(self, pieces: Sequence[Piece], on_done: Callable[[int], None]) -> list[bytes]:
        outcomes = []
        for place, piece in enumerate(pieces, 1):
            outcomes.append(perform(self._fs, piece))
            on_done(place)
        return outcomes

    def probe(self) -> None:
        """Whoever asks runs."""


class SparkExecutor:
    """All pieces as one job, a task each."""

    def __init__(self, spark: "SparkSession", *places: str | None) -> None:
        self._spark = spark
        self._places = places
        """The cold tier and the archive; what a task needs to get in comes from its own environment."""
        self._told = 0
        if is_remote(spark):
            # A client of Spark Connect has no status to ask for: it is told.
            spark.registerProgressHandler(self._on_told)  # type: ignore[arg-type]

    def close(self) -> None:
        """Lets a server of Spark Connect forget the session and the code that came with it."""
        from pyspark.errors import PySparkException  # noqa: PLC0415

        if is_remote(self._spark):
            with suppress(PySparkException):  # A server that is gone has forgotten it.
                self._spark.stop()

    def run(self, pieces: Sequence[Piece], on_done: Callable[[int], None]) -> list[bytes]:
        from pyspark.errors import PySparkException  # noqa: PLC0415 - the other executor runs without Spark

        count = len(pieces)
        work, places = list(pieces), self._places

        def do(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for place in batch.column(0).to_pylist():
                    outcome = perform(guest_files(*places), work[place])
                    yield pa.RecordBatch.from_pydict({"place": [place], "outcome": [outcome]}, _OUTCOME_SCHEMA)

        # A range of as many partitions as numbers has one number a partition: exactly one piece a task.
        rows = self._spark.range(0, count, 1, count).mapInArrow(do, "place bigint, outcome binary")
        outcomes = [b""] * count
        try:
            for row in self._collect(rows, on_done):
                outcomes[row.place] = bytes(row.outcome)
        except PySparkException as error:
            raise failure_of(error) from error
        on_done(count)
        return outcomes

    def probe(self) -> None:
        from pyspark.errors import PySparkException  # noqa: PLC0415

        def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from batches

        try:
            self._spark.range(0, 1, 1, 1).mapInArrow(nothing, "id bigint").collect()
        except PySparkException as error:
            raise WorkersUnavailableError(_first_line(error)) from error

    def _collect(self, rows: "DataFrame", on_done: Callable[[int], None]) -> "list[Row]":
        """Collects in a thread, so that this one can tell how many tasks are finished."""
        with ThreadPoolExecutor(1, "topics-job") as pool:
            future = pool.submit(rows.collect)
            while True:
                try:
                    return future.result(timeout=_PROGRESS_S)
                except FutureTimeoutError:
                    on_done(self._finished_tasks())

    def _on_told(self, stages: "Iterable[StageInfo] | None", **_: object) -> None:
        self._told = sum(stage.num_completed_tasks for stage in stages or ())

    def _finished_tasks(self) -> int:
        if is_remote(self._spark):
            return self._told
        tracker = self._spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return sum(stage.numCompletedTasks for stage in stages if stage is not None)
