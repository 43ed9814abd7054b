"""Indexes of streams, kept up to date when somebody asks.

An index follows one stream as it is promised now: another contract, or another stream of the name, is another index.
Entries are read a little at a time, so that the loop does other things in between, and sent in the order of their seqs.
"""

from collections.abc import Callable

from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.engine.topic import Topic
from topics.model.errors import SearchUnavailableError, TopicsError
from topics.schema.registry import encode_registry
from topics.search.service.backend import PACK_BYTES, PACK_RECORDS, Later, Pack, Searcher, pack, window_start
from topics.search.worker.messages import Add, Drop, Open, Trim
from topics.streams.chunked_validation import Description
from topics.streams.stream_state import stream_of

EMPTY_BYTES = 32 * 1024
"""What an index takes before it told how much: that of a stream that is only ever filtered never does."""

MEMORY_PER_BYTE = 3
"""What a byte of an entry may take in an index, which is nearly always less."""
CHUNKS = 4
"""In how many chunks the entries of one stream are held, and one more while the oldest falls out."""

Brought = Callable[["FedIndex | TopicsError"], None]


class Chunk:
    """A part of an index that is forgotten as a whole."""

    __slots__ = ("before", "sent_bytes")

    def __init__(self, before: int) -> None:
        self.before = before
        """All of it is behind this seq."""
        self.sent_bytes = 0


class FeedCounts:
    """What all indexes take together, kept where it changes: there may be thousands of them."""

    __slots__ = ("memory_bytes",)

    def __init__(self) -> None:
        self.memory_bytes = 0


