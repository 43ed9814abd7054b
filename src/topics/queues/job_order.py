"""Job order: when appended jobs become ready, and which ready jobs are claimed first.

A job has a priority from `MIN_PRIORITY` to `MAX_PRIORITY`, 0 if its writer gave none. Higher priorities are claimed
first, and jobs of one priority in the order of their seqs. Priority 0 costs nothing: those jobs are found by the cursor
of the queue (`queues.leases`). Only jobs with another priority are kept in memory, in `JobPriorities`.

`run_at` is a time of the wall clock. It is converted to a delay when the append is accepted, so that a change of the
clock neither hurries nor delays the job (`engine.core.EngineTime`).
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from topics.log.frame import FrameKind
from topics.model.errors import InvalidRequestError
from topics.model.limits import MAX_PRIORITY, MAX_RUN_AHEAD_MS, MIN_PRIORITY, clamp_delay_ms
from topics.queues.queue_frames import JobKeyed, JobOrder, JobsPrioritized, JobTerms, encode_delay, encode_event

if TYPE_CHECKING:
    from topics.engine.core import EngineTime

_STALE_MAX = 1024
"""Deleted or leased jobs that may stay in the heap, besides as many as there are jobs, before they are removed."""
PRIORITY_BYTES = 200
"""Memory of the priority of a job: its places in a dict and a heap."""


def check_terms(terms: JobTerms, now: int) -> None:
    """Raises InvalidRequestError unless jobs can be appended this way; `now` is the wall time."""
    delay_ms, run_at, priority, _ = terms
    if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidRequestError(
            f"priority: must be from {MIN_PRIORITY} to {MAX_PRIORITY}", field="priority", max=MAX_PRIORITY
        )
    if run_at is None:
        return
    if delay_ms:
        raise InvalidRequestError("run_at: give either run_at or delay_ms", field="run_at")
    if run_at > now + MAX_RUN_AHEAD_MS:
        raise InvalidRequestError(
            f"run_at: must be in milliseconds since 1970, at most {MAX_RUN_AHEAD_MS} ms ahead", field="run_at",
            max=now + MAX_RUN_AHEAD_MS,
        )  # fmt: skip


def order_of(terms: JobTerms, time: "EngineTime") -> JobOrder:
    """The order of jobs that are appended now; a `run_at` that has passed means ready at once."""
    delay_ms, run_at, priority, unique_key = terms
    delay_ms = clamp_delay_ms(delay_ms) if run_at is None else max(run_at - time.wall(), 0)
    return JobOrder(time.steady() + delay_ms if delay_ms else 0, priority, unique_key)


def order_frames(order: JobOrder, first: int, last: int, time: "EngineTime") -> list[tuple[FrameKind, bytes, bytes]]:
    """The frames that precede the one with the records."""
    frames: list[tuple[FrameKind, bytes, bytes]] = []
    if order.ready_at:
        frames.append((FrameKind.DELAY, encode_delay(time.ending(order.ready_at), first, last), b""))
    if order.priority:
        frames.append((FrameKind.QUEUE, encode_event(JobsPrioritized(first, last, order.priority)), b""))
    if order.unique_key is not None:
        frames.append((FrameKind.QUEUE, encode_event(JobKeyed(first, order.unique_key)), b""))
    return frames


class JobPriorities:
    """The live jobs of a queue with another priority than 0, and a heap of those that are ready.

    A job in the heap may have been deleted or leased since; `queues.leases` skips it then.
    """

    __slots__ = ("_ready", "by_seq")

    def __init__(self) -> None:
        self.by_seq: dict[int, int] = {}
        self._ready: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return bool(self.by_seq)

    def load(self, by_seq: Iterable[tuple[int, int]]) -> None:
        """Restores the state from a snapshot."""
        self.by_seq = dict(by_seq)

    def set(self, seqs: Iterable[int], priority: int) -> None:
        self.by_seq.update(dict.fromkeys(seqs, priority))

    def forget(self, seq: int) -> None:
        self.by_seq.pop(seq, None)

    def push(self, seq: int) -> bool:
        """Adds a ready job to the heap; returns False for one of priority 0."""
        priority = self.by_seq.get(seq)
        if priority is None:
            return False
        heappush(self._ready, (-priority, seq))
        if len(self._ready) > 2 * len(self.by_seq) + _STALE_MAX:
            self._ready = [entry for entry in self._ready if entry[1] in self.by_seq]
            heapify(self._ready)
        return True

    def pop(self, above: int) -> int | None:
        """Removes the next ready job from the heap if its priority is higher than `above`."""
        if not self._ready or -self._ready[0][0] <= above:
            return None
        return heappop(self._ready)[1]

    def rebuild(self, is_ready: Callable[[int], bool]) -> None:
        """Fills the heap after replay."""
        self._ready = [(-priority, seq) for seq, priority in self.by_seq.items() if is_ready(seq)]
        heapify(self._ready)
