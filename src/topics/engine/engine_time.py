"""The engine's two readings of time, and how a moment of one becomes a moment of the other.

| | from | for |
|---|---|---|
| `wall` | the machine's clock, which is set forward and back at times | timestamps, ages, windows, what is told |
| `steady` | the monotonic clock, counted on from the wall time of the start | leases, delays, alarms, intervals |

A duration that began is over when that much time has passed, whatever happens to the clock on the wall meanwhile. What
is told of its end, in an answer or in the log, is wall time: `told`. What the log says of it is taken up after a
restart by `resumed`: the wall clock tells how long nobody was there, but no duration becomes longer by it than it was.
"""

from topics.formats.queue import Ending
from topics.system.clock import Clock

_JITTER_MS = 5
"""So far apart the two clocks may be by rounding and by reading one after the other."""


class EngineTime:
    def __init__(self, clock: Clock) -> None:
        self.wall = clock.now_ms
        """Milliseconds since 1970. May jump, also backwards."""
        self._monotonic = clock.monotonic
        self._origin = clock.now_ms() - self._passed()
        self._moment = 0
        self._ahead = 0

    def _passed(self) -> int:
        return round(self._monotonic() * 1000)

    def steady(self) -> int:
        """Milliseconds that never jump and never run back; those of the wall when the process began, and no other's."""
        return self._origin + self._passed()

    def moment(self) -> int:
        """The wall's time for the log: where the clock was set back it stands still. So of two frames, in whichever
        shards, the one that follows from the other never has the lower one, and the log of one run can be cut at a
        moment.
        """
        now = self.wall()
        if now > self._moment:
            self._moment = now
        return self._moment

    def end_moment(self) -> int:
        """The moment of everything that was logged so far; whatever comes has a later one, also where the clock was set
        back and `moment` stands still.
        """
        ended = self.moment()
        self._moment = ended + 1
        return ended

    def told(self, moment: int) -> int:
        """A steady moment as the clock on the wall would have it now; the same as before while that runs evenly."""
        ahead = self.wall() - self.steady()
        if abs(ahead - self._ahead) > _JITTER_MS:
            self._ahead = ahead
        return moment + self._ahead

    def ending(self, moment: int) -> Ending:
        """A steady moment as the log has it."""
        return Ending(self.told(moment), max(moment - self.steady(), 0))

    def resumed(self, ending: Ending) -> int:
        """The steady moment of an end that another process told; one that came meanwhile stays in the past."""
        left = ending.time - self.wall()
        return self.steady() + (left if ending.lasts_ms is None else min(left, ending.lasts_ms))
