"""Stream state of a topic: content type, closed, producers, lifetime, forks, contract. Plain values.

There are two kinds of state. Applied state is what readers see, snapshots save and replay rebuilds. Staged state is for
decisions about the next append while earlier ones are in flight; it exists only meanwhile.

Offsets: positions in a stream as text that sorts by position (also known as: cursor, resume token).

    128 bits, big endian:   epoch u32 | counter u64 | in_block u32
    text:                   26 digits of Crockford's base 32, two zero bits in front, capitals

`counter` is the number of entries before the position: 0 is the start, the offset of an entry is the position after
it. `in_block` is the number of bytes of the next entry that also lie before it: 0 in every returned offset, but
earlier releases returned others, and they stay valid. `epoch` identifies the stream: a recreated stream has another
one, so an offset of the old one is refused instead of leading to a wrong position.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

from topics.engine.core import EngineCore
from topics.engine.features import Rebuild
from topics.engine.results import DropDone, DropResult
from topics.engine.topic import Inheritance, Records, Topic
from topics.engine.topic_admin import drop_topic
from topics.engine.write_path import Change, Gate
from topics.log.commit_requests import CommitTiming
from topics.log.frame import Frame, FrameKind
from topics.model.errors import (
    InvalidRequestError,
    OffsetGoneError,
    StreamClosedError,
    StreamGoneError,
    TopicNotFoundError,
    TopicsError,
    quoted,
)
from topics.model.records import Record
from topics.model.seq_ranges import LossReason
from topics.model.topic_config import is_topic_name
from topics.schema.contract import Contract
from topics.streams.chunked_validation import ChunkedValidator, Description, Prepared, Retry
from topics.streams.stream_frames import (
    PART_NAME,
    Origin,
    Producer,
    StreamMark,
    StreamPart,
    decode_part,
    decode_renewal,
    encode_part,
    encode_renewal,
    mark_in,
    part_in,
)
from topics.system.events import Event

PART = PART_NAME
PRODUCERS_MAX = 10_000
"""Maximum producers of a stream; beyond it the least recently used one is forgotten."""

PRODUCER_BYTES = 450
"""Memory of a producer, with an id of usual length twice: as a key and in its state."""
CONTRACT_FACTOR = 4
"""Memory of a contract for each byte of its documents: as they are logged, and decoded."""

JSON_TYPE = "application/json"
_RENEWAL_STEPS = 16
_RENEWAL_MIN_MS = 1_000


class Staged:
    """The staged state: decisions of appends and other changes in flight."""

    __slots__ = ("begun", "closed", "description", "finished", "last_seq", "producers", "waiting")

    def __init__(self, state: "StreamState") -> None:
        self.closed = state.closed
        self.last_seq = state.last_seq
        self.description = state.description
        self.producers: dict[str, Producer] = {}
        self.begun = 0
        self.finished = 0
        self.waiting: deque[tuple[int, Callable[[TopicsError | None], None]]] = deque()
        """Duplicates of appends in flight, each with the number of appends that must finish first: they are answered
        like the originals, and not before them."""

    def when_finalized(self, callback: Callable[[TopicsError | None], None]) -> None:
        """Call back once all changes in flight are applied or have failed."""
        self.waiting.append((self.begun, callback))


class StreamState:
    __slots__ = (
        "closed", "content_type", "description", "ended", "epochs", "expires_ms", "fork", "grace_ms", "last_seq",
        "origin_id", "producers", "refs", "renewed_logged", "renewed_ms", "retired", "retiring", "staged", "ttl_s",
    )  # fmt: skip

    def __init__(self, part: StreamPart) -> None:
        self.content_type = part.content_type
        self.ttl_s = part.ttl_s
        self.expires_ms = part.expires_ms
        self.renewed_ms = self.renewed_logged = part.renewed_ms
        self.grace_ms = 0
        """After a start: the maximum duration of later use that may not have been logged. Never stored."""
        self.closed = part.closed
        self.last_seq = part.last_seq
        self.producers = {producer.id: producer for producer in part.producers} or None
        self.retired = part.retired
        self.retiring = False
        """Whether its retirement is in flight. Never stored."""
        self.origin_id = part.origin.topic_id if part.origin is not None else 0
        self.epochs = tuple(part.epochs)
        self.fork = part.fork
        self.description = Description.decode(part.contract) if part.contract else None
        """The contract; None if there never was one."""
        self.ended = False
        """Whether it was found expired; its deletion is in flight. Never stored."""
        self.refs = 0
        """Number of forks that read from here, including those in flight. Never stored: counted after recovery."""
        self.staged: Staged | None = None

    def part(self, topic: Topic) -> StreamPart:
        """The stream part of a snapshot."""
        origin = topic.origin
        return StreamPart(
            self.content_type, self.ttl_s, self.expires_ms, self.renewed_ms, self.closed, self.last_seq,
            list((self.producers or {}).values()), self.retired,
            Origin(self.origin_id, origin.upto, origin.below) if origin is not None else None, list(self.epochs),
            self.fork, self.description.raw if self.description is not None else b"",
        )  # fmt: skip

    def deadline(self, topic: Topic) -> int | None:
        """When the stream expires, in milliseconds since 1970; None if never."""
        if self.ttl_s is None:
            return self.expires_ms
        # Its creation was its first renewal, and counts no longer than any: the clock may have run ahead then.
        return max(self.renewed_ms + self.grace_ms, topic.last_write_ts) + self.ttl_s * 1000

    @property
    def memory_bytes(self) -> int:
        """The memory of producers and of the contract, estimated. Its compiled schema has a separate budget."""
        producers = PRODUCER_BYTES * len(self.producers) if self.producers is not None else 0
        return producers + (CONTRACT_FACTOR * len(self.description.raw) if self.description is not None else 0)

    def renewal_step_ms(self) -> int:
        """How far logged renewals may lag: a read must not cost a frame each time."""
        return max((self.ttl_s or 0) * 1000 // _RENEWAL_STEPS, _RENEWAL_MIN_MS)

    def apply(self, mark: StreamMark) -> None:
        """Apply the changes of an append or a close; called by live operations and by replay."""
        self.renewed_ms = self.renewed_logged = mark.now_ms
        if mark.seq is not None:
            self.last_seq = mark.seq
        if mark.producer is not None:
            producers = self.producers if self.producers is not None else {}
            producers.pop(mark.producer.id, None)
            producers[mark.producer.id] = mark.producer
            if len(producers) > PRODUCERS_MAX:
                del producers[next(iter(producers))]
            self.producers = producers
        if mark.close:
            self.closed = True

    # Staged changes

    def _begin(self) -> Staged:
        staged = self.staged = self.staged or Staged(self)
        staged.begun += 1
        return staged

    def describe(self, description: Description) -> None:
        """Stage another contract, which applies to every entry decided from now on."""
        self._begin().description = description

    @property
    def staged_description(self) -> Description | None:
        """The contract for the next entry."""
        return self.description if self.staged is None else self.staged.description

    def stage(self, mark: StreamMark) -> None:
        staged = self._begin()
        if mark.seq is not None:
            staged.last_seq = mark.seq
        if mark.producer is not None:
            staged.producers[mark.producer.id] = mark.producer
        if mark.close:
            staged.closed = True

    def unstage(self, error: TopicsError | None) -> None:
        """Settle an append in flight. A failure also fails all later ones, so the whole staged state is dropped."""
        staged = self.staged
        if staged is None:
            return
        staged.finished += 1
        if staged.finished == staged.begun or error is not None:
            self.staged = None
        while staged.waiting and (error is not None or staged.waiting[0][0] <= staged.finished):
            staged.waiting.popleft()[1](error)

    def producer(self, producer_id: str) -> Producer | None:
        """The staged state of a producer."""
        found = self.staged.producers.get(producer_id) if self.staged is not None else None
        if found is None and self.producers is not None:
            found = self.producers.get(producer_id)
        return found


def stream_of(topic: Topic) -> StreamState | None:
    """A topic's stream state; None for a topic that was never used as a stream."""
    found = topic.parts.get(PART) if topic.parts is not None else None
    assert found is None or isinstance(found, StreamState)
    return found


