"""One column of a companion: its arrays, as they are in a file or on their way into one."""

from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from topics.indexing.columns import Numbers
from topics.indexing.companions.files import SectionFile, SectionWriter
from topics.indexing.companions.texts import MappedTexts, narrow

Array = NDArray[Any]

KIND_TYPES: Final = {"integer": np.int64, "date": np.int64, "float": np.float64, "bool": np.int8}


class FieldHead(msgspec.Struct, frozen=True, kw_only=True):
    """What the head of a companion says about a column, so that one need not look into it."""

    kind: str
    values: int
    """How many there are, in all rows."""
    nulls: int
    """Rows without a value."""
    distinct: int
    low: int | float | str | None = None
    """The least value; not for words."""
    high: int | float | str | None = None


class StoredColumn:
    """The values of one field of all rows of a companion."""

    def __init__(
        self,
        kind: str,
        rows: int,
        values: Array,
        starts: Array | None = None,
        present: Array | None = None,
        texts: MappedTexts | None = None,
        places: Array | None = None,
        stops: Array | None = None,
    ) -> None:
        self.kind = kind
        self.rows = rows
        self.values = values
        self.starts = starts
        self.present = present
        self._texts = texts
        self._places = places
        self._stops = stops

    @property
    def is_text(self) -> bool:
        return self._texts is not None

    @property
    def texts(self) -> MappedTexts:
        assert self._texts is not None
        return self._texts

    @property
    def places(self) -> Array:
        assert self._places is not None
        return self._places

    @property
    def stops(self) -> Array:
        assert self._stops is not None
        return self._stops

    def places_of(self, begin: int, end: int) -> Array:
        """Where the codes from the first up to the second stand among the values."""
        first = int(self.stops[begin - 1]) if begin else 0
        return self.places[first : int(self.stops[end - 1]) if end else 0]

    def rows_at(self, places: Array) -> Array:
        """The row of each place."""
        return places if self.starts is None else np.searchsorted(self.starts, places, "right") - 1

    def rows_between(self, places: Array, lo: int, hi: int) -> Numbers:
        """The same where all rows are from one up to another, and quicker: only where these begin is looked at."""
        if self.starts is None:
            return places.astype(np.int64)
        return np.asarray(np.searchsorted(self.starts[lo:hi], places, "right") + (lo - 1), np.int64)

    def value_range(self, lo: int, hi: int) -> tuple[int, int]:
        """Where the values of some rows begin and end."""
        return (lo, hi) if self.starts is None else (int(self.starts[lo]), int(self.starts[hi]))

    def value_bounds(self, rows: Numbers) -> tuple[Array, Array]:
        """Where the values of each of some rows begin and end."""
        return (rows, rows + 1) if self.starts is None else (self.starts[rows], self.starts[rows + 1])

    def counts(self) -> Array:
        """How many values each row has."""
        return np.ones(self.rows, np.int64) if self.starts is None else np.diff(self.starts.astype(np.int64))


def is_same(one: StoredColumn, other: StoredColumn) -> bool:
    """Whether two columns of texts have the same."""
    if one.kind != other.kind or not (one.is_text and other.is_text):
        return False
    pairs = [
        (one.values, other.values),
        (one.texts.ends, other.texts.ends),
        (one.starts, other.starts),
        (one.present, other.present),
        (one.texts.raw, other.texts.raw),
    ]
    return all(
        mine is theirs if mine is None or theirs is None else np.array_equal(mine, theirs) for mine, theirs in pairs
    )


def code_places(codes: Array, count: int, without: int | None = None) -> tuple[Array, Array]:
    """For each code where it stands, and where those of each code end. One code may be left out."""
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=count).astype(np.int64)
    if without is not None:
        first = int(counts[:without].sum())
        order = np.delete(order, np.s_[first : first + int(counts[without])])
        counts[without] = 0
    return narrow(order), narrow(np.cumsum(counts))


class Blocks(msgspec.Struct, frozen=True):
    """What is known of each block of rows of a column."""

    lows: Array
    highs: Array
    counts: Array
    """Rows with a value. Where there is none the least and greatest mean nothing."""
    rows: Array


def block_bounds(rows: int, block_rows: int) -> Numbers:
    """Where blocks begin, and behind the last one."""
    return np.append(np.arange(0, rows, block_rows, dtype=np.int64), rows)


