"""Memory index: the newest entries of one stream as columns, and queries over them as one part of a plan.

Aggregations over columns: groups are numbered by codes, and each measure takes one pass.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from topics.model.seq_ranges import SeqRange
from topics.schema.documents import MISSING
from topics.schema.search_fields import SearchConfig, Summary, SummaryParts
from topics.search.memory_index.column_store import (
    Decoder,
    EntryBatch,
    Filler,
    Growing,
    GrowingColumn,
    Keys,
    Keywords,
    PlainBatch,
    Pointer,
    WordColumn,
    is_plain_keyword,
)
from topics.search.memory_index.row_selection import Late, MaskEvaluator, Matches, Scorer, count_rows, first_hits
from topics.search.query import predicates
from topics.search.query.aggregate import FIRST, Aggregation, summary_parts
from topics.search.query.aggregate_arrays import (
    Axis,
    Counts,
    Dimension,
    Groups,
    Measured,
    Numbered,
    States,
    Summed,
    compacted,
    is_few,
    number_keys,
    summarise,
)
from topics.search.query.field_values import (
    Column,
    Mask,
    Numbers,
    Pieces,
    Snapshot,
    TextColumn,
    WordsColumn,
    pointer_of,
    shown,
)
from topics.search.query.plan import Ask, Budget, Count, Counted, Entry, Found, KeysFound, Span, Totalled
from topics.search.query.predicates import Predicate, bind_search, has_scores

_STATE_BYTES = 400


class Summaries(Protocol):
    """Entries that are summaries, by rollup and measure, for aggregations."""

    def known(self, rollup: str, measure: str, count: int) -> Mask:
        """Returns which of the first rows are summaries."""
        ...

    def at(self, rollup: str, measure: str, rows: Numbers) -> Sequence[Summed]:
        """Returns the summaries among some rows."""
        ...


class Sheet:
    """The summaries of added entries, one list a measure."""

    def __init__(self, config: SearchConfig | None) -> None:
        self.states: dict[tuple[str, str], list[Summed | None]] = {}
        self._contribute: list[tuple[Any, list[Summed | None]]] = []
        for rollup_name, rollup in ({} if config is None else config.rollups).items():
            for name, measure in rollup.measures.items():
                if isinstance(measure, SummaryParts):
                    states = self.states[rollup_name, name] = []
                    self._contribute.append((summary_parts(measure), states))

    @property
    def needs_values(self) -> bool:
        return bool(self._contribute)

    def extend(self, values: Sequence[Any]) -> None:
        for contribute, states in self._contribute:
            states += [contribute(value, ()) for value in values]

    def known(self, rollup: str, measure: str, count: int) -> Mask:
        states = self.states[rollup, measure]
        return np.fromiter((state is not None for state in states[:count]), np.bool_, count)

    def at(self, rollup: str, measure: str, rows: Numbers) -> Sequence[Summed]:
        states = self.states[rollup, measure]
        return [state for row in rows.tolist() if (state := states[row]) is not None]

    @property
    def memory_bytes(self) -> int:
        return sum(_STATE_BYTES * len(states) for states in self.states.values())


def aggregate_rows(
    summaries: Summaries,
    columns: Mapping[str, Column],
    evaluator: MaskEvaluator,
    alive: Mask,
    ask: Aggregation,
    most: int,
) -> Groups | None:
    """Aggregates the rows that are alive. Returns None if there are more groups than `most`."""
    rollup = ask.rollup
    count = len(alive)
    times, has_time, many_times = columns[rollup.timestamp_field].snapshot(count).single()
    mask = alive & has_time & ~many_times & (times >= ask.from_ms) & (times < ask.to_ms) & evaluator.mask(ask.predicate)
    if rollup.include is not UNSET:
        mask &= evaluator.mask(bind_search(rollup.include, ask.config).predicate)
    for name in rollup.dimensions:
        mask &= ~columns[name].snapshot(count).single()[2]
    amounts: dict[str, NDArray[Any]] = {}
    for name, measure in rollup.measures.items():
        if isinstance(measure, Summary):
            amounts[name], has, many = columns[measure.field].snapshot(count).single()
            mask &= has & ~many
        elif isinstance(measure, SummaryParts):
            mask &= summaries.known(ask.name, name, count)
    rows = np.flatnonzero(mask)
    begin, steps = _steps(times, rows, ask)
    named = [_named_axis(columns[name], rows, count) for name in ask.group_by]
    numbered = number_keys([steps, *(axis for axis, _ in named)], len(rows))
    if len(numbered.counts) > most:
        return None
    step, *keys = numbered.keys
    return Groups(
        begin(step),
        [_dimension(codes, axis.size, show) for codes, (axis, show) in zip(keys, named, strict=True)],
        [_measure(name, ask, rows, numbered, amounts, summaries, evaluator) for name in ask.shown_measures],
    )


Show = Callable[[int], str | None]
"""Returns the text of a code."""


def _dimension(codes: Numbers, size: int, show: Show) -> Dimension:
    """Returns the dimension of some groups.

    Only the codes that they use are converted to texts: there may be millions of others.
    """
    numbers, present = compacted(codes, size)
    return Dimension(numbers, [show(code) for code in present.tolist()])


def _steps(times: Numbers, rows: Numbers, ask: Aggregation) -> tuple[Callable[[Numbers], Numbers], Axis]:
    """Returns the bucket code of each row, and a function that returns the start of the bucket of each code."""
    interval = ask.interval_ms
    if not interval or not len(rows):
        return lambda codes: np.full(len(codes), ask.from_ms), Axis(np.zeros(len(rows), np.int64), 1)
    steps = times.take(rows) // interval
    codes, size, value_of = _coded(steps)
    # The first possible bucket starts before the range of 64 bits.
    lowest = FIRST // interval

    def begin(found: Numbers) -> Numbers:
        values = value_of(found)
        return np.where(values <= lowest, FIRST, np.maximum(values, lowest + 1) * interval)

    return begin, Axis(codes, size)


def _named_axis(column: Column, rows: Numbers, count: int) -> tuple[Axis, Show]:
    values, has, _ = column.snapshot(count).single()
    values = values.take(rows)
    show: Show
    if isinstance(column, TextColumn):
        texts = column.dictionary.texts
        codes, last, show = values, len(texts), texts.__getitem__
    else:
        codes, last, value_of = _coded(values)
        show = partial(_show_value, column, value_of)
    if not has.all():
        codes = np.where(has.take(rows), codes, last)
    return Axis(codes, last + 1), lambda code: None if code == last else show(code)


def _coded(values: NDArray[Any]) -> tuple[NDArray[Any], int, Callable[[Numbers], NDArray[Any]]]:
    """Returns values as ordered codes, the upper bound of the codes, and a function from codes to values."""
    if values.dtype.kind == "i" and len(values):
        least = values.min()
        size = int(values.max()) - int(least) + 1
        if is_few(size, len(values)):
            return values - least, size, lambda codes: codes + least
    distinct, codes = np.unique(values, return_inverse=True)
    return codes, len(distinct), lambda codes: distinct[codes]


def _show_value(column: Column, value_of: Callable[[Numbers], NDArray[Any]], code: int) -> str:
    value = value_of(np.array([code]))[0].item()
    return shown(bool(value)) if column.dtype == np.int8 else shown(value)


def _measure(
    name: str,
    ask: Aggregation,
    rows: Numbers,
    numbered: Numbered,
    amounts: dict[str, NDArray[Any]],
    summaries: Summaries,
    evaluator: MaskEvaluator,
) -> Measured:
    measure, groups, size = ask.rollup.measures[name], numbered.groups, len(numbered.counts)
    if isinstance(measure, Summary):
        return summarise(amounts[name].take(rows), groups, numbered.counts, measure.histogram is not UNSET)
    if isinstance(measure, SummaryParts):
        return States(summaries.at(ask.name, name, rows)).added(groups, size)
    if measure.include is UNSET:
        return Counts(numbered.counts)
    chosen = evaluator.mask(bind_search(measure.include, ask.config).predicate)[rows]
    return Counts(np.bincount(groups[chosen], minlength=size))


# Selected rows of growing columns, one after the other, as separate columns.


class Window(Mapping[str, Column]):
    """Returns the columns of the rows from `lo` to before `hi`, by name."""

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
        """Callers always request all of its rows."""
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

    @property
    def has_several(self) -> bool:
        return self._whole.has_several

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
    """Columns of all fields of one registry, for entries that are added in the order of their seqs.

    It is not thread-safe: queries and additions must not overlap.
    """

    def __init__(self, config: SearchConfig | None, version: int, names: Iterable[str] | None = None) -> None:
        """Without a search description it indexes routing keys only.

        `names` restricts it to some fields, for queries that need no others.
        """
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
        """The seq of the last added entry."""

    @property
    def keys(self) -> Keywords:
        """Routing keys are a column like any other, and may share the column of a field."""
        return self._keys.column

    def decoder(self) -> Decoder:
        """Returns a decoder of the entry fields that this index needs."""
        pointers = [pointer for pointer, _ in self._fillers if pointer is not None]
        return Decoder(pointers, whole=self._sheet.needs_values)

    def add(self, entries: Sequence[Entry]) -> None:
        """Appends live entries."""
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
        """Returns the seqs of the matching entries."""
        numbers = self.numbers
        found: list[int] = numbers[MaskEvaluator(self.columns, len(numbers)).mask(predicate)].tolist()
        return found

    def count_between(self, first: int, last: int) -> int:
        """Returns the number of its entries in a range."""
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
        """Yields the rows to examine, in the order of the requested hits."""
        lo, hi = self._rows_between(self.span.first, self.span.last)
        key = ask.sort.by_offset
        if key is None or ask.count_all:
            return [(lo, hi)]
        if ask.after is not None:
            behind = int(self._numbers.searchsorted(ask.after[0], "right" if key.ascending else "left"))
            lo, hi = (max(lo, behind), hi) if key.ascending else (lo, min(hi, behind))
        return Pieces(key.ascending).of(lo, hi)

    def _look(self, ask: Ask, lo: int, hi: int, found: Found, budget: Budget) -> None:
        """Raises `Late`; the result then contains none of these rows."""
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
        """Returns which rows of a range are in the span and not removed."""
        numbers = self._numbers[lo:hi]
        mask = np.zeros(len(numbers), np.bool_)
        begin, end = np.searchsorted(numbers, (self.span.first, self.span.last + 1))
        mask[begin:end] = True
        if self._removed:
            bounds = np.searchsorted(numbers, np.array([(first, last + 1) for first, last in self._removed]))
            # Few of the removed entries are in these rows.
            for gone, until in bounds[bounds[:, 0] < bounds[:, 1]].tolist():
                mask[gone:until] = False
        return mask

    def _looked_at(self) -> int:
        return self._index.count_between(self.span.first, self.span.last)

    def aggregate(self, ask: Aggregation, budget: Budget) -> Totalled:
        evaluator = MaskEvaluator(self._index.columns, len(self._numbers), budget)
        try:
            groups = aggregate_rows(
                self._index.sheet, self._index.columns, evaluator, self._alive(), ask, predicates.MAX_GROUPS
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
