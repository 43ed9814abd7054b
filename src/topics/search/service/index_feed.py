"""Index feed: sends new entries to the memory indexes in the search process, for queries and ahead of them (prefetch).

Before a query runs, the entries that its index lacks are sent, so that it sees every acknowledged append
(read-your-writes).

An index belongs to one stream with one contract (schema and search description). After a change of the contract, or for
another stream of the name, there is another index. Entries are read in small packs between other work of the loop, and
sent in the order of their seqs.
"""

from collections.abc import Callable
from functools import partial

from topics.engine.background_jobs import Until
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.engine.topic import Topic
from topics.model.errors import SearchUnavailableError, TopicsError
from topics.schema.registry import encode_registry
from topics.search.service.backend import (
    PACK_BYTES,
    PACK_RECORDS,
    Later,
    Pack,
    Searcher,
    Steps,
    next_turn,
    pack,
    run_steps,
    window_start,
)
from topics.search.worker.messages import Add, Drop, Open, Trim
from topics.streams.chunked_validation import Description
from topics.streams.stream_state import stream_of

EMPTY_BYTES = 32 * 1024
"""The assumed memory of an index before its first report. An index that is used by filters only never reports."""

MEMORY_PER_BYTE = 3
"""The assumed index memory for each byte of an entry; it is nearly always less."""
CHUNKS = 4
"""The number of chunks that hold the entries of one stream. There is one more while the oldest is dropped."""

Filled = Callable[["FedIndex | TopicsError"], None]


class Chunk:
    """A part of an index that is dropped as a whole."""

    __slots__ = ("before", "sent_bytes")

    def __init__(self, before: int) -> None:
        self.before = before
        """Its entries have lower seqs than this."""
        self.sent_bytes = 0


class FeedCounts:
    """Totals over all indexes, maintained incrementally: there may be thousands of indexes."""

    __slots__ = ("memory_bytes",)

    def __init__(self) -> None:
        self.memory_bytes = 0


class FedIndex:
    """The server's state of one index."""

    def __init__(
        self, index: int, topic: Topic, description: Description, generation: int, start: int, counts: FeedCounts
    ) -> None:
        self.index = index
        self.topic = topic
        self.description = description
        self.generation = generation
        self.start = start
        """The index has no entry up to this seq."""
        self.through = start
        self.chunks: list[Chunk] = []
        """The chunks in the index, oldest first."""
        self._counts = counts
        self.memory_bytes = 0
        """The memory of the index: the last report, plus an estimate for the entries sent since."""
        self.weigh(EMPTY_BYTES)
        self.was_asked = False
        """Whether any query has used it."""
        self.target = start
        self.feeding = False
        self.waiting: list[tuple[int, Filled]] = []

    def weigh(self, memory_bytes: int) -> None:
        self._counts.memory_bytes += memory_bytes - self.memory_bytes
        self.memory_bytes = memory_bytes

    def sent(self, size: int) -> None:
        self.chunks[-1].sent_bytes += size
        self.weigh(self.memory_bytes + MEMORY_PER_BYTE * size)

    @property
    def sent_bytes(self) -> int:
        return sum([chunk.sent_bytes for chunk in self.chunks])

    def notify(self) -> None:
        """Calls back the waiters whose entries are indexed."""
        ready = [filled for upto, filled in self.waiting if upto <= self.through]
        self.waiting = [(upto, filled) for upto, filled in self.waiting if upto > self.through]
        for filled in ready:
            filled(self)

    def fail(self, error: TopicsError) -> None:
        waiting, self.waiting = self.waiting, []
        for _, filled in waiting:
            filled(error)