_NO_CONTRACT = Contract()


def contract_of(topic: Topic) -> Contract:
    """The contract of a stream as readers see it."""
    state = stream_of(topic)
    return _NO_CONTRACT if state is None or state.description is None else state.description.contract


def has_versions(topic: Topic) -> bool:
    """Whether lenses may change how entries are shown: only for a stream with a schema."""
    return contract_of(topic).registry.current_version > 0


def is_retired(topic: Topic) -> bool:
    """Whether a topic is deleted for everyone but its forks."""
    state = stream_of(topic)
    return state is not None and state.retired


# Expiry timers: which streams to check when, because they may have expired or lost their last fork.

_A_TICK = 1000
_SET_BACK_MS = 1000
"""A wall clock that goes back by this much was set, not merely corrected."""
_NOW = 0


class Deadlines:
    def __init__(self, at_of: Callable[[int], int | None]) -> None:
        """`at_of` returns when to check a topic, by its id; None if never."""
        self._at_of = at_of
        self._waiting: list[tuple[int, int]] = []
        """Heap of times and topics."""
        self._unfinished: deque[int] = deque()
        """Topics to check every time, in turns: a deletion may have to wait while the log takes no writes."""
        self._shown_ms = 0

    def add(self, at_ms: int, topic_id: int) -> None:
        heappush(self._waiting, (at_ms, topic_id))

    def add_due(self, topic_id: int) -> None:
        """Check a topic the next time, independent of the clock."""
        heappush(self._waiting, (_NOW, topic_id))

    def add_unfinished(self, topic_id: int) -> None:
        """Schedule the next check of a topic."""
        self._unfinished.append(topic_id)

    def due(self, now_ms: int) -> Iterator[int]:
        """Remove and return topics that are due, a bounded number."""
        if now_ms < self._shown_ms - _SET_BACK_MS:
            self._reckon_again()
        self._shown_ms = now_ms
        for _ in range(min(len(self._unfinished), _A_TICK)):
            yield self._unfinished.popleft()
        for _ in range(_A_TICK):
            if not self._waiting or self._waiting[0][0] > now_ms:
                return
            yield heappop(self._waiting)[1]

    def _reckon_again(self) -> None:
        """Reset deadlines after the clock was set back; otherwise expiry would wait until the clock reaches the old
        time again.
        """
        known = [(at, topic_id) for at, topic_id in self._waiting if at == _NOW]
        later = {topic_id for at, topic_id in self._waiting if at != _NOW}
        known += [(at, topic_id) for topic_id in later if (at := self._at_of(topic_id)) is not None]
        heapify(known)
        self._waiting = known


