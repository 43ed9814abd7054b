"""The machine that a simulated server runs on: an event loop that skips the waiting, and workers without threads."""

import asyncio
import math
from collections.abc import Callable
from random import Random
from typing import Any

from topics.engine.background_jobs import LoopRunner
from topics.engine.core import EngineOptions
from topics.engine.disk_threads import outcome_of
from topics.log.commit_requests import Locating, Reopening, Request, Rotation
from topics.log.group_commit import COMPANY, Shard
from topics.log.wal import Submission
from topics.testing import ManualClock, PowerCut


class _NothingComes:
    """In place of a selector: no file descriptor ever becomes ready, and waiting is moving the clock."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[object]:
        if timeout is None:
            raise RuntimeError("the simulation waits for something that will never happen")
        if timeout > 0:
            self._clock.advance(max(math.ceil(timeout * 1000), 1))
        return []

    def close(self) -> None:
        """There is nothing to close."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """asyncio's own scheduling, with the clock of the simulation. A cut of the power ends it at once."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._simulated = clock
        self._selector = _NothingComes(clock)
        self.failures: list[str] = []
        """Exceptions that no handler expected; a server raises none of these."""
        self.power_is_cut = False
        self.set_exception_handler(lambda _, context: self._note(context))

    def time(self) -> float:
        return self._simulated.monotonic()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        future = self.create_future()

        def run() -> None:
            outcome = outcome_of(lambda: func(*args))
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.call_soon(run)
        return future

    def _note(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, PowerCut):
            self.power_is_cut = True
            self.stop()
        else:
            self.failures.append(f"{context.get('message')}: {error!r}")

    def _process_events(self, event_list: list[object]) -> None:
        """None ever come."""

    def _write_to_self(self) -> None:
        """There is one thread, which need not be woken."""


class SimulatedWorkers:
    """Does the work on the disk in the loop's own thread, a moment after it was asked for."""

    def __init__(self, loop: SimulatedLoop, luck: Random) -> None:
        self._loop, self._luck = loop, luck

    def after_a_moment(self, function: Callable[[], None]) -> None:
        """Sooner or later, but not now; requests need not be done in their order."""
        self._loop.call_later(self._luck.choice((0, 0, 0, 1, 1, 2, 5, 20)) / 1000, function)

    def runner(self, name: str) -> "_Runner":
        return _Runner(self)

    def committer(self, shard: Shard, options: EngineOptions) -> "_Committer":
        return _Committer(shard, self, self._loop, options.sync_interval_ms / 1000)

    def background(self, work: Callable[[], object], then: Callable[[object], None]) -> None:
        self.after_a_moment(lambda: then(outcome_of(work)))

    def hold_back(self, held: bool) -> None:
        """Does nothing: writers of a simulation are slow enough."""

    def close(self) -> None:
        """There are no threads."""


class _Runner(LoopRunner):
    def __init__(self, workers: SimulatedWorkers) -> None:
        super().__init__()
        self._workers = workers

    def run_off_loop(self, function: Callable[[], object]) -> None:
        self._workers.after_a_moment(lambda: self.resume(outcome_of(function)))

    def close(self) -> None:
        """Its work is done: closing waits for the last checkpoint."""


class _Committer:
    """Collects submissions until its moment, commits all of them together, and syncs in the background."""

    coalesces = True

    def __init__(self, shard: Shard, workers: SimulatedWorkers, loop: SimulatedLoop, sync_s: float) -> None:
        self._shard, self._workers, self._loop, self._sync_s = shard, workers, loop, sync_s
        self._work: list[list[Submission] | Request] = []
        """In the order of the requests: writes behind a rotation belong to the next file."""
        self._due = self._closed = False
        self.outstanding = 0
        # Always several, so that records are read together: many other tests read single records.
        self.company = COMPANY
        loop.call_later(sync_s, self._sync)

    def expect(self) -> None:
        if not self._due:
            self._due = True
            self._workers.after_a_moment(self._do_all)

    def submit(self, submission: Submission) -> None:
        if self._work and isinstance(self._work[-1], list):
            self._work[-1].append(submission)
        else:
            self._work.append([submission])
        self.expect()

    def write_now(self) -> None:
        """No caller may depend on it."""

    def rotate(self, rotation: Rotation) -> None:
        self._ask(rotation)

    def reopen(self, reopening: Reopening) -> None:
        self._ask(reopening)

    def locate(self, locating: Locating) -> None:
        self._ask(locating)

    def _ask(self, request: Request) -> None:
        self._shard.stage_coalesced()
        self._work.append(request)
        self.expect()

    def close(self) -> None:
        self._closed = True
        self._do_all()
        self._shard.writer.close()

    def _do_all(self) -> None:
        self._due = False
        self._shard.stage_coalesced()
        work, self._work = self._work, []
        for item in work:
            if isinstance(item, list):
                self._shard.writer.commit(item, self._shard.finalize)
            elif isinstance(item, Reopening):
                if self._shard.writer.can_reopen():
                    item.done()
            elif isinstance(item, Locating):
                item.done(self._shard.writer.locate())
            elif (error := self._shard.writer.rotate(item)) is None:
                item.done(item.position)
            else:
                item.failed(error)
        if self._work:
            self.expect()

    def _sync(self) -> None:
        if not self._closed:
            self._shard.writer.sync()
            self._loop.call_later(self._sync_s, self._sync)
