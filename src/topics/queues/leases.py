"""Leases: which worker holds which job, lease expiry (visibility timeout), and which job is next. Pure.

A job is a record of the queue's log, identified by its seq. The book has entries only for jobs with a history:

| a job is | the entry |
|---|---|
| fresh: never delivered | none; the cursor has not passed it |
| leased to a node until a deadline | a `Lease` in `leases` |
| free again: its lease ended without an acknowledgement | its count in `delivered`, and a place in the free list |
| delayed until a time, by a nack or by its append | that time in `delayed`, and its count if it has one |
| leaving: its acknowledgement is being logged | its lease in `leaving` |
| moving: on its way to another topic, without a lease | its seq in `moving` |
| any of these, and it failed before | additionally its past failures in `failures` |
| any of these, with a priority other than 0 | additionally its priority in `priorities`; the cursor skips it |
| gone | nothing |

So a queue with ten million fresh jobs costs no more than an empty one. Lease expiry uses no timers here: `sweep` ends
the leases whose deadline has passed, and costs nothing if there are none. `queues.dispatch` sets an alarm for the next
deadline when a worker waits for pushed jobs.

A frame of the leases log is absolute (this seq, this holder, this deadline, this many deliveries), so that applying it
twice changes nothing.

The requests and results of queue operations are declared at the end of the module.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import NamedTuple, Protocol

import msgspec

from topics.model.errors import InvalidRequestError, TopicsError, quoted
from topics.model.limits import MIN_PRIORITY
from topics.queues.job_order import JobPriorities
from topics.queues.queue_frames import JobFailure, JobHistory, JobOrder

_DOOMED_MAX = 1000
"""The maximum number of exhausted jobs that one `take` finds: the next call finds the rest."""
_NONE = 1 << 64
_LOWEST = MIN_PRIORITY - 1
_AHEAD = 1024
"""So many jobs are examined at once where the cursor meets known ones only."""
_FAILURES_MAX = 3
"""The number of failures of a job that are kept, newest first."""
EXPIRED = "lease expired"
"""The reason of a failure that no worker reported."""
_STALE_MAX = 1024
"""Ended leases that may wait for their deadline, besides as many as there are leases, before they are swept out."""


class JobLog(Protocol):
    """The interface of the log that holds the jobs."""

    def is_live(self, seq: int) -> bool:
        """Returns whether the record still exists."""
        ...

    def live_from(self, seq: int, requested: int) -> tuple[list[int], int]:
        """Up to `requested` live seqs from `seq` on, ascending, and the seq to go on from; none at the end."""
        ...


class Holder(Protocol):
    """Callback interface for the end of a lease for any reason."""

    def ended(self, seq: int) -> None: ...


class Lease(msgspec.Struct, eq=False):
    """One delivery of one job."""

    seq: int
    node: str
    token: int
    deadline: int
    """In ms since 1970. The lease expires after this time, not at it."""
    deliveries: int
    """The number of deliveries of the job, including this one."""
    holder: Holder | None = None


class Taken(NamedTuple):
    """Jobs to deliver, and jobs that have exhausted their deliveries."""

    jobs: list[int]
    doomed: list[int]


class Held(NamedTuple):
    """The requested jobs that a node holds, and those that it does not hold."""

    leases: list[Lease]
    skipped: list[int]


class InFlight:
    """Jobs in flight over all lease tables."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class LeaseTable:
    """`in_flight` is the sum that includes the book's jobs in flight, updated once for each change."""

    __slots__ = (
        "_counted", "_deadlines", "_delays", "_floor", "_free", "_known_below", "_lowest", "_noted", "_order", "_sum",
        "_wall_time", "cursor", "dead_lettered", "delayed", "delivered", "ended", "failures", "leases", "leaving",
        "moving", "priorities", "reason_bytes",
    )  # fmt: skip

    def __init__(self, in_flight: InFlight | None = None, wall_time: Callable[[int], int] = int) -> None:
        self._sum = InFlight() if in_flight is None else in_flight
        self._counted = 0
        """The part of that sum that belongs to this book."""
        self.cursor = 0
        """The cursor: every live seq below it is or was known to the book."""
        self.leases: dict[int, Lease] = {}
        self.leaving: dict[int, Lease] = {}
        self.moving: set[int] = set()
        self.delivered: dict[int, int] = {}
        """Deliveries of jobs that are not leased now."""
        self.delayed: dict[int, int] = {}
        self.priorities = JobPriorities()
        self.ended: Callable[[int], None] | None = None
        """Called with each job whose lease ends, or was not granted; only for a queue with `fair_tags`."""
        self.failures: dict[int, JobHistory] = {}
        self.reason_bytes = 0
        """Characters of all reasons in it."""
        self.dead_lettered = 0
        self._wall_time = wall_time
        self._free: list[int] = []
        self._deadlines: list[tuple[int, int, list[Lease]]] = []
        """A heap with one entry for each claim or extension: the lowest deadline first. Ended leases stay until their
        deadline."""
        self._noted = 0
        """Leases in all entries of that heap together, ended ones included."""
        self._delays: list[tuple[int, int, Sequence[int]]] = []
        self._order = 0
        self._known_below = 0
        """Below it the cursor may find jobs that the book knows: after a restart it starts from the front."""
        self._floor = 0
        self._lowest = _NONE
        """A lower bound of the seqs of known jobs."""

    # Looking

    @property
    def in_flight(self) -> int:
        """Jobs that have a lease, acknowledged or not."""
        return len(self.leases) + len(self.leaving)

    @property
    def held_back(self) -> int:
        """Jobs that have no lease and cannot be given one now: delayed, or on their way to another topic."""
        return len(self.delayed) + len(self.moving)

    def _count(self) -> None:
        """Updates the sum; called after every change that may have started or ended a lease."""
        now = len(self.leases) + len(self.leaving)
        self._sum.total += now - self._counted
        self._counted = now

    def uncount(self) -> None:
        """Removes the jobs of a deleted queue from the sum, permanently."""
        self._sum.total -= self._counted
        self._sum, self._counted = InFlight(), 0

    def ready(self, live_count: int) -> int:
        """The number of live jobs that can be delivered now."""
        return live_count - self.in_flight - self.held_back

    def sweep(self, now: int) -> bool:
        """Ends leases whose deadline has passed and delays that are over; True when anything changed."""
        changed = False
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] < now:
            _, _, entry = heappop(deadlines)
            self._noted -= len(entry)
            over = [lease for lease in entry if self.leases.get(lease.seq) is lease and lease.deadline < now]
            if over:
                for lease in over:
                    self.note_expiry(lease)
                self.release([lease.seq for lease in over], 0)
                changed = True
        delays = self._delays
        while delays and delays[0][0] <= now:
            ready_at, _, seqs = heappop(delays)
            for seq in seqs:
                if self.delayed.get(seq) == ready_at:
                    del self.delayed[seq]
                    changed = True
                    if self.priorities.by_seq and self.priorities.push(seq):
                        continue
                    if seq < self.cursor or seq in self.delivered:
                        heappush(self._free, seq)
        return changed

    def next_change(self) -> int | None:
        """The next time at which a job may become free by expiry; None if there is none."""
        deadlines = self._deadlines
        while deadlines and not any(self.leases.get(lease.seq) is lease for lease in deadlines[0][2]):
            self._noted -= len(heappop(deadlines)[2])
        moments = [deadlines[0][0] + 1] if deadlines else []
        if self._delays:
            moments.append(self._delays[0][0])
        return min(moments, default=None)

    # Claiming

    def take(self, requested: int, log: JobLog, max_deliveries: int, buries: bool = False) -> Taken:
        """Takes jobs to deliver, the highest priority first, within it by seq, freed ones before fresh ones.

        `max_deliveries` of 0 is unlimited. `buries` states whether permanently failed jobs have a dead letter topic.
        Returned jobs are out of the free list and behind the cursor: they must be granted, moved or put back.
        """
        taken = Taken([], [])
        has_priorities = bool(self.priorities.by_seq)
        if has_priorities:
            self._take_known(taken, requested, log, max_deliveries, buries, partial(self.priorities.pop, 0))
        before = len(taken.jobs)
        if self._free:
            self._take_known(taken, requested, log, max_deliveries, buries, self._pop_free)
        freed = len(taken.jobs)
        if freed < requested:
            self._take_fresh(taken.jobs, requested, log)
        if freed > before and len(taken.jobs) > freed:
            taken.jobs[before:] = sorted(taken.jobs[before:])
        if has_priorities:
            self._take_known(taken, requested, log, max_deliveries, buries, partial(self.priorities.pop, _LOWEST))
            taken.doomed.sort()
        return taken

    def _pop_free(self) -> int | None:
        return heappop(self._free) if self._free else None

    def _take_known(
        self, taken: Taken, requested: int, log: JobLog, max_deliveries: int, buries: bool,
        pop: Callable[[], int | None],
    ) -> None:  # fmt: skip
        """Takes jobs that a list of ready jobs has; those that are not ready any more are dropped from it."""
        jobs, doomed = taken
        while len(jobs) < requested and len(doomed) < _DOOMED_MAX:
            seq = pop()
            if seq is None:
                return
            if seq in self.leaving or seq in self.moving or seq in self.leases or seq in self.delayed:
                continue
            if not log.is_live(seq):
                self.delivered.pop(seq, None)
                self._forget_failures(seq)
                self.priorities.forget(seq)
            elif self._is_doomed(seq, max_deliveries, buries):
                doomed.append(seq)
            else:
                jobs.append(seq)

    def _take_fresh(self, jobs: list[int], requested: int, log: JobLog) -> None:
        """Takes jobs behind the cursor that the book does not know."""
        ahead = 0
        while len(jobs) < requested:
            wanted = requested - len(jobs)
            fresh, cursor = log.live_from(self.cursor, wanted if wanted > ahead else ahead)
            if fresh and (
                self.delayed or self.leaving or self.moving or self.priorities.by_seq or fresh[0] < self._known_below
            ):
                fresh, found = [seq for seq in fresh if not self._knows(seq)], len(fresh)
                if len(fresh) > wanted:
                    cursor = fresh[wanted]
                    del fresh[wanted:]
                elif not fresh and found:
                    # A long stretch of delayed jobs: a claim of one job must not step through it one by one.
                    ahead, self.cursor = _AHEAD, cursor
                    continue
            self.cursor = cursor
            if not fresh:
                return
            jobs += fresh

    def _knows(self, seq: int) -> bool:
        return (
            seq in self.delayed
            or seq in self.priorities.by_seq
            or seq in self.leases
            or seq in self.delivered
            or seq in self.leaving
            or seq in self.moving
        )

    def claim(self, leases: list[Lease]) -> None:
        """Leases jobs returned by `take`, all until the same deadline; or replays the logged change."""
        self.leases.update([(lease.seq, lease) for lease in leases])
        for known in (self.delivered, self.delayed):
            if known:
                for lease in leases:
                    known.pop(lease.seq, None)
        if self.moving:
            self.moving.difference_update([lease.seq for lease in leases])
        if self.priorities.by_seq or self.ended is not None:
            self._lowest = min([self._lowest, *[lease.seq for lease in leases]])
        elif leases and leases[0].seq < self._lowest:
            self._lowest = leases[0].seq
        if leases:
            self._note(leases[0].deadline, leases)
        self._count()

    def put_back(self, jobs: Iterable[int]) -> None:
        """Puts undelivered jobs returned by `take` back into the free list."""
        priorities = self.priorities
        for seq in jobs:
            if not (priorities.by_seq and priorities.push(seq)):
                heappush(self._free, seq)

    def withdraw(self, leases: Sequence[Lease]) -> None:
        """Undoes a claim that could not be logged: it was never answered, so it does not count as a delivery."""
        for lease in leases:
            if lease.seq in self.moving:
                self.moving.discard(lease.seq)
                self.put_back((lease.seq,))
            if lease.holder is not None:
                lease.holder.ended(lease.seq)
        self._tell_ended([lease.seq for lease in leases])
        self._count()

    # Holding

    def held(self, node: str, seqs: Sequence[int], tokens: Sequence[int | None] | None) -> Held:
        """Finds the leases of a node; with tokens, only those whose token is the one given, if one is given."""
        leases = self.leases
        if tokens is None:
            # The usual case: a worker acknowledges all its jobs in time.
            mine = {seq: lease for seq in seqs if (lease := leases.get(seq)) is not None and lease.node == node}
            if len(mine) == len(seqs):
                return Held(list(mine.values()), [])
        found: dict[int, Lease] = {}
        skipped: list[int] = []
        for seq, token in zip(seqs, tokens or repeat(None), strict=False):
            lease = leases.get(seq)
            if lease is None or lease.node != node or seq in found or (token is not None and token != lease.token):
                skipped.append(seq)
            else:
                found[seq] = lease
        return Held(list(found.values()), skipped)

    def extend(self, seqs: Iterable[int], deadline: int) -> list[Lease]:
        """Sets a new deadline; returns the leases that still held."""
        held = [lease for seq in seqs if (lease := self.leases.get(seq)) is not None]
        for lease in held:
            lease.deadline = deadline
        self._note(deadline, held)
        return held

    def release(self, seqs: Iterable[int], ready_at: int) -> None:
        """Ends leases without an acknowledgement. The jobs become free, or are delayed until `ready_at` if that is
        set."""
        freed = []
        for seq in seqs:
            lease = self.leases.pop(seq, None) or self.leaving.pop(seq, None)
            if lease is not None:
                if lease.holder is not None:
                    lease.holder.ended(seq)
                self.delivered[seq] = lease.deliveries
            elif not ready_at:
                continue  # For a job that is already free the log repeats it.
            freed.append(seq)
        self._tell_ended(freed)
        self._count()
        if ready_at:
            self.delay(freed, ready_at)
        else:
            self.put_back(freed)

    def condemn(self, seqs: Iterable[int]) -> list[int]:
        """Ends leases of permanently failed jobs, which are moving to another topic from now on; returns the leased
        ones."""
        found = []
        for seq in seqs:
            lease = self.leases.pop(seq, None) or self.leaving.pop(seq, None)
            if lease is not None:
                if lease.holder is not None:
                    lease.holder.ended(seq)
                self.delivered[seq] = lease.deliveries
                found.append(seq)
        # Moves take seqs in their order, whatever order a worker named them in.
        found.sort()
        self._tell_ended(found)
        self.leave_unleased(found)
        self._count()
        return found

    # Failing

    def note_failure(self, seq: int, failure: JobFailure) -> None:
        """Records the reason of a failed delivery. A known failure, of this or an older delivery, changes nothing."""
        known = self.failures.get(seq)
        if known is None:
            self.failures[seq] = JobHistory(failure.at_ms, (failure,))
        elif failure.deliveries > known.last[-1].deliveries:
            kept = known.last[1 - _FAILURES_MAX :]
            self.failures[seq] = JobHistory(known.first_ms, (*kept, failure))
            if len(kept) < len(known.last):
                self.reason_bytes -= len(known.last[0].reason)
        else:
            return
        self.reason_bytes += len(failure.reason)

    def note_expiry(self, lease: Lease) -> None:
        """Records the expiry of a lease as a failure."""
        self.note_failure(lease.seq, JobFailure(lease.deliveries, self._wall_time(lease.deadline), lease.node, EXPIRED))

    def load_failures(self, histories: Iterable[tuple[int, JobHistory]]) -> None:
        """Restores the state from a snapshot."""
        self.failures = dict(histories)
        self.reason_bytes = sum([len(one.reason) for history in self.failures.values() for one in history.last])

    def _is_doomed(self, seq: int, max_deliveries: int, buries: bool) -> bool:
        if max_deliveries and self.delivered.get(seq, 0) >= max_deliveries:
            return True
        history = self.failures.get(seq) if buries else None
        return history is not None and history.fatal

    def _forget_failures(self, seq: int) -> None:
        history = self.failures.pop(seq, None)
        if history is not None:
            self.reason_bytes -= sum([len(one.reason) for one in history.last])

    def order(self, seqs: Sequence[int], order: JobOrder) -> None:
        """Delays or prioritizes new jobs."""
        if order.priority:
            self.priorities.set(seqs, order.priority)
            self._lowest = min(self._lowest, seqs[0])
        if order.ready_at:
            self.delay(seqs, order.ready_at)
        elif order.priority:
            self.put_back(seqs)

    def delay(self, seqs: Sequence[int], ready_at: int) -> None:
        """Delays jobs without a lease; they must not be in the free list."""
        if seqs:
            lowest = min(seqs)
            self._lowest = min(self._lowest, lowest)
            self.delayed.update(dict.fromkeys(seqs, ready_at))
            self._order += 1
            heappush(self._delays, (ready_at, self._order, seqs))

    # Leaving

    def leave(self, leases: Iterable[Lease]) -> None:
        """Marks leases as ending once the acknowledgement is logged: no other operation may change them from now on."""
        held, leaving = self.leases, self.leaving
        for lease in leases:
            seq = lease.seq
            del held[seq]
            leaving[seq] = lease
            if lease.holder is not None:
                lease.holder.ended(seq)

    def leave_unleased(self, seqs: Iterable[int]) -> None:
        """Marks jobs without a lease as moving to another topic, or to a worker once that is logged."""
        for seq in seqs:
            self.moving.add(seq)
            self._lowest = min(self._lowest, seq)

    def stay(self, seqs: Iterable[int], ready_at: int) -> None:
        """Undoes a change that could not be logged: leases hold again, and moves are retried at `ready_at`."""
        unleased = []
        for seq in seqs:
            lease = self.leaving.pop(seq, None)
            if lease is not None:
                self.leases[seq] = lease
                self._note(lease.deadline, [lease])
            elif seq in self.moving:
                self.moving.discard(seq)
                unleased.append(seq)
        self.delay(unleased, ready_at)

    def forget(self, before_seq: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Forgets deleted records, acknowledged or otherwise."""
        known = self._known_count()
        if not known:
            return
        if before_seq:
            self._forget_all([seq for seq in self._known_seqs() if seq < before_seq])
        for first, last in ranges:
            if last - first < known:
                self._forget_all(range(first, last + 1))
            else:
                self._forget_all([seq for seq in self._known_seqs() if first <= seq <= last])
        self._count()

    def forget_where(self, is_gone: Callable[[int], bool]) -> None:
        """Forgets many deleted records at once."""
        gone = [seq for seq in self._known_seqs() if is_gone(seq)]
        if gone:
            self._forget_all(gone)
            self._count()

    def forget_below(self, floor: int) -> bool:
        """Forgets evicted records below a floor; returns True if any was known. Cheap while the floor does not
        change."""
        if floor <= self._floor:
            return False
        self._floor = floor
        if floor <= self._lowest:
            return False
        known = self._known_seqs()
        lost = [seq for seq in known if seq < floor]
        self._forget_all(lost)
        self._count()
        self._lowest = min([seq for seq in known if seq >= floor], default=_NONE)
        return bool(lost)

    def _known_count(self) -> int:
        return self.in_flight + self.held_back + len(self.delivered) + len(self.priorities.by_seq)

    def _known_seqs(self) -> list[int]:
        return [
            *self.leases, *self.leaving, *self.moving, *self.delayed, *self.delivered, *self.priorities.by_seq
        ]  # fmt: skip

    def _forget_all(self, seqs: Iterable[int]) -> None:
        leases, leaving, delayed, delivered = self.leases, self.leaving, self.delayed, self.delivered
        if self.failures:
            seqs = list(seqs)
            for seq in seqs:
                self._forget_failures(seq)
        if self.priorities.by_seq:
            seqs = list(seqs)
            for seq in seqs:
                self.priorities.forget(seq)
        if self.ended is not None:
            seqs = list(seqs)
            self._tell_ended(seqs)
        for seq in seqs:
            if leaving.pop(seq, None) is not None:
                if delivered:
                    delivered.pop(seq, None)
            elif seq in leases:
                self._end(leases[seq])
            else:
                self.moving.discard(seq)
                delayed.pop(seq, None)
                delivered.pop(seq, None)

    def _tell_ended(self, seqs: Sequence[int]) -> None:
        if self.ended is not None:
            for seq in seqs:
                self.ended(seq)

    def _end(self, lease: Lease) -> None:
        del self.leases[lease.seq]
        if lease.holder is not None:
            lease.holder.ended(lease.seq)

    def _note(self, deadline: int, leases: list[Lease]) -> None:
        if not leases:
            return
        self._order += 1
        heappush(self._deadlines, (deadline, self._order, leases))
        self._noted += len(leases)
        if self._noted > 2 * len(self.leases) + _STALE_MAX:
            self._note_anew()

    def _note_anew(self) -> None:
        """Removes ended leases: a queue with long leases and fast workers would otherwise keep them for a day."""
        by_deadline: dict[int, list[Lease]] = {}
        for lease in self.leases.values():
            by_deadline.setdefault(lease.deadline, []).append(lease)
        self._deadlines = [(deadline, place, entry) for place, (deadline, entry) in enumerate(by_deadline.items())]
        self._order += len(by_deadline)
        heapify(self._deadlines)
        self._noted = len(self.leases)

    @property
    def is_loose(self) -> bool:
        """Whether replayed changes have left more behind in its lists than a sweep would leave."""
        return len(self._delays) + len(self._free) > 2 * self._known_count() + _STALE_MAX

    def rebuild(self, is_live: Callable[[int], bool]) -> None:
        """Ends replay: forgets missing records, and starts delivery from the front."""
        self._forget_all([seq for seq in {*self._known_seqs(), *self.failures} if not is_live(seq)])
        self._count()
        self.cursor = 0
        self._known_below = max(self._known_seqs(), default=-1) + 1
        self._lowest = min(self._known_seqs(), default=_NONE)
        by_priority = self.priorities.by_seq
        self._free = sorted(seq for seq in self.delivered if seq not in self.delayed and seq not in by_priority)
        self.priorities.rebuild(lambda seq: seq not in self.delayed and seq not in self.leases)
        delayed, self.delayed, self._delays = self.delayed, {}, []
        by_moment: dict[int, list[int]] = {}
        for seq, ready_at in delayed.items():
            by_moment.setdefault(ready_at, []).append(seq)
        for ready_at, seqs in by_moment.items():
            self.delay(seqs, ready_at)
        self._note_anew()


# The id of a lease on the wire: a random number that fences out any other holder.

_PREFIX = "lease_"
_DIGITS = 16
_HEX = frozenset("0123456789abcdef")


def format_lease_id(token: int) -> str:
    """A lease's id on the wire."""
    return f"{_PREFIX}{token:0{_DIGITS}x}"


def parse_lease_id(text: str, field: str = "lease_ids") -> int | None:
    """The token in a lease id; None for an empty one, which fences nothing. Other texts are refused."""
    if not text:
        return None
    digits = text.removeprefix(_PREFIX)
    if digits == text or not digits or len(digits) > _DIGITS or not _HEX.issuperset(digits):
        raise InvalidRequestError(f"{field}: {quoted(text)} is not a lease id", field=field)
    return int(digits, 16)


class QueueCounters(msgspec.Struct, frozen=True, gc=False):
    """The number of jobs in each state. `ready`, `in_flight` and `delayed` add up to the live jobs."""

    ready: int
    """Jobs that can be claimed now."""
    in_flight: int
    """Jobs that are leased or leaving the queue."""
    delayed: int
    """Jobs delayed until a time, by a nack or by their append."""
    dead_lettered: int
    """Jobs moved to the dead letter topic since the queue was created."""
    paused: bool = False
    """Whether delivery is paused."""


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A worker asks for jobs."""

    node: str
    max: int = 1
    """0 is 1; more than the limit is cut to it."""
    lease_ms: int | None = None
    """None is the value of the queue's config; out-of-range wishes are bent."""


class ClaimedJob(msgspec.Struct, frozen=True, gc=False):
    """One leased job."""

    seq: int
    token: int
    deadline: int
    deliveries: int
    fragment: bytes
    """The job as a JSON object: `$seq`, `$ts`, `data`, `lease_id`, `deadline`, `deliveries`, and if present `$node`,
    `meta` and `$tag`."""

    @property
    def lease_id(self) -> str:
        return format_lease_id(self.token)


class ClaimResult(msgspec.Struct, frozen=True):
    """The jobs in the order of their seqs. None at all is an ordinary answer."""

    topic: str
    jobs: list[ClaimedJob]
    ready: int
    """Jobs that can still be claimed."""
    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0

    @property
    def body(self) -> bytes:
        """The jobs as JSON, separated by commas, without the enclosing brackets."""
        return b",".join([job.fragment for job in self.jobs])


class HeldRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A worker speaks of jobs that it holds."""

    node: str
    seqs: Sequence[int]
    lease_ids: Sequence[str] | None = None
    """One for each seq, in the same order; an empty text fences nothing. Seqs with a stale id are skipped."""


class AckRequest(HeldRequest, frozen=True, kw_only=True):
    """Jobs that are done."""

    result: bytes | None = None
    """The result of a single job, as JSON text; None if it has none."""


class NackRequest(HeldRequest, frozen=True, kw_only=True):
    delay_ms: int = 0
    reason: str = ""
    """The reason of the failure. Without one, and not fatal, the jobs are only returned."""
    fatal: bool = False
    """Whether they move to the dead letter topic immediately."""


class ExtendRequest(HeldRequest, frozen=True, kw_only=True):
    lease_ms: int
    """From now: the deadline is replaced, not extended."""


class AckResult(msgspec.Struct, frozen=True):
    topic: str
    acked: int
    skipped: list[int]
    """The seqs of the request that the node does not hold, in the order of the request."""
    ready: int
    in_flight: int
    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0


class NackResult(msgspec.Struct, frozen=True):
    topic: str
    nacked: int
    """Returned jobs, including new dead letters."""
    skipped: list[int]
    ready: int
    in_flight: int
    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0
    dead_lettered: int = 0
    """Jobs that were moved to the dead letter topic by a fatal nack."""


class ExtendResult(msgspec.Struct, frozen=True):
    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[int, int]
    """The new deadline of each extended seq."""
    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0


class RedriveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of a queue shall come back from where dead letters went."""

    max: int = 100
    """At most this many jobs, the oldest first; 0 is 1, and more than the limit of a claim is cut to it."""
    source: str | None = None
    """The topic to take them from; None is the queue's `dead_letter`."""


class RedriveResult(msgspec.Struct, frozen=True):
    topic: str
    source: str
    moved: int
    first_seq: int
    """The seqs the jobs have in the queue now, `first_seq` to `last_seq`; 0 and 0 when nothing was moved."""
    last_seq: int
    more: bool
    """Whether the source may have more of them."""
    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0


class LeaseInfo(msgspec.Struct, frozen=True, gc=False):
    """The holder of a job. Its lease id is the holder's secret and not part of it."""

    seq: int
    node: str
    deadline: int
    deliveries: int


class LeasePage(msgspec.Struct, frozen=True):
    topic: str
    leases: list[LeaseInfo]
    """By seq."""
    next_after: int | None
    """The cursor of the next page (`after`); None for the last page."""


class WorkerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A worker wants jobs pushed to it, as many at once as it can hold."""

    node: str
    max: int = 1
    lease_ms: int | None = None


ClaimDone = Callable[[ClaimResult | TopicsError], None]
AckDone = Callable[[AckResult | TopicsError], None]
NackDone = Callable[[NackResult | TopicsError], None]
ExtendDone = Callable[[ExtendResult | TopicsError], None]
RedriveDone = Callable[[RedriveResult | TopicsError], None]
Cancel = Callable[[], None]
