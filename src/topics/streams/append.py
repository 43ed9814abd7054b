"""Appends to a stream: all conditions are checked against the staged state, then one frame carries the whole change.

The order of the checks is part of the protocol: existence, closed, content type, producer, `Stream-Seq`. A repeated
batch of a producer is recognized before conditions that only a new batch must meet (idempotent retry).

Idempotent producers: whether a batch is new, a duplicate, too early, or fenced by a newer epoch. Pure.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto

import msgspec

from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.engine.topic import Topic
from topics.engine.write_path import Change, Gate
from topics.log.commit_requests import CommitTiming
from topics.log.frame import FrameKind
from topics.model.errors import (
    InvalidRequestError,
    ProducerFencedError,
    ProducerGapError,
    SequenceConflictError,
    StreamClosedError,
    StreamConflictError,
    TopicsError,
    quoted,
)
from topics.model.records import Batch, Record
from topics.streams.chunked_validation import Description, Prepared, Retry, check_own_key
from topics.streams.entry_encoding import Content, bytes_records, check_entries, media_type, read_json
from topics.streams.stream_frames import Producer, StreamMark, encode_mark
from topics.streams.stream_state import (
    JSON_TYPE,
    PRODUCER_BYTES,
    Position,
    StreamFeature,
    StreamState,
    check_visible,
    offset_of,
    stream_of,
    tail_offset,
)


class Verdict(Enum):
    NEW = auto()
    DUPLICATE = auto()


def judge(known: Producer | None, sent: Producer) -> Verdict:
    """Whether a batch is new or a duplicate, by its producer's state. Raises if it is neither."""
    if known is None:
        # Also if it is not the first: a pipelining producer gets the expected number, and loses nothing.
        if sent.seq:
            raise ProducerGapError(sent.id, 0, sent.seq)
        return Verdict.NEW
    if sent.epoch < known.epoch:
        raise ProducerFencedError(sent.id, known.epoch)
    if sent.epoch > known.epoch:
        if sent.seq:
            raise InvalidRequestError("Producer-Seq: a new epoch begins with 0", field="Producer-Seq")
        return Verdict.NEW
    if sent.seq <= known.seq:
        return Verdict.DUPLICATE
    if sent.seq > known.seq + 1:
        raise ProducerGapError(sent.id, known.seq + 1, sent.seq)
    return Verdict.NEW


# Reorder buffer: batches that arrive before their predecessor are held for a moment.
#
# A producer with several requests in flight over several connections cannot control their order of arrival. Refusing
# early ones would make it send most of them again, although the predecessor is nearly always a moment away.

Later = Callable[[float, Callable[[], None]], Callable[[], None]]
"""Runs a function after some seconds; returns a function that cancels it."""

HOLD_S = 0.05
AHEAD_MAX = 16
HELD_MAX = 1_000


class ReorderBuffer:
    def __init__(self, later: Later) -> None:
        self._later = later
        self._held: dict[tuple[int, str, int, int], tuple[Callable[[], None], Callable[[], None]]] = {}
        """Held batches by stream, producer, epoch and number: the retry, and how to cancel its timeout."""

    def hold(
        self,
        topic_id: int,
        sent: Producer,
        gap: ProducerGapError,
        retry: Callable[[], None],
        give_up: Callable[[], None],
    ) -> bool:
        """Holds a batch until its predecessor arrives, or fails it after a timeout."""
        key = (topic_id, sent.id, sent.epoch, sent.seq)
        if gap.received - gap.expected > AHEAD_MAX or len(self._held) >= HELD_MAX or key in self._held:
            return False

        def over() -> None:
            del self._held[key]
            give_up()

        self._held[key] = (retry, self._later(HOLD_S, over))
        return True

    def accepted(self, topic_id: int, producer: Producer) -> None:
        """Releases the batch that follows an accepted one."""
        if not self._held:
            return
        found = self._held.pop((topic_id, producer.id, producer.epoch, producer.seq + 1), None)
        if found is not None:
            retry, take_back = found
            take_back()
            retry()


class AppendRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A POST request. An empty body with `close` only closes the stream."""

    body: Content = b""
    content_type: str = ""
    key: str | None = None
    ts: int | None = None
    seq: str | None = None
    producer: Producer | None = None
    close: bool = False


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The result of an append: the offset after it, and the state of its producer."""

    next_offset: str
    duplicate: bool = False
    closed: bool = False
    producer: Producer | None = None


AppendedDone = Callable[[Appended | TopicsError], None]


