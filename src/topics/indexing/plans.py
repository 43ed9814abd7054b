"""Plans: one query over many parts, and what its answer covers.

The parts of a stream have no entry in common, and together they have all of them. So the hits of a query are the best
of the hits of its parts, its sums are their sums, and its keys are the first of their keys. Only a spent budget leaves
something out, and then the coverage says how much at most.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from topics.indexing.aggregation import Aggregation, Table
from topics.indexing.parts import Ask, Budget, Part, Span
from topics.indexing.sorting import OFFSET, Hit, Place


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
    tail_rows: int = 0
    scanned_segments: int = 0
    indexed_segments: int = 0
    candidates: int = 0
    spent: str | None = None

    @property
    def complete(self) -> bool:
        return self.spent is None

    def looked(self, span: Span, looked_at: int, candidates: int | None = None) -> None:
        """Notes that a part was asked."""
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


def search(parts: Iterable[Part], ask: Ask, budget: Budget) -> Page:
    by_offset = ask.sort.by_offset
    ascending = by_offset is not None and by_offset.ascending
    coverage = Coverage()
    hits: list[Hit] = []
    matched = 0
    for part in sorted(parts, key=lambda part: part.span.first, reverse=not ascending):
        span = part.span
        if by_offset is not None and not ask.count_all and (len(hits) >= ask.size or _is_before(span, ask)):
            continue
        if budget.is_late():
            coverage.miss(span, span.rows, None)
            continue
        found = part.search(ask, budget)
        coverage.looked(span, found.looked_at, found.candidates)
        coverage.miss(span, found.missed, found.first_missed)
        matched += found.matched
        hits += found.hits
    ask.sort.arrange(hits)
    del hits[ask.size :]
    coverage.spent = budget.spent
    return Page(hits, hits[-1].place if len(hits) == ask.size else None, matched, coverage)


def _is_before(span: Span, ask: Ask) -> bool:
    """Whether all of a part comes before the place where the page begins; the first key is the offset."""
    if ask.after is None:
        return False
    key, number = ask.sort.keys[0], ask.after[0]
    assert key.name == OFFSET
    return bool(span.last <= number if key.ascending else span.first >= number)


class Sums(NamedTuple):
    table: Table
    coverage: Coverage


def aggregate(parts: Iterable[Part], ask: Aggregation, budget: Budget) -> Sums:
    table, coverage = Table(ask), Coverage()
    for part in sorted(parts, key=lambda part: part.span.first):
        span = part.span
        if budget.is_late():
            coverage.miss(span, span.rows, None)
            continue
        totalled = part.aggregate(ask, budget)
        coverage.looked(span, totalled.looked_at)
        coverage.miss(span, totalled.missed, totalled.first_missed)
        if not table.merge(totalled.table):
            budget.out_of_memory()
            coverage.miss(span, span.rows - totalled.missed, None)
    coverage.spent = budget.spent
    return Sums(table, coverage)


class KeyPage(NamedTuple):
    keys: list[str]
    next_after: str | None
    coverage: Coverage


def list_keys(parts: Sequence[Part], after: str | None, limit: int, budget: Budget) -> KeyPage:
    """The first routing keys behind `after`, each once."""
    coverage = Coverage()
    found: set[str] = set()
    for part in parts:
        if budget.is_late():
            coverage.miss(part.span, part.span.rows, None)
            continue
        answer = part.keys(after, limit + 1, budget)
        coverage.looked(part.span, answer.looked_at)
        coverage.miss(part.span, answer.missed, None)
        found.update(answer.keys)
    coverage.spent = budget.spent
    ordered = sorted(found)
    keys = ordered[:limit]
    return KeyPage(keys, keys[-1] if len(ordered) > limit else None, coverage)
