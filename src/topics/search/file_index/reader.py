"""Reader of index files: a memory-mapped file (also known as: companion) and the columns of some of its rows."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import isfinite
from typing import Any, Final, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from topics.search.file_index.file_format import (
    Array,
    Blocks,
    FieldHead,
    IndexFileDamagedError,
    IndexPlan,
    MappedFile,
    MappedTexts,
    SectionFile,
    SectionWriter,
    StoredColumn,
    block_bounds,
    bytes_of,
    narrow,
    pack_texts,
    read_blocks,
    read_column,
)
from topics.search.query.aggregate_arrays import Counted, State, Summed
from topics.search.query.field_values import (
    FEW,
    GAP,
    Column,
    Mask,
    Numbers,
    Repeats,
    Snapshot,
    TextColumn,
    WordsColumn,
    ranges,
)

# Merged dictionaries of several index files.
#
# Dictionaries are sorted, so they are merged some thousand texts at a time. Dictionaries that do not overlap are
# concatenated without reading their texts.

TextArray = NDArray[Any]
_AT_A_TIME: Final = 1 << 15


class _Source:
    """A dictionary and its merge position."""

    def __init__(self, texts: MappedTexts, at_a_time: int) -> None:
        self._texts = texts
        self._at_a_time = at_a_time
        self._ahead: list[bytes] = []
        """The texts that were read and not merged yet."""
        self._place = 0
        self._read = 0
        self.codes: TextArray = np.zeros(len(texts), np.int64)
        """The new codes of its texts."""
        self.read_on()

    def read_on(self) -> None:
        if self._place == len(self._ahead):
            first, end = self._read, min(self._read + self._at_a_time, len(self._texts))
            self._ahead, self._place, self._read = _texts_of(self._texts, first, end), 0, end

    @property
    def is_left(self) -> bool:
        return self._place < len(self._ahead)

    @property
    def last(self) -> bytes:
        return self._ahead[-1]

    def next_until(self, bound: bytes) -> list[bytes]:
        end = bisect_right(self._ahead, bound, self._place)
        return self._ahead[self._place : end]

    def take(self, texts: Sequence[bytes], codes: dict[bytes, int]) -> None:
        """Stores the new codes of its next texts."""
        done = self._read - len(self._ahead) + self._place
        self.codes[done : done + len(texts)] = np.fromiter(map(codes.__getitem__, texts), np.int64, len(texts))
        self._place += len(texts)
        self.read_on()


def _texts_of(texts: MappedTexts, first: int, end: int) -> list[bytes]:
    if first == end:
        return []
    begin = int(texts.ends[first - 1]) if first else 0
    ends = (texts.ends[first:end].astype(np.int64) - begin).tolist()
    raw = bytes(bytes_of(texts.raw)[begin : begin + ends[-1]])
    return list(map(raw.__getitem__, map(slice, [0, *ends[:-1]], ends)))


def join_texts(dictionaries: Sequence[MappedTexts], at_a_time: int = _AT_A_TIME) -> tuple[MappedTexts, list[TextArray]]:
    """Merges dictionaries. Returns the result, and for each old dictionary the new codes of its texts."""
    sources = [_Source(texts, at_a_time) for texts in dictionaries]
    raw, lengths, count = bytearray(), [np.zeros(0, np.int64)], 0
    while left := [source for source in sources if source.is_left]:
        # Unread rows sort after the smallest of the last rows read.
        bound = min(source.last for source in left)
        runs = [source.next_until(bound) for source in left]
        # The runs are sorted, which this sort exploits.
        distinct = list(dict.fromkeys(sorted(text for run in runs for text in run)))
        codes = dict(zip(distinct, range(count, count + len(distinct)), strict=True))
        for source, run in zip(left, runs, strict=True):
            source.take(run, codes)
        raw += b"".join(distinct)
        lengths.append(np.fromiter(map(len, distinct), np.int64, len(distinct)))
        count += len(distinct)
    ends = narrow(np.cumsum(np.concatenate(lengths)))
    return MappedTexts(np.frombuffer(raw, np.uint8), ends), [source.codes for source in sources]


def texts_at(raw: TextArray, ends: TextArray, places: TextArray) -> tuple[TextArray, TextArray]:
    """Returns the bytes and ends of a range of concatenated texts."""
    lengths = np.diff(ends.astype(np.int64), prepend=0)
    chosen = lengths[places]
    begins = ends[places].astype(np.int64) - chosen
    return raw[ranges(begins, chosen)], narrow(np.cumsum(chosen))


def texts_behind(parts: Sequence[tuple[TextArray, TextArray]]) -> tuple[TextArray, TextArray]:
    """Returns the bytes and ends of the concatenated texts of several dictionaries."""
    behind = np.cumsum([0, *(len(raw) for raw, _ in parts)]).tolist()
    ends = [ends.astype(np.int64) + before for (_, ends), before in zip(parts, behind, strict=False)]
    return np.concatenate([raw for raw, _ in parts]), narrow(np.concatenate(ends))


# States in an index file: entries that are already summaries, and group results that do not fit a 64-bit number.
#
# A state is JSON: of a count the number, of a summary `[count, sum, least, greatest, histogram | null]`. Integers are
# unbounded in Python and in JSON, so they are stored exactly; a sum that is NaN is not stored.

_encode = msgspec.json.Encoder().encode
_decode_summary = msgspec.json.Decoder(Summed).decode
_decode_state = msgspec.json.Decoder(int | Summed).decode


class NotStorableError(Exception):
    """A sum that is not a number."""


def pack_state(state: State) -> int | Summed:
    """Encodes a state. Raises NotStorableError."""
    if isinstance(state, Counted):
        return state.count
    assert isinstance(state, Summed)
    numbers = (state.count, state.sum, state.min, state.max, *(state.histogram or {}).values())
    if not all(number is None or isinstance(number, int) or isfinite(number) for number in numbers):
        raise NotStorableError
    return state


class StoredSummaries:
    """Entries that are summaries already."""

    def __init__(self, file: SectionFile) -> None:
        self._file = file

    def known(self, rollup: str, measure: str, lo: int, hi: int, picked: Numbers | None) -> Mask:
        ends = self._file.array(f"sums/{rollup}/{measure}/ends")
        rows = np.arange(lo, hi) if picked is None else picked
        begins = np.where(rows > 0, ends[rows - 1], 0)
        return np.asarray(ends[rows] > begins)

    def at(self, rollup: str, measure: str, rows: Numbers) -> Sequence[Summed]:
        prefix = f"sums/{rollup}/{measure}"
        ends, states = self._file.array(f"{prefix}/ends"), self._file.array(f"{prefix}/states")
        return [_decode_summary(text) for text in _texts_at(bytes_of(states), ends, rows)]

    def texts(self, rollup: str, measure: str) -> tuple[Array, Array]:
        """Returns the bytes of all summaries, and their ends."""
        prefix = f"sums/{rollup}/{measure}"
        return self._file.array(f"{prefix}/states"), self._file.array(f"{prefix}/ends")


def write_summaries(writer: SectionWriter, prefix: str, raw: Array, ends: Array) -> None:
    writer.add(f"{prefix}/states", raw)
    writer.add(f"{prefix}/ends", ends)


def pack_summary(state: Summed | None) -> bytes:
    return b"" if state is None else _encode(pack_state(state))


def pack_states(states: Iterable[State]) -> tuple[Array, Array]:
    """Returns the bytes and ends of encoded states. Raises NotStorableError."""
    try:
        return pack_texts([_encode(pack_state(state)) for state in states])
    except ValueError as error:
        # The integer exceeds Python's limit of digits.
        raise NotStorableError from error


class StoredStates(Sequence[State]):
    """Stored states, decoded on demand."""

    def __init__(self, raw: Array, ends: Array) -> None:
        self._raw = bytes_of(raw)
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> State: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[State]: ...
    def __getitem__(self, place: int | slice) -> State | Sequence[State]:
        if isinstance(place, slice):
            return [self[index] for index in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        begin = int(self._ends[place - 1]) if place else 0
        found = _decode_state(self._raw[begin : int(self._ends[place])])
        return found if isinstance(found, Summed) else Counted(found)


def _texts_at(raw: memoryview, ends: Array, places: Numbers) -> list[memoryview]:
    """Returns the texts at some indexes of concatenated texts."""
    until = ends[places]
    since = np.where(places > 0, ends[places - 1], 0)
    return [raw[begin:end] for begin, end in zip(since.tolist(), until.tolist(), strict=True)]


BLOCK_ROWS: Final = 1 << 16
KEY: Final = "key"


class IndexFileHead(msgspec.Struct, frozen=True, kw_only=True):
    """The head of an index file."""

    epoch: int
    """Distinguishes the stream from another one of the same name."""
    generation: str
    first: int
    last: int
    """It covers every entry from `first` to `last` that was live when it was built."""
    rows: int
    block_rows: int
    level: int = 0
    """The number of merges that produced it."""
    plan: IndexPlan
    fields: dict[str, FieldHead]
    key: FieldHead


_decode_head = msgspec.msgpack.Decoder(IndexFileHead).decode


class IndexFile:
    """The arrays of an index file. They are memory-mapped, so that only accessed parts take memory."""

    def __init__(self, data: memoryview | bytes | MappedFile) -> None:
        """Raises IndexFileDamagedError."""
        self.file = SectionFile(data)
        self.seal = self.file.seal
        self.size = len(data.view if isinstance(data, MappedFile) else data)
        try:
            self.head = _decode_head(self.file.head)
        except ValueError as error:
            raise IndexFileDamagedError(f"its head cannot be read: {error}") from error
        self.bounds = block_bounds(self.head.rows, self.head.block_rows)
        self._columns: dict[str, StoredColumn] = {}
        self._blocks: dict[str, Blocks] = {}
        self.summaries = StoredSummaries(self.file)

    @cached_property
    def numbers(self) -> Array | None:
        """The seqs of the rows; None if they have no gaps."""
        return self.file.array_if_any("numbers")

    def numbers_of(self, lo: int, hi: int) -> Numbers:
        if self.numbers is None:
            return np.arange(self.first_number + lo, self.first_number + hi, dtype=np.int64)
        return self.numbers[lo:hi]

    def numbers_at(self, rows: Numbers) -> Numbers:
        return rows + self.first_number if self.numbers is None else self.numbers[rows]

    @property
    def first_number(self) -> int:
        """The seq of the first row, if the seqs have no gaps."""
        return self.head.first

    def row_range(self, first: int, last: int) -> tuple[int, int]:
        """Returns the first row and the end of the rows of the seqs from `first` to `last`."""
        if self.numbers is None:
            begin = first - self.first_number
            return min(max(begin, 0), self.head.rows), min(max(last + 1 - self.first_number, 0), self.head.rows)
        lo, hi = np.searchsorted(self.numbers, (first, last + 1))
        return int(lo), int(hi)

    def count_between(self, first: int, last: int) -> int:
        """Returns the number of entries of a range."""
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
        """Returns the block minimums and maximums of a field; None for a text field."""
        if self.head.fields[name].kind == "text":
            return None
        known = self._blocks.get(name)
        if known is None:
            known = read_blocks(self.file, f"field/{name}", self.head.rows, self.head.block_rows)
            self._blocks[name] = known
        return known

    def order(self, name: str) -> Array | None:
        """Returns the rows sorted by a field; None if the file does not store this order."""
        return self.file.array_if_any(f"field/{name}/order")

    def check(self) -> None:
        """Verifies every section. Raises IndexFileDamagedError."""
        self.file.check()


class Picked(msgspec.Struct, frozen=True):
    """A selection of rows: a range or a list."""

    lo: int
    hi: int
    picked: Numbers | None

    @property
    def count(self) -> int:
        return self.hi - self.lo if self.picked is None else len(self.picked)


class Rows(Mapping[str, Column]):
    """Selected rows of an index file (a range or a list): their seqs, and their columns by name."""

    def __init__(self, index_file: IndexFile, lo: int, hi: int, picked: Numbers | None = None) -> None:
        self._index_file = index_file
        self.lo = lo
        self.hi = hi
        self.picked = picked
        self._made: dict[str, Column] = {}

    def __len__(self) -> int:
        return len(self._index_file.head.fields)

    def __iter__(self) -> Iterator[str]:
        return iter(self._index_file.head.fields)

    def __getitem__(self, name: str) -> Column:
        made = self._made.get(name)
        if made is None:
            # Without a reference to these rows: arrays in a reference cycle stay until the garbage collector runs,
            # which counts objects and not bytes.
            view = Picked(self.lo, self.hi, self.picked)
            made = self._made[name] = _view_of(self._index_file.column(name), view)
        return made

    @property
    def count(self) -> int:
        return Picked(self.lo, self.hi, self.picked).count

    @cached_property
    def numbers(self) -> Numbers:
        if self.picked is None:
            return self._index_file.numbers_of(self.lo, self.hi)
        return self._index_file.numbers_at(self.picked)

    def numbers_at(self, places: Numbers) -> Numbers:
        """Returns the seqs of some of the rows."""
        return self._index_file.numbers_at(self.rows_at(places))

    def rows_at(self, places: Numbers) -> Numbers:
        """Returns the row numbers in the index file of some of the rows."""
        return places + self.lo if self.picked is None else self.picked[places]

    def known(self, rollup: str, measure: str, count: int) -> Mask:
        """Returns which rows are summaries."""
        return self._index_file.summaries.known(rollup, measure, self.lo, self.hi, self.picked)

    def at(self, rollup: str, measure: str, rows: Numbers) -> Sequence[Any]:
        requested = rows + self.lo if self.picked is None else self.picked[rows]
        return self._index_file.summaries.at(rollup, measure, requested)


class SpreadSnapshot(Snapshot):
    """The values of multi-valued rows. The row of each value is computed on demand."""

    __slots__ = ("_starts",)

    def __init__(self, values: Array, starts: Array, count: int) -> None:
        super().__init__(values, None, count)
        self._starts = starts
        """The start of each row's values, and the end of the last."""

    @property
    def is_single(self) -> bool:
        return False

    @property
    def rows(self) -> NDArray[Any]:
        if self._rows is None:
            self._rows = np.repeat(np.arange(self.count), np.diff(self._starts))
        return self._rows

    def rows_at(self, places: Array) -> Mask:
        if self._rows is not None or len(places) * FEW > len(self.values):
            return super().rows_at(places)
        mask = np.zeros(self.count, np.bool_)
        mask[np.searchsorted(self._starts, places, "right") - 1] = True
        return mask

    def rows_of(self, places: Array) -> Array:
        if self._rows is not None or len(places) * FEW > len(self.values):
            return super().rows_of(places)
        return np.searchsorted(self._starts, places, "right") - 1

    def counts_at(self, places: Array) -> Numbers:
        if self._rows is not None or len(places) * FEW > len(self.values):
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
        """Returns the number of values of each row, without gaps."""
        counts = np.diff(self._starts)
        is_gap = self.values == gap
        filled = counts > 0
        if np.count_nonzero(is_gap) == np.count_nonzero(filled):
            # Every row has a gap because it has a text.
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
    """Codes are narrow in the file; counting needs wider ones."""

    def __init__(self, stored: StoredColumn, view: Picked) -> None:
        super().__init__(stored, view)
        self.dictionary = stored.texts

    def _typed(self, values: Array) -> Array:
        return values.astype(np.int32)


