"""Rollups that are added up ahead: by all their dimensions and by none, at each of their intervals.

What is asked by some of the dimensions is merged out of what was added up by all of them, and so are longer intervals
out of shorter ones that they are made of.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from topics.indexing.aggregation import Aggregation
from topics.indexing.companions.files import SectionFile, SectionWriter
from topics.indexing.companions.stored_groups import StoredRollup, pack_groups
from topics.indexing.companions.summaries import NotStorableError
from topics.indexing.fresh import sums
from topics.indexing.fresh.index import FreshIndex
from topics.indexing.fresh.masks import Judge
from topics.indexing.groups import Groups, regroup
from topics.indexing.predicates import Everything
from topics.schema.search import Rollup, SearchConfig, interval_ms

FAR_MS: Final = 1 << 62
"""Times beyond are no times; where a companion has any, nothing is added up ahead."""
_FEW_GROUPS: Final = 1024
_SAVING: Final = 2
"""Sums are only worth their room where there are so many rows to a group."""

Level = str
"""`all` dimensions of a rollup, or `none` of them."""
Rolled = dict[tuple[int, Level], Groups]
"""By the length of the interval and the level; those that are not worth it are missing."""


def whole(config: SearchConfig, version: int, name: str, length: int, level: Level) -> Aggregation:
    """The aggregation that adds up everything there is."""
    rollup = config.rollups[name]
    return Aggregation(
        config=config, version=version, name=name, from_ms=-FAR_MS, to_ms=FAR_MS, interval="",
        interval_ms=length, group_by=rollup.dimensions if level == "all" else (),
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
    for length in sorted({interval_ms(interval) or 1 for interval in rollup.intervals}):
        for level in levels_of(rollup):
            groups = _derived(rolled, length, rollup.dimensions if level == "all" else ())
            if groups is None:
                ask = whole(config, version, name, length, level)
                groups = sums.add_up(index.sheet, index.columns, judge, alive, ask, most)
                groups = None if groups is None else regroup([groups], length, range(len(ask.group_by)))
            if groups is not None and len(groups) <= most:
                rolled[length, level] = groups
    return rolled


def _derived(rolled: Mapping[tuple[int, Level], Groups], length: int, dimensions: Sequence[str]) -> Groups | None:
    """Groups out of the fewest that they can be made of, which are fewer than there are rows."""
    finer = [
        groups
        for (shorter, level), groups in rolled.items()
        if length % shorter == 0 and (level == "all" or not dimensions)
    ]
    return regroup([min(finer, key=len)], length, range(len(dimensions))) if finer else None


def levels_of(rollup: Rollup) -> tuple[Level, ...]:
    return ("all", "none") if rollup.dimensions else ("none",)


def write_rollups(writer: SectionWriter, name: str, rolled: Rolled) -> bool:
    """Adds what was added up, all or nothing; whether it did."""
    try:
        packed = {level: pack_groups(groups) for level, groups in rolled.items()}
    except NotStorableError:
        return False
    for (interval, dimensions), sections in packed.items():
        for section, array in sections:
            writer.add(f"rollup/{name}/{interval}/{dimensions}/{section}", array)
    return bool(packed)


def read_rollup(file: SectionFile, name: str, interval: int, level: Level) -> StoredRollup | None:
    prefix = f"rollup/{name}/{interval}/{level}"
    return StoredRollup(file, prefix) if f"{prefix}/starts" in file else None


def merge_groups(sources: Sequence[StoredRollup], interval: int, most: int) -> Groups | None:
    """The groups of several companions as those of one; None where there are too many to save anything."""
    merged = regroup([source.all() for source in sources], interval, range(sources[0].dimensions))
    return merged if len(merged) <= most else None


def most_groups(rows: int) -> int:
    """Beyond so many groups, to add them up ahead saves nothing."""
    return max(_FEW_GROUPS, rows // _SAVING)