# The stream feature (`engine.features`): frames, snapshot part, and the guard of a stream's topic.
#
# A fork has no copy of what it inherits. It begins after its source's records and reads them where they are, so a fork
# costs the same whatever it inherits. A deleted source with forks is *retired*: invisible, and kept until the last fork
# is gone. The number of forks is counted and never stored, so that no crash can leave a wrong count.

StreamChange = Literal["schema", "profile", "closed", "deleted"]


class StreamFeature:
    name = PART
    kinds = frozenset(
        (
            FrameKind.STREAM_APPEND, FrameKind.STREAM_CREATE, FrameKind.STREAM_CLOSE, FrameKind.STREAM_RENEW,
            FrameKind.STREAM_RETIRE, FrameKind.STREAM_CONTRACT,
        )
    )  # fmt: skip

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._deadlines = Deadlines(self._watched)
        self._validator = ChunkedValidator(core)
        self.changed: Event[StreamChange, Topic] = Event()
        """A stream changed durably; creation and deletion are events of the engine."""
        core.features.add(self)
        self._recovered = False
        self._new_forks: list[Topic] = []
        """Forks that a running standby has found in the log since it was last reconciled."""
        core.second_passed.subscribe(self.tick)
        core.features.followed.subscribe(self._followed)

    # Recovery and checkpoints

    def replay(self, topic: Topic, frame: Frame, rebuild: Rebuild) -> None:
        if frame.kind is FrameKind.STREAM_CREATE:
            self.adopt(topic, part_in(frame))
            if topic.origin is not None and self._recovered:
                self._new_forks.append(topic)
            return
        state = self.state(topic)
        if frame.kind is FrameKind.STREAM_RENEW:
            state.renewed_ms = state.renewed_logged = decode_renewal(frame.body)
        elif frame.kind is FrameKind.STREAM_RETIRE:
            state.retired = True
        elif frame.kind is FrameKind.STREAM_CONTRACT:
            state.description = Description.decode(frame.body)
        else:
            state.apply(mark_in(frame))

    def save(self, topic: Topic) -> bytes:
        state = stream_of(topic)
        return encode_part(state.part(topic)) if state is not None else b""

    def load(self, topic: Topic, part: bytes) -> None:
        self.adopt(topic, decode_part(part))

    def may_page_out(self, topic: Topic) -> bool:
        """Whether a stream has no expiry, no forks and no contract."""
        state = stream_of(topic)
        return state is None or not (
            state.ttl_s is not None or state.expires_ms is not None or state.retired or state.refs or state.ended
            or state.staged is not None or state.description is not None
        )  # fmt: skip

    def reconcile(self) -> None:
        """Forks find their sources again, and everything with an end is put on the list."""
        self._recovered = True
        for topic in list(self._core.topics.values()):
            state = stream_of(topic)
            if state is None:
                continue
            if state.ttl_s is not None:
                # Renewals may have been seen that the log had not been told of yet.
                state.grace_ms = state.renewal_step_ms()
            self.watch_deadline(topic)
            if topic.origin is None:
                continue
            source = self._core.topic_at(state.origin_id)
            if source is None:
                # Only a repair can have lost it; what was inherited is lost with it, and a caller that reads is told.
                self._core.applier.gap(topic, 1, topic.origin.upto, LossReason.CORRUPT)
                topic.origin = None
            else:
                topic.origin.topic = source
                # Folders of earlier versions have them; only a stream whose source is lost still needs its own.
                state.epochs = ()
                self.state(source).refs += 1
        for topic in self._core.topics.values():
            if (state := stream_of(topic)) is not None and state.retired and not state.refs:
                self._deadlines.add_due(topic.id)

    def _followed(self, topics: Sequence[Topic]) -> None:
        for topic in topics:
            state = stream_of(topic)
            if state is None or not self._core.exists(topic):
                continue
            # It was hidden by the clock of this machine, and the primary still uses it.
            state.ended = False
            if state.ttl_s is not None:
                state.grace_ms = state.renewal_step_ms()
        new, self._new_forks = self._new_forks, []
        for topic in new:
            if topic.origin is None or not self._core.exists(topic):
                continue
            source_id = self.state(topic).origin_id
            source = topic.origin.topic = self._core.topic_at(source_id)
            if source is None:
                raise ValueError(f"the source {source_id} of the fork {topic.name} does not exist")
            self.state(source).refs += 1

    # State

    def adopt(self, topic: Topic, part: StreamPart) -> StreamState:
        """Make a topic the stream that a snapshot part describes."""
        state = StreamState(part)
        topic.parts = {**(topic.parts or {}), PART: state}
        topic.guard = self
        if part.origin is not None:
            topic.origin = Inheritance(self._core.topics.get(part.origin.topic_id), part.origin.upto, part.origin.below)
            if topic.head < part.origin.upto:
                topic.head = topic.staged_head = part.origin.upto
                topic.earliest = topic.head + 1
        return state

    def state(self, topic: Topic) -> StreamState:
        """A topic's stream state, which a topic of /v0 gets when it is first needed: its records are JSON."""
        return stream_of(topic) or self.adopt(topic, StreamPart(JSON_TYPE))

    def emit_change(self, change: StreamChange, topic: Topic) -> None:
        self.changed.emit(change, topic)

    def kept(self, topic: Topic) -> None:
        """Count the memory of a stream whose producers or contract changed."""
        self._core.memory.note(topic)

    def check_memory(self, topic: Topic, size: int) -> None:
        """Raise ThrottledError unless a stream may keep so many bytes more in memory."""
        self._core.memory.check(topic, size)

    def watch_deadline(self, topic: Topic) -> None:
        at = self._look_at(topic)
        if at is not None:
            self._deadlines.add(at, topic.id)

    def _look_at(self, topic: Topic) -> int | None:
        """When to check whether a stream has expired; None if it never does."""
        state = stream_of(topic)
        deadline = state.deadline(topic) if state is not None else None
        if state is None or deadline is None or state.ttl_s is None:
            return deadline
        # A deadline that is farther away was computed by a clock that ran ahead, and is corrected at the next use.
        return min(deadline, self._core.wall() + state.ttl_s * 1000)

    def _watched(self, topic_id: int) -> int | None:
        topic = self._core.topics.get(topic_id)
        return self._look_at(topic) if topic is not None else None

    def renew(self, topic: Topic) -> None:
        """Renew the time to live of a stream because it is used."""
        state = stream_of(topic)
        if state is None or state.ttl_s is None:
            return
        now = state.renewed_ms = self._core.wall()
        state.grace_ms = 0
        # Also when the clock was set back: a renewal of tomorrow would keep the stream a day too long.
        behind = abs(now - state.renewed_logged) > state.renewal_step_ms()
        if behind and self._core.path.takes_notes(topic):
            self._core.before_change(topic)
            state.renewed_logged = now
            self._core.path.note(topic, FrameKind.STREAM_RENEW, encode_renewal(now))

    # The guard: what other operations may do to a stream (`engine.topic.Guard`)

    def check_append(self, topic: Topic) -> None:
        state = stream_of(topic)
        if state is None:
            return
        if not is_topic_name(topic.name):
            raise TopicNotFoundError(topic.name)
        if state.retired:
            raise StreamGoneError(topic.name)
        if state.closed or (state.staged is not None and state.staged.closed):
            raise StreamClosedError(topic.name)

    def indifferent(self, topic: Topic, streams: bool) -> bool:
        state = stream_of(topic)
        return (
            state is not None
            and state.staged is None
            and state.description is None
            and not (state.closed or state.retired or state.ended)
            and state.ttl_s is None
            and state.expires_ms is None
            and (state.content_type == JSON_TYPE if streams else is_topic_name(topic.name))
            and not self._validator.is_busy(topic)
        )

    def description(self, topic: Topic) -> Description | None:
        """The contract for the next entry of a stream; None if there is none."""
        state = stream_of(topic)
        description = state.staged_description if state is not None else None
        return None if description is None or description.intake.is_idle else description

    def waits(self, topic: Topic, retry: Retry) -> bool:
        """Whether a batch for this stream is still being validated; then `retry` is called afterwards."""
        return self._validator.waits(topic, retry)

    def rewrites(self, topic: Topic) -> bool:
        return self.description(topic) is not None

    def postpones(self, topic: Topic, records: Sequence[Record], prepared: Prepared | None, retry: Retry) -> bool:
        if prepared is None and self.waits(topic, retry):
            return True
        description = self.description(topic)
        if description is None or (prepared is not None and prepared.description is description):
            return False
        if not description.is_large(records):
            return False
        self._validator.begin(topic, description, records, retry)
        return True

    def admit(
        self, topic: Topic, records: Records, moved: bool, prepared: Prepared | None = None
    ) -> Sequence[Record] | None:
        description = self.description(topic)
        if description is None:
            return None
        if prepared is not None and prepared.description is description:
            if prepared.refusal is not None:
                raise prepared.refusal
            return prepared.records
        return description.admit(records(), self._core.wall(), moved)

    def hides(self, topic: Topic) -> bool:
        """Whether /v0 does not show it: it has expired, or its name is not valid in /v0."""
        return self.over(topic) or not is_topic_name(topic.name)

    def over(self, topic: Topic) -> bool:
        """Whether a stream is visible to no one: expired or retired."""
        state = stream_of(topic)
        return state is not None and (state.retired or self.expired(topic))

    def content_type(self, topic: Topic) -> str | None:
        """The content type of a topic that was used as a stream."""
        state = stream_of(topic)
        return None if state is None else state.content_type

    def expired(self, topic: Topic) -> bool:
        """Whether the stream has expired.

        An expired stream stays expired when the clock is set back before the deletion, because a client may have
        received that answer and created another stream of its content.
        """
        state = stream_of(topic)
        if state is None or state.ended:
            return state is not None
        deadline = state.deadline(topic)
        if deadline is None or self._core.wall() < deadline:
            return False
        state.ended = True
        self._deadlines.add_due(topic.id)
        return True

    def sweep(self, topic: Topic) -> None:
        """Delete a stream that has expired, or a retired one without forks."""
        if topic.created and not topic.closing and self._due(topic) and not self.state(topic).retiring:
            self.drop(topic, lambda outcome: None)

    def _due(self, topic: Topic) -> bool:
        state = self.state(topic)
        return not state.refs if state.retired else self.expired(topic)

    def drop(self, topic: Topic, done: DropDone) -> None:
        """Delete a stream, or retire it while forks read from it."""
        if self.state(topic).refs:
            self._retire(topic, done)
        else:
            drop_topic(self._core, topic, done)

    def _retire(self, topic: Topic, done: DropDone) -> None:
        """Retire a stream: only its forks read it from now on."""
        core, state = self._core, self.state(topic)
        core.path.check(topic, frees=True)
        state.retiring = True

        def retired(timing: CommitTiming) -> None:
            state.retired, state.retiring = True, False
            self.emit_change("deleted", topic)
            # It is deleted for every client except its forks, and its routers are deleted with it.
            core.path.acknowledge(topic, done, DropResult(topic.name, True, core.remove_routers(topic)))
            if not state.refs:
                # The last fork was deleted meanwhile.
                state.refs = 1
                self.release(topic)

        def failed(error: TopicsError) -> None:
            state.retiring = False
            done(error)

        frame = (FrameKind.STREAM_RETIRE, b"", b"")
        core.path.log(Change(core.path, topic, (frame,), retired, failed), Gate.SYNC)

    def removed(self, topic: Topic) -> None:
        """Handle the end of a topic: delete a retired source that only it still read."""
        if topic.origin is not None and topic.origin.topic is not None:
            self.release(topic.origin.topic)

    def release(self, source: Topic) -> None:
        """Release a source: one of its forks is gone, or was never created."""
        state = self.state(source)
        state.refs -= 1
        if state.retired and not state.refs:
            self._deadlines.add_due(source.id)
            self._core.defer(self.tick)

    def tick(self) -> None:
        """Delete streams that are due, a bounded number at a time."""
        core = self._core
        if core.closed:
            return
        for topic_id in self._deadlines.due(core.wall()):
            topic = core.topic_at(topic_id)
            state = stream_of(topic) if topic is not None else None
            if topic is None or state is None:
                continue
            takes_notes = core.path.takes_notes(topic)
            if takes_notes and not self._due(topic):
                if not state.retired:
                    self.watch_deadline(topic)
                continue
            # It stays on the list until it is gone: a log that is busy or short of room refuses its deletion, or fails
            # with it on its way.
            self._deadlines.add_unfinished(topic_id)
            if takes_notes:
                with suppress(TopicsError):
                    self.sweep(topic)


