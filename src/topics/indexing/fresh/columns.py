"""Columns: one field of all entries.

A column has the values of its field in the order of the entries, and for each value the row it belongs to. Most fields
have exactly one value an entry; then the values are the rows and nothing has to be spread.

A column of words has the words of its texts, with a `GAP` behind each text, so that no phrase reaches into the next.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topics.indexing.extraction import FieldValues
from topics.indexing.fresh.arrays import Growing, Mask, Numbers
from topics.indexing.fresh.dictionary import Dictionary
from topics.indexing.words import words_and_gaps
from topics.schema.search import Field

GAP = "\n"
"""No word is one."""
POSTING_WORDS = 1 << 16


class Column:
    """The values of one field as numbers: typed ones as themselves, texts as codes."""

    def __init__(self, kind: Any) -> None:
        self.values = Growing(kind)
        self._rows = Growing(np.int32)
        self.present = Growing(np.bool_)
        self.is_single = True
        """Whether every row so far has exactly one value."""

    def extend(self, fields: Sequence[FieldValues]) -> None:
        begin = self.present.count
        self.present.extend([field is not None for field in fields])
        counts = [len(field) if field else 0 for field in fields]
        self.values.extend(self.encode(list(chain.from_iterable(filter(None, fields)))))
        self._rows.extend(np.repeat(np.arange(begin, begin + len(fields), dtype=np.int32), counts))
        self.is_single = self.is_single and counts.count(1) == len(counts)

    def extend_values(self, values: NDArray[Any], rows: Numbers, present: Mask) -> None:
        """Adds as many rows as `present` has. Of these, counted from 0, `rows` have one value each."""
        begin = self.present.count
        self.present.extend(present)
        self.values.extend(values)
        self._rows.extend(rows + begin)
        self.is_single = self.is_single and len(rows) == len(present)

    def encode(self, values: list[Any]) -> Sequence[Any] | NDArray[Any]:
        return values

    def snapshot(self, count: int) -> "Snapshot":
        """What the first rows have."""
        rows = self._rows.filled
        end = count if self.is_single else int(np.searchsorted(rows, count))
        return Snapshot(self.values.filled[:end], None if self.is_single else rows[:end], count)

    @property
    def memory_bytes(self) -> int:
        return self.values.memory_bytes + self._rows.memory_bytes + self.present.memory_bytes


class Keywords(Column):
    """A column of texts."""

    def __init__(self) -> None:
        super().__init__(np.int32)
        self.dictionary = Dictionary()

    def encode(self, values: list[Any]) -> Sequence[Any] | NDArray[Any]:
        return self.dictionary.encode(values)

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes + self.dictionary.memory_bytes


class WordColumn(Keywords):
    """A column of words. Where a word stands is found in postings, which are made for a few thousand words at a time
    and never touched again; only behind the last of them every word is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self._postings: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = []

    def extend(self, fields: Sequence[FieldValues]) -> None:
        super().extend([None if field is None else _with_gaps(field) for field in fields])
        self._post()

    def extend_texts(self, texts: list[str], rows: Numbers, present: Mask) -> bool:
        """Adds as many rows as `present` has, some of which have one text each. False, and nothing was added, where a
        text has the character in it that stands for the gap.

        All texts are one while they are taken apart. Small letters are the same that way: the only letter that becomes
        another one at the end of a word is at its end before a gap as well.
        """
        joined = GAP.join(texts) + GAP if texts else ""
        if joined.count(GAP) != len(texts):
            return False
        codes = self.dictionary.encode(words_and_gaps(joined, GAP))
        begin = self.present.count
        ends = np.flatnonzero(codes == self.dictionary.code(GAP)) if texts else np.empty(0, np.int64)
        lengths = np.diff(ends, prepend=-1)
        self.present.extend(present)
        self.values.extend(codes)
        self._rows.extend(np.repeat(rows + begin, lengths))
        self.is_single = self.is_single and len(codes) == len(texts) == len(present)
        self._post()
        return True

    def _post(self) -> None:
        while self.values.count - len(self._postings) * POSTING_WORDS >= POSTING_WORDS:
            begin = len(self._postings) * POSTING_WORDS
            codes = self.values.filled[begin : begin + POSTING_WORDS]
            order = np.argsort(codes, kind="stable")
            self._postings.append((codes[order], order + begin))

    def places(self, code: int) -> NDArray[np.int64]:
        """Where a word stands among all words, ascending."""
        found = []
        for codes, places in self._postings:
            begin, end = codes.searchsorted((code, code + 1))
            if begin < end:
                found.append(places[begin:end])
        behind = len(self._postings) * POSTING_WORDS
        found.append(np.flatnonzero(self.values.filled[behind:] == code) + behind)
        return np.concatenate(found)

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes + 12 * POSTING_WORDS * len(self._postings)


def _with_gaps(field: tuple[Any, ...]) -> tuple[str, ...]:
    return (*field[0], GAP) if len(field) == 1 else tuple(word for text in field for word in (*text, GAP))


def column_for(field: Field) -> Column:
    if field.kind == "text":
        return WordColumn()
    if field.kind == "keyword":
        return Keywords()
    return Column({"integer": np.int64, "date": np.int64, "float": np.float64, "bool": np.int8}[field.kind])


class Snapshot:
    """The values of the first rows of a column."""

    __slots__ = ("count", "rows", "values")

    def __init__(self, values: NDArray[Any], rows: NDArray[np.int32] | None, count: int) -> None:
        self.values = values
        self.rows = rows
        """The row of each value; None where the values are the rows."""
        self.count = count

    def rows_where(self, chosen: Mask) -> Mask:
        """The rows of which some value is chosen."""
        if self.rows is None:
            return chosen
        mask = np.zeros(self.count, np.bool_)
        mask[self.rows[chosen]] = True
        return mask

    def rows_at(self, places: NDArray[np.int64]) -> Mask:
        """The rows of the values at some places."""
        mask = np.zeros(self.count, np.bool_)
        mask[places if self.rows is None else self.rows[places]] = True
        return mask

    def single(self) -> tuple[NDArray[Any], Mask, Mask]:
        """One value for each row, whether it has one at all, and whether it has several."""
        if self.rows is None:
            return self.values, np.ones(self.count, np.bool_), np.zeros(self.count, np.bool_)
        counts = np.bincount(self.rows, minlength=self.count)
        values = np.zeros(self.count, self.values.dtype)
        values[self.rows] = self.values
        return values, counts > 0, counts > 1

    def extreme(self, rank: Callable[[NDArray[Any]], NDArray[Any]], least: bool) -> tuple[NDArray[Any], Mask]:
        """The least or greatest ranked value of each row, and whether it has one."""
        ranked = rank(self.values)
        if self.rows is None:
            return ranked, np.ones(self.count, np.bool_)
        found = np.zeros(self.count, ranked.dtype)
        has = np.zeros(self.count, np.bool_)
        if len(ranked):
            starts = np.flatnonzero(np.diff(self.rows, prepend=-1))
            owners = self.rows[starts]
            found[owners] = (np.minimum if least else np.maximum).reduceat(ranked, starts)
            has[owners] = True
        return found, has
