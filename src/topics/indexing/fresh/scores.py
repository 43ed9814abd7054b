"""The scores of the rows that match, and of no others: they are few."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from topics.indexing.columns import Column, Floats, Numbers, WordsColumn
from topics.indexing.fresh.masks import Judge, phrase_places
from topics.indexing.predicates import All, Any_, Best, HasPhrase, HasWords, Predicate
from topics.indexing.ranking import Term, Weights, counts_words, saturated

_RANKS_KEPT: Final = 8
"""Scores of terms that are kept for clauses that say the same again."""


class Scorer:
    """Scores some rows. A clause that they match by is judged once, by whoever judged them."""

    def __init__(
        self, columns: Mapping[str, Column], count: int, judge: Judge, weights: Weights | None, rows: Numbers
    ) -> None:
        """Of the first `count` rows, which `judge` judges, those of a list. Without weights a clause has one score."""
        self._columns = columns
        self._count = count
        self._judge = judge
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
                matches = self._judge.mask(part)[self._rows]
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
            self._judge.check_time()
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
