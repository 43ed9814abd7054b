"""Matching: a predicate compiled to closures over the rows of its fields, for entries without an index."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import Any

from topics.schema.search_fields import SearchConfig
from topics.search.query.field_values import Extractor, Row, find_field, flattened, unicode_word_v1
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
    fields_of,
    has_scores,
    walk,
)
from topics.search.query.score import Term, Weights, counts_words, saturated

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
        in_phrase = phrase_test(predicate)
        return lambda row: any(map(in_phrase, row[place] or ()))
    assert isinstance(predicate, HasWords)
    in_text = words_test(predicate)
    return lambda row: any(map(in_text, row[place] or ()))


def _contains_test(part: str, place: int) -> Test:
    """Values are keywords, or the words of texts."""

    def test(row: Row) -> bool:
        return any(
            part in value if type(value) is str else any(part in word for word in value) for value in row[place] or ()
        )

    return test


Words = Sequence[str]
"""The words of one text."""


def words_test(predicate: HasWords) -> Callable[[Words], bool]:
    """Whether one text has all words."""
    if not predicate.prefix:
        return frozenset(predicate.words).issubset
    requested, beginning = frozenset(predicate.words[:-1]), predicate.words[-1]
    return lambda text: requested.issubset(text) and any(word.startswith(beginning) for word in text)


def _range_test(predicate: Within) -> Callable[[Any], bool]:
    low: Any = predicate.low
    high: Any = predicate.high
    if low is not None:
        return (lambda value: value > low) if predicate.low_open else (lambda value: value >= low)
    return (lambda value: value < high) if predicate.high_open else (lambda value: value <= high)


def phrase_test(predicate: HasPhrase) -> Callable[[Words], bool]:
    """Returns whether one text contains the phrase."""
    return lambda text: next(phrases_in(text, predicate), None) is not None


def phrases_in(text: Words, predicate: HasPhrase) -> Iterator[int]:
    """Where a phrase begins in a text."""
    words, count = predicate.words, len(predicate.words)
    whole, last = (words[:-1], words[-1]) if predicate.prefix else (words, "")
    for at in range(len(text) - count + 1):
        if tuple(text[at : at + len(whole)]) == whole and text[at + count - 1].startswith(last):
            yield at


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
    if isinstance(predicate, HasWords | HasPhrase):
        return _words_score(predicate, places[predicate.field])
    constant = float(getattr(predicate, "score", 0.0))
    return lambda _: constant


def _words_score(predicate: HasWords | HasPhrase, place: int) -> Score:
    """The number of occurrences of the words in the text that has all of them and the most occurrences."""
    boost, count = predicate.score, _matches_in(predicate)
    is_phrase = isinstance(predicate, HasPhrase)
    fits = phrase_test(predicate) if isinstance(predicate, HasPhrase) else words_test(predicate)
    bonus = PHRASE_BONUS * len(predicate.words) if is_phrase else 0
    return lambda row: (max([count(text) for text in row[place] or () if fits(text)], default=0) + bonus) * boost


def _matches_in(predicate: HasWords | HasPhrase) -> Callable[[Words], int]:
    """How many words of a text match, summed over the words of a clause."""
    whole, beginning = (predicate.words[:-1], predicate.words[-1]) if predicate.prefix else (predicate.words, None)

    def count(text: Words) -> int:
        found = sum([text.count(word) for word in whole])
        return found if beginning is None else found + sum([word.startswith(beginning) for word in text])

    return count


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
    """The number of occurrences of a term in texts."""
    if isinstance(term, HasPhrase):
        return lambda texts: sum([sum(1 for _ in phrases_in(text, term)) for text in texts])
    assert isinstance(term, HasWords)
    (requested,) = term.words
    if term.prefix:
        return lambda texts: sum(word.startswith(requested) for text in texts for word in text)
    return lambda texts: sum(word == requested for text in texts for word in text)


# Highlights: the positions of a query's words in the texts of a hit. They are positions without markup, so that
# escaping is left to the page.

LOOK_CHARS = 65_536
"""The examined length of a text."""
SHOW_CHARS = 160
MAX_TEXTS = 3
"""Texts of one field that are shown."""

_find_words = re.compile(r"[^\W_]+").finditer
Clause = HasWords | HasPhrase | Contains


class Highlighter:
    """Highlights of one query, in the fields that it asks for words of."""

    def __init__(self, predicate: Predicate, config: SearchConfig, version: int, names: Iterable[str] | None) -> None:
        """`names` are the fields that are wanted; None is all of them."""
        requested = None if names is None else frozenset(names)
        self._clauses: dict[str, list[Clause]] = {}
        for clause in _positive(predicate):
            if config.fields[clause.field].kind == "text" and (requested is None or clause.field in requested):
                self._clauses.setdefault(clause.field, []).append(clause)
        self._finds = {name: find_field(config.fields[name], version) for name in self._clauses}

    def of(self, entry: object) -> dict[str, list[dict[str, Any]]]:
        """For each field the beginnings of its texts that have a match, and where in them."""
        found: dict[str, list[dict[str, Any]]] = {}
        for name, clauses in self._clauses.items():
            value = self._finds[name](entry)
            texts = [raw for raw in (flattened(value) if isinstance(value, list) else [value]) if isinstance(raw, str)]
            shown = [part for text in texts if (part := _highlight(text[:LOOK_CHARS], clauses)) is not None]
            if shown:
                found[name] = shown[:MAX_TEXTS]
        return found


def _positive(predicate: Predicate) -> Iterable[Clause]:
    """The clauses about words, without negated ones."""
    if isinstance(predicate, Negated):
        return
    parts = getattr(predicate, "parts", None)
    if parts is not None:
        for part in parts:
            yield from _positive(part)
    else:
        yield from (part for part in walk(predicate) if isinstance(part, HasWords | HasPhrase | Contains))


def _highlight(text: str, clauses: list[Clause]) -> dict[str, Any] | None:
    found = [(match.span(), word) for match in _find_words(text) for word in unicode_word_v1(match[0])]
    words = [word for _, word in found]
    marked = sorted({found[place][0] for clause in clauses for place in _places(words, clause)})
    if not marked:
        return None
    begin = max(marked[0][0] - SHOW_CHARS // 4, 0)
    end = begin + SHOW_CHARS
    spans = [[first - begin, last - begin] for first, last in marked if last <= end]
    # A word that is longer than the snippet is marked up to the end of the snippet.
    return {"text": text[begin:end], "spans": spans or [[marked[0][0] - begin, min(marked[0][1], end) - begin]]}


def _places(words: list[str], clause: Clause) -> Iterable[int]:
    """Which words a clause is about."""
    if isinstance(clause, Contains):
        yield from (place for place, word in enumerate(words) if clause.part in word)
    elif isinstance(clause, HasPhrase):
        for begin in phrases_in(words, clause):
            yield from range(begin, begin + len(clause.words))
    else:
        whole = frozenset(clause.words[:-1] if clause.prefix else clause.words)
        beginning = clause.words[-1] if clause.prefix else None
        for place, word in enumerate(words):
            if word in whole or (beginning is not None and word.startswith(beginning)):
                yield place