def check_visible(topic: Topic | None, name: str) -> Topic:
    """Returns the topic of that name as users of streams see it: a retired topic differs from a missing one.

    A topic in deletion counts as deleted: its last frame is in flight, and no frame may be logged behind it.
    """
    if topic is None or not topic.created or topic.closing:
        raise TopicNotFoundError(name)
    guard = topic.guard
    if guard is None:
        return topic
    state = stream_of(topic)
    if state is not None and state.retired:
        raise StreamGoneError(name)
    if not isinstance(guard, StreamFeature) or guard.over(topic):
        raise TopicNotFoundError(name)
    return topic


_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_VALUES |= {digit.lower(): value for digit, value in _VALUES.items()}
_VALUES |= {"o": 0, "O": 0, "i": 1, "I": 1, "l": 1, "L": 1}
_PAIRS = tuple(a + b for a in _DIGITS for b in _DIGITS)
_LENGTH = 26
_U32 = 0xFFFFFFFF
_U64 = 0xFFFFFFFFFFFFFFFF

START = "-1"
NOW = "now"


class Position(NamedTuple):
    """A position in the entries of a stream."""

    counter: int
    in_block: int = 0


def encode_offset(epoch: int, counter: int, in_block: int = 0) -> str:
    # Every answer has one or two offsets, and recent ones share their first digits, so those are cached.
    word = (epoch & _U32) << 96 | counter << 32 | in_block
    return _front(word >> _BACK_BITS) + (_digits(word & _BACK_MASK, _BACK_BITS) if in_block else _BACKS[counter & 255])


