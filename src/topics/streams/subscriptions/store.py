"""Where subscriptions are kept: in a topic of their own, which nobody else sees.

Each change is one record; reading them in order gives the state. When most of them no longer matter the state is
written anew and what stands before it is deleted, as any topic's records can be.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from topics.core.batch import Batch
from topics.core.config import TopicConfig
from topics.core.durability import Durability
from topics.core.errors import TopicsError
from topics.core.names import SUBSCRIPTIONS_TOPIC
from topics.core.records import Record
from topics.core.selectors import DeleteSelector
from topics.engine.engine import Engine
from topics.engine.own_topic import Hidden
from topics.engine.read import ReadRequest, execute_read, plan_read
from topics.engine.results import AppendResult
from topics.engine.topic import Topic
from topics.engine.write.appending import make_topic

NAME = SUBSCRIPTIONS_TOPIC
Done = Callable[[TopicsError | None], None]


class Store:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._guard = Hidden()
        self._topic: Topic | None = engine.core.by_name.get(NAME)
        if self._topic is not None:
            self._topic.guard = self._guard

    def load(self) -> Iterator[dict[str, Any]]:
        """Every change there is, the oldest first."""
        topic, cursor = self._topic, 0
        while topic is not None and cursor < topic.head:
            plan = plan_read(topic, ReadRequest(from_seq=cursor, limit=1000))
            found = execute_read(plan, self._engine.core.reader)
            for record in found.records():
                yield msgspec.convert(record["data"], dict[str, Any])
            cursor = found.next_from_seq

    @property
    def size(self) -> int:
        return self._topic.live_count if self._topic is not None else 0

    def write(self, changes: Sequence[object], done: Done) -> None:
        """Keeps some changes, all of them or none."""
        core = self._engine.core
        topic = self._topic
        if topic is None:
            topic = self._topic = make_topic(core, NAME, TopicConfig(durability=Durability.FSYNC))
            topic.guard = self._guard

        def written(outcome: AppendResult | TopicsError) -> None:
            if isinstance(outcome, TopicsError) and not topic.created:
                self._topic = None
            done(outcome if isinstance(outcome, TopicsError) else None)

        self._engine.write(topic, Batch(records=[Record.of(change) for change in changes]), written)

    def rewrite(self, state: Sequence[object], done: Callable[[], None]) -> None:
        """Puts the whole state in the place of the changes that led to it. `done` is told when that is over, whatever
        became of it: until then everything is there twice, and after a failure as it was."""
        topic = self._topic
        assert topic is not None, "what is rewritten was written before"
        first = topic.staged_head + 1

        def written(error: TopicsError | None) -> None:
            if error is not None:
                done()
                return
            self._guard.lifted = True
            try:
                self._engine.delete_records(NAME, DeleteSelector(first, None), lambda outcome: done())
            except TopicsError:
                done()  # They are only in the way; the next time they go.
            finally:
                self._guard.lifted = False

        try:
            self.write(state, written)
        except TopicsError:
            done()
