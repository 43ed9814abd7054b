"""Running queries in the search process: asked of the memory index, then of index files and scanned entries, and
finished when no part is left."""

from collections.abc import Callable, Sequence
from typing import Any

from topics.model.seq_ranges import SeqRange
from topics.schema.registry import Registry
from topics.search.file_index.file_format import plan_of
from topics.search.file_index.query_part import IndexFilePart, ResultCache
from topics.search.file_index.reader import IndexFile
from topics.search.memory_index.fill import Decoder
from topics.search.memory_index.memory_index import MemoryIndex, MemoryIndexPart
from topics.search.query.aggregate import Aggregation, show
from topics.search.query.plan import AggregatePlan, Budget, Count, CountPlan, KeyListPlan, Running, SearchPlan, Span
from topics.search.query.plan import Ask as PlanAsk
from topics.search.query.predicates import fields_of
from topics.search.query.scan import EntryReader
from topics.search.query.score import Weights, terms_of
from topics.search.query.sort import OFFSET, Hit, Sort
from topics.search.worker.messages import (
    AggregateQuery,
    CountQuery,
    Hits,
    KeysQuery,
    Piece,
    Query,
    Result,
    SearchQuery,
    views,
)
from topics.search.worker.query_cache import LONGEST_KNOWN, known_aggregation, known_search, known_sort
from topics.wire.record_slicing import View, data_parts, tag_texts, tag_value

# What the search process holds of a stream: its description, and its newest entries as columns, chunk by chunk.

_DECODERS = 64
"""Sets of fields whose decoders are remembered."""
_KNOWN_KEYS = 4096
"""Routing keys that are remembered as they are written: entries that come together have few."""


