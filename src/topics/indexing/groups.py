"""Groups of aggregations as arrays: when each begins, what its dimensions are, and what its measures came to.

To sum up a companion, to derive days from hours, to merge companions and to answer a question out of them is one step:
groups are numbered by their keys, and those of one number are added.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from topics.indexing.columns import Numbers
from topics.indexing.measured import Measured, together
from topics.indexing.numbering import Array, Axis, number_keys


class Dimension(NamedTuple):
    """One dimension of some groups: a code for each, and what each code stands for; None is no value."""

    codes: Array
    names: Sequence[str | None]

    def take(self, places: Array) -> "Dimension":
        return Dimension(self.codes[places], self.names)

    def ranks(self) -> Array:
        """Smaller ones for names that come first."""
        ranks = np.empty(len(self.names), np.int64)
        ranks[sorted(range(len(self.names)), key=lambda code: _order(self.names[code]))] = np.arange(len(self.names))
        return ranks[self.codes]


def _order(name: str | None) -> tuple[bool, str]:
    return name is None, name or ""


class Groups:
    def __init__(self, starts: Numbers, dimensions: Sequence[Dimension], measures: Sequence[Measured]) -> None:
        self.starts = starts
        self.dimensions = dimensions
        self.measures = measures

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, places: Array) -> "Groups":
        return Groups(
            self.starts[places],
            [dimension.take(places) for dimension in self.dimensions],
            [measure.take(places) for measure in self.measures],
        )

    def arranged(self) -> "Groups":
        """In order: by time, then by the names of their dimensions; null is the last."""
        order = np.lexsort([dimension.ranks() for dimension in reversed(self.dimensions)] + [self.starts])
        return self if np.array_equal(order, np.arange(len(order))) else self.take(order)


NO_GROUPS: Final = Groups(np.zeros(0, np.int64), (), ())


def regroup(sources: Sequence[Groups], interval_ms: int, wanted: Sequence[int]) -> Groups:
    """Groups of several as those of one, by the places of some of their dimensions, in buckets of a length that each
    source's is a part of. They come in order: by time, then by the names of their dimensions; null is the last."""
    starts = np.concatenate([source.starts for source in sources]) // interval_ms * interval_ms
    distinct, times = np.unique(starts, return_inverse=True)
    joined = [_one_dimension([source.dimensions[place] for source in sources]) for place in wanted]
    axes = [Axis(times, len(distinct)), *(Axis(one.codes, len(one.names)) for one in joined)]
    groups, counts, (buckets, *keys) = number_keys(axes, len(starts))
    measures = [together(parts) for parts in zip(*(source.measures for source in sources), strict=True)]
    return Groups(
        distinct[buckets],
        [Dimension(codes, one.names) for codes, one in zip(keys, joined, strict=True)],
        [measure.added(groups, len(counts)) for measure in measures],
    )


def _one_dimension(parts: Sequence[Dimension]) -> Dimension:
    """Those of several one behind the other, by names in order."""
    names = sorted({name for part in parts for name in part.names}, key=_order)
    codes = {name: code for code, name in enumerate(names)}
    known = [np.array([codes[name] for name in part.names], np.int64) for part in parts]
    return Dimension(np.concatenate([new[part.codes] for new, part in zip(known, parts, strict=True)]), names)
