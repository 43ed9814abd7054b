"""Top-k: orders the blocks of an index file best first, and stops when no other block can have a better hit.

`TopK` has the order and the bound; `zone_maps.RowSelection` visits the blocks in that order.

## Repeated words

Scores depend on how often words occur in an entry, and posting lists have every position of a word. A search sorted by
score visits the rows in which a word occurs more than once, best first, and then all others, whose score is that of one
match a word. The repeated rows of a word are cached.

## Sorted scan

Visits the rows of an index file in the order of a field's values, for searches sorted by this field.

An index file stores, for each field with one value a row, its rows sorted by this value. A search whose first sort key
is such a field reads this order from the start and stops behind the last row that can be a hit. If matches are rare it
gives up, and all blocks are searched.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import Any, Final

import numpy as np

from topics.search.file_index.file_format import Array, StoredColumn
from topics.search.file_index.reader import IndexFile, Rows
from topics.search.query.field_values import Floats, Mask, Numbers, Repeats
from topics.search.query.plan import Ask
from topics.search.query.predicates import PHRASE_BONUS, All, Any_, Best, HasPhrase, HasWords, Negated, Predicate
from topics.search.query.score import Weights
from topics.search.query.sort import OFFSET, SCORE, Hit, Key

_FIRST_REPEATED: Final = 512
_MOST_REPEATED: Final = 1 << 14
_ROUNDING: Final = 1.0 + 1e-9
"""Margin of a bound for rounding."""


class TopK:
    """The best hits of one search so far."""

    def __init__(self, index_file: IndexFile, ask: Ask) -> None:
        self._index_file = index_file
        self._ask = ask
        self._best: dict[int, tuple[Any, ...]] = {}
        self._last = ask.until
        self._most: float | None = None

    def is_hopeless(self) -> bool:
        """Returns whether no row of the index file can be among the best hits, because other parts have better ones.

        Decided by the file's head, without reading a section.
        """
        if self._last is None:
            return False
        best = [self._best_of_all(key) for key in self._ask.sort.keys]
        if self._ask.after is not None:
            # Hits follow the previous page, so their first sort value is at best that of its last hit.
            best[0] = self._ask.sort.keys[0].later(best[0], self._ask.after[0])
        return self.is_behind(best)

    def order(self, blocks: Sequence[int]) -> list[int]:
        values = [self._best_values(key, np.array(blocks, np.int64)) for key in self._ask.sort.keys]
        self._best = dict(zip(blocks, zip(*values, strict=True), strict=True))
        return self._ask.sort.order_by(self._best)

    def cut(self, hits: list[Hit]) -> None:
        """Drops all but the best hits."""
        size, until = self._ask.size, self._ask.until
        self._ask.sort.arrange(hits)
        del hits[size:]
        is_better = len(hits) == size and (until is None or self._ask.sort.is_behind(until, hits[-1].place))
        self._last = hits[-1].place if is_better else until

    def is_done(self, block: int) -> bool:
        """Returns whether no row of a block can be among the best hits."""
        if self._last is None or self._ask.count_all:
            return False
        return self._ask.sort.is_surely_behind(self._best[block], self._last)

    def is_behind(self, best: list[Any]) -> bool:
        """Returns whether no hit with at best these values of the first sort keys can be among the best hits."""
        return self._last is not None and self._ask.sort.is_surely_behind(best, self._last)

    def _best_of_all(self, key: Key) -> Any:
        """Returns the best value of a sort key that any hit can have."""
        head = self._index_file.head
        if key.name == SCORE:
            return self._best_score(key)
        if key.name == OFFSET:
            return head.first if key.ascending else head.last
        field = head.fields[key.name]
        if not key.ascending and field.nulls:
            return None
        return field.low if key.ascending else field.high

    def _best_score(self, key: Key) -> float:
        if key.ascending:
            return 0.0
        if self._most is None:
            self._most = most_score(self._ask.predicate, self._ask.weights, self._index_file)
        return self._most

    def leave_repeats(self) -> None:
        """Notes that all rows with repeated words were visited."""
        self._most = most_score(self._ask.predicate)

    def _best_values(self, key: Key, blocks: Numbers) -> list[Any]:
        """Returns for each block the best value of a sort key that its hits can have.

        Null is greater than every value.
        """
        index_file = self._index_file
        if key.name == SCORE:
            return [self._best_score(key)] * len(blocks)
        if key.name == OFFSET:
            rows = index_file.bounds[blocks] if key.ascending else index_file.bounds[blocks + 1] - 1
            return list(index_file.numbers_at(rows).tolist())
        known, column = index_file.blocks(key.name), index_file.column(key.name)
        assert known is not None
        counts = known.counts[blocks]
        is_null = (counts == 0) if key.ascending else (counts < known.rows[blocks])
        values = (known.lows if key.ascending else known.highs)[blocks].tolist()
        return [
            None if null else column.texts[value] if column.is_text else value
            for null, value in zip(is_null.tolist(), values, strict=True)
        ]


class RepeatedRows:
    """The rows that may score more than others: a word of the search occurs in them more than once.

    A search that is sorted by score visits these first, by descending bound. No other row scores more than `most_score`
    without them.
    """

    def __init__(self, index_file: IndexFile, ask: Ask, lo: int, hi: int) -> None:
        self._index_file = index_file
        self._ask = ask
        found = [rows for leaf in _word_leaves(ask.predicate) for rows, _ in _repeats_of(index_file, leaf)]
        rows = np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)
        self._rows: Numbers = rows[np.searchsorted(rows, lo) : np.searchsorted(rows, hi)]

    @staticmethod
    def are_useful(ask: Ask) -> bool:
        """Whether they can end the search early: it is sorted by score, best first, and does not count all hits."""
        key = ask.sort.keys[0]
        by_score = key.name == SCORE and not key.ascending and ask.weights is None and not ask.count_all
        return by_score and next(_word_leaves(ask.predicate), None) is not None

    def chunks(self, ranking: TopK) -> Iterator[Rows]:
        if not len(self._rows):
            return
        bounds = self._bounds(self._ask.predicate)
        order = np.lexsort((-self._rows, -bounds))
        at, step = 0, max(self._ask.size, _FIRST_REPEATED)
        while at < len(order) and not ranking.is_behind([float(bounds[order[at]])]):
            chosen = np.sort(self._rows[order[at : at + step]])
            yield Rows(self._index_file, 0, self._index_file.head.rows, chosen)
            at, step = at + step, min(2 * step, _MOST_REPEATED)

    def have(self, rows: Numbers) -> Mask:
        """Returns which of some rows are in the selection."""
        if not len(self._rows):
            return np.zeros(len(rows), np.bool_)
        at = np.searchsorted(self._rows, rows)
        at[at == len(self._rows)] = 0
        return np.asarray(self._rows[at] == rows)

    def _bounds(self, predicate: Predicate) -> Floats:
        """Returns an upper bound of each row's score, as if every clause matched."""
        if isinstance(predicate, All | Any_):
            return reduce(np.add, map(self._bounds, predicate.parts))
        if isinstance(predicate, Best):
            return reduce(np.maximum, map(self._bounds, predicate.parts))
        bounds = np.full(len(self._rows), most_score(predicate))
        if isinstance(predicate, HasWords | HasPhrase):
            for rows, more in _repeats_of(self._index_file, predicate):
                inside = slice(np.searchsorted(rows, self._rows[0]), np.searchsorted(rows, self._rows[-1], "right"))
                bounds[np.searchsorted(self._rows, rows[inside])] += more[inside] * predicate.score
        return bounds * _ROUNDING


