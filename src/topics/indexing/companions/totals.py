"""Aggregations over a companion: out of what was added up ahead where that is exact, and out of its columns elsewhere.

A bucket that the asked range cuts, and a bucket with an entry that was removed since, is added up anew; all the others
are taken as they are. Where too much was removed, or a query restricts more than dimensions, everything is added up.
"""

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from topics.indexing import limits
from topics.indexing.aggregation import Aggregation
from topics.indexing.columns import Mask, Numbers
from topics.indexing.companions.identity import Plan
from topics.indexing.companions.mapped import Companion, Rows
from topics.indexing.companions.rolling import FAR_MS, read_rollup
from topics.indexing.companions.stored_groups import StoredRollup
from topics.indexing.fresh.masks import Judge
from topics.indexing.fresh.sums import add_up
from topics.indexing.groups import Groups, regroup
from topics.indexing.predicates import All, Equals, Everything, Predicate

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
    """One aggregation over one companion."""

    def __init__(self, companion: Companion, living: Alive, plan: Plan, ask: Aggregation) -> None:
        self._companion = companion
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
        """Whether any entry may be of the asked time, as the head of the companion says."""
        ask = self._ask
        times = self._companion.head.fields.get(ask.rollup.timestamp_field)
        if times is None or not isinstance(times.low, int) or not isinstance(times.high, int):
            # Without a value in any row there is no least one either.
            return times is None or bool(times.values)
        return times.low < ask.to_ms and times.high >= ask.from_ms

    # Out of what was added up ahead

    def _rolled(self) -> StoredRollup | None:
        ask, head = self._ask, self._companion.head
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
        return read_rollup(self._companion.file, ask.name, ask.interval_ms, level)

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
        head = self._companion.head
        gone = np.concatenate((np.arange(living.lo), living.dead_rows(), np.arange(living.hi, head.rows)))
        times = np.zeros(0, np.int64)
        if len(gone):
            rows = Rows(self._companion, 0, head.rows, gone)
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
        return groups if len(groups) <= limits.MAX_GROUPS else None

    # Out of the columns

    def _timed(self, among: range, dirty: Numbers | None) -> list[int]:
        """The blocks with entries of the asked time, and of the buckets that are added up anew."""
        ask = self._ask
        blocks = self._companion.blocks(ask.rollup.timestamp_field)
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
            bounds, living = self._companion.bounds, self._living
            lo, hi = max(int(bounds[block]), living.lo), min(int(bounds[block + 1]), living.hi)
            rows = Rows(self._companion, lo, max(hi, lo))
            alive = living.mask(rows.numbers)
            if dirty is not None:
                times = rows[self._ask.rollup.timestamp_field].snapshot(rows.count).single()[0]
                alive &= np.isin(times // self._ask.interval_ms * self._ask.interval_ms, dirty)
            return add_up(rows, rows, Judge(rows, rows.count), alive, self._ask, limits.MAX_GROUPS)

        return step
