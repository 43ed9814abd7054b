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

BYTES_MAX: Final = 10_000_000
"""What is remembered in all. When it is more all is forgotten: what is asked again and again is soon back."""
_HIT_BYTES: Final = 200
_KEY_BYTES: Final = 4000
"""What a search takes itself: whoever asks brings none that is long."""

Key = tuple[Predicate, Sort, int, Place | None, Place | None, bool, int, int]


def key_of(ask: Ask, lo: int, hi: int) -> Key | None:
    """All that the hits among the rows of a companion from `lo` up to `hi` follow from; None for a search whose ranks
    are by what all parts have."""
    if ask.weights is not None:
        return None
    return ask.predicate, ask.sort, ask.size, ask.after, ask.until, ask.count_all, lo, hi


def _size_of(key: Key, found: Found) -> int:
    _, sort, _, after, until, *_ = key
    places = [after or (), until or ()]
    if sort.fields:
        places += [hit.place for hit in found.hits]
    texts = sum([len(value) for place in places for value in place if type(value) is str])
    # A character may take four bytes.
    return _KEY_BYTES + _HIT_BYTES * len(found.hits) + 4 * texts


class Findings:
    """What was found in each companion, for as long as that is open."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._found: WeakKeyDictionary[Companion, dict[Key, Found]] = WeakKeyDictionary()
        self._bytes = 0
        """With what was of companions that were closed since."""

    def get(self, companion: Companion, key: Key) -> Found | None:
        known = self._found.get(companion)
        return None if known is None else known.get(key)

    def put(self, companion: Companion, key: Key, found: Found) -> None:
        """Nobody changes what was found from here on."""
        size = _size_of(key, found)
        if self._bytes + size > self._bytes_max:
            self._found.clear()
            self._bytes = 0
        if size > self._bytes_max:
            return
        self._bytes += size
        self._found.setdefault(companion, {})[key] = found