def _digits(word: int, bits: int) -> str:
    """Two digits at a time."""
    return "".join([_PAIRS[word >> shift & 1023] for shift in range(bits - 10, -1, -10)])


@lru_cache(maxsize=1024)
def _front(word: int) -> str:
    return _digits(word, 90)


_BACK_BITS = 40
_BACK_MASK = (1 << _BACK_BITS) - 1
_BACKS = tuple(_digits(counter << 32, _BACK_BITS) for counter in range(256))
"""The last eight digits of positions between entries, by the low bits of their counters."""


def decode_offset(text: str) -> tuple[int, int, int]:
    """Epoch, counter and in_block. Raises InvalidRequestError for anything that is not 26 digits below 2^128."""
    word = 0
    if len(text) == _LENGTH:
        try:
            for digit in text:
                word = word << 5 | _VALUES[digit]
        except KeyError:
            word = 1 << 128
    if len(text) != _LENGTH or word >> 128:
        raise InvalidRequestError(f"{quoted(text)} is not an offset of this server", field="offset")
    return word >> 96, word >> 32 & _U64, word & _U32


def epoch_at(topic: Topic, counter: int) -> int:
    """The epoch of offsets at a position: entries that a fork inherited keep the epoch of the source."""
    origin = topic.origin
    if origin is not None and counter <= origin.upto:
        return origin.holder(counter)[0].epoch & _U32
    state = stream_of(topic)
    for upto, epoch in state.epochs if state is not None else ():
        if counter <= upto:
            return epoch
    return topic.epoch & _U32


