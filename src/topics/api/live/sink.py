"""Sink: the server's end of a live connection, when it can take more, and when a slow consumer is disconnected.

open ── transport full ──▶ full ── drained ──▶ open          what did not fit is read again from the cursors
                            │
                            ├─ longer than the grace period: a later gap is reported as `from_seq_too_old`
                            └─ nothing read for the timeout: a last error, and the connection ends

A connection may be full for a long time: otherwise a client on a slow line that needs minutes for a large frame would
reconnect for the same frame and be disconnected again, forever. It must make progress, however slow, which is visible
when the kernel's buffer accepts more bytes, in steps of up to a third of its size.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from topics.api.auth import ANYONE, Key
from topics.api.live.frames import Frame
from topics.api.live.run_queue import RunQueue
from topics.model.errors import ThrottledError

if TYPE_CHECKING:
    from topics.api.live.feed import Subscription


_SWEPT_AT_ONCE = 500


class SlowLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Grace period of a full connection, and timeout of one that reads nothing, in seconds."""

    grace_s: float = 5.0
    timeout_s: float = 30.0


class Sink:
    """One connection. Subclasses write frames (`transmit`) and define how it ends.

    The owner calls `filled` when a write left the transport full, `drained` when it has room again, and `close` at the
    end.
    """

    __slots__ = (
        "_moved_at", "_slow_limits", "_waiting_bytes", "closed", "full", "full_since", "idle_since", "idle_timeout_s",
        "lagging", "push", "run_queue", "sent",
    )  # fmt: skip

    def __init__(self, run_queue: RunQueue, slow_limits: SlowLimits) -> None:
        self.run_queue = run_queue
        self._slow_limits = slow_limits
        self.closed = False
        self.full = False
        self.full_since = 0.0
        self._moved_at = 0.0
        """The last time at which a full transport had fewer unread bytes than before."""
        self._waiting_bytes = 0
        self.sent = False
        """Whether anything was written since the last sweep."""
        self.idle_since = run_queue.seconds()
        self.idle_timeout_s = 0.0
        """Idle time before `beat` is called; 0 disables it."""
        self.lagging: list[Subscription] = []
        """The subscriptions that wait for room."""
        self.push: Callable[[bytes], bool] | None = None
        """Writes a frame's bytes unchanged and returns whether there is room for more. Set by connections that add
        nothing to the bytes, to save a call or two per frame; others use `transmit`."""

    # For subclasses.

    def transmit(self, subscription: "Subscription", frame: Frame) -> None:
        """Writes a frame; `subscription.cursor` is already after it. Never called while full or closed."""
        raise NotImplementedError

    def end_subscription(self, subscription: "Subscription") -> None:
        """Called when the topic is deleted or unreadable, after the client was notified: no more frames follow."""
        raise NotImplementedError

    def end_slow(self) -> None:
        """Ends the connection of a slow consumer, with an error event if possible."""
        raise NotImplementedError

    def beat(self) -> None:
        """Called after `idle_timeout_s` without a write: send a heartbeat."""

    def waiting_bytes(self) -> int:
        """Bytes written and not yet taken by the client; a decrease shows that a slow client is reading."""
        return 0

    def frame_room(self) -> int:
        """Maximum bytes of a frame that is read for this connection alone."""
        return sys.maxsize

    # For the owner of the connection.

    def filled(self) -> None:
        """Stops writing until the transport has drained."""
        if not self.full:
            self.full = True
            self.full_since = self._moved_at = self.run_queue.seconds()
            self._waiting_bytes = self.waiting_bytes()

    def drained(self) -> None:
        """Resumes the subscriptions that waited for room."""
        if not self.full or self.closed:
            return
        too_old = self.run_queue.seconds() - self.full_since > self._slow_limits.grace_s
        self.full = False
        lagging, self.lagging = self.lagging, []
        for subscription in lagging:
            subscription.too_old |= too_old
            self.run_queue.add(subscription)

    def close(self) -> None:
        """Stops writing permanently. The owner cancels its subscriptions."""
        self.closed = True
        self.full = True
        self.lagging = []
        self.push = None

    def sweep(self, now: float) -> None:
        """Checks timeouts. Called periodically for every connection."""
        if self.closed:
            return
        if self.full:
            before, self._waiting_bytes = self._waiting_bytes, self.waiting_bytes()
            if self._waiting_bytes < before:
                self._moved_at = now
            elif now - self._moved_at > self._slow_limits.timeout_s:
                self.end_slow()
        elif self.sent:
            self.sent = False
            self.idle_since = now
        elif self.idle_timeout_s and now - self.idle_since >= self.idle_timeout_s:
            self.idle_since = now
            self.beat()


class Sweep:
    """Checks all sinks periodically, some at a time, with one timer."""

    def __init__(self, run_queue: RunQueue, period_s: float = 0.25) -> None:
        self._turns = run_queue
        self._period_s = period_s
        self._sinks: set[Sink] = set()
        self._unswept: list[Sink] = []
        self._ticking = False

    def add(self, sink: Sink) -> Callable[[], None]:
        """Checks a sink periodically until the returned function is called."""
        self._sinks.add(sink)
        if not self._ticking:
            self._ticking = True
            self._turns.later(self._period_s, self._tick)
        # A list that `remove` empties: the sink usually references this function, and the cycle should not need the
        # garbage collector.
        swept = [sink]

        def remove() -> None:
            while swept:
                self._sinks.discard(swept.pop())

        return remove

    def __len__(self) -> int:
        return len(self._sinks)

    def _tick(self) -> None:
        if not self._sinks:
            self._ticking = False
            self._unswept = []
            return
        if not self._unswept:
            self._unswept = list(self._sinks)
        now = self._turns.seconds()
        some, self._unswept = self._unswept[:_SWEPT_AT_ONCE], self._unswept[_SWEPT_AT_ONCE:]
        for sink in some:
            sink.sweep(now)
        rounds = -(-len(self._sinks) // _SWEPT_AT_ONCE)
        self._turns.later(self._period_s / max(rounds, 1), self._tick)


# Connection limits: event streams and WebSockets together.


class Connections:
    """Counts open connections, in total and per key. 0 means no limit."""

    def __init__(self, connections_max: int, per_key_max: int) -> None:
        self._max = connections_max
        self._per_key_max = per_key_max
        self.open = 0
        self._of_key: dict[int, int] = {}

    def enter(self, key: Key) -> Callable[[], None]:
        """Counts a connection and returns the function that removes it, which is idempotent.

        Raises ThrottledError at the limit. Without authentication there is no limit per key.
        """
        if self._max and self.open >= self._max:
            raise ThrottledError.over_cap("max_sse_connections", self._max)
        mine = self._of_key.get(key.number, 0)
        if key is not ANYONE and self._per_key_max and mine >= self._per_key_max:
            raise ThrottledError.over_cap("max_sse_connections_per_key", self._per_key_max)
        self.open += 1
        self._of_key[key.number] = mine + 1
        inside = True

        def leave() -> None:
            nonlocal inside
            if inside:
                inside = False
                self.open -= 1
                self._of_key[key.number] -= 1
                if not self._of_key[key.number]:
                    del self._of_key[key.number]

        return leave
