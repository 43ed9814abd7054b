"""A plain BM25 over whole entries: the expected result of a ranked search, for any division into parts.

It walks the tree of a query and counts in a list of entries. It uses no terms, statistics, columns or parts.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tests.property.search_model import comparable, containing, judge
from topics.schema.search_fields import SearchConfig
from topics.search.query.field_values import canonical, unicode_word_v1
from topics.search.query.predicates import And, Bare, Clause, Node, Not, Or, Text


class Bm25:
    def __init__(self, live: Sequence[Any], config: SearchConfig) -> None:
        self._live = live
        self._config = config

    def score(self, node: Node, entry: Any) -> float | None:
        """The score of an entry that matches, else None."""
        if judge(node, entry, self._config) is None:
            return None
        if isinstance(node, And | Or):
            total = 0.0
            for part in node.parts:
                total += self.score(part, entry) or 0.0
            return total
        if isinstance(node, Not):
            return 0.0
        if isinstance(node, Clause) and node.field == "contains":
            return max(self._contained(name, boost, node.value.text, entry) for name, boost in containing(self._config))
        if isinstance(node, Clause):
            name = self._config.aliases.get(node.field, node.field)
            is_text = self._config.fields[name].kind == "text"
            return self._text(name, node.value, entry, 1.0) if is_text else 0.0
        if isinstance(node, Bare):
            return max(
                self._default(default.field, float(default.boost or 1), node.value, entry)
                for default in self._config.default_fields
            )
        return 0.0

    def _words(self, name: str, entry: Any) -> list[list[str]]:
        return [unicode_word_v1(text) for text in comparable(entry, name, self._config)]

    def _idf(self, name: str, has: Callable[[Any], bool]) -> float:
        is_text = self._config.fields[name].kind == "text"
        entries = sum(
            any(self._words(name, entry)) if is_text else bool(comparable(entry, name, self._config))
            for entry in self._live
        )
        found = sum(map(has, self._live))
        return math.log(1 + (entries - found + 0.5) / (found + 0.5))

    def _present(self, name: str, boost: float, has: Callable[[Any], bool], entry: Any) -> float:
        return boost * self._idf(name, has) if has(entry) else 0.0

    def _contained(self, name: str, boost: float, text: str, entry: Any) -> float:
        field = self._config.fields[name]
        if field.kind == "text":
            if not text.isalnum():
                return 0.0
            part = text.lower()
            return self._present(
                name, boost, lambda one: any(part in word for words in self._words(name, one) for word in words), entry
            )
        requested = str(canonical(field)(text))
        return self._present(
            name, boost, lambda one: any(requested in value for value in comparable(one, name, self._config)), entry
        )

    def _default(self, name: str, boost: float, value: Text, entry: Any) -> float:
        """A bare value in one of the default fields; 0 where that field does not have it."""
        field, text = self._config.fields[name], value.text
        if field.kind == "text":
            words = unicode_word_v1(text)
            is_refused = value.quoted and not field.positions and len(words) > 1
            node = Clause(name, "", value)
            if is_refused or judge(node, entry, self._config) is None:
                return 0.0
            return self._text(name, value, entry, boost)
        is_stem = field.kind == "keyword" and not value.quoted and text.endswith("*") and text != "*"
        if is_stem:
            stem: Any = canonical(field)(text[:-1])
            if not field.prefix:
                return 0.0
            return self._present(
                name,
                boost,
                lambda one: any(found.startswith(stem) for found in comparable(one, name, self._config)),
                entry,
            )
        requested = canonical(field)(text)
        if requested is None or not (field.exact or field.column):
            return 0.0
        return self._present(name, boost, lambda one: requested in comparable(one, name, self._config), entry)

    def _text(self, name: str, value: Text, entry: Any, boost: float) -> float:
        words = unicode_word_v1(value.text)
        if value.quoted:
            is_prefix = value.text.endswith("*")
            return self._term(name, boost, lambda text: times(text, words, is_prefix), entry)
        total = 0.0
        for place, word in enumerate(words):
            is_begun = value.text.endswith("*") and place == len(words) - 1
            total += self._term(name, boost, partial(begun if is_begun else standing, word), entry)
        return total

    def _term(self, name: str, boost: float, count: Callable[[list[str]], int], entry: Any) -> float:
        def frequency(one: Any) -> int:
            return sum(count(text) for text in self._words(name, one))

        idf = self._idf(name, lambda one: frequency(one) > 0)
        lengths = [length for one in self._live if (length := sum(map(len, self._words(name, one))))]
        average = sum(lengths) / len(lengths)
        f, length = frequency(entry), sum(map(len, self._words(name, entry)))
        return boost * idf * (f * (1.2 + 1)) / (f + 1.2 * (1 - 0.75 + 0.75 * length / average))


def begun(requested: str, text: list[str]) -> int:
    return sum(word.startswith(requested) for word in text)


def standing(requested: str, text: list[str]) -> int:
    return text.count(requested)


def times(text: list[str], words: list[str], is_prefix: bool) -> int:
    runs = [text[at : at + len(words)] for at in range(len(text) - len(words) + 1)]
    return sum(run == words or (is_prefix and run[:-1] == words[:-1] and run[-1].startswith(words[-1])) for run in runs)
