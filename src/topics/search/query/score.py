"""BM25 scoring: ranks by rarity over all live entries of a stream, however it is split into parts.

A clause that scores (`topics.search.query.predicates`) is taken apart into terms: each word of a text, the beginning of
a word, a phrase, or a value of another field. All parts count the terms first, and only then is anything scored:

    N    entries with a word in the field; of other fields than texts, entries with a value
    n    entries with the term
    avg  words of the field, divided by N
    idf  = ln(1 + (N - n + 0.5) / (n + 0.5))
    score of a term that stands f times among the L words of an entry's field
         = boost * idf * (f * (k1 + 1)) / (f + k1 * (1 - b + b * L / avg))        k1 = 1.2, b = 0.75

A term that is not a word counts as one that stands there once among an average number of words: boost * idf. The scores
of the terms of a clause are added, and those of clauses as without a ranking.

Entries are scored one by one or as columns, and both must give the same bits, because a page continues behind a score.
So both compute the formula in the order in which it stands here, and add from left to right."""

from collections.abc import Sequence
from math import log
from typing import Final

from topics.search.query.field_values import shown
from topics.search.query.predicates import (
    All,
    Any_,
    Best,
    Contains,
    Equals,
    HasPhrase,
    HasWords,
    Predicate,
    StartsWith,
)

K1: Final = 1.2
B: Final = 0.75
_ROUNDING: Final = 1.0 + 1e-9
"""The margin of a bound for rounding."""

Term = HasWords | HasPhrase | Equals | StartsWith | Contains
"""The clause that finds just this term, without a score."""


def terms_of(predicate: Predicate) -> tuple[Term, ...]:
    """The terms that are counted for a query, each once. Negated clauses have no score, so nothing of them is."""
    if isinstance(predicate, All | Any_ | Best):
        return tuple(dict.fromkeys(term for part in predicate.parts for term in terms_of(part)))
    return tuple(dict.fromkeys(leaf_terms(predicate)))


def leaf_terms(leaf: Predicate) -> tuple[Term, ...]:
    """The terms of one clause, in the order of its words."""
    if isinstance(leaf, HasWords) and leaf.score:
        last = len(leaf.words) - 1
        return tuple(
            HasWords(leaf.field, (word,), leaf.prefix and place == last) for place, word in enumerate(leaf.words)
        )
    if isinstance(leaf, HasPhrase) and leaf.score:
        # One word is the same in quotes and without.
        single = len(leaf.words) == 1
        return ((HasWords if single else HasPhrase)(leaf.field, leaf.words, leaf.prefix),)
    if isinstance(leaf, Equals) and leaf.score:
        return (Equals(leaf.field, leaf.value),)
    if isinstance(leaf, StartsWith) and leaf.score:
        return (StartsWith(leaf.field, leaf.prefix),)
    if isinstance(leaf, Contains) and leaf.score:
        return (Contains(leaf.field, leaf.part),)
    return ()


def shown_term(term: Term) -> str:
    """A term as people read it."""
    if isinstance(term, HasWords):
        return term.words[0] + "*" * term.prefix
    if isinstance(term, HasPhrase):
        return " ".join(term.words) + "*" * term.prefix
    if isinstance(term, Equals):
        return shown(term.value)
    return f"{term.prefix}*" if isinstance(term, StartsWith) else f"*{term.part}*"


def counts_words(term: Term) -> bool:
    """Whether it matters how often a term stands in an entry."""
    return isinstance(term, HasWords | HasPhrase)


def boost_of(leaf: Predicate) -> float:
    """The score of one match of a clause without a ranking."""
    return float(getattr(leaf, "score", 0.0))


class Statistics:
    """Statistics of parts: for each field the number of entries and words, for each term the number of entries."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self.terms = tuple(terms)
        self.fields = tuple(dict.fromkeys(term.field for term in terms))
        self.entries = [0] * len(self.fields)
        self.words = [0] * len(self.fields)
        self.found = [0] * len(self.terms)

    @property
    def numbers(self) -> list[int]:
        return [*self.entries, *self.words, *self.found]

    def add(self, numbers: Sequence[int]) -> None:
        """Adds what somebody else counted for the same terms."""
        fields = len(self.fields)
        for counted, more in (
            (self.entries, numbers[:fields]),
            (self.words, numbers[fields : 2 * fields]),
            (self.found, numbers[2 * fields :]),
        ):
            for place, number in enumerate(more):
                counted[place] += number


class Weights:
    """The weights of a query's terms, by statistics over all parts."""

    def __init__(self, predicate: Predicate, numbers: Sequence[int]) -> None:
        counted = Statistics(terms_of(predicate))
        counted.add(numbers)
        entries = dict(zip(counted.fields, counted.entries, strict=True))
        self._idf = {
            term: _idf(entries[term.field], found) for term, found in zip(counted.terms, counted.found, strict=True)
        }
        self._average = {
            name: words / count if words else 1.0
            for name, count, words in zip(counted.fields, counted.entries, counted.words, strict=True)
        }

    def of(self, leaf: Predicate) -> list[tuple[Term, float]]:
        """The terms of a clause, and what each is worth before it is counted in an entry."""
        boost = boost_of(leaf)
        return [(term, boost * self._idf[term]) for term in leaf_terms(leaf)]

    def average(self, field: str) -> float:
        """Words of a field in an entry that has any."""
        return self._average[field]

    def most(self, leaf: Predicate) -> float:
        """No entry has a greater score of this clause."""
        bound = 0.0
        for term, weight in self.of(leaf):
            bound += weight * (K1 + 1.0 if counts_words(term) else 1.0)
        return bound * _ROUNDING


def _idf(entries: int, found: int) -> float:
    # Numbers from a caller may be anything; counted ones are never more than there are.
    return log(1.0 + (max(entries - found, 0) + 0.5) / (found + 0.5))


def saturated(weight: float, frequency: float, length: float, average: float) -> float:
    """The score of a term that stands so often among so many words."""
    return weight * (frequency * (K1 + 1.0)) / (frequency + K1 * (1.0 - B + B * length / average))
