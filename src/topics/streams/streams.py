"""Durable Streams behind one object, like `engine.Engine` for topics."""

from collections.abc import Callable, Iterator
from itertools import chain, filterfalse, islice

from topics.engine.engine import Engine
from topics.engine.read import seek_time
from topics.engine.topic import Topic
from topics.model.errors import OffsetGoneError, SystemStreamError, TopicsError, quoted
from topics.model.seq_ranges import LossReason, Tombstone
from topics.model.topic_config import SYSTEM_STREAMS, Durability
from topics.schema.contract import Contract
from topics.schema.registry import Promoter, SchemaUpdate
from topics.search.service.index_file_cache import IndexCoverage, NothingIndexed
from topics.search.service.search_service import StreamSearch, inline_search
from topics.streams.append import AppendedDone, AppendRequest, Later, StreamAppender
from topics.streams.contracts import ContractDone, Contracts
from topics.streams.invalidation import InvalidationService, StreamInvalidation
from topics.streams.lifecycle import (
    CreatedDone,
    CreateRequest,
    DeletedDone,
    Lifecycle,
    ListedInfo,
    StreamInfo,
    describe,
    is_own_stream,
    listed_paged_out,
    listed_resident,
)
from topics.streams.read import ReadSpec, StreamSlice, joined, read_slice
from topics.streams.stream_state import (
    JSON_TYPE,
    NOW,
    START,
    Position,
    StreamState,
    check_visible,
    contract_of,
    read_offset,
    stream_of,
)

_LISTED_MAX = 1000
_PIECES_MAX = 64
"""The maximum number of ancestors that a read of a fork uses; the next read continues."""
_RETENTION = (LossReason.CAP, LossReason.TTL, LossReason.MIXED)