class IndexFeed:
    def __init__(
        self,
        engine: Engine,
        searcher: Searcher,
        later: Later,
        stream_bytes: int,
        memory_bytes: int,
        covered: Callable[[Topic, Description], int] = lambda topic, description: 0,
    ) -> None:
        """`covered` returns the seq up to which a stream has index files."""
        self._engine = engine
        self._covered = covered
        self._searcher = searcher
        self._later = later
        self._stream_bytes = stream_bytes
        self._memory_bytes = memory_bytes
        self._opened = 0
        self._counts = FeedCounts()
        # In the order of use; the most recently used one is last.
        self._indexes: dict[int, FedIndex] = {}

    def for_query(self, topic: Topic, description: Description) -> FedIndex:
        """Returns the index of a stream for a query, and creates it if necessary. Raises SearchUnavailableError."""
        known = self._known(topic, description)
        if known is None:
            known = self._begin(topic, description)
            self._make_room(known)
        known.was_asked = True
        del self._indexes[topic.id]
        self._indexes[topic.id] = known
        return known

    def for_prefetch(self, topic: Topic, description: Description) -> FedIndex | None:
        """Returns the index of a stream that is filled ahead of searches; None if memory does not allow it. Raises
        SearchUnavailableError."""
        known = self._known(topic, description)
        if known is not None and known.was_asked:
            self._make_room(known)
        elif self.memory_bytes >= self._memory_bytes // 2:
            return None
        return known or self._begin(topic, description)

    def _known(self, topic: Topic, description: Description) -> FedIndex | None:
        known = self._indexes.get(topic.id)
        if known is not None and not self._fits(known, topic, description):
            del self._indexes[topic.id]
            self._forget(known)
            return None
        return known

    def _begin(self, topic: Topic, description: Description) -> FedIndex:
        self._opened += 1
        start = max(window_start(topic, self._stream_bytes), self._covered(topic, description))
        self._searcher.send(Open(self._opened, encode_registry(description.contract.registry)))
        begun = FedIndex(self._opened, topic, description, self._searcher.generation, start, self._counts)
        self._indexes[topic.id] = begun
        return begun

    def _fits(self, known: FedIndex, topic: Topic, description: Description) -> bool:
        return (
            known.topic is topic and known.description is description and known.generation == self._searcher.generation
        )

    def fill(self, index: FedIndex, upto: int, filled: Filled) -> None:
        """Calls back when the index has all entries up to a seq."""
        if index.through >= upto:
            filled(index)
            return
        index.waiting.append((upto, filled))
        index.target = max(index.target, upto)
        if not index.feeding:
            index.feeding = True
            run_steps(self._feed(index), lambda _: None)

    def _feed(self, index: FedIndex) -> Steps[None]:
        """Sends the missing entries of an index, one pack in each turn of the loop, and calls back waiters."""
        # So that no chunk is larger than twice its intended size.
        size = min(PACK_BYTES, max(self._stream_bytes // CHUNKS, 1))
        try:
            while True:
                self._check_current(index)
                if not self._searcher.is_writable:
                    yield Until(lambda resume: self._searcher.when_writable(partial(resume, None)))
                    continue
                request = ReadRequest(from_seq=index.through, limit=PACK_RECORDS, max_bytes=size, up_to=index.target)
                packed: Pack = yield Until(
                    lambda resume, request=request: self._engine.read_as(  # type: ignore[misc]
                        index.topic, request, pack, resume, aside=True
                    )
                )
                self._check_current(index)
                if packed.pieces:
                    self._send(index, packed)
                index.through = max(index.through, packed.through)
                if index.through >= index.target:
                    break
                index.notify()
                yield next_turn(self._later)
        except TopicsError as error:
            index.feeding = False
            index.fail(error)
            return
        index.feeding = False
        index.notify()

    def _check_current(self, index: FedIndex) -> None:
        """Raises SearchUnavailableError if an index was dropped while it was filled."""
        is_known = self._indexes.get(index.topic.id) is index
        if not is_known or index.generation != self._searcher.generation:
            raise SearchUnavailableError("the index was dropped; search again")

    def _send(self, index: FedIndex, packed: Pack) -> None:
        """Sends entries into the last chunk, or into a new one. The chunks are a sliding window over a growing stream:
        the oldest is dropped, and no entry is sent twice."""
        chunks = index.chunks
        is_new = not chunks or chunks[-1].sent_bytes >= self._stream_bytes // CHUNKS
        self._searcher.send(Add(index.index, packed.pieces, is_new), packed.body)
        if is_new:
            chunks.append(Chunk(index.through))
        index.sent(packed.text_bytes)
        while len(chunks) > 1 and index.sent_bytes - chunks[0].sent_bytes > self._stream_bytes:
            self._trim(index)

    def _trim(self, index: FedIndex) -> None:
        """Drops the oldest chunk of an index."""
        gone = index.chunks.pop(0)
        index.start = index.chunks[0].before
        index.weigh(index.memory_bytes * index.sent_bytes // (index.sent_bytes + gone.sent_bytes or 1))
        self._searcher.send(Trim(index.index, index.start + 1))

    def weigh(self, index: FedIndex, memory_bytes: int) -> None:
        """Stores the reported memory of an index."""
        if self._indexes.get(index.topic.id) is not index:
            # The index was dropped during a slow query.
            return
        index.weigh(memory_bytes)
        self._make_room(index)

    def _make_room(self, index: FedIndex) -> None:
        """Evicts the least recently used indexes until the others fit."""
        if self._counts.memory_bytes <= self._memory_bytes:
            return
        for known in list(self._indexes.values()):
            if self._counts.memory_bytes <= self._memory_bytes:
                break
            if known is index or known.feeding:
                continue
            del self._indexes[known.topic.id]
            self._forget(known)
        while self._counts.memory_bytes > self._memory_bytes and len(index.chunks) > 1:
            # A single index exceeds the memory for all.
            self._trim(index)

    def _forget(self, known: FedIndex) -> None:
        known.weigh(0)
        if known.generation == self._searcher.generation:
            self._searcher.send(Drop(known.index))

    @property
    def memory_bytes(self) -> int:
        return self._counts.memory_bytes


# Prefetch: indexes are filled as entries arrive, before a search needs them.
#
# A searchable stream is noted when one of its blocks is published, by an append of either protocol, a router or a
# transaction. Shortly after, its new entries are indexed, one stream after the other, within the memory budget; a
# stream without searches never evicts the index of a searched one. Answers do not depend on this, because a search
# indexes missing entries itself.

LINGER_S = 0.01
"""Entries that arrive within this time are indexed together."""
_RETRY_S = 1.0


class IndexPrefetch:
    def __init__(self, engine: Engine, feed: IndexFeed, later: Later) -> None:
        self._engine = engine
        self._feed = feed
        self._later = later
        self._due: dict[int, Topic] = {}
        """Streams with unindexed entries, in the order of arrival."""
        self._busy = False
        """Whether the noted streams will be processed without another trigger."""
        engine.appended.subscribe(self._published)

    def _published(self, topic: Topic) -> None:
        """Notes that a topic has new entries. Called for every block, so it must be fast."""
        if topic.parts is None or topic.id in self._due:
            return
        state = stream_of(topic)
        if state is None or state.description is None or not state.description.is_searched:
            return
        self._due[topic.id] = topic
        if not self._busy:
            self._busy = True
            self._later(LINGER_S, self._next)

    def _next(self) -> None:
        """Indexes the new entries of the longest waiting stream."""
        while self._due:
            topic = self._due.pop(next(iter(self._due)))
            state = stream_of(topic)
            if not self._engine.exists(topic) or state is None or state.description is None:
                continue
            try:
                index = self._feed.for_prefetch(topic, state.description)
            except SearchUnavailableError:
                # The server is stopping, or no process can be started. The next append tries again.
                continue
            if index is not None:
                self._feed.fill(index, topic.head, self._filled)
                return
        self._busy = False

    def _filled(self, outcome: FedIndex | TopicsError) -> None:
        # Never immediately, which would be recursive, and so that single entries are indexed together.
        self._later(_RETRY_S if isinstance(outcome, TopicsError) else LINGER_S, self._next)
