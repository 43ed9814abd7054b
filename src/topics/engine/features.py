"""Features: frame kinds and topic state that queues, routers, streams and transactions add to the log.

A feature (queues, routers, streams) owns frame kinds and a part of the topic's state. The log, checkpoints and recovery
do not refer to features by name: they find the feature by the kind of a frame or by the name of a part. `replay`
repeats the effect that a frame had when it was logged.

The block inside a frame of any kind that carries one.

    APPEND                         the body is the block
    ARRIVAL                        the block follows the origin of its records (`queues.queue_frames`)
    STREAM_APPEND, STREAM_CREATE   the block follows the changes of its stream (`streams.stream_frames`)
    TXN_STAGE, TXN_APPEND          the block follows its transaction (`transactions.transaction_frames`)
    FENCE                          the block, if there is one, follows the token (`log.frame`)
    SCHEDULE                       the block, if there is one, follows the mark (`schedules.schedule_frames`)

A FORWARD carries no block: its records are those of another topic's frames (`routers.router_frames`).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from topics.engine.topic import Topic
from topics.log.frame import Frame, FrameKind, decode_fence
from topics.queues.queue_frames import decode_arrival
from topics.schedules.schedule_frames import decode_schedule
from topics.streams.stream_frames import stream_block_in
from topics.system.events import Event
from topics.transactions.transaction_frames import decode_append, staged_block


class Rebuild(Protocol):
    """The services of recovery for a feature that replays a frame."""

    def walk_log(self, visit: Callable[[Frame], None]) -> None:
        """Passes every frame of the log after the snapshots, in all shards, to a function."""
        ...

    def lose(self, topic: Topic, first: int, last: int) -> None:
        """Reports seqs whose records cannot be rebuilt."""
        ...


class Feature(Protocol):
    """The interface of a feature for recovery and checkpoints, called on the loop's thread or before it starts."""

    name: str
    """The name of its part in `Topic.parts` and in snapshots; never reused."""
    kinds: frozenset[FrameKind]
    """The frames it writes, each with the topic it belongs to."""

    def replay(self, topic: Topic, frame: Frame, rebuild: Rebuild) -> None:
        """Repeats the effect of the frame. Raises ValueError for a malformed body."""
        ...

    def save(self, topic: Topic) -> bytes:
        """Returns the feature's part of a topic for a snapshot; empty if there is nothing to store."""
        ...

    def load(self, topic: Topic, part: bytes) -> None:
        """Restores a saved part. The topic's records follow later."""
        ...

    def reconcile(self) -> None:
        """Called after recovery has read everything, to finish changes that affect several topics."""
        ...

    def may_page_out(self, topic: Topic) -> bool:
        """Whether a topic with a part of this feature may be paged out (`engine.topic_paging`): `load` restores all of
        it, and neither `reconcile` nor another structure of the feature needs it."""
        ...


class Features:
    """Every feature the engine has."""

    def __init__(self) -> None:
        self._by_kind: dict[FrameKind, Feature] = {}
        self._by_name: dict[str, Feature] = {}
        self.followed: Event[Sequence[Topic]] = Event()
        """A standby has replayed frames of these topics in a running engine: they are reconciled at once, as
        `Feature.reconcile` does for all topics at the end of a recovery."""

    def add(self, feature: Feature) -> None:
        self._by_name[feature.name] = feature
        for kind in feature.kinds:
            self._by_kind[kind] = feature

    def replay(self, topic: Topic, frame: Frame, rebuild: Rebuild) -> None:
        self._by_kind[frame.kind].replay(topic, frame, rebuild)

    def save(self, topic: Topic) -> dict[str, bytes]:
        if topic.parts is None:
            return {}
        saved = {name: self._by_name[name].save(topic) for name in topic.parts}
        return {name: part for name, part in saved.items() if part}

    def load(self, topic: Topic, parts: dict[str, bytes]) -> None:
        for name, part in parts.items():
            self._by_name[name].load(topic, part)

    def may_page_out(self, topic: Topic) -> bool:
        return all([self._by_name[name].may_page_out(topic) for name in topic.parts or ()])

    def reconcile(self) -> None:
        for feature in self._by_name.values():
            feature.reconcile()


class CrossShardGate:
    """Prevents changes of topics of two shards from straddling a checkpoint.

    Shards turn to a new log file one after the other. A change with a frame in each of two shards, or with a frame that
    points into another shard's log, must lie before the turn in both or behind it in both, or the snapshot would hold
    one half of it. So a checkpoint waits for those that are on their way, and those that come meanwhile wait for it.
    """

    def __init__(self) -> None:
        self.closed = False
        self._open = 0
        self._held: list[Callable[[], None]] = []
        self._resume: Callable[[], None] | None = None

    def enter(self, start: Callable[[], None]) -> None:
        """Calls `start` now, or when the checkpoint has rotated every shard; it must be followed by one `leave`."""
        if self.closed:
            self._held.append(start)
        else:
            self._open += 1
            start()

    def leave(self) -> None:
        """Called when the change is applied or failed."""
        self._open -= 1
        if not self._open and self._resume is not None:
            resume, self._resume = self._resume, None
            resume()

    def close(self, resume: Callable[[], None]) -> None:
        """Blocks new changes, and calls back when none is in flight."""
        self.closed = True
        if self._open:
            self._resume = resume
        else:
            resume()

    def reopen(self) -> None:
        self.closed = False
        held, self._held = self._held, []
        for start in held:
            self.enter(start)


BLOCK_KINDS = frozenset(
    (
        FrameKind.APPEND, FrameKind.ARRIVAL, FrameKind.STREAM_APPEND, FrameKind.STREAM_CREATE, FrameKind.TXN_STAGE,
        FrameKind.TXN_APPEND, FrameKind.FENCE, FrameKind.SCHEDULE,
    )
)  # fmt: skip
"""The frames that may carry a block; a stream may be created, and a fence or a schedule set, without one."""


def block_in(kind: FrameKind, body: memoryview) -> memoryview | None:
    """Returns the block of a frame; None if it has none."""
    if kind is FrameKind.APPEND:
        return body
    if kind is FrameKind.ARRIVAL:
        return decode_arrival(body)[1]
    if kind is FrameKind.TXN_APPEND:
        return decode_append(body)[1]
    if kind is FrameKind.TXN_STAGE:
        return staged_block(body)
    if kind is FrameKind.FENCE:
        return decode_fence(body)[1]
    if kind is FrameKind.SCHEDULE:
        return decode_schedule(body)[1]
    return stream_block_in(kind, body) if kind in BLOCK_KINDS else None
