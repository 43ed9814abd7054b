"""Search service: queries over streams, the entries of their hits, and filtered reads, behind one object.

Hit fetch: reads the entries of hits until one answer is full, with a cache of recently found entries.
"""

from bisect import bisect_right
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from topics.engine.background_jobs import Until
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, ReadResult
from topics.engine.topic import Block, Topic
from topics.log.segment import DELETED
from topics.log.segment_files import UNREADABLE, OpenSegment
from topics.model.errors import InvalidRequestError, ThrottledError, TopicsError
from topics.schema.search_fields import SearchConfig
from topics.search.query.predicates import bind_filter
from topics.search.service.backend import (
    InlineSearcher,
    Later,
    Searcher,
    SearchStats,
    Steps,
    at_once,
    next_turn,
    run_steps,
)
from topics.search.service.filtered_read import FilteredDiff, FilteredRead
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
from topics.streams.read import ReadSpec, StreamSlice, read_slice
from topics.streams.stream_state import Position, stream_of
from topics.system.clock import SystemClock
from topics.wire.record_slicing import View, data_span

# Cache of rendered hits.
#
# Clients repeat queries, and different queries for the newest entries share hits. An entry never changes, so its
# rendered text is valid while the stream's description is unchanged. The cache does not record whether the entry still
# exists: the caller checks that for each hit.

BYTES_MAX: Final = 8 * 1024 * 1024
"""Size of the cache over all streams. When it is exceeded the whole cache is cleared; frequent entries are soon cached
again."""
_LONGEST: Final = 4096
"""Longer entries are not cached."""
_STREAM_BYTES: Final = 1000
_MET_BYTES: Final = 64
_OVERHEAD_BYTES: Final = 200
"""Bytes of a cached entry besides its text and its rendered fields."""


_encode = msgspec.json.Encoder().encode


class StreamEntryCache:
    """Cached entries of one stream, under its current description."""

    __slots__ = ("_met", "_shown", "_shows", "_store", "description", "epoch", "raws")

    def __init__(self, store: "EntryCache", epoch: int, description: Description) -> None:
        self._store = store
        self.epoch = epoch
        self.description = description
        self._met: set[int] = set()
        self.raws: dict[int, bytes] = {}
        """Texts by seq, in the current schema version."""
        self._shown: dict[int, msgspec.Raw] = {}
        self._shows: object = None

    def note(self, raws: dict[int, bytes]) -> bool:
        """Caches entries that were seen before, and remembers the others. Returns whether any is cached now. Most
        entries are found once only, and caching them at once would waste memory."""
        again = {seq: raw for seq, raw in raws.items() if seq in self._met and len(raw) <= _LONGEST}
        if self._store.has_room(_MET_BYTES * (len(raws) - len(again))):
            self._met.update(raws)
        if again and self._store.has_room(sum(map(len, again.values())) + _OVERHEAD_BYTES * len(again)):
            self.raws.update(again)
        return bool(again)

    def shown_by(self, shows: object) -> dict[int, msgspec.Raw]:
        """The rendered entries, which stay valid while `shows` is the same object."""
        if self._shows is not shows:
            self._shows, self._shown = shows, {}
        return self._shown

    def note_shown(self, seqs: Sequence[int], fields: Sequence[Any]) -> None:
        """Caches the rendered JSON of cached entries. Encoding many at once is cheaper."""
        for seq, value in zip(seqs, fields, strict=True):
            if seq in self.raws:
                encoded = _encode(value)
                if self._store.has_room(len(encoded)):
                    self._shown[seq] = msgspec.Raw(encoded)


