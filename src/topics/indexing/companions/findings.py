"""What searches found in companions, remembered for those that ask the same again.

A companion never changes, so what a search finds in it follows from the search and from the rows that it is asked of.
What is fresh, and what was removed, is no part of that: whoever asks looks at the one anew each time, and does not ask
here where the other says that rows are gone. So nothing here is ever out of date, however much is appended meanwhile.
"""

from typing import Final
from weakref import WeakKeyDictionary

from topics.indexing.companions.mapped import Companion
from topics.indexing.parts import Ask, Found
from topics.indexing.predicates import Predicate
from topics.indexing.sorting import Place, Sort

HITS_MAX: Final = 50_000
"""Hits that are remembered in all, of some 200 bytes each. When there are more all are forgotten: what is asked again
and again is soon back."""
_NONE_COUNTS_AS: Final = 5
"""What is remembered takes room without any hits, too."""

Key = tuple[Predicate, Sort, int, Place | None, Place | None, bool, int, int]


def key_of(ask: Ask, lo: int, hi: int) -> Key | None:
    """All that the hits among the rows of a companion from `lo` up to `hi` follow from; None for a search whose ranks
    are by what all parts have."""
    if ask.weights is not None:
        return None
    return ask.predicate, ask.sort, ask.size, ask.after, ask.until, ask.count_all, lo, hi


class Findings:
    """What was found in each companion, for as long as that is open."""

    def __init__(self, hits_max: int = HITS_MAX) -> None:
        self._hits_max = hits_max
        self._found: WeakKeyDictionary[Companion, dict[Key, Found]] = WeakKeyDictionary()
        self._hits = 0
        """With those of companions that were closed since."""

    def get(self, companion: Companion, key: Key) -> Found | None:
        known = self._found.get(companion)
        return None if known is None else known.get(key)

    def put(self, companion: Companion, key: Key, found: Found) -> None:
        """Nobody changes what was found from here on."""
        size = len(found.hits) + _NONE_COUNTS_AS
        if self._hits + size > self._hits_max:
            self._found.clear()
            self._hits = 0
        self._hits += size
        self._found.setdefault(companion, {})[key] = found
