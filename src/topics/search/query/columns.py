"""Columns: one field of many entries, as a query asks for it, wherever its arrays are.

A column has the values of its field in the order of the entries, and for each value the row it belongs to. Most fields
have exactly one value an entry; then the values are the rows and nothing has to be spread. Texts are codes of a
dictionary. A column of words has the words of its texts, with a gap behind each text, so that no phrase reaches into
the next.

There are two kinds of them: columns that grow as entries come (`topics.search.memory_index`) and columns that are
mapped from a file (`topics.search.file_index`). Filters, sorts and sums ask both the same questions, and so get
the same answers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
Codes = NDArray[np.int32]

GAP = "\n"
"""Stands behind each text of a column of words. No word is one."""


FEW = 16
"""One in so many is looked up; more of them are looked at all together."""


class Snapshot:
    """The values of the first rows of a column."""

    __slots__ = ("_rows", "count", "values")

    def __init__(self, values: NDArray[Any], rows: NDArray[Any] | None, count: int) -> None:
        self.values = values
        self._rows = rows
        self.count = count

    @property
    def rows(self) -> NDArray[Any] | None:
        """The row of each value; None where the values are the rows."""
        return self._rows

    @property
    def is_single(self) -> bool:
        """Whether the values are the rows."""
        return self._rows is None

    def rows_where(self, chosen: Mask) -> Mask:
        """The rows of which some value is chosen."""
        rows = self.rows
        if rows is None:
            return chosen
        mask = np.zeros(self.count, np.bool_)
        mask[rows[chosen]] = True
        return mask

    def rows_at(self, places: NDArray[Any]) -> Mask:
        """The rows of the values at some places."""
        rows = self.rows
        mask = np.zeros(self.count, np.bool_)
        mask[places if rows is None else rows[places]] = True
        return mask

    def counts_at(self, places: NDArray[Any]) -> Numbers:
        """How many of some places each row has."""
        rows = self.rows
        return np.bincount(places if rows is None else rows[places], minlength=self.count)

    def has_value(self) -> Mask:
        """The rows with a value."""
        rows = self.rows
        mask = np.full(self.count, rows is None)
        if rows is not None:
            mask[rows] = True
        return mask

    def single(self) -> tuple[NDArray[Any], Mask, Mask]:
        """One value for each row, whether it has one at all, and whether it has several."""
        rows = self.rows
        if rows is None:
            return self.values, np.ones(self.count, np.bool_), np.zeros(self.count, np.bool_)
        counts = np.bincount(rows, minlength=self.count)
        values = np.zeros(self.count, self.values.dtype)
        values[rows] = self.values
        return values, counts > 0, counts > 1

    def bounds_of(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Where the values of some rows begin, and where they end."""
        owners = self.rows
        if owners is None:
            return rows, rows + 1
        if len(rows) * FEW > len(owners):
            counts = np.bincount(owners, minlength=self.count)
            ends = np.cumsum(counts)
            return (ends - counts)[rows], ends[rows]
        # In their type, because otherwise all of them would be turned into that of the rows.
        wanted = rows.astype(owners.dtype)
        return owners.searchsorted(wanted), owners.searchsorted(wanted, "right")

    def extreme(
        self, rows: Numbers, rank: Callable[[NDArray[Any]], NDArray[Any]], least: bool
    ) -> tuple[NDArray[Any], Mask]:
        """The least or greatest ranked value of some rows, and which of them have one."""
        if self.is_single:
            return rank(self.values[rows]), np.ones(len(rows), np.bool_)
        begins, ends = self.bounds_of(rows)
        lengths = ends - begins
        has = lengths > 0
        if not len(rows) or lengths.max() <= 1:
            ranked = rank(self.values[begins[has]])
        else:
            every = rank(self.values[ranges(begins, lengths)])
            ranked = (np.minimum if least else np.maximum).reduceat(every, (np.cumsum(lengths) - lengths)[has])
        found = np.zeros(len(rows), ranked.dtype)
        found[has] = ranked
        return found, has


class Texts(Protocol):
    """A dictionary: the codes of the distinct texts of a column."""

    @property
    def texts(self) -> Sequence[str]:
        """The text of each code."""
        ...

    def __len__(self) -> int: ...

    def code(self, text: str) -> int | None: ...

    @property
    def is_ranked(self) -> bool:
        """Whether it takes no time to speak of to know the ranks of all."""
        ...

    def rank(self, text: str) -> int:
        """The rank of a text; one between two others if it has no code."""
        ...

    def ranked(self, codes: NDArray[Any]) -> Numbers:
        """The ranks of the texts of some codes: a smaller one comes first."""
        ...

    def come_behind(self, text: str, codes: NDArray[Any]) -> Mask:
        """Of which codes the text comes behind this one."""
        ...

    def first_among(self, codes: NDArray[Any], size: int, ascending: bool) -> NDArray[Any]:
        """The distinct codes of the first texts among those of some codes, in their order or against it."""
        ...

    def begin_with(self, prefix: str, codes: NDArray[Any]) -> Mask:
        """Of which codes the text begins so."""
        ...

    def contain(self, part: str, codes: NDArray[Any]) -> Mask:
        """Of which codes the text has this one in it."""
        ...


class Column(ABC):
    """The values of one field as numbers: typed ones as themselves, texts as codes."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]: ...

    @abstractmethod
    def snapshot(self, count: int) -> Snapshot:
        """What the first rows have."""

    @abstractmethod
    def has_field(self, count: int) -> Mask:
        """Which of the first rows have the field at all, as null perhaps."""


class TextColumn(Column):
    """A column of texts."""

    dictionary: Texts


class WordsColumn(TextColumn):
    """A column of the words of texts."""

    @abstractmethod
    def places(self, code: int) -> NDArray[Any]:
        """Where a word stands among all words, ascending."""

    @abstractmethod
    def beginning(self, prefix: str) -> NDArray[Any]:
        """Where words stand that begin so, in any order."""

    @abstractmethod
    def lengths(self, count: int) -> NDArray[Any]:
        """How many words each of the first rows has."""


def ranges(begins: NDArray[Any], lengths: NDArray[Any]) -> Numbers:
    """The numbers from each beginning on, as many as its length says, one behind the other."""
    before = np.cumsum(lengths, dtype=np.int64) - lengths
    places: Numbers = np.arange(int(lengths.sum())) + np.repeat(begins - before, lengths)
    return places


# Rows by their offsets, a few first and then more: whoever wants the newest entries that match, or the oldest, often
# has them after a look at the first of them.

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
