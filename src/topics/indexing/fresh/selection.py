"""The first rows of an order, without sorting all of them."""

from collections.abc import Callable, Mapping
from functools import cached_property, partial
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

    def __init__(self, sort: Sort, columns: Mapping[str, Column], count: int, matches: "Matches") -> None:
        self._sort = sort
        self._columns = columns
        self._count = count
        self._ordinals: list[list[Ordinal]] = [self._of_key(key, matches) for key in sort.keys]

    def _of_key(self, key: Key, matches: "Matches") -> list[Ordinal]:
        if key.name == OFFSET:
            return [_turned(matches.numbers, key.ascending)]
        if key.name == SCORE:
            scores = np.zeros(len(matches.rows)) if matches.scores is None else matches.scores
            return [_turned(scores, key.ascending)]
        column = self._columns[key.name]
        found, has = column.snapshot(self._count).extreme(
            matches.rows,
            column.dictionary.ranked if isinstance(column, TextColumn) else (lambda values: values),
            key.ascending,
        )
        return [_turned((~has).view(np.int8), key.ascending), _turned(found, key.ascending)]

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


class Matches:
    """Rows that match, in the order of their numbers."""

    def __init__(self, rows: Numbers, numbers_at: Callable[[Numbers], Numbers], scores: Floats | None) -> None:
        self.rows = rows
        self._numbers_at = numbers_at
        self.scores = scores

    @cached_property
    def numbers(self) -> Numbers:
        return self._numbers_at(self.rows)

    def at(self, places: Numbers) -> "Matches":
        return Matches(self.rows[places], self._numbers_at, None if self.scores is None else self.scores[places])


_make_hit: Callable[[tuple[Place, int, float]], Hit] = partial(tuple.__new__, Hit)
"""`Hit._make` without a step in Python for each: a search makes as many as a page has, and several times."""


def first_hits(ask: Ask, columns: Mapping[str, Column], count: int, matches: Matches) -> list[Hit]:
    """The first hits among the rows that match, which are some of the first `count`."""
    first = matches.at(_first_places(ask, columns, count, matches))
    numbers: list[int] = first.numbers.tolist()
    scores = [0.0] * len(numbers) if first.scores is None else first.scores.tolist()
    values = [
        numbers
        if key.name == OFFSET
        else scores
        if key.name == SCORE
        else place_values(columns[key.name], first.rows, count, key.ascending)
        for key in ask.sort.keys
    ]
    return list(map(_make_hit, zip(zip(*values, strict=True), numbers, scores, strict=True)))


def _first_places(ask: Ask, columns: Mapping[str, Column], count: int, matches: Matches) -> Numbers:
    by_offset, after, end = ask.sort.by_offset, ask.after, len(matches.rows)
    if by_offset is not None:
        # Rows are in this order already.
        if by_offset.ascending:
            begin = 0 if after is None else int(np.searchsorted(matches.numbers, after[0], "right"))
            return np.arange(begin, min(begin + ask.size, end))
        end = end if after is None else int(np.searchsorted(matches.numbers, after[0]))
        return np.arange(max(end - ask.size, 0), end)[::-1]
    order, places = Order(ask.sort, columns, count, matches), np.arange(end)
    for bound, is_behind in ((after, True), (ask.until, False)):
        if bound is not None:
            chosen = order.behind(bound) == is_behind
            order.restrict(chosen)
            places = places[chosen]
    return places[order.first(ask.size)] if len(places) else places


def place_values(column: Column, rows: Numbers, count: int, ascending: bool) -> list[Any]:
    """The values of a key of some hits, as places have them."""
    snapshot = column.snapshot(count)
    values, choose = snapshot.values, min if ascending else max
    begins, ends = snapshot.bounds_of(rows)
    if np.array_equal(ends, begins + 1):
        return _shown(column, values[begins])
    found: list[Any] = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        shown = _shown(column, values[begin:end])
        found.append(choose(shown) if shown else None)
    return found


def _shown(column: Column, values: Any) -> list[Any]:
    if isinstance(column, TextColumn):
        return [column.dictionary.texts[code] for code in values]
    return list((values.astype(np.bool_) if values.dtype == np.int8 else values).tolist())
