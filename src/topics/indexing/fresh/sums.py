"""Aggregations over columns: groups by their codes, sums by one pass each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from topics.indexing.aggregation import Aggregation
from topics.indexing.columns import Column, Mask, Numbers, TextColumn
from topics.indexing.fresh.masks import Judge
from topics.indexing.groups import Dimension, Groups, number_keys, numbered
from topics.indexing.measured import Counts, Measured, States, summarise
from topics.indexing.measures import Summed
from topics.indexing.predicates import bind_search
from topics.indexing.rollups import summary_parts
from topics.indexing.values import shown
from topics.schema.search import Count, SearchConfig, Summary, SummaryParts

_STATE_BYTES = 400
_FEW = 1 << 20
"""Codes that a table is made for; beyond, they are sorted."""


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


def add_up(
    summaries: Summaries, columns: Mapping[str, Column], judge: Judge, alive: Mask, ask: Aggregation, most: int
) -> Groups | None:
    """The sums of the rows that are alive; None when there are more groups than `most`."""
    rollup = ask.rollup
    count = len(alive)
    times, has_time, many_times = columns[rollup.timestamp_field].snapshot(count).single()
    mask = alive & has_time & ~many_times & (times >= ask.from_ms) & (times < ask.to_ms) & judge.mask(ask.predicate)
    if rollup.include is not UNSET:
        mask &= judge.mask(bind_search(rollup.include, ask.config).predicate)
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
    moments = times[rows]
    starts = moments // ask.interval_ms * ask.interval_ms if ask.interval_ms else np.full(len(rows), ask.from_ms)
    axes = [_dimension_axis(columns[name], rows, count) for name in ask.group_by]
    keys = [_time_axis(starts, ask.interval_ms or 1), *((axis.codes, axis.size) for axis in axes)]
    groups, firsts = number_keys(keys, len(rows))
    if len(firsts) > most:
        return None
    size = len(firsts)
    return Groups(
        starts[firsts],
        [axis.at(firsts) for axis in axes],
        [_measure(name, ask, rows, groups, size, amounts, summaries, judge) for name in ask.shown_measures],
    )


class _Axis(NamedTuple):
    """A dimension: a code for each row, below `size`, and what each code stands for."""

    codes: Numbers
    size: int
    show: Callable[[int], str | None]

    def at(self, rows: Numbers) -> Dimension:
        """That of some rows. Only the codes that they have are shown: there may be millions of others."""
        codes, firsts = numbered(self.codes[rows], self.size)
        return Dimension(codes, [self.show(code) for code in self.codes[rows[firsts]].tolist()])


def _time_axis(starts: Numbers, interval: int) -> tuple[Numbers, int]:
    least = int(starts.min(initial=np.iinfo(np.int64).max))
    steps = (int(starts.max(initial=least)) - least) // interval + 1
    if steps <= _FEW:
        return (starts - least) // interval, steps
    distinct, codes = np.unique(starts, return_inverse=True)
    return codes, len(distinct)


def _dimension_axis(column: Column, rows: Numbers, count: int) -> _Axis:
    values, has, _ = column.snapshot(count).single()
    if isinstance(column, TextColumn):
        texts = column.dictionary.texts
        null = len(texts)
        return _Axis(
            np.where(has[rows], values[rows], null), null + 1, lambda code: None if code == null else texts[code]
        )
    distinct, codes = np.unique(values[rows], return_inverse=True)
    last = len(distinct)
    names = [_shown(column, value) for value in distinct.tolist()]
    return _Axis(np.where(has[rows], codes, last), last + 1, lambda code: None if code == last else names[code])


def _shown(column: Column, value: Any) -> str:
    return shown(bool(value)) if column.dtype == np.int8 else shown(value)


def _measure(
    name: str,
    ask: Aggregation,
    rows: Numbers,
    groups: Numbers,
    size: int,
    amounts: dict[str, NDArray[Any]],
    summaries: Summaries,
    judge: Judge,
) -> Measured:
    measure = ask.rollup.measures[name]
    if isinstance(measure, Count):
        counted = groups
        if measure.include is not UNSET:
            counted = groups[judge.mask(bind_search(measure.include, ask.config).predicate)[rows]]
        return Counts(np.bincount(counted, minlength=size))
    if isinstance(measure, Summary):
        return summarise(amounts[name][rows], groups, size, measure.histogram is not UNSET)
    return States(summaries.at(ask.name, name, rows)).added(groups, size)
