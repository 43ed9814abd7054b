"""Highlights: where the words of a query stand in the texts of a hit. They are places in a text and no markup, so that
nobody has to know what a page escapes."""

import re
from collections.abc import Iterable
from typing import Any

from topics.indexing.extraction import find_field, flattened
from topics.indexing.predicates import Contains, HasPhrase, HasWords, Negated, Predicate, walk
from topics.indexing.words import unicode_word_v1
from topics.schema.search import SearchConfig

LOOK_CHARS = 65_536
"""How much of a text is looked at."""
SHOW_CHARS = 160
MAX_TEXTS = 3
"""Texts of one field that are shown."""

_find_words = re.compile(r"[^\W_]+").finditer
Clause = HasWords | HasPhrase | Contains


class Highlighter:
    """Highlights of one query, in the fields that it asks for words of."""

    def __init__(self, predicate: Predicate, config: SearchConfig, version: int, names: Iterable[str] | None) -> None:
        """`names` are the fields that are wanted; None is all of them."""
        wanted = None if names is None else frozenset(names)
        self._clauses: dict[str, list[Clause]] = {}
        for clause in _positive(predicate):
            if config.fields[clause.field].kind == "text" and (wanted is None or clause.field in wanted):
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
    """The clauses about words, but for those that must not match."""
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
    # A word that is longer than what is shown is marked as far as it is.
    return {"text": text[begin:end], "spans": spans or [[marked[0][0] - begin, min(marked[0][1], end) - begin]]}


def _places(words: list[str], clause: Clause) -> Iterable[int]:
    """Which words a clause is about."""
    if isinstance(clause, Contains):
        yield from (place for place, word in enumerate(words) if clause.part in word)
    elif isinstance(clause, HasPhrase):
        count = len(clause.words)
        for begin in range(len(words) - count + 1):
            if tuple(words[begin : begin + count]) == clause.words:
                yield from range(begin, begin + count)
    else:
        whole = frozenset(clause.words[:-1] if clause.prefix else clause.words)
        beginning = clause.words[-1] if clause.prefix else None
        for place, word in enumerate(words):
            if word in whole or (beginning is not None and word.startswith(beginning)):
                yield place
