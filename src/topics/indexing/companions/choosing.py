"""The rows of a companion that a search looks at, those with the first hits first. What they leave out matches nothing.

Where few rows of a block can match, only these are picked. Those of several blocks are looked at together, in steps
that grow, because a step has its cost however few rows it has.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from topics.indexing.columns import Numbers
from topics.indexing.companions.mapped import Companion, Rows
from topics.indexing.companions.postings import Lookup
from topics.indexing.companions.pruning import chance_of
from topics.indexing.companions.topping import Ranking
from topics.indexing.fresh.masks import Late
from topics.indexing.parts import Ask, Budget
from topics.indexing.pieces import Pieces

AT_ONCE: Final = 512
"""So few rows are not worth being taken apart."""
_MOST_PICKED: Final = 1 << 14
_FEW_OF: Final = 8
"""Where no more than one row in so many can match, these are picked out and no others judged."""


class Choice:
    """The rows from `lo` up to `hi` that can match what is asked, as far as postings tell."""

    def __init__(self, companion: Companion, ask: Ask, lo: int, hi: int, budget: Budget) -> None:
        self._companion = companion
        self._ask = ask
        self._lookup = Lookup(companion)
        self._postings = self._lookup.of(ask.predicate)
        self._lo = lo
        self._hi = hi
        self._budget = budget
        key = ask.sort.by_offset
        self._pieces = None if key is None or ask.count_all else Pieces(key.ascending)

    @property
    def is_small(self) -> bool:
        return self._postings is not None and self._postings.most(self._lo, self._hi) <= AT_ONCE

    def at_once(self, _: Ranking) -> Iterator[Rows]:
        assert self._postings is not None
        yield from self._picked([self._postings.rows(self._lo, self._hi)])

    def by_blocks(self, ranking: Ranking) -> Iterator[Rows]:
        """Raises `Late`: there may be many blocks without anything to look at."""
        postings = self._postings
        chance = chance_of(self._lookup, self._ask.predicate)
        pending: list[Numbers] = []
        # The first step has as many rows as hits are wanted: there may be no need for more.
        waiting, step = 0, min(self._ask.size, AT_ONCE)
        for block in ranking.order(self._blocks()):
            if self._budget.is_late():
                raise Late
            if ranking.is_done(block) or not chance(block):
                continue
            lo, hi = self._bounds(block)
            few = postings is not None and postings.most(lo, hi) * _FEW_OF <= hi - lo
            if few and postings is not None:
                pending.append(postings.rows(lo, hi))
                waiting += len(pending[-1])
            if not few or waiting >= step:
                yield from self._picked(pending)
                pending, waiting, step = [], 0, min(2 * step, _MOST_PICKED)
            if not few and not ranking.is_done(block):
                yield from self._in_pieces(lo, hi, ranking)
        yield from self._picked(pending)

    def _in_pieces(self, lo: int, hi: int, ranking: Ranking) -> Iterator[Rows]:
        """The rows of a block. Where they are wanted by their offsets, the first of them may have all hits."""
        key, companion = self._ask.sort.by_offset, self._companion
        if key is None or self._pieces is None:
            yield Rows(companion, lo, hi)
            return
        for begin, end in self._pieces.of(lo, hi):
            first = np.array([begin if key.ascending else end - 1], np.int64)
            if ranking.is_behind(companion.numbers_at(first).tolist()):
                return
            yield Rows(companion, begin, end)

    def _blocks(self) -> range:
        size = self._companion.head.block_rows
        return range(self._lo // size, -(-self._hi // size)) if self._lo < self._hi else range(0)

    def _bounds(self, block: int) -> tuple[int, int]:
        bounds = self._companion.bounds
        return max(int(bounds[block]), self._lo), min(int(bounds[block + 1]), self._hi)

    def _picked(self, pending: Sequence[Numbers]) -> Iterator[Rows]:
        rows = np.sort(np.concatenate(pending)) if pending else np.zeros(0, np.int64)
        if len(rows):
            yield Rows(self._companion, 0, self._companion.head.rows, rows)