class FedIndex:
    """One index, as far as the server knows it."""

    def __init__(
        self, index: int, topic: Topic, description: Description, generation: int, start: int, tally: FeedCounts
    ) -> None:
        self.index = index
        self.topic = topic
        self.description = description
        self.generation = generation
        self.start = start
        """No entry up to this one is in it."""
        self.through = start
        self.chunks: list[Chunk] = []
        """What it holds, the oldest first. They are forgotten one by one."""
        self._tally = tally
        self.memory_bytes = 0
        """What the index takes: as it was told, and what that may have become since."""
        self.weigh(EMPTY_BYTES)
        self.was_asked = False
        """Whether a query ever came for it."""
        self.target = start
        self.feeding = False
        self.waiting: list[tuple[int, Brought]] = []

    def weigh(self, memory_bytes: int) -> None:
        self._tally.memory_bytes += memory_bytes - self.memory_bytes
        self.memory_bytes = memory_bytes

    def sent(self, size: int) -> None:
        self.chunks[-1].sent_bytes += size
        self.weigh(self.memory_bytes + MEMORY_PER_BYTE * size)

    @property
    def sent_bytes(self) -> int:
        return sum([chunk.sent_bytes for chunk in self.chunks])

    def told(self) -> None:
        """Calls back those who waited for what is there now."""
        ready = [brought for upto, brought in self.waiting if upto <= self.through]
        self.waiting = [(upto, brought) for upto, brought in self.waiting if upto > self.through]
        for brought in ready:
            brought(self)

    def failed(self, error: TopicsError) -> None:
        waiting, self.waiting = self.waiting, []
        for _, brought in waiting:
            brought(error)


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
        """`covered` tells up to which seq a stream has indexes that need not be made here."""
        self._engine = engine
        self._covered = covered
        self._searcher = searcher
        self._later = later
        self._stream_bytes = stream_bytes
        self._memory_bytes = memory_bytes
        self._indexes = 0
        self._tally = FeedCounts()
        # The one that was asked last is the last.
        self._followed: dict[int, FedIndex] = {}

    def of(self, topic: Topic, description: Description) -> FedIndex:
        """The index of a stream for somebody who asks, begun if there is none. Raises SearchUnavailableError."""
        known = self._known(topic, description)
        if known is None:
            known = self._begin(topic, description)
            self._make_room(known)
        known.was_asked = True
        del self._followed[topic.id]
        self._followed[topic.id] = known
        return known

    def ahead(self, topic: Topic, description: Description) -> FedIndex | None:
        """The index of a stream for somebody who fills it before anybody asks; None where there is no room for it.
        Raises SearchUnavailableError."""
        known = self._known(topic, description)
        if known is not None and known.was_asked:
            self._make_room(known)
        elif self.memory_bytes >= self._memory_bytes // 2:
            return None
        return known or self._begin(topic, description)

    def _known(self, topic: Topic, description: Description) -> FedIndex | None:
        known = self._followed.get(topic.id)
        if known is not None and not self._fits(known, topic, description):
            del self._followed[topic.id]
            self._forget(known)
            return None
        return known

    def _begin(self, topic: Topic, description: Description) -> FedIndex:
        self._indexes += 1
        start = max(window_start(topic, self._stream_bytes), self._covered(topic, description))
        self._searcher.send(Open(self._indexes, encode_registry(description.contract.registry)))
        begun = FedIndex(self._indexes, topic, description, self._searcher.generation, start, self._tally)
        self._followed[topic.id] = begun
        return begun

    def _fits(self, known: FedIndex, topic: Topic, description: Description) -> bool:
        return (
            known.topic is topic and known.description is description and known.generation == self._searcher.generation
        )

    def bring(self, followed: FedIndex, upto: int, brought: Brought) -> None:
        """Calls back when the index has all up to a seq."""
        if followed.through >= upto:
            brought(followed)
            return
        followed.waiting.append((upto, brought))
        followed.target = max(followed.target, upto)
        if not followed.feeding:
            followed.feeding = True
            self._feed(followed)

    def _feed(self, followed: FedIndex) -> None:
        if self._is_gone(followed):
            return
        if not self._searcher.is_writable:
            self._searcher.when_writable(lambda: self._feed(followed))
            return
        # No chunk is larger than it should be by more than itself.
        size = min(PACK_BYTES, max(self._stream_bytes // CHUNKS, 1))
        request = ReadRequest(from_seq=followed.through, limit=PACK_RECORDS, max_bytes=size, up_to=followed.target)
        try:
            self._engine.read_as(
                followed.topic, request, pack, lambda outcome: self._got(followed, outcome), aside=True
            )
        except TopicsError as error:
            self._got(followed, error)

    def _is_gone(self, followed: FedIndex) -> bool:
        """Whether an index that is being filled was given up meanwhile; who waits for it is then told."""
        is_known = self._followed.get(followed.topic.id) is followed
        if is_known and followed.generation == self._searcher.generation:
            return False
        followed.feeding = False
        followed.failed(SearchUnavailableError("the index was dropped; search again"))
        return True

    def _got(self, followed: FedIndex, outcome: Pack | TopicsError) -> None:
        if self._is_gone(followed):
            return
        if isinstance(outcome, TopicsError):
            followed.feeding = False
            followed.failed(outcome)
            return
        if outcome.pieces:
            try:
                self._send(followed, outcome)
            except SearchUnavailableError as error:
                followed.feeding = False
                followed.failed(error)
                return
        followed.through = max(followed.through, outcome.through)
        if followed.through < followed.target:
            followed.told()
            self._later(0, lambda: self._feed(followed))
        else:
            followed.feeding = False
            followed.told()

    def _send(self, followed: FedIndex, packed: Pack) -> None:
        """Sends entries into the last chunk, or into a new one. A window of chunks moves with a stream that grows: only
        what falls out of it is lost, and nothing is sent twice."""
        chunks = followed.chunks
        is_new = not chunks or chunks[-1].sent_bytes >= self._stream_bytes // CHUNKS
        self._searcher.send(Add(followed.index, packed.pieces, is_new), packed.body)
        if is_new:
            chunks.append(Chunk(followed.through))
        followed.sent(packed.text_bytes)
        while len(chunks) > 1 and followed.sent_bytes - chunks[0].sent_bytes > self._stream_bytes:
            self._trim(followed)

    def _trim(self, followed: FedIndex) -> None:
        """Forgets the oldest chunk of an index."""
        gone = followed.chunks.pop(0)
        followed.start = followed.chunks[0].before
        followed.weigh(followed.memory_bytes * followed.sent_bytes // (followed.sent_bytes + gone.sent_bytes or 1))
        self._searcher.send(Trim(followed.index, followed.start + 1))

    def weigh(self, followed: FedIndex, memory_bytes: int) -> None:
        """Notes what an index takes."""
        if self._followed.get(followed.topic.id) is not followed:
            # A query was slower than whoever dropped its index.
            return
        followed.weigh(memory_bytes)
        self._make_room(followed)

    def _make_room(self, followed: FedIndex) -> None:
        """Drops the indexes that nobody asked for longest, until those that are left fit."""
        if self._tally.memory_bytes <= self._memory_bytes:
            return
        for known in list(self._followed.values()):
            if self._tally.memory_bytes <= self._memory_bytes:
                break
            if known is followed or known.feeding:
                continue
            del self._followed[known.topic.id]
            self._forget(known)
        while self._tally.memory_bytes > self._memory_bytes and len(followed.chunks) > 1:
            # Alone it takes more than all may.
            self._trim(followed)

    def _forget(self, known: FedIndex) -> None:
        known.weigh(0)
        if known.generation == self._searcher.generation:
            self._searcher.send(Drop(known.index))

    @property
    def memory_bytes(self) -> int:
        return self._tally.memory_bytes


# Indexes that are filled as entries come, so that a search finds them filled.
#
# A stream that can be searched is noted when a block of it is published, whoever wrote it: appends of either protocol,
# routers, transactions. A moment later what is new goes into its index, one stream after the other, and never more than
# there is memory for: a stream that nobody searches takes no index away from one that somebody does. Answers do not
# depend on it; a search brings itself what is missing.

LINGER_S = 0.01
"""What comes within this time is brought together."""
_RETRY_S = 1.0


class IndexPrefetch:
    def __init__(self, engine: Engine, follower: IndexFeed, later: Later) -> None:
        self._engine = engine
        self._follower = follower
        self._later = later
        self._due: dict[int, Topic] = {}
        """The streams that have something new, in the order in which it came."""
        self._busy = False
        """Whether somebody will look at them without being told again."""
        engine.core.applier.appended.append(self._published)

    def _published(self, topic: Topic) -> None:
        """Notes that a topic has something new. It is called for every block, and has to be quick."""
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
        """Brings what is new of the stream that waits longest."""
        while self._due:
            topic = self._due.pop(next(iter(self._due)))
            state = stream_of(topic)
            if self._engine.core.topics.get(topic.id) is not topic or state is None or state.description is None:
                continue
            try:
                followed = self._follower.ahead(topic, state.description)
            except SearchUnavailableError:
                # The server is stopping, or no process can be started; the next append tries again.
                continue
            if followed is not None:
                self._follower.bring(followed, topic.head, self._brought)
                return
        self._busy = False

    def _brought(self, outcome: FedIndex | TopicsError) -> None:
        # Never at once: that would be a recursion, and entries that come one by one are to be brought together.
        self._later(_RETRY_S if isinstance(outcome, TopicsError) else LINGER_S, self._next)
