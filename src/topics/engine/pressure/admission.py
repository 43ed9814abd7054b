"""Who may append while the server is pressed.

Normally everyone, and this module is not asked. While the governor refuses, an append gets 429 with the time after
which to try again; topics of the highest band are let in until the log itself is full. A caller that would rather wait
than be refused (`disable_backpressure`) waits here, in order, and is told how long it did.

Those who wait hold memory, so they are bounded as the log's own queue is: beyond that many bytes, and after half a
minute, they are refused like the others.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from topics.core.batch import Batch
from topics.core.errors import ShuttingDownError, ThrottledError, TopicsError
from topics.engine.core import EngineCore
from topics.engine.pressure.scheduler import TOP, band_of
from topics.engine.results import AppendDone, AppendResult

PATIENCE_S: Final = 30.0
FULL_RETRY_MS: Final = 100
"""What a full queue asks for: it is being written while we speak."""

Append = Callable[[str, Batch, AppendDone], None]


class _Parked(msgspec.Struct, gc=False):
    name: str
    batch: Batch
    done: AppendDone
    since_s: float
    size: int


class Admission:
    def __init__(self, core: EngineCore, seconds: Callable[[], float], append: Append) -> None:
        self._core = core
        self._seconds = seconds
        self._append = append
        self._parked: deque[_Parked] = deque()
        self._parked_bytes = 0
        self.refusing = False
        """Whether everyone has to be asked for here, and not only those who would wait."""
        self._retry_after_ms = 0
        self.refused_total = 0
        self.parked_total = 0
        self.wait_ms_total = 0.0

    @property
    def parked(self) -> int:
        return len(self._parked)

    def set_policy(self, refusing: bool, retry_after_ms: int) -> None:
        self.refusing = refusing
        self._retry_after_ms = retry_after_ms
        self.let_in()

    def keeps_waiting(self, name: str, batch: Batch, done: AppendDone) -> bool:
        """Whether an append has to wait, and is then done later; raises where it is refused.

        Asked for those who would rather wait, and for everyone while the governor refuses.
        """
        if not batch.disable_backpressure:
            if not self._lets_in(name):
                self.refused_total += 1
                raise ThrottledError.under_pressure(self._retry_after_ms)
            return False
        if not self._parked and self._lets_in(name) and self._has_room(name):
            return False
        self._park(name, batch, done)
        return True

    def let_in(self) -> None:
        """Lets those in who wait, in their order, as far as there is room. Called whenever there may be."""
        if not self._parked:
            return
        now = self._seconds()
        while self._parked:
            first = self._parked[0]
            if self._lets_in(first.name) and self._has_room(first.name):
                self._resume(self._unpark(), now)
            elif now - first.since_s >= PATIENCE_S:
                self.refused_total += 1
                self._unpark().done(ThrottledError.under_pressure(self._retry_after_ms or FULL_RETRY_MS))
            else:
                return

    def close(self) -> None:
        """The engine takes nothing new; whoever still waits was not accepted yet."""
        while self._parked:
            self._unpark().done(ShuttingDownError())

    def _lets_in(self, name: str) -> bool:
        if not self.refusing:
            return True
        topic = self._core.by_name.get(name)
        return topic is not None and band_of(self._core.scheduler.priority(topic)) == TOP

    def _has_room(self, name: str) -> bool:
        core = self._core
        topic = core.by_name.get(name)
        number = topic.shard if topic is not None else core.shard_number(core.next_topic_id)
        needs_log = topic is None or not topic.created or topic.staged_config.durability.logged
        return not needs_log or not core.shards[number].full

    def _park(self, name: str, batch: Batch, done: AppendDone) -> None:
        self._core.check_accepting()
        size = sum([len(record.data) + len(record.meta or b"") for record in batch.records])
        if self._parked_bytes + size > self._core.options.commit_queue_bytes and self._parked:
            self.refused_total += 1
            raise ThrottledError.under_pressure(self._retry_after_ms or FULL_RETRY_MS)
        self._parked.append(_Parked(name, batch, done, self._seconds(), size))
        self._parked_bytes += size
        self.parked_total += 1

    def _unpark(self) -> _Parked:
        first = self._parked.popleft()
        self._parked_bytes -= first.size
        return first

    def _resume(self, parked: _Parked, now: float) -> None:
        waited_ms = (now - parked.since_s) * 1000.0
        self.wait_ms_total += waited_ms

        def done(outcome: AppendResult | TopicsError) -> None:
            if isinstance(outcome, AppendResult):
                outcome = msgspec.structs.replace(outcome, throttle_wait_ms=waited_ms)
            parked.done(outcome)

        try:
            self._append(parked.name, parked.batch, done)
        except TopicsError as error:
            parked.done(error)
