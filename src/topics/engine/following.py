"""Following: a running engine applies the log of another one, as a standby does (also known as: log replay).

A recovery applies frames shard by shard, before anybody reads, and reconciles everything at its end. Here readers are
there. So the frames of all shards are applied in the order in which they were logged, by the same functions
(`engine.recovery`), every change is captured for a checkpoint that is running, and after a few milliseconds the topics
so far are reconciled and their readers are woken.

Only complete stretches of the log are applied: `Merge.complete_until` returns the latest moment up to which all shards
are known and every transaction is decided. The order within one millisecond is not known across shards. One kind of
frame depends on it: copies of a router wait for the records that they copy.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import NoReturn

from topics.engine.core import EngineCore
from topics.engine.recovery import LastRun, Recovery
from topics.engine.topic import Topic
from topics.log.forward_frames import parts_of
from topics.log.frame import Frame, FrameKind
from topics.log.fs import FileSystem
from topics.log.replay import LogDamaged
from topics.routers.router_frames import decode_forward
from topics.transactions.transaction_frames import decode_append, decode_committed

UNDECIDED_MS = 30_000
"""So long a transaction may be prepared before it counts as aborted."""
_SKIPPED_MAX = 10_000


class FollowError(Exception):
    """The log does not continue the state: it has to be restored anew."""


class Merge:
    """The frames of all shards behind the applied ones, in the order in which they are applied."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Frame]] = {}
        """By shard, in the order of its log."""
        self._prepared: dict[int, int] = {}
        """Transactions by number, with the moment of their first record."""
        self._decided: dict[int, int] = {}
        """With the moment of their commit."""
        self.committed: set[int] = set()
        self._moment = 0
        self.bytes = 0
        """The memory of the frames that wait."""

    def add(self, shard: int, frame: Frame) -> None:
        """A frame behind those that were added of its shard."""
        self._waiting.setdefault(shard, []).append(frame)
        self.bytes += len(frame.body)
        if frame.kind is FrameKind.TXN_APPEND:
            number = decode_append(frame.body)[0]
            self._prepared.setdefault(number, frame.moment)
        elif frame.kind is FrameKind.TXN_COMMIT:
            number = decode_committed(frame.body).number
            self._decided[number] = frame.moment
            self.committed.add(number)

    def complete_until(self, moment: int) -> int:
        """The latest moment, up to `moment`, at which everything that was logged can be applied."""
        self._moment = max(self._moment, moment)
        for number in [number for number, at in self._decided.items() if at <= self._moment]:
            self._prepared.pop(number, None)
            del self._decided[number]
        # One transaction is decided at a time: all before the one that was prepared last have been aborted.
        oldest = max([begun for begun in self._prepared.values() if begun <= self._moment], default=0)
        oldest = max(oldest, self._moment - UNDECIDED_MS)
        self._prepared = {number: begun for number, begun in self._prepared.items() if begun >= oldest}
        return min([self._moment, *(begun - 1 for begun in self._prepared.values())])

    def take(self, until: int) -> dict[int, list[Frame]]:
        """Removes the frames up to a moment, by shard."""
        taken: dict[int, list[Frame]] = {}
        for shard, frames in self._waiting.items():
            count = next((at for at, frame in enumerate(frames) if frame.moment > until), len(frames))
            if count:
                taken[shard] = frames[:count]
                del frames[:count]
                self.bytes -= sum([len(frame.body) for frame in taken[shard]])
        return taken


_Entry = tuple[int, bool, int, Frame]
_REMOVALS = frozenset((FrameKind.DROP, FrameKind.DELETE, FrameKind.EVICT, FrameKind.DEPARTURE))
"""Of frames of the same millisecond, those that may need records come before those that remove some."""


def _entry(shard: int, frame: Frame) -> _Entry:
    return frame.moment, frame.kind in _REMOVALS, shard, frame


def merged(taken: dict[int, list[Frame]], is_ready: Callable[[Frame], bool]) -> Iterator[Frame]:
    """Frames of several shards by the time they were logged. A frame that is not ready waits for those of other shards.
    Raises FollowError where nothing is left that it could wait for."""
    queues = {shard: iter(frames) for shard, frames in taken.items()}
    heap = [_entry(shard, frame) for shard, rest in queues.items() if (frame := next(rest, None)) is not None]
    heapify(heap)
    held: list[_Entry] = []
    while heap:
        entry = heappop(heap)
        _, _, shard, frame = entry
        if not is_ready(frame):
            held.append(entry)
            continue
        yield frame
        following = next(queues[shard], None)
        if following is not None:
            heappush(heap, _entry(shard, following))
        for other in held:
            heappush(heap, other)
        held.clear()
    if held:
        raise FollowError("the log of a router's source is missing")


