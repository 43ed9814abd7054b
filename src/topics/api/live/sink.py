"""A connection's end of live delivery: whether it can take more, and what happens to one that cannot for too long.

open ── transport full ──▶ full ── drained ──▶ open          what did not fit is read again from the cursors
                            │
                            ├─ longer than the grace: a loss met on the way on is told as `from_seq_too_old`
                            └─ nothing read for the timeout: a last error, and the connection ends

Being full for long is no reason to end: a client on a slow line that takes a large frame for minutes would come back
for the same frame, and be cut off again, for ever. It has to take something, however little; that is seen when the
kernel's buffer takes more of ours, in steps of up to a third of it.
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
    """How long a connection may be full without more, and how long without taking anything. Seconds."""

    grace_s: float = 5.0
    timeout_s: float = 30.0


class Sink:
    """One connection. Subclasses write frames (`transmit`) and say how it ends.

    The connection's owner calls `filled` when a write left the transport full (a frame once taken is never taken
    back), `drained` when it has room again, and `close` when it is over.
    """

    __slots__ = (
        "_moved_at",
        "_slow_limits",
        "_waiting_bytes",
        "closed",
        "full",
        "full_since",
        "idle_since",
        "idle_timeout_s",
        "lagging",
        "push",
        "run_queue",
        "sent",
    )

    def __init__(self, run_queue: RunQueue, slow_limits: SlowLimits) -> None:
        self.run_queue = run_queue
        self._slow_limits = slow_limits
        self.closed = False
        self.full = False
        self.full_since = 0.0
        self._moved_at = 0.0
        """When a full transport was last seen to hold less than before."""
        self._waiting_bytes = 0
        self.sent = False
        """Whether anything was written since the last sweep."""
        self.idle_since = run_queue.seconds()
        self.idle_timeout_s = 0.0
        """How long nothing may be written before `beat`; 0 is for ever."""
        self.lagging: list[Subscription] = []
        """Subscriptions that wait for room."""
        self.push: Callable[[bytes], bool] | None = None
        """Writes a frame's bytes as they are and tells whether there is room for more. A connection that has nothing to
        add to them sets it, and is spared a call or two for each frame; others get them by `transmit`."""

    # What a subclass provides.

    def transmit(self, subscription: "Subscription", frame: Frame) -> None:
        """Writes a frame; `subscription.cursor` stands behind it already. Never called while full or closed."""
        raise NotImplementedError

    def end_subscription(self, subscription: "Subscription") -> None:
        """The topic is deleted or cannot be read on, and the client was told: nothing more comes from it."""
        raise NotImplementedError

    def end_slow(self) -> None:
        """The client has not read for too long: say so, as far as that goes, and end the connection."""
        raise NotImplementedError

    def beat(self) -> None:
        """Nothing was written for `idle_timeout_s`."""

    def waiting_bytes(self) -> int:
        """What was written and is not taken yet: that it becomes less is how a slow client shows that it reads."""
        return 0

    def frame_room(self) -> int:
        """How many bytes a frame that is read for it alone may have."""
        return sys.maxsize

    # What the connection's owner calls.

    def filled(self) -> None:
        """The transport is full: nothing more is written until it has drained."""
        if not self.full:
            self.full = True
            self.full_since = self._moved_at = self.run_queue.seconds()
            self._waiting_bytes = self.waiting_bytes()

    def drained(self) -> None:
        """There is room: whoever waited reads on."""
        if not self.full or self.closed:
            return
        too_old = self.run_queue.seconds() - self.full_since > self._slow_limits.grace_s
        self.full = False
        lagging, self.lagging = self.lagging, []
        for subscription in lagging:
            subscription.too_old |= too_old
            self.run_queue.add(subscription)

    def close(self) -> None:
        """Nothing more is written. The owner cancels its subscriptions."""
        self.closed = True
        self.full = True
        self.lagging = []
        self.push = None

    def sweep(self, now: float) -> None:
        """Looks at the time. Called every now and then for every connection."""
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
    """Looks at all sinks in turn: one timer for all of them, some at a time, none while there are none."""

    def __init__(self, run_queue: RunQueue, period_s: float = 0.25) -> None:
        self._turns = run_queue
        self._period_s = period_s
        self._sinks: set[Sink] = set()
        self._unswept: list[Sink] = []
        self._ticking = False

    def add(self, sink: Sink) -> Callable[[], None]:
        """Sweeps an sink until the returned function is called."""
        self._sinks.add(sink)
        if not self._ticking:
            self._ticking = True
            self._turns.later(self._period_s, self._tick)
        # Forgotten once it is no longer swept: it usually keeps this function, and the two should not wait for a
        # collection of garbage to be rid of each other.
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


# How many long-lived connections there may be: event streams and WebSockets together.


class Connections:
    """Counts what is open, in all and of each key. 0 is no limit."""

    def __init__(self, connections_max: int, per_key_max: int) -> None:
        self._max = connections_max
        self._per_key_max = per_key_max
        self.open = 0
        self._of_key: dict[int, int] = {}

    def enter(self, key: Key) -> Callable[[], None]:
        """Counts a connection in and returns what counts it out, which may be called more than once.

        Raises ThrottledError when there is no room. Without keys there is nobody to count apart.
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
