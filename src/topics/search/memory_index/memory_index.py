"""Memory index: the newest entries of one stream as columns, and queries over them as one part of a plan."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topics.model.seq_ranges import SeqRange
from topics.schema.documents import MISSING
from topics.schema.search_fields import SearchConfig
from topics.search.memory_index.column_store import Growing, GrowingColumn, Keywords, WordColumn
from topics.search.memory_index.fill import Decoder, EntryBatch, Filler, Keys, PlainBatch, Pointer, is_plain_keyword
from topics.search.memory_index.filter_masks import Late, MaskEvaluator, Scorer, count_rows
from topics.search.memory_index.memory_aggregates import Sheet, aggregate_rows
from topics.search.memory_index.row_order import Matches, first_hits
from topics.search.query import grammar
from topics.search.query.aggregate import Aggregation
from topics.search.query.columns import Column, Mask, Numbers, Pieces, Snapshot, TextColumn, WordsColumn
from topics.search.query.field_values import pointer_of
from topics.search.query.plan import Ask, Budget, Count, Counted, Entry, Found, KeysFound, Span, Totalled
from topics.search.query.predicates import Predicate, has_scores

# Some rows of columns that grow, one behind the other, as columns of their own.


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


class MemoryIndex:
    """Columns of all fields of one registry, for entries that are added in the order of their numbers.

    It is not for several threads: nobody asks while somebody adds.
    """

    def __init__(self, config: SearchConfig | None, version: int, names: Iterable[str] | None = None) -> None:
        """Without a description of fields it knows routing keys only; with `names` it knows these fields and no others,
        for queries that need none besides."""
        fields = {} if config is None else config.fields
        self._fillers: list[tuple[Pointer | None, Filler]] = []
        alike: list[Filler] = []
        self.columns: dict[str, GrowingColumn] = {}
        for name in fields if names is None else dict.fromkeys(names):
            filler = Filler(fields[name])
            self.columns[name] = filler.column
            self._fillers.append((pointer_of(fields[name], version), filler))
            if is_plain_keyword(fields[name]):
                alike.append(filler)
        self._keys = Keys(alike)
        self._numbers = Growing(np.int64)
        self._sheet = Sheet(config if names is None else None)
        self.last = -1
        """The number of the last entry that was added."""

    @property
    def keys(self) -> Keywords:
        """Routing keys are a column as any other, and may be that of a field."""
        return self._keys.column

    def decoder(self) -> Decoder:
        """What decodes as much of entries as this index needs."""
        pointers = [pointer for pointer, _ in self._fillers if pointer is not None]
        return Decoder(pointers, whole=self._sheet.needs_values)

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds live entries behind all that are there."""
        numbers, values = [entry.number for entry in entries], [entry.value for entry in entries]
        self.add_batch(PlainBatch(numbers, values, [entry.key for entry in entries]))

    def add_batch(self, batch: EntryBatch) -> None:
        count = len(batch.numbers)
        keys = [MISSING if key is None else key for key in batch.keys]
        for pointer, filler in self._fillers:
            found = [MISSING] * count if pointer is None else batch.found(pointer)
            self._keys.compare(filler, found, keys)
            filler.fill(found)
        self._keys.fill(keys)
        if self._sheet.needs_values:
            self._sheet.extend(batch.values())
        self._numbers.extend(batch.numbers)
        if count:
            self.last = batch.numbers[-1]

    @property
    def numbers(self) -> Numbers:
        return self._numbers.filled

    def matching(self, predicate: Predicate) -> list[int]:
        """The numbers of the entries that match."""
        numbers = self.numbers
        found: list[int] = numbers[MaskEvaluator(self.columns, len(numbers)).mask(predicate)].tolist()
        return found

    def count_between(self, first: int, last: int) -> int:
        """How many entries it has of a range."""
        begin, end = np.searchsorted(self.numbers, (first, last + 1))
        return int(end - begin)

    @property
    def sheet(self) -> Sheet:
        return self._sheet

    @property
    def memory_bytes(self) -> int:
        columns = {id(column): column for column in (*self.columns.values(), self.keys)}
        return (
            sum(column.memory_bytes for column in columns.values())
            + self._numbers.memory_bytes
            + self._sheet.memory_bytes
        )


