"""Acknowledgements of class `remote`: held back until the log up to them is in the backup storage.

An operation of such a topic is logged, synced and published like one of class `fsync`; its answer waits here. Log
shipping takes everybody who waits when it begins an object (`ops.backup.log_shipping`): each of them is in the log
then, so the object has their frames. They are answered once that object and all before it are in the storage.

Operations are published before they are in the storage on purpose: a checkpoint, and with it every backup, needs a
state that is that of the log, whether or not the storage can be reached.

A caller that waits longer than `remote_timeout_ms` is told that the outcome is open: the operation is on the local disk
and readable, and nobody knows whether it would outlive the machine. While the storage fails, new ones are refused.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from topics.model.errors import NoBackupPlaceError, RemoteUnavailableError, ShuttingDownError, TopicsError

Done = Callable[[Any], None]

WAITING_MAX = 100_000
"""Beyond so many held acknowledgements new operations are refused: each is a request that somebody keeps open."""


class HeldAck:
    """One answer that waits."""

    __slots__ = ("deadline", "done", "outcome")

    def __init__(self, done: Done | None, outcome: object, deadline: int) -> None:
        self.done = done
        """None once it was answered."""
        self.outcome = outcome
        self.deadline = deadline

    def answer(self, error: TopicsError | None = None) -> bool:
        """Answers with the outcome, or with an error; whether it still waited."""
        done, self.done = self.done, None
        if done is None:
            return False
        done(self.outcome if error is None else error)
        return True


class RemoteAcks:
    def __init__(self, steady: Callable[[], int], timeout_ms: int, has_storage: bool, restoring: bool) -> None:
        self._steady = steady
        self._timeout_ms = timeout_ms
        self._has_storage = has_storage
        """Whether there is a place that the log can be shipped to."""
        self._restoring = restoring
        """Whether it is a restore that opens the folder: nobody is acknowledged anything."""
        self.failure: str | None = None
        """Why the storage did not take the log the last time it was asked."""
        self.upload_needed: Callable[[], None] = lambda: None
        """Asks for an object to be shipped soon; set by log shipping."""
        self.waiting = 0
        """Acknowledgements that are held back."""
        self.timeouts = 0
        self.used = False
        """Whether anybody waited since the start."""
        self._next: list[HeldAck] = []
        """Waiters that the next object covers."""
        self._order: deque[HeldAck] = deque()
        """All of them, the oldest first."""

    def check(self) -> None:
        """Raises unless an operation that begins now can expect to be acknowledged."""
        if self._restoring:
            return
        if not self._has_storage:
            raise NoBackupPlaceError("class remote needs a backup storage")
        if self.failure is not None:
            raise RemoteUnavailableError(self.failure)
        if self.waiting >= WAITING_MAX:
            raise RemoteUnavailableError(f"{self.waiting} acknowledgements wait for it")

    def hold(self, done: Done, outcome: object) -> None:
        """Answers with the outcome once everything that is logged by now is in the storage."""
        if self._restoring:
            done(outcome)
            return
        held = HeldAck(done, outcome, self._steady() + self._timeout_ms)
        self._next.append(held)
        self._order.append(held)
        self.waiting += 1
        self.used = True
        self.upload_needed()

    @property
    def wants_object(self) -> bool:
        """Whether somebody waits whom no object on its way covers."""
        return bool(self._next)

    def take(self) -> list[HeldAck]:
        """Waiters that an object which begins now will cover."""
        taken, self._next = self._next, []
        return taken

    def retake(self, covered: list[HeldAck]) -> None:
        """The object that was to cover these will not be written."""
        self._next = covered + self._next

    def stored(self, covered: list[HeldAck]) -> None:
        """The object that covers these is in the storage, with all before it."""
        for held in covered:
            if held.answer():
                self.waiting -= 1
        self._trim()

    def expire(self) -> None:
        """Answers those who waited too long."""
        now = self._steady()
        while self._order and self._order[0].deadline <= now:
            if self._order.popleft().answer(RemoteUnavailableError(self.failure or "it did not answer in time", True)):
                self.waiting -= 1
                self.timeouts += 1
        self._next = [held for held in self._next if held.done is not None]

    def close(self) -> None:
        """The engine stops: whatever still waits is on the local disk."""
        for held in self._order:
            if held.answer(ShuttingDownError()):
                self.waiting -= 1
        self._order.clear()
        self._next.clear()

    def _trim(self) -> None:
        while self._order and self._order[0].done is None:
            self._order.popleft()
