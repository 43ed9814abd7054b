"""A queue's part of its topic: the book of leases, and everyone who waits for jobs."""

from collections.abc import Callable
from typing import Protocol

from topics.core.errors import TopicsError
from topics.core.leases import Lease, LeaseBook
from topics.engine.core import EngineCore
from topics.engine.queues.alarms import Alarm
from topics.engine.queues.jobs import TopicJobs
from topics.engine.queues.messages import ClaimDone, ClaimedJob, ClaimResult
from topics.engine.topic import Topic
from topics.formats.queue import PART_NAME
from topics.storage.timing import CommitTiming


class Demand(Protocol):
    """Somebody who wants jobs: one claim, or a worker that is pushed to."""

    node: str
    lease_ms: int | None

    @property
    def wanted(self) -> int:
        """How many jobs it would take now."""
        ...

    def deliver(self, topic: str, jobs: list[ClaimedJob], ready: int, timing: CommitTiming) -> bool:
        """Hands jobs over; False when nobody is there to take them any more."""
        ...

    def refuse(self, error: TopicsError) -> None: ...


class PollClaim:
    """A claim that is answered once."""

    __slots__ = ("_done", "lease_ms", "node", "wanted")

    def __init__(self, node: str, wanted: int, lease_ms: int | None, done: ClaimDone) -> None:
        self.node = node
        self.wanted = wanted
        self.lease_ms = lease_ms
        self._done: ClaimDone | None = done

    def deliver(self, topic: str, jobs: list[ClaimedJob], ready: int, timing: CommitTiming) -> bool:
        if self._done is None:
            return False
        self._done(ClaimResult(topic, jobs, ready, timing.write_ms, timing.sync_ms))
        return True

    def refuse(self, error: TopicsError) -> None:
        if self._done is not None:
            self._done(error)

    def cancel(self) -> None:
        """Nobody waits for the answer any more. What was not handed out yet is not; the rest goes back at once."""
        self._done = None
        self.wanted = 0


class Worker:
    """A worker that jobs are pushed to: it holds at most `max` of them, and gets another for each that it is done with.

    Made by `Queues.open_worker`. `push` is called with jobs as they become its own, never with none; `ended` at most
    once, when there will be no more: the topic was deleted, or the engine stops, or its log takes no more writes.
    """

    __slots__ = (
        "_close", "_ended", "_push", "_wake", "closed", "held", "in_portions", "lease_ms", "max", "node", "paused",
    )  # fmt: skip

    def __init__(
        self,
        node: str,
        most: int,
        lease_ms: int | None,
        push: Callable[[list[ClaimedJob]], None],
        ended: Callable[[TopicsError], None],
        wake: Callable[[], None],
        close: Callable[["Worker"], None],
    ) -> None:
        self.node = node
        self.max = most
        self.lease_ms = lease_ms
        self.held: dict[int, Lease] = {}
        """The jobs that were delivered here and are not settled yet: nobody else's count against `max`."""
        self.paused = False
        self.closed = False
        self.in_portions = False
        """Whether it got less than it wanted, so that the next portion is to follow."""
        self._push = push
        self._ended = ended
        self._wake = wake
        self._close = close

    @property
    def wanted(self) -> int:
        return 0 if self.paused or self.closed else self.max - len(self.held)

    def pause(self) -> None:
        """No more jobs for now: its connection is behind."""
        self.paused = True

    def resume(self) -> None:
        if self.paused and not self.closed:
            self.paused = False
            self._wake()

    def close(self) -> None:
        """The worker is gone: every job that was delivered here and is not settled can be claimed again at once."""
        if not self.closed:
            self.closed = True
            self._close(self)

    # For the queue

    def ended(self, seq: int) -> None:
        """One of its leases is over."""
        self.held.pop(seq, None)

    def deliver(self, topic: str, jobs: list[ClaimedJob], ready: int, timing: CommitTiming) -> bool:
        if self.closed:
            return False
        if jobs:
            self._push(jobs)
        if self.in_portions:
            self.in_portions = False
            self._wake()
        return True

    def refuse(self, error: TopicsError) -> None:
        """Damage and pressure pass: the worker stays, and the queue tries again."""

    def end(self, error: TopicsError) -> None:
        if not self.closed:
            self.closed = True
            self._ended(error)


class Queue:
    """Everything the engine knows of a queue besides its records."""

    __slots__ = ("alarm", "book", "jobs", "scheduled", "waiting", "watching", "window", "workers")

    def __init__(self, topic: Topic, core: EngineCore) -> None:
        self.book = LeaseBook(core.totals.in_flight)
        self.jobs = TopicJobs(topic, core.reader)
        self.waiting: list[PollClaim] = []
        """Claims gathered by the open window."""
        self.window: Alarm | None = None
        self.workers: list[Worker] = []
        self.watching = False
        """Whether the topic will tell of its next change."""
        self.scheduled = False
        self.alarm: Alarm | None = None
        """For the next moment at which time alone changes anything; set only while there are workers."""

    @property
    def counters(self) -> tuple[int, int]:
        """Jobs that are ready, and jobs in flight."""
        return self.book.ready(self.jobs.topic.live_count), self.book.in_flight


def find_queue(topic: Topic) -> Queue | None:
    """A topic's queue, if anything happened in it yet."""
    return topic.parts.get(PART_NAME) if topic.parts is not None else None  # type: ignore[return-value]


def queue_of(topic: Topic, core: EngineCore) -> Queue:
    """A topic's queue, which begins with the first thing that happens in it."""
    queue = find_queue(topic)
    if queue is None:
        queue = Queue(topic, core)
        if topic.parts is None:
            topic.parts = {}
        topic.parts[PART_NAME] = queue
    return queue
