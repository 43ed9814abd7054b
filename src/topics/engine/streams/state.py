"""What makes a topic a stream: content type, closure, producers, lifetime, forks, what it promises about its entries.
Plain values, as `engine.topic` has.

Two kinds of state stand side by side. What is applied is what readers are told, what snapshots save and what replay
builds. What is staged holds for decisions about the next append while earlier ones are still on their way to the disk;
it exists only meanwhile.
"""

from collections import deque
from collections.abc import Callable

from topics.core.errors import TopicsError
from topics.engine.streams.description import Description
from topics.engine.topic import Topic
from topics.formats.stream import PART_NAME, Origin, Producer, StreamMark, StreamPart

PART = PART_NAME
PRODUCERS_MAX = 10_000
"""Producers a stream remembers; beyond it the one that has been silent longest is forgotten."""

JSON_TYPE = "application/json"
_RENEWAL_STEPS = 16
_RENEWAL_MIN_MS = 1_000


class Staged:
    """The decisions of appends and other changes that are on their way."""

    __slots__ = ("begun", "closed", "description", "finished", "last_seq", "producers", "waiting")

    def __init__(self, state: "StreamState") -> None:
        self.closed = state.closed
        self.last_seq = state.last_seq
        self.description = state.description
        self.producers: dict[str, Producer] = {}
        self.begun = 0
        self.finished = 0
        self.waiting: deque[tuple[int, Callable[[TopicsError | None], None]]] = deque()
        """Repetitions of what is on its way, each with how many must have finished before: they are answered like the
        originals, and not before them."""

    def when_settled(self, callback: Callable[[TopicsError | None], None]) -> None:
        """Calls back once everything that is on its way now is there, or has failed."""
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
        """After a start: how much later than that it may have been used without the log being told. Never stored."""
        self.closed = part.closed
        self.last_seq = part.last_seq
        self.producers = {producer.id: producer for producer in part.producers} or None
        self.retired = part.retired
        self.retiring = False
        """Whether it is about to be retired. Never stored: that is on its way."""
        self.origin_id = part.origin.topic_id if part.origin is not None else 0
        self.epochs = tuple(part.epochs)
        self.fork = part.fork
        self.description = Description.decode(part.contract) if part.contract else None
        """What it promises about its entries; None where nobody ever asked it to."""
        self.ended = False
        """Whether somebody found that its time is over. Never stored: its deletion is on its way."""
        self.refs = 0
        """Forks that read from here, those on their way included. Never stored: counted when recovery is through."""
        self.staged: Staged | None = None

    def part(self, topic: Topic) -> StreamPart:
        """The state for a snapshot."""
        origin = topic.origin
        return StreamPart(
            self.content_type, self.ttl_s, self.expires_ms, self.renewed_ms, self.closed, self.last_seq,
            list((self.producers or {}).values()), self.retired,
            Origin(self.origin_id, origin.upto, origin.below) if origin is not None else None, list(self.epochs),
            self.fork, self.description.raw if self.description is not None else b"",
        )  # fmt: skip

    def deadline(self, topic: Topic) -> int | None:
        """When the stream ends, in milliseconds since 1970; None when it does not."""
        if self.ttl_s is None:
            return self.expires_ms
        # Its creation was its first renewal, and counts no longer than any: the clock may have run ahead then.
        return max(self.renewed_ms + self.grace_ms, topic.last_write_ts) + self.ttl_s * 1000

    def renewal_step_ms(self) -> int:
        """How far the log may be behind with renewals: a read must not cost a frame each time."""
        return max((self.ttl_s or 0) * 1000 // _RENEWAL_STEPS, _RENEWAL_MIN_MS)

    def apply(self, mark: StreamMark) -> None:
        """What an append or a closure changed, once it is safe; replay comes here as well."""
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

    # While changes are on their way

    def _begin(self) -> Staged:
        staged = self.staged = self.staged or Staged(self)
        staged.begun += 1
        return staged

    def describe(self, description: Description) -> None:
        """Stages another contract: it holds for every entry that is decided from now on."""
        self._begin().description = description

    @property
    def staged_description(self) -> Description | None:
        """What the next entry has to be like."""
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
        """One of those on their way is there, or has failed. A failure takes all that follow it along, so what was
        staged is forgotten as a whole."""
        staged = self.staged
        if staged is None:
            return
        staged.finished += 1
        if staged.finished == staged.begun or error is not None:
            self.staged = None
        while staged.waiting and (error is not None or staged.waiting[0][0] <= staged.finished):
            staged.waiting.popleft()[1](error)

    def producer(self, producer_id: str) -> Producer | None:
        """Where a producer stands once everything on its way is there."""
        found = self.staged.producers.get(producer_id) if self.staged is not None else None
        if found is None and self.producers is not None:
            found = self.producers.get(producer_id)
        return found


def stream_of(topic: Topic) -> StreamState | None:
    """A topic's stream state; None for a topic that was never used as more than a log."""
    found = topic.parts.get(PART) if topic.parts is not None else None
    assert found is None or isinstance(found, StreamState)
    return found


def is_retired(topic: Topic) -> bool:
    """Whether a topic is deleted for everyone but its forks."""
    state = stream_of(topic)
    return state is not None and state.retired