class Streams:
    def __init__(
        self,
        engine: Engine,
        search: StreamSearch,
        durability: Durability = Durability.FSYNC,
        later: Later | None = None,
        coverage: IndexCoverage | None = None,
    ) -> None:
        """`durability` is the class of new streams.

        `later` sets a timer: early batches of a producer wait for it; without it they are refused immediately.
        `coverage` reports the coverage of streams by index files; without it no index files exist.
        """
        self.engine = engine
        self.search = search
        self._lifecycle = Lifecycle(engine, durability)
        self._appender = StreamAppender(engine, later)
        self._contracts = Contracts(engine)
        self._later = later
        self._invalidation: InvalidationService | None = None
        self.coverage: IndexCoverage = NothingIndexed() if coverage is None else coverage

    def create(self, name: str, request: CreateRequest, done: CreatedDone) -> None:
        self._check_writable(name)
        self._lifecycle.create(name, request, done)

    def delete(self, name: str, done: DeletedDone) -> None:
        self._check_writable(name)
        self._lifecycle.delete(name, done)

    def append(self, name: str, request: AppendRequest, done: AppendedDone) -> None:
        self._check_writable(name)
        self._appender.append(name, request, done)

    def contract(self, name: str) -> Contract:
        """Returns the contract of a stream."""
        return contract_of(self.topic(name))

    def update_schema(self, name: str, body: bytes | SchemaUpdate, done: ContractDone) -> None:
        """Installs a schema, a routing key or a search description."""
        self._check_writable(name)
        self._contracts.update_schema(name, body, done)

    def update_profile(self, name: str, body: bytes, done: ContractDone) -> None:
        """Sets the profile of a stream."""
        self._check_writable(name)
        self._contracts.update_profile(name, body, done)

    def _check_writable(self, name: str) -> None:
        """Raises SystemStreamError for a system stream. Every change requested by a user is checked here first."""
        if name in SYSTEM_STREAMS:
            topic = self.engine.find(name)
            if topic is not None and is_own_stream(topic):
                raise SystemStreamError(name)

    @property
    def invalidation(self) -> InvalidationService:
        """The invalidation service ("touch" in the protocol), started by the first request."""
        if self._invalidation is None:
            assert self._later is not None, "invalidation needs a timer"
            self._invalidation = InvalidationService(self.engine, self.read, self.watch, self._later)
        return self._invalidation

    def info(self, name: str) -> StreamInfo:
        topic = self.topic(name)
        self.engine.catch_up(topic)
        return describe(topic)

    def topic(self, name: str) -> Topic:
        """The topic of a visible stream."""
        return check_visible(self.engine.find(name), name)

    def content_type(self, topic: Topic) -> str:
        state = stream_of(topic)
        return state.content_type if state is not None else JSON_TYPE

    def state(self, topic: Topic) -> StreamState | None:
        return stream_of(topic)

    def renew_ttl(self, topic: Topic) -> None:
        """Renews the time to live of a stream because it is read."""
        if topic.guard is not None:
            self.engine.streams.renew(topic)

    def locate(self, topic: Topic, offset: str, since_ms: int | None = None) -> Position:
        """The position where a read begins; without an offset, at a timestamp or at the start.

        It may be beyond the end: such a read returns nothing until the stream has passed it.
        """
        self.engine.catch_up(topic)
        if offset == NOW:
            return Position(topic.head)
        if offset:
            return read_offset(topic, offset, beyond_end=True)
        return Position(0 if since_ms is None else seek_time(topic, self.engine.reader, since_ms))

    def read(self, topic: Topic, spec: ReadSpec, done: Callable[[StreamSlice | TopicsError], None]) -> None:
        """Reads from a position. A read of a fork continues across the fork point."""
        self.check_there(topic)
        if spec.position.counter > topic.head:
            done(StreamSlice(b"[]" if spec.as_json else b"", 0, spec.position, topic.head, None))
        elif spec.filter is not None:
            self.search.read(topic, spec, done)
        elif spec.key is not None:
            self.search.read_key(topic, spec, lambda part, found: self._read(topic, part, found), done)
        else:
            self._read(topic, spec, done)

    def _read(self, topic: Topic, spec: ReadSpec, done: Callable[[StreamSlice | TopicsError], None]) -> None:
        if topic.origin is None or spec.position.counter >= topic.origin.upto:
            read_slice(self.engine, topic, spec, _promoter(topic), done)
        else:
            _ForkRead(self.engine, topic, spec, done).run()

    def watch(self, topic: Topic, woken: Callable[[], None]) -> Callable[[], None]:
        """Calls back once after the stream's next change. Returns a function that cancels it."""
        self.check_there(topic)
        return self.engine.watch_topic(topic, woken)

    def check_there(self, topic: Topic) -> None:
        """Raises if a stream was deleted since its lookup, or recreated under the same name."""
        check_visible(topic if self.engine.exists(topic) else None, topic.name)

    def check_kept(self, topic: Topic, offset: str, found: StreamSlice) -> None:
        """Raises for an offset of evicted entries: continuing there would hide the loss.

        A reader at the start continues, because there is no earlier position to restart from; the loss is reported
        instead.
        """
        loss = found.tombstone
        gone = loss is not None and (loss.reason in _RETENTION or _was_seen(topic, loss))
        if loss is not None and gone and offset not in ("", START, NOW):
            raise OffsetGoneError(
                f"stream {quoted(topic.name)}: entries {loss.gap_from} to {loss.gap_to} behind this offset are gone",
                stream=topic.name, first=loss.gap_from, last=loss.gap_to, lost_by=loss.reason.value,
            )  # fmt: skip

    def active_invalidations(self) -> list[StreamInvalidation]:
        """The invalidation of streams with requests."""
        return [] if self._invalidation is None else list(self._invalidation)

    def listed(
        self, prefix: str, after: str, skip: int, allowed: tuple[str, ...], limit: int = _LISTED_MAX,
        system: bool = False,
    ) -> list[ListedInfo]:  # fmt: skip
        """Summaries of streams, at most `limit`; see `topics`. System streams are listed only with `system`."""
        engine, found = self.engine, list[ListedInfo]()
        names = self._names(prefix, after, skip, allowed, system)
        while some := list(islice(names, limit - len(found))):
            for name, peeked in zip(some, engine.peek_many(some), strict=True):
                if peeked is not None:
                    found.append(listed_paged_out(peeked))
                elif self.is_listed(topic := engine.peek_existing(name)):
                    found.append(listed_resident(topic))
        return found

    def topics(self, prefix: str, after: str, skip: int, allowed: tuple[str, ...]) -> Iterator[Topic]:
        """Streams in the order of their names, after `after` and the first `skip` of them. Read-only: paged-out streams
        stay paged out.

        `allowed` are the prefixes that may be seen; none means all.
        """
        return filter(self.is_listed, map(self.engine.peek_existing, self._names(prefix, after, skip, allowed, True)))

    def _names(self, prefix: str, after: str, skip: int, allowed: tuple[str, ...], system: bool) -> Iterator[str]:
        engine = self.engine
        if not allowed and not prefix and not after:
            # By index: the last page of a million costs no more than the first.
            return engine.names_at(skip) if system else self._user_names_at(skip)
        seen = (engine.names_from(one, after) for one in _within(prefix, allowed))
        names = chain.from_iterable(seen)
        return islice(names if system else filterfalse(SYSTEM_STREAMS.__contains__, names), skip, None)

    def _user_names_at(self, skip: int) -> Iterator[str]:
        """All names except those of system streams, after the first `skip` of them."""
        engine, place = self.engine, skip
        while (name := next(engine.names_at(place), None)) is not None:
            before = sum([one < name and next(engine.names_from(one, ""), "") == one for one in SYSTEM_STREAMS])
            if place == skip + before:
                break
            place = skip + before
        return filterfalse(SYSTEM_STREAMS.__contains__, engine.names_at(place))

    def is_listed(self, topic: Topic) -> bool:
        """Whether a topic is visible as a stream."""
        guard = topic.guard
        return guard is None or (guard is self.engine.streams and not self.engine.streams.over(topic))


