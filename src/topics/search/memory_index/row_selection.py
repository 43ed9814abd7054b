"""Filter masks: evaluates predicates over columns to a mask of the matching rows, and scores rows.

Row order: a partial sort of rows by the keys of a query, as far as its first hits need it.

Each key is one or two levels: whether it is null, and its value. A later level is only evaluated for rows that are
equal by the earlier ones. Most levels are numbers in ascending order. Texts are compared by rank if the ranks are
known. The ranks of a large dictionary are not, because sorting a million texts would block other queries; the
dictionary then returns the first texts itself.
"""

from collections.abc import Callable, Mapping
from functools import cached_property, partial, reduce
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from topics.search.query.field_values import (
    GAP,
    Column,
    Floats,
    Mask,
    Numbers,
    Repeats,
    TextColumn,
    Texts,
    WordsColumn,
    repeats_in,
)
from topics.search.query.plan import Ask, Budget, Count
from topics.search.query.predicates import (
    PHRASE_BONUS,
    All,
    Any_,
    Best,
    Contains,
    Equals,
    Everything,
    Exists,
    HasPhrase,
    HasWords,
    Negated,
    Nothing,
    Predicate,
    StartsWith,
    Within,
)
from topics.search.query.score import Statistics, Term, Weights, counts_words, saturated
from topics.search.query.sort import OFFSET, SCORE, Hit, Key, Place, Sort


class Late(Exception):
    """The time slice of a query ended between two of its clauses."""


class MaskEvaluator:
    """Evaluates predicates on the first `count` rows.

    It caches the masks of one query, because scoring uses them again.
    """

    def __init__(self, columns: Mapping[str, Column], count: int, budget: Budget | None = None) -> None:
        """Raises `Late` when the budget is spent: a query may have hundreds of clauses, each with a pass over the
        rows."""
        self._columns = columns
        self._count = count
        self._budget = budget
        self._known: dict[Predicate, Mask] = {}
        self._places: dict[tuple[str, int], NDArray[Any]] = {}

    def mask(self, predicate: Predicate) -> Mask:
        # Keyed by content: a query may repeat a condition hundreds of times.
        known = self._known.get(predicate)
        if known is None:
            known = self._known[predicate] = self.look(predicate)
        return known

    def look(self, predicate: Predicate) -> Mask:
        """Returns a mask that is used once. Raises `Late`."""
        self.check_time()
        return self._evaluate(predicate)

    def check_time(self) -> None:
        """Raises `Late`."""
        if self._budget is not None and self._budget.is_late():
            raise Late

    def _evaluate(self, predicate: Predicate) -> Mask:
        if isinstance(predicate, Everything | Nothing):
            return np.full(self._count, isinstance(predicate, Everything))
        if isinstance(predicate, Negated):
            return ~self.mask(predicate.part)
        if isinstance(predicate, All | Any_ | Best):
            join: Any = np.logical_and if isinstance(predicate, All) else np.logical_or
            joined = self.mask(predicate.parts[0])
            for part in predicate.parts[1:]:
                joined = join(joined, self.mask(part))
            return joined
        column = self._columns[predicate.field]  # type: ignore[attr-defined]
        if isinstance(predicate, Exists):
            return column.has_field(self._count)
        if isinstance(predicate, HasWords | HasPhrase):
            return self._words(predicate)
        values = column.snapshot(self._count)
        return values.rows_where(_choose(column, predicate)(values.values))

    def words_column(self, name: str) -> WordsColumn:
        column = self._columns[name]
        assert isinstance(column, WordsColumn)
        return column

    def _words(self, predicate: HasWords | HasPhrase) -> Mask:
        column = self.words_column(predicate.field)
        codes = codes_of(column, predicate)
        mask: Mask = np.zeros(self._count, np.bool_)
        if codes is None:
            return mask
        if isinstance(predicate, HasPhrase):
            return column.snapshot(self._count).rows_at(self.phrase_places(predicate, codes))
        if column.has_several and len(predicate.words) > 1:
            texts = TextsOfRows(self, predicate.field, self._count)
            mask[texts.rows[texts.counts(predicate, codes) > 0]] = True
            return mask
        found = [self.rows_of(predicate.field, code) for code in dict.fromkeys(codes)]
        if predicate.prefix:
            found.append(self.rows_beginning(predicate.field, predicate.words[-1]))
        mask[found[0]] = True
        for rows in found[1:]:
            more = np.zeros(self._count, np.bool_)
            more[rows] = True
            mask &= more
        return mask

    def places_of(self, field: str, code: int) -> NDArray[Any]:
        """Returns the positions of a word, ascending. Cached, because scoring needs them again."""
        known = self._places.get((field, code))
        if known is None:
            known = self._places[field, code] = self.words_column(field).places(code)
        return known

    def rows_of(self, field: str, code: int) -> NDArray[Any]:
        """Returns the row of each position of a word, ascending."""
        return self.words_column(field).snapshot(self._count).rows_of(self.places_of(field, code))

    def rows_beginning(self, field: str, prefix: str) -> NDArray[Any]:
        """Returns the row of each position of the words with this prefix, ascending."""
        column = self.words_column(field)
        return np.sort(column.snapshot(self._count).rows_of(column.beginning(prefix)))

    def phrase_places(self, phrase: HasPhrase, codes: list[int]) -> Any:
        """Returns the start positions of a phrase. `codes` are the codes of its complete words."""
        column = self.words_column(phrase.field)
        if not codes:
            return column.beginning(phrase.words[-1])
        words = column.snapshot(self._count).values
        begins = _row_of_words(words, codes, [self.places_of(phrase.field, code) for code in codes])
        if phrase.prefix:
            begins = begins[begins < len(words) - len(codes)]
            begins = begins[column.dictionary.begin_with(phrase.words[-1], words[begins + len(codes)])]
        return begins


