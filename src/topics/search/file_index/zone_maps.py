"""Zone maps: blocks that cannot match are skipped by their minimum and maximum values and by posting lists.

It only ever leaves out what does not match, so that it changes what a query costs and not what it finds.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from topics.search.file_index.postings import Lookup, Postings
from topics.search.file_index.reader import IndexFile, Rows
from topics.search.file_index.top_k import TopK
from topics.search.memory_index.filter_masks import Late
from topics.search.query.columns import Numbers, Pieces
from topics.search.query.plan import Ask, Budget
from topics.search.query.predicates import All, Any_, Best, Equals, Nothing, Predicate, Within

Chance = Callable[[int], bool]
"""Whether anything in a block may match."""


def chance_of(lookup: Lookup, predicate: Predicate) -> Chance:
    """A function that tells whether a block may have matches."""
    if isinstance(predicate, Nothing):
        return _never
    if isinstance(predicate, All | Any_ | Best):
        chances = [chance_of(lookup, part) for part in predicate.parts]
        return _joined(chances, all if isinstance(predicate, All) else any)
    postings = lookup.of(predicate)
    if postings is not None:
        return _text_chance(lookup.index_file, postings)
    if isinstance(predicate, Equals | Within):
        return _value_chance(lookup.index_file, predicate)
    return _always


def _never(_: int) -> bool:
    return False


def _always(_: int) -> bool:
    return True


def _joined(chances: Sequence[Chance], join: Callable[[Any], bool]) -> Chance:
    wanted = [chance for chance in chances if chance is not _always] if join is all else list(chances)
    if not wanted:
        return _always
    return wanted[0] if len(wanted) == 1 else lambda block: join(chance(block) for chance in wanted)


def _text_chance(index_file: IndexFile, postings: Postings) -> Chance:
    bounds = index_file.bounds
    return lambda block: postings.most(int(bounds[block]), int(bounds[block + 1])) > 0


def _value_chance(index_file: IndexFile, predicate: Equals | Within) -> Chance:
    blocks = index_file.blocks(predicate.field)
    if blocks is None:
        return _always
    lows, highs, counts = blocks.lows, blocks.highs, blocks.counts
    if index_file.column(predicate.field).is_text:
        return _always
    low: Any = predicate.value if isinstance(predicate, Equals) else predicate.low
    high: Any = predicate.value if isinstance(predicate, Equals) else predicate.high
    possible = counts > 0
    if low is not None:
        possible = possible & (highs >= low)
    if high is not None:
        possible = possible & (lows <= high)
    return lambda block: bool(possible[block])


# The rows of an index file that a search looks at, those with the first hits first. What they leave out matches
# nothing.
#
# Where few rows of a block can match, only these are picked. Those of several blocks are looked at together, in steps
# that grow, because a step has its cost however few rows it has.

AT_ONCE: Final = 512
"""So few rows are not worth being taken apart."""
_MOST_PICKED: Final = 1 << 14
_FEW_OF: Final = 8
"""Where no more than one row in so many can match, these are picked out and no others judged."""


class RowSelection:
    """The rows from `lo` up to `hi` that can match what is asked, as far as postings tell."""

    def __init__(self, index_file: IndexFile, ask: Ask, lo: int, hi: int, budget: Budget) -> None:
        self._index_file = index_file
        self._ask = ask
        self._lookup = Lookup(index_file)
        self._postings = self._lookup.of(ask.predicate)
        self._lo = lo
        self._hi = hi
        self._budget = budget
        key = ask.sort.by_offset
        self._pieces = None if key is None or ask.count_all else Pieces(key.ascending)

    @property
    def is_small(self) -> bool:
        return self._postings is not None and self._postings.most(self._lo, self._hi) <= AT_ONCE

    def at_once(self, _: TopK) -> Iterator[Rows]:
        assert self._postings is not None
        yield from self._picked([self._postings.rows(self._lo, self._hi)])

    def by_blocks(self, ranking: TopK) -> Iterator[Rows]:
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

    def _in_pieces(self, lo: int, hi: int, ranking: TopK) -> Iterator[Rows]:
        """The rows of a block. Where they are wanted by their offsets, the first of them may have all hits."""
        key, index_file = self._ask.sort.by_offset, self._index_file
        if key is None or self._pieces is None:
            yield Rows(index_file, lo, hi)
            return
        for begin, end in self._pieces.of(lo, hi):
            first = np.array([begin if key.ascending else end - 1], np.int64)
            if ranking.is_behind(index_file.numbers_at(first).tolist()):
                return
            yield Rows(index_file, begin, end)

    def _blocks(self) -> range:
        size = self._index_file.head.block_rows
        return range(self._lo // size, -(-self._hi // size)) if self._lo < self._hi else range(0)

    def _bounds(self, block: int) -> tuple[int, int]:
        bounds = self._index_file.bounds
        return max(int(bounds[block]), self._lo), min(int(bounds[block + 1]), self._hi)

    def _picked(self, pending: Sequence[Numbers]) -> Iterator[Rows]:
        rows = np.sort(np.concatenate(pending)) if pending else np.zeros(0, np.int64)
        if len(rows):
            yield Rows(self._index_file, 0, self._index_file.head.rows, rows)
