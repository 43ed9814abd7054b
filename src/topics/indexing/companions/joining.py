"""Texts of several companions as those of one.

Dictionaries are sorted, so they are merged: some thousand texts of each at a time, whatever their number, and those
together. Of what is only put one behind the other, or left out, no text is looked at.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from topics.indexing.columns import ranges
from topics.indexing.companions.files import bytes_of
from topics.indexing.companions.texts import MappedTexts, narrow

Array = NDArray[Any]
_AT_A_TIME: Final = 1 << 15


class _Source:
    """A dictionary, and how far it is merged."""

    def __init__(self, texts: MappedTexts, at_a_time: int) -> None:
        self._texts = texts
        self._at_a_time = at_a_time
        self._ahead: list[bytes] = []
        """The next texts, as far as they were looked at."""
        self._place = 0
        self._read = 0
        self.codes: Array = np.zeros(len(texts), np.int64)
        """The new codes of its texts."""
        self.read_on()

    def read_on(self) -> None:
        if self._place == len(self._ahead):
            first, end = self._read, min(self._read + self._at_a_time, len(self._texts))
            self._ahead, self._place, self._read = _texts_of(self._texts, first, end), 0, end

    @property
    def is_left(self) -> bool:
        return self._place < len(self._ahead)

    @property
    def last(self) -> bytes:
        return self._ahead[-1]

    def next_until(self, bound: bytes) -> list[bytes]:
        end = bisect_right(self._ahead, bound, self._place)
        return self._ahead[self._place : end]

    def take(self, texts: Sequence[bytes], codes: dict[bytes, int]) -> None:
        """Notes the codes of its next texts."""
        done = self._read - len(self._ahead) + self._place
        self.codes[done : done + len(texts)] = np.fromiter(map(codes.__getitem__, texts), np.int64, len(texts))
        self._place += len(texts)
        self.read_on()


def _texts_of(texts: MappedTexts, first: int, end: int) -> list[bytes]:
    if first == end:
        return []
    begin = int(texts.ends[first - 1]) if first else 0
    ends = (texts.ends[first:end].astype(np.int64) - begin).tolist()
    raw = bytes(bytes_of(texts.raw)[begin : begin + ends[-1]])
    return list(map(raw.__getitem__, map(slice, [0, *ends[:-1]], ends)))


def join_texts(dictionaries: Sequence[MappedTexts], at_a_time: int = _AT_A_TIME) -> tuple[MappedTexts, list[Array]]:
    """One dictionary, and for each old one the new codes of its texts."""
    sources = [_Source(texts, at_a_time) for texts in dictionaries]
    raw, lengths, count = bytearray(), [np.zeros(0, np.int64)], 0
    while left := [source for source in sources if source.is_left]:
        # What nobody has looked at yet comes behind the least of the last ones that somebody has.
        bound = min(source.last for source in left)
        runs = [source.next_until(bound) for source in left]
        # The runs are in order, which is what this sort is quick with.
        distinct = list(dict.fromkeys(sorted(text for run in runs for text in run)))
        codes = dict(zip(distinct, range(count, count + len(distinct)), strict=True))
        for source, run in zip(left, runs, strict=True):
            source.take(run, codes)
        raw += b"".join(distinct)
        lengths.append(np.fromiter(map(len, distinct), np.int64, len(distinct)))
        count += len(distinct)
    ends = narrow(np.cumsum(np.concatenate(lengths)))
    return MappedTexts(np.frombuffer(raw, np.uint8), ends), [source.codes for source in sources]


def texts_at(raw: Array, ends: Array, places: Array) -> tuple[Array, Array]:
    """Some of many texts that stand one behind the other: their bytes and ends."""
    lengths = np.diff(ends.astype(np.int64), prepend=0)
    chosen = lengths[places]
    begins = ends[places].astype(np.int64) - chosen
    return raw[ranges(begins, chosen)], narrow(np.cumsum(chosen))


def texts_behind(parts: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Texts of several, one behind the other: their bytes and ends."""
    behind = np.cumsum([0, *(len(raw) for raw, _ in parts)]).tolist()
    ends = [ends.astype(np.int64) + before for (_, ends), before in zip(parts, behind, strict=False)]
    return np.concatenate([raw for raw, _ in parts]), narrow(np.concatenate(ends))