class HeldIndex:
    """One index with what makes entries of stored text.

    Its chunks follow each other, so that the oldest entries can be forgotten without indexing the others anew.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.config = registry.search_config
        self.version = registry.current_version
        self._reader = EntryReader(registry)
        self.plan = plan_of(registry)
        self._chunks: list[MemoryIndex] = []
        self._decoder = MemoryIndex(self.config, self.version).decoder()
        self._decoders: dict[tuple[str, ...] | None, Decoder] = {}
        self._known_keys: dict[bytes, str] = {}

    def add(self, pieces: tuple[Piece, ...], body: memoryview, new: bool) -> None:
        if new or not self._chunks:
            self._chunks.append(MemoryIndex(self.config, self.version))
        self._fill(self._chunks[-1], self._decoder, pieces, body, with_keys=True)

    def columns(
        self, names: tuple[str, ...] | None, pieces: tuple[Piece, ...], body: memoryview, with_keys: bool = False
    ) -> tuple[MemoryIndex, int]:
        """An index over some entries alone, with the fields that somebody asks for (None is all), and the bytes of the
        entries. To look at entries this way takes half as long as one by one."""
        index = MemoryIndex(self.config, self.version, names)
        decoder = self._decoders.get(names)
        if decoder is None:
            if len(self._decoders) >= _DECODERS:
                self._decoders.clear()
            decoder = self._decoders[names] = index.decoder()
        return index, self._fill(index, decoder, pieces, body, with_keys)

    def _fill(
        self, index: MemoryIndex, decoder: Decoder, pieces: tuple[Piece, ...], body: memoryview, with_keys: bool
    ) -> int:
        """Adds all entries at once: they may have been appended one by one, and each step costs more than an entry."""
        numbers: list[int] = []
        raws: list[bytes | memoryview] = []
        keys: list[str | None] = []
        for first_seq, view in views(pieces, body):
            numbers += range(first_seq, first_seq + view.count)
            raws += data_parts(view, 0, view.count)
            keys += self._keys_in(view, with_keys)
        self._reader.fill(index, decoder, numbers, raws, keys)
        return sum(map(len, raws))

    def _keys_in(self, view: View, wanted: bool) -> list[str | None]:
        keys: list[str | None] = [None] * view.count
        known = self._known_keys
        for index, text in tag_texts(view, 0, view.count) if wanted else ():
            key = known.get(text)
            if key is None:
                key = known[text] = tag_value(text)
            keys[index] = key
        if len(known) > _KNOWN_KEYS:
            known.clear()
        return keys

    def trim(self, first: int) -> None:
        self._chunks = [chunk for chunk in self._chunks if chunk.last >= first]

    def parts(self, first: int, last: int, removed: tuple[SeqRange, ...]) -> list[MemoryIndexPart]:
        """The chunks that have entries of a range, the newest first."""
        parts = []
        for chunk in reversed(self._chunks):
            rows = chunk.count_between(first, last)
            if rows:
                span = Span(max(first, int(chunk.numbers[0])), min(last, chunk.last), rows)
                parts.append(MemoryIndexPart(chunk, span, removed))
        return parts

    @property
    def memory_bytes(self) -> int:
        return sum(chunk.memory_bytes for chunk in self._chunks)


_NO_LIMIT = 1 << 62
"""How much is scanned is decided by who sends it."""


class RunningQuery:
    """One query, and what its parts gave so far."""

    def __init__(
        self,
        held: HeldIndex,
        query: Query,
        now: Callable[[], float],
        deadline: float,
        result_cache: ResultCache | None = None,
    ) -> None:
        self.held = held
        # What is long would take more room than what is found.
        is_short = isinstance(query, SearchQuery) and len(query.q) <= LONGEST_KNOWN
        self._result_cache = result_cache if is_short else None
        self._budget = Budget(now, max(deadline - now(), 0.0), _NO_LIMIT)
        self._aggregation: Aggregation | None = None
        self._ascending = False
        self._names: Callable[[], tuple[str, ...] | None] = tuple
        """The fields that it looks at; None is all of them. Only whoever looks at entries has to know."""
        self._running = self._begin(query)
        self._scanned = 0
        self._indexed = 0

    def _begin(self, query: Query) -> Running:
        held = self.held
        if isinstance(query, KeysQuery):
            return KeyListPlan(query.after, query.limit, self._budget)
        assert held.config is not None
        if isinstance(query, AggregateQuery):
            aggregation = self._aggregation = known_aggregation(query.body, held.registry)
            self._names = lambda: aggregation.needed_fields
            return AggregatePlan(aggregation, self._budget)
        if isinstance(query, CountQuery):
            terms = terms_of(known_search(query.q, held.registry).predicate)
            self._names = lambda: tuple(dict.fromkeys(term.field for term in terms))
            return CountPlan(Count(config=held.config, version=held.version, terms=terms), self._budget)
        asked = _plan_ask(held, query)
        self._names = lambda: tuple(dict.fromkeys((*fields_of(asked.predicate), *asked.sort.fields)))
        by_offset = asked.sort.by_offset
        self._ascending = by_offset is not None and by_offset.ascending
        return SearchPlan(asked, self._budget)

    def take_memory_index(self, first: int, last: int, removed: tuple[SeqRange, ...]) -> None:
        """Asks the index about a range of its entries."""
        parts = self.held.parts(first, last, removed)
        for part in reversed(parts) if self._ascending else parts:
            if self._running.wants(part.span):
                self._running.take(part)

    def take_entries(self, pieces: tuple[Piece, ...], body: memoryview) -> None:
        """Looks at entries that are in no index; they are one part."""
        count = sum([piece.count for piece in pieces])
        if not count:
            return
        last = pieces[-1]
        span = Span(pieces[0].first_seq, last.first_seq + last.count - 1, count, "segment")
        if self._running.wants(span):
            self._scanned += count
            index, _ = self.held.columns(self._names(), pieces, body, isinstance(self._running, KeyListPlan))
            self._running.take(MemoryIndexPart(index, span))

    def take_index_file(self, index_file: IndexFile, first: int, last: int, removed: tuple[SeqRange, ...]) -> None:
        """Asks an index file about a range of its entries."""
        rows = index_file.count_between(first, last)
        span = Span(first, last, rows, "index")
        if self._running.wants(span):
            before = self._running.coverage.looked_at
            self._running.take(IndexFilePart(index_file, span, self.held.plan, removed, self._result_cache))
            self._indexed += self._running.coverage.looked_at - before

    @property
    def enough(self) -> bool:
        return self._running.enough

    def progress(self, looked_up: int = 0, unreadable: str = "") -> Result:
        """What is told between two parts."""
        return Result(enough=self._running.enough, spent=self._budget.spent, looked_up=looked_up, unreadable=unreadable)

    def finish(self, looked_up: int = 0) -> Result:
        """The answer. `looked_up` is how many index files the last question had asked."""
        running = self._running
        if isinstance(running, KeyListPlan):
            keys = running.keys()
            return self._result(looked_up, keys=tuple(keys.keys), is_full=keys.next_after is not None)
        if isinstance(running, CountPlan):
            return self._result(looked_up, counted=tuple(running.numbers()))
        if isinstance(running, AggregatePlan):
            assert self._aggregation is not None
            return self._result(looked_up, buckets=show(running.sums().groups, self._aggregation))
        page = running.page()
        return self._result(
            looked_up, hits=_hits(running.sort, page.hits), is_full=page.next_after is not None, matched=page.matched
        )

    def _result(self, looked_up: int, **found: Any) -> Result:
        coverage = self._running.coverage
        return Result(
            scanned=self._scanned,
            indexed=self._indexed,
            rolled=coverage.rolled,
            looked_at=coverage.looked_at,
            missed=coverage.missed,
            first_missed=coverage.first_missed,
            spent=coverage.spent,
            enough=self._running.enough,
            memory_bytes=self.held.memory_bytes,
            looked_up=looked_up,
            is_final=True,
            **found,
        )


def _hits(sort: Sort, found: Sequence[Hit]) -> Hits:
    scores = [hit.score for hit in found]
    keys = [None if key.name == OFFSET else [hit.place[index] for hit in found] for index, key in enumerate(sort.keys)]
    return Hits([hit.number for hit in found], scores if any(scores) else [], keys)


def _plan_ask(held: HeldIndex, query: SearchQuery) -> PlanAsk:
    assert held.config is not None
    bound = known_search(query.q, held.registry)
    return PlanAsk(
        config=held.config,
        version=held.version,
        predicate=bound.predicate,
        sort=known_sort(query.sort, held.registry, bound.has_text),
        size=query.size,
        after=None if query.after is None else tuple(query.after),
        count_all=query.count_all,
        weights=Weights(bound.predicate, query.statistics) if query.ranked else None,
    )