def codes_of(column: WordsColumn, predicate: HasWords | HasPhrase) -> list[int] | None:
    """Returns the codes of the complete words of a clause; None if a word occurs in no text."""
    whole = predicate.words[:-1] if predicate.prefix else predicate.words
    codes = [code for word in whole if (code := column.dictionary.code(word)) is not None]
    return codes if len(codes) == len(whole) else None


class TextsOfRows:
    """The texts of all rows; a row may have several."""

    def __init__(self, evaluator: MaskEvaluator, field: str, count: int) -> None:
        column = evaluator.words_column(field)
        words, gap = column.snapshot(count), column.dictionary.code(GAP)
        self._evaluator = evaluator
        self._field = field
        self._count = count
        self._ends = np.flatnonzero(words.values == gap) if gap is not None else np.zeros(0, np.int64)
        self.rows = words.rows_of(self._ends)
        """The row of each text."""

    def counts(self, predicate: HasWords | HasPhrase, codes: list[int]) -> Numbers:
        """Returns the number of words of each text that match a clause; 0 for a text that does not match."""
        evaluator, texts = self._evaluator, len(self._ends)
        found = [self._in_texts(evaluator.places_of(self._field, code)) for code in codes]
        if predicate.prefix:
            found.append(self._in_texts(evaluator.words_column(self._field).beginning(predicate.words[-1])))
        total = reduce(np.add, found, np.zeros(texts, np.int64))
        if isinstance(predicate, HasPhrase):
            matches = self._in_texts(evaluator.phrase_places(predicate, codes)) > 0
        else:
            matches = reduce(np.logical_and, [one > 0 for one in found], np.ones(texts, np.bool_))
        return np.where(matches, total, 0)

    def best_of_rows(self, values: Numbers) -> Numbers:
        """Returns the maximum of each row's texts."""
        best = np.zeros(self._count, np.int64)
        if len(values):
            first = np.flatnonzero(np.append(True, self.rows[1:] != self.rows[:-1]))
            best[self.rows[first]] = np.maximum.reduceat(values, first)
        return best

    def _in_texts(self, places: NDArray[Any]) -> Numbers:
        """Returns the number of the given positions in each text."""
        return np.bincount(np.searchsorted(self._ends, places), minlength=len(self._ends))


