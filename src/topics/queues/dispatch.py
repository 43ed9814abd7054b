"""Job dispatch: distributes jobs over claims and push workers, in fair shares, and wakes waiters at lease expiry.

A pass serves one cohort. Without a window (`claim_jitter_ms` 0) each claim is a cohort, and the waiting workers are
one. With a window, the first claim opens it, or the first job that a worker waits for, and all claims until it closes
join. A cohort's jobs are divided in proportion to the requested numbers.

A worker that got less than it can hold waits for the topic's next change. While there are workers, each queue has one
alarm, for the next time at which a job or a worker's capacity becomes free.
"""

from collections.abc import Callable, Container, Sequence
from functools import partial
from struct import unpack

from topics.engine.background_jobs import Background
from topics.engine.core import EngineCore
from topics.engine.topic import Topic
from topics.engine.write_path import Change
from topics.log.commit_requests import AT_ONCE, CommitTiming
from topics.log.frame import FrameKind
from topics.model.errors import CorruptSegmentError, ShuttingDownError, ThrottledError, TopicNotFoundError, TopicsError
from topics.model.limits import clamp_lease_ms
from topics.queues.claim_limits import RateWindow, room_for_leases
from topics.queues.leases import ClaimedJob, Lease, LeaseTable, Taken
from topics.queues.queue_frames import (
    Ending,
    JobsFailed,
    LeaseEvent,
    encode_claims,
    encode_event,
    encode_lease_change,
)
from topics.queues.queue_state import (
    Alarms,
    Cut,
    Demand,
    PollClaim,
    Queue,
    Worker,
    claimed_jobs,
    execute_cut,
    leases_are_logged,
    note_failures,
    plan_cut,
    tags_in,
)
from topics.queues.tag_shares import LOOKED_MAX, WAITING_MAX, TagShares

# Divides jobs among claims fairly, in proportion to the requested numbers. Pure.


