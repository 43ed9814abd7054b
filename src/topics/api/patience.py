"""A request that waits: until something changes, until its time is over, or until its client or the server goes.

Whoever waits reads and asks to be woken in the same tick of the loop, so nothing can slip in between.
"""

import asyncio
from collections.abc import Callable

from topics.api.calls import Call

Watch = Callable[[Callable[[], None]], Callable[[], None]]
"""Asks to be told of the next change; returns what takes the wish back."""


class Patience:
    """Calls `again` after each change that was waited for, and a last time when the waiting is `over`."""

    def __init__(self, call: Call, wait_s: float, again: Callable[[], None]) -> None:
        self._call = call
        self._wait_s = wait_s
        self._again = again
        self._timer: asyncio.TimerHandle | None = None
        self._unwatch: Callable[[], None] | None = None
        self.over = False
        """Whether the next answer is the last: there will be no more waiting."""

    def wait(self, watch: Watch) -> None:
        """Waits for a change; the time for all waits together begins with the first."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait_s, self.end)
            self._call.on_gone(self.stop)
            self._call.waits.add(self)
        self._unwatch = watch(self._woken)

    def end(self) -> None:
        """Has `again` answer with what there is; also when the server stops."""
        if not self.over:
            self.stop()
            self._again()

    def stop(self) -> None:
        """No more waiting: the request is answered, or nobody wants the answer."""
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
            self._call.waits.discard(self)
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def _woken(self) -> None:
        self._unwatch = None
        if not self.over:
            self._again()
