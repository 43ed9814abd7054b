"""Fills columns: all values of a field at once where they are of one kind, and one by one where they are not.

Both ways fill in the same. The first one takes a tenth of the time, and most fields of most entries go that way.
"""

from collections.abc import Callable
from itertools import compress
from typing import Any, Final

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from topics.indexing.columns import Numbers
from topics.indexing.extraction import reader
from topics.indexing.fresh.columns import GrowingColumn, Keywords, WordColumn, column_for
from topics.indexing.words import NORMALIZERS
from topics.schema.pointers import MISSING
from topics.schema.search import Field

_ABSENT: Final = frozenset((type(None), type(MISSING)))
_GIVEN: Final = frozenset((str, int, float, bool))
"""All that is taken at once, besides nothing."""
Encode = Callable[[list[Any]], NDArray[Any] | None]
"""The values of a column from raw ones of one kind; None where some have none."""


class Filler:
    """Fills the column of one field."""

    def __init__(self, field: Field, column: GrowingColumn | None = None) -> None:
        self.column = column_for(field) if column is None else column
        self._read = reader(field)
        self._kinds, self._encode = _encoder(field, self.column)

    def fill(self, found: list[Any]) -> None:
        """Adds what was found in each of the next entries."""
        kinds = set(map(type, found))
        if not kinds - _ABSENT <= self._kinds or not self._fill_at_once(found, kinds):
            self.column.extend([self._read(value) for value in found])

    def _fill_at_once(self, found: list[Any], kinds: set[type]) -> bool:
        column, count = self.column, len(found)
        values, rows, present = found, np.arange(count), np.ones(count, np.bool_)
        if type(MISSING) in kinds:
            present = np.fromiter((value is not MISSING for value in found), np.bool_, count)
        if kinds & _ABSENT:
            has = np.fromiter(map(_GIVEN.__contains__, map(type, found)), np.bool_, count)
            values, rows = list(compress(found, has)), np.flatnonzero(has)
        if isinstance(column, WordColumn):
            column.extend_texts(values, rows, present)
            return True
        encoded = self._encode(values)
        if encoded is None:
            return False
        column.extend_values(encoded, rows, present)
        return True


def is_plain_keyword(field: Field) -> bool:
    """Whether the values of a field are its texts as they are."""
    return field.kind == "keyword" and (field.normalizer is UNSET or field.normalizer == "identity_v1")


def _encoder(field: Field, column: GrowingColumn) -> tuple[frozenset[type], Encode]:
    """Which kinds of values can be taken at once, and how."""
    if isinstance(column, Keywords):
        dictionary = column.dictionary
        if field.kind == "text" or field.normalizer is UNSET or is_plain_keyword(field):
            return frozenset((str,)), dictionary.encode
        normalise = NORMALIZERS[field.normalizer]
        return frozenset((str,)), lambda values: dictionary.encode(list(map(normalise, values)))
    return _TYPED[field.kind]


def _integers(values: list[Any]) -> NDArray[Any] | None:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return None


def _floats(values: list[Any]) -> NDArray[Any] | None:
    try:
        numbers = np.array(values, np.float64)
    except OverflowError:
        return None
    # As for single values: adding 0 makes 0 of -0.
    return numbers + 0.0 if np.isfinite(numbers).all() else None


def _dates(values: list[Any]) -> NDArray[Any] | None:
    kinds = set(map(type, values))
    if kinds == {str}:
        return calendar_ms(values)
    return _integers(values) if kinds <= {int} else None


_DIGITS: Final = (0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18)
_SIGNS: Final = ((4, "-"), (7, "-"), (10, "T"), (13, ":"), (16, ":"))


def calendar_ms(texts: list[str]) -> Numbers | None:
    """Milliseconds since 1970 of dates in UTC that are all written to the second, or all to the millisecond; None where
    one is written otherwise or is no date."""
    lengths = set(map(len, texts))
    joined = "".join(texts)
    if lengths not in ({24}, {20}) or not joined.isascii():
        return None
    (length,) = lengths
    chars = np.frombuffer(joined.encode(), np.uint8).reshape(len(texts), length)
    digits = _DIGITS if length == 20 else (*_DIGITS, 20, 21, 22)
    signs = [*_SIGNS, (length - 1, "Z")] + ([(19, ".")] if length == 24 else [])
    numbers = chars[:, digits] - ord("0")
    # Below a digit there is only what is above nine, once it was subtracted from.
    if (numbers > 9).any() or any((chars[:, place] != ord(sign)).any() for place, sign in signs):
        return None
    if not numbers[:, :4].any(axis=1).all():
        return None
    try:
        moments = np.ascontiguousarray(chars[:, : length - 1]).view(f"S{length - 1}").ravel().astype("datetime64[ms]")
    except ValueError:
        return None
    return moments.astype(np.int64)


_TYPED: Final[dict[str, tuple[frozenset[type], Encode]]] = {
    "integer": (frozenset((int,)), _integers),
    "float": (frozenset((int, float)), _floats),
    "date": (frozenset((int, str)), _dates),
    "bool": (frozenset((bool,)), lambda values: np.array(values, np.int8)),
}
