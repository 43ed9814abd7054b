"""Queues: jobs that are claimed, acknowledged and given back, on top of a topic's log.

The rules of `Engine` hold: every method is called on the loop's thread, refusals that need no log are raised and leave
nothing behind, everything else is told to `done`, exactly once. All methods raise TopicNotFoundError for a topic that
does not exist and NotAQueueError for one that is a plain log.

Time is looked at when a method is called and at no other moment: a lease that has expired is found by whoever comes
next. Only where somebody waits, in a window or as a worker that jobs are pushed to, an alarm is set.
"""

import asyncio
from collections.abc import Callable, Sequence
from heapq import nsmallest

from topics.core.config import TopicType
from topics.core.errors import (
    BatchTooLargeError,
    InvalidRequestError,
    NotAQueueError,
    ShuttingDownError,
    TopicNotFoundError,
    TopicsError,
)
from topics.core.lease_ids import parse_lease_id
from topics.core.limits import clamp_delay_ms, clamp_lease_ms
from topics.engine.background import Background
from topics.engine.core import EngineCore
from topics.engine.queues.acks import Acknowledger, Asked
from topics.engine.queues.alarms import Alarms
from topics.engine.queues.dispatch import Dispatcher
from topics.engine.queues.feature import QueueFeature
from topics.engine.queues.messages import (
    AckDone,
    AckResult,
    Cancel,
    ClaimDone,
    ClaimedJob,
    ClaimRequest,
    ExtendDone,
    ExtendRequest,
    ExtendResult,
    HeldRequest,
    LeaseInfo,
    LeasePage,
    NackDone,
    NackRequest,
    NackResult,
    QueueCounters,
    RedriveDone,
    RedriveRequest,
    WorkerRequest,
)
from topics.engine.queues.moving import Mover
from topics.engine.queues.redrive import CreateTopic, DeadLetters
from topics.engine.queues.state import PollClaim, Queue, Worker, find_queue, queue_of
from topics.engine.topic import Topic
from topics.formats.queue import LeaseEvent, encode_lease_change
from topics.storage.timing import AT_ONCE, CommitTiming

_PAGE_MAX = 1000