def measure_blocks(column: StoredColumn, block_rows: int) -> Blocks:
    bounds = block_bounds(column.rows, block_rows)
    value_bounds = bounds if column.starts is None else column.starts[bounds].astype(np.int64)
    size = len(bounds) - 1
    lows, highs = np.zeros(size, column.values.dtype), np.zeros(size, column.values.dtype)
    filled = np.flatnonzero(np.diff(value_bounds))
    if len(filled):
        lows[filled] = np.minimum.reduceat(column.values, value_bounds[filled])
        highs[filled] = np.maximum.reduceat(column.values, value_bounds[filled])
    has = np.add.reduceat(column.counts() > 0, bounds[:-1]) if size else np.zeros(0, np.int64)
    return Blocks(lows, highs, has.astype(np.uint32), np.diff(bounds))


def write_column(writer: SectionWriter, prefix: str, column: StoredColumn, block_rows: int) -> FieldHead:
    """Adds the sections of a column."""
    writer.add(f"{prefix}/values", column.values)
    for name, array in (("starts", column.starts), ("present", column.present)):
        if array is not None:
            writer.add(f"{prefix}/{name}", array)
    if column.is_text:
        writer.add(f"{prefix}/texts", column.texts.raw)
        writer.add(f"{prefix}/ends", column.texts.ends)
        writer.add(f"{prefix}/places", column.places)
        writer.add(f"{prefix}/stops", column.stops)
    nulls = int(np.count_nonzero(column.counts() == 0))
    head = FieldHead(kind=column.kind, values=len(column.values), nulls=nulls, distinct=_distinct(column))
    if column.kind == "text":
        return head
    blocks = measure_blocks(column, block_rows)
    writer.add(f"{prefix}/lows", blocks.lows)
    writer.add(f"{prefix}/highs", blocks.highs)
    writer.add(f"{prefix}/counts", blocks.counts)
    order = value_order(column)
    if order is not None:
        writer.add(f"{prefix}/order", order)
    if not len(column.values):
        return head
    low, high = column.values.min().item(), column.values.max().item()
    if column.is_text:
        low, high = column.texts[low], column.texts[high]
    return msgspec.structs.replace(head, low=low, high=high)


def value_order(column: StoredColumn) -> Array | None:
    """The rows in the order of their values, those without one last; None where a row has several, and where that is
    their own order or that of the places of texts."""
    counts = column.counts()
    if column.is_text or not column.rows or int(counts.max()) > 1:
        return None
    values = column.values
    if len(values) == column.rows and bool((values[1:] >= values[:-1]).all()):
        return None
    order = np.argsort(_narrowed(values), kind="stable")
    if len(values) < column.rows:
        order = np.concatenate((np.flatnonzero(counts)[order], np.flatnonzero(counts == 0)))
    return narrow(order)


def _narrowed(values: Array) -> Array:
    """Numbers near to each other as small ones, which are sorted by counting."""
    if values.dtype.kind != "i" or not len(values):
        return values
    low, high = int(values.min()), int(values.max())
    return (values - low).astype(np.uint16) if high - low < 1 << 16 else values


def _distinct(column: StoredColumn) -> int:
    return len(column.texts) if column.is_text else len(np.unique(column.values))


def read_column(file: SectionFile, prefix: str, kind: str, rows: int) -> StoredColumn:
    texts = None
    if f"{prefix}/ends" in file:
        texts = MappedTexts(file.array(f"{prefix}/texts"), file.array(f"{prefix}/ends"))
    return StoredColumn(
        kind,
        rows,
        file.array(f"{prefix}/values"),
        file.array_if_any(f"{prefix}/starts"),
        file.array_if_any(f"{prefix}/present"),
        texts,
        file.array_if_any(f"{prefix}/places"),
        file.array_if_any(f"{prefix}/stops"),
    )


def read_blocks(file: SectionFile, prefix: str, rows: int, block_rows: int) -> Blocks:
    bounds = block_bounds(rows, block_rows)
    return Blocks(
        file.array(f"{prefix}/lows"), file.array(f"{prefix}/highs"), file.array(f"{prefix}/counts"), np.diff(bounds)
    )
