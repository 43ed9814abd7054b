"""Some rows of columns that grow, one behind the other, as columns of their own."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topics.indexing.columns import Column, Mask, Snapshot, TextColumn, WordsColumn
from topics.indexing.fresh.columns import GrowingColumn, Keywords, WordColumn


class Window(Mapping[str, Column]):
    """The columns of the rows from `lo` up to `hi`, by name."""

    def __init__(self, columns: Mapping[str, GrowingColumn], lo: int, hi: int) -> None:
        self._columns = columns
        self._lo = lo
        self._hi = hi
        self._made: dict[str, Column] = {}

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __getitem__(self, name: str) -> Column:
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = _window_of(self._columns[name], self._lo, self._hi)
        return made


class WindowColumn(Column):
    def __init__(self, whole: GrowingColumn, lo: int, hi: int) -> None:
        self._present = whole.present.filled[lo:hi]
        self.begin, self.end = whole.places_between(lo, hi)
        values = whole.values.filled[self.begin : self.end]
        rows = None if whole.is_single else whole.rows[self.begin : self.end] - np.int32(lo)
        self._snapshot = Snapshot(values, rows, hi - lo)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._snapshot.values.dtype

    def snapshot(self, count: int) -> Snapshot:
        """Nobody asks for fewer than all of its rows."""
        return self._snapshot

    def has_field(self, count: int) -> Mask:
        return self._present


class WindowTexts(WindowColumn, TextColumn):
    def __init__(self, whole: Keywords, lo: int, hi: int) -> None:
        super().__init__(whole, lo, hi)
        self.dictionary = whole.dictionary


class WindowWords(WindowTexts, WordsColumn):
    def __init__(self, whole: WordColumn, lo: int, hi: int) -> None:
        super().__init__(whole, lo, hi)
        self._whole = whole
        self._lengths = whole.lengths(hi)[lo:]

    def places(self, code: int) -> NDArray[Any]:
        return self._whole.places(code, self.begin, self.end) - self.begin

    def beginning(self, prefix: str) -> NDArray[Any]:
        return np.flatnonzero(self.dictionary.begin_with(prefix, self._snapshot.values))

    def lengths(self, count: int) -> NDArray[Any]:
        return self._lengths


def _window_of(column: GrowingColumn, lo: int, hi: int) -> Column:
    if isinstance(column, WordColumn):
        return WindowWords(column, lo, hi)
    return WindowTexts(column, lo, hi) if isinstance(column, Keywords) else WindowColumn(column, lo, hi)
