"""Where in a companion the next entries are that a read wants: those of a routing key, those that a filter lets
through, or both.

It may tell of entries that are gone by now: whoever reads them there finds out. It never leaves one out.
"""

import numpy as np

from topics.indexing.columns import Numbers
from topics.indexing.companions.mapped import Companion, Rows
from topics.indexing.companions.part import CompanionPart
from topics.indexing.fresh.masks import Judge
from topics.indexing.parts import Ask, Budget, Span
from topics.indexing.predicates import Predicate, bind_filter
from topics.indexing.sorting import parse_sort
from topics.searching.held import Held
from topics.searching.messages import Result, Seek


def seek(companion: Companion, held: Held | None, head: Seek, budget: Budget) -> Result:
    """`held` knows how the entries are described; nobody needs to who looks for a key alone."""
    first, last = head.mapped.first, head.mapped.last
    predicate = None
    if head.filter:
        assert held is not None and held.config is not None
        predicate = bind_filter(head.filter, held.config)
    if head.key is not None:
        rows = _rows_of_key(companion, head.key, first, last)
        if predicate is not None and len(rows):
            rows = rows[Judge(picked := Rows(companion, 0, companion.head.rows, rows), picked.count).mask(predicate)]
        seqs = Rows(companion, 0, companion.head.rows, rows[: head.limit]).numbers.tolist()
        return Result(seqs=tuple(seqs), is_full=len(rows) > head.limit)
    assert held is not None and predicate is not None
    return _matching(companion, held, predicate, head, budget)


def _rows_of_key(companion: Companion, key: str, first: int, last: int) -> Numbers:
    column = companion.key
    code = column.texts.code(key)
    if code is None:
        return np.zeros(0, np.int64)
    lo, hi = companion.row_range(first, last)
    rows = np.asarray(column.rows_at(column.places_of(code, code + 1)), np.int64)
    return rows[np.searchsorted(rows, lo) : np.searchsorted(rows, hi)]


def _matching(companion: Companion, held: Held, predicate: Predicate, head: Seek, budget: Budget) -> Result:
    assert held.config is not None
    first, last = head.mapped.first, head.mapped.last
    ask = Ask(
        config=held.config, version=held.version, predicate=predicate,
        sort=parse_sort(("offset:asc",), held.config, False), size=head.limit,
    )  # fmt: skip
    span = Span(first, last, companion.count_between(first, last), "index")
    found = CompanionPart(companion, span, held.plan).search(ask, budget)
    seqs = sorted(hit.number for hit in found.hits)
    if found.missed:
        # Out of time: what was not looked at begins behind what was found, or nothing is known at all.
        return Result(seqs=(), spent="time")
    return Result(seqs=tuple(seqs[: head.limit]), is_full=len(seqs) >= head.limit)
