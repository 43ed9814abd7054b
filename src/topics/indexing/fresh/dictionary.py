"""Texts as numbers: each distinct text of a column has a code, in the order in which they first came."""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import compress, filterfalse
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topics.indexing.columns import Codes, Mask, Numbers

_TEXT_BYTES: Final = 160
"""What a short text takes in a dictionary besides its characters."""
RUN_TEXTS: Final = 16_384
_RUNS_AT_ONCE: Final = 8
"""So many are sorted for one query, because whoever else wants to search waits: with a look at the rest of a million
that takes some 150 ms."""


RANKED_TEXTS: Final = RUN_TEXTS * _RUNS_AT_ONCE
"""So many are sorted as a whole where somebody wants an order."""


class Run(NamedTuple):
    """Texts in their order, and the code of each."""

    texts: list[str]
    codes: Codes


class Dictionary:
    """The codes of texts. Runs of them stand in sorted lists besides, which find those with a common beginning.

    To sort a million of them would take seconds, so that is done run by run as queries come; what is in none is looked
    at one by one. All are sorted only for whoever wants to know the order of all, and no query does where they are
    many, but one that is sorted by a field of several values."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}
        self._runs: list[Run] = []
        self._sorted = 0
        """How many texts, the first ones, are in runs."""
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

    def _sort_all(self) -> Run:
        """All texts as one run."""
        if self._sorted < len(self.texts) or len(self._runs) != 1:
            ordered = [text for run in self._runs for text in run.texts] + self.texts[self._sorted :]
            # Runs are in order already, which is what this sort is quick with.
            ordered.sort()
            codes = np.fromiter(map(self._codes.__getitem__, ordered), np.int32, len(ordered))
            self._runs, self._sorted = [Run(ordered, codes)], len(ordered)
        return self._runs[0]

    def _sort_some(self) -> list[str]:
        """Sorts some of the texts that are in no run; those that are in none then."""
        texts = self.texts
        for _ in range(_RUNS_AT_ONCE):
            end = self._sorted + RUN_TEXTS
            if end > len(texts):
                break
            codes = sorted(range(self._sorted, end), key=texts.__getitem__)
            self._runs.append(Run([texts[code] for code in codes], np.array(codes, np.int32)))
            self._sorted = end
        return texts[self._sorted :]

    def ordered(self) -> Sequence[str]:
        """All texts in their order."""
        return self._sort_all().texts

    def ranks(self) -> Numbers:
        """For each code, twice the place of its text among all of them."""
        run = self._sort_all()
        if len(self._ranks) != len(run.texts):
            ranks = np.empty(len(run.texts), np.int64)
            ranks[run.codes] = np.arange(0, 2 * len(run.texts), 2)
            self._ranks = ranks
        return self._ranks

    def rank(self, text: str) -> int:
        """The rank of a text; one between two others if it has no code."""
        texts = self._sort_all().texts
        place = bisect_left(texts, text)
        return 2 * place if place < len(texts) and texts[place] == text else 2 * place - 1

    @property
    def is_ranked(self) -> bool:
        return len(self.texts) <= RANKED_TEXTS

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
        rest = self._sort_some()
        mask = np.zeros(len(self.texts), np.bool_)
        for texts, codes in self._runs:
            begin = bisect_left(texts, prefix)
            end = bisect_left(texts, True, begin, key=lambda text: not text.startswith(prefix))
            mask[codes[begin:end]] = True
        mask[self._sorted :] = [text.startswith(prefix) for text in rest]
        return mask

    def come_behind(self, text: str, codes: NDArray[Any]) -> Mask:
        mask: Mask = self.behind(text)[codes]
        return mask

    def behind(self, text: str) -> Mask:
        """For each code, whether its text comes behind this one."""
        rest = self._sort_some()
        mask = np.zeros(len(self.texts), np.bool_)
        for texts, codes in self._runs:
            mask[codes[bisect_right(texts, text) :]] = True
        mask[self._sorted :] = [other > text for other in rest]
        return mask

    def first_among(self, codes: NDArray[Any], size: int, ascending: bool) -> Codes:
        rest = self._sort_some()
        wanted = np.zeros(len(self.texts), np.bool_)
        wanted[codes] = True
        found: list[str] = []
        for texts, in_order in self._runs:
            places = np.flatnonzero(wanted[in_order])
            found += [texts[place] for place in (places[:size] if ascending else places[-size:]).tolist()]
        few = heapq.nsmallest if ascending else heapq.nlargest
        found += few(size, compress(rest, wanted[self._sorted :].tolist()))
        found.sort(reverse=not ascending)
        return np.fromiter(map(self._codes.__getitem__, found[:size]), np.int32)

    def having_part(self, part: str) -> Mask:
        """For each code, whether its text has this one in it."""
        return np.fromiter((part in text for text in self.texts), np.bool_, len(self.texts))

    def first_behind(self, text: str | None, live: Mask, limit: int) -> list[str]:
        """The first texts behind one, of those whose codes are alive."""
        rest = self._sort_some()
        found: list[str] = []
        for texts, codes in self._runs:
            begin, wanted = 0 if text is None else bisect_right(texts, text), limit
            while wanted and begin < len(texts):
                # Most are alive, so that one look is mostly enough.
                alive = np.flatnonzero(live[codes[begin : begin + limit]])[:wanted].tolist()
                found += [texts[begin + place] for place in alive]
                begin, wanted = begin + limit, wanted - len(alive)
        are_alive = live[self._sorted :].tolist()
        found += [
            other for other, is_live in zip(rest, are_alive, strict=True) if is_live and (text is None or other > text)
        ]
        return sorted(found)[:limit]

    @property
    def memory_bytes(self) -> int:
        return self._chars + _TEXT_BYTES * len(self.texts)
