"""A query over one stream: what it has to see is brought to the searching process, and it is asked behind that.

What is not in the index when the time is over is left out and told: entries that came too many at once, and those that
are too old for the memory there is.
"""

from collections.abc import Callable

import msgspec

from topics.core.errors import InvalidRequestError, SearchUnavailableError, TopicsError
from topics.engine import Engine
from topics.engine.read import first_readable
from topics.engine.streams.description import Description
from topics.engine.streams.state import stream_of
from topics.engine.topic import Topic
from topics.indexing.predicates import bind_filter
from topics.schema.search import SearchConfig
from topics.searching.messages import Ask, Query, Result
from topics.streams.reading import ReadSpec, StreamSlice
from topics.streams.search.fetching import Fetch, Fetched
from topics.streams.search.filtering import FilteredRead
from topics.streams.search.following import Followed, Follower
from topics.streams.search.packing import removed_between
from topics.streams.search.searcher import Later, Searcher
from topics.streams.search.stats import SearchStats

STREAM_BYTES = 128 * 1024 * 1024
MEMORY_BYTES = 512 * 1024 * 1024


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a query found, and what it covers."""

    result: Result
    head: int
    """The last entry when the query came."""
    first: int
    """Entries from here to `last` were looked at."""
    last: int
    missed_sealed: int = 0
    """Entries that were not looked at, at most."""
    missed_tail: int = 0
    missed_segments: int = 0
    first_missed: int | None = None
    spent: str | None = None

    @property
    def missed(self) -> int:
        return self.missed_sealed + self.missed_tail

    @property
    def complete(self) -> bool:
        return self.spent is None and not self.missed


OutcomeDone = Callable[[Outcome | TopicsError], None]


class StreamSearch:
    def __init__(
        self,
        engine: Engine,
        searcher: Searcher,
        later: Later,
        now: Callable[[], float],
        stream_bytes: int = STREAM_BYTES,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """`now` is the clock that the searching process has, too."""
        self._engine = engine
        self._searcher = searcher
        self._later = later
        self._now = now
        self._follower = Follower(engine, searcher, later, stream_bytes, memory_bytes)
        self._stats = SearchStats()
        self.under_way = 0
        """Queries that are being answered."""

    def stats(self) -> SearchStats:
        self._stats.memory_bytes = self._follower.memory_bytes
        self._stats.processes_lost = self._searcher.generation
        return self._stats

    def _count(self, outcome: Outcome | TopicsError, seconds: float) -> None:
        stats = self._stats
        stats.queries += 1
        stats.seconds += seconds
        if isinstance(outcome, TopicsError):
            stats.failures += 1
            return
        stats.entries += outcome.result.looked_at
        stats.out_of_time += outcome.spent == "time"
        stats.out_of_memory += outcome.spent == "memory"

    def query(self, topic: Topic, query: Query, timeout_s: float, done: OutcomeDone) -> None:
        """Answers a query within its time, if only in part."""
        engine = self._engine
        engine.catch_up(topic)
        engine.core.expire(topic)
        begun = self._now()
        followed = self._follower.of(topic, description_of(topic)) if timeout_s > 0 else None
        self.under_way += 1

        def counted(outcome: Outcome | TopicsError) -> None:
            self.under_way -= 1
            self._count(outcome, self._now() - begun)
            done(outcome)

        asking = _Asking(self, topic, query, begun + timeout_s, counted)
        if followed is None:
            asking.answer_nothing()
            return
        asking.follow(followed, self._follower, self._later, timeout_s)

    def ask(self, followed: Followed, make: Callable[[int], Ask], done: Callable[[Result | TopicsError], None]) -> None:
        def answered(result: Result | SearchUnavailableError) -> None:
            if isinstance(result, Result):
                self._follower.weigh(followed, result.memory_bytes)
            done(result)

        self._searcher.ask(make, answered)

    def removed(self, topic: Topic, first: int, last: int) -> tuple[tuple[int, int], ...]:
        return removed_between(topic, self._engine.core.reader, first, last)

    def fetch(self, topic: Topic, seqs: list[int], done: Callable[[Fetched | TopicsError], None]) -> None:
        """The entries of some seqs."""
        Fetch(self._engine, topic, description_of(topic).promoter, seqs, done).run()

    def read(self, topic: Topic, spec: ReadSpec, done: Callable[[StreamSlice | TopicsError], None]) -> None:
        """A read that a filter restricts."""
        # Again, because the stream may be described otherwise since somebody began to wait.
        bind_filter(spec.filter or "", search_config_of(topic))
        description = description_of(topic)
        reading = FilteredRead(
            self._engine, self._searcher, self._later, topic, description.promoter, spec, done, self._stats
        )
        # Asked anew for every step: between two of them an index may have made room for others.
        reading.begin(lambda: self._follower.of(topic, description).index)


class _Asking:
    """One query on its way."""

    def __init__(self, search: StreamSearch, topic: Topic, query: Query, deadline: float, done: OutcomeDone) -> None:
        self._search = search
        self._topic = topic
        self._query = query
        self._deadline = deadline
        self._done = done
        self._head = topic.head
        self._first = first_readable(topic)
        self._sent = False
        self._cancel: Callable[[], None] = lambda: None

    def answer_nothing(self) -> None:
        """The time was over before anything was done."""
        self._finish(Result(spent="time"), self._first, self._first - 1)

    def follow(self, followed: Followed, follower: Follower, later: Later, timeout_s: float) -> None:
        def brought(outcome: Followed | TopicsError) -> None:
            if self._sent:
                return
            self._cancel()
            if isinstance(outcome, TopicsError):
                self._sent = True
                self._done(outcome)
            else:
                self._ask(outcome, is_late=False)

        if followed.through < self._head:
            self._cancel = later(timeout_s, lambda: None if self._sent else self._ask(followed, is_late=True))
        follower.bring(followed, self._head, brought)

    def _ask(self, followed: Followed, is_late: bool) -> None:
        self._sent = True
        first, last = max(self._first, followed.start + 1), min(followed.through, self._head)
        removed = self._search.removed(self._topic, first, last)
        # Who is late already gets what is there: the answer to it is a matter of milliseconds.
        deadline = self._deadline + (1.0 if is_late else 0.0)

        def make(request: int) -> Ask:
            return Ask(request, followed.index, deadline, first, last, removed, self._query)

        def answered(result: Result | TopicsError) -> None:
            if isinstance(result, TopicsError):
                self._done(result)
                return
            spent = "time" if is_late else result.spent or ("memory" if self._first < first else None)
            self._finish(msgspec.structs.replace(result, spent=spent), first, last)

        self._search.ask(followed, make, answered)

    def _finish(self, result: Result, first: int, last: int) -> None:
        """Counts what is before and behind the entries that were looked at."""
        topic = self._topic
        sealed = [segment for segment in topic.segments if segment.first_seq < first or segment.last_seq > last]
        last_sealed = topic.segments[-1].last_seq if topic.segments else (topic.origin.upto if topic.origin else 0)
        missed_sealed = max(first - self._first, 0) + max(min(self._head, last_sealed) - max(last, first - 1), 0)
        missed_tail = max(self._head - max(last, last_sealed, first - 1), 0)
        if result.missed:
            # The index itself ran out of its budget.
            missed_tail += result.missed
        missed = missed_sealed + missed_tail
        first_missed = None
        if missed:
            first_missed = self._first if self._first < first or result.missed else last + 1
        self._done(
            Outcome(
                result=result,
                head=self._head,
                first=first,
                last=last,
                missed_sealed=missed_sealed,
                missed_tail=missed_tail,
                missed_segments=len(sealed) if missed_sealed else 0,
                first_missed=first_missed,
                spent=result.spent,
            )
        )


def description_of(topic: Topic) -> Description:
    """What a stream promises. Raises InvalidRequestError where it promises nothing."""
    state = stream_of(topic)
    if state is None or state.description is None:
        raise InvalidRequestError("the stream declares no search fields")
    return state.description


def search_config_of(topic: Topic) -> SearchConfig:
    """What can be searched of a stream. Raises InvalidRequestError where that is nothing."""
    state = stream_of(topic)
    description = None if state is None else state.description
    config = None if description is None else description.contract.registry.search_config
    if config is None:
        raise InvalidRequestError("the stream declares no search fields")
    return config
