"""Query over one index file, as one part of a plan, and the result cache of such queries.

It is searched block by block in sort order, and the search stops when no block can have a better hit. A selective
clause is evaluated on its rows only. Predicates are evaluated by the same code as for the memory index.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from topics.model.seq_ranges import SeqRange
from topics.search.file_index.file_format import IndexPlan
from topics.search.file_index.reader import IndexFile, Rows
from topics.search.file_index.rollups import Totals
from topics.search.file_index.top_k import RepeatedRows, SortedScan, TopK
from topics.search.file_index.zone_maps import RowSelection
from topics.search.memory_index.row_selection import Late, MaskEvaluator, Matches, Scorer, count_rows, first_hits
from topics.search.query.aggregate import Aggregation, Table
from topics.search.query.field_values import Mask, Numbers
from topics.search.query.plan import Ask, Budget, Count, Counted, Found, KeysFound, Span, Totalled
from topics.search.query.predicates import Predicate, has_scores
from topics.search.query.score import Statistics
from topics.search.query.sort import Place, Sort

# Result cache: results of searches in index files.
#
# An index file never changes, so the result of a search depends only on the query and the range of rows. Unindexed and
# removed entries are excluded: the caller scans unindexed entries each time, and does not use this cache for a file
# with removed rows. So a cached result never becomes stale.

BYTES_MAX: Final = 10_000_000
"""Size of the cache. All entries are dropped when it is exceeded: frequent searches are soon cached again."""
_HIT_BYTES: Final = 200
_KEY_BYTES: Final = 4000
"""The maximum length of a query in the cache key. Callers reject longer ones."""

Key = tuple[Predicate, Sort, int, Place | None, Place | None, bool, int, int]


def key_of(ask: Ask, lo: int, hi: int) -> Key | None:
    """Returns the cache key of a search over the rows from `lo` to before `hi`.

    None for a search that ranks by the statistics of all parts.
    """
    if ask.weights is not None:
        return None
    return ask.predicate, ask.sort, ask.size, ask.after, ask.until, ask.count_all, lo, hi


def _size_of(key: Key, found: Found) -> int:
    _, sort, _, after, until, *_ = key
    places = [after or (), until or ()]
    if sort.fields:
        places += [hit.place for hit in found.hits]
    texts = sum([len(value) for place in places for value in place if type(value) is str])
    # UTF-8 needs up to four bytes a character.
    return _KEY_BYTES + _HIT_BYTES * len(found.hits) + 4 * texts


class ResultCache:
    """Results by index file, kept while the file is open."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._found: WeakKeyDictionary[IndexFile, dict[Key, Found]] = WeakKeyDictionary()
        self._bytes = 0
        """Includes the results of files that were closed since."""

    def get(self, index_file: IndexFile, key: Key) -> Found | None:
        known = self._found.get(index_file)
        return None if known is None else known.get(key)

    def put(self, index_file: IndexFile, key: Key, found: Found) -> None:
        """Results must not be changed from here on."""
        size = _size_of(key, found)
        if self._bytes + size > self._bytes_max:
            self._found.clear()
            self._bytes = 0
        if size > self._bytes_max:
            return
        self._bytes += size
        self._found.setdefault(index_file, {})[key] = found


_KEYS_BETWEEN_LOOKS: Final = 256
_NONE_REMOVED: Final = np.zeros((0, 2), np.int64)


class LiveRows:
    """The rows of an index file that are in the queried range and not removed."""

    def __init__(self, index_file: IndexFile, span: Span, removed: Sequence[SeqRange]) -> None:
        self._index_file = index_file
        self.lo, self.hi = index_file.row_range(span.first, span.last)
        self._span = span
        here = sorted((first, last) for first, last in removed if last >= span.first and first <= span.last)
        bounds = np.array(here, np.int64).reshape(-1, 2) if here else _NONE_REMOVED
        self._firsts, self._lasts = bounds[:, 0], bounds[:, 1]

    def mask(self, numbers: Numbers) -> Mask:
        mask: Mask = (numbers >= self._span.first) & (numbers <= self._span.last)
        if len(self._firsts):
            at = np.searchsorted(self._firsts, numbers, "right") - 1
            mask &= ~((at >= 0) & (numbers <= self._lasts[at]))
        return mask

    @property
    def has_dead(self) -> bool:
        """Whether rows between the first and the last one may be removed."""
        return len(self._firsts) > 0

    @property
    def is_whole(self) -> bool:
        """Whether no row of the file is excluded."""
        return self.lo == 0 and self.hi == self._index_file.head.rows and not len(self.dead_rows())

    def dead_rows(self) -> Numbers:
        """The removed rows between the first and the last one."""
        ranges = [
            self._index_file.row_range(first, last) for first, last in zip(self._firsts, self._lasts, strict=True)
        ]
        found = [np.arange(lo, hi) for lo, hi in ranges if lo < hi]
        return np.concatenate(found) if found else np.zeros(0, np.int64)


