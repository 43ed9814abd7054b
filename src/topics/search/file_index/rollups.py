"""Rollups: aggregates that are computed when an index file is built, by all their dimensions and by none, at each
interval.

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

# Rollups in an index file: groups as arrays, which are taken as they are. `files` reports what the sections are.

Sections = list[tuple[str, Array]]


def pack_groups(groups: Groups) -> Sections:
    """The sections of groups that are in order. Raises NotStorableError."""
    sections: Sections = [("starts", groups.starts)]
    for place, (codes, names) in enumerate(groups.dimensions):
        # Names in order have null at their end, if at all.
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
        """How many there are of something, each of which has one of some sections."""
        count = 0
        while any(f"{self._prefix}/{what}/{count}/{name}" in self._file for name in names):
            count += 1
        return count

    def between(self, first_ms: int, end_ms: int) -> tuple[int, int]:
        """The groups whose buckets begin from `first_ms` on and before `end_ms`."""
        lo, hi = np.searchsorted(self.starts, (first_ms, end_ms))
        return int(lo), int(hi)

    def all(self) -> Groups:
        return self.at(np.arange(len(self.starts)), range(self._measures))

    def at(self, places: Numbers, measures: Sequence[int], fixed: Sequence[tuple[int, str]] = ()) -> Groups:
        """The groups at some places, as far as their dimensions are those that are fixed, with some measures."""
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
        """That of some groups, with the names that they have."""
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
"""Times beyond are invalid; an index file that has any gets no rollups."""
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
    """The groups of several index files as those of one; None where there are too many to save anything."""
    merged = regroup([source.all() for source in sources], interval, range(sources[0].dimensions))
    return merged if len(merged) <= most else None


def most_groups(rows: int) -> int:
    """Beyond so many groups, to add them up ahead saves nothing."""
    return max(_FEW_GROUPS, rows // _SAVING)


# Aggregations over an index file: out of what was added up ahead where that is exact, and out of its columns elsewhere.
#
# A bucket that the asked range cuts, and a bucket with an entry that was removed since, is added up anew; all the
# others are taken as they are. Where too much was removed, or a query restricts more than dimensions, everything is
# added up.

Step = Callable[[], Groups | None]
"""Gives some of the sums; None when there are too many groups."""
_DEAD_SHARE: Final = 4
_NEVER: Final = (1 << 63) - 1


class Alive(Protocol):
    lo: int
    hi: int

    def mask(self, numbers: Numbers) -> Mask: ...

    def dead_rows(self) -> Numbers: ...


class Totals:
    """One aggregation over one index file."""

    def __init__(self, index_file: IndexFile, living: Alive, plan: IndexPlan, ask: Aggregation) -> None:
        self._index_file = index_file
        self._living = living
        self._ask = ask
        self._plan = plan
        self.rolled = False
        """Whether anything that was added up ahead is made use of."""

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
        """Whether any entry may be within the requested time, by the head of the index file."""
        ask = self._ask
        times = self._index_file.head.fields.get(ask.rollup.timestamp_field)
        if times is None or not isinstance(times.low, int) or not isinstance(times.high, int):
            # Without a value in any row there is no least one either.
            return times is None or bool(times.values)
        return times.low < ask.to_ms and times.high >= ask.from_ms

    # Out of what was added up ahead

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
        """The values that a query wants of dimensions; None where it wants anything else."""
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
        """The buckets that cannot be taken as they are, ascending."""
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

    # Out of the columns

    def _timed(self, among: range, dirty: Numbers | None) -> list[int]:
        """The blocks with entries of the asked time, and of the buckets that are added up anew."""
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
