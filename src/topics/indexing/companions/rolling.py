"""Rollups that are added up ahead: by all their dimensions and by none, at each of their intervals.

What is asked by some of the dimensions is merged out of what was added up by all of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge as merge_sorted
from typing import Final

import numpy as np

from topics.indexing.aggregation import Aggregation, GroupKey
from topics.indexing.companions.files import SectionFile, SectionWriter
from topics.indexing.companions.summaries import (
    NotStorableError,
    PackedRollup,
    StoredGroup,
    StoredRollup,
    pack_rollup,
    write_rollup,
)
from topics.indexing.fresh.index import FreshIndex
from topics.indexing.fresh.masks import Judge
from topics.indexing.fresh.sums import total
from topics.indexing.measures import State
from topics.indexing.predicates import Everything
from topics.schema.search import Rollup, SearchConfig, interval_ms

FAR_MS: Final = 1 << 62
"""Times beyond are no times; where a companion has any, nothing is added up ahead."""
_FEW_GROUPS: Final = 1024
_SAVING: Final = 2
"""Sums are only worth their room where there are so many rows to a group."""

Level = str
"""`all` dimensions of a rollup, or `none` of them."""
Rolled = dict[tuple[int, Level], Iterable[StoredGroup]]
"""By the length of the interval and the level; those that are not worth it are missing."""


def whole(config: SearchConfig, version: int, name: str, interval: str, level: Level) -> Aggregation:
    """The aggregation that adds up everything there is."""
    rollup = config.rollups[name]
    return Aggregation(
        config=config, version=version, name=name, from_ms=-FAR_MS, to_ms=FAR_MS, interval=interval,
        interval_ms=interval_ms(interval) or 1, group_by=rollup.dimensions if level == "all" else (),
        measures=tuple(rollup.measures), predicate=Everything(),
    )  # fmt: skip


def add_up(index: FreshIndex, config: SearchConfig, version: int, name: str) -> Rolled:
    rollup, count = config.rollups[name], len(index.numbers)
    times = index.columns[rollup.timestamp_field].values.filled
    if len(times) and not (int(times.min()) > -FAR_MS and int(times.max()) < FAR_MS):
        return {}
    rolled: Rolled = {}
    judge, alive = Judge(index.columns, count), np.ones(count, np.bool_)
    most = most_groups(count)
    for interval in rollup.intervals:
        for level in levels_of(rollup):
            ask = whole(config, version, name, interval, level)
            table = total(index.sheet, index.columns, judge, alive, ask, most)
            if table is not None:
                rolled[ask.interval_ms, level] = in_order(table.groups)
    return rolled


def levels_of(rollup: Rollup) -> tuple[Level, ...]:
    return ("all", "none") if rollup.dimensions else ("none",)


def in_order(groups: Mapping[GroupKey, tuple[State, ...]]) -> list[StoredGroup]:
    found = [StoredGroup(key.start_ms, key.group, states) for key, states in groups.items()]
    return sorted(found, key=_place)


def _place(group: StoredGroup) -> tuple[int, list[tuple[bool, str]]]:
    return group.start_ms, [(part is None, part or "") for part in group.group]


def write_rollups(writer: SectionWriter, name: str, rolled: Rolled) -> bool:
    """Adds what was added up, all or nothing; whether it did."""
    packed: dict[tuple[int, Level], PackedRollup] = {}
    for level, groups in rolled.items():
        try:
            packed[level] = pack_rollup(groups)
        except NotStorableError:
            return False
        except TooManyGroupsError:
            continue
    for (interval, dimensions), groups_of_it in packed.items():
        write_rollup(writer, f"rollup/{name}/{interval}/{dimensions}", groups_of_it)
    return bool(packed)


def read_rollup(file: SectionFile, name: str, interval: int, level: Level) -> StoredRollup | None:
    prefix = f"rollup/{name}/{interval}/{level}"
    return StoredRollup(file, prefix) if f"{prefix}/starts" in file else None


class TooManyGroupsError(Exception):
    """So many that to add them up ahead saves nothing."""


def merge_groups(sources: Iterable[StoredRollup], most: int) -> Iterator[StoredGroup]:
    """The groups of several companions as those of one, in order. Each source has its own in order, so that no more of
    them are in memory than there are sources. Raises TooManyGroupsError."""
    known: StoredGroup | None = None
    count = 0
    for found in merge_sorted(*map(_groups_of, sources), key=_place):
        if known is not None and (found.start_ms, found.group) == (known.start_ms, known.group):
            for state, further in zip(known.states, found.states, strict=True):
                state.merge(further)
            continue
        if known is not None:
            yield known
        known, count = found, count + 1
        if count > most:
            raise TooManyGroupsError
    if known is not None:
        yield known


def _groups_of(source: StoredRollup) -> Iterator[StoredGroup]:
    return source.groups(np.arange(len(source.starts)))


def most_groups(rows: int) -> int:
    """Beyond so many groups, to add them up ahead saves nothing."""
    return max(_FEW_GROUPS, rows // _SAVING)
