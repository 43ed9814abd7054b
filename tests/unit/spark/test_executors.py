"""What a client of Spark Connect makes of its session; the jobs themselves run in tests/spark."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql.connect.shell.progress import StageInfo

from topics.spark.pipeline.culprits import JobFailedError, WorkersUnavailableError
from topics.spark.pipeline.executors import SparkExecutor
from topics.spark.shipping import is_remote


class Remote:
    """Stands for a session of Spark Connect, which is known by its module."""

    def __init__(self, gone: bool = False) -> None:
        self.stopped = 0
        self._gone = gone
        self.handler: Callable[..., None] = lambda **_: None

    def registerProgressHandler(self, handler: Callable[..., None]) -> None:
        self.handler = handler

    def stop(self) -> None:
        self.stopped += 1
        if self._gone:
            raise PySparkException("there is nobody")


Remote.__module__ = "pyspark.sql.connect.session"


def remote(gone: bool = False) -> Any:
    return Remote(gone)


def test_progress_is_what_the_server_told_last() -> None:
    session = remote()
    executor = SparkExecutor(session)
    assert executor._finished_tasks() == 0
    stages = [StageInfo(0, 4, 3, 0, False), StageInfo(1, 8, 2, 0, False)]
    session.handler(stages=stages, inflight_tasks=2, operation_id="x", done=False)
    assert executor._finished_tasks() == 5
    session.handler(stages=None, inflight_tasks=0, operation_id="x", done=True)
    assert executor._finished_tasks() == 0


@pytest.mark.parametrize("gone", [False, True])
def test_a_session_is_given_back_also_when_its_server_is_gone(gone: bool) -> None:
    session = remote(gone)
    assert is_remote(session)
    SparkExecutor(session).close()
    assert session.stopped == 1


def test_tasks_need_nothing_of_iceberg() -> None:
    """Executors of a cluster have what docs/spark.md names, and pyiceberg is not among it."""
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
    """Stands for a session whose jobs all end in the same way."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def range(self, *_: int) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("trace", "kind"),
    [
        ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).\\n\\tat", JobFailedError),
        ("org.apache.spark.SparkException: Python worker failed to connect back.\\n\\tat", WorkersUnavailableError),
    ],
)
def test_what_java_says_of_a_job_is_about_the_job(trace: str, kind: type[Exception]) -> None:
    """pyspark has no class of its own for a task whose process died."""
    session: Any = Embedded(Py4JJavaError("An error occurred while calling o9.collectToPython.\n", Java(trace)))
    executor = SparkExecutor(session)
    [outcome] = executor.run_jobs([[b"work"]], lambda done: None)
    assert type(outcome) is kind
    assert str(outcome).startswith("org.apache.spark.SparkException: Python worker")
    with pytest.raises(WorkersUnavailableError):
        executor.probe()


def test_a_java_that_died_fails_the_round_and_no_job() -> None:
    session: Any = Embedded(Py4JNetworkError("Answer from Java side is empty"))
    with pytest.raises(Py4JNetworkError):
        list(SparkExecutor(session).run_jobs([[b"work"]], lambda done: None))