def _row_of_words(words: Any, codes: list[int], places: list[NDArray[Any]]) -> Any:
    """Returns the positions of consecutive words. Candidates are the positions of the rarest word."""
    rarest = min(range(len(codes)), key=lambda shift: len(places[shift]))
    begins = places[rarest] - rarest
    begins = begins[(begins >= 0) & (begins <= len(words) - len(codes))]
    for shift, code in enumerate(codes):
        if shift != rarest:
            begins = begins[words[begins + shift] == code]
    return begins


def _choose(column: Column, predicate: Predicate) -> Callable[[Any], Mask]:
    """Returns which values of a column match a clause."""
    if isinstance(column, TextColumn):
        return _choose_texts(column, predicate)
    if isinstance(predicate, Equals):
        value: Any = predicate.value
        return lambda values: values == value
    assert isinstance(predicate, Within)
    low, high = predicate.low, predicate.high
    if low is not None:
        return (lambda values: values > low) if predicate.low_open else (lambda values: values >= low)
    return (lambda values: values < high) if predicate.high_open else (lambda values: values <= high)


def _choose_texts(column: TextColumn, predicate: Predicate) -> Callable[[Any], Mask]:
    dictionary = column.dictionary
    if isinstance(predicate, Equals):
        code = dictionary.code(str(predicate.value))
        return lambda values: np.zeros(len(values), np.bool_) if code is None else values == code
    if isinstance(predicate, StartsWith):
        return lambda codes: dictionary.begin_with(predicate.prefix, codes)
    if isinstance(predicate, Contains):
        return lambda codes: dictionary.contain(predicate.part, codes)
    assert isinstance(predicate, Within)
    bound, is_low = (predicate.high, False) if predicate.low is None else (predicate.low, True)
    text, is_open = str(bound), predicate.low_open if is_low else predicate.high_open
    code = dictionary.code(text)
    # Equal values count as behind an inclusive lower bound and an exclusive upper bound.
    with_bound = code is not None and is_low != is_open

    def chosen(codes: Any) -> Mask:
        behind = dictionary.come_behind(text, codes)
        if with_bound:
            behind = behind | (codes == code)
        return behind if is_low else ~behind

    return chosen


# Scores of matching rows only, because these are few.

_RANKS_KEPT: Final = 8
"""Scores of terms, kept for repeated clauses."""


