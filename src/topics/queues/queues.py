"""Queues: jobs that are claimed, acknowledged and returned, on top of a topic's log. Delivery is at least once.

The rules of `Engine` apply: every method is called on the loop's thread, refusals before logging are raised and have no
effect, and every other outcome is passed to `done` exactly once. All methods raise TopicNotFoundError for a topic that
does not exist and NotAQueueError for one that is a plain log.

The clock is read only when a method is called: the next call finds an expired lease. An alarm is set only for a claim
window or a waiting push worker.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from heapq import nsmallest
from typing import NamedTuple

from topics.engine.background_jobs import Background
from topics.engine.core import EngineCore
from topics.engine.delete import delete_frames
from topics.engine.topic import Topic
from topics.engine.write_path import LogOperation
from topics.log.commit_requests import AT_ONCE, CommitTiming
from topics.log.frame import FrameKind
from topics.model.errors import (
    BatchTooLargeError,
    InvalidRequestError,
    NotAQueueError,
    ShuttingDownError,
    ThrottledError,
    TopicNotFoundError,
    TopicsError,
)
from topics.model.limits import clamp_delay_ms, clamp_lease_ms
from topics.model.topic_config import TopicType
from topics.queues.dead_letters import CreateTopic, DeadLetters, Mover
from topics.queues.dispatch import Dispatcher
from topics.queues.job_operations import JobDone, Jobs, PageDone, PauseDone, Results
from topics.queues.job_results import JobResult
from topics.queues.leases import (
    AckDone,
    AckRequest,
    AckResult,
    Cancel,
    ClaimDone,
    ClaimedJob,
    ClaimRequest,
    ExtendDone,
    ExtendRequest,
    ExtendResult,
    HeldRequest,
    Lease,
    LeaseInfo,
    LeasePage,
    NackDone,
    NackRequest,
    NackResult,
    QueueCounters,
    RedriveDone,
    RedriveRequest,
    WorkerRequest,
    parse_lease_id,
)
from topics.queues.queue_frames import JobFinished, JobsFailed, LeaseEvent, encode_event, encode_lease_change
from topics.queues.queue_state import (
    JOB_BYTES,
    Alarms,
    PollClaim,
    Queue,
    QueueFeature,
    Worker,
    find_queue,
    queue_of,
    ranges_of,
)

# Acknowledgements delete finished jobs. All acknowledgements of one queue in a tick become one delete.
#
# Otherwise each request would cost a frame, a transaction and a check of the queue's front. Gathered requests share
# one, and every request is still atomic: a delete is logged entirely or not at all.
#
# From their decision on their leases are `leaving`, so no other operation can change the jobs. Operations logged
# meanwhile come before them. Appends may (`WritePath.check`), unless a cap could evict another job instead of the one
# that a pending acknowledgement removes; every other write stages earlier acknowledgements first.

_JOBS_MAX = 1024
"""The maximum number of jobs of one delete: more would block the loop."""

_log = logging.getLogger(__name__)


class Asked(NamedTuple):
    """One request: the leases that it ends, the seqs without a lease, and the waiters to notify."""

    leases: list[Lease]
    skipped: list[int]
    done: AckDone
    finished: JobFinished | None = None
    """The result of its job."""


class Acks(LogOperation):
    """Deletes acknowledged jobs and their leases."""

    __slots__ = ("_asked", "_queue", "_ranges", "_schedule", "callers")

    def __init__(self, core: EngineCore, queue: Queue, asked: list[Asked], schedule: Callable[[Queue], None]) -> None:
        topic = queue.jobs.topic
        self._queue = queue
        self._asked = asked
        self._ranges = ranges_of([lease.seq for one in asked for lease in one.leases])
        self._schedule = schedule
        self.callers = len(asked)
        frames = list(delete_frames(core, topic, 0, self._ranges))
        if frames:
            results = [one.finished for one in asked if one.finished is not None]
            frames[:0] = [(FrameKind.QUEUE, encode_event(finished), b"") for finished in results]
        super().__init__(core.path, topic, frames)

    def apply(self, timing: CommitTiming) -> None:
        topic = self.topic
        for one in self._asked:
            if one.finished is not None:
                self._queue.results.put(one.finished)
        self.path.engine.applier.delete(topic, 0, self._ranges)
        ready, in_flight = self._queue.counters
        for leases, skipped, done, _ in self._asked:
            self.acknowledge(
                partial(_notify, done), AckResult(topic.name, len(leases), skipped, ready, in_flight, *timing)
            )
        if self._queue.workers:
            self._schedule(self._queue)

    def undo(self, error: TopicsError) -> None:
        for leases, _, done, _ in self._asked:
            self._queue.lease_table.stay([lease.seq for lease in leases], 0)
            _notify(done, error)


class _Group:
    """Acknowledgements of one tick for one queue."""

    __slots__ = ("asked", "jobs")

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.jobs = 0


class Acknowledger:
    """Gathers acknowledgements of all queues."""

    def __init__(self, core: EngineCore, schedule: Callable[[Queue], None]) -> None:
        self._core = core
        self._schedule = schedule
        self._groups: dict[Queue, _Group] = {}

    def acknowledge(self, queue: Queue, asked: Asked) -> None:
        """Logs an acknowledgement, alone or with the others of this tick. The caller has checked its leases and
        admission."""
        queue.lease_table.leave(asked.leases)
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
        elif shard.stage_pending is None:
            shard.stage_pending = partial(self._log_all, topic.shard)
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


def _notify(done: AckDone, outcome: AckResult | TopicsError) -> None:
    try:
        done(outcome)
    except Exception:
        # A failing callback of one caller must not block the answers of others.
        _log.exception("commit callback failed")


_PAGE_MAX = 1000
_REASON_BYTES_MAX = 1024


class Queues:
    def __init__(self, core: EngineCore, background: Background, create: CreateTopic) -> None:
        self._core = core
        self.alarms = Alarms(core.steady)
        """Without a loop, call `alarms.run_due` after moving the clock: it closes windows and serves waiting
        workers."""
        feature = QueueFeature(core)
        core.features.add(feature)
        self._letters = DeadLetters(core, Mover(core, feature), background, create)
        self._dispatcher = Dispatcher(core, self.alarms, background, self._letters.bury)
        self._acknowledger = Acknowledger(core, self._dispatcher.schedule)
        self._results = Results(core)
        self._jobs = Jobs(core, background, self._dispatcher, self._letters)
        feature.freed.subscribe(self._dispatcher.schedule)
        core.topic_removed.subscribe(self._topic_removed)
        core.jobs_ordered.subscribe(feature.order)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.alarms.start(loop)

    def stop(self) -> None:
        """Ends all waiting claims and workers."""
        self.alarms.stop()
        for topic in list(self._core.topics.values()):
            queue = find_queue(topic)
            if queue is not None:
                self._dispatcher.end(queue, ShuttingDownError())

    # Jobs

    def _topic_removed(self, topic: Topic) -> None:
        """Answers the claims that wait for their cohort."""
        queue = find_queue(topic)
        if queue is not None and queue.waiting:
            self._dispatcher.end(queue, TopicNotFoundError(topic.name))

    def claim(self, name: str, request: ClaimRequest, done: ClaimDone) -> Cancel:
        """Leases up to `max` jobs to a node: freed jobs first, then fresh ones, each in the order of seqs.

        Answered immediately, even if there are no jobs; with a `claim_jitter_ms`, when the window closes. The returned
        function cancels the claim: its jobs go to others.
        """
        queue = self._queue(name)
        self._check_node(request.node)
        self._core.check_accepting()
        demand = PollClaim(request.node, self._core.limits.clamp_claim(request.max), request.lease_ms, done)
        self._core.memory.check(queue.jobs.topic, JOB_BYTES * demand.requested)
        self._dispatcher.claim(queue, demand)
        return demand.cancel

    def ack(self, name: str, request: HeldRequest, done: AckDone) -> None:
        """Deletes jobs that the node holds; the others are skipped. As durable as an append of the topic's class.

        An `AckRequest` may bring the result of its job.
        """
        tokens = self._check_held(request)
        core, queue = self._core, self._queue(name)
        core.check_accepting()
        topic = queue.jobs.topic
        result = request.result if isinstance(request, AckRequest) else None
        if result is not None:
            self._results.check(queue, request.seqs, result)
        if core.path.logs_removals(topic):
            core.path.check(topic, patient=True, frees=True, overtakes=True)
        self._dispatcher.refresh(queue)
        leases, skipped = queue.lease_table.held(request.node, request.seqs, tokens)
        if not leases:
            done(AckResult(name, 0, skipped, *queue.counters))
            return
        finished = None if result is None else JobFinished(leases[0].seq, core.wall(), request.node, result)
        self._acknowledger.acknowledge(queue, Asked(leases, skipped, done, finished))

    def nack(self, name: str, request: NackRequest, done: NackDone) -> None:
        """Returns jobs that the node holds to the queue, immediately or after `delay_ms`."""
        tokens = self._check_held(request)
        queue = self._queue(name)
        self._check_failure(queue.jobs.topic, request)
        self._core.check_accepting()
        self._dispatcher.check(queue)
        now = self._dispatcher.refresh(queue)
        leases, skipped = queue.lease_table.held(request.node, request.seqs, tokens)

        def answer(timing: CommitTiming) -> None:
            moved = [lease.seq for lease in leases if not queue.jobs.is_live(lease.seq)] if request.fatal else []
            done(NackResult(name, len(leases), skipped, *queue.counters, *timing, len(moved)))

        if not leases:
            answer(AT_ONCE)
            return
        delay_ms = clamp_delay_ms(request.delay_ms)
        failed = self._failed(queue.jobs.topic, request, leases) if request.reason or request.fatal else None
        self._dispatcher.release(queue, leases, now + delay_ms if delay_ms else 0, answer, done, failed)

    def _check_failure(self, topic: Topic, request: NackRequest) -> None:
        reason = request.reason
        if len(reason) > _REASON_BYTES_MAX or len(reason.encode("utf-8", "replace")) > _REASON_BYTES_MAX:
            raise InvalidRequestError(
                f"reason: at most {_REASON_BYTES_MAX} bytes are allowed", field="reason", max=_REASON_BYTES_MAX
            )
        if request.fatal and topic.config.dead_letter is None:
            raise InvalidRequestError(
                "fatal: the queue has no dead letter topic. Set dead_letter in its config, or nack without fatal",
                field="fatal",
            )

    def _failed(self, topic: Topic, request: NackRequest, leases: Sequence[Lease]) -> JobsFailed:
        reason = request.reason
        try:
            self._core.memory.check(topic, len(reason) * len(leases))
        except ThrottledError:
            # The jobs must be returned anyway.
            reason = ""
        jobs = [(lease.seq, lease.deliveries) for lease in leases]
        return JobsFailed(self._core.wall(), request.node, reason, request.fatal, jobs)

    def extend(self, name: str, request: ExtendRequest, done: ExtendDone) -> None:
        """Sets the deadline of jobs that the node holds to `lease_ms` from now."""
        tokens = self._check_held(request)
        queue = self._queue(name)
        self._core.check_accepting()
        self._dispatcher.check(queue)
        time = self._core.time
        deadline = self._dispatcher.refresh(queue) + clamp_lease_ms(request.lease_ms)
        leases, skipped = queue.lease_table.held(request.node, request.seqs, tokens)
        seqs = [lease.seq for lease in leases]

        def extended(timing: CommitTiming) -> None:
            # A lease may have ended while this was being logged.
            held = [lease.seq for lease in queue.lease_table.extend(seqs, deadline)]
            lost = skipped + [seq for seq in seqs if seq not in held] if len(held) < len(seqs) else skipped
            done(ExtendResult(name, len(held), lost, dict.fromkeys(held, time.wall_time(deadline)), *timing))

        if not leases:
            extended(AT_ONCE)
            return
        ending = time.ending(deadline)
        self._dispatcher.change(queue, lambda: encode_lease_change(LeaseEvent.EXTENDED, ending, seqs), extended, done)

    def redrive(self, name: str, request: RedriveRequest, done: RedriveDone) -> None:
        """Moves jobs of this queue back from a topic of dead letters, the oldest first, atomically.

        Dead letters of this queue are identified by their meta. They return with their original meta, new seqs and no
        deliveries. Jobs that workers of the source hold, or that are delayed there, stay.
        """
        self._letters.redrive(self._queue(name).jobs.topic, request, done)

    def result(self, name: str, seq: int) -> JobResult:
        """The result of a job that is done, or the state of one that is in the queue."""
        queue = self._queue(name)
        return self._results.find(queue, seq, self._jobs.state_of(queue, seq))

    def wait_for_result(self, name: str, seq: int, waiter: Callable[[], None]) -> Callable[[], None]:
        """Calls the waiter once a job is gone; returns a function that cancels that."""
        return self._queue(name).results.wait(seq, waiter)

    # Workers

    def open_worker(
        self,
        name: str,
        request: WorkerRequest,
        push: Callable[[list[ClaimedJob]], None],
        ended: Callable[[TopicsError], None],
    ) -> Worker:
        """Registers a push worker; see `Worker` for the callbacks.

        The first push comes in the next tick at the earliest (without a loop: before this returns). `max` bounds its
        unsettled pushed jobs; claims of the same node do not count. The worker must be closed.
        """
        queue = self._queue(name)
        self._check_node(request.node)
        self._core.check_accepting()
        worker = Worker(
            request.node,
            self._core.limits.clamp_claim(request.max),
            request.lease_ms,
            push,
            ended,
            lambda: self._dispatcher.schedule(queue),
            lambda worker: self._close_worker(queue, worker),
        )
        queue.workers.append(worker)
        self._core.consumed(queue.jobs.topic)
        self._dispatcher.schedule(queue)
        return worker

    def _close_worker(self, queue: Queue, worker: Worker) -> None:
        if worker in queue.workers:
            queue.workers.remove(worker)
        self._dispatcher.give_back(queue, list(worker.held.values()))

    # Looking

    def counters(self, name: str) -> QueueCounters:
        """The current number of jobs in each state."""
        return self.counters_of(self._topic(name))

    def counters_of(self, topic: Topic) -> QueueCounters:
        queue = find_queue(topic)
        if queue is None:
            return QueueCounters(topic.live_count, 0, 0, 0)
        self._dispatcher.refresh(queue)
        lease_table = queue.lease_table
        return QueueCounters(
            lease_table.ready(topic.live_count), lease_table.in_flight, lease_table.held_back,
            lease_table.dead_lettered, queue.paused,
        )  # fmt: skip

    def in_flight(self) -> int:
        """The number of leases over all queues, without expiry: for gauges."""
        return self._core.totals.in_flight.total

    def list_leases(self, name: str, after: int = 0, limit: int = 100, node: str | None = None) -> LeasePage:
        """Leases by seq: up to `limit` after the seq `after`, of one node if given."""
        topic = self._topic(name)
        queue = find_queue(topic)
        if queue is None:
            return LeasePage(name, [], None)
        self._dispatcher.refresh(queue)
        limit = min(max(limit, 1), _PAGE_MAX)
        leases = queue.lease_table.leases
        behind = (seq for seq, lease in leases.items() if seq > after and (node is None or lease.node == node))
        seqs = nsmallest(limit + 1, behind)
        page = [leases[seq] for seq in seqs[:limit]]
        reported = self._core.time.wall_time
        infos = [LeaseInfo(lease.seq, lease.node, reported(lease.deadline), lease.deliveries) for lease in page]
        return LeasePage(name, infos, infos[-1].seq if len(seqs) > limit else None)

    def list_jobs(
        self, name: str, state: str, done: PageDone, *, tag: str | None = None, after: int = 0, limit: int = 100
    ) -> None:
        """Jobs of one state after the seq `after`. A page may be short or empty although there are more."""
        self._jobs.page(self._topic(name), state, tag, after, limit, done)

    # Single jobs

    def change_job(self, name: str, seq: int, verb: str, done: JobDone, dead: bool = False) -> None:
        """Retries, cancels, promotes or releases one job; JobNotFoundError if no job has that seq. `dead`: the job to
        cancel is a dead letter."""
        queue = self._queue(name)
        if verb == "retry":
            self._jobs.retry(queue.jobs.topic, seq, done)
        elif verb == "promote":
            self._jobs.promote(queue, seq, done)
        elif verb == "release":
            self._jobs.release(queue, seq, done)
        elif dead:
            self._jobs.cancel_dead(queue.jobs.topic, seq, done)
        else:
            self._jobs.cancel(queue, seq, done)

    def pause(self, name: str, paused: bool, done: PauseDone) -> None:
        """Pauses or resumes delivery of jobs, durably. Workers keep the jobs they hold."""
        queue = self._queue(name)
        self._core.check_accepting()
        self._jobs.pause(queue.jobs.topic, paused, done)

    # Helpers

    def _topic(self, name: str) -> Topic:
        topic = self._core.existing(name)
        if topic.config.type is not TopicType.QUEUE:
            raise NotAQueueError(name)
        return topic

    def _queue(self, name: str) -> Queue:
        topic = self._core.existing(name)
        if topic.closing:
            # Its delete frame is in flight and must be its last.
            raise TopicNotFoundError(name)
        if topic.config.type is not TopicType.QUEUE:
            raise NotAQueueError(name)
        return queue_of(topic, self._core)

    def _check_node(self, node: str) -> None:
        if not node:
            raise InvalidRequestError("node: must not be empty", field="node")
        most = self._core.limits.max_node_bytes
        if len(node) > most or len(node.encode("utf-8", "replace")) > most:
            raise InvalidRequestError(f"node: at most {most} bytes are allowed", field="node", max=most)

    def _check_held(self, request: HeldRequest) -> Sequence[int | None] | None:
        """Checks a request independently of the queue's state; returns its tokens."""
        self._check_node(request.node)
        most = self._core.limits.max_claim
        if len(request.seqs) > most:
            raise BatchTooLargeError(
                f"at most {most} seqs are allowed, not {len(request.seqs)}", seqs=len(request.seqs), max=most
            )
        if request.lease_ids is None:
            return None
        if len(request.lease_ids) != len(request.seqs):
            raise InvalidRequestError("lease_ids: must have as many entries as seqs", field="lease_ids")
        return [parse_lease_id(lease_id) for lease_id in request.lease_ids]