class EntryCache:
    """Cached entries of all streams."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._streams: dict[int, StreamEntryCache] = {}

    def of(self, topic: Topic, description: Description) -> StreamEntryCache:
        known = self._streams.get(topic.id)
        if known is None or known.description is not description or known.epoch != topic.epoch:
            self.has_room(_STREAM_BYTES)
            known = self._streams[topic.id] = StreamEntryCache(self, topic.epoch, description)
        return known

    def has_room(self, size: int) -> bool:
        """Reserves memory. If there is not enough, clears the whole cache and returns False."""
        self._bytes += size
        if self._bytes <= self._bytes_max:
            return True
        self._bytes = 0
        self._streams.clear()
        return False


ANSWER_BYTES = 16 * 1024 * 1024
"""The maximum number of bytes of all entries in one answer; the entry that exceeds it is the last."""
TURN_BYTES = 1024 * 1024
"""Bytes copied in one turn, before other queries get theirs."""


class Fetched(NamedTuple):
    entries: dict[int, bytes]
    """Entries by seq, in the current schema version. Removed entries are missing."""
    reached: int
    """The number of examined seqs."""
    seen: StreamEntryCache | None = None
    """The cache of the stream; None if nothing is cached."""


def fetch_entries(
    engine: Engine, topic: Topic, cache: StreamEntryCache, seqs: Sequence[int], later: Later
) -> Steps[Fetched]:
    """Reads the entries of some seqs, as many as fit into one answer. Nearly all are in memory; others are read one by
    one."""
    found = _Found(engine, topic, cache, seqs)
    promoter = cache.description.promoter
    while True:
        is_over = found.take_nearby()
        if found.reached == len(seqs) or found.size >= ANSWER_BYTES:
            break
        if is_over:
            yield next_turn(later)
            continue
        seq = seqs[found.reached]
        spec = ReadSpec(position=Position(seq - 1), max_records=1, max_bytes=1, up_to=seq)
        read: StreamSlice = yield Until(partial(read_slice, engine, topic, spec, promoter))
        found.take(read)
    return Fetched(found.entries, found.reached, cache if found.any_cached else None)


class _Found:
    """The entries of one fetch."""

    __slots__ = ("_cache", "_engine", "_promoter", "_seqs", "_topic", "any_cached", "entries", "reached", "size")

    def __init__(self, engine: Engine, topic: Topic, cache: StreamEntryCache, seqs: Sequence[int]) -> None:
        self._engine = engine
        self._topic = topic
        self._cache = cache
        self._promoter = cache.description.promoter
        self._seqs = seqs
        self.any_cached = False
        self.entries: dict[int, bytes] = {}
        self.size = 0
        self.reached = 0

    def take_nearby(self) -> bool:
        """Takes entries until one is not in memory. Returns whether the time slice ended before."""
        entries, known, size = self.entries, self._cache.raws, self.size
        end, begun, new = min(size + TURN_BYTES, ANSWER_BYTES), self.reached, dict[int, bytes]()
        promoted_to = 0 if self._promoter is None else self._promoter.current_from
        for seq, stored in nearby(self._engine, self._topic, self._seqs[self.reached :], known):
            raw = known.get(seq)
            if raw is None:
                raw = new[seq] = stored if seq > promoted_to else self._promoted(seq, stored)
            entries[seq] = raw
            size += len(raw)
            self.reached += 1
            if size >= end:
                break
        has_met = bool(new) and self._cache.note(new)
        self.any_cached |= has_met or len(new) < self.reached - begun
        self.size = size
        return size >= end

    def take(self, read: StreamSlice) -> None:
        """Takes the next entry from a read, which may not contain it."""
        if read.count:
            self.entries[self._seqs[self.reached]] = read.body[1:-1]
            self.size += len(read.body)
        self.reached += 1

    def _promoted(self, seq: int, stored: bytes) -> bytes:
        assert self._promoter is not None
        return bytes(self._promoter.promote(seq - 1, stored))


def nearby(
    engine: Engine, topic: Topic, seqs: Sequence[int], known: Container[int] = ()
) -> Iterator[tuple[int, bytes]]:
    """Yields the texts of entries up to one that is not cached and needs a read. The texts of cached entries are empty.

    The result is valid for one turn of the loop, because a run may be freed in the next. Nearly every hit takes this
    path, so it has few steps.
    """
    lookup, span = _RunLookup(engine, topic), _NOTHING
    first, last = span.first, span.last
    for seq in seqs:
        if not first <= seq <= last:
            span = lookup.find(seq)
            # Removed entries at the front may end within a run.
            first, last = max(span.first, topic.earliest), span.last
            if not first <= seq <= last:
                return
            view, flags, segment = span.view, span.flags, span.segment
            text, text_from = view.text, 0
            text_to = 0 if segment is not None else len(text)
        index = seq - span.first
        if flags is not None and flags[span.flags_at + index] == DELETED:
            return
        if seq in known:
            yield seq, b""
            continue
        begin, end = data_span(view, index)
        if segment is not None and not (text_from <= begin and end <= text_to):
            try:
                text_from, text_to = max(begin - _AROUND_BYTES, 0), min(end + _AROUND_BYTES, segment.head.text_bytes)
                text = segment.text(text_from, text_to)
            except UNREADABLE:
                return
        yield seq, bytes(text[begin - text_from : end - text_from])


class _RunLookup:
    """Finds the runs of a topic that contain entries. Hits are in few runs, so each run is looked up once."""

    def __init__(self, engine: Engine, topic: Topic) -> None:
        self._reader = engine.reader
        self._topic = topic
        self._first, self._last = (topic.earliest, topic.head) if topic.origin is None else (1, 0)
        self._known: list[_SeqSpan] = []
        """The runs found so far, by their first seq."""
        self._firsts: list[int] = []

    def find(self, seq: int) -> "_SeqSpan":
        """Returns the run of an entry, if it is in memory. Hits sorted by a field alternate between a few runs."""
        if not self._first <= seq <= self._last:
            return _NOTHING
        place = bisect_right(self._firsts, seq)
        if place and seq <= self._known[place - 1].last:
            return self._known[place - 1]
        found = self._find(seq)
        if found is not _NOTHING:
            self._firsts.insert(place, found.first)
            self._known.insert(place, found)
        return found

    def _find(self, seq: int) -> "_SeqSpan":
        topic, reader = self._topic, self._reader
        run = topic.run_from(seq)
        if run is None or run.first_seq > seq:
            return _NOTHING
        flags = reader.flags(topic.id, run)
        if isinstance(run, Block):
            return _SeqSpan(run.first_seq, run.last_seq, run.view, flags)
        # Read once: the sealer may remove the blocks at any moment.
        blocks = run.blocks
        if blocks is not None:
            block = blocks[bisect_right(blocks, seq, key=_first_seq) - 1]
            return _SeqSpan(block.first_seq, block.last_seq, block.view, flags, block.first_seq - run.first_seq)
        if run.cold:
            return _NOTHING
        try:
            opened = reader.open(topic.id, run)
        except UNREADABLE:
            return _NOTHING
        return _SeqSpan(run.first_seq, run.last_seq, opened.view, flags, 0, opened)


class _SeqSpan(NamedTuple):
    """Consecutive entries in one text."""

    first: int
    last: int
    view: View
    flags: bytes | bytearray | None
    flags_at: int = 0
    """The offset of the first entry's flag."""
    segment: OpenSegment | None = None
    """The segment that has the text; the view of a segment has rows only."""


