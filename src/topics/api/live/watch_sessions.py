"""Watch sessions: the topics that a client follows and its cursors, kept while its connection is broken.

A session has a random, unguessable id and belongs to the key that created it. It lives while a stream is open on it,
and `ttl_ms` longer. Expired sessions are removed when a session is created or opened, so that abandoned ones do not
count against the limit.
"""

import base64
from collections import Counter, OrderedDict
from typing import Protocol

from topics.api.auth import ANYONE, Key
from topics.api.error_responses import NotFoundError
from topics.api.live.frames import Projection
from topics.engine.engine import Engine
from topics.model.errors import ThrottledError
from topics.model.limits import MAX_U64
from topics.system.clock import Clock
from topics.system.entropy import Entropy

BEFORE_ALL = MAX_U64
"""The cursor of a reader of an earlier topic of the name: beyond every head, so it gets a `recreated` tombstone."""

_WID_BYTES = 16


class OpenStream(Protocol):
    def give_way(self) -> None:
        """Ends this stream, because another one was opened on the session; its cursors are saved."""
        ...


class Session:
    """The topics to follow, their cursors, and the projection."""

    __slots__ = (
        "cursors", "epochs", "generation", "heartbeat_ms", "idle_since", "instances", "key", "projection", "reborn",
        "stream", "wid",
    )  # fmt: skip

    def __init__(
        self, wid: str, key: Key, projection: Projection, heartbeat_ms: int, cursors: dict[str, int],
        instances: dict[str, int], epochs: dict[str, int],
    ) -> None:  # fmt: skip
        self.wid = wid
        self.key = key
        self.projection = projection
        self.heartbeat_ms = heartbeat_ms
        self.cursors = cursors
        """The last delivered seq of each topic, in the order of the request."""
        self.instances = instances
        """The topic ids of the cursors: a recreated topic of the same name has another id."""
        self.epochs = epochs
        """The epochs of the same topics."""
        self.generation = 0
        """The number of recreated topics found."""
        self.reborn: dict[str, int] = {}
        """For recreated topics, the generation since which their cursors belong to the new topic."""
        self.stream: OpenStream | None = None
        self.idle_since = 0.0

    def meet_topics(self, engine: Engine) -> None:
        """Resets the cursors of topics that were deleted and recreated."""
        for topic, instance in self.instances.items():
            found = engine.find(topic)
            if found is not None and found.created and found.id != instance:
                self.generation += 1
                self.reborn[topic] = self.generation
                self.instances[topic] = found.id
                self.epochs[topic] = found.epoch
                self.cursors[topic] = BEFORE_ALL

    def rewind(self, cursors: dict[str, int], generation: int) -> None:
        """Moves cursors back to the client's position. Never forward: the server's position is authoritative."""
        for topic, mine in self.cursors.items():
            theirs = cursors.get(topic, mine)
            if generation < self.reborn.get(topic, 0) or BEFORE_ALL in (mine, theirs):
                # The client's seq is of the earlier topic.
                self.cursors[topic] = BEFORE_ALL
            else:
                self.cursors[topic] = min(mine, theirs)


class Sessions:
    def __init__(self, sessions_max: int, ttl_ms: int, clock: Clock, entropy: Entropy, per_key_max: int = 0) -> None:
        self.ttl_ms = ttl_ms
        self._max = sessions_max
        self._per_key_max = per_key_max
        self._of_key: Counter[int] = Counter()
        self._clock = clock
        self._entropy = entropy
        self._open: dict[str, Session] = {}
        self._idle: OrderedDict[str, Session] = OrderedDict()
        """Sessions without a stream, the longest idle first."""

    def __len__(self) -> int:
        return len(self._open) + len(self._idle)

    def check_room(self, key: Key) -> None:
        """Raises ThrottledError at the limit, in total or of this key.

        Without authentication there is no limit per key.
        """
        self._collect()
        if self._per_key_max and key is not ANYONE and self._of_key[key.number] >= self._per_key_max:
            raise ThrottledError.over_cap("max_watch_sessions_per_key", self._per_key_max)
        if self._max and len(self) >= self._max:
            raise ThrottledError.over_cap("max_watch_sessions", self._max)

    def create(
        self,
        key: Key,
        projection: Projection,
        heartbeat_ms: int,
        cursors: dict[str, int],
        instances: dict[str, int],
        epochs: dict[str, int],
    ) -> Session:
        self.check_room(key)
        word = base64.urlsafe_b64encode(self._entropy.token(_WID_BYTES)).rstrip(b"=").decode()
        session = Session(f"wid_{word}", key, projection, heartbeat_ms, cursors, instances, epochs)
        self._of_key[key.number] += 1
        self._rest(session)
        return session

    def find(self, wid: str) -> Session:
        """Returns the session. Raises NotFoundError, also for an expired one."""
        self._collect()
        session = self._open.get(wid) or self._idle.get(wid)
        if session is None:
            raise NotFoundError("the watch session does not exist or has expired. Create a new one with POST /v0/watch")
        return session

    def attach(self, session: Session, stream: OpenStream) -> None:
        """Opens a stream on a session without one."""
        assert session.stream is None
        session.stream = stream
        self._idle.pop(session.wid, None)
        self._open[session.wid] = session

    def detach(self, session: Session, stream: OpenStream) -> None:
        """Closes a stream; the session becomes idle."""
        if session.stream is stream:
            session.stream = None
            del self._open[session.wid]
            self._rest(session)

    def _rest(self, session: Session) -> None:
        session.idle_since = self._clock.monotonic()
        self._idle[session.wid] = session

    def _collect(self) -> None:
        latest = self._clock.monotonic() - self.ttl_ms / 1000.0
        while self._idle:
            session = next(iter(self._idle.values()))
            if session.idle_since > latest:
                return
            del self._idle[session.wid]
            self._of_key[session.key.number] -= 1
