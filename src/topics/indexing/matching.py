"""Matching: a predicate compiled to closures over the rows of its fields, for whoever has entries and no index."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

from topics.indexing.extraction import Extractor, Row
from topics.indexing.predicates import (
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
    fields_of,
    has_scores,
)
from topics.indexing.ranking import Term, Weights, counts_words, saturated
from topics.schema.search import SearchConfig

Test = Callable[[Row], bool]
Score = Callable[[Row], float]


class Matcher:
    """One predicate over entries. The fields it needs and any `further` ones are extracted once an entry."""

    def __init__(
        self,
        predicate: Predicate,
        config: SearchConfig,
        version: int,
        further: Sequence[str] = (),
        weights: Weights | None = None,
    ) -> None:
        self.extractor = Extractor(config, version, (*fields_of(predicate), *further))
        self.places = self.extractor.places
        self.row = self.extractor.row
        self.matches = compile_test(predicate, self.places)
        self.score: Score = compile_score(predicate, self.places, weights) if has_scores(predicate) else _no_score


def _no_score(_: Row) -> float:
    return 0.0


def compile_test(predicate: Predicate, places: dict[str, int]) -> Test:
    """Whether a row matches."""
    if isinstance(predicate, Everything | Nothing):
        answer = isinstance(predicate, Everything)
        return lambda _: answer
    if isinstance(predicate, Negated):
        negated = compile_test(predicate.part, places)
        return lambda row: not negated(row)
    if isinstance(predicate, All | Any_ | Best):
        tests = [compile_test(part, places) for part in predicate.parts]
        if isinstance(predicate, All):
            return lambda row: all(test(row) for test in tests)
        return lambda row: any(test(row) for test in tests)
    return _leaf(predicate, places[predicate.field])  # type: ignore[attr-defined]


def _leaf(predicate: Predicate, place: int) -> Test:
    if isinstance(predicate, Exists):
        return lambda row: row[place] is not None
    if isinstance(predicate, Equals):
        value = predicate.value
        return lambda row: value in (row[place] or ())
    if isinstance(predicate, StartsWith):
        prefix = predicate.prefix
        return lambda row: any(value.startswith(prefix) for value in row[place] or ())
    if isinstance(predicate, Contains):
        return _contains_test(predicate.part, place)
    if isinstance(predicate, Within):
        inside = _range_test(predicate)
        return lambda row: any(inside(value) for value in row[place] or ())
    if isinstance(predicate, HasPhrase):
        words = predicate.words
        return lambda row: any(has_phrase(text, words) for text in row[place] or ())
    assert isinstance(predicate, HasWords)
    return _words_test(predicate, place)


def _contains_test(part: str, place: int) -> Test:
    """Values are keywords, or the words of texts."""

    def test(row: Row) -> bool:
        return any(
            part in value if type(value) is str else any(part in word for word in value) for value in row[place] or ()
        )

    return test


def _words_test(predicate: HasWords, place: int) -> Test:
    if not predicate.prefix:
        wanted = frozenset(predicate.words)
        return lambda row: wanted.issubset([word for text in row[place] or () for word in text])
    wanted, beginning = frozenset(predicate.words[:-1]), predicate.words[-1]

    def test(row: Row) -> bool:
        words = [word for text in row[place] or () for word in text]
        return wanted.issubset(words) and any(word.startswith(beginning) for word in words)

    return test


def _range_test(predicate: Within) -> Callable[[Any], bool]:
    low: Any = predicate.low
    high: Any = predicate.high
    if low is not None:
        return (lambda value: value > low) if predicate.low_open else (lambda value: value >= low)
    return (lambda value: value < high) if predicate.high_open else (lambda value: value <= high)


def has_phrase(text: Sequence[str], words: Sequence[str]) -> bool:
    """Whether the words stand in the text one behind the other."""
    first, count = words[0], len(words)
    return any(word == first and tuple(text[at : at + count]) == words for at, word in enumerate(text))


def compile_score(predicate: Predicate, places: dict[str, int], weights: Weights | None = None) -> Score:
    """The score of a row that matches: by its clauses, or ranked by the weights of its terms."""
    if isinstance(predicate, Any_ | Best):
        parts = [(compile_test(part, places), compile_score(part, places, weights)) for part in predicate.parts]
        combine: Callable[[list[float]], float] = max if isinstance(predicate, Best) else _added
        return lambda row: combine([score(row) for test, score in parts if test(row)])
    if isinstance(predicate, All):
        return _sum_of([compile_score(part, places, weights) for part in predicate.parts])
    if weights is not None:
        return _sum_of([_term_score(term, weight, weights, places) for term, weight in weights.of(predicate)])
    constant = float(getattr(predicate, "score", 0.0))
    return lambda _: constant


def _added(scores: list[float]) -> float:
    """From left to right, as columns are added, and not as precisely as `sum` may."""
    return reduce(add, scores, 0.0)


def _sum_of(scores: list[Score]) -> Score:
    return lambda row: _added([score(row) for score in scores])


def _term_score(term: Term, weight: float, weights: Weights, places: dict[str, int]) -> Score:
    if not counts_words(term):
        return lambda _: weight
    place, average, count = places[term.field], weights.average(term.field), frequency_of(term)

    def score(row: Row) -> float:
        texts = row[place] or ()
        return saturated(weight, count(texts), sum(map(len, texts)), average)

    return score


def frequency_of(term: Term) -> Callable[[Sequence[Sequence[str]]], int]:
    """How often a term stands in texts."""
    if isinstance(term, HasPhrase):
        words, count = term.words, len(term.words)
        return lambda texts: sum(
            tuple(text[at : at + count]) == words for text in texts for at in range(len(text) - count + 1)
        )
    assert isinstance(term, HasWords)
    (wanted,) = term.words
    if term.prefix:
        return lambda texts: sum(word.startswith(wanted) for text in texts for word in text)
    return lambda texts: sum(word == wanted for text in texts for word in text)
