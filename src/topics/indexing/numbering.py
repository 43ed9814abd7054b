"""Numbers for keys: for each row one below the number of keys there are, in the order of the keys."""

from collections.abc import Sequence
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topics.indexing.columns import Numbers

Array = NDArray[Any]
_FEW: Final = 4096
_A_ROW: Final = 16
"""A table of so many codes a row takes no longer than to sort the rows, and one of so few never does."""
_MOST: Final = 1 << 20
"""No table is longer, however many rows there are: it takes memory."""


class Axis(NamedTuple):
    """One part of the keys: a code for each row, and what all codes are below."""

    codes: Array
    size: int


class Numbered(NamedTuple):
    groups: Numbers
    """The number of each row's key."""
    counts: Numbers
    """How many rows each key has."""
    keys: list[Numbers]
    """For each axis the codes of the keys."""


def number_keys(axes: Sequence[Axis], count: int) -> Numbered:
    """Of so many rows; there is one axis at least."""
    if is_few(prod(axis.size for axis in axes), count):
        return _number_at_once(axes, count)
    groups, size, keys = np.zeros(count, np.int64), 1, list[Numbers]()
    for codes, below in axes:
        # Numbered anew after each axis, so that no product of their sizes can overflow.
        groups, present = compacted(groups * below + codes, size * below)
        keys = [*(known[present // below] for known in keys), present % below]
        size = len(present)
    return Numbered(groups, np.bincount(groups, minlength=size), keys)


def _number_at_once(axes: Sequence[Axis], count: int) -> Numbered:
    size, joined = 1, np.zeros(count, np.int64)
    for codes, below in axes:
        joined = codes.astype(np.int64, copy=False) if size == 1 else joined * below + codes
        size *= below
    counts = np.bincount(joined, minlength=size)
    present = rest = np.flatnonzero(counts)
    keys: list[Numbers] = []
    for _, below in reversed(axes):
        rest, codes = np.divmod(rest, below)
        keys.insert(0, codes)
    return Numbered(_without_holes(joined, present, size), counts[present], keys)


def compacted(codes: Array, size: int) -> tuple[Numbers, Numbers]:
    """Codes below a size without holes, in their order, and the codes that there are."""
    if not is_few(size, len(codes)):
        present, numbers = np.unique(codes, return_inverse=True)
        return numbers, present.astype(np.int64, copy=False)
    seen = np.zeros(size, np.bool_)
    seen[codes] = True
    present = np.flatnonzero(seen)
    return _without_holes(codes, present, size), present


def is_few(size: int, count: int) -> bool:
    """Whether a table of all codes below a size is made sooner than so many of them are sorted."""
    return size <= max(_FEW, min(_A_ROW * count, _MOST))


def _without_holes(codes: Array, present: Numbers, size: int) -> Numbers:
    if len(present) == size:
        return codes.astype(np.int64, copy=False)
    numbers = np.empty(size, np.int64)
    numbers[present] = np.arange(len(present))
    return numbers.take(codes)
