"""Plans: one query over many parts, and what its answer covers.

The parts of a stream have no entry in common, and together they have all of them. So the hits of a query are the best
of the hits of its parts, its sums are their sums, and its keys are the first of their keys. Only a spent budget leaves
something out, and then the coverage says how much at most.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from topics.indexing.aggregation import Aggregation
from topics.indexing.groups import Groups
from topics.indexing.parts import Ask, Budget, Count, Part, Span
from topics.indexing.ranking import Statistics
from topics.indexing.sorting import OFFSET, Hit, Place, Sort
from topics.indexing.tables import Table

_SPARE_PAGES = 4
"""Pages of keys that are held before they are sorted and cut."""


class Coverage(msgspec.Struct, kw_only=True):
    """What an answer is about."""

    missed: int = 0
    """Entries that were not looked at, at most."""
    missed_tail: int = 0
    missed_sealed: int = 0
    missed_segments: int = 0
    first_missed: int | None = None
    """No entry with a smaller number was missed."""
    oldest_missed_ms: int | None = None
    """The part that has it begins with an entry of that time."""
    looked_at: int = 0
    """Entries that were looked at, wherever they are."""
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
        """Notes what a part did not look at."""
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


class Searching:
    """A search that is asked of one part after the other. Whoever gives it parts gives them in the order of the sort,
    if that is the offset, and asks first whether it wants them."""

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

    def wants(self, span: Span) -> bool:
        ask = self._ask
        if ask.sort.by_offset is None or ask.count_all:
            return True
        return len(self._hits) < ask.size and not _is_before(span, ask)

    def take(self, part: Part) -> None:
        """Asks a part, or notes what is missed if the budget is spent."""
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
    searching = Searching(ask, budget)
    for part in sorted(parts, key=lambda part: part.span.first, reverse=not ascending):
        if searching.wants(part.span):
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


class Adding:
    """An aggregation that is asked of one part after the other, in any order."""

    enough = False

    def __init__(self, ask: Aggregation, budget: Budget) -> None:
        self._ask = ask
        self._budget = budget
        self.coverage = Coverage()
        self._table = Table()

    def wants(self, span: Span) -> bool:
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
    adding = Adding(ask, budget)
    for part in sorted(parts, key=lambda part: part.span.first):
        adding.take(part)
    return adding.sums()


class KeyPage(NamedTuple):
    keys: list[str]
    next_after: str | None
    coverage: Coverage


class Listing:
    """A list of routing keys, asked of one part after the other, in any order."""

    enough = False

    def __init__(self, after: str | None, limit: int, budget: Budget) -> None:
        self._after = after
        self._limit = limit
        self._budget = budget
        self.coverage = Coverage()
        self._found: set[str] = set()

    def wants(self, span: Span) -> bool:
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
    listing = Listing(after, limit, budget)
    for part in parts:
        listing.take(part)
    return listing.keys()


class Counting:
    """Statistics for a ranking, asked of one part after the other, in any order."""

    enough = False

    def __init__(self, ask: Count, budget: Budget) -> None:
        self._ask = ask
        self._budget = budget
        self.coverage = Coverage()
        self.statistics = Statistics(ask.terms)

    def wants(self, span: Span) -> bool:
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
    counting = Counting(ask, budget)
    for part in parts:
        counting.take(part)
    return counting.numbers()


Running = Searching | Adding | Listing | Counting
"""A query on its way through its parts."""