def inline_streams(engine: Engine, durability: Durability = Durability.FSYNC, later: Later | None = None) -> Streams:
    """The streams of an engine with searches on the caller's stack: for tests and tools, without a search process."""
    return Streams(engine, inline_search(engine), durability, later)


def _promoter(topic: Topic) -> Promoter | None:
    """The promoter of entries of earlier schema versions; None if there are none."""
    state = stream_of(topic)
    return state.description.promoter if state is not None and state.description is not None else None


class _ForkRead:
    """A read that may continue across fork points, piece by piece.

    A loop and not a recursion, because chains of forks have any length.
    """

    def __init__(
        self, engine: Engine, topic: Topic, spec: ReadSpec, done: Callable[[StreamSlice | TopicsError], None]
    ) -> None:
        self._engine, self._topic, self._spec, self._done = engine, topic, spec, done
        self._slices: list[StreamSlice] = []
        self._answered = self._running = False

    def run(self) -> None:
        """Reads pieces while they are answered immediately; the others call this again."""
        self._answered = True
        while self._answered:
            self._answered, self._running = False, True
            spec = self._spec
            try:
                read_slice(self._engine, self._topic, spec, _promoter(self._topic), self._got)
            except TopicsError as error:
                if not self._slices:
                    raise
                self._answered = False
                self._finish(error)
            self._running = False

    def _got(self, outcome: StreamSlice | TopicsError) -> None:
        if isinstance(outcome, TopicsError) or (self._slices and (outcome.tombstone is not None or not outcome.count)):
            self._finish(outcome)
            return
        self._slices.append(outcome)
        following = self._spec.behind(outcome)
        if following is None or len(self._slices) == _PIECES_MAX or not _at_fork(self._topic, outcome.position):
            self._finish(outcome)
            return
        self._spec, self._answered = following, True
        if not self._running:
            self.run()

    def _finish(self, last: StreamSlice | TopicsError) -> None:
        """Answers with the read entries. A later gap or error is left to the next read."""
        self._done(joined(self._slices, self._spec.as_json) if self._slices else last)


def _at_fork(topic: Topic, position: Position) -> bool:
    """Returns whether a position is a fork point of the stream or of an ancestor."""
    origin, (counter, in_block) = topic.origin, position
    return origin is not None and not in_block and counter <= origin.upto and origin.holder(counter)[1] == counter


def _within(prefix: str, allowed: tuple[str, ...]) -> Iterator[str]:
    """The disjoint prefixes to list, in order: the requested ones within the permitted ones."""
    if not allowed:
        yield prefix
        return
    requested = sorted(
        {max(prefix, one, key=len) for one in allowed if one.startswith(prefix) or prefix.startswith(one)}
    )
    last: str | None = None
    for one in requested:
        if last is None or not one.startswith(last):
            yield one
            last = one


def _was_seen(topic: Topic, loss: Tombstone) -> bool:
    """Returns whether an offset is after entries that the stream lost in a restore from a backup."""
    skipped = [lost for lost in topic.lost or () if lost.reason in (LossReason.RESTORED, LossReason.FAILOVER)]
    return any(lost.from_seq < loss.gap_from <= lost.to_seq for lost in skipped)
