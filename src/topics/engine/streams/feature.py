"""Streams as the log's machinery meets them: their frames, their part of snapshots, and what they allow others to do.

A fork holds no copy of what it inherits. It begins behind its source's records and reads those where they are, so a
fork costs the same whatever it inherits, and a source that forks read is kept when it is deleted: *retired*, shown to
nobody, until the last fork is gone. How many forks there are is counted and never stored, so no crash can leave a count
that is wrong.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

from topics.core.errors import StreamClosedError, StreamGoneError, TopicNotFoundError, TopicsError
from topics.core.loss import LossReason
from topics.core.names import is_topic_name
from topics.core.records import Record
from topics.engine.core import EngineCore
from topics.engine.features import Rebuild
from topics.engine.results import DropDone, DropResult
from topics.engine.streams.deadlines import Deadlines
from topics.engine.streams.description import Description
from topics.engine.streams.slices import Prepared, Retry, Slicer
from topics.engine.streams.state import JSON_TYPE, PART, StreamState, stream_of
from topics.engine.topic import Inheritance, Records, Topic
from topics.engine.transaction import Change, Gate
from topics.engine.write.control import drop_topic
from topics.formats.frame import Frame, FrameKind
from topics.formats.stream import StreamPart, decode_part, decode_renewal, encode_part, encode_renewal, mark_in, part_in
from topics.storage.timing import CommitTiming

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
        self._slicer = Slicer(core)
        self.told: list[Callable[[StreamChange, Topic], None]] = []
        """Told of what becomes of streams, once it is safe, besides that they come to be and that they are gone."""
        core.features.add(self)
        core.chores.append(self.tick)

    # What recovery and checkpoints ask

    def replay(self, topic: Topic, frame: Frame, rebuild: Rebuild) -> None:
        if frame.kind is FrameKind.STREAM_CREATE:
            self.adopt(topic, part_in(frame))
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

    def may_sleep(self, topic: Topic) -> bool:
        """A stream that time does nothing to, that nobody forks and that promises nothing of its entries."""
        state = stream_of(topic)
        return state is None or not (
            state.ttl_s is not None or state.expires_ms is not None or state.retired or state.refs or state.ended
            or state.staged is not None or state.description is not None
        )  # fmt: skip

    def settle(self) -> None:
        """Forks find their sources again, and everything with an end is put on the list."""
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
                # Only a repair can have lost it; what was inherited is lost with it, and whoever reads is told.
                self._core.applier.gap(topic, 1, topic.origin.upto, LossReason.CORRUPT)
                topic.origin = None
            else:
                topic.origin.topic = source
                self.state(source).refs += 1
        for topic in self._core.topics.values():
            if (state := stream_of(topic)) is not None and state.retired and not state.refs:
                self._deadlines.add_due(topic.id)

    # State

    def adopt(self, topic: Topic, part: StreamPart) -> StreamState:
        """Makes a topic the stream that a part describes."""
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

    def tell(self, change: StreamChange, topic: Topic) -> None:
        for told in self.told:
            told(change, topic)

    def watch_deadline(self, topic: Topic) -> None:
        at = self._look_at(topic)
        if at is not None:
            self._deadlines.add(at, topic.id)

    def _look_at(self, topic: Topic) -> int | None:
        """When to look whether a stream is over; None where it never is."""
        state = stream_of(topic)
        deadline = state.deadline(topic) if state is not None else None
        if state is None or deadline is None or state.ttl_s is None:
            return deadline
        # One that is farther away was reckoned by a clock that ran ahead, and moves back with the next use.
        return min(deadline, self._core.wall() + state.ttl_s * 1000)

    def _watched(self, topic_id: int) -> int | None:
        topic = self._core.topics.get(topic_id)
        return self._look_at(topic) if topic is not None else None

    def renew(self, topic: Topic) -> None:
        """Somebody uses the stream: with a time to live, it begins again."""
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

    # What others may do to a stream (`engine.topic.Guard`)

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
            and not self._slicer.is_busy(topic)
        )

    def description(self, topic: Topic) -> Description | None:
        """What the next entry of a stream has to be like; None where it may be anything."""
        state = stream_of(topic)
        description = state.staged_description if state is not None else None
        return None if description is None or description.intake.is_idle else description

    def waits(self, topic: Topic, retry: Retry) -> bool:
        """Whether a batch for this stream is still looked at; then `retry` is called when it is on its way."""
        return self._slicer.waits(topic, retry)

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
        self._slicer.begin(topic, description, records, retry)
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
        """Whether users of topics do not see it: it is over, or its name is not one of theirs."""
        return self.over(topic) or not is_topic_name(topic.name)

    def over(self, topic: Topic) -> bool:
        """Whether a stream is there for nobody any more."""
        state = stream_of(topic)
        return state is not None and (state.retired or self.expired(topic))

    def expired(self, topic: Topic) -> bool:
        """Whether its time is over. What was found so once stays so, also when the clock is set back before it is
        deleted: somebody may have been told already, and have made another stream of its content."""
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
        """Ends a stream whose time is over, or that is kept for nobody any more."""
        if topic.created and not topic.closing and self._due(topic) and not self.state(topic).retiring:
            self.drop(topic, lambda outcome: None)

    def _due(self, topic: Topic) -> bool:
        state = self.state(topic)
        return not state.refs if state.retired else self.expired(topic)

    def drop(self, topic: Topic, done: DropDone) -> None:
        """Deletes a stream, or retires it while forks read from it."""
        if self.state(topic).refs:
            self._retire(topic, done)
        else:
            drop_topic(self._core, topic, done)

    def _retire(self, topic: Topic, done: DropDone) -> None:
        """A stream that forks read is there for them alone from now on."""
        core, state = self._core, self.state(topic)
        core.path.check(topic, frees=True)
        state.retiring = True

        def retired(timing: CommitTiming) -> None:
            state.retired, state.retiring = True, False
            self.tell("deleted", topic)
            # For everyone but its forks it is deleted, and its routers go with it.
            done(DropResult(topic.name, True, core.remove_routers(topic)))
            if not state.refs:
                # The last fork went while this was on its way.
                state.refs = 1
                self.release(topic)

        def failed(error: TopicsError) -> None:
            state.retiring = False
            done(error)

        frame = (FrameKind.STREAM_RETIRE, b"", b"")
        core.path.log(Change(core.path, topic, (frame,), retired, failed), Gate.SYNC)

    def removed(self, topic: Topic) -> None:
        """A topic is gone; a retired source that only it still read goes, too."""
        if topic.origin is not None and topic.origin.topic is not None:
            self.release(topic.origin.topic)

    def release(self, source: Topic) -> None:
        """A fork of the source is gone, or never came to be."""
        state = self.state(source)
        state.refs -= 1
        if state.retired and not state.refs:
            self._deadlines.add_due(source.id)
            self._core.defer(self.tick)

    def tick(self) -> None:
        """Ends what is due; a part of it, when much is due at once."""
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
    """The topic of that name as users of streams see it; a retired one is told apart from one that never was.

    One that is being deleted is gone already: its last frame is on its way, and nothing may be logged behind that.
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
