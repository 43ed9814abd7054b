"""The first rows of an order, without sorting all of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topics.indexing.columns import Column, Floats, Mask, Numbers, TextColumn
from topics.indexing.parts import Ask
from topics.indexing.sorting import OFFSET, SCORE, Hit, Key, Place, Sort

Ordinal = NDArray[Any]
"""Numbers of which a smaller one comes first."""


class Order:
    """A sort over columns. Each key is one or two ordinals: whether it is null, and its value. A descending key is
    turned around bit by bit, because the least of all integers has no negative."""

    def __init__(
        self, sort: Sort, columns: Mapping[str, Column], numbers: Numbers, scores: Floats | None, candidates: Numbers
    ) -> None:
        self._sort = sort
        self._columns = columns
        self._numbers = numbers
        self._scores = scores
        self._ordinals: list[list[Ordinal]] = [self._of_key(key, candidates) for key in sort.keys]

    def _of_key(self, key: Key, candidates: Numbers) -> list[Ordinal]:
        if key.name == OFFSET:
            return [_turned(self._numbers[candidates], key.ascending)]
        if key.name == SCORE:
            scores = np.zeros(len(candidates)) if self._scores is None else self._scores[candidates]
            return [_turned(scores, key.ascending)]
        column = self._columns[key.name]
        found, has = column.snapshot(len(self._numbers)).extreme(
            column.dictionary.ranked if isinstance(column, TextColumn) else (lambda values: values), key.ascending
        )
        return [_turned((~has).view(np.int8)[candidates], key.ascending), _turned(found[candidates], key.ascending)]

    def behind(self, after: Place) -> Mask:
        """Which candidates come behind a place."""
        behind: Any = False
        equal: Any = True
        for key, ordinals, bound in zip(self._sort.keys, self._ordinals, after, strict=True):
            for ordinal, value in zip(ordinals, self._bounds(key, bound), strict=True):
                behind = behind | (equal & (ordinal > value))
                equal = equal & (ordinal == value)
        return np.asarray(behind)

    def _bounds(self, key: Key, bound: Any) -> list[Any]:
        if key.name == OFFSET:
            return [_turned(np.int64(bound), key.ascending)]
        if key.name == SCORE:
            return [_turned(np.float64(bound), key.ascending)]
        column = self._columns[key.name]
        value: Any = 0 if bound is None else bound
        if isinstance(column, TextColumn):
            value = np.int64(0 if bound is None else column.dictionary.rank(bound))
        else:
            value = column.dtype.type(value)
        return [_turned(np.int8(bound is None), key.ascending), _turned(value, key.ascending)]

    def restrict(self, chosen: Mask) -> None:
        """Leaves out the other candidates."""
        self._ordinals = [[ordinal[chosen] for ordinal in ordinals] for ordinals in self._ordinals]

    def first(self, size: int) -> Numbers:
        """The places of the first candidates, in order."""
        flat = [ordinal for ordinals in self._ordinals for ordinal in ordinals]
        places = _least(np.arange(len(flat[0])), flat, size)
        # The last key given is the first one that counts.
        return places[np.lexsort([ordinal[places] for ordinal in reversed(flat)])][:size]


def _turned(values: Any, ascending: bool) -> Any:
    if ascending:
        return values
    return -values if values.dtype.kind == "f" else ~values


def _least(places: Numbers, ordinals: list[Ordinal], size: int) -> Numbers:
    """Places among which are the first ones, and few others."""
    if len(places) <= 2 * size + 64 or not ordinals:
        return places
    values = ordinals[0][places]
    bound = values.min()
    if np.count_nonzero(values == bound) < size:
        # Scores are often all the same, which this is slow with.
        bound = np.partition(values, size - 1)[size - 1]
    sure = places[values < bound]
    return np.concatenate((sure, _least(places[values == bound], ordinals[1:], size - len(sure))))


def place_value(column: Column, row: int, count: int, ascending: bool) -> Any:
    """The value of a key of one hit, as a place has it."""
    snapshot = column.snapshot(count)
    if snapshot.rows is None:
        values = snapshot.values[row : row + 1]
    else:
        begin, end = np.searchsorted(snapshot.rows, (row, row + 1))
        values = snapshot.values[begin:end]
    if not len(values):
        return None
    choose = min if ascending else max
    if isinstance(column, TextColumn):
        return choose(column.dictionary.texts[code] for code in values)
    value = choose(values.tolist())
    return bool(value) if values.dtype == np.int8 else value


def first_hits(
    ask: Ask, columns: Mapping[str, Column], numbers: Numbers, matching: Numbers, scores: Floats | None
) -> list[Hit]:
    """The first hits among the rows that match, which are in the order of their numbers."""
    rows = _first_rows(ask, columns, numbers, matching, scores)
    return [_hit(ask, columns, numbers, int(row), 0.0 if scores is None else float(scores[row])) for row in rows]


def _first_rows(
    ask: Ask, columns: Mapping[str, Column], numbers: Numbers, matching: Numbers, scores: Floats | None
) -> Numbers:
    by_offset = ask.sort.by_offset
    if by_offset is not None:
        # Rows are in this order already.
        found = numbers[matching]
        if by_offset.ascending:
            begin = 0 if ask.after is None else int(np.searchsorted(found, ask.after[0], "right"))
            return matching[begin : begin + ask.size]
        end = len(found) if ask.after is None else int(np.searchsorted(found, ask.after[0]))
        return matching[max(end - ask.size, 0) : end][::-1]
    order = Order(ask.sort, columns, numbers, scores, matching)
    if ask.after is not None:
        behind = order.behind(ask.after)
        order.restrict(behind)
        matching = matching[behind]
    return matching[order.first(ask.size)] if len(matching) else matching


def _hit(ask: Ask, columns: Mapping[str, Column], numbers: Numbers, row: int, score: float) -> Hit:
    number = int(numbers[row])
    place = tuple(
        number
        if key.name == OFFSET
        else score
        if key.name == SCORE
        else place_value(columns[key.name], row, len(numbers), key.ascending)
        for key in ask.sort.keys
    )
    return Hit(place, number, score)
