"""Operations on their way through the log: what each does once its frames are safe, or when they could not be.

`done` is told the outcome exactly once, on the loop thread: a result, or the error. An operation that can be refused
at once raises instead, before anything is staged or logged.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from topics.core.config import TopicConfig
from topics.core.errors import TopicsError
from topics.engine.core import EngineCore
from topics.engine.runs import Block
from topics.engine.tags import SeqRange
from topics.engine.topic import Topic
from topics.storage.commit import CommitTiming, Submission


class AppendResult(msgspec.Struct, frozen=True, gc=False):
    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    created: bool = False
    deduped: bool = False
    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0
    throttle_wait_ms: float = 0.0
    """How long the append waited to be let in."""

    @property
    def count(self) -> int:
        return self.last_seq - self.first_seq + 1


class PutResult(msgspec.Struct, frozen=True):
    topic: str
    created: bool
    config: TopicConfig


class DropResult(msgspec.Struct, frozen=True):
    topic: str
    deleted: bool
    routers_removed: list[str] = []
    """The routers that had it as source or destination."""


class DeleteResult(msgspec.Struct, frozen=True):
    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


AppendDone = Callable[[AppendResult | TopicsError], None]
PutDone = Callable[[PutResult | TopicsError], None]
DropDone = Callable[[DropResult | TopicsError], None]
DeleteDone = Callable[[DeleteResult | TopicsError], None]


class Passenger(Protocol):
    """What rides on a batch (`engine.appending.Rider`), as far as the operation has to know it."""

    def applied(self, topic: Topic) -> None: ...

    def undone(self, topic: Topic, error: TopicsError) -> None: ...


class TopicOperation(Submission):
    """Something that changes one topic. While it waits for a sync, later operations of the topic wait behind it."""

    __slots__ = ("_core", "topic")

    def __init__(self, core: EngineCore, topic: Topic, pieces: list[bytes], needs_sync: bool) -> None:
        super().__init__(pieces, needs_sync)
        self._core = core
        self.topic = topic
        topic.sync_inflight += needs_sync

    def committed(self, timing: CommitTiming) -> None:
        topic, core = self.topic, self._core
        topic.sync_inflight -= self.needs_sync
        core.before_change(topic)
        before, floor, unlogged = topic.live_bytes, topic.evict_floor, topic.unlogged and bool(topic.segments)
        self.apply(timing)
        core.total_bytes += topic.live_bytes - before
        if unlogged and topic.evict_floor > floor:
            core.log_eviction(topic, expired=False)
        if topic.waiters:
            core.wake(topic)

    def failed(self, error: TopicsError) -> None:
        self.topic.sync_inflight -= self.needs_sync
        self.undo(error)
        if not self.topic.created:
            # Others may have waited for it to come to be.
            self._core.wake(self.topic)

    def apply(self, timing: CommitTiming) -> None:
        raise NotImplementedError

    def undo(self, error: TopicsError) -> None:
        raise NotImplementedError


def unstage(core: EngineCore, topic: Topic, block: Block) -> None:
    """A block is no longer on its way: it is published, or it failed."""
    topic.staged_count -= block.count
    topic.staged_bytes -= block.payload_bytes
    core.staged_bytes -= block.payload_bytes


class AppendOperation(TopicOperation):
    """A batch: published when committed, as if it had never been when not."""

    __slots__ = ("_after", "_block", "_ceiling", "_created", "_done", "_rider", "askers", "followers")

    def __init__(
        self,
        core: EngineCore,
        topic: Topic,
        pieces: list[bytes],
        needs_sync: bool,
        block: Block,
        ceiling: int,
        created: bool,
        after: Callable[[Topic], None],
        done: AppendDone,
        rider: Passenger | None = None,
    ) -> None:
        # Every field at once instead of through two constructors: this is made for each append there is.
        self._core = core
        self.topic = topic
        self.pieces = pieces
        self.size = len(pieces[0]) if len(pieces) == 1 else sum([len(piece) for piece in pieces])
        self.needs_sync = needs_sync
        self.askers = 1
        self.last_lsn = 0
        topic.sync_inflight += needs_sync
        self._block = block
        self._ceiling = ceiling
        self._created = created
        self._after = after
        self._done = done
        self._rider = rider
        self.followers: list[AppendDone] | None = None
        """Others that sent the same idempotency key while this was on its way."""

    def apply(self, timing: CommitTiming) -> None:
        core, topic, block = self._core, self.topic, self._block
        last = block.first_seq + block.count - 1
        if not topic.created:
            core.add_topic(topic)
        unstage(core, topic, block)
        if self._ceiling > topic.ceiling:
            topic.ceiling = self._ceiling
        core.applier.append(topic, block)
        self._after(topic)
        if block.key is not None:
            self._forget_key()
        if self._rider is not None:
            self._rider.applied(topic)
        self._done(
            AppendResult(
                topic.name, block.first_seq, last, topic.head, self._created, False, timing.write_ms, timing.sync_ms
            )
        )
        if self.followers is not None:
            for follower in self.followers:
                follower(deduped(topic.name, block.first_seq, last))

    def undo(self, error: TopicsError) -> None:
        topic, block = self.topic, self._block
        unstage(self._core, topic, block)
        topic.staged_head = min(topic.staged_head, block.first_seq - 1)
        if self._created and self._core.by_name.get(topic.name) is topic:
            del self._core.by_name[topic.name]
        self._forget_key()
        if self._rider is not None:
            self._rider.undone(topic, error)
        self._done(error)
        for follower in self.followers or ():
            follower(error)

    def _forget_key(self) -> None:
        keys = self.topic.inflight_keys
        if self._block.key is not None and keys is not None:
            keys.pop(self._block.key, None)


def deduped(topic: str, first_seq: int, last_seq: int) -> AppendResult:
    """The answer to a repeated key: the seqs of the first write and the head as it was then."""
    return AppendResult(topic, first_seq, last_seq, last_seq, created=False, deduped=True)


class StateOperation(TopicOperation):
    """A change of what a topic is besides its records; whoever decided it also knows what it does and undoes."""

    __slots__ = ("_applied", "_failed")

    def __init__(
        self,
        core: EngineCore,
        topic: Topic,
        pieces: list[bytes],
        applied: Callable[[], None],
        failed: Callable[[TopicsError], None],
    ) -> None:
        super().__init__(core, topic, pieces, needs_sync=True)
        self._applied = applied
        self._failed = failed

    def apply(self, timing: CommitTiming) -> None:
        self._applied()

    def undo(self, error: TopicsError) -> None:
        self._failed(error)


class PutOperation(TopicOperation):
    """A topic's creation, or a new config for it."""

    __slots__ = ("_config", "_done")

    def __init__(self, core: EngineCore, topic: Topic, pieces: list[bytes], config: TopicConfig, done: PutDone) -> None:
        super().__init__(core, topic, pieces, needs_sync=True)
        self._config = config
        self._done = done

    def apply(self, timing: CommitTiming) -> None:
        topic, created = self.topic, not self.topic.created
        if created:
            self._core.add_topic(topic)
        else:
            latest = topic.staged_config
            self._core.applier.configure(topic, self._config, topic.head)
            topic.staged_config = latest
        self._done(PutResult(topic.name, created, self._config))

    def undo(self, error: TopicsError) -> None:
        topic = self.topic
        topic.staged_config = topic.config
        if not topic.created and self._core.by_name.get(topic.name) is topic:
            del self._core.by_name[topic.name]
        self._done(error)