class Scorer:
    """Scores some rows. Each clause is evaluated once."""

    def __init__(
        self,
        columns: Mapping[str, Column],
        count: int,
        evaluator: MaskEvaluator,
        weights: Weights | None,
        rows: Numbers,
    ) -> None:
        """Scores the listed rows among the first `count`. Without weights each clause has a fixed score."""
        self._columns = columns
        self._count = count
        self._evaluator = evaluator
        self._weights = weights
        self._rows = rows
        self._ranked: dict[tuple[Term, float], Floats] = {}
        self._counted: dict[Predicate, Floats] = {}

    def scores(self, predicate: Predicate) -> Floats:
        """Returns the score of each row; undefined for rows that do not match. Raises `Late`."""
        total = np.zeros(len(self._rows))
        if isinstance(predicate, All):
            for part in predicate.parts:
                total += self.scores(part)
            return total
        if isinstance(predicate, Any_ | Best):
            join: Any = np.add if isinstance(predicate, Any_) else np.maximum
            for part in predicate.parts:
                matches = self._evaluator.mask(part)[self._rows]
                total = join(total, np.where(matches, self.scores(part), 0.0))
            return total
        if self._weights is None:
            if isinstance(predicate, HasWords | HasPhrase):
                return self._matches(predicate)
            total += float(getattr(predicate, "score", 0.0))
            return total
        return self._ranks(predicate, self._weights, total)

    def _matches(self, leaf: HasWords | HasPhrase) -> Floats:
        """Returns the scores of a clause on a text field: the number of matching words of each row."""
        known = self._counted.get(leaf)
        if known is None:
            self._evaluator.check_time()
            bonus = PHRASE_BONUS * len(leaf.words) if isinstance(leaf, HasPhrase) else 0
            known = np.asarray((self._count_matches(leaf) + bonus) * leaf.score)
            if len(self._counted) >= _RANKS_KEPT:
                self._counted.clear()
            self._counted[leaf] = known
        return known

    def _count_matches(self, leaf: HasWords | HasPhrase) -> Numbers:
        evaluator = self._evaluator
        column = evaluator.words_column(leaf.field)
        codes = codes_of(column, leaf)
        if codes is None:
            return np.zeros(len(self._rows), np.int64)
        if column.has_several:
            texts = TextsOfRows(evaluator, leaf.field, self._count)
            return texts.best_of_rows(texts.counts(leaf, codes))[self._rows]
        # In a matching row each word occurs at least once, so only further occurrences are counted.
        counts = np.full(len(self._rows), len(leaf.words), np.int64)
        for code in codes:
            self._add_repeats(counts, column.repeats(code, self._count))
        if leaf.prefix:
            self._add_repeats(counts, repeats_in(evaluator.rows_beginning(leaf.field, leaf.words[-1])))
        return counts

    def _add_repeats(self, counts: Numbers, repeats: Repeats) -> None:
        """Counts repeated occurrences in each row. The smaller set of rows is looked up in the larger."""
        rows, (again, more) = self._rows, repeats
        if not len(again) or not len(rows):
            return
        if len(rows) <= len(again):
            at = again.searchsorted(rows)
            at[at == len(again)] = 0
            counts += np.where(again[at] == rows, more[at], 0)
        else:
            at = rows.searchsorted(again)
            at[at == len(rows)] = 0
            is_there = rows[at] == again
            counts[at[is_there]] += more[is_there]

    def _ranks(self, leaf: Predicate, weights: Weights, total: Floats) -> Floats:
        """Adds the scores of a clause's terms."""
        for term, weight in weights.of(leaf):
            if counts_words(term):
                total += self._rank(term, weight, weights.average(term.field))
            else:
                total += weight
        return total

    def _rank(self, term: Term, weight: float, average: float) -> Floats:
        known = self._ranked.get((term, weight))
        if known is None:
            self._evaluator.check_time()
            column = self._columns[term.field]
            assert isinstance(column, WordsColumn)
            lengths: Any = column.lengths(self._count)[self._rows]
            frequencies: Any = self._frequencies(column, term)[self._rows]
            known = np.asarray(saturated(weight, frequencies, lengths, average))
            if len(self._ranked) >= _RANKS_KEPT:
                self._ranked.clear()
            self._ranked[term, weight] = known
        return known

    def _frequencies(self, column: WordsColumn, term: Term) -> Numbers:
        """Returns the frequency of a term in each row."""
        assert isinstance(term, HasWords | HasPhrase)
        codes = codes_of(column, term)
        if codes is None:
            return np.zeros(self._count, np.int64)
        if isinstance(term, HasPhrase):
            places = self._evaluator.phrase_places(term, codes)
        elif term.prefix:
            places = column.beginning(term.words[0])
        else:
            places = self._evaluator.places_of(term.field, codes[0])
        return column.snapshot(self._count).counts_at(places)


# Statistics over columns: document frequencies of terms, and field lengths in words.


def count_rows(columns: Mapping[str, Column], evaluator: MaskEvaluator, alive: Mask, ask: Count) -> list[int]:
    """Returns the statistics of the live rows. Raises `Late`."""
    statistics = Statistics(ask.terms)
    for place, name in enumerate(statistics.fields):
        statistics.entries[place], statistics.words[place] = count_field(columns[name], alive)
    for place, term in enumerate(ask.terms):
        statistics.found[place] = int(np.count_nonzero(evaluator.look(term) & alive))
    return statistics.numbers


