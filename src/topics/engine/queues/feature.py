"""Queues as checkpoints and recovery meet them (`engine.features`).

What a snapshot keeps of a queue is what its log would rebuild. With durable leases that is everything; without, it is
the jobs that were appended with a delay, and the number of dead letters. Leases, counts of deliveries and the delays of
nacks are then lost in any restart, which is the same as if every lease had expired.
"""

from collections.abc import Callable
from itertools import chain

import msgspec

from topics.core.config import TopicType
from topics.core.leases import Lease
from topics.engine.core import EngineCore
from topics.engine.features import Rebuild
from topics.engine.queues.jobs import TopicJobs
from topics.engine.queues.state import Queue, find_queue, queue_of
from topics.engine.state.tags import SeqRange, as_ranges
from topics.engine.topic import Topic
from topics.formats.frame import Frame, FrameKind
from topics.formats.queue import (
    PART_NAME,
    Arrival,
    Ending,
    LeaseEvent,
    LeaseState,
    MoveReason,
    QueuePart,
    decode_arrival,
    decode_delay,
    decode_departure,
    decode_lease,
    decode_part,
    encode_part,
)


class QueueFeature:
    name = PART_NAME
    kinds = frozenset((FrameKind.LEASE, FrameKind.DELAY, FrameKind.ARRIVAL, FrameKind.DEPARTURE))

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._arrivals: list[Arrival] = []
        """Moves found in the log. Those whose other half is missing are finished by `settle`."""
        self.freed: list[Callable[[Queue], None]] = []
        """Told of a queue whose workers may have lost jobs that they held (`engine.queues.dispatch`)."""
        core.applier.deleted.append(self._deleted)
        core.gone.append(self._gone)

    # Recovery

    def replay(self, topic: Topic, frame: Frame, rebuild: Rebuild) -> None:
        if frame.kind is FrameKind.ARRIVAL:
            # The records themselves were appended by whoever reads the log.
            self._arrivals.append(decode_arrival(frame.body)[0])
        elif frame.kind is FrameKind.DEPARTURE:
            reason, _, ranges = decode_departure(frame.body)
            self.depart(topic, reason, ranges)
        elif frame.kind is FrameKind.DELAY:
            ready, first, last = decode_delay(frame.body)
            self.delay(topic, first, last, self._core.time.resumed(ready))
        else:
            self._replay_lease(topic, frame)

    def _replay_lease(self, topic: Topic, frame: Frame) -> None:
        event, ending, node, claims, seqs = decode_lease(frame.body)
        book = queue_of(topic, self._core).book
        time = self._core.time.resumed(ending) if ending.time else 0
        if event is LeaseEvent.CLAIMED:
            book.claim([Lease(seq, node, token, time, deliveries) for seq, token, deliveries in claims])
        elif event is LeaseEvent.EXTENDED:
            book.extend(seqs, time)
        else:
            book.release(seqs, time)

    def may_sleep(self, topic: Topic) -> bool:
        return False

    def settle(self) -> None:
        """Finishes moves that a crash has cut in two, then puts every queue in order."""
        core = self._core
        for reason, source_id, seqs in self._arrivals:
            source = core.topic_at(source_id)
            if source is not None:
                jobs = TopicJobs(source, core.reader)
                left_behind = [seq for seq in seqs if jobs.is_live(seq)]
                self.depart(source, reason, as_ranges(left_behind, source.head + 1))
        self._arrivals = []
        in_flight = 0
        for topic in core.topics.values():
            queue = find_queue(topic)
            if queue is not None:
                queue.book.rebuild(queue.jobs.is_live)
                in_flight += queue.book.in_flight
        # Queues that the log deletes further on may have been counted on the way here.
        core.totals.in_flight.total = in_flight

    # Snapshots

    def save(self, topic: Topic) -> bytes:
        queue = find_queue(topic)
        if queue is None or topic.config.type is not TopicType.QUEUE:
            return b""
        part = _durable_part(queue) if leases_are_logged(topic) else _plain_part(queue)
        return encode_part(self._told(part)) if part != QueuePart() else b""

    def _told(self, part: QueuePart) -> QueuePart:
        """Every moment as the clock on the wall has it, and what that clock says now."""
        time = self._core.time
        ahead = time.wall() - time.steady()
        return QueuePart(
            part.dead_lettered,
            [(seq, ready_at + ahead) for seq, ready_at in part.delayed],
            [msgspec.structs.replace(lease, deadline=lease.deadline + ahead) for lease in part.leases],
            part.delivered,
            time.wall(),
        )

    def load(self, topic: Topic, part: bytes) -> None:
        saved = decode_part(part)
        book = queue_of(topic, self._core).book
        book.dead_lettered = saved.dead_lettered
        book.delayed = {seq: self._resumed(ready_at, saved) for seq, ready_at in saved.delayed}
        book.delivered = dict(saved.delivered)
        for lease in saved.leases:
            deadline = self._resumed(lease.deadline, saved)
            book.leases[lease.seq] = Lease(lease.seq, lease.node, lease.token, deadline, lease.deliveries)

    def _resumed(self, told: int, part: QueuePart) -> int:
        lasts_ms = max(told - part.told_ms, 0) if part.told_ms else None
        return self._core.time.resumed(Ending(told, lasts_ms))

    # What live operations do as well

    def depart(self, topic: Topic, reason: MoveReason, ranges: list[SeqRange]) -> int:
        """Takes records away that are in another topic now."""
        removed = self._core.applier.delete(topic, 0, ranges)
        if reason is MoveReason.DEAD_LETTER and removed:
            queue_of(topic, self._core).book.dead_lettered += removed
        return removed

    def delay(self, topic: Topic, first: int, last: int, ready_at: int) -> None:
        """Holds jobs back that were just appended."""
        queue_of(topic, self._core).book.delay(range(first, last + 1), ready_at)

    def _gone(self, topic: Topic) -> None:
        queue = find_queue(topic)
        if queue is not None:
            queue.book.uncount()

    def _deleted(self, topic: Topic, before_seq: int, ranges: list[SeqRange]) -> None:
        queue = find_queue(topic)
        if queue is not None:
            queue.book.forget(before_seq, ranges)
            if queue.workers:
                for told in self.freed:
                    told(queue)


def leases_are_logged(topic: Topic) -> bool:
    """Whether claims, extensions and releases go to the log; they are then as durable as the topic's class."""
    config = topic.config
    return config.leases_durable and config.durability.logged


def _durable_part(queue: Queue) -> QueuePart:
    book = queue.book
    # What is leaving has not left: until its frame is in the log, the lease holds.
    leases = chain(book.leases.values(), book.leaving.values())
    states = [LeaseState(lease.seq, lease.node, lease.token, lease.deadline, lease.deliveries) for lease in leases]
    return QueuePart(book.dead_lettered, list(book.delayed.items()), states, list(book.delivered.items()))


def _plain_part(queue: Queue) -> QueuePart:
    book = queue.book
    appended = [(seq, ready_at) for seq, ready_at in book.delayed.items() if seq not in book.delivered]
    return QueuePart(book.dead_lettered, appended)
