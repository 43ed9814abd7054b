"""Query plans: one query over many parts, the merge of their results, and the coverage of the answer.

The parts of a stream are disjoint and together complete. So the hits of a query are the best hits of its parts, its
sums are their sums, and its keys are the first of their keys. Only an exhausted budget leaves entries out; the coverage
then has an upper bound of their number.

Cache of parsed and bound queries. Clients repeat queries, and parsing a query takes longer than sending it. The text
and the search description determine the meaning and are the cache key. Refusals are not cached.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from topics.model.bounded_cache import Memo
from topics.schema.registry import Registry
from topics.schema.search_fields import SearchConfig
from topics.search.query.aggregate import Aggregation, Table, parse_aggregation
from topics.search.query.aggregate_arrays import NO_GROUPS, Groups
from topics.search.query.match import Matcher
from topics.search.query.predicates import Bound, Predicate, bind_search
from topics.search.query.score import Statistics, Term, Weights
from topics.search.query.sort import OFFSET, Hit, Place, Sort, parse_sort

# Parts of a query's range: the tail, a sealed segment, or an index over many segments. All have the same interface.
#
# A part contains exactly the entries of a range of numbers. It answers from an index or by a scan, with equal rows and
# different cost. A part that exhausts its budget reports how many entries it did not examine, never too few.

PartKind = Literal["tail", "segment", "index"]
"""How an answer is accounted for: entries that were never sealed, a sealed range that is scanned, an index."""

_CLOCK_EVERY = 64


class Entry(NamedTuple):
    """A live entry as a source gives it: promoted and parsed."""

    number: int
    value: Any
    size: int
    """Bytes that were read for it."""
    key: str | None = None


class Span(msgspec.Struct, frozen=True):
    """The extent of a part: numbers from `first` to `last`, at most `rows` live entries."""

    first: int
    last: int
    rows: int
    kind: PartKind = "tail"
    oldest_append_ms: int | None = None
    """When the first of them was appended."""


class Budget:
    """The limits of one query, in all its parts. `now` is a clock in seconds."""

    def __init__(self, now: Callable[[], float], seconds: float, max_bytes: int) -> None:
        self._now = now
        self._deadline = now() + seconds
        self._bytes_left = max_bytes
        self._looks = 0
        self.taken_bytes = 0
        self.spent: str | None = None
        """The exhausted limit: `time`, `bytes` or `memory`; None as long as there is none."""

    def take(self, size: int) -> bool:
        """Returns whether the budget covers one more entry of so many bytes."""
        if self.spent is not None:
            return False
        if self._looks % _CLOCK_EVERY == 0 and self.is_late():
            return False
        self._looks += 1
        if size > self._bytes_left:
            self.spent = "bytes"
            return False
        self._bytes_left -= size
        self.taken_bytes += size
        return True

    def is_late(self) -> bool:
        """Checks the deadline. An index calls it between two steps."""
        if self.spent is None and self._now() >= self._deadline:
            self.spent = "time"
        return self.spent is not None

    def out_of_memory(self) -> None:
        self.spent = self.spent or "memory"


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A search: which entries, in which order, how many, behind which place."""

    config: SearchConfig
    version: int
    predicate: Predicate
    sort: Sort
    size: int
    after: Place | None = None
    count_all: bool = False
    """Whether all matches are counted, although only some are wanted."""
    until: Place | None = None
    """The last of the requested hits from other parts: hits after it need not be found. None if all matches are
    counted."""
    weights: Weights | None = None
    """Term weights, where hits are ranked by rarity."""

    def matcher(self) -> Matcher:
        return Matcher(self.predicate, self.config, self.version, self.sort.fields, self.weights)


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """A request for statistics: document frequencies of terms, and lengths of entries."""

    config: SearchConfig
    version: int
    terms: tuple[Term, ...]


class Found(msgspec.Struct, kw_only=True):
    """The result of a part: its best hits, the first one first, and the entries not searched."""

    hits: list[Hit]
    matched: int = 0
    """Entries that match and were met, whether they are among the hits or not."""
    looked_at: int = 0
    missed: int = 0
    first_missed: int | None = None
    candidates: int | None = None
    """Entries that an index named; None for a scan."""