class ViewWords(ViewTexts, WordsColumn):
    def _typed(self, values: Array) -> Array:
        # Not copied: there are many, and they are only compared.
        return values

    @property
    def has_several(self) -> bool:
        return self.stored.has_several

    def places(self, code: int) -> Array:
        if self.view.picked is not None:
            return np.flatnonzero(self.snapshot(self.view.count).values == code)
        begin, end = self.stored.value_range(self.view.lo, self.view.hi)
        places = self.stored.places_of(code, code + 1)
        # By binary search, because numpy would first convert the whole array to the type of the bounds.
        return places[bisect_left(places, begin) : bisect_left(places, end)].astype(np.int64) - begin

    def repeats(self, code: int, count: int) -> Repeats:
        if self.view.picked is not None:
            return super().repeats(code, count)
        rows, more = self.stored.repeats(code, code + 1)
        inside = slice(*np.searchsorted(rows, (self.view.lo, self.view.hi)))
        return Repeats(rows[inside] - self.view.lo, more[inside])

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
        # If each row has one value, this value is the gap behind an empty text.
        gap = self.dictionary.code(GAP)
        return words.lengths(gap) if isinstance(words, SpreadSnapshot) else np.zeros(count, np.int64)


def _view_of(stored: StoredColumn, view: Picked) -> ViewColumn:
    if stored.kind == "text":
        return ViewWords(stored, view)
    return ViewTexts(stored, view) if stored.is_text else ViewColumn(stored, view)
