"""Jobs: work that alternates between the event loop and the disk, written as one generator.

A job runs on the loop, where it may read and change state, and yields each wait:

* `OffLoop(function)` runs the function on the runner's thread and returns its result;
* `Until(register)` waits for an event of the loop: `register` gets a function to call with the outcome.

A runner has one thread and runs one job at a time, so two jobs of the same runner never interleave.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from queue import SimpleQueue
from sys import maxsize
from typing import NamedTuple, Protocol

_log = logging.getLogger(__name__)


class OffLoop(NamedTuple):
    function: Callable[[], object]


class Until(NamedTuple):
    register: Callable[[Callable[[object], None]], None]


Job = Generator[OffLoop | Until, object, None]

Background = Callable[[Callable[[], object], Callable[[object], None], str], None]
"""Runs the first function off the loop, then the second on the loop with the outcome: a result or an exception. The
text is the name of the topic that the work is for, or empty; owners of topics take turns."""

_Work = tuple[Callable[[], object], Callable[[object], None]]


class FairBackground:
    """Background work of several owners, round robin. One owner never has all threads."""

    def __init__(self, run: Callable[[Callable[[], object], Callable[[object], None]], None], threads: int) -> None:
        self._run = run
        self._free = threads
        self._each = max(threads - 1, 1)
        self._waiting: dict[tuple[str, ...], deque[_Work]] = {}
        """By owner, in the order of their turns."""
        self._running: dict[tuple[str, ...], int] = {}

    def add(self, owner: tuple[str, ...], work: Callable[[], object], then: Callable[[object], None]) -> None:
        self._waiting.setdefault(owner, deque()).append((work, then))
        self._start()

    def flush(self) -> None:
        """Starts everything that waits, at the end."""
        self._free = self._each = maxsize
        self._start()

    def _start(self) -> None:
        while self._free > 0:
            owner = next((one for one in self._waiting if self._running.get(one, 0) < self._each), None)
            if owner is None:
                return
            waiting = self._waiting.pop(owner)
            work, then = waiting.popleft()
            if waiting:
                self._waiting[owner] = waiting
            self._free -= 1
            self._running[owner] = self._running.get(owner, 0) + 1
            self._run(work, partial(self._finished, owner, then))

    def _finished(self, owner: tuple[str, ...], then: Callable[[object], None], outcome: object) -> None:
        self._free += 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        try:
            then(outcome)
        finally:
            self._start()


class Deferral:
    """Runs functions later in the loop's tick, or immediately without a loop."""

    __slots__ = ("_run",)

    def __init__(self) -> None:
        self._run: Callable[[Callable[[], None]], object] | None = None

    def use(self, run: Callable[[Callable[[], None]], object]) -> None:
        """Attaches the loop's function that defers calls."""
        self._run = run

    def __call__(self, function: Callable[[], None]) -> None:
        if self._run is None:
            function()
        else:
            self._run(function)


class JobRunner(Protocol):
    def start(self, job: Job) -> None: ...

    def close(self) -> None: ...


def _advance(job: Job, outcome: object) -> OffLoop | Until | None:
    """Runs a job to its next wait.

    Returns None when it is finished. An exception as outcome is raised inside the job.
    """
    try:
        if isinstance(outcome, BaseException):
            return job.throw(outcome)
        return job.send(outcome)
    except StopIteration:
        return None


class InlineRunner:
    """Runs jobs to completion on the caller's stack: deterministic, for tests and tools."""

    def start(self, job: Job) -> None:
        step = _advance(job, None)
        while step is not None:
            outcome: object
            if isinstance(step, OffLoop):
                try:
                    outcome = step.function()
                except Exception as error:
                    outcome = error
            else:
                answers: list[object] = []
                step.register(answers.append)
                if not answers:
                    raise RuntimeError("a job waits for something that an inline runner will never do")
                outcome = answers[0]
            step = _advance(job, outcome)

    def close(self) -> None:
        """No job is ever left."""


class LoopRunner:
    """Runs jobs on the loop, one after the other. A subclass runs their `OffLoop` parts."""

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()
        self._current: Job | None = None

    def start(self, job: Job) -> None:
        self._waiting.append(job)
        if self._current is None:
            self._next()

    @property
    def idle(self) -> bool:
        return self._current is None

    def run_off_loop(self, function: Callable[[], object]) -> None:
        """Runs the function, and passes its result or its exception to `resume` on the loop."""
        raise NotImplementedError

    def _next(self) -> None:
        if self._waiting:
            self._current = self._waiting.popleft()
            self.resume(None)

    def resume(self, outcome: object) -> None:
        assert self._current is not None
        try:
            step = _advance(self._current, outcome)
        except Exception:
            _log.exception("background job failed")
            step = None
        if step is None:
            self._current = None
            self._next()
        elif isinstance(step, OffLoop):
            self.run_off_loop(step.function)
        else:
            step.register(self.resume)


class ThreadRunner(LoopRunner):
    """Runs the `OffLoop` parts on its own thread."""

    def __init__(self, name: str, wake: Callable[[Callable[[], None]], object]) -> None:
        super().__init__()
        self._wake = wake
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run_off_loop(self, function: Callable[[], object]) -> None:
        self._queue.put(function)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (function := self._queue.get()) is not None:
            outcome: object
            try:
                outcome = function()
            except Exception as error:
                outcome = error
            self._wake(lambda outcome=outcome: self.resume(outcome))  # type: ignore[misc]
            # While the thread waits it must not keep references to the last job's data, which may be a whole segment.
            del function, outcome