def offset_of(topic: Topic, position: Position) -> str:
    counter, in_block = position
    # A position inside an entry has the epoch of that entry.
    return encode_offset(epoch_at(topic, counter + (in_block > 0)), counter, in_block)


def offsets_of(topic: Topic, counters: Sequence[int]) -> list[str]:
    """The offsets of many positions between entries."""
    state = stream_of(topic)
    if topic.origin is not None or (state is not None and state.epochs):
        return [offset_of(topic, Position(counter)) for counter in counters]
    epoch = (topic.epoch & _U32) << 96 >> _BACK_BITS
    return [_front(epoch | counter >> 8) + _BACKS[counter & 255] for counter in counters]


def tail_offset(topic: Topic) -> str:
    return offset_of(topic, Position(topic.head))


def read_offset(topic: Topic, text: str, *, beyond_end: bool = False) -> Position:
    """The position of an offset in this stream. Raises OffsetGoneError for an offset of another stream, and for one
    beyond the end unless `beyond_end` permits it."""
    if text == START:
        return Position(0)
    epoch, counter, in_block = decode_offset(text)
    if not counter and not in_block and not epoch:
        return Position(0)
    if epoch != epoch_at(topic, counter + (in_block > 0)):
        raise OffsetGoneError(
            f"the offset {text} belongs to another stream of the name {quoted(topic.name)}", stream=topic.name
        )
    if counter > topic.head or (counter == topic.head and in_block):
        if beyond_end:
            return Position(counter)
        raise OffsetGoneError(f"the offset {text} is beyond the end of stream {quoted(topic.name)}", stream=topic.name)
    return Position(counter, in_block)
