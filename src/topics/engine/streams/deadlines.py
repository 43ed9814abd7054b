"""Which streams to look at when, because their time may be over or nobody reads them any more."""

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

_A_TICK = 1000
_SET_BACK_MS = 1000
"""A clock that shows so much less than before was set, and not only corrected."""
_NOW = 0


class Deadlines:
    def __init__(self, at_of: Callable[[int], int | None]) -> None:
        """`at_of` tells when to look at a topic, by its id; None for one that needs no look."""
        self._at_of = at_of
        self._waiting: list[tuple[int, int]] = []
        """When to look at which topic: a heap."""
        self._unfinished: deque[int] = deque()
        """Those to look at each time, in turns: some may wait for as long as a log takes no writes."""
        self._shown_ms = 0

    def add(self, at_ms: int, topic_id: int) -> None:
        heappush(self._waiting, (at_ms, topic_id))

    def add_due(self, topic_id: int) -> None:
        """Looks at a topic the next time, whatever the clock says."""
        heappush(self._waiting, (_NOW, topic_id))

    def add_unfinished(self, topic_id: int) -> None:
        """Looks at a topic again that was just looked at."""
        self._unfinished.append(topic_id)

    def due(self, now_ms: int) -> Iterator[int]:
        """Those to look at now, some of them when there are many. Each is on the list no more."""
        if now_ms < self._shown_ms - _SET_BACK_MS:
            self._reckon_again()
        self._shown_ms = now_ms
        for _ in range(min(len(self._unfinished), _A_TICK)):
            yield self._unfinished.popleft()
        for _ in range(_A_TICK):
            if not self._waiting or self._waiting[0][0] > now_ms:
                return
            yield heappop(self._waiting)[1]

    def _reckon_again(self) -> None:
        """The clock was set back. What it said before would have everyone wait until it says so again."""
        known = [(at, topic_id) for at, topic_id in self._waiting if at == _NOW]
        later = {topic_id for at, topic_id in self._waiting if at != _NOW}
        known += [(at, topic_id) for topic_id in later if (at := self._at_of(topic_id)) is not None]
        heapify(known)
        self._waiting = known
