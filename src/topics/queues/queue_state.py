"""Queue state of a topic: its leases, and the workers that wait for jobs.

Jobs in the log: finds live jobs and extracts their records.

Jobs are found on the loop, by flags only. Extraction reads only immutable state, so it may run on any thread; a thread
does it if the cold folder must be read.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import chain, pairwise
from typing import NamedTuple, Protocol

import msgspec

from topics.engine.apply import Marks, is_marked
from topics.engine.core import EngineCore
from topics.engine.features import Rebuild
from topics.engine.read import SeqRange, as_ranges
from topics.engine.topic import Block, Run, RunReader, Segment, Topic, first_live
from topics.log.commit_requests import CommitTiming
from topics.log.frame import Frame, FrameKind
from topics.log.segment import DELETED
from topics.log.segment_files import UNREADABLE, SegmentDamaged
from topics.model.errors import CorruptSegmentError, TopicsError
from topics.model.limits import MAX_U64
from topics.model.records import TRAIT_TAGS, words
from topics.model.topic_config import TopicType
from topics.queues.claim_limits import RateWindow
from topics.queues.job_order import PRIORITY_BYTES
from topics.queues.job_results import JobKeys, JobResults
from topics.queues.leases import ClaimDone, ClaimedJob, ClaimResult, Lease, LeaseTable
from topics.queues.queue_frames import (
    PART_NAME,
    Arrival,
    Ending,
    JobFailure,
    JobFinished,
    JobKeyed,
    JobOrder,
    JobsFailed,
    JobsPrioritized,
    LeaseEvent,
    LeaseState,
    MoveReason,
    QueuePart,
    QueuePaused,
    decode_arrival,
    decode_delay,
    decode_departure,
    decode_event,
    decode_lease,
    decode_part,
    encode_part,
)
from topics.queues.tag_shares import WAITING_BYTES, TagShares
from topics.system.events import Event
from topics.wire.record_slicing import Range, tag_texts

_DELETED = bytes((DELETED,))


class TopicJobs:
    """A topic's records as the jobs of its queue (`queues.leases.JobLog`)."""

    __slots__ = ("_reader", "damaged", "topic")

    def __init__(self, topic: Topic, reader: RunReader) -> None:
        self.topic = topic
        self._reader = reader
        self.damaged: CorruptSegmentError | None = None
        """The error of an unreadable segment that was skipped, to report to the caller."""

    def is_live(self, seq: int) -> bool:
        topic = self.topic
        if not topic.earliest <= seq <= topic.head:
            return False
        run = topic.run_from(seq)
        if run is None or run.first_seq > seq:
            return False
        try:
            flags = self._reader.flags(topic.id, run)
        except UNREADABLE:
            return True
        return flags is None or flags[seq - run.first_seq] != DELETED

    def live_from(self, seq: int, requested: int) -> tuple[list[int], int]:
        topic = self.topic
        found: list[int] = []
        seq = max(seq, topic.earliest)
        while requested:
            run = topic.run_from(seq)
            if run is None:
                return found, max(seq, topic.head + 1)
            first = run.first_seq
            try:
                flags = self._reader.flags(topic.id, run)
            except SegmentDamaged:
                self.damaged = CorruptSegmentError(topic.name, first, run.last_seq)
                seq = first + run.count
                continue
            lo = first_live(flags, max(seq - first, 0), run.count)
            hi = min(run.count, lo + requested)
            if flags is not None and lo < hi:
                end = flags.find(_DELETED, lo, hi)
                hi = end if end >= 0 else hi
            found += range(first + lo, first + hi)
            requested -= hi - lo
            seq = first + hi
        return found, seq


class Cut(NamedTuple):
    """The places of jobs: slices of runs, in the order of the seqs."""

    topic_name: str
    topic_id: int
    slices: list[tuple[Run, int, int]]
    places: list[int] | None
    """For jobs in another order than that of their seqs: the place of each in the slices."""

    @property
    def cold(self) -> bool:
        """Whether it reads from the cold folder, whose speed is unknown."""
        return any([isinstance(run, Segment) and run.cold and run.blocks is None for run, _, _ in self.slices])