class DropOperation(TopicOperation):
    """A topic's end."""

    __slots__ = ("_done",)

    def __init__(self, core: EngineCore, topic: Topic, pieces: list[bytes], done: DropDone) -> None:
        super().__init__(core, topic, pieces, needs_sync=True)
        self._done = done
        topic.closing = True

    def apply(self, timing: CommitTiming) -> None:
        topic = self.topic
        routers = self._core.dropped_with(topic)
        self._core.remove_topic(topic)
        self._done(DropResult(topic.name, True, routers))
        waiting, topic.when_gone = topic.when_gone, None
        for retry in waiting or ():
            retry()

    def undo(self, error: TopicsError) -> None:
        topic = self.topic
        topic.closing = False
        self._core.wake(topic)
        self._done(error)
        waiting, topic.when_gone = topic.when_gone, None
        for retry in waiting or ():
            retry()


class DeleteOperation(TopicOperation):
    """A permanent delete of the seqs it decided on."""

    __slots__ = ("_before_seq", "_done", "_ranges")

    def __init__(
        self,
        core: EngineCore,
        topic: Topic,
        pieces: list[bytes],
        needs_sync: bool,
        before_seq: int,
        ranges: list[SeqRange],
        done: DeleteDone,
    ) -> None:
        super().__init__(core, topic, pieces, needs_sync)
        self._before_seq = before_seq
        self._ranges = ranges
        self._done = done

    def apply(self, timing: CommitTiming) -> None:
        topic = self.topic
        deleted_count = self._core.applier.delete(topic, self._before_seq, self._ranges)
        self._done(
            DeleteResult(topic.name, deleted_count, topic.earliest, topic.head, topic.live_count, topic.live_bytes)
        )

    def undo(self, error: TopicsError) -> None:
        self._done(error)