def count_field(column: Column, alive: Mask) -> tuple[int, int]:
    """Returns the number of rows with a word, and of their words.

    For a column without words, the number of rows with a value, and 0.
    """
    if not isinstance(column, WordsColumn):
        return int(np.count_nonzero(column.snapshot(len(alive)).has_value() & alive)), 0
    lengths = column.lengths(len(alive))[alive]
    return int(np.count_nonzero(lengths)), int(lengths.sum(dtype=np.int64))


FEW = 64
"""With at most twice the requested rows plus this many, all are sorted."""

Ordinal = NDArray[Any]
"""Sort numbers; a smaller one sorts first."""


class Matches:
    """Matching rows, ascending."""

    def __init__(self, rows: Numbers, numbers_at: Callable[[Numbers], Numbers], scores: Floats | None) -> None:
        self.rows = rows
        self._numbers_at = numbers_at
        self.scores = scores

    @cached_property
    def numbers(self) -> Numbers:
        return self._numbers_at(self.rows)

    def at(self, places: Numbers) -> "Matches":
        return Matches(self.rows[places], self._numbers_at, None if self.scores is None else self.scores[places])


class _Level(Protocol):
    def compared(self, places: Numbers, bound: Any) -> tuple[Mask, Mask]:
        """Returns which of some matches sort after a value, and which equal it."""
        ...

    def least(self, places: Numbers, size: int) -> tuple[Numbers, Numbers]:
        """Returns the rows that are certainly among the first, and the candidates for the rest."""
        ...

    def ordinals(self, places: Numbers) -> Ordinal: ...


class _Numbers:
    """A level of numbers. A descending level inverts all bits, because the smallest integer has no negative."""

    def __init__(
        self, values: Callable[[Numbers], NDArray[Any]], number_of: Callable[[Any], Any], ascending: bool
    ) -> None:
        """`number_of` converts a bound to a number."""
        self._values = values
        self._number_of = number_of
        self._ascending = ascending

    def ordinals(self, places: Numbers) -> Ordinal:
        turned: Ordinal = _turned(self._values(places), self._ascending)
        return turned

    def compared(self, places: Numbers, bound: Any) -> tuple[Mask, Mask]:
        values, value = self.ordinals(places), _turned(self._number_of(bound), self._ascending)
        return values > value, values == value

    def least(self, places: Numbers, size: int) -> tuple[Numbers, Numbers]:
        values = self.ordinals(places)
        bound = values.min()
        if np.count_nonzero(values == bound) < size:
            # Scores are often all equal, and partitioning equal values is slow.
            bound = np.partition(values, size - 1)[size - 1]
        return places[values < bound], places[values == bound]


class _NeverNull:
    """The first level of a field that has a value in every row."""

    def __init__(self, ascending: bool) -> None:
        self._ascending = ascending

    def ordinals(self, places: Numbers) -> Ordinal:
        return np.zeros(len(places), np.int8)

    def compared(self, places: Numbers, bound: Any) -> tuple[Mask, Mask]:
        # Null, which occurs in other parts, is greater than every value.
        is_behind = bound is None and not self._ascending
        return np.full(len(places), is_behind), np.full(len(places), bound is not None)

    def least(self, places: Numbers, size: int) -> tuple[Numbers, Numbers]:
        return places[:0], places


