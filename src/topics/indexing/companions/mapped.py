"""A companion that is open, and the columns of some of its rows as a query asks for them."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from topics.indexing.columns import GAP, Column, Mask, Numbers, Snapshot, TextColumn, WordsColumn
from topics.indexing.companions.files import CompanionDamagedError, SectionFile
from topics.indexing.companions.identity import Plan
from topics.indexing.companions.stored import (
    Array,
    Blocks,
    FieldHead,
    StoredColumn,
    block_bounds,
    read_blocks,
    read_column,
)
from topics.indexing.companions.summaries import StoredSummaries

BLOCK_ROWS: Final = 1 << 16
KEY: Final = "key"
_FEW: Final = 16
"""One place in so many values is looked up; more of them are looked at all together."""


class CompanionHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a companion is about."""

    epoch: int
    """Tells its stream from another one of the same name."""
    generation: str
    first: int
    last: int
    """It knows of every entry from `first` to `last` that was live when it was made."""
    rows: int
    block_rows: int
    level: int = 0
    """How often companions were merged to make it."""
    plan: Plan
    fields: dict[str, FieldHead]
    key: FieldHead


_decode_head = msgspec.msgpack.Decoder(CompanionHead).decode


class Companion:
    """The arrays of a companion. They are mapped, so that only what is looked at takes memory."""

    def __init__(self, data: memoryview | bytes) -> None:
        """Raises CompanionDamagedError."""
        self.file = SectionFile(data)
        self.size = len(data)
        try:
            self.head = _decode_head(self.file.head)
        except ValueError as error:
            raise CompanionDamagedError(f"its head cannot be read: {error}") from error
        self.bounds = block_bounds(self.head.rows, self.head.block_rows)
        self._columns: dict[str, StoredColumn] = {}
        self._blocks: dict[str, Blocks] = {}
        self.summaries = StoredSummaries(self.file)

    @cached_property
    def numbers(self) -> Array | None:
        """The seqs of the rows; None where they have no holes."""
        return self.file.array_if_any("numbers")

    def numbers_of(self, lo: int, hi: int) -> Numbers:
        if self.numbers is None:
            return np.arange(self.first_number + lo, self.first_number + hi, dtype=np.int64)
        return self.numbers[lo:hi]

    def numbers_at(self, rows: Numbers) -> Numbers:
        return rows + self.first_number if self.numbers is None else self.numbers[rows]

    @property
    def first_number(self) -> int:
        """That of the first row, where there are no holes."""
        return self.head.first

    def row_range(self, first: int, last: int) -> tuple[int, int]:
        """The rows of the seqs from `first` to `last`, and behind them."""
        if self.numbers is None:
            begin = first - self.first_number
            return min(max(begin, 0), self.head.rows), min(max(last + 1 - self.first_number, 0), self.head.rows)
        lo, hi = np.searchsorted(self.numbers, (first, last + 1))
        return int(lo), int(hi)

    def count_between(self, first: int, last: int) -> int:
        """How many entries it has of a range."""
        lo, hi = self.row_range(first, last)
        return max(hi - lo, 0)

    def column(self, name: str) -> StoredColumn:
        known = self._columns.get(name)
        if known is None:
            head = self.head.fields[name]
            known = self._columns[name] = read_column(self.file, f"field/{name}", head.kind, self.head.rows)
        return known

    @cached_property
    def key(self) -> StoredColumn:
        return read_column(self.file, KEY, "keyword", self.head.rows)

    def blocks(self, name: str) -> Blocks | None:
        """The least and greatest values of the blocks of a field; None for one of words."""
        if self.head.fields[name].kind == "text":
            return None
        known = self._blocks.get(name)
        if known is None:
            known = read_blocks(self.file, f"field/{name}", self.head.rows, self.head.block_rows)
            self._blocks[name] = known
        return known

    def order(self, name: str) -> Array | None:
        """The rows in the order of the values of a field; None where nobody wrote it down."""
        return self.file.array_if_any(f"field/{name}/order")

    def check(self) -> None:
        """Looks at every byte. Raises CompanionDamagedError."""
        self.file.check()