class _MarkExtension:
    """The stream's change in the same frame as the batch."""

    kind = FrameKind.STREAM_APPEND
    creates = False

    def __init__(self, feature: StreamFeature, state: StreamState, mark: StreamMark) -> None:
        self._feature = feature
        self._state = state
        self._mark = mark

    def staged(self, topic: Topic) -> None:
        self._state.stage(self._mark)

    def prefix(self, topic: Topic) -> bytes:
        return encode_mark(self._mark)

    def applied(self, topic: Topic) -> None:
        self._state.apply(self._mark)
        self._state.unstage(None)
        if self._mark.producer is not None:
            self._feature.kept(topic)
        if self._mark.close:
            self._feature.emit_change("closed", topic)

    def undone(self, topic: Topic, error: TopicsError) -> None:
        self._state.unstage(error)


class StreamAppender:
    def __init__(self, engine: Engine, later: Later | None) -> None:
        self._engine = engine
        self._feature = engine.streams
        self._reorder_buffer = ReorderBuffer(later) if later is not None else None

    def append(self, name: str, request: AppendRequest, done: AppendedDone) -> None:
        """Appends, closes, or both. Raises errors that are detected immediately."""
        self._check_words(request)
        self._attempt(name, request, done, None)

    def _attempt(self, name: str, request: AppendRequest, done: AppendedDone, prepared: Prepared | None) -> None:
        self._engine.check_accepting()
        topic = check_visible(self._engine.find(name), name)
        try:
            self._append(topic, request, done, prepared)
        except ProducerGapError as gap:
            if not self._hold(topic, request, gap, done):
                raise
            return
        if request.producer is not None and self._reorder_buffer is not None:
            self._reorder_buffer.accepted(topic.id, request.producer)

    def _check_words(self, request: AppendRequest) -> None:
        """Checks the bounds of producer ids and `Stream-Seq`, because a stream stores many of them."""
        most = self._engine.limits.max_idempotency_key_chars
        producer_id = request.producer.id if request.producer is not None else None
        for field, text in (("Producer-Id", producer_id), ("Stream-Seq", request.seq)):
            if text is not None and len(text) > most:
                raise InvalidRequestError(f"{field}: at most {most} characters are allowed", field=field, max=most)

    def _hold(self, topic: Topic, request: AppendRequest, gap: ProducerGapError, done: AppendedDone) -> bool:
        producer = request.producer
        if self._reorder_buffer is None or producer is None:
            return False

        retry = self._retry(topic.name, request, done)
        return self._reorder_buffer.hold(topic.id, producer, gap, lambda: retry(None), lambda: done(gap))

    def _retry(self, name: str, request: AppendRequest, done: AppendedDone) -> Retry:
        """Retries a request that had to wait; errors are passed to the callback."""

        def retry(prepared: Prepared | None) -> None:
            try:
                self._attempt(name, request, done, prepared)
            except TopicsError as error:
                done(error)

        return retry

    def _append(self, topic: Topic, request: AppendRequest, done: AppendedDone, prepared: Prepared | None) -> None:
        if prepared is None and self._feature.waits(topic, self._retry(topic.name, request, done)):
            return
        state = stream_of(topic)
        if state is not None and (state.closed or (state.staged is not None and state.staged.closed)):
            self._answer_closed(topic, state, request, done)
            return
        content_type = state.content_type if state is not None else JSON_TYPE
        if request.body and media_type(request.content_type) != media_type(content_type):
            if state is not None and state.staged_description is not None:
                state.staged_description.intake.check_bytes()
            raise StreamConflictError(
                f"the stream holds {quoted(content_type)}, not {quoted(request.content_type)}",
                content_type=content_type,
            )
        producer = request.producer
        if producer is not None:
            state = state or self._feature.state(topic)
            known = state.producer(producer.id)
            if judge(known, producer) is Verdict.DUPLICATE:
                self._answer_duplicate(topic, state, producer, done)
                return
            if known is None:
                self._feature.check_memory(topic, PRODUCER_BYTES)
        if request.seq is not None:
            state = state or self._feature.state(topic)
            last = state.staged.last_seq if state.staged is not None else state.last_seq
            if last is not None and request.seq.encode() <= last.encode():
                raise SequenceConflictError(request.seq, last)
        if state is not None:
            self._feature.renew(topic)
        if request.body:
            records = self._admitted(topic, content_type, request, done, prepared)
            if records is not None:
                self._write(topic, state, records, request, done)
        else:
            self._close(topic, request, done)

    def _admitted(
        self, topic: Topic, content_type: str, request: AppendRequest, done: AppendedDone, prepared: Prepared | None
    ) -> Sequence[Record] | None:
        """The records to store; None if they are validated in chunks, and the request is retried afterwards."""
        description = self._feature.description(topic)
        if description is None:
            return self._records(content_type, request, None)
        if prepared is not None and prepared.description is description:
            return self._feature.admit(topic, lambda: (), False, prepared)
        check_own_key(description, request.key)
        records = self._records(content_type, request, description)
        if self._feature.postpones(topic, records, prepared, self._retry(topic.name, request, done)):
            return None
        return self._feature.admit(topic, lambda: records, False) or records

    def _records(self, content_type: str, request: AppendRequest, description: Description | None) -> Sequence[Record]:
        limits = self._engine.limits
        if media_type(content_type) == JSON_TYPE:
            records = read_json(request.body, request.key)
            if not records:
                raise InvalidRequestError("the body is an empty array. Send at least one value")
            if description is not None:
                records = description.unpack(records)
            check_entries(records, limits, request.key)
        else:
            records = bytes_records(request.body, content_type, request.key)
            check_entries((), limits, request.key)
        return records

    def _write(
        self,
        topic: Topic,
        state: StreamState | None,
        records: Sequence[Record],
        request: AppendRequest,
        done: AppendedDone,
    ) -> None:
        extension = None
        if request.producer is not None or request.seq is not None or request.close:
            state = state or self._feature.state(topic)
            mark = StreamMark(self._engine.wall(), request.seq, request.producer, request.close)
            extension = _MarkExtension(self._feature, state, mark)

        def written(outcome: AppendResult | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                done(outcome)
            else:
                # The stream may have grown since; the answer has the end of this batch.
                done(Appended(offset_of(topic, Position(outcome.last_seq)), False, request.close, request.producer))

        self._engine.write(topic, Batch(records=records), written, extension, request.ts)

    def _close(self, topic: Topic, request: AppendRequest, done: AppendedDone) -> None:
        path = self._engine.write_path
        state = self._feature.state(topic)
        path.check(topic)
        mark = StreamMark(self._engine.wall(), request.seq, request.producer, True)
        state.stage(mark)

        def applied(timing: CommitTiming) -> None:
            state.apply(mark)
            state.unstage(None)
            self._feature.emit_change("closed", topic)
            path.acknowledge(topic, done, Appended(tail_offset(topic), False, True, request.producer))

        def failed(error: TopicsError) -> None:
            state.unstage(error)
            done(error)

        frame = (FrameKind.STREAM_CLOSE, encode_mark(mark), b"")
        path.log(Change(path, topic, (frame,), applied, failed), Gate.SYNC)

    def _answer_closed(self, topic: Topic, state: StreamState, request: AppendRequest, done: AppendedDone) -> None:
        """Refuses writes to a closed stream. Closing it again, or repeating the batch that closed it, is allowed."""
        producer = request.producer
        known = state.producer(producer.id) if producer is not None else None
        # A batch that is already in the stream may be repeated; only a new one is too late.
        repeated = producer is not None and known is not None and _is_before(producer, known)
        if not repeated and (request.body or producer is not None):
            raise StreamClosedError(topic.name)
        self._when_committed(
            topic, state, lambda: Appended(tail_offset(topic), True, True, known if repeated else None), done
        )

    def _answer_duplicate(self, topic: Topic, state: StreamState, sent: Producer, done: AppendedDone) -> None:
        def answer() -> Appended:
            # Only the durable position: later batches may be in flight, and fail.
            known = state.producers.get(sent.id) if state.producers is not None else None
            return Appended(tail_offset(topic), True, state.closed, known or sent)

        self._when_committed(topic, state, answer, done)

    def _when_committed(
        self, topic: Topic, state: StreamState, answer: Callable[[], Appended], done: AppendedDone
    ) -> None:
        """Answers a repeated batch after the original is durable; if the original fails, so does the repetition."""

        def finalized(error: TopicsError | None) -> None:
            if error is None:
                self._engine.write_path.acknowledge(topic, done, answer())
            else:
                done(error)

        if state.staged is None:
            finalized(None)
        else:
            state.staged.when_finalized(finalized)


def _is_before(sent: Producer, known: Producer) -> bool:
    return sent.epoch == known.epoch and sent.seq <= known.seq
