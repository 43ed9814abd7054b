"""Fair scheduling of long work on the event loop (also known as cooperative multitasking, or round-robin time slicing).

Long work would block the loop, and with it every other client. So it is written as a generator, a `Task`, that yields
between units of work of about half a millisecond. `FairScheduler.run(task, owner)` puts it into a queue:

* An owner, such as a connection or a topic, has one place in the queue, however many tasks it has. Its tasks run one
  after the other.
* In each turn of the loop every owner in the queue gets one unit, in round-robin order, until `TURN_S` is used up. The
  loop then serves new input, and the scheduler continues where it stopped.
* A task that has to wait for something yields a `Pause`. It keeps its place before later tasks of its owner and costs
  nothing until it is resumed.

Short requests do not pass through here: a connection serves up to `SLICE_S` of work immediately, and queues only the
rest.

| task | unit of work | owner |
|---|---|---|
| requests of HTTP/1.1 beyond a slice (`http.h1.connection`) | a slice of parsing and handling | the connection |
| frames of HTTP/2 beyond a slice (`http.h2.connection`) | a slice of reading, handling and sending | the connection |
| messages of a WebSocket beyond a slice (`http.websocket.socket`) | a slice of reading and handling | the connection |
| large bodies and responses (`api.chunked_response`) | a slice of units (`in_slices`) | the connection |
| large schemas (`schema.validation`) and search results | a slice of units (`in_slices`) | the connection |
| metrics scrapes (`api.metrics`) | a slice of units (`in_slices`) | all scrapes together |
| changes under touch templates (`streams.invalidation`) | a slice of units (`in_slices`) | the stream |
| validation of large batches (`streams.chunked_validation`) | a portion of the records | the topic |
| counts of the largest streams (`api.v1.server_details`) | 500 streams | all counts together |

Work with an order, a cost or its own thread is scheduled elsewhere, because it was measured slower here or would change
its order:

* Live delivery (`api.live.run_queue`): a unit is a turn of a feed or a follower, and ten thousand may wait. A unit
  costs 0.13 microseconds in its run queue and 1.7 to 2.7 here (Python 3.11): a generator step, two readings of the
  clock and the bookkeeping of an owner. The run queue also bounds a tick by cost instead of time, and its pauses merge
  records into larger frames.
* Forwards of routers (`routers.pump`): a tick forwards for many routers together, so that destinations of one shard
  share a write, and a router that repeats the work of another costs a quarter. One owner at a time would undo both.
* Long deletes (`engine.delete`): the next part is decided when the previous one is logged, so a part is paced by the
  log and not by the clock.
* Jobs that alternate with the disk (`engine.background_jobs`), and wake-ups by priority (`engine.scheduler`).
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Hashable

SLICE_S = 0.0005
"""The time that an owner may use the loop at once: some twenty short requests."""
GREEDY_S = 0.1
"""The time for which all input of a connection is queued after it exceeded a slice."""
TURN_S = 0.002
"""The time that all owners together may use the loop before it checks for new input."""
_UNITS_MAX = 32
"""The maximum number of units in a slice."""

_log = logging.getLogger(__name__)

Pause = Callable[[Callable[[], None]], None]
"""Gets a function to call once, on the loop's thread, when the task can continue."""
Task = Generator[Pause | None, None, None]
"""Long work. It yields None between two units, or a pause before the next."""


class FairScheduler:
    """Runs tasks in turns. `defer` calls a function in the next turn of the loop; without a loop, at once."""

    __slots__ = ("_again", "_defer", "_queue", "_running", "_tasks", "monotonic")

    def __init__(self, monotonic: Callable[[], float], defer: Callable[[Callable[[], None]], object]) -> None:
        self.monotonic = monotonic
        self._defer = defer
        # Owners with a runnable task, and all tasks of every owner.
        self._queue: deque[Hashable] = deque()
        self._tasks: dict[Hashable, deque[Task]] = {}
        self._running = self._again = False

    def __len__(self) -> int:
        """The number of owners that wait for their turn."""
        return len(self._queue)

    def run(self, task: Task, owner: Hashable) -> None:
        """Runs a task after the other tasks of its owner. It starts in the next turn of the loop."""
        tasks = self._tasks.get(owner)
        if tasks is not None:
            tasks.append(task)
        else:
            self._tasks[owner] = deque((task,))
            self._enqueue(owner)

    def _enqueue(self, owner: Hashable) -> None:
        self._queue.append(owner)
        if len(self._queue) == 1:
            self._defer(self._turn)

    def _turn(self) -> None:
        self._again = True
        if self._running:
            # Without a loop: the call below runs all turns.
            return
        self._running = True
        try:
            while self._again:
                self._again = False
                self._serve()
                if self._queue:
                    self._defer(self._turn)
        finally:
            self._running = False

    def _serve(self) -> None:
        queue, end = self._queue, self.monotonic() + TURN_S
        # An owner stays in the queue while it is served, so that a new owner does not schedule another turn.
        for _ in range(len(queue)):
            owner = queue[0]
            ready = self._advance(owner)
            queue.popleft()
            if ready:
                queue.append(owner)
            if self.monotonic() >= end:
                break

    def _advance(self, owner: Hashable) -> bool:
        """Runs one unit. Returns whether the owner has another runnable one."""
        tasks = self._tasks[owner]
        try:
            pause = next(tasks[0])
        except StopIteration:
            pass
        except Exception:
            _log.exception("scheduler task failed")
        else:
            if pause is not None:
                pause(lambda: self._enqueue(owner))
            return pause is None
        tasks.popleft()
        if not tasks:
            del self._tasks[owner]
        return bool(tasks)


def in_slices(task: Task, monotonic: Callable[[], float]) -> Task:
    """Returns the task with units of about a slice: short units are joined, so that each does not cost a turn of the
    loop."""
    end, units = monotonic() + SLICE_S, 0
    for pause in task:
        units += 1
        if pause is not None or units == _UNITS_MAX or monotonic() >= end:
            yield pause
            end, units = monotonic() + SLICE_S, 0
