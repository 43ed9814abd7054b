"""Posting lists: the rows of each text in an index file, which bound the rows that a clause can match.

They are counted and found for any range of rows, so that a search which needs the newest rows of a frequent word reads
the places of these and no others.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from typing import Final, Protocol

import numpy as np

from topics.search.file_index.file_format import Array, StoredColumn
from topics.search.file_index.reader import IndexFile
from topics.search.query.columns import Mask, Numbers
from topics.search.query.predicates import All, Any_, Best, Equals, HasPhrase, HasWords, Nothing, Predicate, StartsWith

_MOST_PLACES: Final = 16_384
"""So many places of several texts are put in order."""


class Postings(Protocol):
    """Rows among which are all that match."""

    def most(self, lo: int, hi: int) -> int:
        """How many there are from one row up to another, at most. It takes a moment, however many there are."""
        ...

    def rows(self, lo: int, hi: int) -> Numbers:
        """Those, ascending, each once."""
        ...

    def has(self, rows: Numbers) -> Mask:
        """Which of some rows are among them."""
        ...


class _OfText:
    """The rows of one text, whose places ascend."""

    def __init__(self, column: StoredColumn, places: Array) -> None:
        self._column = column
        self._places = places

    def _between(self, lo: int, hi: int) -> Array:
        first, behind = self._column.value_range(lo, hi)
        # By halving, because numpy would first turn all of them into numbers of the type of these two.
        return self._places[bisect_left(self._places, first) : bisect_left(self._places, behind)]

    def most(self, lo: int, hi: int) -> int:
        return len(self._between(lo, hi))

    def rows(self, lo: int, hi: int) -> Numbers:
        rows = self._column.rows_between(self._between(lo, hi), lo, hi)
        return rows[np.append(True, rows[1:] != rows[:-1])] if len(rows) else rows

    def has(self, rows: Numbers) -> Mask:
        first, behind = self._column.value_bounds(rows)
        places = self._places
        # In their type, because otherwise all of them would be turned into that of the bounds.
        at = places.searchsorted(first.astype(places.dtype))
        inside = at < len(places)
        inside[inside] = places[at[inside]] < behind[inside]
        return inside


class _OfSomeTexts:
    """The rows of a few texts that follow each other. The places of each ascend, and not those of all."""

    def __init__(self, column: StoredColumn, places: Array) -> None:
        self._column = column
        self._places = places

    @cached_property
    def _all(self) -> Numbers:
        return np.unique(self._column.rows_at(self._places).astype(np.int64))

    def most(self, lo: int, hi: int) -> int:
        return len(self.rows(lo, hi))

    def rows(self, lo: int, hi: int) -> Numbers:
        return self._all[np.searchsorted(self._all, lo) : np.searchsorted(self._all, hi)]

    def has(self, rows: Numbers) -> Mask:
        return np.isin(rows, self._all)


class _OfAll:
    """All of several match: the rows of the rarest that are among those of the others."""

    def __init__(self, parts: Sequence[Postings]) -> None:
        self._parts = parts

    def most(self, lo: int, hi: int) -> int:
        return min([part.most(lo, hi) for part in self._parts])

    def rows(self, lo: int, hi: int) -> Numbers:
        rarest, *others = sorted(self._parts, key=lambda part: part.most(lo, hi))
        rows = rarest.rows(lo, hi)
        for other in others:
            rows = rows[other.has(rows)]
        return rows

    def has(self, rows: Numbers) -> Mask:
        return reduce(np.logical_and, [part.has(rows) for part in self._parts])


class _OfAny:
    """One of several matches."""

    def __init__(self, parts: Sequence[Postings]) -> None:
        self._parts = parts

    def most(self, lo: int, hi: int) -> int:
        return sum([part.most(lo, hi) for part in self._parts])

    def rows(self, lo: int, hi: int) -> Numbers:
        found = [rows for part in self._parts if len(rows := part.rows(lo, hi))]
        return reduce(np.union1d, found) if found else np.zeros(0, np.int64)

    def has(self, rows: Numbers) -> Mask:
        return reduce(np.logical_or, [part.has(rows) for part in self._parts], np.zeros(len(rows), np.bool_))


class Lookup:
    """The postings of one search, each looked for once."""

    def __init__(self, index_file: IndexFile) -> None:
        self.index_file = index_file
        self._known: dict[Predicate, Postings | None] = {}

    def of(self, predicate: Predicate) -> Postings | None:
        """The rows that a predicate can only match; None where no texts of it tell."""
        if predicate not in self._known:
            self._known[predicate] = self._find(predicate)
        return self._known[predicate]

    def _find(self, predicate: Predicate) -> Postings | None:
        if isinstance(predicate, Nothing):
            return _OfAny(())
        if isinstance(predicate, All):
            known = [part for each in predicate.parts if (part := self.of(each)) is not None]
            return _joined(known, _OfAll) if known else None
        if isinstance(predicate, Any_ | Best):
            parts = [self.of(each) for each in predicate.parts]
            known = [part for part in parts if part is not None]
            return _joined(known, _OfAny) if len(known) == len(parts) else None
        spans = _code_spans(self.index_file, predicate)
        if spans is None:
            return None
        column = self.index_file.column(predicate.field)  # type: ignore[attr-defined]
        known = [part for span in spans if (part := _of_codes(column, *span)) is not None]
        return _joined(known, _OfAll) if known else None


def _joined(parts: list[Postings], join: Callable[[Sequence[Postings]], Postings]) -> Postings:
    return parts[0] if len(parts) == 1 else join(parts)


def _of_codes(column: StoredColumn, begin: int, end: int) -> Postings | None:
    places = column.places_of(begin, end)
    if end - begin <= 1:
        return _OfText(column, places)
    return _OfSomeTexts(column, places) if len(places) <= _MOST_PLACES else None


def _code_spans(index_file: IndexFile, predicate: Predicate) -> list[tuple[int, int]] | None:
    """For each text that a clause wants, from and up to which code it is; None for clauses without texts."""
    field: str | None = getattr(predicate, "field", None)
    if field is None or not index_file.column(field).is_text:
        return None
    texts = index_file.column(field).texts
    if isinstance(predicate, Equals):
        return [_span_of(texts.code(str(predicate.value)))]
    if isinstance(predicate, StartsWith):
        return [texts.span(predicate.prefix)]
    if isinstance(predicate, HasPhrase):
        return [_span_of(texts.code(word)) for word in predicate.words]
    if isinstance(predicate, HasWords):
        whole = predicate.words[:-1] if predicate.prefix else predicate.words
        spans = [_span_of(texts.code(word)) for word in whole]
        return [*spans, texts.span(predicate.words[-1])] if predicate.prefix else spans
    return None


def _span_of(code: int | None) -> tuple[int, int]:
    return (0, 0) if code is None else (code, code + 1)
