"""Texts as numbers: each distinct text of a column has a code, in the order in which they first came."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import filterfalse
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topics.indexing.columns import Codes, Mask, Numbers

_TEXT_BYTES = 160
"""What a short text takes in a dictionary besides its characters."""


class Dictionary:
    """The codes of texts. Most of them stand in a sorted list besides, which finds those with a common beginning. What
    came since it was made is looked at one by one, until there is too much of it."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}
        self._ordered: list[str] = []
        self._ordered_codes: Codes = np.empty(0, np.int32)
        self._ranks: Numbers = np.empty(0, np.int64)
        self._chars = 0

    def __len__(self) -> int:
        return len(self.texts)

    def encode(self, texts: Sequence[str]) -> Codes:
        """The codes of texts; those that it does not know get the next ones, all at once."""
        codes, count = self._codes, len(texts)
        try:
            return np.fromiter(map(codes.__getitem__, texts), np.int32, count)
        except KeyError:
            new = list(filterfalse(codes.__contains__, dict.fromkeys(texts)))
            codes.update(zip(new, range(len(codes), len(codes) + len(new)), strict=True))
            self.texts += new
            self._chars += sum(map(len, new))
        return np.fromiter(map(codes.__getitem__, texts), np.int32, count)

    def code(self, text: str) -> int | None:
        return self._codes.get(text)

    def _sort(self, spare: int = 0) -> None:
        """Sorts all texts but at most so many of the last ones."""
        if len(self.texts) - len(self._ordered) <= spare:
            return
        # The old ones are in order already, which is what this sort is quick with.
        ordered = self._ordered + sorted(self.texts[len(self._ordered) :])
        ordered.sort()
        codes = np.fromiter(map(self._codes.__getitem__, ordered), np.int32, len(ordered))
        self._ordered, self._ordered_codes = ordered, codes

    def _sort_most(self) -> list[str]:
        """Sorts the texts now and then; those that are not sorted."""
        self._sort(1024 + len(self._ordered) // 8)
        return self.texts[len(self._ordered) :]

    def ordered(self) -> Sequence[str]:
        """All texts in their order."""
        self._sort()
        return self._ordered

    def ranks(self) -> Numbers:
        """For each code, twice the place of its text among all of them."""
        self._sort()
        if len(self._ranks) != len(self._ordered):
            ranks = np.empty(len(self._ordered), np.int64)
            ranks[self._ordered_codes] = np.arange(0, 2 * len(self._ordered), 2)
            self._ranks = ranks
        return self._ranks

    def rank(self, text: str) -> int:
        """The rank of a text; one between two others if it has no code."""
        self._sort()
        place = bisect_left(self._ordered, text)
        return 2 * place if place < len(self._ordered) and self._ordered[place] == text else 2 * place - 1

    def ranked(self, codes: NDArray[Any]) -> Numbers:
        ranks: Numbers = self.ranks()[codes]
        return ranks

    def begin_with(self, prefix: str, codes: NDArray[Any]) -> Mask:
        mask: Mask = self.having_prefix(prefix)[codes]
        return mask

    def contain(self, part: str, codes: NDArray[Any]) -> Mask:
        mask: Mask = self.having_part(part)[codes]
        return mask

    def having_prefix(self, prefix: str) -> Mask:
        """For each code, whether its text begins so."""
        rest = self._sort_most()
        begin = bisect_left(self._ordered, prefix)
        end = bisect_left(self._ordered, True, begin, key=lambda text: not text.startswith(prefix))
        mask = np.zeros(len(self.texts), np.bool_)
        mask[self._ordered_codes[begin:end]] = True
        mask[len(self._ordered) :] = [text.startswith(prefix) for text in rest]
        return mask

    def having_part(self, part: str) -> Mask:
        """For each code, whether its text has this one in it."""
        return np.fromiter((part in text for text in self.texts), np.bool_, len(self.texts))

    def first_behind(self, text: str | None, live: Mask, limit: int) -> list[str]:
        """The first texts behind one, of those whose codes are alive."""
        rest = self._sort_most()
        found: list[str] = []
        for place in range(0 if text is None else bisect_right(self._ordered, text), len(self._ordered)):
            if len(found) == limit:
                break
            if live[self._ordered_codes[place]]:
                found.append(self._ordered[place])
        alive = live[len(self._ordered) :].tolist()
        found += [
            other for other, is_live in zip(rest, alive, strict=True) if is_live and (text is None or other > text)
        ]
        return sorted(found)[:limit]

    @property
    def memory_bytes(self) -> int:
        return self._chars + _TEXT_BYTES * len(self.texts)