class Totalled(msgspec.Struct, kw_only=True):
    """A part's contribution to an aggregation."""

    groups: Groups = NO_GROUPS
    rolled: bool = False
    """Whether some of it had been added up before."""
    looked_at: int = 0
    missed: int = 0
    first_missed: int | None = None


class KeysFound(msgspec.Struct, kw_only=True):
    """The first routing keys of a part behind some key, in order."""

    keys: list[str]
    looked_at: int = 0
    missed: int = 0


class Counted(msgspec.Struct, kw_only=True):
    """A part's contribution to statistics (`topics.search.query.score.Statistics`)."""

    numbers: list[int]
    looked_at: int = 0
    missed: int = 0
    first_missed: int | None = None


class Part(Protocol):
    @property
    def span(self) -> Span: ...

    def search(self, ask: Ask, budget: Budget) -> Found: ...

    def count(self, ask: Count, budget: Budget) -> Counted: ...

    def aggregate(self, ask: Aggregation, budget: Budget) -> Totalled: ...

    def keys(self, after: str | None, limit: int, budget: Budget) -> KeysFound: ...


class Source(Protocol):
    """A source of entries without an index. A source that knows which of them can match may leave the others out."""

    @property
    def span(self) -> Span: ...

    def entries(self, predicate: Predicate, descending: bool) -> Iterator[Entry]: ...


class Entries:
    """A source of entries that are in memory."""

    def __init__(self, span: Span, entries: Sequence[Entry]) -> None:
        self.span = span
        self._entries = entries

    def entries(self, predicate: Predicate, descending: bool) -> Iterator[Entry]:
        return iter(reversed(self._entries) if descending else self._entries)


_SPARE_PAGES = 4
"""Pages of keys that are held before they are sorted and cut."""


class Coverage(msgspec.Struct, kw_only=True):
    """The coverage of an answer."""

    missed: int = 0
    """The maximum number of entries that were not examined."""
    missed_tail: int = 0
    missed_sealed: int = 0
    missed_segments: int = 0
    first_missed: int | None = None
    """No entry with a smaller number was missed."""
    oldest_missed_ms: int | None = None
    """The part that has it begins with an entry of that time."""
    looked_at: int = 0
    """The number of examined entries in all parts."""
    tail_rows: int = 0
    scanned_segments: int = 0
    indexed_segments: int = 0
    candidates: int = 0
    rolled: bool = False
    """Whether some of an aggregation had been added up before."""
    spent: str | None = None

    @property
    def complete(self) -> bool:
        return self.spent is None

    def looked(self, span: Span, looked_at: int, candidates: int | None = None) -> None:
        """Notes that a part was asked."""
        self.looked_at += looked_at
        if span.kind == "tail":
            self.tail_rows += looked_at
        elif span.kind == "segment":
            self.scanned_segments += 1
        else:
            self.indexed_segments += 1
        self.candidates += candidates or 0

    def miss(self, span: Span, missed: int, first: int | None) -> None:
        """Records the entries that a part did not examine."""
        if not missed:
            return
        self.missed += missed
        if span.kind == "tail":
            self.missed_tail += missed
        else:
            self.missed_sealed += missed
            self.missed_segments += 1
        number = span.first if first is None else first
        if self.first_missed is None or number < self.first_missed:
            self.first_missed, self.oldest_missed_ms = number, span.oldest_append_ms


class Page(NamedTuple):
    """The hits of a search, the first one first."""

    hits: list[Hit]
    next_after: Place | None
    """Where the next page goes on; None when this one is not full."""
    matched: int
    """All matches, if they were to be counted."""
    coverage: Coverage

    @property
    def is_exact(self) -> bool:
        """Whether there is nothing besides these hits."""
        return self.coverage.complete and self.next_after is None