_AROUND_BYTES = 2048
"""Bytes read on both sides of an entry: hits are often close to each other."""
_NOTHING = _SeqSpan(1, 0, View(b"", memoryview(b""), 0, 0), None)
_first_seq = attrgetter("first_seq")


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
        """`now` is the clock that the search process uses, too. A maximum of 0 means no limit."""
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
        """The number of running queries by API key."""
        self._entries = EntryCache()
        self._prefetch = IndexPrefetch(engine, self._feed, later)
        self._stats = SearchStats()
        if index_files is not None:
            engine.second_passed.subscribe(index_files.tidy)

    @property
    def under_way(self) -> int:
        """The number of running queries."""
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
        """Answers a query within its time, possibly in part. Raises ThrottledError if too many queries are running, in
        total or of its key."""
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
        """Reads the entries of some seqs."""
        cache = self._entries.of(topic, description_of(topic))
        run_steps(fetch_entries(self._engine, topic, cache, seqs, self._later), done)

    def read(self, topic: Topic, spec: ReadSpec, done: Callable[[StreamSlice | TopicsError], None]) -> None:
        """Runs a read with a filter."""
        # Bound again, because the stream's description may have changed during the wait.
        bind_filter(spec.filter or "", search_config_of(topic))
        description = description_of(topic)

        def index() -> int:
            # Requested for every step, because the index may have been evicted in between.
            return self._feed.for_query(topic, description).index

        skip_scan = None
        if self.index_files is not None:
            skip_scan = IndexSkipScan(self._searcher, self.index_files, topic, spec.key, spec.filter, index)
        read = FilteredRead(
            self._engine, self._searcher, self._later, self._stats, topic, description.promoter, spec, index, skip_scan
        )
        run_steps(read.steps(), done)

    def read_key(self, topic: Topic, spec: ReadSpec, read: Read, done: SliceDone) -> None:
        """Reads one routing key. `read` runs a read without skips."""
        if self.index_files is None:
            read(spec, done)
            return
        skip_scan = IndexSkipScan(self._searcher, self.index_files, topic, spec.key, None, _no_index)
        run_steps(read_key(topic, spec, skip_scan, read, self._later), done)

    def diff(
        self, topic: Topic, request: ReadRequest, text: str, done: Callable[[ReadResult | TopicsError], None]
    ) -> None:
        """Runs a filtered read of a topic's records (`topics.search.query.schemaless_filter`)."""
        diff = FilteredDiff(self._engine, self._searcher, self._later, self._stats, topic, request, text)
        run_steps(diff.steps(), done)


def inline_search(engine: Engine) -> StreamSearch:
    """A search service that answers in the call, for tests and tools without a search process."""
    return StreamSearch(engine, InlineSearcher(SystemClock.monotonic), at_once, SystemClock.monotonic)


def _no_index() -> int:
    return NO_INDEX


def description_of(topic: Topic) -> Description:
    """Returns the description of a stream. Raises InvalidRequestError if it has no schema."""
    state = stream_of(topic)
    if state is None or state.description is None:
        raise InvalidRequestError("the stream declares no search fields")
    return state.description


def search_config_of(topic: Topic) -> SearchConfig:
    """Returns the search fields of a stream. Raises InvalidRequestError if it has none."""
    state = stream_of(topic)
    description = None if state is None else state.description
    config = None if description is None else description.contract.registry.search_config
    if config is None:
        raise InvalidRequestError("the stream declares no search fields")
    return config