class _Texts:
    """A level of texts of a large dictionary."""

    def __init__(self, codes: Callable[[Numbers], NDArray[Any]], texts: Texts, ascending: bool) -> None:
        self._codes = codes
        self._texts = texts
        self._ascending = ascending

    def ordinals(self, places: Numbers) -> Ordinal:
        """By direct comparison, because few are left."""
        distinct, where = np.unique(self._codes(places), return_inverse=True)
        known = self._texts.texts
        order = sorted(range(len(distinct)), key=[known[code] for code in distinct.tolist()].__getitem__)
        ranks = np.empty(len(distinct), np.int64)
        ranks[order] = np.arange(len(distinct))
        turned: Ordinal = _turned(ranks[where], self._ascending)
        return turned

    def compared(self, places: Numbers, bound: Any) -> tuple[Mask, Mask]:
        if bound is None:
            # By the previous level, all of these are null.
            return np.zeros(len(places), np.bool_), np.ones(len(places), np.bool_)
        codes, code = self._codes(places), self._texts.code(bound)
        behind = self._texts.come_behind(bound, codes)
        equal: Mask = np.zeros(len(places), np.bool_) if code is None else codes == code
        return (behind if self._ascending else ~(behind | equal)), equal

    def least(self, places: Numbers, size: int) -> tuple[Numbers, Numbers]:
        codes = self._codes(places)
        first = self._texts.first_among(codes, size, self._ascending)
        ranks = np.full(len(self._texts), len(first), np.int64)
        ranks[first] = np.arange(len(first))
        found = ranks[codes]
        # Each text has at least one row, so the rows up to the last text are enough.
        last = int(np.searchsorted(np.cumsum(np.bincount(found, minlength=len(first))), size))
        return places[found < last], places[found == last]


class Order:
    """A sort of matches over columns."""

    def __init__(self, sort: Sort, columns: Mapping[str, Column], count: int, matches: Matches) -> None:
        self._keys: list[tuple[_Level, ...]] = [_levels(key, columns, count, matches) for key in sort.keys]

    def behind(self, places: Numbers, after: Place) -> Mask:
        """Returns which of some matches sort after a position."""
        found, equal = np.zeros(len(places), np.bool_), np.arange(len(places))
        for levels, bound in zip(self._keys, after, strict=True):
            for level in levels:
                are_behind, are_equal = level.compared(places[equal], bound)
                found[equal[are_behind]] = True
                equal = equal[are_equal]
        return found

    def first(self, places: Numbers, size: int) -> Numbers:
        """Returns the first of some matches, sorted."""
        levels = [level for levels in self._keys for level in levels]
        few = _least(places, levels, size)
        # The last key is the primary one for lexsort.
        return few[np.lexsort([level.ordinals(few) for level in reversed(levels)])][:size]


def _least(places: Numbers, levels: list[_Level], size: int) -> Numbers:
    """Returns a small superset of the first matches."""
    if len(places) <= 2 * size + FEW or not levels:
        return places
    sure, tied = levels[0].least(places, size)
    if not len(sure):
        return _least(tied, levels[1:], size)
    return np.concatenate((sure, _least(tied, levels[1:], size - len(sure))))


def _levels(key: Key, columns: Mapping[str, Column], count: int, matches: Matches) -> tuple[_Level, ...]:
    if key.name == OFFSET:
        return (_Numbers(lambda places: matches.numbers[places], np.int64, key.ascending),)
    if key.name == SCORE:
        scores = np.zeros(len(matches.rows)) if matches.scores is None else matches.scores
        return (_Numbers(lambda places: scores[places], np.float64, key.ascending),)
    column = columns[key.name]
    if not isinstance(column, TextColumn):
        field, number = _Field(column, count, matches, key.ascending), column.dtype.type
        return _with_nulls(key, field, _Numbers(field.values, lambda bound: number(bound or 0), key.ascending))
    texts = column.dictionary
    if texts.is_ranked or _has_several(column, count, matches):
        field = _Field(column, count, matches, key.ascending, texts.ranked)
        rank_of = _Numbers(
            field.values, lambda bound: np.int64(0 if bound is None else texts.rank(bound)), key.ascending
        )
        return _with_nulls(key, field, rank_of)
    field = _Field(column, count, matches, key.ascending)
    return _with_nulls(key, field, _Texts(field.values, texts, key.ascending))


def _with_nulls(key: Key, field: "_Field", values: _Level) -> tuple[_Level, ...]:
    if field.is_single:
        return _NeverNull(key.ascending), values
    return _Numbers(field.are_null, lambda bound: np.int8(bound is None), key.ascending), values


