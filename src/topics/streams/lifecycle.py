"""Stream lifecycle: create, fork, describe, list, delete."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from topics.engine.engine import Engine
from topics.engine.read import ReadPlan, ReadRequest, plan_read
from topics.engine.results import AppendResult, DropResult
from topics.engine.topic import Block, RunReader, Topic
from topics.engine.write_path import Change, Gate
from topics.log.commit_requests import CommitTiming
from topics.log.frame import FrameKind
from topics.log.snapshot_files import TopicPeek
from topics.model.errors import InvalidRequestError, StreamConflictError, StreamGoneError, TopicsError, quoted
from topics.model.records import Batch, Record
from topics.model.topic_config import Durability, TopicConfig, TopicType, check_stream_name, is_reserved_name
from topics.streams.chunked_validation import Description, check_own_key
from topics.streams.entry_encoding import (
    Content,
    bytes_record,
    bytes_records,
    check_entries,
    is_json,
    media_type,
    read_json,
)
from topics.streams.read import CHARACTER_MORE, ReadSpec, cutter
from topics.streams.stream_frames import ForkRequest, Origin, StreamPart, encode_creation
from topics.streams.stream_state import (
    JSON_TYPE,
    Position,
    StreamState,
    check_visible,
    contract_of,
    read_offset,
    stream_of,
    tail_offset,
)
from topics.wire.record_slicing import tag_texts, tag_value

__all__ = ["CreateRequest", "Created", "Deleted", "ForkFrom", "Lifecycle", "StreamInfo"]


# Fork points.
#
# A fork begins after an entry, or inside one: at a byte of a bytes entry, whose first bytes are then copied into the
# fork as its first record, or after some values of a JSON append, which have their own offsets. Nothing else is copied.

_ZERO = "0000000000000000_0000000000000000"
"""The spelling of the start of a stream in the protocol's conformance tests."""


class ForkFrom(msgspec.Struct, frozen=True):
    """The source of a fork; without an offset, its end."""

    source: str
    offset: str | None = None
    sub_offset: int = 0

    def place(self, source: Topic) -> Position | None:
        """The position in the source; None for its end."""
        if self.offset is None:
            return None
        if self.offset == _ZERO:
            return Position(0)
        try:
            return read_offset(source, self.offset)
        except TopicsError as error:
            raise InvalidRequestError(f"Stream-Fork-Offset: {error.message}", field="Stream-Fork-Offset") from error


class ForkPoint(NamedTuple):
    origin: Origin
    asked: Position
    """The requested position without the sub-offset."""
    cut: bytes | None
    """The first part of an entry that the fork includes only in part."""
    key: str | None


def find_fork_point(engine: Engine, source: Topic, fork: ForkFrom) -> ForkPoint:
    asked = fork.place(source) or Position(source.visible_head)
    if fork.offset is None and fork.sub_offset:
        raise _refusal("a sub-offset needs a Stream-Fork-Offset that it counts from")
    counter, cut, key = asked.counter, None, None
    state = stream_of(source)
    if is_json(state.content_type if state is not None else JSON_TYPE):
        counter += _values(source, counter, fork.sub_offset)
    elif asked.in_block or fork.sub_offset:
        cut, key = _beginning(engine, source, asked, fork.sub_offset)
    return ForkPoint(Origin(source.id, counter), asked, cut, key)


def _values(source: Topic, counter: int, sub_offset: int) -> int:
    """The position after some values of an append. If the append's end is unknown, up to the stream's end."""
    if not sub_offset:
        return 0
    room = source.visible_head - counter
    for run in plan_read(source, ReadRequest(from_seq=counter, limit=1)).runs:
        if isinstance(run, Block):
            room = min(room, run.last_seq - counter)
    if sub_offset > room:
        raise _refusal(f"the append behind the offset holds {room} values")
    return sub_offset


def _beginning(engine: Engine, source: Topic, asked: Position, sub_offset: int) -> tuple[bytes, str | None]:
    """The bytes of the entry at a position, up to the sub-offset, and its key."""
    requested, reader = asked.in_block + sub_offset, engine.reader
    # Only that entry, which may be deleted. A read may stop before a character that would be split.
    spec = ReadSpec(
        position=Position(asked.counter), as_json=False, max_records=1, max_bytes=requested + CHARACTER_MORE,
        up_to=asked.counter + 1, splits=True,
    )  # fmt: skip
    plan = plan_read(source, spec.request())
    found = cutter(spec)(plan, reader)
    if len(found.body) < requested:
        raise _refusal(f"the entry behind the offset has {max(len(found.body) - asked.in_block, 0)} bytes")
    return found.body[:requested], _key_of(plan, reader)


