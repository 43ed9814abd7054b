"""Queries on their way: asked of the index, then of whatever else is brought, and finished when there is no more."""

from collections.abc import Callable, Sequence
from typing import Any

from topics.core.ranges import SeqRange
from topics.indexing.aggregation import Aggregation
from topics.indexing.companions.findings import Findings
from topics.indexing.companions.mapped import Companion
from topics.indexing.companions.part import CompanionPart
from topics.indexing.fresh.index import FreshPart
from topics.indexing.parts import Ask as PlanAsk
from topics.indexing.parts import Budget, Count, Span
from topics.indexing.plans import Adding, Counting, Listing, Running, Searching
from topics.indexing.predicates import fields_of
from topics.indexing.ranking import Weights, terms_of
from topics.indexing.showing import show
from topics.indexing.sorting import OFFSET, Hit, Sort
from topics.searching.held import Held
from topics.searching.hits import Hits
from topics.searching.known import LONGEST_KNOWN, known_aggregation, known_search, known_sort
from topics.searching.messages import AggregateQuery, CountQuery, KeysQuery, Piece, Query, Result, SearchQuery

_NO_LIMIT = 1 << 62
"""How much is scanned is decided by who sends it."""


class Asked:
    """One query, and what its parts gave so far."""

    def __init__(
        self, held: Held, query: Query, now: Callable[[], float], deadline: float, findings: Findings | None = None
    ) -> None:
        self._held = held
        # What is long would take more room than what is found.
        is_short = isinstance(query, SearchQuery) and len(query.q) <= LONGEST_KNOWN
        self._findings = findings if is_short else None
        self._budget = Budget(now, max(deadline - now(), 0.0), _NO_LIMIT)
        self._aggregation: Aggregation | None = None
        self._ascending = False
        self._names: Callable[[], tuple[str, ...] | None] = tuple
        """The fields that it looks at; None is all of them. Only whoever looks at entries has to know."""
        self._running = self._begin(query)
        self._scanned = 0
        self._indexed = 0

    def _begin(self, query: Query) -> Running:
        held = self._held
        if isinstance(query, KeysQuery):
            return Listing(query.after, query.limit, self._budget)
        assert held.config is not None
        if isinstance(query, AggregateQuery):
            aggregation = self._aggregation = known_aggregation(query.body, held.registry)
            self._names = lambda: aggregation.needed_fields
            return Adding(aggregation, self._budget)
        if isinstance(query, CountQuery):
            terms = terms_of(known_search(query.q, held.registry).predicate)
            self._names = lambda: tuple(dict.fromkeys(term.field for term in terms))
            return Counting(Count(config=held.config, version=held.version, terms=terms), self._budget)
        asked = _plan_ask(held, query)
        self._names = lambda: tuple(dict.fromkeys((*fields_of(asked.predicate), *asked.sort.fields)))
        by_offset = asked.sort.by_offset
        self._ascending = by_offset is not None and by_offset.ascending
        return Searching(asked, self._budget)

    def take_fresh(self, first: int, last: int, removed: tuple[SeqRange, ...]) -> None:
        """Asks the index about a range of its entries."""
        parts = self._held.parts(first, last, removed)
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
            index, _ = self._held.columns(self._names(), pieces, body, isinstance(self._running, Listing))
            self._running.take(FreshPart(index, span))

    def take_companion(self, companion: Companion, first: int, last: int, removed: tuple[SeqRange, ...]) -> None:
        """Asks a companion about a range of its entries."""
        rows = companion.count_between(first, last)
        span = Span(first, last, rows, "index")
        if self._running.wants(span):
            before = self._running.coverage.looked_at
            self._running.take(CompanionPart(companion, span, self._held.plan, removed, self._findings))
            self._indexed += self._running.coverage.looked_at - before

    @property
    def enough(self) -> bool:
        return self._running.enough

    def progress(self, looked_up: int = 0, unreadable: str = "") -> Result:
        """What is told between two parts."""
        return Result(enough=self._running.enough, spent=self._budget.spent, looked_up=looked_up, unreadable=unreadable)

    def finish(self, looked_up: int = 0) -> Result:
        """The answer. `looked_up` is how many companions the last question had asked."""
        running = self._running
        if isinstance(running, Listing):
            keys = running.keys()
            return self._result(looked_up, keys=tuple(keys.keys), is_full=keys.next_after is not None)
        if isinstance(running, Counting):
            return self._result(looked_up, counted=tuple(running.numbers()))
        if isinstance(running, Adding):
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
            memory_bytes=self._held.memory_bytes,
            looked_up=looked_up,
            is_final=True,
            **found,
        )


def _hits(sort: Sort, found: Sequence[Hit]) -> Hits:
    scores = [hit.score for hit in found]
    keys = [None if key.name == OFFSET else [hit.place[index] for hit in found] for index, key in enumerate(sort.keys)]
    return Hits([hit.number for hit in found], scores if any(scores) else [], keys)


def _plan_ask(held: Held, query: SearchQuery) -> PlanAsk:
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
