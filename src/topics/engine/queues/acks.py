"""Acknowledgements: jobs that are done are deleted. Those of one queue that come in the same tick are one delete.

Workers that each acknowledge some jobs at a time would otherwise cost a frame, a transaction and a look at the queue's
front each. Gathered, they cost one for all, and every request is still atomic: a delete is logged whole or not at all.

From the moment they are decided their leases are `leaving`, so nothing else can become of the jobs. What is logged
meanwhile comes before them. Appends may (`WritePath.check`), where no cap could take another job for the one that an
acknowledgement was to make room with; whoever else logs anything has those that came before it staged first.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from topics.core.errors import TopicsError
from topics.core.leases import Lease
from topics.engine.core import EngineCore
from topics.engine.queues.jobs import ranges_of
from topics.engine.queues.messages import AckDone, AckResult
from topics.engine.queues.state import Queue
from topics.engine.topic import Topic
from topics.engine.transaction import Transaction
from topics.engine.write.deleting import delete_frames
from topics.storage.timing import CommitTiming

_JOBS_MAX = 1024
"""Jobs of one delete: more at a time would keep the loop from others."""

_log = logging.getLogger(__name__)


class Asked(NamedTuple):
    """One request: the leases that it ends, the seqs that it named in vain, and whom to tell."""

    leases: list[Lease]
    skipped: list[int]
    done: AckDone


class Acks(Transaction):
    """Jobs are done: they are deleted, and their leases with them."""

    __slots__ = ("_asked", "_queue", "_ranges", "_schedule", "callers")

    def __init__(self, core: EngineCore, queue: Queue, asked: list[Asked], schedule: Callable[[Queue], None]) -> None:
        topic = queue.jobs.topic
        self._queue = queue
        self._asked = asked
        self._ranges = ranges_of([lease.seq for one in asked for lease in one.leases])
        self._schedule = schedule
        self.callers = len(asked)
        super().__init__(core.path, topic, delete_frames(core, topic, 0, self._ranges))

    def apply(self, timing: CommitTiming) -> None:
        topic = self.topic
        self.path.books.applier.delete(topic, 0, self._ranges)
        ready, in_flight = self._queue.counters
        for leases, skipped, done in self._asked:
            _tell(done, AckResult(topic.name, len(leases), skipped, ready, in_flight, *timing))
        if self._queue.workers:
            self._schedule(self._queue)

    def undo(self, error: TopicsError) -> None:
        for leases, _, done in self._asked:
            self._queue.book.stay([lease.seq for lease in leases], 0)
            _tell(done, error)


class _Group:
    """What one tick brought for one queue."""

    __slots__ = ("asked", "jobs")

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.jobs = 0


class Acknowledger:
    """Gathers acknowledgements for every queue there is."""

    def __init__(self, core: EngineCore, schedule: Callable[[Queue], None]) -> None:
        self._core = core
        self._schedule = schedule
        self._groups: dict[Queue, _Group] = {}

    def acknowledge(self, queue: Queue, asked: Asked) -> None:
        """Sends an acknowledgement on its way, by itself or with the others of this tick. Its leases hold, and whatever
        refuses it was asked."""
        queue.book.leave(asked.leases)
        topic = queue.jobs.topic
        shard = self._core.shards[topic.shard]
        if not shard.committer.coalesces or not self._may_wait(topic):
            self._log([asked], queue)
            return
        group = self._groups.get(queue)
        if group is None:
            group = self._groups[queue] = _Group()
        group.asked.append(asked)
        group.jobs += len(asked.leases)
        if group.jobs >= _JOBS_MAX:
            del self._groups[queue]
            self._log(group.asked, queue)
        elif shard.gathered is None:
            shard.gathered = partial(self._log_all, topic.shard)
            shard.committer.expect()

    def _may_wait(self, topic: Topic) -> bool:
        config = topic.staged_config
        return self._core.path.logs_removals(topic) and not (config.cap_records or config.cap_bytes)

    def _log_all(self, shard: int) -> None:
        groups, self._groups = self._groups, {}
        for queue, group in groups.items():
            if queue.jobs.topic.shard == shard:
                self._log(group.asked, queue)
            else:
                self._groups[queue] = group

    def _log(self, asked: list[Asked], queue: Queue) -> None:
        self._core.path.log(Acks(self._core, queue, asked, self._schedule))


def _tell(done: AckDone, outcome: AckResult | TopicsError) -> None:
    try:
        done(outcome)
    except Exception:
        # One caller's broken callback must not keep the answers of the others.
        _log.exception("a commit callback failed")
