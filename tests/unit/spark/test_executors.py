"""The session of a Spark Connect client; the jobs themselves run in tests/spark."""

import pickle
import subprocess
import sys
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import Row

from topics.spark.package_zip import is_remote
from topics.spark.pipeline.executors import JavaEndedError, Result, ResultChannel, SparkExecutor
from topics.spark.pipeline.jobs import JobFailedError, WorkersUnavailableError


class Remote:
    """Stands for a session of Spark Connect, which is known by its module."""

    def __init__(self, gone: bool = False) -> None:
        self.stopped = 0
        self._gone = gone

    def stop(self) -> None:
        self.stopped += 1
        if self._gone:
            raise PySparkException("there is nobody")


Remote.__module__ = "pyspark.sql.connect.session"


def remote(gone: bool = False) -> Any:
    return Remote(gone)


@pytest.mark.parametrize("gone", [False, True])
def test_a_session_is_given_back_also_when_its_server_is_gone(gone: bool) -> None:
    session = remote(gone)
    assert is_remote(session)
    SparkExecutor(session).close()
    assert session.stopped == 1


def test_tasks_need_nothing_of_iceberg() -> None:
    """Executors of a cluster have the packages that docs/spark.md names, and pyiceberg is not among them."""
    code = "import sys, topics.spark.pipeline.executors; sys.exit('pyiceberg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


class Java:
    """Stands for an exception on the side of Java, and for the connection that its text is asked over."""

    _target_id = "o7"

    def __init__(self, trace: str) -> None:
        self._gateway_client = self
        self._trace = trace

    def send_command(self, command: str) -> str:
        return "ys" + self._trace


class Embedded:
    """Stands for a session whose jobs all end in the same way, once their tasks have told some outcomes."""

    def __init__(self, error: Exception | None = None, *reported: tuple[int, int, bytes]) -> None:
        self._error = error
        self._told = reported
        self.sparkContext = self
        self.descriptions: list[str] = []
        self.rows: list[Row] = []

    def accumulator(self, value: list[Result], param: Any) -> Any:
        self._param = param
        return param

    def setJobDescription(self, text: str) -> None:
        self.descriptions.append(text)

    def range(self, *_: int) -> Any:
        return self

    def mapInArrow(self, *_: Any) -> Any:
        return self

    def collect(self) -> list[Row]:
        self._param.addInPlace([], list(self._told))
        if self._error is not None:
            raise self._error
        return self.rows


@pytest.mark.parametrize(
    ("trace", "kind"),
    [
        ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).\\n\\tat", JobFailedError),
        ("org.apache.spark.SparkException: Python worker failed to connect back.\\n\\tat", WorkersUnavailableError),
    ],
)
def test_java_error_of_a_job_is_a_job_failure(trace: str, kind: type[Exception]) -> None:
    """pyspark has no separate class for a task whose process died."""
    session: Any = Embedded(Py4JJavaError("An error occurred while calling o9.collectToPython.\n", Java(trace)))
    executor = SparkExecutor(session)
    with pytest.raises(kind, match=r"^org.apache.spark.SparkException: Python worker") as failed:
        list(executor.run([b"work"], "a job"))
    assert failed.type is kind
    with pytest.raises(WorkersUnavailableError):
        executor.probe()


def test_a_java_that_died_fails_the_round_and_no_job() -> None:
    session: Any = Embedded(Py4JNetworkError("Answer from Java side is empty"))
    with pytest.raises(JavaEndedError, match="Java process ended"):
        list(SparkExecutor(session).run([b"work"], "a job"))


def test_task_results_count_when_the_job_fails() -> None:
    session: Any = Embedded(Py4JJavaError("It failed.\n", Java("the worker died")), (1, 1, b"one"), (1, 0, b"nought"))
    outcomes = SparkExecutor(session).run([b"", b"", b""], "round 7")
    assert [next(outcomes), next(outcomes)] == [(1, b"one"), (0, b"nought")]
    with pytest.raises(JobFailedError):
        next(outcomes)
    assert session.descriptions == ["round 7"]


def test_results_missing_from_the_accumulator_come_from_the_rows() -> None:
    """And reports of a finished job, such as a task of a failed one, are dropped."""
    session: Any = Embedded(None, (9, 1, b"of another job"), (1, 1, b"one"))
    session.rows = [Row(place=0, outcome=bytearray(b"nought")), Row(place=1, outcome=bytearray(b"one"))]
    assert list(SparkExecutor(session).run([b"", b""], "")) == [(1, b"one"), (0, b"nought")]


def test_results_add_up_in_a_task_and_are_handed_over_on_the_driver() -> None:
    session: Any = Embedded()
    channel = ResultChannel(session)
    on_driver: Any = channel.results
    in_task = pickle.loads(pickle.dumps(on_driver))
    reported = in_task.addInPlace(in_task.addInPlace([], [(1, 0, b"a")]), [(1, 1, b"b")])
    assert reported == [(1, 0, b"a"), (1, 1, b"b")]
    job = channel.begin()
    assert on_driver.addInPlace([], reported) == []
    channel.end(job)
    assert [channel.take(), channel.take(), channel.take()] == [(0, b"a"), (1, b"b"), None]
