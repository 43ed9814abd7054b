"""What was touched lately, and who waits for it: in memory, by generations.

Touches are collected for a moment and then told together: that is a generation, and a cursor is an epoch with the last
generation that somebody knows of. The epoch is the journal's own, so a cursor from before a restart is known for what
it is. For each key the journal remembers the last generation that touched it. What it had to forget, or never knew, it
takes for touched: somebody may look again for nothing, but nobody misses a change.

Those who wait are found by their keys. A generation costs what it touches and whom it wakes, however many wait.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from topics.core.errors import InvalidRequestError

NOW = "now"
ANY_FINE = -1
"""Touched where fine keys could not be told, for those who do not say which templates their keys are of."""
ANYTHING = -2
"""Touched by every change, for those who ask by a template that nobody knows."""


class Generation(NamedTuple):
    """What was told together, and when."""

    number: int = 0
    last_entry: int = -1
    """The last entry of the stream that it comes from."""
    begun_ms: int = 0
    told_ms: int = 0


class Waiter:
    """Somebody who waits; `wake` is called once."""

    __slots__ = ("keys", "wake")

    def __init__(self, keys: frozenset[int], wake: Callable[[], None]) -> None:
        self.keys = keys
        self.wake = wake


class Journal:
    def __init__(self, epoch: str, keys_max: int) -> None:
        self.epoch = epoch
        self.last = Generation()
        self._keys_max = keys_max
        self._touched: dict[int, int] = {}
        """Key -> the last generation that touched it, in the order of those."""
        self._floor = 0
        """Up to this generation it is not known any more what was touched."""
        self._pending: set[int] = set()
        self._all = False
        """Whether everything is taken for touched: something was lost, or it was too much."""
        self._begun_ms = 0
        self._last_entry = -1
        self._waiting: dict[int, set[Waiter]] = {}
        self.waiters = 0
        self.overflows = 0

    @property
    def cursor(self) -> str:
        return f"{self.epoch}:{self.last.number}"

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def size(self) -> int:
        """How many keys it remembers, told or not."""
        return len(self._touched) + len(self._pending)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending) or self._all

    # Touching

    def touch(self, keys: Iterable[int], entry: int, now_ms: int) -> None:
        """Collects keys; `entry` is the one that touches them."""
        if not self.has_pending:
            self._begun_ms = now_ms
        if not self._all:
            self._pending.update(keys)
            if len(self._pending) > self._keys_max:
                self.touch_all(now_ms)
        self._last_entry = max(self._last_entry, entry)

    def touch_all(self, now_ms: int) -> None:
        """Everything counts as touched."""
        if not self.has_pending:
            self._begun_ms = now_ms
        self.overflows += 1
        self._all = True
        self._pending.clear()

    def flush(self, now_ms: int) -> list[Waiter]:
        """Makes a generation of what was collected; those it wakes wait no longer."""
        number = self.last.number + 1
        self.last = Generation(number, self._last_entry, self._begun_ms, now_ms)
        if self._all:
            self._floor = number
            self._touched.clear()
            woken = {waiter for waiters in self._waiting.values() for waiter in waiters}
        else:
            woken = set()
            for key in self._pending:
                self._touched.pop(key, None)
                self._touched[key] = number
                woken |= self._waiting.get(key, frozenset())
            self._forget()
        self._pending, self._all = set(), False
        for waiter in woken:
            self.leave(waiter)
        return list(woken)

    def _forget(self) -> None:
        while len(self._touched) > self._keys_max:
            key = next(iter(self._touched))
            self._floor = max(self._floor, self._touched.pop(key))

    # Waiting

    def read_cursor(self, cursor: str) -> int | None:
        """The generation of a cursor; None for one of another epoch, or of a generation that never was."""
        if cursor == NOW:
            return self.last.number
        epoch, colon, number = cursor.partition(":")
        if not colon or not number.isascii() or not number.isdigit() or len(number) > 18:
            raise InvalidRequestError("wait.cursor: is neither `now` nor a cursor of this route", field="wait.cursor")
        generation = int(number)
        return generation if epoch == self.epoch and generation <= self.last.number else None

    def is_touched(self, keys: frozenset[int], since: int) -> bool:
        """Whether one of the keys was touched behind a generation, as far as that is known."""
        if since < self._floor:
            return True
        touched = self._touched
        return since < self.last.number and any(touched.get(key, 0) > since for key in keys)

    def join(self, waiter: Waiter) -> None:
        self.waiters += 1
        for key in waiter.keys:
            self._waiting.setdefault(key, set()).add(waiter)

    def leave(self, waiter: Waiter) -> None:
        """Forgets somebody, who may have left already."""
        there = False
        for key in waiter.keys:
            waiters = self._waiting.get(key)
            if waiters is not None and waiter in waiters:
                there = True
                waiters.discard(waiter)
                if not waiters:
                    del self._waiting[key]
        self.waiters -= there

    def leave_all(self) -> list[Waiter]:
        """Everybody who waits; nobody does afterwards."""
        everybody = list({waiter for waiters in self._waiting.values() for waiter in waiters})
        self._waiting, self.waiters = {}, 0
        return everybody
