"""Filter masks: evaluates predicates over columns to a mask of the rows that match, and scores rows."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from topics.search.query.columns import Column, Floats, Mask, Numbers, TextColumn, WordsColumn
from topics.search.query.plan import Budget, Count
from topics.search.query.predicates import (
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


class Late(Exception):
    """The time of a query was over between two of its clauses."""


class MaskEvaluator:
    """Judges the first `count` rows. It remembers the masks of one query, which scores ask for again."""

    def __init__(self, columns: Mapping[str, Column], count: int, budget: Budget | None = None) -> None:
        """With a budget it raises `Late` when that is spent: a query may have hundreds of clauses, each a pass."""
        self._columns = columns
        self._count = count
        self._budget = budget
        self._known: dict[Predicate, Mask] = {}

    def mask(self, predicate: Predicate) -> Mask:
        # By what it says: a query may say the same hundreds of times.
        known = self._known.get(predicate)
        if known is None:
            known = self._known[predicate] = self.look(predicate)
        return known

    def look(self, predicate: Predicate) -> Mask:
        """A mask that nobody asks for again. Raises `Late`."""
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
            assert isinstance(column, WordsColumn)
            return self._words(column, predicate)
        values = column.snapshot(self._count)
        return values.rows_where(_choose(column, predicate)(values.values))

    def _words(self, column: WordsColumn, predicate: HasWords | HasPhrase) -> Mask:
        words = column.snapshot(self._count)
        dictionary = column.dictionary
        beginning = predicate.words[-1] if isinstance(predicate, HasWords) and predicate.prefix else None
        whole = predicate.words if beginning is None else predicate.words[:-1]
        codes = [code for word in whole if (code := dictionary.code(word)) is not None]
        if len(codes) < len(whole):
            return np.zeros(self._count, np.bool_)
        if isinstance(predicate, HasPhrase):
            return words.rows_at(phrase_places(column, words.values, codes))
        mask = np.ones(self._count, np.bool_)
        for code in dict.fromkeys(codes):
            mask &= words.rows_at(column.places(code))
        if beginning is not None:
            mask &= words.rows_at(column.beginning(beginning))
        return mask


def phrase_places(column: WordsColumn, words: Any, codes: list[int]) -> Any:
    """Where a phrase begins. It can only stand around the places of its rarest word."""
    places = [column.places(code) for code in codes]
    rarest = min(range(len(codes)), key=lambda shift: len(places[shift]))
    begins = places[rarest] - rarest
    begins = begins[(begins >= 0) & (begins <= len(words) - len(codes))]
    for shift, code in enumerate(codes):
        if shift != rarest:
            begins = begins[words[begins + shift] == code]
    return begins


def _choose(column: Column, predicate: Predicate) -> Callable[[Any], Mask]:
    """Which values of a column fit a clause."""
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
    # What has the bound itself is on the side that it is given with.
    with_bound = code is not None and is_low != is_open

    def chosen(codes: Any) -> Mask:
        behind = dictionary.come_behind(text, codes)
        if with_bound:
            behind = behind | (codes == code)
        return behind if is_low else ~behind

    return chosen


# The scores of the rows that match, and of no others: they are few.

_RANKS_KEPT: Final = 8
"""Scores of terms that are kept for clauses that say the same again."""


class Scorer:
    """Scores some rows. A clause that they match by is evaluated once."""

    def __init__(
        self,
        columns: Mapping[str, Column],
        count: int,
        evaluator: MaskEvaluator,
        weights: Weights | None,
        rows: Numbers,
    ) -> None:
        """Scores those rows of the first `count` that are in a list. Without weights a clause has one score."""
        self._columns = columns
        self._count = count
        self._evaluator = evaluator
        self._weights = weights
        self._rows = rows
        self._ranked: dict[tuple[Term, float], Floats] = {}

    def scores(self, predicate: Predicate) -> Floats:
        """The score of each row; it means nothing where a row does not match. Raises `Late`."""
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
            total += float(getattr(predicate, "score", 0.0))
            return total
        return self._ranks(predicate, self._weights, total)

    def _ranks(self, leaf: Predicate, weights: Weights, total: Floats) -> Floats:
        """Adds the scores of the terms of one clause."""
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
        """How often a term stands in each row."""
        words, dictionary = column.snapshot(self._count), column.dictionary
        assert isinstance(term, HasWords | HasPhrase)
        if isinstance(term, HasWords) and term.prefix:
            return words.counts_at(column.beginning(term.words[0]))
        codes = [code for word in term.words if (code := dictionary.code(word)) is not None]
        if len(codes) < len(term.words):
            return np.zeros(self._count, np.int64)
        places = column.places(codes[0]) if len(codes) == 1 else phrase_places(column, words.values, codes)
        return words.counts_at(places)


# Statistics over columns: in how many rows terms stand, and how many words fields have.


def count_rows(columns: Mapping[str, Column], evaluator: MaskEvaluator, alive: Mask, ask: Count) -> list[int]:
    """What the rows that are alive add to statistics. Raises `Late`."""
    statistics = Statistics(ask.terms)
    for place, name in enumerate(statistics.fields):
        statistics.entries[place], statistics.words[place] = count_field(columns[name], alive)
    for place, term in enumerate(ask.terms):
        statistics.found[place] = int(np.count_nonzero(evaluator.look(term) & alive))
    return statistics.numbers


def count_field(column: Column, alive: Mask) -> tuple[int, int]:
    """The rows with a word, and their words; of a column that has none, the rows with a value, and 0."""
    if not isinstance(column, WordsColumn):
        return int(np.count_nonzero(column.snapshot(len(alive)).has_value() & alive)), 0
    lengths = column.lengths(len(alive))[alive]
    return int(np.count_nonzero(lengths)), int(lengths.sum(dtype=np.int64))
