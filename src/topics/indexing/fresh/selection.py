"""The first rows of an order, without sorting all of them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from topics.indexing.columns import Column, Numbers, TextColumn
from topics.indexing.fresh.orders import Matches, Order
from topics.indexing.parts import Ask
from topics.indexing.sorting import OFFSET, SCORE, Hit, Place

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
            places = places[order.behind(places, bound) == is_behind]
    return order.first(places, ask.size) if len(places) else places


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
