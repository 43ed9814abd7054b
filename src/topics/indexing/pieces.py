"""Rows by their offsets, a few first and then more: whoever wants the newest entries that match, or the oldest, often
has them after a look at the first of them."""

from collections.abc import Iterator
from typing import Final

FIRST_ROWS: Final = 4096
"""So many rows are looked at first: a step has its cost however few rows it has."""
_GROWTH: Final = 4


class Pieces:
    """The pieces of one search. They go on growing from one range of rows to the next."""

    def __init__(self, ascending: bool) -> None:
        self._ascending = ascending
        self._size = FIRST_ROWS

    def of(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """All rows from `lo` up to `hi`, those that are wanted first in the first piece."""
        while hi - lo > self._size:
            size = self._size
            self._size *= _GROWTH
            if self._ascending:
                yield lo, lo + size
                lo += size
            else:
                yield hi - size, hi
                hi -= size
        if lo < hi:
            yield lo, hi
