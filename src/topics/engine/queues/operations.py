"""Operations of queues on their way through the log."""

from collections.abc import Callable

from topics.core.errors import TopicsError
from topics.core.leases import Lease
from topics.engine.core import EngineCore
from topics.engine.operations import TopicOperation
from topics.engine.queues.messages import AckDone, AckResult
from topics.engine.queues.state import Queue
from topics.engine.tags import SeqRange
from topics.engine.topic import Topic
from topics.storage.commit import CommitTiming, Submission


class LeaseOperation(Submission):
    """A frame of the leases log. The book has changed already; only the answer waits for it."""

    __slots__ = ("_then", "_topic", "_undo")

    def __init__(
        self,
        topic: Topic,
        pieces: list[bytes],
        needs_sync: bool,
        then: Callable[[CommitTiming], None],
        undo: Callable[[TopicsError], None],
    ) -> None:
        super().__init__(pieces, needs_sync)
        self._topic = topic
        self._then = then
        self._undo = undo
        topic.sync_inflight += needs_sync

    def committed(self, timing: CommitTiming) -> None:
        self._topic.sync_inflight -= self.needs_sync
        self._then(timing)

    def failed(self, error: TopicsError) -> None:
        self._topic.sync_inflight -= self.needs_sync
        self._undo(error)


class AckOperation(TopicOperation):
    """Jobs are done: they are deleted, and their leases with them."""

    __slots__ = ("_done", "_leases", "_queue", "_ranges", "_schedule", "_skipped")

    def __init__(
        self,
        core: EngineCore,
        queue: Queue,
        pieces: list[bytes],
        needs_sync: bool,
        leases: list[Lease],
        ranges: list[SeqRange],
        skipped: list[int],
        schedule: Callable[[Queue], None],
        done: AckDone,
    ) -> None:
        # Every field at once instead of through two constructors: this is made for each acknowledgement there is.
        topic = queue.jobs.topic
        self._core = core
        self.topic = topic
        self.pieces = pieces
        self.size = sum([len(piece) for piece in pieces])
        self.needs_sync = needs_sync
        self.last_lsn = 0
        topic.sync_inflight += needs_sync
        self._queue = queue
        self._leases = leases
        self._ranges = ranges
        self._skipped = skipped
        self._schedule = schedule
        self._done = done

    def apply(self, timing: CommitTiming) -> None:
        self._core.applier.delete(self.topic, 0, self._ranges)
        ready, in_flight = self._queue.counters
        name, count = self.topic.name, len(self._leases)
        self._done(AckResult(name, count, self._skipped, ready, in_flight, timing.write_ms, timing.sync_ms))
        if self._queue.workers:
            self._schedule(self._queue)

    def undo(self, error: TopicsError) -> None:
        self._queue.book.stay([lease.seq for lease in self._leases], 0)
        self._done(error)