def _word_leaves(predicate: Predicate) -> Iterator[HasWords | HasPhrase]:
    """Returns the clauses on text fields that contribute to the score."""
    if isinstance(predicate, All | Any_ | Best):
        for part in predicate.parts:
            yield from _word_leaves(part)
    elif isinstance(predicate, HasWords | HasPhrase) and predicate.score:
        yield predicate


def _repeats_of(index_file: IndexFile, leaf: HasWords | HasPhrase) -> Iterator[Repeats]:
    """Returns the rows in which each word of a clause occurs more than once, with the number of further occurrences."""
    column = index_file.column(leaf.field)
    whole = leaf.words[:-1] if leaf.prefix else leaf.words
    for word in whole:
        code = column.texts.code(word)
        if code is not None:
            yield column.repeats(code, code + 1)
    if leaf.prefix:
        yield column.repeats(*column.texts.span(leaf.words[-1]))


def most_score(predicate: Predicate, weights: Weights | None = None, index_file: IndexFile | None = None) -> float:
    """Returns the maximum score of a match; without an index file, of a match in which each word occurs once."""
    if isinstance(predicate, All | Any_):
        # Added in the order of the scores: `sum` rounds differently from Python 3.12 on, and the bound must not be
        # below a score.
        return reduce(add, (most_score(part, weights, index_file) for part in predicate.parts), 0.0)
    if isinstance(predicate, Best):
        return max(most_score(part, weights, index_file) for part in predicate.parts)
    if weights is not None:
        return weights.most(predicate)
    if isinstance(predicate, HasWords | HasPhrase) and predicate.score:
        matches = len(predicate.words) * (1 + PHRASE_BONUS * isinstance(predicate, HasPhrase))
        if index_file is not None:
            matches += sum([int(more.max(initial=0)) for _, more in _repeats_of(index_file, predicate)])
        return matches * predicate.score
    return 0.0 if isinstance(predicate, Negated) else float(getattr(predicate, "score", 0.0))


