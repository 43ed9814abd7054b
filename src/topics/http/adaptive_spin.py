"""An adaptive spin: the loop stays awake for the next request while requests come densely.

A loop that has nothing to do sleeps in the kernel, and waking it can take longer than answering does: on a virtual
machine some fifty microseconds, and the processor comes back with cold caches. Where the next request is likely to be
here within that time, looking for it again and again is quicker, for the client and in all.

Whether it is likely is learned. A request that came soon after the last one, whether the loop slept meanwhile or not,
speaks for staying awake, and one that did not speaks against it, twice as strongly. So a server with little to do
sleeps like any other, and so does one whose clients need the processor to send their next request. While a thread or
a process of our own is at work on the answers and nobody speaks, the loop sleeps as well: it would only take the
processor from it.
"""

from collections.abc import Callable

_CREDIT_MAX = 8
_CREDIT_NEEDED = 4
_LOSS = 2
_WORK_S = 0.00002
"""A turn that took longer did something; an empty one takes a tenth of it."""

Run = Callable[[], None]


class AdaptiveSpin:
    """`defer` runs a function in the loop's next turn, which then does not sleep; `said` counts what clients say, in
    whatever measure; `window_s` of 0 is never awake."""

    __slots__ = ("_credit", "_defer", "_heard", "_last", "_looked", "_said", "_seconds", "_window_s", "awake", "busy")

    def __init__(
        self, defer: Callable[[Run], object], seconds: Callable[[], float], said: Callable[[], int], window_s: float
    ) -> None:
        self._defer = defer
        self._seconds = seconds
        self._said = said
        self._window_s = window_s
        self._credit = 0
        self._last = 0.0
        """When a client was last heard, or the loop was done with what it said."""
        self._looked = 0.0
        # Without a window it counts as awake for ever and never asks for a turn.
        self.awake = window_s <= 0
        self._heard = 0
        self.busy: list[Callable[[], bool]] = []
        """Each tells whether somebody else is at work on what was asked."""

    def rouse(self) -> None:
        """A client was heard by a loop that is not awake. One that is finds out for itself."""
        now = self._seconds()
        soon, self._last = now - self._last < self._window_s, now
        self._learn(soon)
        if self._credit >= _CREDIT_NEEDED:
            self.awake = True
            self._looked = now
            self._heard = self._said()
            self._defer(self._look)
        else:
            self._defer(self._work)

    def _work(self) -> None:
        """The request is read. What it asks for is done by the end of the next turn."""
        self._defer(self._worked)

    def _worked(self) -> None:
        # A client that waits for its answer can only be silent from here on.
        self._last = self._seconds()

    def _look(self) -> None:
        now = self._seconds()
        turn_s, self._looked = now - self._looked, now
        said = self._said()
        if said != self._heard:
            # The usual turn of a busy server. Whoever speaks is there to be heard, whoever else is at work.
            self._heard = said
            self._last = now
            if self._credit < _CREDIT_MAX:
                self._credit += 1
            self._defer(self._look)
            return
        if turn_s > _WORK_S:
            # The time that the loop itself needs is not time in which a client was silent.
            self._last = now
        elif now - self._last >= self._window_s:
            self.awake = False
            self._learn(False)
            return
        if any([busy() for busy in self.busy]):
            self.awake = False
        else:
            self._defer(self._look)

    def _learn(self, soon: bool) -> None:
        if soon:
            self._credit = min(self._credit + 1, _CREDIT_MAX)
        else:
            self._credit = max(self._credit - _LOSS, 0)
