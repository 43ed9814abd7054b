"""Publish barrier: operations that are in the log and are not published until a commit elsewhere is decided.

A commit of a transaction writes records to the shards of their topics, and they count once one more frame is on the
disk. Whatever comes to be committed meanwhile for one of these topics stands behind them in the log, so it has to stand
behind them for readers, too: it waits here, and so does what comes behind that, for any topic it concerns. One commit
is decided at a time. So when it is, the whole line moves on at once, in the order in which it came.

Only what was already written waits, never a decision: nothing here can keep the commit itself from being made.
"""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from topics.engine.topic import Topic
from topics.log.commit_requests import CommitTiming
from topics.model.errors import TopicsError

_log = logging.getLogger(__name__)


class PendingPublish(Protocol):
    """An operation that waits to be published (`engine.write_path`)."""

    def finalize(self, timing: CommitTiming) -> None: ...

    def failed(self, error: TopicsError) -> None: ...


class HeldTopics:
    def __init__(self) -> None:
        self.active = False
        """Whether any topic is held: what everyone who publishes asks first."""
        self._topics: set[Topic] = set()
        self._line: deque[tuple[PendingPublish, CommitTiming]] = deque()
        self._lost: dict[Topic, TopicsError] = {}

    def hold(self, submission: PendingPublish, topic: Topic, timing: CommitTiming) -> None:
        """Puts something into the line whose commit is not decided yet."""
        self.active = True
        self._topics.add(topic)
        self._line.append((submission, timing))

    def keeps(self, submission: PendingPublish, topics: Sequence[Topic], timing: CommitTiming) -> bool:
        """Whether something that is in the log has to wait before it is published; then it is finalized from here."""
        for topic in topics:
            if topic in self._lost:
                submission.failed(self._lost[topic])
                return True
        if self._topics.isdisjoint(topics):
            return False
        self._topics.update(topics)
        self._line.append((submission, timing))
        return True

    def release(self) -> None:
        """The commit is decided: everything comes in its order."""
        while self._line:
            # What comes meanwhile joins the end of the line.
            submission, timing = self._line.popleft()
            try:
                submission.finalize(timing)
            except Exception:
                _log.exception("something that had waited could not be published")
        self._topics.clear()
        self.active = bool(self._lost)

    def give_up(self, error: TopicsError) -> None:
        """Nobody can tell whether the commit is on the disk: nothing more is published for its topics until a restart
        has looked."""
        self._lost.update(dict.fromkeys(self._topics, error))
        self._topics.clear()
        line, self._line = self._line, deque()
        for submission, _ in line:
            submission.failed(error)
