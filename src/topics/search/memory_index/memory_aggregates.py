"""Aggregations over columns: groups by their codes, sums by one pass each."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from topics.schema.search_fields import SearchConfig, Summary, SummaryParts
from topics.search.memory_index.filter_masks import MaskEvaluator
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
from topics.search.query.columns import Column, Mask, Numbers, TextColumn
from topics.search.query.field_values import shown
from topics.search.query.predicates import bind_search

_STATE_BYTES = 400


class Summaries(Protocol):
    """What aggregations need besides the columns of fields: entries that are summaries already, by rollup and
    measure."""

    def known(self, rollup: str, measure: str, count: int) -> Mask:
        """Which of the first rows are one."""
        ...

    def at(self, rollup: str, measure: str, rows: Numbers) -> Sequence[Summed]:
        """Those of some rows that are one."""
        ...


class Sheet:
    """The summaries of entries that come, one list a measure."""

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
    """The sums of the rows that are alive; None when there are more groups than `most`."""
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
"""What a code stands for."""


def _dimension(codes: Numbers, size: int, show: Show) -> Dimension:
    """That of some groups. Only the codes that they have are shown: there may be millions of others."""
    numbers, present = compacted(codes, size)
    return Dimension(numbers, [show(code) for code in present.tolist()])


def _steps(times: Numbers, rows: Numbers, ask: Aggregation) -> tuple[Callable[[Numbers], Numbers], Axis]:
    """The buckets of rows, and when those of some codes begin."""
    interval = ask.interval_ms
    if not interval or not len(rows):
        return lambda codes: np.full(len(codes), ask.from_ms), Axis(np.zeros(len(rows), np.int64), 1)
    steps = times.take(rows) // interval
    codes, size, value_of = _coded(steps)
    # The first bucket of all begins before what 64 bits can say.
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
    """Values as codes in their order, what all codes are below, and the values of codes."""
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
