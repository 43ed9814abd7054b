"""Which blocks nothing in can match, by their least and greatest values and by the rows of texts.

It only ever leaves out what does not match, so that it changes what a query costs and not what it finds.
"""

from collections.abc import Callable, Sequence
from typing import Any

from topics.indexing.companions.mapped import Companion
from topics.indexing.companions.postings import Lookup, Postings
from topics.indexing.predicates import All, Any_, Best, Equals, Nothing, Predicate, Within

Chance = Callable[[int], bool]
"""Whether anything in a block may match."""


def chance_of(lookup: Lookup, predicate: Predicate) -> Chance:
    """A function that tells whether a block may have matches."""
    if isinstance(predicate, Nothing):
        return _never
    if isinstance(predicate, All | Any_ | Best):
        chances = [chance_of(lookup, part) for part in predicate.parts]
        return _joined(chances, all if isinstance(predicate, All) else any)
    postings = lookup.of(predicate)
    if postings is not None:
        return _text_chance(lookup.companion, postings)
    if isinstance(predicate, Equals | Within):
        return _value_chance(lookup.companion, predicate)
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


def _text_chance(companion: Companion, postings: Postings) -> Chance:
    bounds = companion.bounds
    return lambda block: postings.most(int(bounds[block]), int(bounds[block + 1])) > 0


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
