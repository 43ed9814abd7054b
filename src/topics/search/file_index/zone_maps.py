"""Zone maps: blocks that cannot match are skipped by their minimum and maximum values and by posting lists.

Columns of numbers, dates and booleans have a minimum and a maximum for each block; texts have posting lists only.

Skipping affects the cost of a query and not its result.

Posting lists (an inverted index): the rows of each text in an index file, which bound the rows that a clause can match.

They are counted and read for any range of rows, so a search for the newest rows of a frequent word reads only their
positions.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, reduce
from typing import Any, Final, Protocol

import numpy as np

from topics.search.file_index.file_format import Array, StoredColumn
from topics.search.file_index.reader import IndexFile, Rows
from topics.search.file_index.top_k import TopK
from topics.search.memory_index.row_selection import Late
from topics.search.query.field_values import Mask, Numbers, Pieces
from topics.search.query.plan import Ask, Budget
from topics.search.query.predicates import (
    All,
    Any_,
    Best,
    Equals,
    HasPhrase,
    HasWords,
    Nothing,
    Predicate,
    StartsWith,
    Within,
)

_MOST_PLACES: Final = 16_384
"""The maximum number of positions of several texts that are sorted."""


class Postings(Protocol):
    """A superset of the matching rows."""

    def most(self, lo: int, hi: int) -> int:
        """Returns an upper bound of the number of rows in a range, in constant time."""
        ...

    def rows(self, lo: int, hi: int) -> Numbers:
        """Returns the rows in a range, ascending and distinct."""
        ...

    def has(self, rows: Numbers) -> Mask:
        """Returns which of some rows are in the set."""
        ...


class _OfText:
    """The rows of one text. Its positions ascend."""

    def __init__(self, column: StoredColumn, places: Array) -> None:
        self._column = column
        self._places = places

    def _between(self, lo: int, hi: int) -> Array:
        first, behind = self._column.value_range(lo, hi)
        # By binary search, because numpy would first convert the whole array to the type of the bounds.
        return self._places[bisect_left(self._places, first) : bisect_left(self._places, behind)]

    def most(self, lo: int, hi: int) -> int:
        return len(self._between(lo, hi))

    def rows(self, lo: int, hi: int) -> Numbers:
        rows = self._column.rows_between(self._between(lo, hi), lo, hi)
        return rows[np.append(True, rows[1:] != rows[:-1])] if len(rows) else rows

    def has(self, rows: Numbers) -> Mask:
        first, behind = self._column.value_bounds(rows)
        places = self._places
        # Converted to the type of the array; otherwise numpy would convert the whole array.
        at = places.searchsorted(first.astype(places.dtype))
        inside = at < len(places)
        inside[inside] = places[at[inside]] < behind[inside]
        return inside


class _OfSomeTexts:
    """The rows of a few consecutive texts. The positions ascend for each text, not over all of them."""

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
    """An intersection: the rows of the rarest set that are in all others."""

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
    """A union."""

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
    """The postings of one search, each looked up once."""

    def __init__(self, index_file: IndexFile) -> None:
        self.index_file = index_file
        self._known: dict[Predicate, Postings | None] = {}

    def of(self, predicate: Predicate) -> Postings | None:
        """Returns the only rows that can match a predicate; None if postings do not restrict it."""
        if predicate not in self._known:
            self._known[predicate] = self._find(predicate)
        return self._known[predicate]

    def _find(self, predicate: Predicate) -> Postings | None:
        if isinstance(predicate, Nothing):
            return _OfAny(())
        if isinstance(predicate, All):
            known = [part for each in predicate.parts if (part := self.of(each)) is not None]
            return _combined_postings(known, _OfAll) if known else None
        if isinstance(predicate, Any_ | Best):
            parts = [self.of(each) for each in predicate.parts]
            known = [part for part in parts if part is not None]
            return _combined_postings(known, _OfAny) if len(known) == len(parts) else None
        spans = _code_spans(self.index_file, predicate)
        if spans is None:
            return None
        column = self.index_file.column(predicate.field)  # type: ignore[attr-defined]
        known = [part for span in spans if (part := _of_codes(column, *span)) is not None]
        return _combined_postings(known, _OfAll) if known else None


def _combined_postings(parts: list[Postings], join: Callable[[Sequence[Postings]], Postings]) -> Postings:
    return parts[0] if len(parts) == 1 else join(parts)


def _of_codes(column: StoredColumn, begin: int, end: int) -> Postings | None:
    places = column.places_of(begin, end)
    if end - begin <= 1:
        return _OfText(column, places)
    return _OfSomeTexts(column, places) if len(places) <= _MOST_PLACES else None


def _code_spans(index_file: IndexFile, predicate: Predicate) -> list[tuple[int, int]] | None:
    """Returns the range of codes of each text of a clause; None for clauses without texts."""
    field: str | None = getattr(predicate, "field", None)
    if field is None or not index_file.column(field).is_text:
        return None
    texts = index_file.column(field).texts
    if isinstance(predicate, Equals):
        return [_span_of(texts.code(str(predicate.value)))]
    if isinstance(predicate, StartsWith):
        return [texts.span(predicate.prefix)]
    if isinstance(predicate, HasWords | HasPhrase):
        whole = predicate.words[:-1] if predicate.prefix else predicate.words
        spans = [_span_of(texts.code(word)) for word in whole]
        return [*spans, texts.span(predicate.words[-1])] if predicate.prefix else spans
    return None


def _span_of(code: int | None) -> tuple[int, int]:
    return (0, 0) if code is None else (code, code + 1)


Chance = Callable[[int], bool]
"""Decides whether a block may have matches."""


def chance_of(lookup: Lookup, predicate: Predicate) -> Chance:
    """Returns a function that decides whether a block may have matches."""
    if isinstance(predicate, Nothing):
        return _never
    if isinstance(predicate, All | Any_ | Best):
        chances = [chance_of(lookup, part) for part in predicate.parts]
        return _joined(chances, all if isinstance(predicate, All) else any)
    postings = lookup.of(predicate)
    if postings is not None:
        return _text_chance(lookup.index_file, postings)
    if isinstance(predicate, Equals | Within):
        return _value_chance(lookup.index_file, predicate)
    return _always


def _never(_: int) -> bool:
    return False


def _always(_: int) -> bool:
    return True


def _joined(chances: Sequence[Chance], join: Callable[[Any], bool]) -> Chance:
    requested = [chance for chance in chances if chance is not _always] if join is all else list(chances)
    if not requested:
        return _always
    return requested[0] if len(requested) == 1 else lambda block: join(chance(block) for chance in requested)


def _text_chance(index_file: IndexFile, postings: Postings) -> Chance:
    bounds = index_file.bounds
    return lambda block: postings.most(int(bounds[block]), int(bounds[block + 1])) > 0


def _value_chance(index_file: IndexFile, predicate: Equals | Within) -> Chance:
    blocks = index_file.blocks(predicate.field)
    if blocks is None:
        return _always
    lows, highs, counts = blocks.lows, blocks.highs, blocks.counts
    if index_file.column(predicate.field).is_text:
        return _always
    low: Any = predicate.value if isinstance(predicate, Equals) else predicate.low
    high: Any = predicate.value if isinstance(predicate, Equals) else predicate.high
    possible = counts > 0
    if low is not None:
        possible = possible & (highs >= low)
    if high is not None:
        possible = possible & (lows <= high)
    return lambda block: bool(possible[block])


# The rows of an index file that a search evaluates, in sort order of the blocks. Skipped blocks have no matches.
#
# If few rows of a block can match, only these are evaluated. Rows of several blocks are read together, in growing
# steps, because each step has a fixed cost.

AT_ONCE: Final = 512
"""If at most this many rows can match, they are evaluated together, without blocks."""
_MOST_PICKED: Final = 1 << 14
_FEW_OF: Final = 8
"""If at most one row in this many can match, only the candidates are evaluated."""


class RowSelection:
    """Selects the rows from `lo` to before `hi` that can match, by the postings."""

    def __init__(self, index_file: IndexFile, ask: Ask, lo: int, hi: int, budget: Budget) -> None:
        self._index_file = index_file
        self._ask = ask
        self._lookup = Lookup(index_file)
        self._postings = self._lookup.of(ask.predicate)
        self._lo = lo
        self._hi = hi
        self._budget = budget
        key = ask.sort.by_offset
        self._pieces = None if key is None or ask.count_all else Pieces(key.ascending)

    @property
    def is_small(self) -> bool:
        return self._postings is not None and self._postings.most(self._lo, self._hi) <= AT_ONCE

    def at_once(self, _: TopK) -> Iterator[Rows]:
        assert self._postings is not None
        yield from self._picked([self._postings.rows(self._lo, self._hi)])

    def by_blocks(self, ranking: TopK) -> Iterator[Rows]:
        """Raises `Late`: there may be many blocks without candidates."""
        postings = self._postings
        chance = chance_of(self._lookup, self._ask.predicate)
        pending: list[Numbers] = []
        # The first step has as many rows as requested hits, which may be enough.
        waiting, step = 0, min(self._ask.size, AT_ONCE)
        for block in ranking.order(self._blocks()):
            if self._budget.is_late():
                raise Late
            if ranking.is_done(block) or not chance(block):
                continue
            lo, hi = self._bounds(block)
            few = postings is not None and postings.most(lo, hi) * _FEW_OF <= hi - lo
            if few and postings is not None:
                pending.append(postings.rows(lo, hi))
                waiting += len(pending[-1])
            if not few or waiting >= step:
                yield from self._picked(pending)
                pending, waiting, step = [], 0, min(2 * step, _MOST_PICKED)
            if not few and not ranking.is_done(block):
                yield from self._in_pieces(lo, hi, ranking)
        yield from self._picked(pending)

    def _in_pieces(self, lo: int, hi: int, ranking: TopK) -> Iterator[Rows]:
        """Returns the rows of a block. In a sort by offset its first rows may have all hits."""
        key, index_file = self._ask.sort.by_offset, self._index_file
        if key is None or self._pieces is None:
            yield Rows(index_file, lo, hi)
            return
        for begin, end in self._pieces.of(lo, hi):
            first = np.array([begin if key.ascending else end - 1], np.int64)
            if ranking.is_behind(index_file.numbers_at(first).tolist()):
                return
            yield Rows(index_file, begin, end)

    def _blocks(self) -> range:
        size = self._index_file.head.block_rows
        return range(self._lo // size, -(-self._hi // size)) if self._lo < self._hi else range(0)

    def _bounds(self, block: int) -> tuple[int, int]:
        bounds = self._index_file.bounds
        return max(int(bounds[block]), self._lo), min(int(bounds[block + 1]), self._hi)

    def _picked(self, pending: Sequence[Numbers]) -> Iterator[Rows]:
        rows = np.sort(np.concatenate(pending)) if pending else np.zeros(0, np.int64)
        if len(rows):
            yield Rows(self._index_file, 0, self._index_file.head.rows, rows)
