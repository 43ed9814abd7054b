"""What need not be looked at: which rows an exact clause can only match, and which blocks nothing in can match.

Both only ever leave out what does not match, so that they change what a query costs and not what it finds.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from topics.indexing.columns import Numbers
from topics.indexing.companions.mapped import Companion
from topics.indexing.companions.stored import Array, StoredColumn
from topics.indexing.predicates import (
    All,
    Any_,
    Best,
    Equals,
    HasPhrase,
    HasWords,
    Nothing,
    Predicate,
    StartsWith,
    Within,
)

Chance = Callable[[int], bool]
"""Whether anything in a block may match."""


def candidates(companion: Companion, predicate: Predicate, most: int) -> Numbers | None:
    """Rows among which are all that match, ascending, each once; None where they are too many, or not known."""
    if isinstance(predicate, Nothing):
        return np.zeros(0, np.int64)
    if isinstance(predicate, All):
        # The rows of the rarest part are enough: the others are judged.
        found = [rows for part in predicate.parts if (rows := candidates(companion, part, most)) is not None]
        return min(found, key=len) if found else None
    if isinstance(predicate, Any_ | Best):
        every = [candidates(companion, part, most) for part in predicate.parts]
        known = [rows for rows in every if rows is not None]
        if len(known) < len(every) or sum(map(len, known)) > most:
            return None
        filled = [rows for rows in known if len(rows)]
        return reduce(np.union1d, filled) if filled else np.zeros(0, np.int64)
    spans = _code_spans(companion, predicate)
    if spans is None:
        return None
    column = companion.column(predicate.field)  # type: ignore[attr-defined]
    runs = [(column.places_of(*span), span) for span in spans]
    places, (begin, end) = min(runs, key=lambda run: len(run[0]))
    return _rows_at(column, places, end - begin <= 1) if len(places) <= most else None


def _rows_at(column: StoredColumn, places: Array, ascend: bool) -> Numbers:
    """The rows of places, each once. Those of one text ascend, and so only neighbours can be the same."""
    rows = column.rows_at(places).astype(np.int64)
    if not ascend:
        return np.unique(rows)
    return rows[np.append(True, rows[1:] != rows[:-1])] if len(rows) else rows


def _code_spans(companion: Companion, predicate: Predicate) -> list[tuple[int, int]] | None:
    """For each text that a clause wants, from and up to which code it is; None for clauses without texts."""
    field: str | None = getattr(predicate, "field", None)
    if field is None or not companion.column(field).is_text:
        return None
    texts = companion.column(field).texts
    if isinstance(predicate, Equals):
        return [_span_of(texts.code(str(predicate.value)))]
    if isinstance(predicate, StartsWith):
        return [texts.span(predicate.prefix)]
    if isinstance(predicate, HasPhrase):
        return [_span_of(texts.code(word)) for word in predicate.words]
    if isinstance(predicate, HasWords):
        whole = predicate.words[:-1] if predicate.prefix else predicate.words
        spans = [_span_of(texts.code(word)) for word in whole]
        return [*spans, texts.span(predicate.words[-1])] if predicate.prefix else spans
    return None


def _span_of(code: int | None) -> tuple[int, int]:
    return (0, 0) if code is None else (code, code + 1)


def chance_of(companion: Companion, predicate: Predicate) -> Chance:
    """A function that tells whether a block may have matches."""
    if isinstance(predicate, Nothing):
        return _never
    if isinstance(predicate, All | Any_ | Best):
        chances = [chance_of(companion, part) for part in predicate.parts]
        return _joined(chances, all if isinstance(predicate, All) else any)
    spans = _code_spans(companion, predicate)
    if spans is not None:
        column = companion.column(predicate.field)  # type: ignore[attr-defined]
        return _joined([_text_chance(companion, column, span) for span in spans], all)
    if isinstance(predicate, Equals | Within):
        return _value_chance(companion, predicate)
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


def _text_chance(companion: Companion, column: StoredColumn, span: tuple[int, int]) -> Chance:
    begin, end = span
    if begin >= end:
        return _never
    if end - begin > 1:
        return _always
    places, bounds = column.places_of(begin, end), companion.bounds

    def chance(block: int) -> bool:
        first, behind = column.value_range(int(bounds[block]), int(bounds[block + 1]))
        at = int(np.searchsorted(places, first))
        return at < len(places) and int(places[at]) < behind

    return chance


def _value_chance(companion: Companion, predicate: Equals | Within) -> Chance:
    blocks = companion.blocks(predicate.field)
    if blocks is None:
        return _always
    lows, highs, counts = blocks.lows, blocks.highs, blocks.counts
    if companion.column(predicate.field).is_text:
        return _always
    low: Any = predicate.value if isinstance(predicate, Equals) else predicate.low
    high: Any = predicate.value if isinstance(predicate, Equals) else predicate.high
    possible = counts > 0
    if low is not None:
        possible = possible & (highs >= low)
    if high is not None:
        possible = possible & (lows <= high)
    return lambda block: bool(possible[block])