class Picked(msgspec.Struct, frozen=True):
    """Which rows of a companion: all between two, or those of a list."""

    lo: int
    hi: int
    picked: Numbers | None

    @property
    def count(self) -> int:
        return self.hi - self.lo if self.picked is None else len(self.picked)


class Rows(Mapping[str, Column]):
    """Some rows of a companion: their numbers, and their columns by name. All between two, or those of a list."""

    def __init__(self, companion: Companion, lo: int, hi: int, picked: Numbers | None = None) -> None:
        self._companion = companion
        self.lo = lo
        self.hi = hi
        self.picked = picked
        self._made: dict[str, Column] = {}

    def __len__(self) -> int:
        return len(self._companion.head.fields)

    def __iter__(self) -> Iterator[str]:
        return iter(self._companion.head.fields)

    def __getitem__(self, name: str) -> Column:
        made = self._made.get(name)
        if made is None:
            # Not with these rows themselves: arrays in a circle would stay until the garbage collector comes by, which
            # counts objects and not bytes.
            view = Picked(self.lo, self.hi, self.picked)
            made = self._made[name] = _view_of(self._companion.column(name), view)
        return made

    @property
    def count(self) -> int:
        return Picked(self.lo, self.hi, self.picked).count

    @cached_property
    def numbers(self) -> Numbers:
        if self.picked is None:
            return self._companion.numbers_of(self.lo, self.hi)
        return self._companion.numbers_at(self.picked)

    def numbers_at(self, places: Numbers) -> Numbers:
        """The numbers of some of the rows."""
        return self._companion.numbers_at(places + self.lo if self.picked is None else self.picked[places])

    def known(self, rollup: str, measure: str, count: int) -> Mask:
        """Which rows are summaries already."""
        return self._companion.summaries.known(rollup, measure, self.lo, self.hi, self.picked)

    def at(self, rollup: str, measure: str, rows: Numbers) -> Sequence[Any]:
        wanted = rows + self.lo if self.picked is None else self.picked[rows]
        return self._companion.summaries.at(rollup, measure, wanted)


