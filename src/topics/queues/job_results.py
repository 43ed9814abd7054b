"""Unique keys of the jobs in a queue, and results of jobs that left it: state besides the records.

A key belongs to its job while that is in the queue (`queues.unique_jobs`). A result came with the acknowledgement of
its job and is kept for `result_retention_ms` of the queue. A QUEUE frame with the result precedes the DELETE of its job
in the same write; a crash between the two leaves a result for a job that is still there, which the next acknowledgement
replaces. Keys and results are in memory and in the snapshot, and count in `max_memory_bytes`. The clock on the wall
ends results, like idempotency keys.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from topics.queues.queue_frames import JobFinished

KEYED_JOB_BYTES = 300
"""Memory of a key besides its text: its places in two dicts."""
_STALE_MAX = 1_000
MAX_RESULT_BYTES = 64 * 1024
RESULT_BYTES = 400
"""Memory of a result besides its text."""
Waiter = Callable[[], None]


class JobKeys:
    """The keys of a queue. Evicted and expired jobs keep theirs until they are purged; their keys do not count."""

    __slots__ = ("_chars", "_purge_at", "by_key", "by_seq")

    def __init__(self) -> None:
        self.by_key: dict[str, int] = {}
        self.by_seq: dict[int, str] = {}
        self._chars = 0
        self._purge_at = _STALE_MAX

    def __bool__(self) -> bool:
        return bool(self.by_key)

    @property
    def memory_bytes(self) -> int:
        return KEYED_JOB_BYTES * len(self.by_seq) + self._chars

    def load(self, keys: Iterable[tuple[int, str]]) -> None:
        """Restores the state from a snapshot."""
        self.by_key, self.by_seq, self._chars = {}, {}, 0
        for seq, key in keys:
            self._put(seq, key)

    def set(self, seq: int, key: str, is_live: Callable[[int], bool] | None = None) -> None:
        """Gives a key to a job; the job that had it before is gone."""
        before = self.by_key.get(key)
        if before is not None:
            self.forget(before)
        self._put(seq, key)
        if is_live is not None and len(self.by_seq) > self._purge_at:
            self.purge(lambda known: known == seq or is_live(known))

    def _put(self, seq: int, key: str) -> None:
        self.by_key[key] = seq
        self.by_seq[seq] = key
        self._chars += len(key)

    def forget(self, seq: int) -> None:
        key = self.by_seq.pop(seq, None)
        if key is not None:
            del self.by_key[key]
            self._chars -= len(key)

    def forget_deleted(self, before_seq: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Forgets the keys of deleted jobs."""
        if not before_seq and sum([last - first + 1 for first, last in ranges]) <= len(self.by_seq):
            for first, last in ranges:
                for seq in range(first, last + 1):
                    self.forget(seq)
        else:
            self.purge(lambda seq: seq >= before_seq and not any(first <= seq <= last for first, last in ranges))

    def purge(self, stays: Callable[[int], bool]) -> None:
        """Forgets the keys of the other jobs."""
        self.load([(seq, key) for seq, key in self.by_seq.items() if stays(seq)])
        self._purge_at = 2 * len(self.by_seq) + _STALE_MAX


class JobResult(NamedTuple):
    """The outcome of a job for a caller that asks for it."""

    seq: int
    state: str
    """`done`, or the state of a job that is still in the queue."""
    finished: JobFinished | None


class JobResults:
    """The results of a queue, the oldest first, and the callers that wait for one."""

    __slots__ = ("_chars", "by_seq", "waiters")

    def __init__(self) -> None:
        self.by_seq: dict[int, JobFinished] = {}
        self.waiters: dict[int, list[Waiter]] = {}
        self._chars = 0

    def __bool__(self) -> bool:
        return bool(self.by_seq or self.waiters)

    @property
    def memory_bytes(self) -> int:
        return RESULT_BYTES * len(self.by_seq) + self._chars

    def put(self, finished: JobFinished) -> None:
        self.forget(finished.seq)
        self.by_seq[finished.seq] = finished
        self._chars += len(finished.result)

    def load(self, results: Iterable[JobFinished]) -> None:
        """Restores the state from a snapshot."""
        self.by_seq, self._chars = {}, 0
        for finished in results:
            self.put(finished)

    def forget(self, seq: int) -> None:
        before = self.by_seq.pop(seq, None)
        if before is not None:
            self._chars -= len(before.result)

    def expire(self, before_ms: int) -> bool:
        """Forgets the results of jobs that finished at this time or earlier; returns whether there were any."""
        count = len(self.by_seq)
        while self.by_seq:
            oldest = next(iter(self.by_seq.values()))
            if oldest.at_ms > before_ms:
                break
            self.forget(oldest.seq)
        return len(self.by_seq) < count

    def wait(self, seq: int, waiter: Waiter) -> Callable[[], None]:
        """Calls the waiter once the job is gone; returns a function that cancels that."""
        self.waiters.setdefault(seq, []).append(waiter)

        def cancel() -> None:
            waiting = self.waiters.get(seq, [])
            if waiter in waiting:
                waiting.remove(waiter)
                if not waiting:
                    del self.waiters[seq]

        return cancel

    def wake(self, is_live: Callable[[int], bool]) -> None:
        """Calls the waiters of jobs that are gone."""
        for seq in [seq for seq in self.waiters if not is_live(seq)]:
            for waiter in self.waiters.pop(seq):
                waiter()
