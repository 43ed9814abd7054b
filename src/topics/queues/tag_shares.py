"""Tag shares: with `fair_tags`, a job goes to the tag that has the fewest jobs leased. Pure.

Ready jobs are taken out of the lease table and wait here, in a heap for each tag: by priority, then by seq. The next
job is that of the tag with the fewest leases, among these of the one that was served longest ago. So no tag gets more
than its share while others wait, however many jobs it has, and a lone tag gets everything. Jobs without a tag are one
tag.

A queue looks ahead a bounded number of jobs at each claim and keeps a bounded number here; shares hold among these.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from topics.model.limits import MAX_PRIORITY, MAX_U64

WAITING_MAX = 1_000_000
"""The maximum number of ready jobs that wait here; the others stay in the log."""
LOOKED_MAX = 4096
"""The maximum number of jobs that one claim looks at."""
WAITING_BYTES = 80
"""Memory of a waiting job: its place in a heap."""
_SEQ_BITS = 64
_STALE_MAX = 1024


class _Tag:
    __slots__ = ("leased", "ready", "turn")

    def __init__(self, turn: int) -> None:
        self.ready: list[int] = []
        """A heap of numbers that consist of a priority, the highest first, and a seq."""
        self.leased = 0
        self.turn = turn
        """When it was served last, or came, by the number of such events."""


class TagShares:
    def __init__(self) -> None:
        self._tags: dict[bytes, _Tag] = {}
        self._order: list[tuple[int, int, bytes]] = []
        """A heap of tags with ready jobs: leases, turn, tag. An entry that is out of date is skipped."""
        self._granted: dict[int, bytes] = {}
        """The tag of each leased job."""
        self._turn = 0
        self.waiting = 0
        """Jobs in the heaps, deleted ones included."""

    def add(self, seq: int, tag: bytes, priority: int) -> None:
        """Adds a ready job."""
        found = self._tag(tag)
        heappush(found.ready, (MAX_PRIORITY - priority) << _SEQ_BITS | seq)
        self.waiting += 1
        if len(found.ready) == 1:
            self._enqueue(tag, found)

    def _tag(self, tag: bytes) -> _Tag:
        found = self._tags.get(tag)
        if found is None:
            self._turn += 1
            found = self._tags[tag] = _Tag(self._turn)
        return found

    def adopt(self, seq: int, tag: bytes) -> None:
        """Counts a job that is leased already."""
        found = self._tag(tag)
        self._grant(seq, tag, found)
        if found.ready:
            self._enqueue(tag, found)

    def _grant(self, seq: int, tag: bytes, found: _Tag) -> None:
        self._granted[seq] = tag
        self._turn += 1
        found.leased, found.turn = found.leased + 1, self._turn

    def end(self, seq: int) -> None:
        """A lease ended, or could not be granted."""
        tag = self._granted.pop(seq, None)
        if tag is None:
            return
        found = self._tags[tag]
        found.leased -= 1
        if found.ready:
            self._enqueue(tag, found)
        elif not found.leased:
            del self._tags[tag]

    def take(self, requested: int, is_ready: Callable[[int], bool]) -> list[int]:
        """Takes jobs to deliver and counts them as leased; those that are not ready any more are dropped."""
        jobs: list[int] = []
        while self._order and len(jobs) < requested:
            leased, turn, tag = heappop(self._order)
            found = self._tags.get(tag)
            if found is None or not found.ready or (found.leased, found.turn) != (leased, turn):
                continue
            seq = self._pop(found, is_ready)
            if seq is not None:
                jobs.append(seq)
                self._grant(seq, tag, found)
            if found.ready:
                self._enqueue(tag, found)
            elif not found.leased:
                del self._tags[tag]
        return jobs

    def all_waiting(self) -> list[int]:
        return [number & MAX_U64 for tag in self._tags.values() for number in tag.ready]

    def _pop(self, found: _Tag, is_ready: Callable[[int], bool]) -> int | None:
        while found.ready:
            seq = heappop(found.ready) & MAX_U64
            self.waiting -= 1
            if is_ready(seq):
                return seq
        return None

    def _enqueue(self, tag: bytes, found: _Tag) -> None:
        heappush(self._order, (found.leased, found.turn, tag))
        if len(self._order) > 2 * len(self._tags) + _STALE_MAX:
            ready = [(name, one) for name, one in self._tags.items() if one.ready]
            self._order = [(one.leased, one.turn, name) for name, one in ready]
            heapify(self._order)