class SpreadSnapshot(Snapshot):
    """The values of rows that have as many as they like. The row of each is only found out where somebody asks."""

    __slots__ = ("_starts",)

    def __init__(self, values: Array, starts: Array, count: int) -> None:
        super().__init__(values, None, count)
        self._starts = starts
        """Where the values of each row begin; and the end."""

    @property
    def is_single(self) -> bool:
        return False

    @property
    def rows(self) -> NDArray[Any]:
        if self._rows is None:
            self._rows = np.repeat(np.arange(self.count), np.diff(self._starts))
        return self._rows

    def rows_at(self, places: Array) -> Mask:
        if self._rows is not None or len(places) * _FEW > len(self.values):
            return super().rows_at(places)
        mask = np.zeros(self.count, np.bool_)
        mask[np.searchsorted(self._starts, places, "right") - 1] = True
        return mask

    def counts_at(self, places: Array) -> Numbers:
        if self._rows is not None or len(places) * _FEW > len(self.values):
            return super().counts_at(places)
        return np.bincount(np.searchsorted(self._starts, places, "right") - 1, minlength=self.count)

    def rows_where(self, chosen: Mask) -> Mask:
        return self.rows_at(np.flatnonzero(chosen))

    def bounds_of(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        return self._starts[rows], self._starts[rows + 1]

    def has_value(self) -> Mask:
        return np.asarray(np.diff(self._starts) > 0)

    def single(self) -> tuple[Array, Mask, Mask]:
        has = self.has_value()
        if len(self.values) > np.count_nonzero(has):
            return super().single()
        values = np.zeros(self.count, self.values.dtype)
        values[has] = self.values
        return values, has, np.zeros(self.count, np.bool_)

    def lengths(self, gap: int | None) -> Numbers:
        """How many values each row has besides gaps."""
        counts = np.diff(self._starts)
        is_gap = self.values == gap
        filled = counts > 0
        if np.count_nonzero(is_gap) == np.count_nonzero(filled):
            # A row with a text has a gap, so each has one.
            return counts - filled
        before = np.append(0, np.cumsum(is_gap))
        gaps: Numbers = np.diff(before[self._starts])
        return counts - gaps


class ViewColumn(Column):
    """A column of some rows."""

    def __init__(self, stored: StoredColumn, view: Picked) -> None:
        self.stored = stored
        self.view = view
        self._snapshot: Snapshot | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.stored.values.dtype

    def snapshot(self, count: int) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = self._take()
        return self._snapshot

    def _take(self) -> Snapshot:
        stored, picked, lo, hi = self.stored, self.view.picked, self.view.lo, self.view.hi
        if stored.starts is None:
            return Snapshot(
                self._typed(stored.values[lo:hi] if picked is None else stored.values[picked]), None, self.view.count
            )
        if picked is None:
            starts = stored.starts[lo : hi + 1].astype(np.int64)
            values = stored.values[starts[0] : starts[-1]]
            return SpreadSnapshot(self._typed(values), starts - starts[0], hi - lo)
        begins = stored.starts[picked].astype(np.int64)
        counts = stored.starts[picked + 1].astype(np.int64) - begins
        starts = np.append(0, np.cumsum(counts))
        places = np.arange(starts[-1]) + np.repeat(begins - starts[:-1], counts)
        return SpreadSnapshot(self._typed(stored.values[places]), starts, len(picked))

    def _typed(self, values: Array) -> Array:
        return values

    def has_field(self, count: int) -> Mask:
        present, view = self.stored.present, self.view
        if present is None:
            return np.ones(view.count, np.bool_)
        return present[view.lo : view.hi] if view.picked is None else present[view.picked]


class ViewTexts(ViewColumn, TextColumn):
    """Texts are as codes of a few bytes in the file; whoever counts with them needs room."""

    def __init__(self, stored: StoredColumn, view: Picked) -> None:
        super().__init__(stored, view)
        self.dictionary = stored.texts

    def _typed(self, values: Array) -> Array:
        return values.astype(np.int32)


class ViewWords(ViewTexts, WordsColumn):
    def _typed(self, values: Array) -> Array:
        # There are many, and they are only compared.
        return values

    def places(self, code: int) -> Array:
        if self.view.picked is not None:
            return np.flatnonzero(self.snapshot(self.view.count).values == code)
        begin, end = self.stored.value_range(self.view.lo, self.view.hi)
        places = self.stored.places_of(code, code + 1)
        # By halving, because numpy would first turn all of them into numbers of the type of these two.
        return places[bisect_left(places, begin) : bisect_left(places, end)].astype(np.int64) - begin

    def beginning(self, prefix: str) -> Array:
        values = self.snapshot(self.view.count).values
        begin, end = self.dictionary.span(prefix)  # type: ignore[attr-defined]
        if self.view.picked is None:
            places = self.stored.places_of(begin, end)
            if len(places) < len(values):
                first, behind = self.stored.value_range(self.view.lo, self.view.hi)
                return places[(places >= first) & (places < behind)].astype(np.int64) - first
        return np.flatnonzero((values >= begin) & (values < end))

    def lengths(self, count: int) -> Array:
        words = self.snapshot(count)
        # Where each row has one value it is the gap behind an empty text.
        gap = self.dictionary.code(GAP)
        return words.lengths(gap) if isinstance(words, SpreadSnapshot) else np.zeros(count, np.int64)


def _view_of(stored: StoredColumn, view: Picked) -> ViewColumn:
    if stored.kind == "text":
        return ViewWords(stored, view)
    return ViewTexts(stored, view) if stored.is_text else ViewColumn(stored, view)
