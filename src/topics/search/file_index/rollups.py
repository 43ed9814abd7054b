"""Rollups: aggregates computed when an index file is built, grouped by all dimensions and by none, for each interval.

A query by some of the dimensions merges the groups of all dimensions; longer intervals are merged from shorter ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import numpy as np

from topics.schema.search_fields import Rollup, SearchConfig, interval_ms
from topics.search.file_index.file_format import (
    Array,
    IndexPlan,
    MappedTexts,
    SectionFile,
    SectionWriter,
    narrow,
    pack_strings,
)
from topics.search.file_index.reader import IndexFile, NotStorableError, Rows, StoredStates, pack_states
from topics.search.memory_index import memory_index
from topics.search.memory_index.memory_index import MemoryIndex, aggregate_rows
from topics.search.memory_index.row_selection import MaskEvaluator
from topics.search.query import predicates
from topics.search.query.aggregate import Aggregation
from topics.search.query.aggregate_arrays import (
    Buckets,
    Counts,
    Dimension,
    Groups,
    Measured,
    States,
    Sums,
    compacted,
    regroup,
)
from topics.search.query.field_values import Mask, Numbers
from topics.search.query.predicates import All, Equals, Everything, Predicate

# Rollups in an index file: groups as arrays, used without conversion. `file_format` describes the sections.

Sections = list[tuple[str, Array]]


def pack_groups(groups: Groups) -> Sections:
    """Returns the sections of sorted groups. Raises NotStorableError."""
    sections: Sections = [("starts", groups.starts)]
    for place, (codes, names) in enumerate(groups.dimensions):
        # In sorted names null is last.
        raw, ends = pack_strings([name for name in names if name is not None])
        sections += [(f"by/{place}/codes", narrow(codes)), (f"by/{place}/texts", raw), (f"by/{place}/ends", ends)]
    for place, measured in enumerate(groups.measures):
        sections += [(f"of/{place}/{name}", array) for name, array in _pack_measured(measured)]
    return sections


def _pack_measured(measured: Measured) -> Iterator[tuple[str, Array]]:
    if isinstance(measured, States):
        yield from zip(("states", "ends"), pack_states(measured.states()), strict=True)
    elif isinstance(measured, Counts):
        yield "counts", narrow(measured.numbers)
    else:
        if not np.isfinite(measured.sums).all():
            raise NotStorableError
        yield "counts", narrow(measured.counts)
        yield "sums", measured.sums
        yield "least", measured.least
        yield "most", measured.most
        if measured.buckets is not None:
            yield "stops", narrow(measured.buckets.ends)
            yield "powers", narrow(measured.buckets.exponents)
            yield "times", narrow(measured.buckets.counts)


class StoredRollup:
    """The groups of a rollup at one interval."""

    def __init__(self, file: SectionFile, prefix: str) -> None:
        self._file = file
        self._prefix = prefix
        self.starts: Numbers = file.array(f"{prefix}/starts")

    @property
    def dimensions(self) -> int:
        return self._count("by", "codes")

    @property
    def _measures(self) -> int:
        return self._count("of", "counts", "states")

    def _count(self, what: str, *names: str) -> int:
        """Returns the number of items that have one of the given sections."""
        count = 0
        while any(f"{self._prefix}/{what}/{count}/{name}" in self._file for name in names):
            count += 1
        return count

    def between(self, first_ms: int, end_ms: int) -> tuple[int, int]:
        """Returns the groups whose buckets start at `first_ms` or later, and before `end_ms`."""
        lo, hi = np.searchsorted(self.starts, (first_ms, end_ms))
        return int(lo), int(hi)

    def all(self) -> Groups:
        return self.at(np.arange(len(self.starts)), range(self._measures))

    def at(self, places: Numbers, measures: Sequence[int], fixed: Sequence[tuple[int, str]] = ()) -> Groups:
        """Returns the groups at some indexes whose dimensions have the fixed values, with the given measures."""
        for place, name in fixed:
            code = self._texts(place).code(name)
            places = places[self._array(f"by/{place}/codes")[places] == (-1 if code is None else code)]
        return Groups(
            self.starts[places],
            [self._dimension(place, places) for place in range(self.dimensions)],
            [self._measured(measure).take(places) for measure in measures],
        )

    def _texts(self, place: int) -> MappedTexts:
        return MappedTexts(self._array(f"by/{place}/texts"), self._array(f"by/{place}/ends"))

    def _dimension(self, place: int, places: Numbers) -> Dimension:
        """Returns a dimension of some groups, with the names that they use."""
        texts, codes = self._texts(place), self._array(f"by/{place}/codes")[places]
        numbers, present = compacted(codes, len(texts) + 1)
        return Dimension(numbers, [texts[code] if code < len(texts) else None for code in present.tolist()])

    def _measured(self, place: int) -> Measured:
        if f"{self._prefix}/of/{place}/states" in self._file:
            return States(StoredStates(self._array(f"of/{place}/states"), self._array(f"of/{place}/ends")))
        counts = self._array(f"of/{place}/counts")
        if f"{self._prefix}/of/{place}/sums" not in self._file:
            return Counts(counts)
        sums, least, most = (self._array(f"of/{place}/{name}") for name in ("sums", "least", "most"))
        return Sums(counts, sums, least, most, self._buckets(place))

    def _buckets(self, place: int) -> Buckets | None:
        if f"{self._prefix}/of/{place}/stops" not in self._file:
            return None
        stops, times = self._array(f"of/{place}/stops"), self._array(f"of/{place}/times")
        return Buckets(stops, self._array(f"of/{place}/powers"), times)

    def _array(self, name: str) -> Array:
        return self._file.array(f"{self._prefix}/{name}")


FAR_MS: Final = 1 << 62
"""Later times are invalid. An index file with such a time gets no rollups."""
_FEW_GROUPS: Final = 1024
_SAVING: Final = 2
"""Rollups are stored only with at least this many rows a group; otherwise they would not save enough."""

Level = str
"""Groups by `all` dimensions of a rollup, or by `none`."""
Rolled = dict[tuple[int, Level], Groups]
"""Groups by interval and level. Groups that would save too little are missing."""


def whole(config: SearchConfig, version: int, name: str, length: int, level: Level) -> Aggregation:
    """Returns the aggregation over all measures and dimensions of a rollup."""
    rollup = config.rollups[name]
    return Aggregation(
        config=config, version=version, name=name, from_ms=-FAR_MS, to_ms=FAR_MS, interval="",
        interval_ms=length, group_by=rollup.dimensions if level == "all" else (),
        measures=tuple(rollup.measures), predicate=Everything(),
    )  # fmt: skip


def build_rollup(index: MemoryIndex, config: SearchConfig, version: int, name: str) -> Rolled:
    rollup, count = config.rollups[name], len(index.numbers)
    times = index.columns[rollup.timestamp_field].values.filled
    if len(times) and not (int(times.min()) > -FAR_MS and int(times.max()) < FAR_MS):
        return {}
    rolled: Rolled = {}
    evaluator, alive = MaskEvaluator(index.columns, count), np.ones(count, np.bool_)
    most = most_groups(count)
    for length in sorted({interval_ms(interval) or 1 for interval in rollup.intervals}):
        for level in levels_of(rollup):
            groups = _derived(rolled, length, rollup.dimensions if level == "all" else ())
            if groups is None:
                ask = whole(config, version, name, length, level)
                groups = memory_index.aggregate_rows(index.sheet, index.columns, evaluator, alive, ask, most)
                groups = None if groups is None else regroup([groups], length, range(len(ask.group_by)))
            if groups is not None and len(groups) <= most:
                rolled[length, level] = groups
    return rolled


def _derived(rolled: Mapping[tuple[int, Level], Groups], length: int, dimensions: Sequence[str]) -> Groups | None:
    """Computes groups from the smallest shorter or finer groups that can produce them; None if there are none."""
    finer = [
        groups
        for (shorter, level), groups in rolled.items()
        if length % shorter == 0 and (level == "all" or not dimensions)
    ]
    return regroup([min(finer, key=len)], length, range(len(dimensions))) if finer else None


def levels_of(rollup: Rollup) -> tuple[Level, ...]:
    return ("all", "none") if rollup.dimensions else ("none",)


def write_rollups(writer: SectionWriter, name: str, rolled: Rolled) -> bool:
    """Stores the groups of a rollup, all or none. Returns whether they were stored."""
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
    """Merges the groups of several index files. Returns None if there are too many to save work."""
    merged = regroup([source.all() for source in sources], interval, range(sources[0].dimensions))
    return merged if len(merged) <= most else None


def most_groups(rows: int) -> int:
    """With more groups than this, a rollup saves nothing."""
    return max(_FEW_GROUPS, rows // _SAVING)


# Aggregations over an index file: from stored rollups where they are exact, and from columns otherwise.
#
# A bucket that the queried range cuts, and a bucket with a removed entry, is computed from columns; all others are used
# as stored. If too many entries were removed, or the query restricts more than dimensions, everything is computed from
# columns.

Step = Callable[[], Groups | None]
"""Yields partial aggregates; None if there are too many groups."""
_DEAD_SHARE: Final = 4
_NEVER: Final = (1 << 63) - 1


class Alive(Protocol):
    lo: int
    hi: int

    def mask(self, numbers: Numbers) -> Mask: ...

    def dead_rows(self) -> Numbers: ...


class Totals:
    """An aggregation over one index file."""

    def __init__(self, index_file: IndexFile, living: Alive, plan: IndexPlan, ask: Aggregation) -> None:
        self._index_file = index_file
        self._living = living
        self._ask = ask
        self._plan = plan
        self.rolled = False
        """Whether stored rollups are used."""

    def steps(self, blocks: range) -> list[Step]:
        if not self._overlaps():
            return []
        rolled = self._rolled()
        if rolled is None:
            return [self._column_step(block, None) for block in self._timed(blocks, None)]
        dirty = self._dirty()
        self.rolled = True
        return [
            lambda: self._from_rollup(rolled, dirty),
            *(self._column_step(block, dirty) for block in self._timed(blocks, dirty)),
        ]

    def _overlaps(self) -> bool:
        """Returns whether an entry may be in the requested time range, by the head of the index file."""
        ask = self._ask
        times = self._index_file.head.fields.get(ask.rollup.timestamp_field)
        if times is None or not isinstance(times.low, int) or not isinstance(times.high, int):
            # If no row has a value, the minimum is undefined.
            return times is None or bool(times.values)
        return times.low < ask.to_ms and times.high >= ask.from_ms

    # From stored rollups

    def _rolled(self) -> StoredRollup | None:
        ask, head = self._ask, self._index_file.head
        known = head.plan.rollups.get(ask.name) if ask.given is None else None
        if known is None or known != self._plan.rollups.get(ask.name):
            return None
        fixed = self._fixed()
        if fixed is None or not -FAR_MS < ask.from_ms < ask.to_ms < FAR_MS:
            return None
        gone = head.rows - (self._living.hi - self._living.lo) + len(self._living.dead_rows())
        if gone * _DEAD_SHARE > head.rows:
            return None
        level = "all" if ask.group_by or fixed else "none"
        return read_rollup(self._index_file.file, ask.name, ask.interval_ms, level)

    def _fixed(self) -> dict[str, str] | None:
        """Returns the values to which a query restricts dimensions; None if it restricts anything else."""
        found: dict[str, str] = {}
        return found if self._fix(self._ask.predicate, found) else None

    def _fix(self, predicate: Predicate, found: dict[str, str]) -> bool:
        if isinstance(predicate, Everything):
            return True
        if isinstance(predicate, All):
            return all([self._fix(part, found) for part in predicate.parts])
        ask = self._ask
        if not isinstance(predicate, Equals) or predicate.field not in ask.rollup.dimensions:
            return False
        if ask.config.fields[predicate.field].kind != "keyword":
            return False
        return found.setdefault(predicate.field, str(predicate.value)) == predicate.value

    def _dirty(self) -> Numbers:
        """Returns the buckets that cannot be used as stored, ascending."""
        ask, living = self._ask, self._living
        interval = ask.interval_ms
        cut = [edge // interval * interval for edge in (ask.from_ms, ask.to_ms) if edge % interval]
        head = self._index_file.head
        gone = np.concatenate((np.arange(living.lo), living.dead_rows(), np.arange(living.hi, head.rows)))
        times = np.zeros(0, np.int64)
        if len(gone):
            rows = Rows(self._index_file, 0, head.rows, gone)
            times = rows[ask.rollup.timestamp_field].snapshot(len(gone)).values
        return np.unique(np.concatenate((np.array(cut, np.int64), times // interval * interval)))

    def _from_rollup(self, rolled: StoredRollup, dirty: Numbers) -> Groups | None:
        ask = self._ask
        rollup, interval = ask.rollup, ask.interval_ms
        lo, hi = rolled.between(-(-ask.from_ms // interval) * interval, ask.to_ms // interval * interval)
        starts = rolled.starts[lo:hi]
        clean = np.flatnonzero(~np.isin(starts, dirty)) + lo
        fixed = [(rollup.dimensions.index(name), value) for name, value in (self._fixed() or {}).items()]
        grouped = [rollup.dimensions.index(name) for name in ask.group_by]
        chosen = [place for place, name in enumerate(rollup.measures) if name in ask.measures]
        found = rolled.at(clean, chosen, fixed)
        groups = found if grouped == list(range(rolled.dimensions)) else regroup([found], interval, grouped)
        return groups if len(groups) <= predicates.MAX_GROUPS else None

    # From columns

    def _timed(self, among: range, dirty: Numbers | None) -> list[int]:
        """Returns the blocks with entries of the requested time range and of the buckets to recompute."""
        ask = self._ask
        blocks = self._index_file.blocks(ask.rollup.timestamp_field)
        assert blocks is not None
        here = slice(among.start, among.stop)
        lows, highs = np.maximum(blocks.lows[here], ask.from_ms), np.minimum(blocks.highs[here], ask.to_ms - 1)
        has_any = (blocks.counts[here] > 0) & (lows <= highs)
        if dirty is not None:
            # The first such bucket that is not before a block's, if there is one, begins before the block ends.
            bounded = np.append(dirty, _NEVER)
            has_any &= bounded[np.searchsorted(dirty, lows // ask.interval_ms * ask.interval_ms)] <= highs
        return [among.start + place for place in np.flatnonzero(has_any).tolist()]

    def _column_step(self, block: int, dirty: Numbers | None) -> Step:
        def step() -> Groups | None:
            bounds, living = self._index_file.bounds, self._living
            lo, hi = max(int(bounds[block]), living.lo), min(int(bounds[block + 1]), living.hi)
            rows = Rows(self._index_file, lo, max(hi, lo))
            alive = living.mask(rows.numbers)
            if dirty is not None:
                times = rows[self._ask.rollup.timestamp_field].snapshot(rows.count).single()[0]
                alive &= np.isin(times // self._ask.interval_ms * self._ask.interval_ms, dirty)
            return aggregate_rows(rows, rows, MaskEvaluator(rows, rows.count), alive, self._ask, predicates.MAX_GROUPS)

        return step
