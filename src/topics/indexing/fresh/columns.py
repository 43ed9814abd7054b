"""Columns that grow: one field of all entries that came so far."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topics.indexing.columns import GAP, Codes, Column, Mask, Numbers, Snapshot, TextColumn, WordsColumn, ranges
from topics.indexing.extraction import FieldValues
from topics.indexing.fresh.arrays import Growing
from topics.indexing.fresh.dictionary import Dictionary
from topics.indexing.words import words_by_line
from topics.schema.search import Field

POSTING_WORDS = 1 << 16


class GrowingColumn(Column):
    """A column that entries are added to."""

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

    def snapshot(self, count: int) -> Snapshot:
        _, end = self.places_between(0, count)
        return Snapshot(self.values.filled[:end], None if self.is_single else self.rows[:end], count)

    def places_between(self, lo: int, hi: int) -> tuple[int, int]:
        """Where the values of the rows from `lo` up to `hi` are."""
        if self.is_single:
            return lo, hi
        # In the type of the rows, because otherwise all of them would be turned into that of the bounds.
        begin, end = self.rows.searchsorted(np.array((lo, hi), np.int32)).tolist()
        return begin, end

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.filled.dtype

    def has_field(self, count: int) -> Mask:
        return self.present.filled[:count]

    @property
    def rows(self) -> NDArray[np.int32]:
        """The row of each value."""
        return self._rows.filled

    @property
    def memory_bytes(self) -> int:
        return self.values.memory_bytes + self._rows.memory_bytes + self.present.memory_bytes


class Keywords(GrowingColumn, TextColumn):
    """A column of texts."""

    dictionary: Dictionary

    def __init__(self) -> None:
        super().__init__(np.int32)
        self.dictionary = Dictionary()

    def encode(self, values: list[Any]) -> Sequence[Any] | NDArray[Any]:
        return self.dictionary.encode(values)

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes + self.dictionary.memory_bytes


class WordColumn(Keywords, WordsColumn):
    """A column of words. Where a word stands is found in postings, which are made for a few thousand words at a time
    and never touched again; only behind the last of them every word is looked at. One that is only to be written down
    has none."""

    has_postings = True

    def __init__(self) -> None:
        super().__init__()
        self._postings: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = []
        self._lengths = Growing(np.int32)

    def extend(self, fields: Sequence[FieldValues]) -> None:
        super().extend([None if field is None else _with_gaps(field) for field in fields])
        self._lengths.extend([sum(map(len, field or ())) for field in fields])
        self._post()

    def extend_texts(self, texts: list[str], rows: Numbers, present: Mask) -> None:
        """Adds as many rows as `present` has, some of which have one text each. What several have is taken apart
        once."""
        distinct = dict.fromkeys(texts)
        if 2 * len(distinct) > len(texts):
            codes, lengths = self._words_of(texts)
        else:
            codes, lengths = self._words_of(list(distinct))
            place_of = dict(zip(distinct, range(len(distinct)), strict=True))
            chosen = np.fromiter(map(place_of.__getitem__, texts), np.int64, len(texts))
            begins = np.cumsum(lengths) - lengths
            lengths = lengths[chosen]
            codes = codes[ranges(begins[chosen], lengths)]
        begin = self.present.count
        self.present.extend(present)
        self.values.extend(codes)
        self._rows.extend(np.repeat(rows + begin, lengths))
        words = np.zeros(len(present), np.int32)
        words[rows] = lengths - 1
        self._lengths.extend(words)
        self.is_single = self.is_single and len(codes) == len(texts) == len(present)
        self._post()

    def _words_of(self, texts: list[str]) -> tuple[Codes, Numbers]:
        """The codes of the words of texts, each with a gap behind it, and how many that are."""
        if not texts:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        joined = GAP.join(texts)
        if joined.count(GAP) >= len(texts):
            # No word has it, so anything else that is in no word does as well.
            joined = GAP.join([text.replace(GAP, " ") for text in texts])
        found = words_by_line(joined)
        for words in found:
            words.append(GAP)
        return (
            self.dictionary.encode(list(chain.from_iterable(found))),
            np.fromiter(map(len, found), np.int64, len(found)),
        )

    def _post(self) -> None:
        while self.has_postings and self.values.count - len(self._postings) * POSTING_WORDS >= POSTING_WORDS:
            begin = len(self._postings) * POSTING_WORDS
            codes = self.values.filled[begin : begin + POSTING_WORDS]
            order = np.argsort(codes, kind="stable")
            self._postings.append((codes[order], order + begin))

    def places(self, code: int, first: int = 0, end: int | None = None) -> NDArray[np.int64]:
        """Where a word stands, ascending; of the places from `first` up to `end`, if only these are asked for."""
        found = []
        words = self.values.filled[:end]
        # In the type of the codes, because otherwise all of them would be turned into that of the bounds.
        bounds = np.array((code, code + 1), np.int32)
        posted = first // POSTING_WORDS
        for codes, places in self._postings[posted : -(-len(words) // POSTING_WORDS)]:
            begin, behind = codes.searchsorted(bounds)
            if begin < behind:
                found.append(places[begin:behind])
        behind = max(len(self._postings) * POSTING_WORDS, first)
        found.append(np.flatnonzero(words[behind:] == code) + behind)
        every = np.concatenate(found)
        # Those of the first and of the last postings may lie outside.
        return every[slice(*every.searchsorted((first, len(words))))]

    def beginning(self, prefix: str) -> NDArray[np.int64]:
        return np.flatnonzero(self.dictionary.begin_with(prefix, self.values.filled))

    def lengths(self, count: int) -> NDArray[np.int32]:
        return self._lengths.filled[:count]

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes + self._lengths.memory_bytes + 12 * POSTING_WORDS * len(self._postings)


def _with_gaps(field: tuple[Any, ...]) -> tuple[str, ...]:
    return (*field[0], GAP) if len(field) == 1 else tuple(word for text in field for word in (*text, GAP))


def column_for(field: Field) -> GrowingColumn:
    if field.kind == "text":
        return WordColumn()
    if field.kind == "keyword":
        return Keywords()
    return GrowingColumn({"integer": np.int64, "date": np.int64, "float": np.float64, "bool": np.int8}[field.kind])
