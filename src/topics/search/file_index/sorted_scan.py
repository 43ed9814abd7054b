"""Sorted scan: the rows of an index file in the order of a field's values, for searches that are sorted by it.

An index file has for each field with one value a row its rows in the order of these values. A search that is sorted by
such a field, and by others only where its values are equal, looks at the first rows of that order and stops behind the
last that can be among its hits. Where matches turn out to be rare it gives up, and all blocks are looked at.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from topics.search.file_index.file_format import Array, StoredColumn
from topics.search.file_index.reader import IndexFile, Rows
from topics.search.file_index.top_k import TopK
from topics.search.query.plan import Ask
from topics.search.query.sort import OFFSET, SCORE

FIRST_ROWS: Final = 2048
"""So many rows are looked at in a first step, and twice as many in each that follows."""
_MOST_ROWS: Final = 1 << 16
_SHARE: Final = 8
"""A search gives up once it has looked at so small a part of all rows, and of more than `_MOST_ROWS`."""


class SortedScan:
    """The rows of one search. `gave_up` says at the end that they were not all that count."""

    def __init__(self, index_file: IndexFile, ask: Ask, lo: int, hi: int) -> None:
        """Of the rows from `lo` up to `hi`."""
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
        """What of the order comes behind the page before and before the hits of others, or has the same value as the
        last of them."""

        def place(find: Callable[..., int], value: Any) -> int:
            return find(range(len(order)), _rank(value), key=lambda at: _rank(values.at(int(order[at]))))

        after, until = self._ask.after, self._ask.until
        low, high = (after, until) if self._ask.sort.keys[0].ascending else (until, after)
        return (
            0 if low is None else place(bisect_left, low[0]),
            len(order) if high is None else place(bisect_right, high[0]),
        )


class _Values:
    """The value of each row; None for one without."""

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