class SearchPlan:
    """A search that is asked of one part after the other. Parts must be given in the order of the sort, if that is the
    offset, after asking whether they are needed."""

    def __init__(self, ask: Ask, budget: Budget) -> None:
        self._ask = ask
        self._budget = budget
        self.coverage = Coverage()
        self._hits: list[Hit] = []
        self._matched = 0

    @property
    def sort(self) -> Sort:
        return self._ask.sort

    @property
    def enough(self) -> bool:
        """Whether no part can add anything."""
        ask = self._ask
        return ask.sort.by_offset is not None and not ask.count_all and len(self._hits) >= ask.size

    def needs_span(self, span: Span) -> bool:
        ask = self._ask
        if ask.sort.by_offset is None or ask.count_all:
            return True
        return len(self._hits) < ask.size and not _is_before(span, ask)

    def take(self, part: Part) -> None:
        """Queries a part, or records its entries as missed if the budget is spent."""
        span = part.span
        if self._budget.is_late():
            self.coverage.miss(span, span.rows, None)
            return
        ask = self._ask
        found = part.search(ask, self._budget)
        self.coverage.looked(span, found.looked_at, found.candidates)
        self.coverage.miss(span, found.missed, found.first_missed)
        self._matched += found.matched
        self._hits += found.hits
        if found.hits and len(self._hits) >= ask.size:
            self._cut()
            if not ask.count_all:
                self._ask = msgspec.structs.replace(ask, until=self._hits[-1].place)

    def _cut(self) -> None:
        self._ask.sort.arrange(self._hits)
        del self._hits[self._ask.size :]

    def page(self) -> Page:
        self._cut()
        self.coverage.spent = self._budget.spent
        is_full = len(self._hits) == self._ask.size
        return Page(self._hits, self._hits[-1].place if is_full else None, self._matched, self.coverage)


def search(parts: Iterable[Part], ask: Ask, budget: Budget) -> Page:
    by_offset = ask.sort.by_offset
    ascending = by_offset is not None and by_offset.ascending
    searching = SearchPlan(ask, budget)
    for part in sorted(parts, key=lambda part: part.span.first, reverse=not ascending):
        if searching.needs_span(part.span):
            searching.take(part)
    return searching.page()


def _is_before(span: Span, ask: Ask) -> bool:
    """Whether all of a part comes before the place where the page begins; the first key is the offset."""
    if ask.after is None:
        return False
    key, number = ask.sort.keys[0], ask.after[0]
    assert key.name == OFFSET
    return bool(span.last <= number if key.ascending else span.first >= number)


class Sums(NamedTuple):
    groups: Groups
    coverage: Coverage


class AggregatePlan:
    """An aggregation that is asked of one part after the other, in any order."""

    enough = False

    def __init__(self, ask: Aggregation, budget: Budget) -> None:
        self._ask = ask
        self._budget = budget
        self.coverage = Coverage()
        self._table = Table()

    def needs_span(self, span: Span) -> bool:
        return True

    def take(self, part: Part) -> None:
        span, coverage = part.span, self.coverage
        if self._budget.is_late():
            coverage.miss(span, span.rows, None)
            return
        totalled = part.aggregate(self._ask, self._budget)
        coverage.rolled |= totalled.rolled
        coverage.looked(span, totalled.looked_at)
        coverage.miss(span, totalled.missed, totalled.first_missed)
        if not self._table.add(totalled.groups):
            self._budget.out_of_memory()
            coverage.miss(span, span.rows - totalled.missed, None)

    def sums(self) -> Sums:
        self.coverage.spent = self._budget.spent
        return Sums(self._table.groups(), self.coverage)


def aggregate(parts: Iterable[Part], ask: Aggregation, budget: Budget) -> Sums:
    adding = AggregatePlan(ask, budget)
    for part in sorted(parts, key=lambda part: part.span.first):
        adding.take(part)
    return adding.sums()


class KeyPage(NamedTuple):
    keys: list[str]
    next_after: str | None
    coverage: Coverage