def _key_of(plan: ReadPlan, reader: RunReader) -> str | None:
    """The key of the first entry of a plan."""
    run = plan.runs[0]
    first = plan.start - run.first_seq
    view, index, _, _ = next(reader.views(plan.topic_id, run, first, first + 1))
    tags = tag_texts(view, index, index + 1)
    return tag_value(tags[0][1]) if tags else None


def _refusal(problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"Stream-Fork-Sub-Offset: {problem}", field="Stream-Fork-Sub-Offset")


# Listing: the fields that a page of streams needs.
#
# Beyond `awake_topics` most streams of a page are paged out. A list pages no topic in: of a paged-out stream it reads
# four values from the snapshot; all others follow from the conditions of paging out.


class ListedInfo(msgspec.Struct, frozen=True, gc=False):
    name: str
    created_ms: int
    deadline_ms: int | None
    epoch: int
    head: int
    sealed_through: int
    """The last entry, counted from 0, that is in a sealed segment; -1 when none is."""
    profile: str = "generic"


def listed_resident(topic: Topic) -> ListedInfo:
    state, sealed = stream_of(topic), sealed_through(topic)
    if state is None:
        return ListedInfo(topic.name, topic.created_ts, None, topic.epoch, topic.head, sealed)
    return ListedInfo(
        topic.name, topic.created_ts, state.deadline(topic), topic.epoch, topic.head, sealed,
        contract_of(topic).profile.kind,
    )  # fmt: skip


def listed_paged_out(peek: TopicPeek) -> ListedInfo:
    """Like the function above, for a paged-out topic, which has no segments, no profile and is not closed
    (`may_page_out`)."""
    return ListedInfo(peek.name, peek.created_ts, None, peek.epoch, peek.head, -1)


def sealed_through(topic: Topic) -> int:
    segments = topic.segments
    return segments[-1].last_seq - 1 if segments else -1


CONTENT_TYPE_BYTES_MAX = 1024
"""Maximum length of a content type, which is stored with every bytes entry."""
TTL_S_MAX = 9_999_999_999
"""317 years: every end of such a lifetime is a valid date."""
DEFAULT_TYPE = "application/octet-stream"


class CreateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A PUT request."""

    content_type: str = ""
    ttl_s: int | None = None
    expires_ms: int | None = None
    closed: bool = False
    body: Content = b""
    key: str | None = None
    ts: int | None = None
    """Key and timestamp of the body's entries."""
    fork: ForkFrom | None = None


class StreamInfo(msgspec.Struct, frozen=True, gc=False):
    """A stream as HEAD and PUT describe it."""

    name: str
    content_type: str
    next_offset: str
    closed: bool
    ttl_s: int | None
    deadline_ms: int | None
    created_ms: int
    epoch: int
    head: int
    sealed_through: int
    """The last entry, counted from 0, that is in a sealed segment; -1 when none is."""
    profile: str = "generic"


class Created(msgspec.Struct, frozen=True):
    info: StreamInfo
    created: bool


class Deleted(msgspec.Struct, frozen=True):
    next_offset: str
    """The offset of the stream's end."""
    routers_removed: list[str]
    """Routers that had the stream as source or destination."""


CreatedDone = Callable[[Created | TopicsError], None]
DeletedDone = Callable[[Deleted | TopicsError], None]


class _Birth:
    """A stream's creation, with its first batch if there is one."""

    kind = FrameKind.STREAM_CREATE
    creates = True

    def __init__(self, engine: Engine, topic: Topic, part: StreamPart, source: Topic | None) -> None:
        self._engine = engine
        self._part = part
        self._source = source
        # Attached before the topic has a name, so that a lookup never finds it as a plain topic.
        engine.streams.adopt(topic, part)

    def staged(self, topic: Topic) -> None:
        if self._source is not None:
            self._engine.streams.state(self._source).refs += 1

    def prefix(self, topic: Topic) -> bytes:
        return encode_creation(self._part, self._engine.creation_body(topic))

    def applied(self, topic: Topic) -> None:
        self._engine.streams.watch_deadline(topic)

    def undone(self, topic: Topic, error: TopicsError) -> None:
        self._engine.release_name(topic)
        if self._source is not None:
            self._engine.streams.release(self._source)