class MemoryIndexPart:
    """A range of the index's entries without those that were removed since."""

    def __init__(self, index: MemoryIndex, span: Span, removed: Sequence[SeqRange] = ()) -> None:
        self._index = index
        self._numbers = index.numbers
        self._removed = removed
        self.span = span

    def search(self, ask: Ask, budget: Budget) -> Found:
        found = Found(hits=[], candidates=0)
        try:
            for lo, hi in self._pieces(ask):
                self._look(ask, lo, hi, found, budget)
                if ask.sort.by_offset is not None and not ask.count_all and len(found.hits) >= ask.size:
                    break
        except Late:
            found.missed = max(self.span.rows - found.looked_at, 0)
            found.first_missed = self.span.first
        return found

    def _pieces(self, ask: Ask) -> Iterable[tuple[int, int]]:
        """The rows that are looked at, those with the first hits first."""
        lo, hi = self._rows_between(self.span.first, self.span.last)
        key = ask.sort.by_offset
        if key is None or ask.count_all:
            return [(lo, hi)]
        if ask.after is not None:
            behind = int(self._numbers.searchsorted(ask.after[0], "right" if key.ascending else "left"))
            lo, hi = (max(lo, behind), hi) if key.ascending else (lo, min(hi, behind))
        return Pieces(key.ascending).of(lo, hi)

    def _look(self, ask: Ask, lo: int, hi: int, found: Found, budget: Budget) -> None:
        """Raises `Late`, and then nothing of these rows is among what was found."""
        whole, count = self._index.columns, hi - lo
        columns = whole if count == len(self._numbers) else Window(whole, lo, hi)
        evaluator = MaskEvaluator(columns, count, budget)
        mask = evaluator.mask(ask.predicate)
        matching = np.flatnonzero(mask & self._alive(lo, hi) if self._removed else mask)
        scorer = Scorer(columns, count, evaluator, ask.weights, matching)
        scores = scorer.scores(ask.predicate) if has_scores(ask.predicate) else None
        numbers = self._numbers[lo:hi]
        found.hits += first_hits(ask, columns, count, Matches(matching, numbers.__getitem__, scores))
        found.matched += len(matching)
        found.candidates = (found.candidates or 0) + len(matching)
        found.looked_at += count

    def count(self, ask: Count, budget: Budget) -> Counted:
        evaluator = MaskEvaluator(self._index.columns, len(self._numbers), budget)
        try:
            numbers = count_rows(self._index.columns, evaluator, self._alive(), ask)
        except Late:
            return Counted(numbers=[], missed=self.span.rows, first_missed=self.span.first)
        return Counted(numbers=numbers, looked_at=self._looked_at())

    def _rows_between(self, first: int, last: int) -> tuple[int, int]:
        begin, end = self._numbers.searchsorted((first, last + 1)).tolist()
        return begin, end

    def _alive(self, lo: int = 0, hi: int | None = None) -> Mask:
        """Which rows, from one up to another, are of the span and were not removed."""
        numbers = self._numbers[lo:hi]
        mask = np.zeros(len(numbers), np.bool_)
        begin, end = np.searchsorted(numbers, (self.span.first, self.span.last + 1))
        mask[begin:end] = True
        if self._removed:
            bounds = np.searchsorted(numbers, np.array([(first, last + 1) for first, last in self._removed]))
            # Of many that were removed few are of these rows.
            for gone, until in bounds[bounds[:, 0] < bounds[:, 1]].tolist():
                mask[gone:until] = False
        return mask

    def _looked_at(self) -> int:
        return self._index.count_between(self.span.first, self.span.last)

    def aggregate(self, ask: Aggregation, budget: Budget) -> Totalled:
        evaluator = MaskEvaluator(self._index.columns, len(self._numbers), budget)
        try:
            groups = aggregate_rows(
                self._index.sheet, self._index.columns, evaluator, self._alive(), ask, grammar.MAX_GROUPS
            )
        except Late:
            return Totalled(missed=self.span.rows, first_missed=self.span.first)
        if groups is None:
            budget.out_of_memory()
            return Totalled(missed=self.span.rows, first_missed=self.span.first)
        return Totalled(groups=groups, looked_at=self._looked_at())

    def keys(self, after: str | None, limit: int, budget: Budget) -> KeysFound:
        column = self._index.keys
        keys = column.snapshot(len(self._numbers))
        alive = self._alive()
        live = np.zeros(len(column.dictionary), np.bool_)
        live[keys.values[alive if keys.rows is None else alive[keys.rows]]] = True
        found = column.dictionary.first_behind(after, live, limit)
        return KeysFound(keys=found, looked_at=self._looked_at())
