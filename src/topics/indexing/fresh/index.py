"""The fresh index of one stream, and the part that it is."""

from collections.abc import Sequence

import numpy as np

from topics.core.ranges import SeqRange
from topics.indexing.aggregation import Aggregation, Table
from topics.indexing.columns import Mask, Numbers
from topics.indexing.extraction import Extract, extractor
from topics.indexing.fresh.arrays import Growing
from topics.indexing.fresh.columns import GrowingColumn, Keywords, column_for
from topics.indexing.fresh.masks import Judge
from topics.indexing.fresh.selection import first_hits
from topics.indexing.fresh.sums import Sheet, total
from topics.indexing.parts import Ask, Budget, Entry, Found, KeysFound, Span, Totalled
from topics.indexing.predicates import has_scores
from topics.schema.search import SearchConfig


class FreshIndex:
    """Columns of all fields of one registry, for entries that are added in the order of their numbers.

    It is not for several threads: nobody asks while somebody adds.
    """

    def __init__(self, config: SearchConfig | None, version: int) -> None:
        """Without a description of fields it knows routing keys only."""
        self._extracts: list[tuple[Extract, GrowingColumn]] = []
        self.columns: dict[str, GrowingColumn] = {}
        for name, field in ({} if config is None else config.fields).items():
            column = self.columns[name] = column_for(field)
            self._extracts.append((extractor(field, version), column))
        self.keys = Keywords()
        self._numbers = Growing(np.int64)
        self._sheet = Sheet(config)
        self.last = -1
        """The number of the last entry that was added."""

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds live entries behind all that are there."""
        values = [entry.value for entry in entries]
        for extract, column in self._extracts:
            column.extend([extract(value) for value in values])
        self.keys.extend([None if entry.key is None else (entry.key,) for entry in entries])
        self._sheet.extend(values)
        self._numbers.extend([entry.number for entry in entries])
        if entries:
            self.last = entries[-1].number

    @property
    def numbers(self) -> Numbers:
        return self._numbers.filled

    def count_between(self, first: int, last: int) -> int:
        """How many entries it has of a range."""
        begin, end = np.searchsorted(self.numbers, (first, last + 1))
        return int(end - begin)

    @property
    def sheet(self) -> Sheet:
        return self._sheet

    @property
    def memory_bytes(self) -> int:
        columns = sum(column.memory_bytes for column in (*self.columns.values(), self.keys))
        return columns + self._numbers.memory_bytes + self._sheet.memory_bytes


class FreshPart:
    """A range of the index's entries without those that were removed since."""

    def __init__(self, index: FreshIndex, span: Span, removed: Sequence[SeqRange] = ()) -> None:
        self._index = index
        self._numbers = index.numbers
        self._removed = removed
        self.span = span

    def search(self, ask: Ask, budget: Budget) -> Found:
        numbers = self._numbers
        judge = Judge(self._index.columns, len(numbers))
        matching = np.flatnonzero(judge.mask(ask.predicate) & self._alive())
        matched = len(matching)
        scores = judge.scores(ask.predicate) if has_scores(ask.predicate) else None
        hits = first_hits(ask, self._index.columns, numbers, matching, scores)
        return Found(hits=hits, matched=matched, looked_at=self._looked_at(), candidates=matched)

    def _alive(self) -> Mask:
        """The rows of the span that were not removed."""
        numbers = self._numbers
        mask = np.zeros(len(numbers), np.bool_)
        begin, end = np.searchsorted(numbers, (self.span.first, self.span.last + 1))
        mask[begin:end] = True
        if self._removed:
            bounds = np.searchsorted(numbers, np.array([(first, last + 1) for first, last in self._removed]))
            for gone, until in bounds.tolist():
                mask[gone:until] = False
        return mask

    def _looked_at(self) -> int:
        return self._index.count_between(self.span.first, self.span.last)

    def aggregate(self, ask: Aggregation, budget: Budget) -> Totalled:
        judge = Judge(self._index.columns, len(self._numbers))
        table = total(self._index.sheet, self._index.columns, judge, self._alive(), ask)
        if table is None:
            budget.out_of_memory()
            return Totalled(table=Table(ask), missed=self.span.rows, first_missed=self.span.first)
        return Totalled(table=table, looked_at=self._looked_at())

    def keys(self, after: str | None, limit: int, budget: Budget) -> KeysFound:
        column = self._index.keys
        keys = column.snapshot(len(self._numbers))
        alive = self._alive()
        live = np.zeros(len(column.dictionary), np.bool_)
        live[keys.values[alive if keys.rows is None else alive[keys.rows]]] = True
        found = column.dictionary.first_behind(after, live, limit)
        return KeysFound(keys=found, looked_at=self._looked_at())