class IndexFilePart:
    def __init__(
        self,
        index_file: IndexFile,
        span: Span,
        plan: IndexPlan,
        removed: Sequence[SeqRange] = (),
        result_cache: ResultCache | None = None,
    ) -> None:
        """`plan` is the stream's current plan. Earlier results are looked up in `result_cache`."""
        self._index_file = index_file
        self._plan = plan
        self._result_cache = result_cache
        self.span = span
        self._living = LiveRows(index_file, span, removed)

    def search(self, ask: Ask, budget: Budget) -> Found:
        if TopK(self._index_file, ask).is_hopeless():
            return Found(hits=[], candidates=0)
        living, result_cache = self._living, self._result_cache
        key = None if result_cache is None or living.has_dead else key_of(ask, living.lo, living.hi)
        if result_cache is None or key is None:
            return self._search(ask, budget)
        found = result_cache.get(self._index_file, key)
        if found is None:
            found = self._search(ask, budget)
            if budget.spent is None:
                result_cache.put(self._index_file, key, found)
        return found

    def _search(self, ask: Ask, budget: Budget) -> Found:
        living = self._living
        choice = RowSelection(self._index_file, ask, living.lo, living.hi, budget)
        if choice.is_small:
            return self._look_at_all(ask, choice.at_once, budget)
        walk = SortedScan(self._index_file, ask, living.lo, living.hi)
        if walk.is_possible():
            found = self._look_at_all(ask, walk.chunks, budget)
            if not walk.gave_up:
                return found
        repeats = RepeatedRows(self._index_file, ask, living.lo, living.hi) if RepeatedRows.are_useful(ask) else None
        return self._look_at_all(ask, choice.by_blocks, budget, repeats)

    def _look_at_all(
        self, ask: Ask, chunks: Callable[[TopK], Iterator[Rows]], budget: Budget, repeats: RepeatedRows | None = None
    ) -> Found:
        ranking = TopK(self._index_file, ask)
        found = Found(hits=[], candidates=0)
        try:
            if repeats is not None:
                for rows in repeats.chunks(ranking):
                    self._look(ask, rows, found, budget)
                    ranking.cut(found.hits)
                # Blocks are evaluated with all their rows.
                ranking.leave_repeats()
                found.looked_at = 0
            for rows in chunks(ranking):
                self._look(ask, rows, found, budget, repeats)
                ranking.cut(found.hits)
        except Late:
            self._miss(found)
        return found

    def _look(self, ask: Ask, rows: Rows, found: Found, budget: Budget, without: RepeatedRows | None = None) -> None:
        """Raises `Late`; the result then contains none of these rows."""
        evaluator = MaskEvaluator(rows, rows.count, budget)
        matching = np.flatnonzero(evaluator.mask(ask.predicate))
        if without is not None:
            matching = matching[~without.have(rows.rows_at(matching))]
        if self._living.has_dead:
            matching = matching[self._living.mask(rows.numbers_at(matching))]
        has_any = len(matching) and has_scores(ask.predicate)
        scorer = Scorer(rows, rows.count, evaluator, ask.weights, matching)
        scores = scorer.scores(ask.predicate) if has_any else None
        found.matched += len(matching)
        found.candidates = (found.candidates or 0) + rows.count
        found.looked_at += rows.count
        if len(matching):
            found.hits += first_hits(ask, rows, rows.count, Matches(matching, rows.numbers_at, scores))

    def _blocks(self) -> range:
        """Returns the blocks with rows of the range."""
        size, living = self._index_file.head.block_rows, self._living
        return range(living.lo // size, -(-living.hi // size)) if living.lo < living.hi else range(0)

    def count(self, ask: Count, budget: Budget) -> Counted:
        statistics, found, living = Statistics(ask.terms), Counted(numbers=[]), self._living
        bounds = self._index_file.bounds
        for block in self._blocks():
            lo, hi = max(int(bounds[block]), living.lo), min(int(bounds[block + 1]), living.hi)
            rows = Rows(self._index_file, lo, hi)
            try:
                statistics.add(
                    count_rows(rows, MaskEvaluator(rows, rows.count, budget), living.mask(rows.numbers), ask)
                )
            except Late:
                self._miss(found)
                break
            found.looked_at += rows.count
        found.numbers = statistics.numbers
        return found

    def _miss(self, found: Found | Totalled | Counted) -> None:
        found.missed = max(self.span.rows - found.looked_at, 0)
        found.first_missed = self.span.first

    def aggregate(self, ask: Aggregation, budget: Budget) -> Totalled:
        totals = Totals(self._index_file, self._living, self._plan, ask)
        totalled, table = Totalled(), Table()
        for step in totals.steps(self._blocks()):
            if budget.is_late():
                self._miss(totalled)
                break
            groups = step()
            if groups is None or not table.add(groups):
                budget.out_of_memory()
                return Totalled(missed=self.span.rows, first_missed=self.span.first)
        else:
            totalled.looked_at = self._living.hi - self._living.lo
            totalled.rolled = totals.rolled
        totalled.groups = table.groups()
        return totalled

    def keys(self, after: str | None, limit: int, budget: Budget) -> KeysFound:
        column, living = self._index_file.key, self._living
        found = KeysFound(keys=[], looked_at=living.hi - living.lo)
        code = 0 if after is None else column.texts.place(after)
        if after is not None and code < len(column.texts) and column.texts[code] == after:
            code += 1
        whole, seen = living.is_whole, 0
        while code < len(column.texts) and len(found.keys) < limit:
            seen += 1
            if seen % _KEYS_BETWEEN_LOOKS == 0 and budget.is_late():
                found.missed = self.span.rows
                break
            if whole or self._is_alive(column.rows_at(column.places_of(code, code + 1))):
                found.keys.append(column.texts[code])
            code += 1
        return found

    def _is_alive(self, rows: Any) -> bool:
        return bool(self._living.mask(Rows(self._index_file, 0, 0, np.asarray(rows, np.int64)).numbers).any())