def shares(available: int, requested: Sequence[int]) -> list[int]:
    """The number of jobs for each claim: at most as many as requested, and none is left while a claim wants more.

    If there are too few, each gets its proportional part. The remainder of the rounding goes to the claims that lost
    most by it, one each, earlier claims first.
    """
    total = sum(requested)
    if available >= total:
        return list(requested)
    if not available:
        return [0] * len(requested)
    given = [available * wish // total for wish in requested]
    left = available - sum(given)
    by_remainder = sorted(range(len(requested)), key=lambda place: -(available * requested[place] % total))
    for place in by_remainder[:left]:
        given[place] += 1
    return given


def deal(jobs: Sequence[int], given: Sequence[int]) -> list[list[int]]:
    """Assigns jobs to workers round-robin, so that all begin with the oldest. `given` adds up to the number of jobs."""
    hands: list[list[int]] = [[] for _ in given]
    waiting = [(hand, share) for hand, share in zip(hands, given, strict=True) if share]
    place = 0
    while waiting:
        for hand, _ in waiting:
            hand.append(jobs[place])
            place += 1
        waiting = [(hand, share) for hand, share in waiting if len(hand) < share]
    return hands


_RETRY_MS = 100
_PUSH_BYTES = 1024 * 1024
"""Bytes pushed to a worker at a time, by the mean size of the topic's jobs; a single job always fits."""
_CLAIM_BYTES = 64 * 1024 * 1024
"""Bytes of the answer to one claim, by the same rule: a claim of a thousand large jobs must not fill the memory."""
_DAMAGED_RETRY_MS = 60_000
"""The delay of an unreadable job: others get their turn, and each retry is reported again."""

Bury = Callable[[Topic, Queue, list[int], Callable[[], None]], None]
"""Moves jobs that exceeded their deliveries to the dead letter topic; they are `leaving` already. Calls back once each
of them has moved or stays for now."""


class _AfterBurial:
    """A claim that is answered after its dead jobs have moved to the dead letter topic. Implements `Demand`."""

    def __init__(self, claim: PollClaim, queue: Queue, give_back: Callable[[Queue, list[Lease]], None]) -> None:
        self.node, self.lease_ms, self.requested = claim.node, claim.lease_ms, claim.requested
        self._claim = claim
        self._queue = queue
        self._give_back = give_back
        self._answer: Callable[[], None] | None = None
        self._buried = False

    def deliver(self, topic: str, jobs: list[ClaimedJob], ready: int, timing: CommitTiming) -> bool:
        def answer() -> None:
            if not self._claim.deliver(topic, jobs, self._queue.counters[0], timing):
                leases = self._queue.lease_table.leases
                self._give_back(self._queue, [leases[job.seq] for job in jobs if job.seq in leases])

        self._when_buried(answer)
        return True

    def refuse(self, error: TopicsError) -> None:
        self._when_buried(lambda: self._claim.refuse(error))

    def _when_buried(self, answer: Callable[[], None]) -> None:
        if self._buried:
            answer()
        else:
            self._answer = answer

    def buried(self) -> None:
        self._buried = True
        if self._answer is not None:
            self._answer()


class _LeaseChange(Change):
    """The change is invisible to followers of the topic."""

    __slots__ = ()
    wakes = False


class Dispatcher:
    def __init__(self, core: EngineCore, alarms: Alarms, background: Background, bury: Bury) -> None:
        self._core = core
        self._alarms = alarms
        self._background = background
        self._bury = bury
        self._began = core.steady()

    # Claims

    def claim(self, queue: Queue, demand: PollClaim) -> None:
        """Serves a claim immediately, or with its cohort."""
        jitter_ms = queue.jobs.topic.config.claim_jitter_ms
        if not jitter_ms:
            self._serve(queue, [demand])
            return
        queue.waiting.append(demand)
        self._open_window(queue, jitter_ms)

    def refresh(self, queue: Queue) -> int:
        """Expires leases and delays of a queue; returns the current time. A standby leaves that to its primary."""
        core, topic, lease_table = self._core, queue.jobs.topic, queue.lease_table
        if topic.config.ttl_ms:
            core.expire(topic)
        lost = lease_table.forget_below(topic.evict_floor)
        now = core.steady()
        if core.path.follows:
            return now
        if lease_table.sweep(now) or lost:
            self.schedule(queue)
        return now

    def check(self, queue: Queue) -> None:
        """Checks that a change of the book can be logged. Call it before any decision."""
        topic = queue.jobs.topic
        if leases_are_logged(topic):
            # Claims and acknowledgements free space.
            self._core.path.check(topic, patient=True, frees=True)

    def change(
        self,
        queue: Queue,
        body: Callable[[], bytes],
        applied: Callable[[CommitTiming], None],
        undone: Callable[[TopicsError], None],
        failed: JobsFailed | None = None,
    ) -> None:
        """Changes the book: immediately, or through the log if leases are durable."""
        topic, path = queue.jobs.topic, self._core.path
        if self._logs(topic):
            frames = [(FrameKind.LEASE, body(), b"")]
            if failed is not None:
                frames.insert(0, (FrameKind.QUEUE, encode_event(failed), b""))
            path.log(_LeaseChange(path, topic, frames, applied, undone))
        else:
            applied(AT_ONCE)

    def _logs(self, topic: Topic) -> bool:
        return leases_are_logged(topic) and not self._core.closed and not topic.closing

    def release(
        self,
        queue: Queue,
        leases: Sequence[Lease],
        ready_at: int,
        then: Callable[[CommitTiming], None] = lambda timing: None,
        undone: Callable[[TopicsError], None] = lambda error: None,
        failed: JobsFailed | None = None,
    ) -> None:
        """Returns jobs to the queue; `failed` are failed ones, permanently if requested. The caller has called
        `check`."""
        seqs, lease_table = [lease.seq for lease in leases], queue.lease_table
        if self._logs(queue.jobs.topic):
            lease_table.leave(leases)

        def applied(timing: CommitTiming) -> None:
            # Without those that were deleted while this was on its way.
            left = [seq for seq in seqs if seq in lease_table.leaving or seq in lease_table.leases]
            if failed is not None:
                note_failures(lease_table, failed)
                self._core.memory.note(queue.jobs.topic)
            if failed is not None and failed.fatal:
                self._bury(queue.jobs.topic, queue, lease_table.condemn(left), lambda: then(timing))
            else:
                lease_table.release(left, ready_at)
                then(timing)
            self.schedule(queue)

        def refused(error: TopicsError) -> None:
            lease_table.stay(seqs, 0)
            undone(error)

        ending = self._core.time.ending(ready_at) if ready_at else Ending(0, 0)
        self.change(queue, lambda: encode_lease_change(LeaseEvent.RELEASED, ending, seqs), applied, refused, failed)

    # Passes

    def schedule(self, queue: Queue) -> None:
        """Schedules a pass for the waiting workers at the end of the tick."""
        if queue.workers and not queue.scheduled:
            queue.scheduled = True
            self._core.defer(lambda: self._pass(queue))

    def _pass(self, queue: Queue) -> None:
        queue.scheduled = False
        core, topic = self._core, queue.jobs.topic
        if not core.exists(topic):
            self.end(queue, TopicNotFoundError(topic.name))
            return
        if queue.window is not None:
            return
        queue.scheduled = True  # Jobs that become ready now are handled below.
        self.refresh(queue)
        queue.scheduled = False
        hungry = self._hungry(queue)
        if hungry and not queue.paused and queue.counters[0] > 0 and self._room(queue) != 0:
            if topic.config.claim_jitter_ms:
                self._open_window(queue, topic.config.claim_jitter_ms)
                return
            self._serve_workers(queue, hungry)
        self._wait(queue)

    def _hungry(self, queue: Queue) -> list[Worker]:
        return [worker for worker in queue.workers if worker.requested > 0]

    def _serve_workers(self, queue: Queue, cohort: Sequence[Demand]) -> None:
        """Serves a cohort with workers: errors are returned to claims; a worker is kept or ended."""
        try:
            self._serve(queue, cohort)
        except ThrottledError as error:
            _refuse(cohort, error)
            self._alarms.at(self._core.steady() + _RETRY_MS, lambda: self.schedule(queue))
        except TopicsError as error:
            _refuse(cohort, error)
            for worker in [demand for demand in cohort if isinstance(demand, Worker)]:
                worker.end(error)
            queue.workers = [worker for worker in queue.workers if not worker.closed]
        else:
            # Served workers come last the next time there are too few jobs for all.
            served = [demand for demand in cohort if isinstance(demand, Worker)]
            queue.workers = [worker for worker in queue.workers if worker not in served] + served

    def _open_window(self, queue: Queue, jitter_ms: int) -> None:
        if queue.window is None:
            queue.window = self._alarms.at(self._core.steady() + jitter_ms, lambda: self._close_window(queue))

    def _close_window(self, queue: Queue) -> None:
        queue.window = None
        waiting, queue.waiting = queue.waiting, []
        claims = [claim for claim in waiting if claim.requested]
        topic = queue.jobs.topic
        if not self._core.exists(topic):
            _refuse(claims, TopicNotFoundError(topic.name))
            self.end(queue, TopicNotFoundError(topic.name))
            return
        cohort: list[Demand] = [*claims, *(self._hungry(queue) if self._room(queue) != 0 else ())]
        if cohort:
            self._serve_workers(queue, cohort)
        self._wait(queue)

    def _wait(self, queue: Queue) -> None:
        """Waits for the next expiry and, if there were too few jobs, for the topic's next change."""
        if not queue.workers:
            return
        topic = queue.jobs.topic
        if not queue.watching and self._hungry(queue):
            queue.watching = True
            topic.notify_on_change(lambda: self._changed(queue))
        moment = queue.lease_table.next_change()
        if topic.config.max_per_second and self._room(queue) == 0 and queue.rate is not None:
            moment = queue.rate.next_room() if moment is None else min(moment, queue.rate.next_room())
        if queue.alarm is not None and queue.alarm.action is not None:
            if moment is not None and queue.alarm.due <= moment:
                return
            queue.alarm.cancel()
        queue.alarm = None if moment is None else self._alarms.at(moment, lambda: self._pass(queue))

    def _changed(self, queue: Queue) -> None:
        queue.watching = False
        self._pass(queue)

    def end(self, queue: Queue, error: TopicsError) -> None:
        """Ends the queue's service: notifies all waiting claims and workers."""
        waiting, queue.waiting = queue.waiting, []
        workers, queue.workers = queue.workers, []
        _refuse(waiting, error)
        for worker in workers:
            worker.end(error)

    # Serving

    def _serve(self, queue: Queue, cohort: Sequence[Demand]) -> None:
        core, topic, lease_table = self._core, queue.jobs.topic, queue.lease_table
        if core.closed:
            raise ShuttingDownError()
        self.check(queue)
        now = self.refresh(queue)
        config = topic.config
        room = self._room(queue, now) if config.max_per_second or config.max_leased else None
        if queue.paused or room == 0:
            for demand in cohort:
                demand.deliver(topic.name, [], queue.counters[0], AT_ONCE)
            return
        requested = self._requested_counts(topic, cohort)
        most = sum(requested) if room is None else min(sum(requested), room)
        bound = config.max_deliveries if config.dead_letter is not None else 0
        if config.fair_tags or queue.shares is not None:
            jobs, doomed = self._take_by_tag(queue, most, bound)
        else:
            jobs, doomed = lease_table.take(most, queue.jobs, bound, config.dead_letter is not None)
        if queue.rate is not None:
            queue.rate.add(now, len(jobs))
        # A cohort of one, the usual case, needs no division.
        hands = [jobs] if len(cohort) == 1 else deal(jobs, shares(len(jobs), requested))
        granted = [self._leases(queue, demand, hand, now) for demand, hand in zip(cohort, hands, strict=True)]
        if leases_are_logged(topic):
            lease_table.leave_unleased(jobs)
        else:
            for leases in granted:
                lease_table.claim(leases)
            self._core.memory.note(topic)
        if doomed:
            lease_table.leave_unleased(doomed)
        ready = queue.counters[0]
        damaged, queue.jobs.damaged = queue.jobs.damaged, None
        held: list[_AfterBurial] = []
        if doomed:
            held = [_AfterBurial(demand, queue, self.give_back) for demand in cohort if isinstance(demand, PollClaim)]
            answers = iter(held)
            cohort = [next(answers) if isinstance(demand, PollClaim) else demand for demand in cohort]
        for demand, leases in zip(cohort, granted, strict=True):
            if not leases and damaged is not None:
                demand.refuse(damaged)
            else:
                self._hand_over(queue, demand, leases, ready)
        if doomed:

            def buried() -> None:
                for claim in held:
                    claim.buried()

            self._bury(topic, queue, doomed, buried)
            self.schedule(queue)

    def _take_by_tag(self, queue: Queue, most: int, bound: int) -> Taken:
        """Takes jobs in fair shares of their tags, or ends that after a change of the config."""
        topic, table, shares = queue.jobs.topic, queue.lease_table, queue.shares
        buries = topic.config.dead_letter is not None
        if not topic.config.fair_tags:
            assert shares is not None
            queue.shares = table.ended = None
            table.put_back([seq for seq in shares.all_waiting() if self._is_ready(queue, seq)])
            return table.take(most, queue.jobs, bound, buries)
        if shares is None:
            shares = queue.shares = TagShares()
            table.ended = shares.end
            held = [*table.leases, *table.leaving]
            self._with_tags(queue, held, partial(_adopt, shares, table, held))
        found, doomed = table.take(LOOKED_MAX if shares.waiting < WAITING_MAX else 0, queue.jobs, bound, buries)
        by_priority = table.priorities.by_seq

        def tagged(tags: dict[int, bytes]) -> None:
            for seq in found:
                shares.add(seq, tags.get(seq, b""), by_priority.get(seq, 0))

        self._with_tags(queue, found, tagged)
        return Taken(shares.take(most, lambda seq: self._is_ready(queue, seq)), doomed)

    def _with_tags(self, queue: Queue, seqs: Sequence[int], then: Callable[[dict[int, bytes]], object]) -> None:
        """Reads the tags of jobs, in the background if they are in the cold folder."""
        if not seqs:
            return
        cut, reader = plan_cut(queue.jobs.topic, seqs), self._core.reader
        if not cut.cold:
            then(tags_in(cut, reader))
            return

        def read(outcome: object) -> None:
            then(outcome if isinstance(outcome, dict) else {})
            self.schedule(queue)

        self._background(lambda: tags_in(cut, reader), read, queue.jobs.topic.name)

    def _is_ready(self, queue: Queue, seq: int) -> bool:
        table = queue.lease_table
        there: tuple[Container[int], ...] = (table.leases, table.leaving, table.moving, table.delayed)
        return not any([seq in one for one in there]) and queue.jobs.is_live(seq)

    def _room(self, queue: Queue, now: int | None = None) -> int | None:
        """The number of jobs that the limits of the queue allow to hand out now; None without limits."""
        config = queue.jobs.topic.config
        room = room_for_leases(config, queue.lease_table)
        if not config.max_per_second:
            queue.rate = None
            return room
        if queue.rate is None:
            queue.rate = RateWindow(self._began)
        rate = queue.rate.room(self._core.steady() if now is None else now, config.max_per_second)
        return rate if room is None else min(rate, room)

    def _requested_counts(self, topic: Topic, cohort: Sequence[Demand]) -> list[int]:
        """The maximum number of jobs for each. Large jobs are pushed a few at a time: unread jobs of a worker are held
        in memory, and while it is behind it gets no more."""
        requested = [demand.requested for demand in cohort]
        if sum(requested) * topic.live_bytes <= _PUSH_BYTES * topic.live_count:
            return requested
        pushed = max(_PUSH_BYTES * topic.live_count // topic.live_bytes, 1)
        claimed = max(_CLAIM_BYTES * topic.live_count // topic.live_bytes, 1)
        for place, demand in enumerate(cohort):
            if isinstance(demand, Worker) and requested[place] > pushed:
                requested[place] = pushed
                demand.in_portions = True
            requested[place] = min(requested[place], claimed)
        return requested

    def _leases(self, queue: Queue, demand: Demand, hand: list[int], now: int) -> list[Lease]:
        """The new leases of some jobs."""
        if not hand:
            return []
        lease_ms = queue.jobs.topic.config.lease_ms if demand.lease_ms is None else clamp_lease_ms(demand.lease_ms)
        count, delivered, deadline = len(hand), queue.lease_table.delivered, now + lease_ms
        # Random, so that only the holder of a lease can use it.
        tokens = unpack(f"<{count}Q", self._core.entropy.token(8 * count))
        holder = demand if isinstance(demand, Worker) else None
        leases = [
            Lease(seq, demand.node, token, deadline, delivered.get(seq, 0) + 1 if delivered else 1, holder)
            for seq, token in zip(hand, tokens, strict=True)
        ]
        if holder is not None:
            holder.held.update([(lease.seq, lease) for lease in leases])
        return leases

    def _hand_over(self, queue: Queue, demand: Demand, leases: list[Lease], ready: int) -> None:
        topic, lease_table = queue.jobs.topic, queue.lease_table
        self._core.consumed(topic)
        if not leases:
            demand.deliver(topic.name, [], ready, AT_ONCE)
            return
        is_sorted = not lease_table.priorities.by_seq and queue.shares is None
        cut = plan_cut(topic, [lease.seq for lease in leases], is_sorted)
        if not leases_are_logged(topic):
            self._cut(queue, demand, leases, cut, ready, AT_ONCE)
            return

        def claimed(timing: CommitTiming) -> None:
            # Without those that were deleted while this was on its way.
            lease_table.claim([lease for lease in leases if lease.seq in lease_table.moving])
            self._core.memory.note(queue.jobs.topic)
            self._cut(queue, demand, leases, cut, ready, timing)
            # The deadline was not known when the pass that serves workers set its alarm.
            self._wait(queue)

        def failed(error: TopicsError) -> None:
            lease_table.withdraw(leases)
            demand.refuse(error)

        self.change(
            queue,
            lambda: encode_claims(
                self._core.time.ending(leases[0].deadline),
                demand.node,
                [(lease.seq, lease.token, lease.deliveries) for lease in leases],
            ),
            claimed,
            failed,
        )

    def _cut(
        self, queue: Queue, demand: Demand, leases: list[Lease], cut: Cut, ready: int, timing: CommitTiming
    ) -> None:
        reader = self._core.reader
        if cut.cold:
            self._background(
                lambda: execute_cut(cut, reader),
                lambda outcome: self._deliver(queue, demand, leases, outcome, ready, timing),
                queue.jobs.topic.name,
            )
            return
        outcome: object
        try:
            outcome = execute_cut(cut, reader)
        except TopicsError as error:
            outcome = error
        self._deliver(queue, demand, leases, outcome, ready, timing)

    def _deliver(
        self, queue: Queue, demand: Demand, leases: list[Lease], outcome: object, ready: int, timing: CommitTiming
    ) -> None:
        if not isinstance(outcome, list):
            self._unreadable(queue, demand, leases, outcome)
        elif not demand.deliver(
            queue.jobs.topic.name, claimed_jobs(leases, outcome, self._core.time.wall_time), ready, timing
        ):
            self.give_back(queue, leases)

    def _unreadable(self, queue: Queue, demand: Demand, leases: list[Lease], problem: object) -> None:
        """Handles unreadable jobs: delays them, frees the others immediately, and reports the error to the caller."""
        if not isinstance(problem, CorruptSegmentError):
            problem = problem if isinstance(problem, TopicsError) else TopicsError(f"jobs could not be read: {problem}")
            seqs = [lease.seq for lease in leases]
            first, last = min(seqs), max(seqs)
        else:
            first, last = int(str(problem.detail["from_seq"])), int(str(problem.detail["to_seq"]))
        damaged = [lease for lease in leases if first <= lease.seq <= last]
        self.give_back(queue, damaged, self._core.steady() + _DAMAGED_RETRY_MS)
        self.give_back(queue, [lease for lease in leases if lease not in damaged])
        demand.refuse(problem)
        self.schedule(queue)

    def give_back(self, queue: Queue, leases: Sequence[Lease], ready_at: int = 0) -> None:
        """Releases the leases that still hold, without a waiting caller."""
        held = [lease for lease in leases if queue.lease_table.leases.get(lease.seq) is lease]
        core, topic = self._core, queue.jobs.topic
        if not held or core.closed or not core.exists(topic):
            return
        try:
            self.check(queue)
        except TopicsError:
            return  # The log is read-only: the leases expire.
        self.release(queue, held, ready_at)


def _adopt(shares: TagShares, table: LeaseTable, held: Sequence[int], tags: dict[int, bytes]) -> None:
    for seq in held:
        if seq in table.leases or seq in table.leaving:
            shares.adopt(seq, tags.get(seq, b""))


def _refuse(cohort: Sequence[Demand], error: TopicsError) -> None:
    for demand in cohort:
        demand.refuse(error)