def plan_cut(topic: Topic, seqs: Sequence[int], is_sorted: bool = True) -> Cut:
    """The places of the jobs just found; `is_sorted` states whether the seqs ascend."""
    places = None
    if not is_sorted:
        place_of = {seq: place for place, seq in enumerate(sorted(seqs))}
        places = [place_of[seq] for seq in seqs]
    slices: list[tuple[Run, int, int]] = []
    for first, last in ranges_of(seqs):
        seq = first
        while seq <= last:
            run = topic.run_from(seq)
            assert run is not None
            lo, hi = seq - run.first_seq, min(last + 1 - run.first_seq, run.count)
            slices.append((run, lo, hi))
            seq = run.first_seq + hi
    return Cut(topic.name, topic.id, slices, places)


def ranges_of(seqs: Sequence[int]) -> list[SeqRange]:
    """Distinct seqs of jobs as ranges; mostly they are consecutive."""
    first, last = min(seqs), max(seqs)
    return [(first, last)] if last - first == len(seqs) - 1 else as_ranges(seqs, MAX_U64)


def execute_cut(cut: Cut, reader: RunReader) -> list[bytes]:
    """The jobs' fragments, one for each seq. Raises CorruptSegmentError for the first that cannot be read."""
    fragments: list[bytes] = []
    for run, lo, hi in cut.slices:
        if isinstance(run, Block):
            fragments += _of_block(run, lo, hi)
            continue
        try:
            for view, view_lo, view_hi, _ in reader.views(cut.topic_id, run, lo, hi):
                text, bias = view.text, view.bias
                starts = [start - bias for start in view.rows[3 * view_lo : 3 * view_hi : 3].tolist()]
                ends = [*starts[1:], view.start(view_hi)]
                fragments += [bytes(text[start : end - 1]) for start, end in zip(starts, ends, strict=True)]
        except SegmentDamaged as damage:
            first, last = _within((damage.first, damage.last), lo, hi)
            raise CorruptSegmentError(cut.topic_name, run.first_seq + first, run.first_seq + last) from damage
    return fragments if cut.places is None else [fragments[place] for place in cut.places]


def tags_in(cut: Cut, reader: RunReader) -> dict[int, bytes]:
    """The tags of the jobs that have one, as JSON strings. Tags in a damaged segment are left out."""
    found: dict[int, bytes] = {}
    for run, lo, hi in cut.slices:
        if not run.traits & TRAIT_TAGS:
            continue
        try:
            for view, view_lo, view_hi, offset in reader.views(cut.topic_id, run, lo, hi):
                first = run.first_seq + offset
                found.update([(first + index, text) for index, text in tag_texts(view, view_lo, view_hi)])
        except SegmentDamaged:
            # The claim that gets such a job reports the damage.
            continue
    return found


def _of_block(block: Block, lo: int, hi: int) -> list[bytes]:
    """The fragments of jobs in one block in memory, without a view: most jobs are claimed while in such a block."""
    text, base = block.text, block.base
    if block.count == 1:
        return [bytes(text)]
    starts = words(block.rows)[3 * lo : 3 * hi + 1 : 3].tolist()
    if hi == block.count:
        starts.append(base + len(text) + 1)
    # An end points past the comma.
    return [bytes(text[start - base : end - base - 1]) for start, end in pairwise(starts)]


def _within(damaged: Range, lo: int, hi: int) -> Range:
    """The part of a slice that cannot be read; all of it where the damage does not name a range."""
    first, last = max(damaged[0], lo), min(damaged[1], hi - 1)
    return (first, last) if first <= last else (lo, hi - 1)


def claimed_jobs(
    leases: Sequence[Lease], fragments: Sequence[bytes], reported: Callable[[int], int]
) -> list[ClaimedJob]:
    """The jobs as delivered: the stored fragment with the lease inserted before its closing brace.

    All leases have the same deadline, which `reported` converts to wall time.
    """
    deadline = reported(leases[0].deadline)
    return [
        ClaimedJob(
            lease.seq, lease.token, deadline, lease.deliveries,
            b'%b,"lease_id":"lease_%016x","deadline":%d,"deliveries":%d}'
            % (fragment[:-1], lease.token, deadline, lease.deliveries),
        )
        for lease, fragment in zip(leases, fragments, strict=True)
    ]  # fmt: skip