class LiveReplay(Recovery):
    """Applies frames to an engine that serves readers."""

    def __init__(self, core: EngineCore, fs: FileSystem, committed: set[int]) -> None:
        """`committed` has the number of every committed transaction, before its records come."""
        super().__init__(core, fs, LastRun("", core.applier.reserve, 0), "", lambda done: None)
        self.committed = committed
        self._skipped: dict[int, None] = {}
        """Transactions whose records were left out."""
        self._fresh: Topic | None = None
        self._gone: set[int] = set()
        """Topics that were replaced by one of the same name before their end came."""
        self._touched: dict[Topic, None] = {}
        self.frames = 0
        """How many were applied."""

    # Frames

    def is_ready(self, frame: Frame) -> bool:
        """Whether everything that a frame refers to is there."""
        if frame.kind is not FrameKind.FORWARD and frame.kind is not FrameKind.FORWARDS:
            return True
        for part in parts_of(frame):
            forward = decode_forward(part.body)
            source = self._core.topic_at(forward.source_id) if not forward.by_value else None
            if source is not None and forward.ranges and source.head < forward.ranges[-1][1]:
                return False
        return True

    def apply(self, frame: Frame) -> None:
        """Applies a frame. Raises FollowError where it does not continue the state."""
        self.frames += 1
        try:
            for part in parts_of(frame):
                self._apply_one(part)
        except (LogDamaged, ValueError) as error:
            raise FollowError(str(error)) from error

    def _apply_one(self, frame: Frame) -> None:
        core = self._core
        topic = core.topic_at(frame.topic_id)
        if topic is None and frame.topic_id in self._gone:
            return
        before = 0
        if topic is not None:
            core.before_change(topic)
            before = topic.live_bytes
        if frame.kind is FrameKind.TXN_COMMIT and decode_committed(frame.body).number in self._skipped:
            raise FollowError("a transaction was committed whose records were left out")
        self._apply(frame)
        created, self._fresh = self._fresh, None
        if created is not None:
            core.add_topic(created)
            core.before_change(created)
            core.total_bytes += created.live_bytes
            self._touched[created] = None
        elif topic is not None and core.exists(topic):
            core.total_bytes += topic.live_bytes - before
            self._touched[topic] = None

    def publish(self) -> None:
        """Reconciles what was applied, and wakes its readers."""
        core = self._core
        touched = list(self._touched)
        self._touched.clear()
        core.applier.overfull.clear()
        try:
            core.features.followed.emit(touched)
        except ValueError as error:
            raise FollowError(str(error)) from error
        for topic in touched:
            topic.staged_head, topic.staged_ts = topic.head, topic.last_ts
            if topic.staged_config is not topic.config:
                topic.staged_config = topic.config
            if topic.kept_bytes or topic.parts is not None:
                core.memory.note(topic)
            if topic.waiters:
                core.wake(topic)

    # Differences to a recovery

    def walk_log(self, visit: Callable[[Frame], None]) -> NoReturn:
        raise FollowError("the log of the last checkpoint is needed")

    def lose(self, topic: Topic, first: int, last: int) -> NoReturn:
        """A recovery reports such records as lost. Here they are only not known any more."""
        raise FollowError(f"the records {first} to {last} of {topic.name} were copied from records that are gone")

    def _begin_topic(self, topic: Topic) -> None:
        core = self._core
        topic.shard = core.shard_number(topic.id)
        other = core.directory.find(topic.name)
        if other is not None:
            # Its end comes with another shard, or its creation failed and was logged.
            self._gone.add(other.id)
            self._end(other)
        core.topics[topic.id] = topic
        self._fresh = topic

    def _leave_out(self, topic: Topic) -> None:
        self._end(topic)

    def _end(self, topic: Topic) -> None:
        core = self._core
        core.before_change(topic)
        topic.closing = True
        core.remove_routers(topic)
        core.remove_topic(topic)
        self._touched.pop(topic, None)
        if topic.waiters:
            core.wake(topic)

    def _is_committed(self, number: int) -> bool:
        if number in self.committed:
            return True
        self._skipped[number] = None
        if len(self._skipped) > _SKIPPED_MAX:
            del self._skipped[next(iter(self._skipped))]
        return False


def applied(replay: LiveReplay, taken: dict[int, list[Frame]], is_due: Callable[[], bool]) -> Iterator[None]:
    """Applies frames of several shards. It pauses where `is_due` and no transaction is half applied; between two pauses
    readers see all of it or nothing."""
    left = Counter(
        [decode_append(f.body)[0] for frames in taken.values() for f in frames if f.kind is FrameKind.TXN_APPEND]
    )
    begun: set[int] = set()
    decided: set[int] = set()
    for frame in merged(taken, replay.is_ready):
        replay.apply(frame)
        if frame.kind is FrameKind.TXN_APPEND:
            number = decode_append(frame.body)[0]
            left[number] -= 1
            (begun.add if left[number] else begun.discard)(number)
        elif frame.kind is FrameKind.TXN_COMMIT:
            decided.add(decode_committed(frame.body).number)
        if not begun and is_due():
            replay.publish()
            yield
    replay.publish()
    replay.committed -= decided
