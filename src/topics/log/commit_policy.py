"""Commit policy of group commit: how long a commit waits for more. Pure; `log.commit_thread` carries it out.

On the loop (`TickWindow`), after a group of several callers the next one stays open for two more ticks, if they are
short, and as long as some of those are missing who came lately. A small group that needs no sync is written by the loop
itself, unless a write was made to wait not long ago.

On the thread (`CommitWindow`), after a commit that several waited for the next one lingers for half as many, a slice at
a time. Under pressure every commit of its that syncs waits for company, for a wider window.

Where few wait for a sync and syncs are short (`LoopSyncs`), the loop does not hand it to the thread: both ways between
the two take longer, the more so the busier the loop is, which the thread has to get the interpreter from.

Both sides count callers and not submissions: one submission may stand for many. Times are in seconds, of any clock.
"""

from collections.abc import Callable

SLICE_S = 0.00005
"""How long the thread lingers at a time for the rest of a cohort; about half of what a sync costs."""
SILENCE = 0.1
"""How long it does so in a widened window, as a part of it."""

AT_ONCE_BYTES = 1024 * 1024
"""The largest group the loop writes itself; it takes a fifth of a millisecond."""
SYNC_AT_ONCE_BYTES = 32 * 1024
"""The largest group that it also syncs."""
WARY_GROUPS = 64
"""How many groups the thread writes after a write that was made to wait."""

COMPANY = 4
"""A group of so many callers is worth waiting for the next time."""
COMPANY_TICKS = 2
COMPANY_S = 0.0003

LONE_GROUPS = 8
"""So many groups in a row, each of a single caller while nobody else was heard, make a lone client."""
LOOP_SYNC_S = 0.001
LONE_SYNC_S = 0.002
"""The loop syncs by itself where that takes no longer than this, in the mean; for a lone client on somewhat slower
disks, too, as it keeps only those waiting who follow."""
LOOP_SYNC_SHARE = 0.1
"""How much of its time it spends so while others ask for something, too."""
LOOP_SYNC_SAVED_S = 0.02
LOOP_SYNC_LONG_S = 0.004
WARY_SYNCS = 16
WARY_SYNCS_MAX = 1024
"""How many groups the thread syncs after one that took the loop long: twice as many each time, at most. Each that does
not makes it one less. So a disk that hesitates now and then costs next to nothing, and one that is
in trouble is soon left to the thread."""

_UNKNOWN_S = 0.01
"""Assumed duration of a sync before the first measurement, which the thread makes."""


class TickWindow:
    """Decides on the loop when a group is complete, and whether the loop may write it."""

    __slots__ = ("_most", "_stalls", "_until", "_wary", "company", "ticks_left")

    def __init__(self) -> None:
        self.company = 0
        """How many callers the last group had."""
        self._most = 0
        """How many come, as far as the last groups tell: the most of them, and a little less with every smaller one.
        By the last one alone groups would only ever get smaller."""
        self.ticks_left = 0
        """For how many ticks more the group may stay open; with none nobody needs to look at a clock."""
        self._until = 0.0
        self._stalls = 0
        self._wary = 0
        """Groups that are left to the thread because of a stall."""

    def open(self, seconds: Callable[[], float]) -> None:
        """The first of a group is there. Where those of the last one are not worth waiting for, the clock is not asked
        at all."""
        if self.company < COMPANY:
            self.ticks_left = 0
        else:
            self.ticks_left = COMPANY_TICKS
            self._until = seconds() + COMPANY_S

    def close(self, callers: int) -> None:
        """A group of so many is handed over."""
        self.company = callers
        self._most = max(callers, self._most - (self._most >> 3) - 1)

    def stays_open(self, now: float, callers: int = 0) -> bool:
        """A tick is over: whether the group waits for one more. So many are in it, as far as that is known."""
        if not self.ticks_left or now >= self._until or callers >= self._most > 0:
            return False
        self.ticks_left -= 1
        return True

    def is_wary(self, stalls: int) -> bool:
        """Whether this group is left to the thread; `stalls` counts the writes so far that were made to wait."""
        if self._stalls != stalls:
            self._stalls, self._wary = stalls, WARY_GROUPS
        if not self._wary:
            return False
        self._wary -= 1
        return True


