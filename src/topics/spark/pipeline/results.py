"""What tasks have done, known to the driver while their job goes on. Imports pyspark.

A job hands over its rows when its last task has ended. But what a task has added to an accumulator Spark brings to the
driver as soon as this one task has succeeded, once for each task of an action, whatever was tried twice. So the outcome
of a piece comes with the end of its task, and a round that is one job is published as it goes all the same.
"""

from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from pyspark.accumulators import AccumulatorParam

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

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