class Queues:
    def __init__(self, core: EngineCore, background: Background, create: CreateTopic) -> None:
        self._core = core
        self.alarms = Alarms(core.steady)
        """Without a loop, call `alarms.run_due` after moving the clock: windows close there, and waiting workers look
        again."""
        feature = QueueFeature(core)
        core.features.add(feature)
        self._letters = DeadLetters(core, Mover(core, feature), background, create)
        self._dispatcher = Dispatcher(core, self.alarms, background, self._letters.bury)
        self._acknowledger = Acknowledger(core, self._dispatcher.schedule)
        feature.freed.append(self._dispatcher.schedule)
        core.delayed.append(feature.delay)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.alarms.start(loop)

    def stop(self) -> None:
        """Tells everyone who waits that there will be no more."""
        self.alarms.stop()
        for topic in list(self._core.topics.values()):
            queue = find_queue(topic)
            if queue is not None:
                self._dispatcher.end(queue, ShuttingDownError())

    # Jobs

    def claim(self, name: str, request: ClaimRequest, done: ClaimDone) -> Cancel:
        """Leases up to `max` jobs to a node: those that were freed first, then fresh ones, each in the order of seqs.

        Answered at once, also when there is nothing to claim; with a `claim_jitter_ms`, when the window closes. The
        function returned takes the wish back: jobs it would have got, or gets while nobody listens, go to others.
        """
        queue = self._queue(name)
        self._check_node(request.node)
        self._core.check_accepting()
        demand = PollClaim(request.node, self._core.limits.clamp_claim(request.max), request.lease_ms, done)
        self._dispatcher.claim(queue, demand)
        return demand.cancel

    def ack(self, name: str, request: HeldRequest, done: AckDone) -> None:
        """Deletes jobs that the node holds; the others are skipped. As durable as an append of the topic's class."""
        tokens = self._check_held(request)
        core, queue = self._core, self._queue(name)
        core.check_accepting()
        topic = queue.jobs.topic
        if core.path.logs_removals(topic):
            core.path.check(topic, patient=True, frees=True, overtakes=True)
        self._dispatcher.refresh(queue)
        leases, skipped = queue.book.held(request.node, request.seqs, tokens)
        if not leases:
            done(AckResult(name, 0, skipped, *queue.counters))
            return
        self._acknowledger.acknowledge(queue, Asked(leases, skipped, done))

    def nack(self, name: str, request: NackRequest, done: NackDone) -> None:
        """Gives jobs back that the node holds, at once or after `delay_ms`."""
        tokens = self._check_held(request)
        queue = self._queue(name)
        self._core.check_accepting()
        self._dispatcher.check(queue)
        now = self._dispatcher.refresh(queue)
        leases, skipped = queue.book.held(request.node, request.seqs, tokens)

        def answer(timing: CommitTiming) -> None:
            done(NackResult(name, len(leases), skipped, *queue.counters, *timing))

        if not leases:
            answer(AT_ONCE)
            return
        delay_ms = clamp_delay_ms(request.delay_ms)
        self._dispatcher.release(queue, leases, now + delay_ms if delay_ms else 0, answer, done)

    def extend(self, name: str, request: ExtendRequest, done: ExtendDone) -> None:
        """Sets the deadline of jobs that the node holds to `lease_ms` from now."""
        tokens = self._check_held(request)
        queue = self._queue(name)
        self._core.check_accepting()
        self._dispatcher.check(queue)
        time = self._core.time
        deadline = self._dispatcher.refresh(queue) + clamp_lease_ms(request.lease_ms)
        leases, skipped = queue.book.held(request.node, request.seqs, tokens)
        seqs = [lease.seq for lease in leases]

        def extended(timing: CommitTiming) -> None:
            # One may have ended while this was on its way.
            held = [lease.seq for lease in queue.book.extend(seqs, deadline)]
            lost = skipped + [seq for seq in seqs if seq not in held] if len(held) < len(seqs) else skipped
            done(ExtendResult(name, len(held), lost, dict.fromkeys(held, time.told(deadline)), *timing))

        if not leases:
            extended(AT_ONCE)
            return
        ending = time.ending(deadline)
        self._dispatcher.change(queue, lambda: encode_lease_change(LeaseEvent.EXTENDED, ending, seqs), extended, done)

    def redrive(self, name: str, request: RedriveRequest, done: RedriveDone) -> None:
        """Moves jobs of this queue back from a topic of dead letters, the oldest first, atomically.

        They are the records whose meta says that they came from this queue. They come with the meta they had, new seqs
        and no deliveries. Jobs that workers of the source hold, or that are delayed there, stay.
        """
        self._letters.redrive(self._queue(name).jobs.topic, request, done)

    # Workers

    def open_worker(
        self,
        name: str,
        request: WorkerRequest,
        push: Callable[[list[ClaimedJob]], None],
        ended: Callable[[TopicsError], None],
    ) -> Worker:
        """Registers a worker that jobs are pushed to; see `Worker` for the callbacks.

        The first push comes in the next tick at the earliest (without a loop: before this returns). `max` bounds the
        jobs it holds from here; claims of the same node do not count. It must be closed.
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
        """How many jobs are in which state, now."""
        return self.counters_of(self._topic(name))

    def counters_of(self, topic: Topic) -> QueueCounters:
        queue = find_queue(topic)
        if queue is None:
            return QueueCounters(topic.live_count, 0, 0, 0)
        self._dispatcher.refresh(queue)
        book = queue.book
        return QueueCounters(book.ready(topic.live_count), book.in_flight, book.held_back, book.dead_lettered)

    def in_flight(self) -> int:
        """Leases over all queues, without looking at the time: for gauges."""
        return self._core.totals.in_flight.total

    def list_leases(self, name: str, after: int = 0, limit: int = 100, node: str | None = None) -> LeasePage:
        """Who holds what, by seq: up to `limit` leases behind the seq `after`, of one node if one is given."""
        topic = self._topic(name)
        queue = find_queue(topic)
        if queue is None:
            return LeasePage(name, [], None)
        self._dispatcher.refresh(queue)
        limit = min(max(limit, 1), _PAGE_MAX)
        leases = queue.book.leases
        behind = (seq for seq, lease in leases.items() if seq > after and (node is None or lease.node == node))
        seqs = nsmallest(limit + 1, behind)
        page = [leases[seq] for seq in seqs[:limit]]
        told = self._core.time.told
        infos = [LeaseInfo(lease.seq, lease.node, told(lease.deadline), lease.deliveries) for lease in page]
        return LeasePage(name, infos, infos[-1].seq if len(seqs) > limit else None)

    # Helpers

    def _topic(self, name: str) -> Topic:
        topic = self._core.existing(name)
        if topic.config.type is not TopicType.QUEUE:
            raise NotAQueueError(name)
        return topic

    def _queue(self, name: str) -> Queue:
        topic = self._core.existing(name)
        if topic.closing:
            # The frame that deletes it is on its way, and must be its last.
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
        """Checks what a request says by itself; returns its tokens."""
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
