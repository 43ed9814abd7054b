"""Search service: queries over streams, the entries of their hits, and filtered reads, behind one object."""

from collections.abc import Callable

from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, ReadResult
from topics.engine.topic import Topic
from topics.model.errors import InvalidRequestError, ThrottledError, TopicsError
from topics.schema.search_fields import SearchConfig
from topics.search.query.predicates import bind_filter
from topics.search.service.backend import InlineSearcher, Later, Searcher, SearchStats, at_once, run_steps
from topics.search.service.filtered_read import FilteredDiff, FilteredRead
from topics.search.service.hit_fetch import EntryCache, Fetched, fetch_entries
from topics.search.service.index_feed import IndexFeed, IndexPrefetch
from topics.search.service.index_file_cache import IndexFiles
from topics.search.service.index_skip_scan import IndexSkipScan, Read, SliceDone, read_key
from topics.search.service.query_execution import (
    Outcome,
    OutcomeDone,
    QueryContext,
    execute_query,
    execute_ranked_query,
    nothing_in_time,
)
from topics.search.worker.messages import NO_INDEX, Query, SearchQuery
from topics.streams.chunked_validation import Description
from topics.streams.read import ReadSpec, StreamSlice
from topics.streams.stream_state import stream_of
from topics.system.clock import SystemClock

SCAN_BYTES = 512 * 1024 * 1024
STREAM_BYTES = 128 * 1024 * 1024
MEMORY_BYTES = 512 * 1024 * 1024
CACHE_BYTES = 4 * 1024 * 1024 * 1024