class Lifecycle:
    def __init__(self, engine: Engine, durability: Durability) -> None:
        self._engine = engine
        self._feature = engine.streams
        self._config = TopicConfig(durability=durability)

    def create(self, name: str, request: CreateRequest, done: CreatedDone) -> None:
        """Creates a stream, or confirms that it exists as requested. Raises errors that are detected immediately."""
        engine = self._engine
        engine.check_accepting()
        check_stream_name(name)
        _check_settings(request)
        if engine.when_free(name, lambda: self.create(name, request, done), done):
            return
        topic = engine.find(name)
        if topic is not None:
            self._confirm(topic, request, done)
            return
        check_not_reserved(name)
        source, point = self._fork_point(request)
        content_type = self._content_type(request, source)
        description = _inherited(source, point)
        records = self._first_records(request, content_type, point, description)
        # Offsets of a fork are not valid in its source, or in an earlier fork of it.
        forked = stream_of(source) if source is not None else None
        above = 0 if source is None else source.epoch + (forked.refs if forked is not None else 0)
        topic = engine.new_topic(name, self._config, above)
        engine.write_path.check(topic)
        part = self._part(topic, request, content_type, source, point)
        if description is not None:
            part = msgspec.structs.replace(part, contract=description.raw)
        birth = _Birth(self._engine, topic, part, source)
        self._begin(topic, birth, records, request.ts, done)

    def _begin(self, topic: Topic, birth: _Birth, records: Sequence[Record], ts: int | None, done: CreatedDone) -> None:
        engine = self._engine

        def applied(timing: CommitTiming) -> None:
            if not topic.created:
                engine.add_topic(topic)
            birth.applied(topic)
            engine.write_path.acknowledge(topic, done, Created(describe(topic), True))

        def failed(error: TopicsError) -> None:
            birth.undone(topic, error)
            done(error)

        def written(outcome: AppendResult | TopicsError) -> None:
            done(outcome if isinstance(outcome, TopicsError) else Created(describe(topic), True))

        if records:
            self._engine.write(topic, Batch(records=records), written, birth, ts)
            return
        birth.staged(topic)
        frame = (birth.kind, birth.prefix(topic), b"")
        engine.write_path.log(Change(engine.write_path, topic, (frame,), applied, failed), Gate.SYNC)

    # Forks

    def _fork_point(self, request: CreateRequest) -> tuple[Topic | None, ForkPoint | None]:
        fork = request.fork
        if fork is None:
            return None, None
        found = self._engine.find(fork.source)
        try:
            source = check_visible(found, fork.source)
        except StreamGoneError as error:
            raise StreamConflictError(error.message, stream=fork.source) from error
        state = stream_of(source)
        held = state.content_type if state is not None else JSON_TYPE
        if request.content_type and media_type(request.content_type) != media_type(held):
            raise StreamConflictError(
                f"the source holds {quoted(held)}, not {quoted(request.content_type)}", content_type=held
            )
        return source, find_fork_point(self._engine, source, fork)

    def _content_type(self, request: CreateRequest, source: Topic | None) -> str:
        if request.content_type:
            return request.content_type
        if source is None:
            return DEFAULT_TYPE
        state = stream_of(source)
        return state.content_type if state is not None else JSON_TYPE

    def _first_records(
        self, request: CreateRequest, content_type: str, point: ForkPoint | None, description: Description | None
    ) -> Sequence[Record]:
        limits = self._engine.limits
        records: Sequence[Record] = ()
        if point is not None and point.cut is not None:
            records = (bytes_record(point.cut, content_type, point.key),)
        if request.body and media_type(content_type) == JSON_TYPE:
            if description is not None:
                check_own_key(description, request.key)
            values = read_json(request.body, request.key)
            if values and description is not None:
                values = description.unpack(values)
            records = [*records, *values] if records else values
            check_entries(records, limits, request.key)
        elif request.body:
            check_entries((), limits, request.key)
            records = [*records, *bytes_records(request.body, content_type, request.key)]
        if not records or description is None:
            return records
        return description.admit_all(records, self._engine.wall())

    def _part(
        self, topic: Topic, request: CreateRequest, content_type: str, source: Topic | None, point: ForkPoint | None
    ) -> StreamPart:
        ttl_s, expires_ms = request.ttl_s, request.expires_ms
        part = StreamPart(content_type, ttl_s, expires_ms, topic.created_ts, request.closed)
        if source is None or point is None or request.fork is None:
            return part
        state = stream_of(source)
        if state is not None and ttl_s is None and expires_ms is None:
            part = msgspec.structs.replace(part, ttl_s=state.ttl_s, expires_ms=state.expires_ms)
        fork = request.fork
        asked = ForkRequest(fork.source, point.asked.counter, point.asked.in_block, fork.sub_offset)
        return msgspec.structs.replace(part, origin=point.origin, fork=asked)

    # Existing streams

    def _confirm(self, topic: Topic, request: CreateRequest, done: CreatedDone) -> None:
        state = stream_of(topic)
        # An expired stream that still exists has forks and is about to be retired.
        if topic.created and self._feature.over(topic):
            raise StreamConflictError(
                f"stream {quoted(topic.name)} was deleted and forks still use it; its name is not free yet",
                stream=topic.name,
            )
        if topic.created:
            self._check_same(topic, state, request)
            done(Created(describe(topic), False))
            return
        # Another creation is in flight; its outcome decides.
        topic.notify_on_change(lambda: self._again(topic.name, request, done))

    def _again(self, name: str, request: CreateRequest, done: CreatedDone) -> None:
        try:
            self.create(name, request, done)
        except TopicsError as error:
            done(error)

    def _check_same(self, topic: Topic, state: StreamState | None, request: CreateRequest) -> None:
        for setting, has, wants in self._settings(topic, state, request):
            if has != wants:
                raise StreamConflictError(
                    f"stream {quoted(topic.name)} exists with another {setting}", stream=topic.name, setting=setting
                )

    def _settings(
        self, topic: Topic, state: StreamState | None, request: CreateRequest
    ) -> list[tuple[str, object, object]]:
        """Each setting by name: actual and requested value."""
        fork, asked = (state.fork if state is not None else None), request.fork
        held = state.content_type if state is not None else JSON_TYPE
        inherits = fork is not None and asked is not None
        wanted_type = request.content_type or (held if inherits else DEFAULT_TYPE)
        pairs: list[tuple[str, object, object]] = [
            ("content type", media_type(held), media_type(wanted_type)),
            ("fork source", fork.source if fork is not None else None, asked.source if asked is not None else None),
            ("closed flag", state is not None and state.closed, request.closed),
        ]
        if fork is not None and asked is not None:
            pairs.append(("fork sub-offset", fork.sub_offset, asked.sub_offset))
            if asked.offset is not None:
                source = self._engine.find(asked.source)
                place = asked.place(source) if source is not None else None
                pairs.append(("fork offset", (fork.counter, fork.in_block), place))
        if not inherits or request.ttl_s is not None or request.expires_ms is not None:
            pairs.append(("time to live", state.ttl_s if state is not None else None, request.ttl_s))
            pairs.append(("expiry", state.expires_ms if state is not None else None, request.expires_ms))
        return pairs

    # Other operations

    def delete(self, name: str, done: DeletedDone) -> None:
        engine = self._engine
        engine.check_accepting()
        if engine.when_free(name, lambda: self.delete(name, done), done):
            return
        topic = check_visible(engine.find(name), name)
        if topic.config.type is not TopicType.LOG:
            raise StreamConflictError(f"{quoted(name)} is a queue; delete it as a topic", stream=name)
        engine.expire(topic)
        self._feature.state(topic)

        def dropped(outcome: DropResult | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                done(outcome)
            else:
                done(Deleted(tail_offset(topic), outcome.routers_removed))

        self._feature.drop(topic, dropped)


def _inherited(source: Topic | None, point: ForkPoint | None) -> Description | None:
    """Returns the contract of a fork: the contract of its source at the fork point."""
    state = stream_of(source) if source is not None else None
    if state is None or state.description is None or point is None:
        return None
    return state.description.upto(point.origin.upto)


def describe(topic: Topic) -> StreamInfo:
    state, sealed = stream_of(topic), sealed_through(topic)
    if state is None:
        return StreamInfo(
            topic.name, JSON_TYPE, tail_offset(topic), False, None, None, topic.created_ts, topic.epoch, topic.head,
            sealed,
        )  # fmt: skip
    return StreamInfo(
        topic.name, state.content_type, tail_offset(topic), state.closed, state.ttl_s, state.deadline(topic),
        topic.created_ts, topic.epoch, topic.head, sealed, contract_of(topic).profile.kind,
    )  # fmt: skip


def _check_settings(request: CreateRequest) -> None:
    """Checks values that are stored or returned for the lifetime of the stream."""
    if len(request.content_type.encode()) > CONTENT_TYPE_BYTES_MAX:
        raise InvalidRequestError(
            f"Content-Type: at most {CONTENT_TYPE_BYTES_MAX} bytes are allowed",
            field="Content-Type",
            max=CONTENT_TYPE_BYTES_MAX,
        )
    if request.ttl_s is not None and request.ttl_s > TTL_S_MAX:
        raise InvalidRequestError(
            f"Stream-TTL: at most {TTL_S_MAX} seconds are allowed", field="Stream-TTL", max=TTL_S_MAX
        )


def check_not_reserved(name: str) -> None:
    """Refuses names that are reserved or cannot be part of a URL path."""
    if is_reserved_name(name):
        raise InvalidRequestError(f"{quoted(name)} is a reserved name: no stream can have it", field="name")


# System streams, as distinct from streams that got such a name before it was reserved.


def own_title(name: str) -> str:
    """The schema id that marks a system stream."""
    return f"topics:{name}"


def is_own_stream(topic: Topic) -> bool:
    """Whether a topic with the name of a system stream is a system stream."""
    state = stream_of(topic)
    versions = () if state is None or state.description is None else state.description.contract.registry.versions
    return bool(versions) and state is not None and own_title(topic.name).encode() in versions[0].schema
