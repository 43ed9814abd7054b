"""Acknowledgements of class `remote`: delayed until the log up to them is in the backup storage.

An operation of such a topic is logged, synced and published like one of class `fsync`; only its answer waits here. When
log shipping begins an object (`ops.backup.log_shipping`), all waiting operations are in the log, so the object contains
their frames. They are answered after that object and all earlier ones are stored.

Operations are published before they are stored remotely, because checkpoints and backups need the state of the log even
if the storage is unreachable. On a server with a lease, readers do not see a published block before the object that
covers it is stored (`Topic.visible_head`): a takeover could lose the record and give its seq to another one.

A caller that waits longer than `remote_timeout_ms` gets an error with an open outcome: the operation is on the local
disk and readable, but may not survive a loss of the machine. While the storage fails, new operations are refused.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from topics.engine.topic import Topic
from topics.model.errors import NoBackupPlaceError, RemoteUnavailableError, ShuttingDownError, TopicsError

Done = Callable[[Any], None]

_NEVER = 1 << 62
"""The deadline of entries that are not acknowledgements."""
WAITING_MAX = 100_000
"""The maximum number of delayed acknowledgements; each is an open request. Further operations are refused."""


class HeldAck:
    """A waiting answer."""

    __slots__ = ("deadline", "done", "outcome")

    def __init__(self, done: Done | None, outcome: object, deadline: int) -> None:
        self.done = done
        """None after it was answered."""
        self.outcome = outcome
        self.deadline = deadline

    def answer(self, error: TopicsError | None = None) -> bool:
        """Answers with the outcome or an error. Returns whether it was still waiting."""
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
        """Whether there is a destination for log shipping."""
        self._restoring = restoring
        """Whether a restore has opened the folder, which acknowledges nothing."""
        self.failure: str | None = None
        """The reason why the last upload failed."""
        self.upload_needed: Callable[[], None] = lambda: None
        """Requests an upload soon; set by log shipping."""
        self.waiting = 0
        """The number of delayed acknowledgements."""
        self.timeouts = 0
        self.used = False
        """Whether any operation has waited since the start."""
        self._next: list[HeldAck] = []
        """Waiting answers that the next object covers."""
        self._order: deque[HeldAck] = deque()
        """All waiting answers, oldest first."""
        self._hidden: dict[Topic, None] = {}
        """Topics with hidden blocks that the next object covers."""
        self.leaving: set[Topic] = set()
        """Topics whose change to a lower class is not stored yet. They keep the rules of class `remote`."""
        self.shown: Callable[[Topic], None] = lambda topic: None
        """Wakes the readers of a topic."""

    def check(self) -> None:
        """Raises if a new operation cannot be acknowledged currently."""
        if self._restoring:
            return
        if not self._has_storage:
            raise NoBackupPlaceError("class remote needs a backup storage")
        if self.failure is not None:
            raise RemoteUnavailableError(self.failure)
        if self.waiting >= WAITING_MAX:
            raise RemoteUnavailableError(f"{self.waiting} acknowledgements wait for it")

    def hold(self, done: Done, outcome: object) -> None:
        """Answers with the outcome after everything logged so far is in the storage."""
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
        """Returns whether an answer or a hidden block waits that no upload in flight covers."""
        return bool(self._next or self._hidden)

    def take(self) -> list[HeldAck]:
        """Returns the answers that an object started now covers."""
        taken, self._next = self._next, []
        hidden, self._hidden = self._hidden, {}
        return taken + [HeldAck(partial(self._show, topic), topic.head, _NEVER) for topic in hidden]

    def hide(self, topic: Topic) -> None:
        """A block is published that readers must not see yet (`Topic.hidden_from`)."""
        self._hidden[topic] = None
        self.upload_needed()

    def leave(self, topic: Topic) -> None:
        """A topic gets a lower class; a takeover would not know yet."""
        self.leaving.add(topic)
        self._next.append(HeldAck(self.leaving.discard, topic, _NEVER))
        self.upload_needed()

    def _show(self, topic: Topic, upto: int) -> None:
        topic.hidden_from = upto + 1 if upto < topic.head else 0
        self.shown(topic)

    def retake(self, covered: list[HeldAck]) -> None:
        """Requeues the answers of an object that was not written."""
        self._next = covered + self._next

    def stored(self, covered: list[HeldAck]) -> None:
        """Answers the operations of an object that is stored with all earlier ones."""
        for held in covered:
            if held.answer() and held.deadline != _NEVER:
                self.waiting -= 1
        self._trim()

    def expire(self) -> None:
        """Answers operations that waited too long."""
        now = self._steady()
        while self._order and self._order[0].deadline <= now:
            if self._order.popleft().answer(RemoteUnavailableError(self.failure or "it did not answer in time", True)):
                self.waiting -= 1
                self.timeouts += 1
        self._next = [held for held in self._next if held.done is not None]

    def close(self) -> None:
        """Answers all waiting operations when the engine stops; they are on the local disk."""
        for held in self._order:
            if held.answer(ShuttingDownError()):
                self.waiting -= 1
        self._order.clear()
        self._next.clear()

    def _trim(self) -> None:
        while self._order and self._order[0].done is None:
            self._order.popleft()
