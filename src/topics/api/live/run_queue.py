"""Run queue of live delivery: fair scheduling of feeds and followers, with an allowance per tick of the loop.

Delivery shares the loop with everything else, so it runs in turns from one queue. Work left when the allowance of a
tick is spent continues in the next tick, after the requests that arrived meanwhile. A feed with ten thousand
subscribers and a reader of a year's backlog get their turns like all others.

Long delivery is followed by a pause, a quarter as long, in which no new frame is made. Records that arrive meanwhile
make one frame instead of many, so overload makes frames larger instead of making delivery ever later. Workers that wait
for the end of the pause run before later ones.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

ALLOWANCE = 64
"""Deliveries per tick: about half a millisecond, most of it in the kernel. Requests wait that long at most."""
READ_COST = 4
"""The cost of a read in deliveries, besides its bytes."""
BYTES_A_UNIT = 32 * 1024
_COSTLY_S = 0.004
"""A quarter of it is the resolution of the loop's timers."""
_PAUSE_SHARE = 0.25
_PAUSE_MAX_S = 0.02

Run = Callable[[], None]
_logger = logging.getLogger(__name__)


class Worker(Protocol):
    """A worker that needs turns. It is in the queue at most once."""

    queued: bool
    pauses: bool
    """Whether it only makes new frames, so that a pause applies to it."""

    def work(self, run_queue: "RunQueue") -> None:
        """Runs one turn, charges its cost, and queues itself again if there is more work."""
        ...


class RunQueue:
    """`defer` runs a function in the next tick, `later` after some seconds, `seconds` is a monotonic clock."""

    def __init__(
        self,
        defer: Callable[[Run], object],
        later: Callable[[float, Run], object],
        seconds: Callable[[], float],
    ) -> None:
        self._defer = defer
        self.later = later
        self.seconds = seconds
        self._queue: deque[Worker] = deque()
        self._held: list[Worker] = []
        self.at_end: list[Run] = []
        """Called once at the end of this turn: connections write their gathered output."""
        self.left = ALLOWANCE
        self._begun: float | None = None
        """The start of this tick's delivery; None before it."""
        self._spent_s = 0.0
        """Time spent on delivery since the last pause."""
        self._delivered_at = 0.0
        self._open_at = 0.0
        """The end of the pause; 0 if there is none."""
        self.running = False

    def add(self, worker: Worker) -> None:
        """Queues a worker for a turn, in this tick if one is running, otherwise in the next."""
        if not worker.queued:
            worker.queued = True
            self._queue.append(worker)
            if self._begun is None and not self.running:
                self._begin()

    def go_on(self, worker: Worker) -> None:
        """Queues a worker with unfinished work before all others."""
        worker.queued = True
        self._queue.appendleft(worker)

    def run(self) -> None:
        """Runs queued workers until this tick's allowance is spent."""
        if self.running or not self._queue:
            return
        self._begin()
        self.running = True
        queue = self._queue
        try:
            while queue and self.left > 0:
                worker = queue.popleft()
                worker.queued = False
                try:
                    worker.work(self)
                except Exception:
                    # A failing follower must not stop the delivery to all others.
                    _logger.exception("live delivery failed")
        finally:
            self.running = False
            if self.at_end:
                self._finish()

    def _finish(self) -> None:
        last, self.at_end = self.at_end, []
        for run in last:
            try:
                run()
            except Exception:
                _logger.exception("live delivery failed")

    def hold(self, worker: Worker) -> bool:
        """Whether a worker must wait before it makes a new frame; it gets another turn after the pause."""
        if not self._held:
            if not self._open_at:
                return False
            wait_s = self._open_at - self.seconds()
            if wait_s <= 0:
                self._open_at = 0.0
                return False
            self.later(wait_s, self._release)
        worker.queued = True
        self._held.append(worker)
        if len(self._held) == 1:
            self._hold_back()
        return True

    def _hold_back(self) -> None:
        """Sets aside all queued workers that a pause applies to: a fan-out has hundreds, and checking each in every
        pause takes as long as serving some. Workers with unfinished work are first in the queue."""
        queue = self._queue
        others = [worker for worker in queue if not worker.pauses]
        self._held += [worker for worker in queue if worker.pauses]
        queue.clear()
        queue.extend(others)

    @staticmethod
    def cost(nbytes: int) -> int:
        """The cost of delivering a number of bytes to one follower."""
        return 1 + nbytes // BYTES_A_UNIT

    def spend(self, nbytes: int) -> None:
        """Charges a read of a number of bytes."""
        self.left -= READ_COST + nbytes // BYTES_A_UNIT

    def _begin(self) -> None:
        if self._begun is None:
            self._begun = self.seconds()
            self._defer(self._next_tick)

    def _next_tick(self) -> None:
        # Runs after the writes of the last tick, so that their cost is included.
        now = self.seconds()
        if self._begun is not None and self.left < ALLOWANCE:
            # Only after ticks with deliveries; otherwise the pause would never end.
            self._pause(self._begun, now)
        self.left = ALLOWANCE
        self._begun = None
        self.run()

    def _pause(self, begun: float, now: float) -> None:
        """Records a tick of delivery. Consecutive ticks count as one; an idle time between them counts as a pause."""
        if begun - self._delivered_at > _COSTLY_S:
            self._spent_s = 0.0
        self._delivered_at = now
        self._spent_s += now - begun
        if self._spent_s > _COSTLY_S:
            self._open_at = now + min(self._spent_s * _PAUSE_SHARE, _PAUSE_MAX_S)
            self._spent_s = 0.0

    def _release(self) -> None:
        held, self._held = self._held, []
        self._queue.extend(held)
        # Deferred to a tick, because only a tick is measured together with its writes.
        if not self.running:
            self._begin()