class InlineSyncPolicy:
    """Decides on the loop whether it syncs a group itself: for a lone client, which is all there is to do, and for few
    callers beside others, as long as that takes little of its time. One for all logs that the loop writes.

    `heard` counts what clients have asked for so far, whoever they are.
    """

    __slots__ = ("_caution", "_heard", "_heard_before", "_mean_s", "_saved_s", "_seen", "_streak", "_wary")

    def __init__(self, heard: Callable[[], int]) -> None:
        self._heard = heard
        self._heard_before = 0
        self._streak = 0
        """How many groups in a row were of a lone client."""
        self._wary = 0
        """Groups that are left to the thread because of a sync that took long."""
        self._caution = WARY_SYNCS
        """How many it will be the next time."""
        self._mean_s = _UNKNOWN_S
        self._seen = 0.0
        self._saved_s = 0.0
        """How much of its time the loop may spend on syncs beside others."""

    def synced(self, took_s: float, by_loop: bool) -> None:
        """A sync is done that one caller waited for, or the loop did."""
        self._mean_s += (took_s - self._mean_s) / 8
        if by_loop:
            self._saved_s = max(self._saved_s - took_s, -LOOP_SYNC_SAVED_S)
            if took_s > LOOP_SYNC_LONG_S:
                self._wary = self._caution
                self._caution = min(2 * self._caution, WARY_SYNCS_MAX)
            elif self._caution > WARY_SYNCS:
                self._caution -= 1

    def allows(self, callers: int, now: float, wide: bool = False) -> bool:
        """A group that waits for a sync is complete: whether the loop syncs it. `wide` says that the server is under
        pressure, so that groups wait for company on the thread; a lone client would wait in vain."""
        heard = self._heard()
        self._streak = self._streak + 1 if callers == 1 and heard - self._heard_before == 1 else 0
        self._heard_before = heard
        self._saved_s = min(self._saved_s + (now - self._seen) * LOOP_SYNC_SHARE, LOOP_SYNC_SAVED_S)
        self._seen = now
        if self._wary:
            self._wary -= 1
            return False
        if self._streak > LONE_GROUPS:
            return self._mean_s <= (LOOP_SYNC_S if wide else LONE_SYNC_S)
        return not wide and callers < COMPANY and self._mean_s <= min(self._saved_s, LOOP_SYNC_S)


class CommitWindow:
    """Decides on the thread how long a commit waits for more before it writes and syncs."""

    __slots__ = ("_cohort", "_until", "_wide_s", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._wide_s = 0.0
        self._until = 0.0
        self._cohort = 0
        """How many callers the last commit synced for."""

    def widen(self, window_s: float) -> None:
        """Lets commits that sync wait so long for company, whether or not there was any before; 0 ends it.

        May be called from another thread: it counts from the next commit on.
        """
        self._wide_s = window_s

    @property
    def is_wide(self) -> bool:
        return self._wide_s > 0

    def open(self, now: float) -> None:
        """A commit begins."""
        self._until = now + max(self._window_s, self._wide_s)

    def linger_s(self, waiting: int, now: float) -> float:
        """How long to wait for more, while so many callers wait for the sync; 0 is not at all."""
        wide_s = self._wide_s
        # Half of the last cohort is enough: the others are being answered and will make the next commit.
        if not waiting or not (wide_s or waiting * 2 < self._cohort):
            return 0.0
        return max(min(max(SLICE_S, wide_s * SILENCE), self._until - now), 0.0)

    def close(self, waiting: int) -> None:
        """Nothing more came: the commit is for these."""
        self._cohort = waiting