class KeyListPlan:
    """A list of routing keys, asked of one part after the other, in any order."""

    enough = False

    def __init__(self, after: str | None, limit: int, budget: Budget) -> None:
        self._after = after
        self._limit = limit
        self._budget = budget
        self.coverage = Coverage()
        self._found: set[str] = set()

    def needs_span(self, span: Span) -> bool:
        return True

    def take(self, part: Part) -> None:
        if self._budget.is_late():
            self.coverage.miss(part.span, part.span.rows, None)
            return
        answer = part.keys(self._after, self._limit + 1, self._budget)
        self.coverage.looked(part.span, answer.looked_at)
        self.coverage.miss(part.span, answer.missed, None)
        self._found.update(answer.keys)
        if len(self._found) > _SPARE_PAGES * self._limit:
            self._found = set(sorted(self._found)[: self._limit + 1])

    def keys(self) -> KeyPage:
        self.coverage.spent = self._budget.spent
        ordered = sorted(self._found)
        keys = ordered[: self._limit]
        return KeyPage(keys, keys[-1] if len(ordered) > self._limit else None, self.coverage)


def list_keys(parts: Sequence[Part], after: str | None, limit: int, budget: Budget) -> KeyPage:
    """The first routing keys behind `after`, each once."""
    listing = KeyListPlan(after, limit, budget)
    for part in parts:
        listing.take(part)
    return listing.keys()


class CountPlan:
    """Statistics for a ranking, asked of one part after the other, in any order."""

    enough = False

    def __init__(self, ask: Count, budget: Budget) -> None:
        self._ask = ask
        self._budget = budget
        self.coverage = Coverage()
        self.statistics = Statistics(ask.terms)

    def needs_span(self, span: Span) -> bool:
        return True

    def take(self, part: Part) -> None:
        if self._budget.is_late():
            self.coverage.miss(part.span, part.span.rows, None)
            return
        counted = part.count(self._ask, self._budget)
        self.coverage.looked(part.span, counted.looked_at)
        self.coverage.miss(part.span, counted.missed, counted.first_missed)
        self.statistics.add(counted.numbers)

    def numbers(self) -> list[int]:
        self.coverage.spent = self._budget.spent
        return self.statistics.numbers


def count(parts: Iterable[Part], ask: Count, budget: Budget) -> list[int]:
    counting = CountPlan(ask, budget)
    for part in parts:
        counting.take(part)
    return counting.numbers()


Running = SearchPlan | AggregatePlan | KeyListPlan | CountPlan
"""The state of a query over its parts."""


_QUERIES: Final = 256
LONGEST_KNOWN: Final = 512
"""Longer query texts are parsed each time: their parsed form is many times as large."""

_searches: Memo[tuple[bytes | None, str], Bound] = Memo(_QUERIES)
_sorts: Memo[tuple[bytes | None, tuple[str, ...], bool], Sort] = Memo(_QUERIES)
_aggregations: Memo[tuple[bytes | None, int, bytes], Aggregation] = Memo(_QUERIES)


def known_search(q: str, registry: Registry) -> Bound:
    """The predicate of a search's query. Raises InvalidRequestError."""
    if len(q) > LONGEST_KNOWN:
        return bind_search(q, _config_of(registry))
    return _searches.get((registry.search, q), lambda: bind_search(q, _config_of(registry)))


def known_sort(items: Sequence[str], registry: Registry, has_text: bool) -> Sort:
    """The sort of a search. Raises InvalidRequestError."""
    config = _config_of(registry)
    if sum(map(len, items)) > LONGEST_KNOWN:
        return parse_sort(items, config, has_text)
    return _sorts.get((registry.search, tuple(items), has_text), lambda: parse_sort(items, config, has_text))


def known_aggregation(body: bytes, registry: Registry) -> Aggregation:
    """The aggregation of a request's body. Raises InvalidRequestError."""
    version = registry.current_version
    if len(body) > LONGEST_KNOWN:
        return parse_aggregation(body, _config_of(registry), version)
    key = registry.search, version, body
    return _aggregations.get(key, lambda: parse_aggregation(body, _config_of(registry), version))


def _config_of(registry: Registry) -> SearchConfig:
    config = registry.search_config
    assert config is not None, "who asks has looked"
    return config
