"""Indexes that are filled as entries come, so that a search finds them filled.

A stream that can be searched is noted when a block of it is published, whoever wrote it: appends of either protocol,
routers, transactions. A moment later what is new goes into its index, one
stream after the other, and never more than there is memory for: a stream that nobody searches takes no index away from
one that somebody does. Answers do not depend on it; a search brings itself what is missing.
"""

from topics.core.errors import SearchUnavailableError, TopicsError
from topics.engine.engine import Engine
from topics.engine.streams.state import stream_of
from topics.engine.topic import Topic
from topics.streams.search.following import Followed, Follower
from topics.streams.search.searcher import Later

LINGER_S = 0.01
"""What comes within this time is brought together."""
_RETRY_S = 1.0


class Ahead:
    def __init__(self, engine: Engine, follower: Follower, later: Later) -> None:
        self._engine = engine
        self._follower = follower
        self._later = later
        self._due: dict[int, Topic] = {}
        """The streams that have something new, in the order in which it came."""
        self._busy = False
        """Whether somebody will look at them without being told again."""
        engine.core.applier.appended.append(self._published)

    def _published(self, topic: Topic) -> None:
        """Notes that a topic has something new. It is called for every block, and has to be quick."""
        if topic.parts is None or topic.id in self._due:
            return
        state = stream_of(topic)
        if state is None or state.description is None or not state.description.is_searched:
            return
        self._due[topic.id] = topic
        if not self._busy:
            self._busy = True
            self._later(LINGER_S, self._next)

    def _next(self) -> None:
        """Brings what is new of the stream that waits longest."""
        while self._due:
            topic = self._due.pop(next(iter(self._due)))
            state = stream_of(topic)
            if self._engine.core.topics.get(topic.id) is not topic or state is None or state.description is None:
                continue
            try:
                followed = self._follower.ahead(topic, state.description)
            except SearchUnavailableError:
                # The server is stopping, or no process can be started; the next append tries again.
                continue
            if followed is not None:
                self._follower.bring(followed, topic.head, self._brought)
                return
        self._busy = False

    def _brought(self, outcome: Followed | TopicsError) -> None:
        # Never at once: that would be a recursion, and entries that come one by one are to be brought together.
        self._later(_RETRY_S if isinstance(outcome, TopicsError) else LINGER_S, self._next)