# Alarms: scheduled actions that share one timer of the loop.
#
# Time is the engine's. Without a loop nothing runs by itself: the code that moves the clock calls `run_due`.

_log = logging.getLogger(__name__)


class Alarm:
    __slots__ = ("action", "due")

    def __init__(self, due: int, action: Callable[[], None]) -> None:
        self.due = due
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class Alarms:
    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0
        self._heap: list[tuple[int, int, Alarm]] = []
        self._order = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arm()

    def stop(self) -> None:
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def at(self, due: int, action: Callable[[], None]) -> Alarm:
        """Calls `action` once the time is `due`, in ms since 1970."""
        alarm = Alarm(due, action)
        self._order += 1
        heappush(self._heap, (due, self._order, alarm))
        self._arm()
        return alarm

    def run_due(self) -> None:
        """Runs all due actions."""
        now = self._now()
        while self._heap and self._heap[0][0] <= now:
            alarm = heappop(self._heap)[2]
            action, alarm.action = alarm.action, None
            if action is not None:
                try:
                    action()
                except Exception:
                    # A failure of one queue must not block the alarms of others.
                    _log.exception("queue timer failed")

    def _arm(self) -> None:
        while self._heap and self._heap[0][2].action is None:
            heappop(self._heap)
        if self._loop is None or not self._heap:
            return
        due = self._heap[0][0]
        if self._timer is not None:
            if self._armed_for <= due:
                return
            self._timer.cancel()
        self._armed_for = due
        self._timer = self._loop.call_later(max(due - self._now(), 1) / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.run_due()
        self._arm()


class Demand(Protocol):
    """A demand for jobs: one claim, or a push worker."""

    node: str
    lease_ms: int | None

    @property
    def requested(self) -> int:
        """The number of jobs it accepts now."""
        ...

    def deliver(self, topic: str, jobs: list[ClaimedJob], ready: int, timing: CommitTiming) -> bool:
        """Delivers jobs; returns False if the recipient is gone."""
        ...

    def refuse(self, error: TopicsError) -> None: ...


class PollClaim:
    """A claim that is answered once."""

    __slots__ = ("_done", "lease_ms", "node", "requested")

    def __init__(self, node: str, requested: int, lease_ms: int | None, done: ClaimDone) -> None:
        self.node = node
        self.requested = requested
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
        """Cancels the claim: no more jobs are delivered, and delivered ones are returned immediately."""
        self._done = None
        self.requested = 0


class Worker:
    """A push worker: it holds at most `max` jobs, and gets another for each that it finishes.

    Made by `Queues.open_worker`. `push` is called with newly leased jobs, never with an empty list; `ended` at most
    once, after the last job: the topic was deleted, the engine stops, or the log is read-only.
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
        """The unsettled jobs delivered to this worker; only they count against `max`."""
        self.paused = False
        self.closed = False
        self.in_portions = False
        """Whether it got less than it wanted, so that the next portion follows."""
        self._push = push
        self._ended = ended
        self._wake = wake
        self._close = close

    @property
    def requested(self) -> int:
        return 0 if self.paused or self.closed else self.max - len(self.held)

    def pause(self) -> None:
        """Pauses delivery while its connection is behind."""
        self.paused = True

    def resume(self) -> None:
        if self.paused and not self.closed:
            self.paused = False
            self._wake()

    def close(self) -> None:
        """Closes the worker: its unsettled jobs can be claimed again immediately."""
        if not self.closed:
            self.closed = True
            self._close(self)

    # For the queue

    def ended(self, seq: int) -> None:
        """Called when one of its leases ends."""
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
        """Damage and pressure are transient: the worker stays, and the queue retries."""

    def end(self, error: TopicsError) -> None:
        if not self.closed:
            self.closed = True
            self._ended(error)


JOB_BYTES = 400
"""Memory of a job that was leased, delayed or returned: its lease, and its places in dicts and heaps."""


class Queue:
    """The state of a queue besides its records."""

    __slots__ = (
        "alarm",
        "jobs",
        "keys",
        "lease_table",
        "paused",
        "rate",
        "results",
        "scheduled",
        "shares",
        "waiting",
        "watching",
        "window",
        "workers",
    )

    def __init__(self, topic: Topic, core: EngineCore) -> None:
        self.lease_table = LeaseTable(core.totals.in_flight, core.time.wall_time)
        self.jobs = TopicJobs(topic, core.reader)
        self.keys = JobKeys()
        self.results = JobResults()
        self.waiting: list[PollClaim] = []
        """Claims gathered by the open window."""
        self.window: Alarm | None = None
        self.workers: list[Worker] = []
        self.watching = False
        """Whether it waits for the topic's next change."""
        self.scheduled = False
        self.paused = False
        """Whether delivery is paused by request."""
        self.rate: RateWindow | None = None
        """Of a queue with `max_per_second`."""
        self.shares: TagShares | None = None
        """Of a queue with `fair_tags`."""
        self.alarm: Alarm | None = None
        """The alarm for the next expiry; set only while there are workers."""

    @property
    def memory_bytes(self) -> int:
        """The memory of jobs with a history, estimated."""
        lease_table = self.lease_table
        jobs = (
            len(lease_table.leases) + len(lease_table.leaving) + len(lease_table.delayed) + len(lease_table.delivered)
        )
        used = JOB_BYTES * jobs + lease_table.reason_bytes
        if self.results.by_seq:
            used += self.results.memory_bytes
        if lease_table.priorities.by_seq:
            used += PRIORITY_BYTES * len(lease_table.priorities.by_seq)
        if self.keys.by_seq:
            used += self.keys.memory_bytes
        return used if self.shares is None else used + WAITING_BYTES * self.shares.waiting

    @property
    def counters(self) -> tuple[int, int]:
        """Jobs that are ready, and jobs in flight."""
        return self.lease_table.ready(self.jobs.topic.live_count), self.lease_table.in_flight


def find_queue(topic: Topic) -> Queue | None:
    """A topic's queue, or None if it has no state yet."""
    return topic.parts.get(PART_NAME) if topic.parts is not None else None  # type: ignore[return-value]


def queue_of(topic: Topic, core: EngineCore) -> Queue:
    """A topic's queue; creates its state if necessary."""
    queue = find_queue(topic)
    if queue is None:
        queue = Queue(topic, core)
        if topic.parts is None:
            topic.parts = {}
        topic.parts[PART_NAME] = queue
    return queue


# Queues in checkpoints and recovery (`engine.features`).
#
# A snapshot contains the queue state that the log would rebuild. With durable leases that is all of it; without, it is
# the jobs appended with a delay, and the number of dead letters. Leases, delivery counts and nack delays are then lost
# in a restart, as if every lease had expired.


def note_failures(lease_table: LeaseTable, failed: JobsFailed) -> None:
    """Records the reasons of returned jobs."""
    for seq, deliveries in failed.jobs:
        lease_table.note_failure(seq, JobFailure(deliveries, failed.at_ms, failed.node, failed.reason, failed.fatal))


class QueueFeature:
    name = PART_NAME
    kinds = frozenset((FrameKind.LEASE, FrameKind.DELAY, FrameKind.ARRIVAL, FrameKind.DEPARTURE, FrameKind.QUEUE))

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._arrivals: list[Arrival] = []
        """Moves found in the log. Moves whose other half is missing are finished by `reconcile`."""
        self.freed: Event[Queue] = Event()
        """Emitted when workers of a queue may have lost leases (`queues.dispatch`)."""
        core.applier.deleted.subscribe(self._deleted)
        core.applier.marked.subscribe(self._marked)
        core.topic_removed.subscribe(self._topic_deleted)
        core.features.followed.subscribe(self._followed)

    # Recovery

    def replay(self, topic: Topic, frame: Frame, rebuild: Rebuild) -> None:
        if frame.kind is FrameKind.ARRIVAL:
            # The records themselves were appended by the caller that reads the log.
            self._arrivals.append(decode_arrival(frame.body)[0])
        elif frame.kind is FrameKind.DEPARTURE:
            reason, _, ranges = decode_departure(frame.body)
            self.depart(topic, reason, ranges)
        elif frame.kind is FrameKind.DELAY:
            ready, first, last = decode_delay(frame.body)
            self.delay(topic, first, last, self._core.time.resumed(ready))
        elif frame.kind is FrameKind.QUEUE:
            event = decode_event(frame.body)
            queue = queue_of(topic, self._core)
            if isinstance(event, QueuePaused):
                queue.paused = event.paused
            elif isinstance(event, JobsPrioritized):
                queue.lease_table.priorities.set(range(event.first, event.last + 1), event.priority)
            elif isinstance(event, JobKeyed):
                queue.keys.set(event.seq, event.key)
            elif isinstance(event, JobFinished):
                queue.results.put(event)
            else:
                note_failures(queue.lease_table, event)
        else:
            self._replay_lease(topic, frame)

    def _replay_lease(self, topic: Topic, frame: Frame) -> None:
        event, ending, node, claims, seqs = decode_lease(frame.body)
        lease_table = queue_of(topic, self._core).lease_table
        time = self._core.time.resumed(ending) if ending.time else 0
        if event is LeaseEvent.CLAIMED:
            for seq, token, deliveries in claims:
                before = lease_table.leases.get(seq)
                if before is not None and before.token != token and before.deliveries < deliveries:
                    # It was claimed again without being returned.
                    lease_table.note_expiry(before)
            lease_table.claim([Lease(seq, node, token, time, deliveries) for seq, token, deliveries in claims])
        elif event is LeaseEvent.EXTENDED:
            lease_table.extend(seqs, time)
        else:
            lease_table.release(seqs, time)

    def may_page_out(self, topic: Topic) -> bool:
        return False

    def reconcile(self) -> None:
        """Finishes moves that a crash interrupted, then ends the replay of every queue."""
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
                queue.lease_table.rebuild(queue.jobs.is_live)
                queue.keys.purge(queue.jobs.is_live)
                in_flight += queue.lease_table.in_flight
        # Queues that a later frame deletes may have been counted before.
        core.totals.in_flight.total = in_flight

    def _followed(self, topics: Sequence[Topic]) -> None:
        # The other half of a move comes with its own frame.
        self._arrivals = []
        for topic in topics:
            queue = find_queue(topic)
            if queue is not None and queue.lease_table.is_loose:
                queue.lease_table.rebuild(queue.jobs.is_live)
                self._core.memory.note(topic)

    # Snapshots

    def save(self, topic: Topic) -> bytes:
        queue = find_queue(topic)
        if queue is None or topic.config.type is not TopicType.QUEUE:
            return b""
        part = _durable_part(queue) if leases_are_logged(topic) else _plain_part(queue)
        return encode_part(self._with_wall_times(part)) if part != QueuePart() else b""

    def _with_wall_times(self, part: QueuePart) -> QueuePart:
        """All times by the wall clock, and its current time."""
        time = self._core.time
        ahead = time.wall() - time.steady()
        return QueuePart(
            part.dead_lettered,
            [(seq, ready_at + ahead) for seq, ready_at in part.delayed],
            [msgspec.structs.replace(lease, deadline=lease.deadline + ahead) for lease in part.leases],
            part.delivered,
            time.wall(),
            part.failures,
            part.paused,
            part.priorities,
            part.keys,
            part.results,
        )

    def load(self, topic: Topic, part: bytes) -> None:
        saved = decode_part(part)
        lease_table = queue_of(topic, self._core).lease_table
        lease_table.dead_lettered = saved.dead_lettered
        lease_table.delayed = {seq: self._resumed(ready_at, saved) for seq, ready_at in saved.delayed}
        lease_table.delivered = dict(saved.delivered)
        queue_of(topic, self._core).paused = saved.paused
        lease_table.priorities.load(saved.priorities)
        queue_of(topic, self._core).keys.load(saved.keys)
        queue_of(topic, self._core).results.load(saved.results)
        lease_table.load_failures(saved.failures)
        for lease in saved.leases:
            deadline = self._resumed(lease.deadline, saved)
            lease_table.leases[lease.seq] = Lease(lease.seq, lease.node, lease.token, deadline, lease.deliveries)

    def _resumed(self, reported: int, part: QueuePart) -> int:
        lasts_ms = max(reported - part.told_ms, 0) if part.told_ms else None
        return self._core.time.resumed(Ending(reported, lasts_ms))

    # Shared with live operations

    def depart(self, topic: Topic, reason: MoveReason, ranges: list[SeqRange]) -> int:
        """Removes records that are in another topic now."""
        removed = self._core.applier.delete(topic, 0, ranges)
        if reason is MoveReason.DEAD_LETTER and removed:
            queue_of(topic, self._core).lease_table.dead_lettered += removed
        return removed

    def delay(self, topic: Topic, first: int, last: int, ready_at: int) -> None:
        """Delays jobs that were just appended."""
        queue_of(topic, self._core).lease_table.delay(range(first, last + 1), ready_at)
        self._core.memory.note(topic)

    def order(self, topic: Topic, first: int, last: int, order: JobOrder) -> None:
        """Delays or prioritizes jobs that are about to be published, or gives one its key."""
        queue = queue_of(topic, self._core)
        queue.lease_table.order(range(first, last + 1), order)
        if order.unique_key is not None:
            queue.keys.set(first, order.unique_key, queue.jobs.is_live)
        self._core.memory.note(topic)

    def _topic_deleted(self, topic: Topic) -> None:
        queue = find_queue(topic)
        if queue is not None:
            queue.lease_table.uncount()

    def _deleted(self, topic: Topic, before_seq: int, ranges: list[SeqRange]) -> None:
        queue = find_queue(topic)
        if queue is not None:
            queue.lease_table.forget(before_seq, ranges)
            if queue.keys.by_key:
                queue.keys.forget_deleted(before_seq, ranges)
            if queue.results.waiters:
                queue.results.wake(queue.jobs.is_live)
            if queue.workers:
                self.freed.emit(queue)

    def _marked(self, topic: Topic, marks: Sequence[Marks]) -> None:
        queue = find_queue(topic)
        if queue is not None:
            queue.lease_table.forget_where(partial(is_marked, marks))
            if queue.keys.by_key:
                queue.keys.purge(queue.jobs.is_live)
            if queue.results.waiters:
                queue.results.wake(queue.jobs.is_live)
            if queue.workers:
                self.freed.emit(queue)


def leases_are_logged(topic: Topic) -> bool:
    """Returns whether claims, extensions and releases are logged; they are then as durable as the topic's class."""
    config = topic.config
    return config.leases_durable and config.durability.logged


def _durable_part(queue: Queue) -> QueuePart:
    lease_table = queue.lease_table
    # Jobs being removed are not removed yet: until their frame is in the log, the lease holds.
    leases = chain(lease_table.leases.values(), lease_table.leaving.values())
    states = [LeaseState(lease.seq, lease.node, lease.token, lease.deadline, lease.deliveries) for lease in leases]
    return QueuePart(
        lease_table.dead_lettered, list(lease_table.delayed.items()), states, list(lease_table.delivered.items()),
        failures=list(lease_table.failures.items()), paused=queue.paused,
        priorities=list(lease_table.priorities.by_seq.items()), keys=_live_keys(queue),
        results=list(queue.results.by_seq.values()),
    )  # fmt: skip


def _plain_part(queue: Queue) -> QueuePart:
    lease_table = queue.lease_table
    appended = [(seq, ready_at) for seq, ready_at in lease_table.delayed.items() if seq not in lease_table.delivered]
    priorities = list(lease_table.priorities.by_seq.items())
    return QueuePart(
        lease_table.dead_lettered,
        appended,
        paused=queue.paused,
        priorities=priorities,
        keys=_live_keys(queue),
        results=list(queue.results.by_seq.values()),
    )


def _live_keys(queue: Queue) -> list[tuple[int, str]]:
    return [(seq, key) for seq, key in queue.keys.by_seq.items() if queue.jobs.is_live(seq)]