class StreamSearch:
    def __init__(
        self,
        engine: Engine,
        searcher: Searcher,
        later: Later,
        now: Callable[[], float],
        stream_bytes: int = STREAM_BYTES,
        memory_bytes: int = MEMORY_BYTES,
        scan_bytes: int = SCAN_BYTES,
        max_queries: int = 0,
        max_queries_per_tenant: int = 0,
        index_files: IndexFiles | None = None,
    ) -> None:
        """`now` is the clock that the search process has, too. Of what has a maximum, 0 is no limit."""
        self.index_files = index_files
        self._engine = engine
        self._searcher = searcher
        self._later = later
        self._now = now
        covered = {} if index_files is None else {"covered": index_files.covered_through}
        self._feed = IndexFeed(engine, searcher, later, stream_bytes, memory_bytes, **covered)
        self._scan_bytes = scan_bytes
        self._max_queries = max_queries
        self._max_queries_per_tenant = max_queries_per_tenant
        self._queries: dict[str, int] = {}
        """Queries that are being answered, by whose they are."""
        self._entries = EntryCache()
        self._prefetch = IndexPrefetch(engine, self._feed, later)
        self._stats = SearchStats()
        if index_files is not None:
            engine.second_passed.subscribe(index_files.tidy)

    @property
    def under_way(self) -> int:
        """How many queries are being answered."""
        return sum(self._queries.values())

    def stats(self) -> SearchStats:
        self._stats.memory_bytes = self._feed.memory_bytes
        self._stats.processes_lost = self._searcher.generation
        cache = None if self.index_files is None else self.index_files.cache
        if cache is not None:
            self._stats.fetches = {str(outcome): count for outcome, count in cache.outcomes.items()}
            self._stats.cache_bytes = cache.bytes
        return self._stats

    def _count(self, outcome: Outcome | TopicsError, seconds: float) -> None:
        stats = self._stats
        stats.queries += 1
        stats.seconds += seconds
        if isinstance(outcome, TopicsError):
            stats.failures += 1
            return
        stats.entries += outcome.result.looked_at
        stats.scanned_bytes += outcome.scanned_bytes
        stats.out_of_bytes += outcome.spent == "bytes"
        stats.out_of_time += outcome.spent == "time"
        stats.out_of_memory += outcome.spent == "memory"

    def query(self, topic: Topic, query: Query, timeout_s: float, done: OutcomeDone, tenant: str | None = None) -> None:
        """Answers a query within its time, if only in part. Raises ThrottledError where there are too many already, in
        all or of its tenant."""
        owner = tenant or ""
        self._check_room(tenant)
        engine = self._engine
        engine.catch_up(topic)
        engine.expire(topic)
        begun = self._now()
        self._queries[owner] = self._queries.get(owner, 0) + 1

        def counted(outcome: Outcome | TopicsError) -> None:
            self._ended(owner)
            self._count(outcome, self._now() - begun)
            done(outcome)

        context = QueryContext(
            engine, self._searcher, self._feed, self._later, self._now, self._scan_bytes, self.index_files, owner
        )
        if timeout_s <= 0:
            counted(nothing_in_time(context, topic, query))
            return
        try:
            index = self._feed.for_query(topic, description_of(topic))
        except TopicsError:
            self._ended(owner)
            raise
        deadline = begun + timeout_s
        if isinstance(query, SearchQuery) and query.ranked and not query.statistics:
            run_steps(execute_ranked_query(context, topic, index, query, deadline, timeout_s), counted)
        else:
            run_steps(execute_query(context, topic, index, query, deadline, timeout_s), counted)

    def _check_room(self, tenant: str | None) -> None:
        most, mine = self._max_queries, self._max_queries_per_tenant
        if most and self.under_way >= most:
            raise ThrottledError.over_cap("max_searches", most)
        if mine and tenant is not None and self._queries.get(tenant, 0) >= mine:
            raise ThrottledError.over_cap("max_searches_per_key", mine)

    def _ended(self, owner: str) -> None:
        self._queries[owner] -= 1
        if not self._queries[owner]:
            del self._queries[owner]

    def fetch(self, topic: Topic, seqs: list[int], done: Callable[[Fetched | TopicsError], None]) -> None:
        """The entries of some seqs."""
        cache = self._entries.of(topic, description_of(topic))
        run_steps(fetch_entries(self._engine, topic, cache, seqs, self._later), done)

    def read(self, topic: Topic, spec: ReadSpec, done: Callable[[StreamSlice | TopicsError], None]) -> None:
        """A read that a filter restricts."""
        # Again, because the stream may be described otherwise since somebody began to wait.
        bind_filter(spec.filter or "", search_config_of(topic))
        description = description_of(topic)

        def index() -> int:
            # Asked anew for every step: between two of them an index may have made room for others.
            return self._feed.for_query(topic, description).index

        skip_scan = None
        if self.index_files is not None:
            skip_scan = IndexSkipScan(self._searcher, self.index_files, topic, spec.key, spec.filter, index)
        read = FilteredRead(
            self._engine, self._searcher, self._later, self._stats, topic, description.promoter, spec, index, skip_scan
        )
        run_steps(read.steps(), done)

    def read_key(self, topic: Topic, spec: ReadSpec, read: Read, done: SliceDone) -> None:
        """A read of one routing key. `read` does it without any help."""
        if self.index_files is None:
            read(spec, done)
            return
        skip_scan = IndexSkipScan(self._searcher, self.index_files, topic, spec.key, None, _no_index)
        run_steps(read_key(topic, spec, skip_scan, read, self._later), done)

    def diff(
        self, topic: Topic, request: ReadRequest, text: str, done: Callable[[ReadResult | TopicsError], None]
    ) -> None:
        """A read of a topic's records that a filter restricts; `topics.search.query.schemaless_filter` says which."""
        diff = FilteredDiff(self._engine, self._searcher, self._later, self._stats, topic, request, text)
        run_steps(diff.steps(), done)


def inline_search(engine: Engine) -> StreamSearch:
    """A search service that answers on the caller's stack: for tests and tools, which have no search process."""
    return StreamSearch(engine, InlineSearcher(SystemClock.monotonic), at_once, SystemClock.monotonic)


def _no_index() -> int:
    return NO_INDEX


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