def _has_several(column: Column, count: int, matches: Matches) -> bool:
    """Returns whether a match has more than one value."""
    begins, ends = column.snapshot(count).bounds_of(matches.rows)
    return len(begins) > 0 and int((ends - begins).max()) > 1


class _Field:
    """Returns a field as a sort key: the minimum or maximum of several values."""

    def __init__(
        self,
        column: Column,
        count: int,
        matches: Matches,
        least: bool,
        rank: Callable[[NDArray[Any]], NDArray[Any]] = lambda values: values,
    ) -> None:
        self._snapshot = column.snapshot(count)
        self._matches = matches
        self._rank = rank
        self._least = least
        self._last: tuple[Numbers, NDArray[Any], Mask] | None = None
        """The last rows and keys, reused by the next level."""

    @property
    def is_single(self) -> bool:
        return self._snapshot.is_single

    def values(self, places: Numbers) -> NDArray[Any]:
        return self._look(places)[0]

    def are_null(self, places: Numbers) -> NDArray[Any]:
        return (~self._look(places)[1]).view(np.int8)

    def _look(self, places: Numbers) -> tuple[NDArray[Any], Mask]:
        last = self._last
        if last is None or last[0] is not places:
            rows = self._matches.rows[places]
            last = self._last = (places, *self._snapshot.extreme(rows, self._rank, self._least))
        return last[1:]


def _turned(values: Any, ascending: bool) -> Any:
    if ascending:
        return values
    return -values if values.dtype.kind == "f" else ~values


# Selection of the first rows in sort order, without sorting all of them.

_make_hit: Callable[[tuple[Place, int, float]], Hit] = partial(tuple.__new__, Hit)
"""`Hit._make` without a Python call for each hit: a search makes all hits of a page, several times."""


def first_hits(ask: Ask, columns: Mapping[str, Column], count: int, matches: Matches) -> list[Hit]:
    """Returns the first hits among the matching rows of the first `count`."""
    first = matches.at(_first_places(ask, columns, count, matches))
    numbers: list[int] = first.numbers.tolist()
    scores = [0.0] * len(numbers) if first.scores is None else first.scores.tolist()
    values = [
        numbers
        if key.name == OFFSET
        else scores
        if key.name == SCORE
        else place_values(columns[key.name], first.rows, count, key.ascending)
        for key in ask.sort.keys
    ]
    return list(map(_make_hit, zip(zip(*values, strict=True), numbers, scores, strict=True)))


def _first_places(ask: Ask, columns: Mapping[str, Column], count: int, matches: Matches) -> Numbers:
    by_offset, after, end = ask.sort.by_offset, ask.after, len(matches.rows)
    if by_offset is not None:
        # Rows are sorted this way already.
        if by_offset.ascending:
            begin = 0 if after is None else int(np.searchsorted(matches.numbers, after[0], "right"))
            return np.arange(begin, min(begin + ask.size, end))
        end = end if after is None else int(np.searchsorted(matches.numbers, after[0]))
        return np.arange(max(end - ask.size, 0), end)[::-1]
    order, places = Order(ask.sort, columns, count, matches), np.arange(end)
    for bound, is_behind in ((after, True), (ask.until, False)):
        if bound is not None:
            places = places[order.behind(places, bound) == is_behind]
    return order.first(places, ask.size) if len(places) else places


def place_values(column: Column, rows: Numbers, count: int, ascending: bool) -> list[Any]:
    """Returns the values of a sort key for some hits, in the form used by positions."""
    snapshot = column.snapshot(count)
    values, choose = snapshot.values, min if ascending else max
    begins, ends = snapshot.bounds_of(rows)
    if np.array_equal(ends, begins + 1):
        return _shown(column, values[begins])
    found: list[Any] = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        shown = _shown(column, values[begin:end])
        found.append(choose(shown) if shown else None)
    return found


def _shown(column: Column, values: Any) -> list[Any]:
    if isinstance(column, TextColumn):
        return [column.dictionary.texts[code] for code in values]
    return list((values.astype(np.bool_) if values.dtype == np.int8 else values).tolist())
