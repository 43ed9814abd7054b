"""Disk threads: the executors that do file work while the event loop serves requests, and their stand-ins for tests.

A simulation passes workers that do the same work at times chosen by a seed.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from topics.engine.background_jobs import JobRunner, ThreadRunner
from topics.engine.core import EngineOptions
from topics.log.commit_thread import CommitThread
from topics.log.group_commit import Committer, InlineSyncPolicy, Shard

READERS = 3
"""Threads for reads of the cold folder or object store, for looking up tags in sealed segments, and for promotions and
proofs that take long. The topics of one key never have all of them (`background_jobs.FairBackground`)."""


class Workers(Protocol):
    def runner(self, name: str) -> JobRunner:
        """Runs jobs, one after the other."""
        ...

    def committer(self, shard: Shard, options: EngineOptions) -> Committer:
        """Writes a shard's log."""
        ...

    def background(self, work: Callable[[], object], then: Callable[[object], None]) -> None:
        """Reads, and passes the outcome, a result or an exception, to the loop."""
        ...

    def hold_back(self, held: bool) -> None:
        """Stops the committers from writing while sealing is too far behind."""
        ...

    def close(self) -> None:
        """Ends the readers. Callers close their runners and committers."""
        ...


class ThreadWorkers:
    """One thread for each runner and each committer, and a few readers. `heard` counts the requests of clients."""

    def __init__(self, loop: asyncio.AbstractEventLoop, heard: Callable[[], int] | None = None) -> None:
        self._loop = loop
        self._loop_syncs = None if heard is None else InlineSyncPolicy(heard)
        self._pool = ThreadPoolExecutor(READERS, "reader")
        self._committers: list[CommitThread] = []

    def runner(self, name: str) -> JobRunner:
        return ThreadRunner(name, self._loop.call_soon_threadsafe)

    def committer(self, shard: Shard, options: EngineOptions) -> Committer:
        loop, window_s, sync_s = self._loop, options.commit_window_us / 1e6, options.sync_interval_ms / 1e3
        committer = CommitThread(shard, loop.call_soon, loop.call_soon_threadsafe, window_s, sync_s, self._loop_syncs)
        self._committers.append(committer)
        return committer

    def background(self, work: Callable[[], object], then: Callable[[object], None]) -> None:
        loop = self._loop
        self._pool.submit(lambda: loop.call_soon_threadsafe(then, outcome_of(work)))

    def hold_back(self, held: bool) -> None:
        for committer in self._committers:
            committer.resume.clear() if held else committer.resume.set()

    def close(self) -> None:
        self._pool.shutdown()


def outcome_of(work: Callable[[], object]) -> object:
    """Returns the result of a function, or the exception that it raised."""
    try:
        return work()
    except Exception as error:
        return error
