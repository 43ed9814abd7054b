"""Aggregations over columns: groups by their codes, sums by one pass each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from topics.indexing import limits
from topics.indexing.aggregation import Aggregation, GroupKey, Table
from topics.indexing.columns import Column, Mask, Numbers, TextColumn
from topics.indexing.fresh.masks import Judge
from topics.indexing.measures import Counted, State, Summed
from topics.indexing.predicates import bind_search
from topics.indexing.rollups import summary_parts
from topics.indexing.values import shown
from topics.schema.search import Count, Rollup, SearchConfig, Summary, SummaryParts

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


def total(
    summaries: Summaries,
    columns: Mapping[str, Column],
    judge: Judge,
    alive: Mask,
    ask: Aggregation,
    max_groups: int | None = None,
) -> Table | None:
    """The sums of the rows that are alive; None when there are too many groups."""
    most = limits.MAX_GROUPS if max_groups is None else max_groups
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
    groups, keys = _group(rows, starts, ask, columns, count, most)
    if len(keys) > most:
        return None
    table = Table(ask)
    measures = [
        _measure(rollup, name, ask, rows, groups, len(keys), amounts, summaries, judge) for name in _wanted(ask)
    ]
    table.groups = dict(zip(keys, zip(*measures, strict=True) if measures else repeat(()), strict=False))
    return table


def _wanted(ask: Aggregation) -> list[str]:
    return [name for name in ask.rollup.measures if name in ask.measures]


class _Axis(NamedTuple):
    """One part of the groups' keys: a code for each row, below `size`, and what each code stands for."""

    codes: Numbers
    size: int
    show: Callable[[int], Any]


def _group(
    rows: Numbers, starts: Numbers, ask: Aggregation, columns: Mapping[str, Column], count: int, most: int
) -> tuple[Numbers, list[GroupKey]]:
    """The group of each row, and the keys of the groups."""
    axes = [_time_axis(starts, ask.interval_ms or 1)]
    axes += [_dimension_axis(columns[name], rows, count) for name in ask.group_by]
    joined = np.zeros(len(rows), np.int64)
    size, firsts = 1, np.zeros(min(len(rows), 1), np.int64)
    for axis in axes:
        # Numbered anew after each axis, so that no product of their sizes can overflow.
        joined, firsts = _numbered(joined * axis.size + axis.codes, size * axis.size)
        size = len(firsts)
    firsts = firsts[: most + 1]
    starting, *named = [[axis.show(code) for code in axis.codes[firsts].tolist()] for axis in axes]
    groups: Iterable[tuple[Any, ...]] = zip(*named, strict=True) if named else repeat(())
    return joined, list(map(GroupKey, starting, groups))


def _numbered(codes: Numbers, size: int) -> tuple[Numbers, Numbers]:
    """Codes without holes, and for each of them a row that has it."""
    if size > _FEW:
        _, firsts, numbered = np.unique(codes, return_index=True, return_inverse=True)
        return numbered, firsts
    owners = np.full(size, -1)
    owners[codes] = np.arange(len(codes))
    present = owners >= 0
    return (np.cumsum(present) - 1)[codes], owners[present]


def _time_axis(starts: Numbers, interval: int) -> _Axis:
    least = int(starts.min(initial=np.iinfo(np.int64).max))
    steps = (int(starts.max(initial=least)) - least) // interval + 1
    if steps <= _FEW:
        return _Axis((starts - least) // interval, steps, lambda code: least + code * interval)
    distinct, codes = np.unique(starts, return_inverse=True)
    return _Axis(codes, len(distinct), lambda code: int(distinct[code]))


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
    rollup: Rollup,
    name: str,
    ask: Aggregation,
    rows: Numbers,
    groups: Numbers,
    size: int,
    amounts: dict[str, NDArray[Any]],
    summaries: Summaries,
    judge: Judge,
) -> list[State]:
    measure = rollup.measures[name]
    if isinstance(measure, Count):
        counted = groups
        if measure.include is not UNSET:
            counted = groups[judge.mask(bind_search(measure.include, ask.config).predicate)[rows]]
        return [Counted(number) for number in np.bincount(counted, minlength=size).tolist()]
    if isinstance(measure, Summary):
        return list(_summaries(amounts[name][rows], groups, size, measure.histogram is not UNSET))
    merged = [Summed() for _ in range(size)]
    for state, group in zip(summaries.at(ask.name, name, rows), groups.tolist(), strict=True):
        merged[group].merge(state)
    return list(merged)


def _summaries(values: NDArray[Any], groups: Numbers, size: int, with_histogram: bool) -> list[Summed]:
    counts = np.bincount(groups, minlength=size)
    sums = _sums(values, groups, size)
    # Some value of each group to begin with; which one does not matter.
    least = np.zeros(size, values.dtype)
    least[groups] = values
    most = least.copy()
    np.minimum.at(least, groups, values)
    np.maximum.at(most, groups, values)
    found = [Summed(*parts) for parts in zip(counts.tolist(), sums, least.tolist(), most.tolist(), strict=True)]
    if with_histogram:
        _count_buckets(values, groups, found)
    return found


def _sums(values: NDArray[Any], groups: Numbers, size: int) -> list[Any]:
    if values.dtype == np.float64:
        return np.bincount(groups, values, size).tolist() if len(values) else [0.0] * size
    bound = int(np.abs(values.astype(np.float64)).max(initial=0)) * len(values)
    if bound < 1 << 62:
        sums = np.zeros(size, np.int64)
        np.add.at(sums, groups, values)
        return sums.tolist()
    exact = [0] * size
    for value, group in zip(values.tolist(), groups.tolist(), strict=True):
        exact[group] += value
    return exact


def _count_buckets(values: NDArray[Any], groups: Numbers, found: list[Summed]) -> None:
    amounts = np.maximum(np.abs(values.astype(np.float64)), 1.0)
    exponents = np.frexp(amounts)[1] - 1
    if values.dtype != np.float64 and amounts.max(initial=1) >= 1 << 53:
        # As a float, a large integer just below a power of two is that power.
        exponents = np.array([max(abs(value), 1).bit_length() - 1 for value in values.tolist()], np.int64)
    span = int(exponents.max(initial=0)) + 1
    pairs = groups * span + exponents
    if len(found) * span <= _FEW:
        counts = np.bincount(pairs)
        pairs = np.flatnonzero(counts)
        counts = counts[pairs]
    else:
        pairs, counts = np.unique(pairs, return_counts=True)
    bounds = [1 << exponent for exponent in range(span)]
    exponents_of, counts_of = (pairs % span).tolist(), counts.tolist()
    ends = np.searchsorted(pairs, np.arange(1, len(found) + 1) * span).tolist()
    begin = 0
    for state, end in zip(found, ends, strict=True):
        state.histogram = {bounds[exponents_of[place]]: counts_of[place] for place in range(begin, end)}
        begin = end
