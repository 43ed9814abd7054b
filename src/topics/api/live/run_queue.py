"""Who delivers next, and how much in one tick of the loop.

Delivery shares the loop with everything else, so it is done in turns from one queue, and each tick has an allowance.
What is left when the allowance is spent goes on in the next tick, after the requests that came in meanwhile. A feed
with ten thousand subscribers and a reader of a year's backlog get their turns like everyone else.

Delivery that took long is followed by a pause in which no new frame is made, a quarter as long. Records that come
meanwhile make one frame instead of many, so that overload makes frames larger and never delivery late for good. Who
waits for the end of the pause goes on before everyone who comes later.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

ALLOWANCE = 64
"""Deliveries in one tick; about half a millisecond, most of it the kernel's. A request that comes meanwhile waits."""
READ_COST = 4
"""What a read costs in deliveries, besides its bytes."""
BYTES_A_UNIT = 32 * 1024
_COSTLY_S = 0.004
"""A quarter of it is what the loop's timers can tell apart."""
_PAUSE_SHARE = 0.25
_PAUSE_MAX_S = 0.02

Run = Callable[[], None]
_logger = logging.getLogger(__name__)


class Worker(Protocol):
    """Something that wants run_queue. It is in the queue at most once."""

    queued: bool
    pauses: bool
    """Whether it does nothing but make new frames, once what it is in the middle of is over."""

    def work(self, run_queue: "RunQueue") -> None:
        """Does one turn, spends what it cost, and adds itself again if it wants more."""
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
        """Called once when this turn of delivery is over: connections then write what they have gathered."""
        self.left = ALLOWANCE
        self._begun: float | None = None
        """When this tick's delivery began; None while there was none."""
        self._spent_s = 0.0
        """What delivery took since the last pause."""
        self._delivered_at = 0.0
        self._open_at = 0.0
        """When the pause is over; 0 while there is none."""
        self.running = False

    def add(self, worker: Worker) -> None:
        """Gives a worker a turn, in the next tick unless one is being run."""
        if not worker.queued:
            worker.queued = True
            self._queue.append(worker)
            if self._begun is None and not self.running:
                self._begin()

    def go_on(self, worker: Worker) -> None:
        """Gives a worker that is in the middle of something the next turn of all."""
        worker.queued = True
        self._queue.appendleft(worker)

    def run(self) -> None:
        """Runs what waits, as far as this tick's allowance goes."""
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
                    # One broken follower must not stop the delivery to all others.
                    _logger.exception("a turn of live delivery failed")
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
                _logger.exception("a turn of live delivery failed")

    def hold(self, worker: Worker) -> bool:
        """Whether a worker whose turn it is must wait before it makes a new frame; it gets another when the pause is
        over."""
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
        """Has everyone in the queue who would be told to wait do so: in a fan-out they are hundreds, and to ask each in
        every pause takes as long as to serve some. Whoever is in the middle of something stands before them."""
        queue = self._queue
        others = [worker for worker in queue if not worker.pauses]
        self._held += [worker for worker in queue if worker.pauses]
        queue.clear()
        queue.extend(others)

    @staticmethod
    def cost(nbytes: int) -> int:
        """What it costs to deliver so many bytes to one."""
        return 1 + nbytes // BYTES_A_UNIT

    def spend(self, nbytes: int) -> None:
        """Books a read of so many bytes."""
        self.left -= READ_COST + nbytes // BYTES_A_UNIT

    def _begin(self) -> None:
        if self._begun is None:
            self._begun = self.seconds()
            self._defer(self._next_tick)

    def _next_tick(self) -> None:
        # Runs behind the writes of the last tick, so that what they cost is part of the measure.
        now = self.seconds()
        if self._begun is not None and self.left < ALLOWANCE:
            # Only by ticks that delivered: another would put the end of the pause off for ever.
            self._pause(self._begun, now)
        self.left = ALLOWANCE
        self._begun = None
        self.run()

    def _pause(self, begun: float, now: float) -> None:
        """Notes a tick of delivery. Ticks that follow each other count as one; a rest between them is a pause, too."""
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
        # Not run from here: only what a tick does is measured together with the writes it causes.
        if not self.running:
            self._begin()