FIRST_ROWS: Final = 2048
"""The number of rows of the first step. Each following step has twice as many."""
_MOST_ROWS: Final = 1 << 16
_SHARE: Final = 8
"""A search gives up after this part of all rows and more than `_MOST_ROWS` rows."""


class SortedScan:
    """Visits the rows of one search in sort order.

    `gave_up` reports at the end that not all relevant rows were visited.
    """

    def __init__(self, index_file: IndexFile, ask: Ask, lo: int, hi: int) -> None:
        """The scan covers the rows from `lo` to before `hi`."""
        self._index_file = index_file
        self._ask = ask
        self._lo = lo
        self._hi = hi
        self.gave_up = False

    def is_possible(self) -> bool:
        name = self._ask.sort.keys[0].name
        return not self._ask.count_all and name not in (OFFSET, SCORE) and self._index_file.order(name) is not None

    def chunks(self, ranking: TopK) -> Iterator[Rows]:
        key, index_file = self._ask.sort.keys[0], self._index_file
        order, values = index_file.order(key.name), _Values(index_file.column(key.name))
        assert order is not None
        at, end = self._bounds(order, values)
        step, looked = FIRST_ROWS, 0
        while at < end and not ranking.is_behind([values.at(int(order[at if key.ascending else end - 1]))]):
            if looked > max(_MOST_ROWS, len(order) // _SHARE):
                self.gave_up = True
                return
            size = min(step, end - at)
            chosen = order[at : at + size] if key.ascending else order[end - size : end]
            rows = np.sort(chosen).astype(np.int64)
            rows = rows[np.searchsorted(rows, self._lo) : np.searchsorted(rows, self._hi)]
            if len(rows):
                yield Rows(index_file, 0, index_file.head.rows, rows)
            at, end = (at + size, end) if key.ascending else (at, end - size)
            looked, step = looked + size, min(2 * step, _MOST_ROWS)

    def _bounds(self, order: Array, values: "_Values") -> tuple[int, int]:
        """Returns the part of the order between the previous page's last value and the worst kept hit."""

        def place(find: Callable[..., int], value: Any) -> int:
            return find(range(len(order)), _rank(value), key=lambda at: _rank(values.at(int(order[at]))))

        after, until = self._ask.after, self._ask.until
        low, high = (after, until) if self._ask.sort.keys[0].ascending else (until, after)
        return (
            0 if low is None else place(bisect_left, low[0]),
            len(order) if high is None else place(bisect_right, high[0]),
        )


class _Values:
    """Returns the value of each row; None if it has none."""

    def __init__(self, column: StoredColumn) -> None:
        self._values = column.values
        self._starts = column.starts

    def at(self, row: int) -> Any:
        starts = self._starts
        if starts is None:
            return self._values[row].item()
        place = int(starts[row])
        return None if place == int(starts[row + 1]) else self._values[place].item()


def _rank(value: Any) -> tuple[Any, ...]:
    return (1,) if value is None else (0, value)
