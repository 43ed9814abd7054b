"""Keys of jobs: the `unique_key` of each job that has one, while the job is in its queue (`queues.unique_jobs`)."""

from collections.abc import Callable, Iterable, Sequence

KEYED_JOB_BYTES = 300
"""Memory of a key besides its text: its places in two dicts."""
_STALE_MAX = 1_000


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
